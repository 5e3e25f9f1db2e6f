"""Code addresses, calls, and the constant data behind a kernel: what a linker and a loader do on a real machine.

Instruction i of an assembly stands at the made-up address CODE + 4 i, so that `s_getpc_b64`, `s_swappc_b64` and
`s_setpc_b64` work with addresses as they do in silicon; one of a code object stands where that was loaded. A symbol is
written relative to the `s_getpc_b64` in front of it; LLVM's addend is the distance in bytes from there to the literal,
plus what the code adds to the symbol.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from ..errors import EmulationError, UnknownInstructionError
from ..isa.parse import Instruction, Listing, Operand
from .alu import refuse_misplaced, scalar
from .memory import Region
from .state import U64, Waves

CODE = 1 << 46  #: far from where Linux maps programs, heaps and stacks; positive in 48 bits, which RDNA 4 sign-extends
JUMPS = ("s_swappc_b64", "s_setpc_b64", "s_call_b64", "s_add_pc_i64")
ENDS = ("s_endpgm", "s_endpgm_saved", "s_endpgm_ordered_ps_done")
LEAVING = (*JUMPS, *ENDS)

_SYMBOL = re.compile(r'"?([^"@]+)"?@(?:(rel32|gotpcrel32)@(lo|hi)|(rel64|gotpcrel))(?:\+(\d+))?')
_POINTER = re.compile(r'"?([A-Za-z_.$][^"+\s]*)"?\s*(?:\+\s*(\d+))?')  #: in constant data, with what is added
#: the distance of a branch that 16 bits cannot hold, or half of it
_FAR = re.compile(r'\(?([^\s()@"-]+)-([^\s()@"-]+)(?:\)(&4294967295|>>32))?')
_DISTANCE = re.compile(r"[-+]?(0x[0-9a-f]+|0b[01]+|\d+)", re.IGNORECASE)
_ESCAPES = {"n": 10, "t": 9, "r": 13, "b": 8, "f": 12, '"': 34, "\\": 92}
_SIZES = {"byte": 1, "short": 2, "hword": 2, "long": 4, "word": 4, "quad": 8}
_WORD, _ALL = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_AHEAD = 12  #: instructions behind `s_getpc_b64` that make an address of it
_LOW_WORDS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("s_add_u32", "s_add_co_u32", "s_add_i32", "s_add_co_i32", "s_addk_i32"), lambda a, b: a + b),
    **dict.fromkeys(("s_sub_u32", "s_sub_co_u32", "s_sub_i32", "s_sub_co_i32"), lambda a, b: a - b),
    "s_abs_i32": lambda a: abs((a & _WORD) - ((a & _WORD) >> 31 << 32)), "s_mov_b32": lambda a: a,
}  # fmt: skip


class Places:
    """The address of each instruction of a listing, and the instruction at an address.

    base: where the code object is loaded whose disassembly this is.
    """

    def __init__(self, listing: Listing, base: int = CODE):
        code = listing.instructions
        if code and all(ins.address >= 0 for ins in code):
            self.of = [base + ins.address for ins in code]
            self.after = [base + ins.address + ins.nbytes for ins in code]
        else:
            self.of = [CODE + 4 * index for index in range(len(code))]
            self.after = [CODE + 4 * (index + 1) for index in range(len(code))]
        self.at = {address: index for index, address in enumerate(self.of)}

    def reached(self, listing: Listing) -> set[int]:
        """Instructions that the code may jump to without a label: `s_getpc_b64` and constants make their address."""
        found = set()
        for index, ins in enumerate(listing.instructions):
            if ins.name == "s_add_pc_i64" and ins.operands[0].kind == "const":
                target = (self.after[index] + int(ins.operands[0].value)) & _ALL
                found |= {self.at[target]} if target in self.at else set()
            if ins.name != "s_getpc_b64":
                continue
            low = ins.operands[0].index
            known, addresses = {low: self.after[index] & _WORD}, {low}  # low words of registers, and which are of code
            for other in listing.instructions[index + 1 : index + 1 + _AHEAD]:
                if (operation := _LOW_WORDS.get(other.name)) is None:
                    continue
                to, sources = other.operands[0].index, other.operands[1 if other.name != "s_addk_i32" else 0 :]
                values = [known.get(x.index) if x.kind == "s" else x.value for x in sources]
                if not all(isinstance(value, int) for value in values):
                    known.pop(to, None)
                    continue
                known[to] = operation(*values) & _WORD
                if any(x.kind == "s" and x.index in addresses for x in sources):
                    addresses.add(to)
                    distance = (known[to] - self.after[index]) & _WORD
                    target = self.after[index] + distance - (distance >> 31 << 32)
                    found |= {self.at[target]} if target in self.at else set()
                else:
                    addresses.discard(to)
        return found


def leads_nowhere(jump: Instruction) -> str:
    """What is wrong with a branch or call to what is no label of the text."""
    if _DISTANCE.fullmatch(str(jump.operands[-1].value)):
        return "a number as the target counts words of machine code, which a text has not: write a label"
    return f"a {'call of' if jump.name == 's_call_b64' else 'branch to'} an unknown label"


def link(text: str, listing: Listing, places: Places) -> Region | None:
    """Give every symbol that the code names its address, and every `s_getpc_b64` its own.

    Returns the constant data of the assembly, with one word behind it per symbol that is reached through the global
    offset table; None where the code names no symbol. Raises EmulationError for a symbol that the text does not define.
    """
    users = [ins for ins in listing.instructions if _symbols(ins)]
    for index, ins in enumerate(listing.instructions):
        if ins.name == "s_getpc_b64":
            ins.operands = (ins.operands[0], Operand("const", value=places.after[index]))
        elif any(o.kind == "symbol" and _FAR.fullmatch(str(o.value)) for o in ins.operands):
            ins.operands = tuple(_far(o, listing, places) for o in ins.operands)
        elif ins.name == "s_add_pc_i64" and ins.operands[0].kind == "const" and ins.address < 0:
            raise EmulationError(f"line {ins.line}: {ins.text!r} counts bytes of machine code, which a text has not")
    if not users:
        return None
    data, offsets, pointers = _constant_data(text)
    names = sorted({match[1] for ins in users for match in _symbols(ins)})
    data += bytes(-len(data) % 8)
    slots = {name: len(data) + 8 * k for k, name in enumerate(names)}
    memory = np.frombuffer(bytes(data) + bytes(8 * len(names) + 64), np.uint8).copy()
    base = memory.ctypes.data
    at: dict[str, int] = {}
    for name in dict.fromkeys([*names, *(name for _, name, _ in pointers)]):
        if name in listing.labels:
            at[name] = places.of[listing.labels[name]]
        elif name in offsets:
            at[name] = base + offsets[name]
        else:
            raise EmulationError(f"{listing.kernel} names {name!r}, which its assembly does not define")
    for where, name, more in [*((slots[name], name, 0) for name in names), *pointers]:
        memory[where : where + 8] = np.frombuffer((at[name] + more).to_bytes(8, "little"), np.uint8)
    origin, passed = CODE, 0  # passed: bytes of machine code since the last s_getpc_b64
    for index, ins in enumerate(listing.instructions):
        if ins.name == "s_getpc_b64":
            origin, passed = places.after[index], 0
        elif _symbols(ins):
            # The literal is the second of the instruction's two words; what stands between are instructions of one.
            ins.operands = tuple(_resolve(o, at, slots, base, origin, passed + 4) for o in ins.operands)
            passed += 8
        else:
            passed += 4
    return Region("constant data", base, memory.nbytes, memory)


def _symbols(ins: Instruction) -> list[re.Match]:
    found = [_SYMBOL.fullmatch(str(o.value)) for o in ins.operands if o.kind == "symbol"]
    return [match for match in found if match]


def _far(operand: Operand, listing: Listing, places: Places) -> Operand:
    """The distance between two labels, or half of it, as a constant; other operands as they are."""
    match = _FAR.fullmatch(str(operand.value)) if operand.kind == "symbol" else None
    if match is None:
        return operand
    for name in match[1], match[2]:
        if name not in listing.labels:
            raise EmulationError(f"{listing.kernel} branches by way of {name!r}, which its assembly does not define")
    distance = places.of[listing.labels[match[1]]] - places.of[listing.labels[match[2]]]
    if match[3] is None:
        return Operand("const", value=distance)
    return Operand("const", value=(distance >> 32 if match[3] == ">>32" else distance) & 0xFFFFFFFF)


def _resolve(
    operand: Operand, at: Mapping[str, int], slots: Mapping[str, int], base: int, origin: int, literal: int
) -> Operand:
    """A symbol as a constant; `literal` is the distance in bytes from `origin` to where the constant stands."""
    match = _SYMBOL.fullmatch(str(operand.value)) if operand.kind == "symbol" else None
    if match is None:
        return operand
    by_table = (match[2] or match[4]).startswith("gotpcrel")
    target = base + slots[match[1]] if by_table else at[match[1]]
    distance = target - origin + int(match[5] or literal) - literal
    if match[2] is None:  # gfx1250 adds all 64 bits at once
        return Operand("const", value=distance & 0xFFFFFFFFFFFFFFFF)
    return Operand("const", value=(distance if match[3] == "lo" else distance >> 32) & 0xFFFFFFFF)


# -- constant data -----------------------------------------------------------------------------------------------------


def _constant_data(text: str) -> tuple[bytearray, dict[str, int], list[tuple[int, str, int]]]:
    """The bytes of every object that the assembly defines, where each starts, and where addresses stand in them: with
    the symbol and what is added to it."""
    data: bytearray = bytearray()
    pointers: list[tuple[int, str, int]] = []
    offsets: dict[str, int] = {}
    for match in re.finditer(r"^\s*\.type\s+(\"?[^\s,]+\"?),@object", text, re.M):
        name = match[1].strip('"')
        start = re.search(rf"^{re.escape(match[1])}:[^\n]*\n", text[match.end() :], re.M)
        if start is None:
            continue
        data.extend(bytes(-len(data) % 64))
        offsets[name] = len(data)
        for line in text[match.end() + start.end() :].split("\n"):
            directive, _, rest = line.strip().partition("\t" if "\t" in line.strip() else " ")
            if directive == ".size":
                break
            octets, symbols = _bytes_of(directive.removeprefix("."), rest.strip())
            pointers += [(len(data) + where, symbol, more) for where, symbol, more in symbols]
            data.extend(octets)
    return data, offsets, pointers


def _bytes_of(directive: str, rest: str) -> tuple[bytes, list[tuple[int, str, int]]]:
    """The bytes of a directive, and the addresses among them."""
    if directive in ("ascii", "asciz"):
        return _string(rest) + (b"\0" if directive == "asciz" else b""), []
    values = [part.strip() for part in rest.partition(";")[0].split(",")]
    if directive in ("zero", "skip"):
        return bytes(int(values[0], 0)), []
    size = _SIZES.get(directive, 0)
    found = {k: match for k, v in enumerate(values) if size and (match := _POINTER.fullmatch(v))}
    if found and size != 8:
        raise EmulationError(f"an address in {size} bytes of constant data is not implemented: '.{directive} {rest}'")
    numbers = [0 if k in found else int(v, 0) for k, v in enumerate(values)] if size else []
    octets = b"".join((n & ((1 << 8 * size) - 1)).to_bytes(size, "little") for n in numbers)
    return octets, [(size * k, match[1], int(match[2] or 0)) for k, match in found.items()]


def _string(text: str) -> bytes:
    """A quoted string of the GNU assembler's syntax."""
    body = text[text.index('"') + 1 : text.rindex('"')]
    out, k = bytearray(), 0
    while k < len(body):
        if body[k] != "\\":
            out += body[k].encode()
            k += 1
        elif octal := re.match(r"[0-7]{1,3}", body[k + 1 :]):
            out.append(int(octal[0], 8) & 255)
            k += 1 + len(octal[0])
        else:
            out.append(_ESCAPES.get(body[k + 1], ord(body[k + 1])))
            k += 2
    return bytes(out)


# -- jumps -------------------------------------------------------------------------------------------------------------

Jump = Callable[[Waves], np.ndarray]


def build_jump(
    ins: Instruction, index: int, labels: Mapping[str, int], number: Mapping[int, int], places: Places
) -> Jump:
    """What a call or an indirect jump does: writes the return address, and gives the block each wave goes to.

    index: of the instruction; number: instruction index -> block.
    """
    after = places.after[index]
    name, operands = ins.name, ins.operands
    refuse_misplaced(ins)
    if name == "s_call_b64":
        block = number[labels[str(operands[1].value)]]

        def call(g: Waves) -> np.ndarray:
            g.set_scalar64(operands[0].index, after)
            _enter(g, after)
            return np.full(g.count, block)

        return call
    if name == "s_add_pc_i64":
        return _relative(operands[0], after, number, places)
    register = operands[-1].index

    def jump(g: Waves) -> np.ndarray:
        addresses = g.scalar64(register)
        if name == "s_swappc_b64":
            g.set_scalar64(operands[0].index, after)
            _enter(g, after)
        elif g.calls and (address := int(addresses[0])) in g.calls:
            g.calls = g.calls[: len(g.calls) - 1 - g.calls[::-1].index(address)]
        return _blocks_at(addresses, name, number, places)

    return jump


def _relative(distance: Operand, after: int, number: Mapping[int, int], places: Places) -> Jump:
    """CDNA 5's jump by a number of bytes: LLVM's far branch, or a register's."""
    if distance.kind not in ("s", "const"):
        raise UnknownInstructionError(f"s_add_pc_i64 by {distance.value!r} is not implemented")

    def jump(g: Waves) -> np.ndarray:
        by = g.scalar64(distance.index) if distance.kind == "s" else np.full(g.count, int(distance.value) & _ALL, U64)
        return _blocks_at(by + U64(after), "s_add_pc_i64", number, places)

    return jump


def _blocks_at(addresses: np.ndarray, name: str, number: Mapping[int, int], places: Places) -> np.ndarray:
    """The block at each wave's address."""
    targets = np.empty(len(addresses), np.int64)
    for address in np.unique(addresses):
        block = number.get(places.at.get(int(address), -1))
        if block is None:
            raise EmulationError(f"{name} jumps to {int(address):#x}, where there is no code")
        targets[addresses == address] = block
    return targets


def _enter(g: Waves, after: int) -> None:
    """Strict mode keeps waves apart that called a function from different places: they wait for what they loaded."""
    if g.shadow is not None:
        g.calls = (*g.calls, after)


def part(g: Waves, targets: np.ndarray) -> list[Waves]:
    """The groups that `g` becomes when its waves go on at these blocks."""
    first = targets[0]
    if (targets == first).all():
        g.block = int(first)
        return [g]
    groups = []
    for block in np.unique(targets):
        chosen, _ = g.split(targets == block)
        chosen.block = int(block)
        groups.append(chosen)
    return groups


scalar("s_getpc_b64", "b64", "b64", lambda address: U64(address))

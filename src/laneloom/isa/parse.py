"""LLVM's AMDGCN assembly text -> `Listing`: instructions, typed operands, labels, descriptor, source lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ..errors import ArgumentError, EmulationError
from .expressions import value_of
from .flow import Flow, flow_of
from .handwritten import as_printed, line_number
from .symbols import plain_symbols

# Register numbers of the scalar file on gfx11 and gfx12 (AMD RDNA 3 and RDNA 4 ISA guides, "Scalar operands").
VCC, TTMP, NULL, M0, EXEC = 106, 108, 124, 125, 126
SCALAR_REGISTERS = 128
FLAT_SCRATCH, XNACK_MASK = 102, 104  #: CDNA alone
_NAMED = {
    "vcc_lo": VCC, "vcc_hi": VCC + 1, "exec_lo": EXEC, "exec_hi": EXEC + 1, "m0": M0, "null": NULL,
    "vcc": VCC, "exec": EXEC, "flat_scratch_lo": FLAT_SCRATCH, "flat_scratch_hi": FLAT_SCRATCH + 1,
    "flat_scratch": FLAT_SCRATCH, "xnack_mask_lo": XNACK_MASK, "xnack_mask_hi": XNACK_MASK + 1,
    "xnack_mask": XNACK_MASK,
}  # fmt: skip
_PAIRS = ("vcc", "exec", "flat_scratch", "xnack_mask")

_REGISTER = re.compile(r"(v|a|s|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])(?:\.([lh]))?")
_REGISTERS_ONE_BY_ONE = re.compile(r"\[(v|a|s|ttmp)(\d+)(?:(?:,\s*\1\d+)*,\s*\1(\d+))?\]")
_HALVES_BY_NAME = re.compile(r"\[(\w+)_lo,\s*\1_hi\]")
_LABEL = re.compile(r"([.\w$@]+):")
_INSTRUCTION = re.compile(r"\s+([a-z]\w+)(?:\s+(.*))?$")
LOC = re.compile(r"\s+\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
FILE = re.compile(r'^\s+\.file\s+(\d+)\s+(?:"([^"]*)"\s+)?"([^"]*)"', re.M)
_FUNCTION = re.compile(r"^\s*\.type\s+([^\s,]+),@function", re.M)
_AMDHSA = re.compile(r"\s+\.amdhsa_(\w+)\s+(\S.*)")
# Behind each instruction llvm-objdump prints its address and machine code.
_PLACE = re.compile(r"//\s*([0-9a-fA-F]{8,16}):((?: [0-9a-fA-F]{8})+)[ \t]*$", re.M)
_NUMBERS = re.compile(r"\s*\.(?:long|int|word|4byte|quad|8byte|octa|short|hword|2byte|byte)\s")
_ADDRESS = re.compile(r'^\s*\.quad\s+"?([A-Za-z_.$][\w.$]*)', re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_][\w.()-]*")
_MODIFIER = re.compile(r"[a-z_][a-z0-9_]*(?::|$)|[a-z_]+\(")


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand as written: a register range, a constant, or a symbol."""

    kind: str  #: "v" vector register, "a" accumulation register (CDNA), "s" scalar register, "const", "symbol"
    index: int = 0  #: first register
    count: int = 1  #: registers in the range
    value: int | float | str = 0  #: constant or symbol text
    negate: bool = False
    absolute: bool = False
    half: str = ""  #: "l" or "h": one 16-bit half of the register
    signed: bool = False  #: sext(): what SDWA selects is sign-extended


class Wide(int):
    """A literal of 64 bits; of 32, a float of 64 bits has its upper half."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an instruction comes from: the Python file and line of the assembly's `.loc`."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Instruction:
    """One machine instruction (a dual-issue pair is one, with `second` set)."""

    name: str  #: mnemonic without the encoding suffix
    encoding: str  #: "e32", "e64", "dpp", "dpp8", "e64_dpp", "e64_dpp8", "sdwa" or ""
    operands: tuple[Operand, ...]
    modifiers: dict[str, str]
    line: int  #: line of the assembly text, from 1
    text: str
    source: Source | None = None
    second: Instruction | None = None
    address: int = -1  #: in the code object, where the text is a disassembly of one
    nbytes: int = 4  #: of machine code, where the text tells
    written: str = ""  #: the mnemonic in the text, where `name` is another generation's for the same operation
    missing: str = ""  #: what its kernel lacks to run it

    @property
    def mnemonic(self) -> str:
        """The name as the text has it, without the encoding suffix."""
        return self.written or self.name

    @property
    def flow(self) -> Flow:
        """Where control goes behind it."""
        return flow_of(self.name, self.text)

    def flag(self, name: str) -> bool:
        """Whether a bare modifier such as `clamp` or `offen` is present."""
        return name in self.modifiers

    def number(self, name: str, default: int = 0) -> int:
        """The value of an integer modifier such as `offset:16`."""
        text = self.modifiers.get(name)
        return default if text is None else int(text, 0)

    def bits(self, name: str, default: list[int]) -> list[int]:
        """The value of a list modifier such as `op_sel:[0,1]`, as long as `default`."""
        text = self.modifiers.get(name)
        got = [int(x, 0) for x in text.strip("[]").split(",")] if text else []
        return [*got, *default[len(got) :]][: len(default)]  # LLVM takes more bits than there are operands


@dataclass(slots=True)
class Listing:
    """One kernel's code and descriptor, and the code of the functions that it calls behind it."""

    kernel: str
    instructions: list[Instruction]
    labels: dict[str, int]  #: label -> index of the instruction that follows
    descriptor: dict[str, str] = field(default_factory=dict)  #: the .amdhsa_ directives
    entries: dict[str, int] = field(default_factory=dict)  #: function -> index of its first instruction

    def directive(self, name: str, default: int = 0) -> int:
        """An integer `.amdhsa_` directive; absent ones and expressions of symbols give `default`."""
        number = value_of(self.descriptor.get(name, ""))
        return default if number is None else number


def kernel_names(text: str) -> list[str]:
    """The kernels that an assembly file describes, in order."""
    return re.findall(r"^\s*\.amdhsa_kernel\s+(\S+)", text, re.M)


def parse(text: str, kernel: str | None = None) -> Listing:
    """Parse one kernel of an assembly text (`kernel` may be left out where there is only one).

    Raises ArgumentError where the text has no such kernel, EmulationError for a line that is none.
    """
    text = as_printed(plain_symbols(text))
    names = kernel_names(text)
    if not names:
        raise ArgumentError("no kernel in this assembly: it has no .amdhsa_kernel")
    if kernel is None:
        if len(names) != 1:
            raise ArgumentError(f"name one kernel of this assembly: it describes {', '.join(names)}")
        kernel = names[0]
    elif kernel not in names:
        raise ArgumentError(f"no kernel {kernel!r} in this assembly: it describes {', '.join(names)}")
    listing = Listing(kernel, [], {}, descriptor(text, kernel))
    lines = text.split("\n")
    files = {m[1]: file_name(m) for m in FILE.finditer(text)}
    functions = {m[1].strip('"'): m[1] + ":" for m in _FUNCTION.finditer(text)}
    wanted = [kernel]
    if _PLACE.search(text):  # a disassembly: addresses that the code computes may lead to any function
        wanted += [name for name in functions if name not in names]
    else:  # constant data may hold the addresses of functions
        wanted += [m[1] for m in _ADDRESS.finditer(text) if m[1] in functions and m[1] not in names]
    wanted = list(dict.fromkeys(wanted))
    for name in wanted:  # grows on the way: what a function calls is wanted as well
        first = len(listing.instructions)
        _read_function(lines, name, functions.get(name, f"{name}:"), files, listing)
        for ins in listing.instructions[first:]:
            called = [str(o.value).partition("@")[0].strip('"') for o in ins.operands if o.kind == "symbol"]
            wanted += [f for f in dict.fromkeys(called) if f in functions and f not in wanted]
    return listing


def _read_function(lines: list[str], name: str, label: str, files: dict[str, str], listing: Listing) -> None:
    """Append the code of one function, which starts at `label`, to the listing."""
    start = next((n for n, raw in enumerate(lines) if raw.startswith(label)), len(lines))
    listing.entries[name] = listing.labels[name] = len(listing.instructions)
    source: Source | None = None
    in_text = True
    for place, raw in enumerate(lines[start + 1 :], start + 2):
        number = line_number(raw, place)
        line = _strip_comment(raw)
        if not line:
            continue
        if match := _LABEL.match(line.lstrip()):
            listing.labels[match[1]] = len(listing.instructions)
            line = line.lstrip()[match.end() :]
            if not line.strip():
                continue
        if line.lstrip()[0] == ".":
            if match := LOC.match(line):
                # Line 0 means "no line": keep the last real one, which is what a debugger shows.
                if match[2] != "0":
                    source = Source(files.get(match[1], "?"), int(match[2]))
            elif line.lstrip().startswith((".amdhsa_kernel", ".amdgpu_metadata", ".size")):
                break
            elif line.lstrip().startswith((".section", ".rodata", ".data", ".bss", ".text")):
                in_text = ".text" in line
            elif in_text and _NUMBERS.match(line) and _is_reached(listing, name):
                raw_code = Instruction("undecodable", "", (), {}, number, line.strip(), source, missing=_RAW)
                listing.instructions.append(raw_code)
            continue
        if line[0] not in " \t" and not match:
            continue
        if match := _INSTRUCTION.match(line):
            ins = instruction(match[1], match[2] or "", number, line.strip(), source)
            if place := _PLACE.search(raw) if "//" in raw else None:
                ins.address, ins.nbytes = int(place[1], 16), 4 * place[2].count(" ")
                if _has_wide_literal(ins.name, place[2].split()):
                    ins.operands = tuple(
                        replace(o, value=Wide(o.value)) if o.kind == "const" and isinstance(o.value, int) else o
                        for o in ins.operands
                    )
            listing.instructions.append(ins)
        else:
            raise EmulationError(f"{name}: line {number} is neither an instruction nor a directive: {line.strip()!r}")


_RAW = "machine code that stands as numbers in a text is not decoded: assemble it, and take the binary"


def _is_reached(listing: Listing, function: str) -> bool:
    """Whether control comes to what stands behind the last line of a function as far as it is read."""
    first = listing.entries[function]
    return len(listing.instructions) == first or listing.instructions[-1].flow in (Flow.NEXT, Flow.BRANCHES, Flow.CALLS)


def _has_wide_literal(name: str, words: list[str]) -> bool:
    """Whether an ALU instruction's machine code ends in 8 bytes of constant (gfx1250), which its text may not say."""
    if len(words) < 3 or not name.startswith(("v_", "s_")) or name.startswith("v_dual"):
        return False
    return len(words) - (2 if int(words[0], 16) >> 26 in (0b110101, 0b110011) else 1) == 2


def descriptor(text: str, kernel: str) -> dict[str, str]:
    """The `.amdhsa_` directives of a kernel, by name without the prefix."""
    match = re.search(rf"^\s*\.amdhsa_kernel\s+{re.escape(kernel)}\s*$(.*?)^\s*\.end_amdhsa_kernel", text, re.M | re.S)
    return {m[1]: m[2].strip() for m in _AMDHSA.finditer(match[1])} if match else {}


def file_name(match: re.Match) -> str:
    """The path of a `.file` directive that FILE matches."""
    directory, name = match[2], match[3]
    return f"{directory}/{name}" if directory and not name.startswith("/") else name


def _strip_comment(line: str) -> str:
    for mark in (";", "//"):
        at = line.find(mark)
        if at >= 0:
            line = line[:at]
    return line.rstrip()


def instruction(
    mnemonic: str, rest: str, number: int = 0, text: str = "", source: Source | None = None
) -> Instruction:
    """One instruction with typed operands: its mnemonic, what stands behind it, and where it stands."""
    second = None
    if "::" in rest:
        rest, _, other = rest.partition("::")
        name, _, arguments = other.strip().partition(" ")
        second = instruction(name.replace("v_dual_", "v_", 1), arguments, number, text, source)
        mnemonic = mnemonic.replace("v_dual_", "v_", 1)
    name, encoding = mnemonic, ""
    if match := re.fullmatch(r"(\w+?)_(e32|e64|dpp8?|e64_dpp8?|sdwa)", mnemonic):
        name, encoding = match[1], match[2]
    operands, modifiers = _split(rest.strip(), name)
    if modifiers and name.startswith("v_"):  # whose suffix people may leave out
        if encoding in ("", "e64") and not DPP_CONTROLS.isdisjoint(modifiers):
            encoding = (encoding + "_dpp").lstrip("_")
        elif encoding == "" and not _SDWA_PARTS.isdisjoint(modifiers):
            encoding = "sdwa"
    return Instruction(name, encoding, operands, modifiers, number, text, source, second)


#: modifiers that say which lane DPP reads, and those of SDWA
DPP_CONTROLS = frozenset(
    "dpp8 quad_perm row_mirror row_half_mirror row_shl row_shr row_ror row_share row_newbcast row_bcast wave_shl "
    "wave_shr wave_rol wave_ror row_xmask".split()
)
_SDWA_PARTS = frozenset(("src0_sel", "src1_sel", "dst_sel"))
_VERBATIM = frozenset({"s_waitcnt", "s_delay_alu", "s_sendmsg", "s_wait_alu", "s_waitcnt_depctr"})
_BRANCHES = ("s_branch", "s_cbranch_")


@lru_cache(maxsize=1 << 15)
def _split(rest: str, name: str) -> tuple[tuple[Operand, ...], dict[str, str]]:
    if not rest:
        return (), {}
    if name in _VERBATIM or name.startswith(_BRANCHES):  # counters and labels, which may look like registers
        return (Operand("symbol", value=rest),), {}
    operands: list[Operand] = []
    modifiers: dict[str, str] = {}
    for chunk in _at_depth_zero(rest, ","):
        words = _at_depth_zero(chunk.strip(), " ")
        for position, word in enumerate(words):
            if (position or not operands) and ":" in word and re.match(r"[a-z_]\w*:", word):
                key, _, value = word.partition(":")
                modifiers[key] = value
            elif position == 0:
                operands.append(parse_operand(word))
            elif _WORD.fullmatch(word) or (word and not operands):
                modifiers[word] = ""
            elif word:  # an operation on what is no number: nothing of it may be left out
                operands[-1] = Operand("symbol", value=chunk.strip())
                break
    return tuple(operands), modifiers


def _at_depth_zero(text: str, separator: str) -> list[str]:
    if not any(c in text for c in "[("):
        return [part for part in text.split(separator) if part]
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "[(":
            depth += 1
        elif c in "])":
            depth -= 1
        elif c == separator and depth == 0:
            if i > start:
                parts.append(text[start:i])
            start = i + 1
    if start < len(text):
        parts.append(text[start:])
    return parts


def parse_operand(text: str) -> Operand:
    """One operand: `v3`, `v[4:7]`, `-|v1|`, `s[0:1]`, `vcc_lo`, `0x3f80`, `1.0`, `v2.h`, a label."""
    negate = absolute = signed = False
    body = text
    if body.startswith("sext("):
        signed, body = True, body[5:-1]
    if body.startswith("neg("):
        negate, body = True, body[4:-1]
    elif body.startswith("-") and not body[1:2].isdigit() and body[1:2] != ".":
        negate, body = True, body[1:]
    if body.startswith("|"):
        absolute, body = True, body.strip("|")
    elif body.startswith("abs("):
        absolute, body = True, body[4:-1]
    if halves := _HALVES_BY_NAME.fullmatch(body):
        body = halves[1]
    match = _REGISTER.fullmatch(body)
    if match:
        kind, single, first, last, half = match.groups()
        start = int(single or first)
        count = int(last) - start + 1 if last else 1
        if kind == "ttmp":
            kind, start = "s", start + TTMP
        return Operand(kind, start, count, negate=negate, absolute=absolute, half=half or "", signed=signed)
    if body in _NAMED:
        return Operand("s", _NAMED[body], 2 if body in _PAIRS else 1, negate=negate, absolute=absolute)
    if match := _REGISTERS_ONE_BY_ONE.fullmatch(body):
        last = match[3] or match[2]
        return replace(parse_operand(f"{match[1]}[{match[2]}:{last}]"), negate=negate, absolute=absolute)
    literal = re.fullmatch(r"(lit|lit64)\((.*)\)", body)
    body = literal[2] if literal else body
    try:
        value = Wide(body, 0) if literal and literal[1] == "lit64" else int(body, 0)
        return Operand("const", value=value, negate=negate, absolute=absolute)
    except ValueError:
        pass
    if (number := value_of(text)) is not None:  # an expression, or octal
        return Operand("const", value=number)
    try:
        value = float.fromhex(body) if "0x" in body[:3] else float(body)
        return Operand("const", value=value, negate=negate, absolute=absolute)
    except ValueError:
        return Operand("symbol", value=body)

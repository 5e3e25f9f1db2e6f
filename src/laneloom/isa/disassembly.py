"""A binary code object as assembly text: instructions by llvm-objdump, descriptors and metadata from the file itself.

The text has what a compiler's has (labels, `.amdhsa_kernel`, `.amdgpu_metadata`), so whatever reads assembly reads it.
Each instruction keeps its address in a comment, as llvm-objdump prints it: code that computes addresses needs them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, CompileError, UnsupportedError
from ..gpu import GPUS, Gpu, get_gpu
from . import objdump
from .descriptor import DESCRIPTOR_BYTES, directives, entry_offset, wave_of
from .elf import BROKEN, FUNCTION, RELOCATABLE, Section, Symbol, machine, read_sections, read_symbols
from .notes import read_metadata, to_yaml
from .offload_bundle import code_objects
from .symbols import plain_name
from .targets import runs_on

_HSA = 64  # ELF's OSABI of code for AMD's runtime
_VERSIONS = {1: 3, 2: 4, 3: 5, 4: 6}  # ELF's ABI version -> version of the code object
_MACHINES = {
    0x30: "gfx908", 0x36: "gfx1030", 0x3F: "gfx90a", 0x41: "gfx1100", 0x43: "gfx1150", 0x44: "gfx1103",
    0x46: "gfx1101", 0x47: "gfx1102", 0x48: "gfx1200", 0x4A: "gfx1151", 0x4C: "gfx942", 0x4E: "gfx1201",
    0x49: "gfx1250", 0x4F: "gfx950", 0x54: "gfx11-generic", 0x55: "gfx1152", 0x57: "gfx1154",
    0x58: "gfx1153", 0x59: "gfx12-generic", 0x5C: "gfx1172", 0x5D: "gfx1170", 0x5E: "gfx1171", 0x5F: "gfx9-4-generic",
    0x5A: "gfx1251", 0x5B: "gfx12-5-generic",
}  # fmt: skip
_FILLERS = {struct.pack("<I", word) for word in (0, 0xBF800000, 0xBF9F0000)}  # nothing, s_nop 0, s_code_end
_NAMES_TOLD = 8
_RANGES = 16  # that the disassembler is asked for; it is started once for each
# What stands behind it is a number or, where assembly has labels that are symbols, one of these.
_BRANCH = re.compile(r"(s_c?branch\w*|s_call_b64 \S+,|s_subvector_loop\w+ \S+,)\s+\S+")


@dataclass(frozen=True)
class Disassembly:
    """One code object for one GPU."""

    text: str  #: assembly: the chosen kernel, or all, and every function
    gpu: Gpu
    elf: bytes  #: the code object, out of its bundle: constant data, global variables, relocations


@dataclass(frozen=True)
class _Kernel:
    name: str
    entry: int  #: address of its first instruction
    descriptor: bytes
    described: dict[str, Any]  #: its entry of the metadata


def disassemble(source: str | Path | bytes, gpu: str | Gpu | None = None, kernel: str | None = None) -> Disassembly:
    """A linked code object, an offload bundle, or a program with bundles inside, as assembly.

    gpu: chooses where the file holds code for several GPUs; else it has to be the file's own. kernel: leaves the others
    out. Raises ArgumentError for a file that is no code object, for another GPU and for a kernel that is not there;
    UnsupportedError without an llvm-objdump that knows the GPU, for files that are not linked and for other runtimes.
    """
    if not isinstance(source, bytes):
        try:
            source = Path(source).read_bytes()
        except OSError as error:
            raise ArgumentError(f"cannot read {source}: {error.strerror or error}") from None
    asked = None if gpu is None else get_gpu(gpu)
    opened = [(target_of(elf) if target == "" else target, elf) for target, elf in code_objects(source)]
    fitting = [(target, elf) for target, elf in opened if asked is None or asked.name in runs_on(target)]
    targets = list(dict.fromkeys(target for target, _ in opened))
    if not fitting:
        assert asked is not None
        raise ArgumentError(f"the file holds code for {', '.join(targets)}, not for {asked.name}")
    if len({target for target, _ in fitting}) > 1:
        raise ArgumentError(f"the file holds code for {', '.join(targets)}: say with gpu (--gpu) for which")
    name = runs_on(fitting[0][0])[0]
    if asked is None and name not in GPUS:
        raise UnsupportedError(f"the file holds code for {name}, which is none of `laneloom gpus`")
    row = asked or get_gpu(name)
    try:
        return _disassemble(fitting, row, kernel)
    except (ArgumentError, UnsupportedError):
        raise
    except (*BROKEN, CompileError) as error:
        raise ArgumentError("the code object is cut off or broken") from error


def target_of(elf: bytes) -> str:
    """The processor that a code object is for, as the compiler names it."""
    flags = machine(elf)[2] & 0xFF
    return _MACHINES.get(flags, f"an unknown processor (number {flags:#x})")


def _disassemble(fitting: list[tuple[str, bytes]], gpu: Gpu, kernel: str | None) -> Disassembly:
    """Of the first code object that has the kernel; a program has one for each of its sources."""
    names: list[str] = []
    for target, elf in fitting:
        _refuse(elf)
        sections = read_sections(elf)
        metadata = read_metadata(sections)
        if metadata is None:
            raise UnsupportedError("the code object has no metadata note, so its kernels and arguments are unknown")
        symbols = read_symbols(sections)
        at = {symbol.name: symbol for symbol in reversed(symbols)}  # a library may have half a million
        kernels = [_kernel(entry, at, sections) for entry in metadata.get("amdhsa.kernels", ())]
        names += [k.name for k in kernels]
        if kernel is not None and all(k.name != kernel for k in kernels):
            continue
        chosen = [k for k in kernels if kernel in (None, k.name)]
        if not chosen and len(fitting) > 1:
            continue
        return Disassembly(_write(elf, gpu, target, sections, symbols, kernels, chosen, metadata), gpu, elf)
    raise ArgumentError(_no_kernel(kernel, names) if names else "the file holds no kernel")


def _no_kernel(kernel: str | None, names: list[str]) -> str:
    """A library may have ten thousand kernels: of many, those are named that contain what was asked for."""
    if len(names) <= _NAMES_TOLD:
        return f"no kernel {kernel!r} in this file: it holds {', '.join(names)}"
    near = [name for name in names if str(kernel) in name]
    told = ", ".join((near or names)[:_NAMES_TOLD])
    which = f"{len(near):,} of them contain that, such as" if near else "such as"
    return f"no kernel {kernel!r} among the {len(names):,} of this file, {which} {told}"


def _refuse(elf: bytes) -> None:
    if elf[7] != _HSA:
        raise UnsupportedError("the code object is not for AMD's ROCm runtime (amdgcn-amd-amdhsa)")
    if elf[8] not in _VERSIONS:
        raise UnsupportedError("laneloom reads code objects of versions 3 to 6; build with -mcode-object-version=5")
    if machine(elf)[0] == RELOCATABLE:
        raise UnsupportedError("the object file is not linked: make a code object of it with `ld.lld -shared`")


def _kernel(entry: dict[str, Any], symbols: dict[str, Symbol], sections: list[Section]) -> _Kernel:
    """A kernel's descriptor, found by the symbol that the metadata names."""
    name = str(entry[".name"])
    wanted = str(entry.get(".symbol", f"{name}.kd"))
    symbol = symbols.get(wanted)
    if symbol is None:
        raise ArgumentError(f"the code object has no symbol {wanted!r}, which its metadata names")
    section = sections[symbol.section]
    at = symbol.value - section.address
    raw = section.data[at : at + DESCRIPTOR_BYTES].ljust(DESCRIPTOR_BYTES, b"\0")
    return _Kernel(name, symbol.value + entry_offset(raw), raw, entry)


# -- the text ----------------------------------------------------------------------------------------------------------


def _write(
    elf: bytes, gpu: Gpu, target: str, sections: list[Section], symbols: list[Symbol], kernels: list[_Kernel],
    chosen: list[_Kernel], metadata: dict[str, Any],
) -> str:  # fmt: skip
    pieces = _pieces(sections, symbols, kernels)
    wanted = {k.entry for k in chosen}
    left_out = {k.entry for k in kernels} - wanted
    ranges = _ranges(pieces, left_out) if left_out else None  # decoding a library of many kernels takes long
    lines: dict[int, objdump.Line] = {}
    for wave in sorted({wave_of(k.descriptor) for k in chosen}, reverse=True):
        decoded = objdump.read_lines(elf, target, wave, ranges)
        if not lines:
            lines = dict(decoded)
            continue
        for start, end, _ in pieces:  # kernels of another wave size
            if any(k.entry == start and wave_of(k.descriptor) == wave for k in chosen):
                lines |= {at: line for at, line in decoded.items() if start <= at < end}
    code = _code(lines, [piece for piece in pieces if piece[0] not in left_out])
    described = dict(metadata) | {"amdhsa.kernels": [k.described for k in chosen]}
    descriptors = "".join(
        f"\t.amdhsa_kernel {k.name}\n"
        + "".join(
            f"\t\t.amdhsa_{name} {value}\n"
            for name, value in directives(k.descriptor, gpu, int(k.described.get(".sgpr_count", 106))).items()
        )
        + "\t.end_amdhsa_kernel\n"
        for k in chosen
    )
    return (
        f'\t.amdgcn_target "amdgcn-amd-amdhsa--{gpu.name}"\n\t.amdhsa_code_object_version {_VERSIONS[elf[8]]}\n'
        f'\t.text\n{code}\t.section .rodata,"a",@progbits\n\t.p2align 6\n{descriptors}'
        f"\t.amdgpu_metadata\n{to_yaml(described)}\n\t.end_amdgpu_metadata\n"
    )


Piece = tuple[int, int, str]  #: first address, one past the last, symbol ("" for code that no symbol covers)


def _pieces(sections: list[Section], symbols: list[Symbol], kernels: list[_Kernel]) -> list[Piece]:
    """The code, cut at kernels, functions, and wherever no symbol says what stands there."""
    names = {s.value: s.name for s in symbols if s.kind == FUNCTION and s.section}
    ends = {s.value: s.value + s.size for s in symbols if s.kind == FUNCTION and s.section}
    names |= {k.entry: k.name for k in kernels}
    found = []
    for section in sections:
        if not section.holds_code or not section.data:
            continue
        at, last = section.address, section.address + len(section.data)
        starts = sorted(a for a in names if at <= a < last)
        for start, following in zip(starts, [*starts[1:], last], strict=True):
            if start > at:
                found += _unnamed(section, at, start)
            end = ends.get(start, start)  # people leave the size out: then it goes on to the next
            at = max(at, min(end if end > start else following, last))
            found.append((start, at, names[start]))
        found += _unnamed(section, at, last)
    return found


def _ranges(pieces: list[Piece], left_out: set[int]) -> list[objdump.Range]:
    """The addresses of everything but these kernels; of many ranges, the nearest are joined over what lies between."""
    found: list[objdump.Range] = []
    for before, (start, end, _) in zip([None, *pieces], pieces, strict=False):
        if start in left_out:
            continue
        joins = bool(found) and before is not None and before[0] not in left_out
        found[len(found) - joins :] = [(found[-1][0] if joins else start, end)]
    while len(found) > _RANGES:
        k = min(range(len(found) - 1), key=lambda k: found[k + 1][0] - found[k][1])
        found[k : k + 2] = [(found[k][0], found[k + 1][1])]
    return found


def _unnamed(section: Section, start: int, end: int) -> list[Piece]:
    """Code that no symbol covers, if it is more than what linkers and compilers fill gaps with."""
    words = {section.data[at - section.address : at - section.address + 4] for at in range(start, end, 4)}
    return [(start, end, "")] if words - _FILLERS else []


def _code(lines: dict[int, objdump.Line], pieces: list[Piece]) -> str:
    """Every piece that holds instructions, as a function; branches go to labels."""
    targets = {}
    for at, (text, words) in lines.items():
        if _BRANCH.fullmatch(text):
            targets[at] = branch_target(at + 4, int(words[:8], 16) & 0xFFFF)
    labelled = set(targets.values())
    order = sorted(lines)
    out, k = [], 0
    for start, end, name in pieces:
        while k < len(order) and order[k] < start:
            k += 1
        body = []
        while k < len(order) and order[k] < end:
            at = order[k]
            text, words = lines[at]
            if at in targets:
                text = f"{_BRANCH.fullmatch(text)[1]} .L{targets[at]:x}"  # pyright: ignore[reportOptionalSubscript]
            if text.startswith("."):
                text = "undecodable " + text.partition(" ")[2].strip()
            if at in labelled:
                body.append(f".L{at:x}:\n")
            body.append(f"\t{text:<58} // {at:012X}: {words}\n")
            k += 1
        if name or any(_does_something(line) for line in body):
            name = plain_name(name) or f"code_{start:x}"
            out += [f"\t.globl\t{name}\n\t.type\t{name},@function\n{name}:\n", *body, f"\t.size\t{name}, .-{name}\n"]
    return "".join(out)


def branch_target(after: int, words: int) -> int:
    """Where a branch goes: words of 4 bytes from the next instruction, printed as 16 bits without sign."""
    return after + 4 * ((words + 0x8000) % 0x10000 - 0x8000)


def _does_something(line: str) -> bool:
    return not line.startswith(".") and line.split()[0] not in ("s_nop", "s_code_end", "v_illegal", "undecodable")

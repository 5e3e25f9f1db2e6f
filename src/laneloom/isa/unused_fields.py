"""Instructions whose unused source fields are not zero, for an llvm-objdump that wants them to be.

A VOP3 or VOP3P instruction with one or two sources has room for three. Hardware does not look at the rest. Compilers
wrote zeros there, which name s0; since 2026 LLVM writes 128, the constant 0. Disassemblers from before take such an
instruction for data. Its fields are cleared in a copy of the code, which is decoded again.

Source: AMD RDNA 3 and RDNA 4 ISA guides, "Microcode Formats" (VOP3, VOP3P); which fields, from what compilers wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping

from .elf import FUNCTION, Section, read_sections, read_symbols

_CONSTANT_0 = 128
_SOURCE_1, _SOURCE_2 = 9, 18  # first bit of the field in the second word
_LITERAL = 255
_LANES = (0xE9, 0xEA, 0xFA)  # source 0: a word of DPP8 or DPP16 follows
_ROUNDS = 64  # each brings the disassembler back into step somewhere; a handful is usual
_LOST = 1 << 62

Line = tuple[str, str]


def reread(elf: bytes, lines: dict[int, Line], decode: Callable[[bytes], dict[int, Line]]) -> dict[int, Line]:
    """`lines`, which are what `decode(elf)` gives, with what is readable once unused fields are cleared.

    Machine code is told as the file has it.
    """
    sections = read_sections(elf)
    starts = {s.value for s in read_symbols(sections) if s.kind == FUNCTION}
    code, held = bytearray(elf), [s for s in sections if s.holds_code]
    original: dict[int, int] = {}  # address of an instruction -> its second word
    hopeless: set[int] = set()
    for _ in range(_ROUNDS):
        before = bytes(code)
        for at in _suspects(lines, starts, held, elf):
            place = _file_offset(held, at + 4)
            if at in hopeless or place is None:
                continue
            (word,) = struct.unpack_from("<I", code, place)
            original.setdefault(at, word)
            cleared = _cleared(word)
            if cleared == word:  # not what this is about
                hopeless.add(at)
                cleared = original[at]
            struct.pack_into("<I", code, place, cleared)
        if code == before:
            break
        lines = decode(bytes(code))
    return {at: (text, _with_second(words, original.get(at))) for at, (text, words) in lines.items()}


def _cleared(word: int) -> int:
    """The last field that may be unused and is not zero yet, set to zero: a third source before a second."""
    for first in (_SOURCE_2, _SOURCE_1):
        if word >> first & 511 == _CONSTANT_0:
            return word & ~(511 << first)
    return word


def _suspects(lines: Mapping[int, Line], starts: set[int], held: list[Section], elf: bytes) -> Iterator[int]:
    """Addresses of VOP3 instructions that were taken for data.

    Behind one of them the disassembler may be out of step, and its words of data parts of instructions: there none is
    looked for until it is certain again where an instruction starts.
    """
    resume = 0
    for at in sorted(lines):
        if at in starts:
            resume = at
        if at != resume and resume and at < resume:
            continue
        if resume and at > resume:
            resume = _LOST
            continue
        resume = 0
        if not lines[at][0].startswith("."):
            continue
        first, second = (_file_offset(held, at), _file_offset(held, at + 4))
        resume = _LOST
        if first is not None and second is not None:
            head, tail = struct.unpack_from("<I", elf, first)[0], struct.unpack_from("<I", elf, second)[0]
            if head >> 26 == 0b110101 or head >> 24 == 0xCC:
                yield at
                more = tail & 511 in (_LITERAL, *_LANES) or tail >> _SOURCE_1 & 511 == _LITERAL
                resume = at + (12 if more else 8)


def _file_offset(held: list[Section], address: int) -> int | None:
    for section in held:
        if section.address <= address < section.address + len(section.data) - 3:
            return section.offset + address - section.address
    return None


def _with_second(words: str, second: int | None) -> str:
    if second is None or " " not in words:
        return words
    parts = words.split(" ")
    return " ".join([parts[0], f"{second:08X}", *parts[2:]])

"""Instructions whose unused source fields are not zero, for an llvm-objdump that wants them to be.

A VOP3 or VOP3P instruction with one or two sources has room for three. Hardware does not look at the rest. Compilers
wrote zeros there, which name s0; since 2026 LLVM writes 128, the constant 0. Disassemblers from before take such an
instruction for data. Its fields are cleared in a copy of the code, which is decoded again. Some
instructions of CDNA 5 have such fields as well, which LLVM sets and AMD's hand-written kernels leave at zero.

Source: AMD RDNA 3 and RDNA 4 ISA guides, "Microcode Formats" (VOP3, VOP3P); which fields, from what compilers wrote.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping

from .elf import FUNCTION, Section, read_sections, read_symbols

_CONSTANT_0 = 128
_SOURCE_1, _SOURCE_2 = 9, 18  # first bit of the field in the second word
_LITERAL = 255
_LANES = (0xE9, 0xEA, 0xFA)  # source 0: a word of DPP8 or DPP16 follows
_ROUNDS = 64  # each brings the disassembler back into step somewhere; a handful is usual
_LOST = 1 << 62
_UPPER_HALF = 1 << 24  # of VOP1's destination

# Of CDNA 5: moves of tensors, and the WMMA of fp4.
_VIMAGE, _TENSOR, _WMMA_F4 = 0b110100, (0xC4, 0xC5), 0xCC88

Line = tuple[str, str]


def reread(elf: bytes, lines: dict[int, Line], decode: Callable[[bytes], dict[int, Line]]) -> dict[int, Line]:
    """`lines`, which are what `decode(elf)` gives, with what is readable once unused fields are cleared.

    So are instructions of one source that write the upper half of a register, which LLVM 19 does not know either.
    Machine code is told as the file has it.
    """
    held = [s for s in read_sections(elf) if s.holds_code]
    if changed := _as_llvm_writes_them(lines, held):
        patched = bytearray(elf)
        for at, words in changed.items():
            struct.pack_into("<2I", patched, _file_offset(held, at) or 0, *words)
        places = {at + more for at in changed for more in (0, 4)}
        found = reread(bytes(patched), decode(bytes(patched)), decode)
        return {at: (text, _original(elf, held, at, words, places)) for at, (text, words) in found.items()}
    sections = read_sections(elf)
    starts = {s.value for s in read_symbols(sections) if s.kind == FUNCTION}
    code, held = bytearray(elf), [s for s in sections if s.holds_code]
    original: dict[int, int] = {}  # address of an instruction -> the word of it that was changed
    hopeless: set[int] = set()
    for _ in range(_ROUNDS):
        before = bytes(code)
        for at, upper in _suspects(lines, starts, held, elf):
            place = _file_offset(held, at if upper else at + 4)
            if at in hopeless or place is None:
                continue
            (word,) = struct.unpack_from("<I", code, place)
            original.setdefault(at, word)
            cleared = word & ~_UPPER_HALF if upper else _cleared(word)
            if cleared == word:  # not what this is about
                hopeless.add(at)
                cleared = original[at]
            struct.pack_into("<I", code, place, cleared)
        if code == before:
            break
        lines = decode(bytes(code))
    return lines | {at: _as_it_was(lines[at], original[at]) for at in original if at in lines}


def _as_llvm_writes_them(lines: Mapping[int, Line], held: list[Section]) -> dict[int, tuple[int, int]]:
    """What the first two words of instructions of CDNA 5 that were taken for data have to be."""
    found = {}
    for at, (text, words) in lines.items():
        if text.startswith(".") and at + 4 in lines and _file_offset(held, at) is not None:
            before = (int(words.split(" ")[0], 16), int(lines[at + 4][1].split(" ")[0], 16))
            if (after := _filled(*before)) != before:
                found[at] = after
    return found


def _filled(first: int, second: int) -> tuple[int, int]:
    """The words with the fields without a meaning as LLVM has them."""
    if first >> 26 == _VIMAGE and first >> 14 & 0xFF in _TENSOR:
        return first | 0x00400001, second | 0x7C000000
    return (first | 1 << 14 if first >> 16 == _WMMA_F4 else first), second


def _original(elf: bytes, held: list[Section], at: int, words: str, places: set[int]) -> str:
    """The words of a line as the file has them, where some at `places` were changed."""
    count = words.count(" ") + 1
    place = _file_offset(held, at)
    if place is None or not any(at + 4 * k in places for k in range(count)):
        return words
    return " ".join(f"{word:08X}" for word in struct.unpack_from(f"<{count}I", elf, place))


def _cleared(word: int) -> int:
    """The last field that may be unused and is not zero yet, set to zero: a third source before a second."""
    for first in (_SOURCE_2, _SOURCE_1):
        if word >> first & 511 == _CONSTANT_0:
            return word & ~(511 << first)
    return word


def _suspects(
    lines: Mapping[int, Line], starts: set[int], held: list[Section], elf: bytes
) -> Iterator[tuple[int, bool]]:
    """Addresses of instructions that were taken for data, and whether it is one that writes an upper half.

    Behind one of two words the disassembler may be out of step, and its words of data parts of instructions: there none
    is looked for until it is certain again where an instruction starts.
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
            if _writes_upper_half(head):
                yield at, True
                resume = at + (8 if head & 511 in (_LITERAL, *_LANES) else 4)
            elif head >> 26 == 0b110101 or head >> 24 == 0xCC:
                yield at, False
                more = tail & 511 in (_LITERAL, *_LANES) or tail >> _SOURCE_1 & 511 == _LITERAL
                resume = at + (12 if more else 8)


def _writes_upper_half(word: int) -> bool:
    """Whether this is VOP1 with a destination from 128 on, which in 16 bits is the upper half of one from 0 on."""
    return word >> 25 == 0b0111111 and bool(word & _UPPER_HALF)


def _file_offset(held: list[Section], address: int) -> int | None:
    for section in held:
        if section.address <= address < section.address + len(section.data) - 3:
            return section.offset + address - section.address
    return None


def _as_it_was(line: Line, word: int) -> Line:
    """A line with the word that was changed for it, and the half that it names."""
    text, words = line
    parts = words.split(" ")
    if text.startswith("."):
        return text, words
    if _writes_upper_half(word):
        return re.sub(r" (v\d+)", r" \1.h", text, count=1), " ".join([f"{word:08X}", *parts[1:]])
    return text, " ".join([parts[0], f"{word:08X}", *parts[2:]])

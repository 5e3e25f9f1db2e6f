"""Strict mode: undefined bits through scalar shifts, bit fields and single bits of 32 and 64 bits.

LLVM widens a scalar by the field of its lower 32 bits and never writes the upper word (`s_bfe_i64 s[6:7], s[70:71],
0x200000`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..isa.parse import Instruction
from .bits import extract_signed, extract_unsigned
from .state import U32, U64, Waves
from .undefined_carry import scalar_word

_ONE_BIT = re.compile(r"s_bitcmp[01]_b(32|64)")
_SET_BIT = re.compile(r"s_bitset[01]_b(32|64)")
_NAME = re.compile(r"s_(bfe|lshl|lshr|ashr)_([uib])(32|64)")
_ALL = U64(0xFFFFFFFFFFFFFFFF)


def field_rule(ins: Instruction) -> Callable[[Waves], None] | None:
    """The rule of a scalar shift, bit field or test of a bit; None for other instructions."""
    if one := _ONE_BIT.fullmatch(ins.name):
        return _bit_rule(ins, int(one[1]))
    if one := _SET_BIT.fullmatch(ins.name):
        return _set_rule(ins, int(one[1]))
    match = _NAME.fullmatch(ins.name)
    if match is None:
        return None
    what, signed, width = match[1], match[2] == "i", int(match[3])
    destination, source, amount = ins.operands
    looked_at = U32(width - 1 | (0x7F0000 if what == "bfe" else 0))

    def follow(g: Waves) -> None:
        bits = _wide(g, source, width)
        if signed and width == 32:
            bits = bits.astype(U32).view(np.int32).astype(np.int64).view(U64)
        control, unknown = scalar_word(g, amount, 0)
        by = _words(g, control & U32(width - 1))
        size = _words(g, control >> U32(16) & U32(127)) if what == "bfe" else np.full(g.count, 64, U64)
        if what == "lshl":
            moved = bits << by
        elif signed:
            moved = extract_signed(bits.view(np.int64), by, size).view(U64)
        else:
            moved = extract_unsigned(bits, by, size)
        moved = np.where(_words(g, unknown & looked_at) != 0, _ALL, moved)
        for k in range(width // 32):
            g.shadow.put_scalar(destination.index + k, (moved >> U64(32 * k)).astype(U32))
        g.shadow.scc[...] = (moved if width == 64 else moved.astype(U32)) != 0

    return follow


def _bit_rule(ins: Instruction, width: int) -> Callable[[Waves], None]:
    source, place = ins.operands

    def follow(g: Waves) -> None:
        at, unknown = scalar_word(g, place, 0)
        bit = _wide(g, source, width) >> _words(g, at & U32(width - 1)) & U64(1)
        g.shadow.scc[...] = (bit | _words(g, unknown & U32(width - 1))) != 0

    return follow


def _set_rule(ins: Instruction, width: int) -> Callable[[Waves], None]:
    """The other bits stay what they were; any may be the one, where the place is undefined."""
    destination, place = ins.operands

    def follow(g: Waves) -> None:
        at, unknown = scalar_word(g, place, 0)
        left = _wide(g, destination, width) & ~(U64(1) << _words(g, at & U32(width - 1)))
        left = np.where(_words(g, unknown & U32(width - 1)) != 0, _ALL, left)
        for k in range(width // 32):
            g.shadow.put_scalar(destination.index + k, (left >> U64(32 * k)).astype(U32))

    return follow


def _words(g: Waves, word: Any) -> np.ndarray:
    """One number of 64 bits for each wave."""
    return np.broadcast_to(np.asarray(word, U32).reshape(-1), (g.count,)).astype(U64)


def _wide(g: Waves, source: Any, width: int) -> np.ndarray:
    low = _words(g, scalar_word(g, source, 0)[1])
    return low if width == 32 else low | _words(g, scalar_word(g, source, 1)[1]) << U64(32)

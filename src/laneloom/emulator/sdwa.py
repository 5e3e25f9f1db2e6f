"""Sub-dword addressing (SDWA) of gfx9: bytes and halves of sources and of the destination.

Source: Vega and CDNA 3 ISA guides, "SDWA". A source's byte or half is zero-extended, or sign-extended by sext(); what
the destination's selection leaves over becomes 0, the sign, or stays.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..isa.parse import Instruction, Operand
from .operands import BITS, DTYPE, Read, Write, modify, read
from .state import U32, Waves

_SELECTIONS = {"DWORD": (0, 32), **{f"BYTE_{k}": (8 * k, 8) for k in range(4)}, "WORD_0": (0, 16), "WORD_1": (16, 16)}


def is_sdwa(ins: Instruction) -> bool:
    """Whether an instruction selects parts of its registers."""
    return ins.encoding == "sdwa"


def selection(ins: Instruction, name: str) -> tuple[int, int]:
    """(first bit, bits) that `src0_sel`, `src1_sel` or `dst_sel` selects."""
    return _SELECTIONS[ins.modifiers.get(name, "DWORD")]


def preserves(ins: Instruction) -> bool:
    """Whether what dst_sel leaves over stays as it was."""
    return ins.modifiers.get("dst_unused", "UNUSED_PRESERVE") == "UNUSED_PRESERVE" and "dst_sel" in ins.modifiers


def source_reader(ins: Instruction, operand: Operand, kind: str, position: int) -> Read:
    """How to read source 0 or 1."""
    first, bits = selection(ins, f"src{position}_sel")
    whole = read(replace(operand, negate=False, absolute=False), "u32")
    up, mask = U32(32 - bits), U32((1 << bits) - 1)
    dtype, narrow = DTYPE[kind], BITS[kind] == 16

    def part(g: Waves) -> np.ndarray:
        x = (whole(g) >> U32(first)) & mask
        if operand.signed:
            x = ((x << up).view(np.int32) >> np.int32(up)).view(U32)
        x = (x.astype(np.uint16) if narrow else x).view(dtype)
        return modify(x, operand.negate, operand.absolute)

    return part


def writer(ins: Instruction, destination: Operand, kind: str) -> Write:
    """How to write the result to the part of the destination that dst_sel selects."""
    first, bits = selection(ins, "dst_sel")
    preserve, extend = preserves(ins), ins.modifiers.get("dst_unused") == "UNUSED_SEXT"
    n, mask, up = destination.index, U32((1 << bits) - 1), U32(32 - bits)
    dtype = np.dtype(f"u{BITS[kind] // 8}")

    def store(g: Waves, x: np.ndarray) -> None:
        value = np.asarray(x).view(dtype).astype(U32) & mask
        if extend:
            value = ((value << up).view(np.int32) >> np.int32(up)).view(U32)
        value = value << U32(first)
        if preserve:
            value = value | (g.u[n] & ~(mask << U32(first)))
        g.put(n, value)

    return store

"""Conversions of CDNA 4 (gfx950) by stochastic rounding, and those that fill six registers with floats of 6 bits.

A number over its scale lies between two of the small type: 32 random bits, as a fraction, are added to its place
between them and the sum is cut off. Of several numbers the first takes the random bits as given, each further one what
`v_prng_b32` makes of the former's. Source: CDNA 4 ISA guide, pseudo-code of `v_cvt_scalef32_sr_*`; that it leaves out
how a single number is rounded, and that denormals of the small type are reached like others, is an assumption.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.catalogue import TYPES
from ..isa.parse import Instruction, Operand
from .alu import Step, Target, refuse_signs, special
from .cdna4_alu import WIDE, bf16_stopping, exponent_of, flushed, halves_of, nearest, next_random
from .float8 import SMALL_VALUES
from .float8_convert import cut, encoder
from .float16 import narrow_double, stopping
from .operands import Read, read, write
from .state import U32, Waves

U16 = np.uint16
Encode = Callable[[np.ndarray, np.ndarray], np.ndarray]  #: float64 and random bits -> codes


def stochastic(kind: str, ins: Instruction, target: Target) -> Encode:
    """Numbers and 32 random bits for each -> codes of a small type."""
    values = SMALL_VALUES[kind]
    fraction = {"fp4": 1, "fp6": 3, "bf6": 2, "fp8": 3, "bf8": 2}[kind]
    convert = encoder(kind, ins, target) if TYPES[kind].bits == 8 else nearest(kind)
    lowest = int(np.log2(values[1])) + fraction  # values[1] is the last place of denormals
    return lambda x, random: convert(cut(x, random, fraction, lowest))


def _numbers(operand: Operand, wide: str, count: int, target: Target, high: bool = False) -> list[Read]:
    """How to read `count` numbers that follow each other in registers, as float64."""
    widen, n = WIDE[wide][1], operand.index
    if count == 1:
        one = read(operand, wide, high)
        one = flushed(one, target) if wide == "f32" else one
        return [lambda g: widen(np.asarray(one(g)))]
    if operand.kind != "v":
        return [lambda g, half=half: widen(half(g)) for half in halves_of(operand, wide)]
    if wide == "f32":
        rows = [flushed(read(Operand("v", n + k), "f32"), target) for k in range(count)]
        return [lambda g, row=row: widen(row(g)) for row in rows]
    return [lambda g, k=k: widen(g.h[n + k // 2][..., k % 2]) for k in range(count)]


def _into_byte(small: str, wide: str) -> Callable[[Instruction, Target], Step]:
    """One number of 8 bits, or two of 4, into the byte of the destination that op_sel picks."""
    bits = TYPES[small].bits

    def build(ins: Instruction, target: Target) -> Step:
        destination, source, seed, scale = ins.operands
        if bits == 4:
            refuse_signs(ins, source)
        select = ins.bits("op_sel", [0, 0, 0, 0])
        shift, n = U32(8 * (select[2] + 2 * select[3])), destination.index
        keep = ~(U32(0xFF) << shift)
        convert, factor = stochastic(small, ins, target), exponent_of(scale)
        random, numbers = read(seed, "u32"), _numbers(source, wide, 8 // bits, target, bool(select[0]))

        def step(g: Waves) -> None:
            chance, byte = np.asarray(random(g)), U32(0)
            for k, number in enumerate(numbers):
                byte = byte | convert(number(g) / factor(g), chance) << U32(bits * k)
                chance = next_random(chance)
            g.put(n, (g.u[n] & keep) | byte << shift)

        return step

    return build


def _into_six(small: str, wide: str, *, random: bool = False, halves: bool = False) -> Callable:
    """32 numbers of 6 bits into six registers; halves: by turns from two rows of 16 f32."""

    def build(ins: Instruction, target: Target) -> Step:
        destination, source, *others, scale = ins.operands
        factor = exponent_of(scale)
        plain, chosen = nearest(small), stochastic(small, ins, target)
        seed = read(others[0], "u32") if random else None
        if halves:
            rows = [_numbers(row, wide, 16, target) for row in (source, others[0])]
            numbers = [number for pair in zip(*rows, strict=True) for number in pair]
        else:
            numbers = _numbers(source, wide, 32, target)

        def step(g: Waves) -> None:
            words = [np.zeros((g.count, g.lanes), np.uint64) for _ in range(7)]
            chance, times = None if seed is None else np.asarray(seed(g)), factor(g)
            for k, number in enumerate(numbers):
                x, at = number(g) / times, 6 * k
                if chance is None:
                    code = plain(x)
                else:
                    code, chance = chosen(x, chance), next_random(chance)
                wide_code = code.astype(np.uint64) << np.uint64(at % 32)
                words[at // 32] |= wide_code & np.uint64(0xFFFFFFFF)
                words[at // 32 + 1] |= wide_code >> np.uint64(32)
            for k, word in enumerate(words[:6]):
                g.put(destination.index + k, word.astype(U32))

        return step

    return build


for _wide in WIDE:
    for _small in ("fp8", "bf8"):
        special(f"v_cvt_scalef32_sr_{_small}_{_wide}", _into_byte(_small, _wide))
    special(f"v_cvt_scalef32_sr_pk_fp4_{_wide}", _into_byte("fp4", _wide))
    for _small in ("fp6", "bf6"):
        special(f"v_cvt_scalef32_sr_pk32_{_small}_{_wide}", _into_six(_small, _wide, random=True))
        if _wide == "f32":
            special(f"v_cvt_scalef32_2xpk16_{_small}_f32", _into_six(_small, _wide, halves=True))
        else:
            special(f"v_cvt_scalef32_pk32_{_small}_{_wide}", _into_six(_small, _wide))

# -- to 16 bits --------------------------------------------------------------------------------------------------------


#: fraction bits, least normal exponent
_HALVES = {"f16": (10, -14), "bf16": (7, -126)}


def half_by_chance(kind: str, target: Target) -> Encode:
    """Numbers and 32 random bits for each -> codes of f16 or bf16.

    FP16_OVFL stops what overflows at the largest number (CDNA 4 and RDNA 4 ISA guides, as rocjitsu has them).
    """
    fraction, lowest = _HALVES[kind]
    convert = narrow_double if kind == "f16" else _as_bf16
    if target.mode.f16_overflow:
        convert = stopping(convert) if kind == "f16" else bf16_stopping(convert)
    return lambda x, random: np.asarray(convert(cut(x, random, fraction, lowest))).view(U16)


def _into_half(kind: str) -> Callable[[Instruction, Target], Step]:
    """An f32 into the half of the destination that op_sel picks; the other stays."""

    def build(ins: Instruction, target: Target) -> Step:
        destination, source, seed = ins.operands
        number, random, convert = read(source, "f32"), read(seed, "u32"), half_by_chance(kind, target)
        store = write(destination, "u16", bool(ins.bits("op_sel", [0, 0, 0])[2]))
        return lambda g: store(g, convert(np.asarray(number(g), np.float64), np.asarray(random(g))))

    return build


def _as_bf16(x: np.ndarray) -> np.ndarray:
    raw = x.astype(np.float32).view(U32)
    return (np.where(np.isnan(x), raw | U32(0x400000), raw) >> U32(16)).astype(U16)


special("v_cvt_sr_f16_f32", _into_half("f16"))
special("v_cvt_sr_bf16_f32", _into_half("bf16"))

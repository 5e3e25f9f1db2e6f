"""Conversions to and from 8-bit floats, fp8 (E4M3) and bf8 (E5M2), plain and with stochastic rounding.

OCP's on gfx12 and gfx950; on gfx942 the FNUZ ones, whose only NaN, 0x80, is also what infinities become. On CDNA 5
clamp says that fp8 is E5M3, which has no sign: numbers lose theirs (LLVM, FeatureFP8E5M3Insts; rocjitsu). RDNA 4 knows
one NaN: every one becomes 0xFF, of bf8 0xFE, and from 8 bits comes 0xFFC00000 (rocjitsu, measured on gfx1201).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.parse import Instruction
from . import sdwa
from .alu import Step, Target, special, store_step, vector_readers
from .dpp import lane_source
from .float8 import SMALL_VALUES
from .operands import read, write
from .output_modifiers import output_modifier
from .state import U32, Waves

_VALUES = {kind: values.astype(np.float32) for kind, values in SMALL_VALUES.items()}
# Fraction bits, lowest normal exponent, largest finite code, code of what does not fit, code of NaN.
_FORMATS = {
    "fp8": (3, -6, 0x7E, 0x7F, 0x7F), "bf8": (2, -14, 0x7B, 0x7C, 0x7F),
    "fp8_fnuz": (3, -7, 0x7F, 0x80, 0x80), "bf8_fnuz": (2, -15, 0x7F, 0x80, 0x80), "e5m3": (3, -14, 0xFE, 0xFF, 0xFF),
}  # fmt: skip


def format_of(kind: str, target: Target, ins: Instruction) -> str:
    """The format that "fp8" or "bf8" in a mnemonic means."""
    if kind == "fp8" and target.gpu.is_cdna5 and ins.flag("clamp"):
        return "e5m3"
    return f"{kind}_fnuz" if target.gpu.name == "gfx942" else kind


def _has_one_nan(target: Target) -> bool:
    return target.gpu.is_rdna_4m or (target.gpu.major == 12 and not target.gpu.is_cdna5)


def encode(
    kind: str, overflow_clamps: bool = False, infinity_clamps: bool = False, one_nan: bool = False
) -> Callable[[np.ndarray], np.ndarray]:
    """float32 -> 8-bit float codes (uint32), to nearest even.

    What rounds past the largest number becomes infinity (bf8) or NaN (fp8, which has no infinity), or with
    overflow_clamps the largest number; infinities stay what they are, or with infinity_clamps become it too. A NaN
    keeps its sign, but for one_nan.
    """
    fraction, lowest, largest, beyond, nan = _FORMATS[kind]
    nan = {"fp8": 0xFF, "bf8": 0xFE}[kind] if one_nan else nan
    #: codes that have no negative
    unsigned = (0, nan) if kind.endswith("_fnuz") else np.arange(256) if kind == "e5m3" else ()
    top = float(_VALUES[kind][largest])

    def function(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        magnitude = np.abs(x)
        exponent = np.where(magnitude == 0, lowest, np.maximum(np.frexp(magnitude)[1] - 1, lowest))
        # In units of the last place the code of a number is its position on the grid of its exponent.
        units = np.rint(np.ldexp(magnitude, fraction - exponent))
        units = np.where(np.isfinite(units), units, 0.0)
        code = units.astype(np.int64) + ((exponent - lowest) << fraction)
        rounded = np.ldexp(units, exponent - fraction)
        code = np.where((rounded > top) & np.isfinite(x), largest if overflow_clamps else beyond, code)
        code = np.where(np.isinf(x), largest if infinity_clamps else beyond, code)
        code = np.where(np.isnan(x), nan, code)
        return (code | (np.signbit(x) & ~np.isin(code, unsigned)).astype(np.int64) << 7).astype(U32)

    return function


def encoder(kind: str, ins: Instruction, target: Target) -> Callable[[np.ndarray], np.ndarray]:
    """`encode` as the instruction's clamp and MODE.FP16_OVFL say; on gfx9 the latter stops infinities as well."""
    overflow = target.mode.f16_overflow
    clamps = ins.flag("clamp") and kind != "e5m3"
    return encode(kind, clamps or overflow, overflow and target.gpu.major == 9, _has_one_nan(target))


# -- from 8 bits -------------------------------------------------------------------------------------------------------


def _values_of(kind: str, target: Target, ins: Instruction) -> np.ndarray:
    values = _VALUES[format_of(kind, target, ins)]
    only = U32(0xFFC00000).view(np.float32)
    return np.where(np.isnan(values), only, values) if _has_one_nan(target) else values


def byte_number(ins: Instruction, register_bits: int) -> int:
    """Which byte (or pair) of the source: `byte_sel:n`, SDWA's src0_sel, or op_sel, whose bits are in reverse order."""
    if "byte_sel" in ins.modifiers:
        return ins.number("byte_sel")
    if sdwa.is_sdwa(ins):
        return sdwa.selection(ins, "src0_sel")[0] // register_bits
    first, second = ins.bits("op_sel", [0, 0])[:2]
    return first if register_bits == 16 else first * 2 + second


def _decode(kind: str) -> Callable[[Instruction, Target], Step]:
    def build(ins: Instruction, target: Target) -> Step:
        values = _values_of(kind, target, ins)
        destination, text = ins.operands
        shift = U32(8 * byte_number(ins, 8))
        source = lane_source(ins, target.lanes)
        reader = read(text, "b32") if source is None else source.reader(read(text, "b32"))
        store = write(destination, "f32")
        modify = output_modifier(ins, "f32", target, flushes=False) if target.gpu.major == 9 else None

        def compute(g: Waves) -> np.ndarray:
            found = values[(reader(g) >> shift) & U32(0xFF)]
            return found if modify is None else modify(found)

        if source is not None and source.partial:
            return source.guarded(compute, store)
        return lambda g: store(g, compute(g))

    return build


def _decode_pair(kind: str) -> Callable[[Instruction, Target], Step]:
    def build(ins: Instruction, target: Target) -> Step:
        values = _values_of(kind, target, ins)
        destination, text = ins.operands
        high = bool(byte_number(ins, 16)) or text.half == "h"
        reader = read(text, "b16", high)
        n = destination.index
        modify = output_modifier(ins, "f32", target, flushes=False) if target.gpu.major == 9 else None

        def step(g: Waves) -> None:
            pair = reader(g)
            for k, code in enumerate((pair & 0xFF, pair >> np.uint16(8))):
                g.put(n + k, values[code] if modify is None else modify(values[code]))

        return step

    return build


# -- to 8 bits ---------------------------------------------------------------------------------------------------------


def _encode_pair(kind: str) -> Callable[[Instruction, Target], Step]:
    """Two numbers into one half of the destination: op_sel[2] picks it."""

    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        convert = encoder(format_of(kind, target, ins), ins, target)
        select = ins.bits("op_sel", [0, 0, 0])
        source = lane_source(ins, target.lanes)
        a, b = vector_readers(ins, texts, ["f32", "f32"], target, [0, 0], source)
        store = write(destination, "b16", bool(select[-1]))
        return store_step(source, lambda g: (convert(a(g)) | convert(b(g)) << U32(8)).astype(np.uint16), store)

    return build


def cut(x: np.ndarray, random: np.ndarray, fraction: int, lowest: int, below: int | None = None) -> np.ndarray:
    """x, rounded by 32 random bits to a multiple of the last place; fraction, lowest: bits, least normal exponent.

    below: how many bits below the last place take part, of x and the highest of `random`; None: all.
    """
    magnitude = np.abs(x)
    exponent = np.maximum(np.frexp(np.where(np.isfinite(magnitude), magnitude, 0))[1] - 1, lowest)
    units, chance = np.ldexp(magnitude, fraction - exponent), random / 2.0**32
    if below is not None:
        units, chance = (np.floor(v * 2.0**below) / 2.0**below for v in (units, chance))
    units = np.floor(units + chance)
    return np.where(np.isfinite(x), np.copysign(np.ldexp(units, exponent - fraction), x), x)


def _encode_stochastic(kind: str, wide: str) -> Callable[[Instruction, Target], Step]:
    """A number plus random bits below the last place that is kept, cut off there, into one byte of the destination.

    The guides' pseudo-code names nearest even after the sum and a wrap of the fraction; either would be unfair, so the
    sum carries into the exponent here and is cut off, which is what stochastic rounding means. Numbers below the
    normal ones have fewer places, and what passes the largest is found after the sum (rocjitsu). RDNA 4 adds no more
    bits than normal numbers lose (rocjitsu, measured on gfx1201).
    """

    def build(ins: Instruction, target: Target) -> Step:
        form = format_of(kind, target, ins)
        fraction, lowest, *_ = _FORMATS[form]
        below = 23 - fraction if _has_one_nan(target) else None
        destination, *texts = ins.operands
        convert = encoder(form, ins, target)
        source = lane_source(ins, target.lanes)
        value, random = vector_readers(ins, texts, [wide, "u32"], target, [0, 0], source)
        if "byte_sel" in ins.modifiers:
            byte = ins.number("byte_sel")
        else:
            bits = ins.bits("op_sel", [0, 0, 0, 0])
            byte = bits[2] + 2 * bits[3]
        shift, n = U32(8 * byte), destination.index
        keep = ~(U32(0xFF) << shift)

        def compute(g: Waves) -> np.ndarray:
            x = np.asarray(value(g), np.float64)
            x = np.abs(x) if form == "e5m3" else x
            return (g.u[n] & keep) | (convert(cut(x, np.asarray(random(g)), fraction, lowest, below)) << shift)

        return store_step(source, compute, lambda g, word: g.put(n, word))

    return build


for _kind in ("fp8", "bf8"):
    special(f"v_cvt_f32_{_kind}", _decode(_kind), dpp=True, sdwa=True)
    special(f"v_cvt_pk_f32_{_kind}", _decode_pair(_kind), sdwa=True)
    special(f"v_cvt_pk_{_kind}_f32", _encode_pair(_kind), dpp=True)
    for _wide in ("f32", "f16"):
        special(f"v_cvt_sr_{_kind}_{_wide}", _encode_stochastic(_kind, _wide), dpp=True)

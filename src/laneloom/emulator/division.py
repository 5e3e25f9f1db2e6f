"""The steps of a correctly rounded division: scale the operands, refine, scale back, fix the special cases.

Follows the pseudo-code of V_DIV_SCALE, V_DIV_FMAS and V_DIV_FIXUP in AMD's RDNA 3 and RDNA 4 ISA guides.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .alu import Step, Target, special, vector
from .carry import two_results
from .floating import quieted
from .parse import Instruction
from .rounding import fma_f32, fma_f64

_FORMAT = {  # unsigned type, fraction bits, exponent mask
    np.dtype(np.float16): (np.uint16, 10, 0x1F),
    np.dtype(np.float32): (np.uint32, 23, 0xFF),
    np.dtype(np.float64): (np.uint64, 52, 0x7FF),
}


def _exponent(x: np.ndarray) -> np.ndarray:
    """The biased exponent field."""
    unsigned, fraction, mask = _FORMAT[x.dtype]
    return ((x.view(unsigned) >> unsigned(fraction)) & unsigned(mask)).astype(np.int32)


def _denormal(x: np.ndarray) -> np.ndarray:
    return (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)


def scaled(near_max: int, tiny: int, power: int) -> Callable:
    """One operand of a division brought into the range where refinement neither over- nor underflows.

    Sources: the operand to scale, denominator, numerator. Also returned: whether the quotient must be scaled back.
    """

    def function(x: np.ndarray, denominator: np.ndarray, numerator: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, denominator, numerator = np.broadcast_arrays(x, denominator, numerator)
        f = x.dtype.type
        far = _exponent(numerator) - _exponent(denominator) >= near_max
        denormal = _denormal(denominator)
        small_inverse = _denormal(f(1) / denominator)
        small_quotient = _denormal(numerator / denominator)
        cases = [
            (numerator == 0) | (denominator == 0), far, denormal, small_inverse & small_quotient, small_inverse,
            small_quotient, _exponent(numerator) <= tiny,
        ]  # fmt: skip
        up, down = np.ldexp(x, power), np.ldexp(x, -power)
        is_denominator = np.where(x == denominator, up, x)
        is_numerator = np.where(x == numerator, up, x)
        results = [f(np.nan), is_denominator, up, is_denominator, down, is_numerator, up]
        scale_back = ~cases[0] & (far | (~denormal & small_quotient))
        return np.select(cases, results, x).astype(x.dtype), scale_back

    return function


def _scale(kind: str, near_max: int, tiny: int, power: int) -> Callable[[Instruction, Target], Step]:
    return two_results(f"{kind} {kind} {kind}", kind, scaled(near_max, tiny, power))


special("v_div_scale_f32", _scale("f32", 96, 23, 64))
special("v_div_scale_f64", _scale("f64", 768, 53, 128))


def _refined(fma: Callable, factor: float) -> Callable:
    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray, scale_back: np.ndarray) -> np.ndarray:
        r = fma(a, b, c)
        return np.where(scale_back, r * r.dtype.type(factor), r) if scale_back.any() else r

    return function


vector("v_div_fmas_f32", "f32", "f32 f32 f32 mask", _refined(fma_f32, 2.0**32), implicit_vcc=True)
vector("v_div_fmas_f64", "f64", "f64 f64 f64 mask", _refined(fma_f64, 2.0**64), implicit_vcc=True)


def fix_up(lowest: int | None) -> Callable:
    """The quotient with the special cases of IEEE-754 put right.

    Sources: the refined quotient, denominator, numerator. lowest: difference of exponents that underflows to zero.
    """

    def function(quotient: np.ndarray, denominator: np.ndarray, numerator: np.ndarray) -> np.ndarray:
        f = quotient.dtype.type
        negative = np.signbit(denominator) ^ np.signbit(numerator)
        magnitude = np.abs(quotient)
        plain = np.isfinite(denominator) & np.isfinite(numerator) & (denominator != 0) & (numerator != 0)
        if lowest is not None:
            below = plain & (_exponent(np.asarray(numerator)) - _exponent(np.asarray(denominator)) < lowest)
            magnitude = np.where(below, f(0), magnitude)
        if not plain.all():
            zero_n, zero_d = numerator == 0, denominator == 0
            infinite_n, infinite_d = np.isinf(numerator), np.isinf(denominator)
            magnitude = np.where(zero_n | infinite_d, f(0), magnitude)
            magnitude = np.where(zero_d | infinite_n, f(np.inf), magnitude)
        signed = np.where(negative, -magnitude, magnitude)
        if not plain.all():
            signed = np.where((zero_n & zero_d) | (infinite_n & infinite_d), np.copysign(f(np.nan), f(-1)), signed)
            signed = np.where(np.isnan(denominator), quieted(denominator), signed)
            signed = np.where(np.isnan(numerator), quieted(numerator), signed)
        return signed.astype(f)

    return function


vector("v_div_fixup_f16", "f16", "f16 f16 f16", fix_up(None))
vector("v_div_fixup_f32", "f32", "f32 f32 f32", fix_up(-150))
vector("v_div_fixup_f64", "f64", "f64 f64 f64", fix_up(-1075))

"""The steps of a correctly rounded division: scale the operands, refine, scale back, fix the special cases.

After the pseudo-code of V_DIV_SCALE, V_DIV_FMAS and V_DIV_FIXUP in AMD's RDNA 3 and RDNA 4 ISA guides, save where that
cannot give the quotient and silicon does something else: V_DIV_FMAS scales by 2**64 or 2**-64 (f64: 128) by the size of
its addend and rounds once; of V_DIV_SCALE, exponents decide alone, as rocjitsu, AMD's emulator, found on gfx1100 and
gfx1201 (and as tinygrad's values of RDNA 3 are): a denominator whose inverse is denormal is scaled down, not up. By
rocjitsu too, V_DIV_FMAS keeps the denormals of its operands in every mode, and V_DIV_FIXUP those of the quotient; what
V_DIV_FIXUP finds out of range it rounds as the mode says.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ..isa.parse import Instruction
from .alu import Step, Target, special, vector
from .carry import two_results
from .floating import quieted
from .mode import DOWN, NEAREST, UP, Mode
from .rounding import FMA, fma_f32, fma_f64, scaled_fma_directed, scaled_fma_f32, scaled_fma_f64
from .tininess import Exact

_FORMAT = {  # unsigned type, fraction bits, exponent mask
    np.dtype(np.float16): (np.uint16, 10, 0x1F),
    np.dtype(np.float32): (np.uint32, 23, 0xFF),
    np.dtype(np.float64): (np.uint64, 52, 0x7FF),
}


def _exponent(x: np.ndarray) -> np.ndarray:
    """The biased exponent field."""
    unsigned, fraction, mask = _FORMAT[x.dtype]
    return ((x.view(unsigned) >> unsigned(fraction)) & unsigned(mask)).astype(np.int32)


def _moderate(x: np.ndarray, power: int) -> bool:
    """Whether all magnitudes lie between 2**-power and 2**power."""
    magnitude = np.abs(x)
    return bool(magnitude.max() < 2.0**power) and bool(magnitude.min() > 2.0**-power)


def scaled(far_apart: int, tiny: int, power: int) -> Callable:
    """One operand of a division brought into the range where refinement neither over- nor underflows.

    Sources: the operand to scale, denominator, numerator. Also returned: whether the quotient must be scaled back.
    far_apart: the difference of exponents from which on the quotient may leave the normal range.
    """

    def function(x: np.ndarray, denominator: np.ndarray, numerator: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if _moderate(denominator, far_apart // 2) and _moderate(numerator, far_apart // 2):
            return x, np.zeros(1, np.bool_)
        x, denominator, numerator = np.broadcast_arrays(x, denominator, numerator)
        f, smallest = x.dtype.type, np.finfo(x.dtype).tiny
        difference = _exponent(numerator) - _exponent(denominator)
        zero = (numerator == 0) | (denominator == 0)
        far, small_quotient = difference >= far_apart, difference <= -far_apart
        denormal = np.abs(denominator) < smallest
        small_inverse = _exponent(denominator) >= _exponent(1 / smallest)
        of_denominator = x == denominator
        up, down = np.ldexp(x, power), np.ldexp(x, -power)
        cases = [
            (zero, -f(np.nan)), (np.isnan(x), x + x), (far, np.where(of_denominator, up, x)), (denormal, up),
            (small_inverse & small_quotient, np.where(of_denominator, down, x)), (small_inverse, down),
            (small_quotient, np.where(of_denominator, x, up)), (_exponent(numerator) <= tiny, up),
        ]  # fmt: skip
        result = np.select([c for c, _ in cases], [r for _, r in cases], x).astype(x.dtype)
        return result, far | (~denormal & small_quotient)

    return function


def _scale(kind: str, *limits: int) -> Callable[[Instruction, Target], Step]:
    return two_results(f"{kind} {kind} {kind}", kind, scaled(*limits))


special("v_div_scale_f32", _scale("f32", 96, 24, 64))
special("v_div_scale_f64", _scale("f64", 768, 53, 128))


def refined(fma: Callable, scaled_fma: Callable, power: int) -> Callable:
    """fma(a, b, c), where the mask says so times 2**power or, for |c| below 2, times 2**-power; rounded once."""

    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray, scale_back: np.ndarray) -> np.ndarray:
        r = fma(a, b, c)
        if not scale_back.any():
            return r
        a, b, c, scale_back = np.broadcast_arrays(a, b, c, scale_back)
        r = np.broadcast_to(r, a.shape).copy()
        where = np.nonzero(scale_back)
        addend = c[where]
        r[where] = scaled_fma(a[where], b[where], addend, np.where(np.abs(addend) >= 2, power, -power))
        return r

    return function


def _exact(power: int) -> Exact:
    def function(a: Fraction, b: Fraction, c: Fraction, scale_back: Fraction) -> Fraction:
        return (a * b + c) * (Fraction(2) ** (power if abs(c) >= 2 else -power) if scale_back else 1)

    return Exact(function)


for _kind, _fma, _scaled_fma, _power in (("f32", fma_f32, scaled_fma_f32, 64), ("f64", fma_f64, scaled_fma_f64, 128)):

    def _of_mode(rounding: int, kind: str = _kind, scaled_fma: Callable = _scaled_fma, power: int = _power) -> Callable:
        return refined(FMA[kind](rounding), scaled_fma_directed(scaled_fma)(rounding), power)

    vector(
        f"v_div_fmas_{_kind}", _kind, f"{_kind} {_kind} {_kind} mask", refined(_fma, _scaled_fma, _power),
        implicit_vcc=True, kept=(0, 1, 2), rounded=_of_mode, exact=_exact(_power),
    )  # fmt: skip


def fix_up(lowest: int | None, rounding: int = NEAREST, flushes: bool = False, stops: bool = False) -> Callable:
    """The quotient with the special cases of IEEE-754 put right.

    Sources: the refined quotient, denominator, numerator. lowest: difference of exponents that underflows to zero, or
    to the least number where the mode rounds so and does not flush it. stops: no quotient overflows.
    """

    def function(quotient: np.ndarray, denominator: np.ndarray, numerator: np.ndarray) -> np.ndarray:
        f = quotient.dtype.type
        usual = lowest is not None and _moderate(denominator, 60) and _moderate(numerator, 60)
        if usual and np.isfinite(quotient).all():
            return np.copysign(quotient, np.copysign(f(1), denominator) * numerator)
        negative = np.signbit(denominator) ^ np.signbit(numerator)
        magnitude = np.abs(quotient)
        plain = np.isfinite(denominator) & np.isfinite(numerator) & (denominator != 0) & (numerator != 0)
        away = negative == (rounding == DOWN) if rounding in (UP, DOWN) else np.False_
        # Refining a quotient far beyond the range meets inf - inf.
        largest = f(np.finfo(f).max) if rounding != NEAREST or stops else f(np.inf)
        most = np.where(away, f(largest if stops else np.inf), largest)
        magnitude = np.where(np.isfinite(magnitude), magnitude, most)
        if lowest is not None:
            below = plain & (_exponent(np.asarray(numerator)) - _exponent(np.asarray(denominator)) < lowest)
            least = f(0) if flushes else np.where(away, np.finfo(f).smallest_subnormal, f(0))
            magnitude = np.where(below, least, magnitude)
        if plain.all():
            return np.where(negative, -magnitude, magnitude)
        zero_n, zero_d = numerator == 0, denominator == 0
        infinite_n, infinite_d = np.isinf(numerator), np.isinf(denominator)
        magnitude = np.where(zero_n | infinite_d, f(0), magnitude)
        magnitude = np.where(zero_d | infinite_n, f(np.inf), magnitude)
        signed = np.where(negative, -magnitude, magnitude)
        signed = np.where((zero_n & zero_d) | (infinite_n & infinite_d), np.copysign(f(np.nan), f(-1)), signed)
        signed = np.where(np.isnan(denominator), quieted(denominator), signed)
        return np.where(np.isnan(numerator), quieted(numerator), signed).astype(f)

    return function


for _kind, _lowest in (("f16", None), ("f32", -150), ("f64", -1075)):

    def _fix_up(mode: Mode, kind: str = _kind, lowest: int | None = _lowest) -> Callable:
        stops = kind == "f16" and mode.f16_overflow
        return fix_up(lowest, mode.rounding(kind), mode.flushes_results(kind), stops)

    vector(f"v_div_fixup_{_kind}", _kind, f"{_kind} {_kind} {_kind}", fix_up(_lowest), kept=(0,), of_mode=_fix_up)

"""Exactly rounded sums, products and fused multiply-adds, in every rounding mode of the hardware.

float64 holds every product of two float32 exactly and most sums; what it had to round is found by error-free
transformations (Knuth's two-sum, Dekker's product) and folded into the last bit by rounding to odd, after which one
more rounding to the narrower format is the correct one (Boldo and Melquiond, "Emulation of FMA and correctly rounded
sums: proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from .float16 import narrow, narrow_double, widen
from .mode import DOWN, NEAREST, UP

_MANTISSA_BELOW_F32 = np.uint64(0x1FFFFFFF)  #: bits of a float64 that a float32 drops
_HALF_ULP_F32 = np.uint64(0x10000000)
_SPLIT = 134217729.0  #: 2^27 + 1, Veltkamp's constant


def two_sum_error(a: np.ndarray, b: np.ndarray, s: np.ndarray) -> np.ndarray:
    """(a + b) - s exactly, for s = fl(a + b) in float64."""
    back = s - a
    return (a - (s - back)) + (b - back)


def to_odd(s: np.ndarray, error: np.ndarray) -> np.ndarray:
    """fl(s) and its exact remainder -> the value rounded to odd: inexact values get an odd last bit."""
    inexact = (error != 0) & np.isfinite(s) & (s.view(np.uint64) & np.uint64(1) == 0)
    return np.where(inexact, np.nextafter(s, np.where(error > 0, np.inf, -np.inf)), s)


def fma_f32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float32, rounded once to nearest even."""
    product = np.multiply(a, b, dtype=np.float64)  # exact: 24 + 24 bits
    total = product + c
    # Rounding twice goes wrong only if the float64 lies half-way between two float32, or below their normal range.
    suspect = (total.view(np.uint64) & _MANTISSA_BELOW_F32) == _HALF_ULP_F32
    if suspect.any():
        total = _odd_where(suspect, product, c, total)
    try:
        with np.errstate(under="raise"):
            return np.asarray(total.astype(np.float32))
    except FloatingPointError:
        return _odd_where(np.abs(total) < 2.0**-126, product, c, total).astype(np.float32)


def _odd_where(suspect: np.ndarray, product: np.ndarray, c: np.ndarray, total: np.ndarray) -> np.ndarray:
    """`total` with the suspect elements rounded to odd."""
    total = np.atleast_1d(total)
    where = np.nonzero(np.atleast_1d(suspect))
    p, addend = (np.broadcast_to(x, total.shape)[where].astype(np.float64) for x in (product, c))
    sums = total[where]
    total[where] = to_odd(sums, two_sum_error(p, addend, sums))
    return total


def scaled_fma_f32(a: np.ndarray, b: np.ndarray, c: np.ndarray, power: np.ndarray) -> np.ndarray:
    """(a * b + c) * 2**power in float32, rounded once to nearest even."""
    product, addend = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = product + addend
    return np.ldexp(to_odd(total, two_sum_error(product, addend, total)), power).astype(np.float32)


def fma_f16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float16, rounded once: float64 is wide enough for its rounding never to matter."""
    return narrow_double(np.multiply(widen(a), widen(b), dtype=np.float64) + widen(c))


def add_f16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b in float16; float32 holds twice its digits and two more, so that rounding twice is harmless."""
    return narrow(widen(a) + widen(b))


def subtract_f16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b in float16."""
    return narrow(widen(a) - widen(b))


def multiply_f16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a * b in float16."""
    return narrow(widen(a) * widen(b))


def two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """fl(a b) and its exact remainder in float64, for operands whose product neither overflows nor underflows."""
    p = a * b
    a_high = high_part(a)
    b_high = high_part(b)
    a_low, b_low = a - a_high, b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def high_part(x: np.ndarray) -> np.ndarray:
    """The upper half of the digits, so that products of halves are exact."""
    scaled = x * _SPLIT
    return scaled - (scaled - x)


def fma_f64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float64, rounded once to nearest even."""
    a, b, c = (np.asarray(x, np.float64) for x in (a, b, c))
    if all(_moderate(x) for x in (a, b, c)):
        return _fma_moderate(a, b, c)
    a, b, c = np.broadcast_arrays(a, b, c)
    # An infinite addend wins over a product that overflows only for want of range.
    result = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, a * b + c)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    (_, ea), (_, eb), (_, ec) = np.frexp(a), np.frexp(b), np.frexp(c)
    easy = finite & (np.maximum(np.abs(ea), np.abs(eb)) < 960) & (np.abs(ea + eb) < 900) & (np.abs(ec) < 900)
    result[easy] = _fma_moderate(a[easy], b[easy], c[easy])
    hard = finite & ~easy
    if hard.any():
        result[hard] = [_fma_integer(x, y, z) for x, y, z in zip(a[hard], b[hard], c[hard], strict=True)]
    return result


def _moderate(x: np.ndarray) -> bool:
    """Whether all magnitudes lie so far from the ends of the range that no step of an error-free product leaves it."""
    magnitude = np.abs(x)
    return bool(magnitude.max() < 2.0**400) and bool(magnitude.min() > 2.0**-400)


def _fma_moderate(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    high, low = two_product(a, b)
    inner = c + low
    outer = high + inner
    rest = two_sum_error(c, low, inner), two_sum_error(high, inner, outer)
    remainder = rest[0] + rest[1]
    return outer + to_odd(remainder, two_sum_error(*rest, remainder))


def scaled_fma_f64(a: np.ndarray, b: np.ndarray, c: np.ndarray, power: np.ndarray) -> np.ndarray:
    """(a * b + c) * 2**power in float64 for 1-D arrays, rounded once to nearest even, element by element."""
    out = np.ldexp(fma_f64(a, b, c), power)
    for i in np.nonzero(np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (out != 0))[0]:
        out[i] = _fma_integer(a[i], b[i], c[i], int(power[i]))
    return out


def _fma_integer(a: float, b: float, c: float, power: int = 0) -> float:
    """One fused multiply-add, times 2**power, by exact integers, for the ends of the float64 range."""
    terms = []
    for factors in ((a, b), (c, 1.0)):
        numerator, shift = 1, 0
        for x in factors:
            n, d = float(x).as_integer_ratio()
            numerator, shift = numerator * n, shift + d.bit_length() - 1
        terms.append((numerator, shift))
    (n0, s0), (n1, s1) = terms
    shift = max(s0, s1, power)
    total = (n0 << (shift - s0)) + (n1 << (shift - s1))
    shift -= power
    if total == 0:
        return float(a * b + c) if n0 == 0 and n1 == 0 else 0.0
    try:
        return total / (1 << shift)  # Python divides integers with one correct rounding
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


# -- other rounding modes ----------------------------------------------------------------------------------------------


def directed(value: np.ndarray, error: np.ndarray | float, dtype: type, rounding: int) -> np.ndarray:
    """`value` (float64, exact but for a remainder of the sign of `error`) in `dtype`, rounded by a directed mode."""
    exact = to_odd(np.asarray(value), np.broadcast_to(error, np.shape(value)))
    nearest = exact.astype(dtype)
    back = nearest.astype(np.float64)
    info = np.finfo(dtype)
    zero, infinity = dtype(0), dtype(np.inf)
    if rounding == UP:
        moved = np.where(back < exact, np.nextafter(nearest, infinity), nearest)
    elif rounding == DOWN:
        moved = np.where(back > exact, np.nextafter(nearest, -infinity), nearest)
    else:
        moved = np.where(np.abs(back) > np.abs(exact), np.nextafter(nearest, zero), nearest)
        # An overflow stops at the largest finite number.
        moved = np.where(np.isinf(nearest) & np.isfinite(exact), np.copysign(info.max, nearest), moved)
    return moved.astype(dtype)


def round_to(dtype: type, rounding: int) -> Callable[[np.ndarray], np.ndarray]:
    """A conversion of float32 or float64 numbers to `dtype` in a rounding mode."""
    if rounding == NEAREST:
        return lambda x: np.asarray(x).astype(dtype)
    return lambda x: directed(np.asarray(x, np.float64), 0.0, dtype, rounding)


def _wide(x) -> np.ndarray:
    return np.asarray(x, np.float64)


def _zero_sum_below(s: np.ndarray, a: np.ndarray, b: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """Rounding down, a sum of zero is -0 unless both terms are +0."""
    return np.where((s == 0) & (np.signbit(a) | np.signbit(b)), rounded.dtype.type(-0.0), rounded)


def _sum_directed(dtype: type, sign: int) -> Callable[[int], Callable]:
    def of_mode(rounding: int) -> Callable:
        def add(a, b):
            a, b = _wide(a), _wide(b) * sign
            s = a + b
            r = directed(s, two_sum_error(a, b, s), dtype, rounding)
            return _zero_sum_below(s, a, b, r) if rounding == DOWN else r

        return add

    return of_mode


def _fma_directed(dtype: type) -> Callable[[int], Callable]:
    def of_mode(rounding: int) -> Callable:
        def fma(a, b, c):
            p, c = _wide(a) * _wide(b), _wide(c)
            s = p + c
            r = directed(s, two_sum_error(p, c, s), dtype, rounding)
            return _zero_sum_below(s, p, c, r) if rounding == DOWN else r

        return fma

    return of_mode


def _product_directed(dtype: type) -> Callable[[int], Callable]:
    return lambda rounding: lambda a, b: directed(_wide(a) * _wide(b), 0.0, dtype, rounding)


def _directed_number(nearest, exact: Fraction, negative_zero: bool, rounding: int):
    """The float32 or float64 next to `exact` that a directed mode asks for, from the nearest one."""
    value, f = float(nearest), np.asarray(nearest).dtype.type
    if exact == 0 and rounding == DOWN and negative_zero:
        return f(-0.0)
    if rounding == UP:
        return np.nextafter(nearest, f(np.inf)) if value < exact else nearest
    if rounding == DOWN:
        return np.nextafter(nearest, f(-np.inf)) if value > exact else nearest
    return np.nextafter(nearest, f(0)) if abs(value) > abs(exact) else nearest


def _double_directed(nearest: Callable, exact: Callable, negative_zero: Callable) -> Callable[[int], Callable]:
    """Element by element, by fractions: few programs ask for it."""

    def of_mode(rounding: int) -> Callable:
        def function(*operands):
            x = np.broadcast_arrays(*(np.atleast_1d(_wide(v)) for v in operands))
            result = np.array(nearest(*x))
            for at in zip(*np.nonzero(np.all(np.isfinite(x), axis=0)), strict=True):
                values = [float(v[at]) for v in x]
                zero = negative_zero(*(math.copysign(1, v) < 0 for v in values))
                result[at] = _directed_number(result[at], exact(*map(Fraction, values)), zero, rounding)
            return result

        return function

    return of_mode


_ADD_F64 = _double_directed(np.add, lambda a, b: a + b, lambda a, b: a or b)
_MUL_F64 = _double_directed(np.multiply, lambda a, b: a * b, lambda a, b: a != b)
_FMA_F64 = _double_directed(fma_f64, lambda a, b, c: a * b + c, lambda a, b, c: (a != b) or c)

#: operation and type -> rounding mode -> function
ADD = {"f64": _ADD_F64, "f32": _sum_directed(np.float32, 1), "f16": _sum_directed(np.float16, 1)}
SUB = {"f32": _sum_directed(np.float32, -1), "f16": _sum_directed(np.float16, -1)}
MUL = {"f64": _MUL_F64, "f32": _product_directed(np.float32), "f16": _product_directed(np.float16)}
FMA = {"f64": _FMA_F64, "f32": _fma_directed(np.float32), "f16": _fma_directed(np.float16)}


def scaled_fma_directed(nearest: Callable) -> Callable[[int], Callable]:
    """rounding mode -> (a * b + c) * 2**power, from the function that rounds to nearest; element by element."""

    def of_mode(rounding: int) -> Callable:
        def function(a: np.ndarray, b: np.ndarray, c: np.ndarray, power: np.ndarray) -> np.ndarray:
            result = np.array(nearest(a, b, c, power))
            for i in np.nonzero(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))[0]:
                x, y, z = (float(v[i]) for v in (a, b, c))
                exact = (Fraction(x) * Fraction(y) + Fraction(z)) * Fraction(2) ** int(power[i])
                negative = math.copysign(1, x) != math.copysign(1, y) or math.copysign(1, z) < 0
                result[i] = _directed_number(result[i], exact, negative, rounding)
            return result

        return function

    return of_mode


def ldexp_directed(rounding: int) -> Callable:
    """x * 2**power. Only what is denormal or beyond the largest number was rounded; scaled back it shows which way."""

    def function(x: np.ndarray, power: np.ndarray) -> np.ndarray:
        power = np.clip(np.asarray(power, np.int32), -5000, 5000)
        nearest = np.ldexp(x, power)
        back, infinity = np.ldexp(nearest, -power), x.dtype.type(np.inf)
        if rounding == UP:
            return np.where(back < x, np.nextafter(nearest, infinity), nearest)
        if rounding == DOWN:
            return np.where(back > x, np.nextafter(nearest, -infinity), nearest)
        return np.where(np.abs(back) > np.abs(x), np.nextafter(nearest, x.dtype.type(0)), nearest)

    return function


def nearest_only(_rounding: int) -> Callable:
    """For operations whose directed modes are not implemented."""
    raise NotImplementedError

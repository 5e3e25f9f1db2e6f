"""Sums of matrix instructions of CDNA 3, whose terms are cut to common grids (`mfma_sums.py` says which).

A term is scaled by a power of two, so that cutting it is taking the integer part, and the cut terms are added exactly.
Powers of two are made and compared by the exponent fields of floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

F32, F64, I64 = np.float32, np.float64, np.int64
_EXPONENT = 0x7FF0000000000000
_NO_POWER = 2.0**-700  #: of products that are all zero
_AT_ONCE = 16384  #: products, of several k if there are few of one


def cut(least_a: int, least_b: int, step: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """A [wave, block, row, k] times B [wave, block, k, column], both float64, and C, in float32.

    least_a, least_b: exponents of the smallest normal numbers. step: products that are added at a time; of 16 the even
    and the odd ones by themselves.
    """
    factors, d, ks = _factors(a, b, 2.0**least_a, 2.0**least_b), c.astype(F64), a.shape[-1]
    for first in range(0, ks, step):
        if step == 16:
            total, power = _evens_and_odds(*(factors.sum(range(first + i, first + 16, 2)) for i in (0, 1)))
        else:
            total, power = factors.sum(range(first, min(first + step, ks)))
        d = _with_addend(total, power, d, step == 16)
    return d.astype(F32)


@dataclass(frozen=True)
class _Factors:
    """A and B, divided by powers of two whose product is 2**shift, and by 16 ** each exponent, zero of zeros.

    In float32 where the exponents lie near enough to each other; sums are int32 then. In float64 they may lie anywhere,
    and be infinite or NaN.
    """

    a: np.ndarray
    b: np.ndarray
    powers_a: np.ndarray
    powers_b: np.ndarray
    shift: int
    overflows: bool  #: a product may be more than float32 holds, which makes it infinite

    def sum(self, ks: range) -> tuple[np.ndarray, np.ndarray]:
        """Products cut toward zero to 24 bits below the largest exponent: their sum in units of 2**-24 of the power of
        two that belongs to the exponent, and the power.
        """
        at = slice(ks.start, ks.stop, ks.step)
        # By BLAS: the sum of at most eight powers of 16 lies below the power that follows the largest of them.
        most = np.ascontiguousarray(self.powers_a[..., at]) @ np.ascontiguousarray(self.powers_b[..., at, :])
        nothing = most == 0
        nothing = nothing if nothing.any() else None
        if nothing is not None:
            most[nothing] = 1
        narrow = most.dtype == F32
        fraction, bias = (23, 127) if narrow else (52, 1023)
        fours = most.view(f"i{most.itemsize}") - (bias << fraction)
        scale = (bias + 24 - (fours >> fraction + 2) << fraction).view(most.dtype)
        power = np.reciprocal(scale) * F64(2.0 ** (24 + self.shift))
        if nothing is not None:
            power[nothing] = _NO_POWER
        several = len(ks) if most.size * len(ks) <= _AT_ONCE else 1
        shape, kind = (*most.shape[:-2], several, *most.shape[-2:]), np.int32 if narrow else F64
        product, whole, total = np.empty(shape, most.dtype), np.empty(shape, kind), np.zeros(most.shape, kind)
        columns, scale = self.a.swapaxes(-1, -2)[..., None], scale[..., None, :, :]
        for first in ks[::several]:
            at = slice(first, first + several * ks.step, ks.step)
            np.multiply(columns[..., at, :, :], self.b[..., at, None, :], out=product)
            if self.overflows:
                np.copyto(product, np.copysign(np.inf, product), where=np.abs(product) >= 2.0**128)
            np.multiply(product, scale, out=product)
            if narrow:
                np.copyto(whole, product, casting="unsafe")  # toward zero
            else:
                np.trunc(product, out=whole)
            np.add(total, whole[..., 0, :, :] if several == 1 else whole.sum(axis=-3, dtype=kind), out=total)
        return total.astype(F64), power


def _factors(a: np.ndarray, b: np.ndarray, least_a: float, least_b: float) -> _Factors:
    powers, middles, reach = [], [], 0
    for x, least in ((a, least_a), (b, least_b)):
        power = np.maximum((x.view(I64) & _EXPONENT).view(F64), least)
        low, high = (math.frexp(end)[1] - 1 for end in (power.min(), power.max()))
        reach += (high - low + 1) // 2
        powers.append(power)
        middles.append((low + high) // 2)
    overflows = not float(powers[0].max()) * float(powers[1].max()) < 2.0**126  # infinities and NaN are 2**1024 here
    narrow = reach <= 31 and not overflows  # 16**31 is 2**124, and float32 also holds eight of it
    middles = middles if narrow else [0, 0]
    kind = F32 if narrow else F64
    scaled = []
    for x, power, middle in zip((a, b), powers, middles, strict=True):
        np.minimum(power, 2.0**127, out=power)
        np.multiply(power, 2.0**-middle, out=power)
        np.multiply(power, power, out=power)
        np.multiply(power, power, out=power)
        power[x == 0] = 0
        scaled.append(((x * 2.0**-middle).astype(kind), power.astype(kind)))
    (a, powers_a), (b, powers_b) = scaled
    return _Factors(a, b, powers_a, powers_b, sum(middles), overflows)


def _one_over(x: np.ndarray) -> np.ndarray:
    """Of powers of two in float64."""
    return ((2 * 1023 << 52) - x.view(I64)).view(F64)


def _evens_and_odds(even: tuple[np.ndarray, np.ndarray], odd: tuple[np.ndarray, np.ndarray]):
    power = np.maximum(even[1], odd[1])
    part = _one_over(power)
    return np.floor(even[0] * (even[1] * part)) + np.floor(odd[0] * (odd[1] * part)), power


def _with_addend(total: np.ndarray, power: np.ndarray, c: np.ndarray, drops: bool) -> np.ndarray:
    """total in units of 2**-24 power, and c, both cut, rounded to float32, in float64.

    drops: an addend more than 25 bits below the power of the products is nothing; otherwise it is -1 unit if it is
    negative.
    """
    of_c = (c.view(I64) & _EXPONENT).view(F64)
    np.maximum(of_c, 2.0**-126, out=of_c)
    np.minimum(of_c, 2.0**127, out=of_c)
    top = np.maximum(power, of_c)
    part = _one_over(top)
    addend = c * part
    np.multiply(addend, 2.0**24, out=addend)
    np.floor(addend, out=addend)
    if drops:
        addend[of_c < top * 2.0**-25] = 0
    np.multiply(addend, 2.0**8, out=addend)
    whole = np.multiply(power, part, out=part)
    np.multiply(whole, 2.0**8, out=whole)
    np.multiply(whole, total, out=whole)
    np.floor(whole, out=whole)
    np.add(whole, addend, out=whole)  # in units of 2**-32 top
    lowest = top == 2.0**-126
    if lowest.any():  # 31 bits below the smallest normal number is the least that is kept
        np.copyto(whole, 2 * np.floor(whole / 2), where=lowest)
    # 31 bits below the leading one are kept; a negative number is cut to the next larger magnitude.
    bits = whole.view(I64)
    bits += bits >> 63 & 0x1FFFFF
    bits &= ~0x1FFFFF
    np.multiply(top, 2.0**-32, out=top)
    return np.multiply(whole, top, out=top).astype(F32).astype(F64)

"""float16 to and from float32, several times faster than numpy's casts and with the hardware's quiet NaNs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

U16, U32 = np.uint16, np.uint32


def _widened() -> np.ndarray:
    values = np.arange(1 << 16, dtype=U16).view(np.float16).astype(np.float32)
    raw = values.view(U32)
    raw[np.isnan(values)] |= U32(0x400000)
    return values


_WIDE = _widened()  #: the float32 of each of the 65,536 codes
_OVERFLOW = 0x477FF000  #: bits of 65520, the least number that rounds to infinity
_LARGEST = np.float16(65504)
_SMALLEST = np.float32(2.0**-14)  #: the least normal float16, bits 0x38800000


def widen(x: np.ndarray) -> np.ndarray:
    """float16 -> float32, exact; NaNs become quiet."""
    return _WIDE.take(np.asarray(x).view(U16), mode="wrap")


def narrow(x: np.ndarray) -> np.ndarray:
    """float32 -> float16, to nearest even; NaNs become quiet."""
    x = np.asarray(x)
    raw = x.view(U32)
    magnitude = raw & U32(0x7FFFFFFF)
    if not magnitude.size or int(magnitude.max()) >= _OVERFLOW:
        return _narrow_any(x)
    # Move the exponent from one bias to the other and round off 13 bits; negative for denormals.
    odd = (magnitude >> U32(13)) & U32(1)
    code = (magnitude + (odd + U32((0xFFF - (112 << 23)) & 0xFFFFFFFF))).view(np.int32) >> np.int32(13)
    if int(magnitude.min()) < 0x38800000:
        # The last place of 0.5 is that of float16's denormals: adding it rounds them once, to their code.
        tiny = np.minimum(magnitude.view(np.float32), _SMALLEST) + np.float32(0.5)
        code = np.maximum(code, tiny.view(np.int32) - np.int32(0x3F000000))
    return np.asarray(code.view(U32) | ((raw >> U32(16)) & U32(0x8000))).astype(U16).view(np.float16)


def _narrow_any(x: np.ndarray) -> np.ndarray:
    r = np.asarray(x.astype(np.float16)).view(U16)
    nan = np.isnan(x)
    if not nan.any():
        return r.view(np.float16)
    # numpy sets the last bit of a NaN whose first ten bits are zero; the hardware does not.
    cut = np.isnan((x.view(U32) & U32(0xFFFFE000)).view(np.float32)) if x.dtype == np.float32 else nan
    return np.where(nan, np.where(cut, r, r & U16(0xFC00)) | U16(0x200), r).view(np.float16)


def narrow_double(x: np.ndarray) -> np.ndarray:
    """float64 -> float16, rounded once to nearest even; NaNs become quiet."""
    x = np.asarray(x)
    try:
        with np.errstate(under="raise"):
            single = x.astype(np.float32)
    except FloatingPointError:
        return _narrow_any(x)
    r = narrow(single)
    # On the way through float32 only what lands half-way between two float16 can be rounded wrongly.
    half_way = (single.view(U32) & U32(0xFFF)) == 0
    doubtful = half_way & (single != x)
    return np.where(doubtful, x.astype(np.float16), r) if doubtful.any() else r


def stopping(fn: Callable) -> Callable:
    """`fn` under MODE.FP16_OVFL: what overflows float16 stops at the largest number.

    Infinities that come of an infinity stay; those of zero, its reciprocal and logarithm, do not (rocjitsu, measured on
    gfx1100 and gfx1201).
    """

    def stopped(*sources: np.ndarray) -> np.ndarray:
        result = fn(*sources)
        overflowed = np.isinf(result)
        for x in sources:
            overflowed = overflowed & ~np.isinf(x)
        return np.where(overflowed, np.copysign(_LARGEST, result), result) if overflowed.any() else result

    return stopped

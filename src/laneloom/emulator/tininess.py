"""Products and fused sums that are denormal but for their rounding, where denormal results become zero.

Hardware rounds to the full precision first, whatever the exponent, and takes for a denormal what is below the normal
numbers then (rocjitsu, measured on gfx1100 and gfx1201). Rounded as a denormal it may be the least normal number. For
ldexp and FP64 made FP32 what counts is the exact value (bjacob/goc, by values of gfx1201 with omod).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .mode import DOWN, NEAREST, UP, ZERO

_FORMATS = {"f16": (np.float16, 11), "f32": (np.float32, 24), "f64": (np.float64, 53)}


@dataclass(frozen=True)
class Exact:
    """The exact result of an operation on fractions, and whether hardware rounds it before it looks for denormals."""

    value: Callable[..., Fraction]
    is_rounded: bool = True


PRODUCT = Exact(lambda a, b: a * b)
FUSED_SUM = Exact(lambda a, b, c: a * b + c)
ITSELF = Exact(lambda x: x)  #: conversions
NARROWED = Exact(lambda x: x, is_rounded=False)  #: FP64 made FP32
LDEXP = Exact(lambda x, power: x * Fraction(2) ** int(power), is_rounded=False)


def _is_tiny(value: Fraction, least: Fraction, precision: int, rounding: int) -> bool:
    size = abs(value) / least
    if rounding == NEAREST:  # half-way between the last number below and 1, the even one is 1
        return size < 1 - Fraction(1, 2 << precision)
    if rounding == (UP if value > 0 else DOWN):
        return size <= 1 - Fraction(1, 1 << precision)
    return size < 1


def denormal_before_packing(fn: Callable, exact: Exact, kind: str, rounding: int) -> Callable:
    """`fn`, whose results that are the least normal number by the rounding of denormals alone are halved, so that they
    are flushed."""
    dtype, precision = _FORMATS[kind]
    least = np.finfo(dtype).tiny
    rounding = rounding if exact.is_rounded else ZERO

    def function(*operands: np.ndarray) -> np.ndarray:
        result = np.asarray(fn(*operands))
        at = np.abs(result) == least
        if not at.any():
            return result
        result = result.copy()
        sources = [np.broadcast_to(x, result.shape)[at].tolist() for x in operands]
        values = [exact.value(*map(Fraction, row)) for row in zip(*sources, strict=True)]
        tiny = [_is_tiny(v, Fraction(float(least)), precision, rounding) for v in values]
        result[at] = np.where(tiny, result[at] / 2, result[at])
        return result

    return function

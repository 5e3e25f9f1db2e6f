"""Floats of 8 bits and fewer as tables: OCP's, and CDNA 3's FNUZ, which have one NaN, no infinity and no -0."""

from __future__ import annotations

import numpy as np


def _values(exponent_bits: int, mantissa_bits: int, bias: int, infinities: bool, numbers_only: bool = False):
    """float64 value of each code. numbers_only: the highest exponent has neither infinity nor NaN."""
    sign_bit = 1 << (exponent_bits + mantissa_bits)
    out = np.empty(2 * sign_bit)
    for code in range(2 * sign_bit):
        sign = -1.0 if code & sign_bit else 1.0
        exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
        mantissa = code & ((1 << mantissa_bits) - 1)
        top = exponent == (1 << exponent_bits) - 1 and not numbers_only
        if top and infinities:
            value = np.inf if mantissa == 0 else np.nan
        elif top and not infinities and mantissa == (1 << mantissa_bits) - 1:
            value = np.nan
        elif exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        out[code] = sign * value
    return out


FP8_VALUES = _values(4, 3, 7, infinities=False)
BF8_VALUES = _values(5, 2, 15, infinities=True)


def _fnuz(exponent_bits: int, mantissa_bits: int, bias: int) -> np.ndarray:
    out = _values(exponent_bits, mantissa_bits, bias, infinities=False, numbers_only=True)
    out[0x80] = np.nan
    return out


def power_of_two(code: np.ndarray) -> np.ndarray:
    """What a scale of 8 bits stands for (E8M0, the exponent field of an f32): 2^(code - 127), NaN for 255."""
    return np.where(code == 255, np.nan, np.ldexp(1.0, code.astype(np.int64) - 127))


def _e5m3() -> np.ndarray:
    """CDNA 5's float without a sign: a bias of 15, one NaN, no infinity."""
    code = np.arange(256)
    out = np.ldexp(1.0 * (code % 8 + 8 * (code > 7)), np.maximum(code >> 3, 1) - 18)
    out[255] = np.nan
    return out


#: by the names of isa/catalogue.py, and "e5m3"
SMALL_VALUES: dict[str, np.ndarray] = {
    "fp8": FP8_VALUES, "bf8": BF8_VALUES, "fp8_fnuz": _fnuz(4, 3, 8), "bf8_fnuz": _fnuz(5, 2, 16),
    "fp6": _values(2, 3, 1, False, numbers_only=True), "bf6": _values(3, 2, 3, False, numbers_only=True),
    "fp4": _values(2, 1, 1, False, numbers_only=True), "e5m3": _e5m3(),
}  # fmt: skip

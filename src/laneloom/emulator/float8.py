"""The 8-bit floats of gfx12 as tables: fp8 = OCP E4M3 (no infinity), bf8 = OCP E5M2."""

from __future__ import annotations

import numpy as np


def _values(exponent_bits: int, mantissa_bits: int, bias: int, infinities: bool) -> np.ndarray:
    """float64 value of each of the 256 codes."""
    out = np.empty(256)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
        mantissa = code & ((1 << mantissa_bits) - 1)
        top = exponent == (1 << exponent_bits) - 1
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

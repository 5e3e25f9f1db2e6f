"""Products of 16-bit floats and an addend as RDNA 3 and RDNA 4 sum them, by integers: two products, in a step of RDNA
4's WMMA four.

Facts by rocjitsu, AMD's emulator, which were measured on gfx1100 and gfx1201: the terms are cut to a common grid 24 to
26 bits below the largest and added as integers, and the sum is rounded once, to nearest even, whatever MODE says.
RDNA 4 cuts downwards and adds the products of each pair first; it keeps denormals. RDNA 3 counts signs from the
addend's: a term of the other sign loses one unit more, so that 1 - 1 + 1 is a bit below 1; denormals are zero, but for
those of fp16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

I64, U32 = np.int64, np.uint32
_NONE = -1024  #: the exponent of zero
_FACTOR_NAN, _INVALID_NAN = U32(0xFFC00A3D), U32(0xFFC00000)


@dataclass(frozen=True)
class Kind:
    """What is summed, and on which generation."""

    bf16: bool  #: the factors
    half: bool  #: the addend and the result are fp16, not fp32
    rdna4: bool

    @property
    def fraction(self) -> int:
        """Fraction bits of the factors."""
        return 7 if self.bf16 else 10

    @property
    def infinity(self) -> int:
        """The factors' infinity."""
        return 0x7F80 if self.bf16 else 0x7C00


def _bits(x: np.ndarray) -> np.ndarray:
    return np.frexp(x.astype(np.float64))[1].astype(I64)


def _leading(magnitude: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    return np.where(magnitude != 0, exponent + _bits(magnitude) - 1, _NONE)


def _shifted(magnitude: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """magnitude * 2**left, cut to an integer, and whether something was cut off."""
    right = np.clip(-left, 0, 62)
    kept = (magnitude >> right) << np.clip(left, 0, 62)
    return kept, magnitude & ((I64(1) << right) - 1) != 0


def _to_nearest(magnitude: np.ndarray, right: np.ndarray) -> np.ndarray:
    """magnitude / 2**right, to nearest even."""
    down = np.clip(right, 0, 62)
    kept, rest, half = magnitude >> down, magnitude & ((I64(1) << down) - 1), (I64(1) << down) >> 1
    kept = kept + ((rest > half) | ((rest == half) & (down > 0) & (kept & 1 == 1)))
    return np.where(right > 62, 0, kept << np.clip(-right, 0, 62))


def _factors(x: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """The significand and the exponent of its unit's leading place."""
    field = (x & 0x7FFF) >> kind.fraction
    low = x & ((1 << kind.fraction) - 1)
    denormal = np.zeros_like(low) if kind.bf16 and not kind.rdna4 else low
    bias = (kind.infinity >> kind.fraction) // 2
    return np.where(field != 0, low | 1 << kind.fraction, denormal), np.maximum(field, 1) - bias


def _single(total: np.ndarray, grid: np.ndarray, negative: np.ndarray, denormals: bool) -> np.ndarray:
    magnitude = np.abs(total)
    top = _bits(magnitude) - 1
    exponent, significand = top + grid, _to_nearest(magnitude, top - 23)
    carry = significand >> 24
    word = (exponent + carry + 127 << 23) | ((significand >> carry) & 0x7FFFFF)
    word = np.where(exponent + carry > 127, 0x7F800000, word)
    if denormals:
        word = np.where(exponent < -126, _to_nearest(magnitude, -149 - grid), word)
    else:
        word = np.where(exponent + carry < -126, 0, word)
    word = np.where(magnitude == 0, 0, word)
    return np.where((word != 0) & negative, word | 1 << 31, word).astype(U32)


def _half(total: np.ndarray, grid: np.ndarray, negative: np.ndarray, stops: bool) -> np.ndarray:
    magnitude = np.abs(total)
    top = _bits(magnitude) - 1
    exponent = top + grid
    word = _to_nearest(magnitude, np.where(exponent < -14, -24 - grid, top - 10))
    # A carry out of the fraction moves the exponent on by itself, here and where a denormal becomes normal.
    word = np.where(exponent < -14, word, word + (exponent + 14 << 10))
    word = np.where(word >= 0x7C00, 0x7BFF if stops else 0x7C00, word)
    word = np.where(magnitude == 0, 0, word)
    return np.where((word != 0) & negative, word | 0x8000, word).astype(np.uint16)


def _special_half(words: np.ndarray) -> np.ndarray:
    """Infinities and NaNs of float32 as fp16."""
    short = words >> U32(16) & U32(0x8000) | U32(0x7C00) | words >> U32(13) & U32(0x3FF)
    return np.where(words == _FACTOR_NAN, 0xFE3D, short).astype(np.uint16)


def dot_pairs(a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: Kind, stops: bool = False) -> np.ndarray:
    """a[..., 0] b[..., 0] + a[..., 1] b[..., 1] + c, on RDNA 4 of four products too.

    a, b: the bits of the factors as uint16; c: float32's as uint32, of an fp16 addend too. Returns float32's bits as
    uint32, or fp16's as uint16. stops: MODE.FP16_OVFL.
    """
    a, b, c = a.astype(I64), b.astype(I64), c.astype(I64)
    (sa, ea), (sb, eb) = _factors(a, kind), _factors(b, kind)
    products, negative = sa * sb, (a ^ b) >> 15 != 0
    exponents = ea + eb - 2 * kind.fraction
    places = np.where(products != 0, ea + eb - 24, _NONE)
    c_field, c_negative = c >> 23 & 0xFF, c >> 31 != 0
    c_denormal = c & 0x7FFFFF if kind.rdna4 else 0
    addend = np.where(c_field != 0, c & 0x7FFFFF | 1 << 23, c_denormal)
    c_exponent = np.maximum(c_field, 1) - 150
    add = _sum_rdna4 if kind.rdna4 else _sum_rdna3
    least = -14 if kind.half else None
    total, grid = add(products, negative, exponents, places, addend, c_negative, c_exponent, least)
    below = (total < 0) if kind.rdna4 else (total < 0) != c_negative
    rounded: Callable = partial(_half, stops=stops) if kind.half else partial(_single, denormals=kind.rdna4)
    result = rounded(total, grid, below)

    magnitude_a, magnitude_b = a & 0x7FFF, b & 0x7FFF
    c_magnitude = c & 0x7FFFFFFF
    nan = ((magnitude_a > kind.infinity) | (magnitude_b > kind.infinity)).any(axis=-1)
    infinite = (magnitude_a == kind.infinity) | (magnitude_b == kind.infinity)
    if not (nan.any() or infinite.any() or (c_magnitude >= 0x7F800000).any()):
        return result
    invalid = (infinite & ((sa == 0) | (sb == 0))).any(axis=-1)
    up, down = (infinite & ~negative).any(axis=-1), (infinite & negative).any(axis=-1)
    words = np.where(up | (c == 0x7F800000), 0x7F800000, 0xFF800000)
    words = np.where((up | (c == 0x7F800000)) & (down | (c == 0xFF800000)), _INVALID_NAN, words)
    words = np.where(c_magnitude > 0x7F800000, c | 0x400000, words)
    words = np.where(invalid | (up & down), _INVALID_NAN, words)
    words = np.where(nan, _FACTOR_NAN, words).astype(U32)
    special = nan | infinite.any(axis=-1) | (c_magnitude >= 0x7F800000)
    return np.where(special, _special_half(words) if kind.half else words, result)


def _sum_rdna4(products, negative, exponents, places, addend, c_negative, c_exponent, least):
    """The sum in units of 2**grid, and the grid; a negative term loses a unit for what is cut off of it."""
    floor = -126 if least is None else least
    by_pairs = (*places.shape[:-1], places.shape[-1] // 2, 2)
    products, negative, exponents, places = (x.reshape(by_pairs) for x in (products, negative, exponents, places))
    place = places.max(axis=-1)
    grid = np.maximum(place.max(axis=-1), np.maximum(floor, _leading(addend, c_exponent)) - 26)

    def cut(magnitude, exponent, below, to, keeps: bool | np.ndarray = True) -> np.ndarray:
        kept, rest = _shifted(magnitude, exponent - to)
        return np.where(below, -kept - (rest & (keeps | (kept != 0))), kept)

    pair = cut(products, exponents, negative, place[..., None]).sum(axis=-1)
    total = cut(np.abs(pair), place, pair < 0, grid[..., None]).sum(axis=-1)
    return total + cut(addend, c_exponent, c_negative, grid, grid <= floor), grid


def _sum_rdna3(products, negative, exponents, places, addend, c_negative, c_exponent, least):
    """The sum in units of 2**grid, as seen from the addend's sign, and the grid."""
    leading = _leading(addend, c_exponent)
    leading = leading if least is None else np.maximum(leading, least)
    leading = np.maximum(leading, _leading(products, exponents).max(axis=-1))
    grid = np.maximum(places.max(axis=-1), leading - 26)
    total = _shifted(addend, c_exponent - grid)[0]
    kept = _shifted(products, exponents - grid[..., None])[0]
    total = total + np.where(negative != c_negative[..., None], -kept - 1, kept).sum(axis=-1)
    return np.where((addend == 0) & (products == 0).all(axis=-1), 0, total), grid

"""The sums of WMMA of 16-bit floats as RDNA 3 and RDNA 4 make them, many at once: chains of steps of two products (RDNA
3) or four (RDNA 4), each of which cuts its terms to a common grid, adds them as integers and rounds once to D's type.

dot_pairs.py has the rule of one step, and does the sums of what is rare here: NaN, infinities, denormals of bf16 and of
C, exponents far apart. All others have terms that float32 holds and totals that int32 holds, so that a step is some
twenty plain operations on arrays. With X the place of the largest exponent, a term t of the grid is t * 2**(26 - X):

RDNA 3 cuts towards zero; a term of the other sign than C's loses a unit. In terms of what each sign gives that is one
unit less for each negative product, and two more where C is negative.
RDNA 4 cuts downwards, which is a shift of signed integers: each product to the grid of its pair, the pair's sum to the
common one.
A bf16 result is a float32's upper half, cut off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..locks import cached_property
from .dot_pairs import Kind, dot_pairs

F32, I32 = np.float32, np.int32
_EXPONENT = I32(0x7F800000)
_BIAS = 127
_ABOVE = 26  #: places from a term's exponent, as `Factors.places` counts it, down to the grid
_INVERSE = np.array((2 * _BIAS + _ABOVE) << 23, np.uint32).astype(I32)  #: minus the bits of 2**X, those of 2**(26 - X)
_SCALE = F32(2.0**-_ABOVE)
_ZERO_PLACE = -169  #: of a zero: below all others in a sum of two places
_LEAST, _MOST = -76, 120  #: exponents of products that the plain operations are for
_C_LEAST, _C_MOST = 2.0**-100, 2.0**120
_AT_ONCE = 16384  #: elements of a block: what its operations work on should stay in the cache


@dataclass(frozen=True)
class Sums:
    """Which sums: the factors' type, D's, the generation, MODE.FP16_OVFL."""

    bf16: bool
    cd: str  #: f32, f16 or bf16
    rdna4: bool
    stops: bool = False

    @property
    def products(self) -> int:
        """Products of one step."""
        return 4 if self.rdna4 else 2


@dataclass(frozen=True)
class Factors:
    """Fragments of A or B: bits [K in the hardware's order, wave, row or column] as uint16."""

    bits: np.ndarray
    of: Sums

    @cached_property
    def places(self) -> np.ndarray:
        """The exponents that products are placed by, int32: denormals have that of the smallest normal number."""
        fraction, bias = (7, _BIAS) if self.of.bf16 else (10, 15)
        field = (self.bits & np.uint16(0x7FFF)) >> np.uint16(fraction)
        places = np.maximum(field, 1).astype(I32) - bias
        return np.where(self.bits & self._nonzero == 0, _ZERO_PLACE, places)

    @property
    def _nonzero(self) -> np.uint16:
        """Bits of which one is set in what counts: RDNA 3 takes denormals of bf16 for zeros."""
        return np.uint16(0x7F80 if self.of.bf16 and not self.of.rdna4 else 0x7FFF)

    @cached_property
    def span(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest place of each row, [wave, row]; none is odd where all are zeros."""
        nonzero = self.places != _ZERO_PLACE
        least = np.where(nonzero, self.places, _MOST).min(axis=0)
        return least, np.where(nonzero, self.places, _ZERO_PLACE).max(axis=0)

    @cached_property
    def special(self) -> np.ndarray:
        """Rows with an infinity or a NaN, [wave, row]."""
        infinity = np.uint16(0x7F80 if self.of.bf16 else 0x7C00)
        return ((self.bits & infinity) == infinity).any(axis=0)

    @cached_property
    def values(self) -> np.ndarray:
        """As float32; rows with an infinity or a NaN count as zeros."""
        bits = np.where(self.special, np.uint16(0), self.bits)
        if not self.of.bf16:
            return bits.view(np.float16).astype(F32)
        if not self.of.rdna4:
            bits = np.where(bits & np.uint16(0x7F80), bits, bits & np.uint16(0x8000))
        return (bits.astype(np.uint32) << np.uint32(16)).view(F32)

    @cached_property
    def significands(self) -> np.ndarray:
        """Signed integers, int32, in units of 2**(place - fraction bits); those of special rows are harmless."""
        fraction = 7 if self.of.bf16 else 10
        low = (self.bits & np.uint16((1 << fraction) - 1)).astype(I32)
        normal = self.bits & np.uint16(0x7FFF) >= np.uint16(1 << fraction)
        size = np.where(normal, low | (1 << fraction), low)
        return np.where(self.bits >> np.uint16(15), -size, size)


def add_products(a: Factors, b: Factors, c: np.ndarray) -> np.ndarray:
    """The sums D [wave, row, column] as float32 (of 16-bit floats: their values), of C, float32 likewise.

    NaNs of `c` have to come with their bits. Does not change `c`.
    """
    of = a.of
    waves, rows, columns = c.shape
    out = np.empty(c.shape, F32)
    count = max(1, _AT_ONCE // (rows * columns))
    room = _Room((min(count, waves), rows, columns), of)
    chain = _chain_rdna4 if of.rdna4 else _chain_rdna3
    with np.errstate(all="ignore"):
        for first in range(0, waves, count):
            part = slice(first, min(first + count, waves))
            odd = _odd(a, b, c[part], part)
            total = out[part]
            total[...] = c[part]
            if odd is not None:
                total[odd] = 0
            overflown = chain(a, b, total, part, room.of(len(total)), of)
            if overflown is not None:
                odd = overflown if odd is None else odd | overflown
            if odd is not None:
                w, i, j = np.nonzero(odd)
                total[odd] = _one_by_one(a.bits[:, w + first, i], b.bits[:, w + first, j], c[part][odd], of)
    return out


def _odd(a: Factors, b: Factors, c: np.ndarray, part: slice) -> np.ndarray | None:
    """The elements that the plain operations are not for; None: there are none."""
    size = np.abs(c)
    odd = ~(((size >= _C_LEAST) & (size < _C_MOST)) | (size == 0))
    special_a, special_b = a.special[part], b.special[part]
    (least_a, most_a), (least_b, most_b) = ([x[part] for x in side.span] for side in (a, b))
    wide = least_a.min() + least_b.min() < _LEAST or most_a.max() + most_b.max() > _MOST
    if not (wide or special_a.any() or special_b.any()):
        return odd if odd.any() else None
    odd |= special_a[:, :, None] | special_b[:, None, :]
    odd |= least_a[:, :, None] + least_b[:, None, :] < _LEAST
    odd |= most_a[:, :, None] + most_b[:, None, :] > _MOST
    return odd if odd.any() else None


def _one_by_one(a: np.ndarray, b: np.ndarray, c: np.ndarray, of: Sums) -> np.ndarray:
    """The sums of [K, element] bits and float32 [element], by the rule itself."""
    kind = Kind(of.bf16, of.cd == "f16", of.rdna4)
    words = c.view(np.uint32)
    for k in range(0, len(a), of.products):
        step = slice(k, k + of.products)
        words = dot_pairs(a[step].T, b[step].T, words, kind, of.stops)
        if of.cd == "f16":
            words = widened_half(words)
        elif of.cd == "bf16":
            nan = words == np.uint32(0xFFC00A3D)  # of a factor: its payload is another in bf16
            words = np.where(nan, np.uint32(0xFFFD0000), words & np.uint32(0xFFFF0000))
    return words.view(F32)


def widened_half(halves: np.ndarray) -> np.ndarray:
    """Bits of fp16 as those of float32; a NaN keeps its payload."""
    nan = (halves & np.uint16(0x7FFF)) > np.uint16(0x7C00)
    wide = halves.view(np.float16).astype(F32).view(np.uint32)
    bits = halves.astype(np.uint32)
    kept = (
        (bits & np.uint32(0x8000)) << np.uint32(16) | np.uint32(0x7F800000) | (bits & np.uint32(0x3FF)) << np.uint32(13)
    )
    return np.where(nan, kept, wide)


class _Room:
    """Arrays for what lies between, made once for all blocks."""

    def __init__(self, shape: tuple[int, int, int], of: Sums):
        self.products = np.empty((of.products, *shape), F32)
        self.integers = np.empty((of.products, *shape), I32)
        self.power = np.empty(shape, F32)  #: 2**X
        self.inverse = np.empty(shape, F32)  #: 2**(26 - X)
        self.total, self.other = np.empty(shape, I32), np.empty(shape, I32)
        self.pairs = np.empty((2, *shape), I32)

    def of(self, waves: int) -> _Room:
        """The same for fewer waves."""
        if waves == len(self.total):
            return self
        part = object.__new__(_Room)
        part.__dict__ = {
            name: x[:, :waves] if name in ("products", "integers", "pairs") else x[:waves]
            for name, x in self.__dict__.items()
        }
        return part


def _sides(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[K, wave, row] and [K, wave, column] so that products are [K, wave, row, column]."""
    return a[:, :, :, None], b[:, :, None, :]


def _chain_rdna3(a: Factors, b: Factors, c: np.ndarray, part: slice, room: _Room, of: Sums) -> np.ndarray | None:
    """All steps on `c`, in place; returns the elements that overflowed."""
    values = _sides(a.values[:, part], b.values[:, part])
    places = _sides(a.places[:, part] + (_BIAS + 2) << 23, b.places[:, part] << 23)
    bits, power, inverse = c.view(I32), room.power.view(I32), room.inverse.view(I32)
    products, signs = room.products, room.products.view(I32)
    total, integers = room.total, room.integers
    overflown = None
    for k in range(0, len(values[0]), 2):
        pair = slice(k, k + 2)
        np.add(places[0][pair], places[1][pair], out=integers)
        np.bitwise_and(bits, _EXPONENT, out=power)
        _raise(power, of)
        np.maximum(integers[0], power, out=power)
        np.maximum(integers[1], power, out=power)
        np.subtract(_INVERSE, power, out=inverse)
        np.right_shift(bits, 31, out=room.other)
        np.multiply(c, room.inverse, out=c)
        np.copyto(total, c, casting="unsafe")  # towards zero
        np.subtract(total, room.other, out=total)
        np.subtract(total, room.other, out=total)
        np.multiply(values[0][pair], values[1][pair], out=products)
        np.right_shift(signs, 31, out=integers)  # of zeros too
        np.multiply(products, room.inverse, out=products)
        np.add(total, integers[0], out=total)
        np.add(total, integers[1], out=total)
        np.copyto(integers, products, casting="unsafe")
        np.add(total, integers[0], out=total)
        np.add(total, integers[1], out=total)
        overflown = _round(total, room.power, c, of, overflown)
    return overflown


def _chain_rdna4(a: Factors, b: Factors, c: np.ndarray, part: slice, room: _Room, of: Sums) -> np.ndarray | None:
    """All steps on `c`, in place; returns the elements that overflowed."""
    shift = 24 - 2 * (7 if of.bf16 else 10)  # from a product's unit to the grid of its pair
    factors = _sides(a.significands[:, part] << shift, b.significands[:, part])
    places = _sides(a.places[:, part] + (_BIAS + 2), b.places[:, part])
    bits, power, inverse = c.view(I32), room.power.view(I32), room.inverse.view(I32)
    integers, cut, total, other = room.integers, room.products.view(I32), room.total, room.other
    pairs = room.pairs
    overflown = None
    for k in range(0, len(factors[0]), 4):
        step = slice(k, k + 4)
        np.add(places[0][step], places[1][step], out=cut)
        np.maximum(cut[0::2], cut[1::2], out=pairs)
        np.subtract(pairs[0], cut[0], out=cut[0])
        np.subtract(pairs[0], cut[1], out=cut[1])
        np.subtract(pairs[1], cut[2], out=cut[2])
        np.subtract(pairs[1], cut[3], out=cut[3])
        np.multiply(factors[0][step], factors[1][step], out=integers)
        np.right_shift(integers, cut, out=integers)
        np.add(integers[0::2], integers[1::2], out=integers[:2])
        np.bitwise_and(bits, _EXPONENT, out=power)
        _raise(power, of)
        np.right_shift(power, 23, out=power)
        np.maximum(pairs[0], power, out=power)
        np.maximum(pairs[1], power, out=power)
        np.subtract(power, pairs, out=pairs)
        np.right_shift(integers[:2], pairs, out=integers[:2])
        np.left_shift(power, 23, out=power)
        np.subtract(_INVERSE, power, out=inverse)
        np.multiply(c, room.inverse, out=c)
        np.floor(c, out=room.inverse)
        np.copyto(total, room.inverse, casting="unsafe")
        _forget_small(total, c, room.power, of)
        np.add(integers[0], integers[1], out=other)
        np.add(total, other, out=total)
        overflown = _round(total, room.power, c, of, overflown)
    return overflown


def _raise(power: np.ndarray, of: Sums) -> None:
    """fp16's C counts for 2**-14 at least where the grid is found."""
    if of.cd == "f16":
        np.maximum(power, I32((_BIAS - 14) << 23), out=power)


def _forget_small(total: np.ndarray, c: np.ndarray, power: np.ndarray, of: Sums) -> None:
    """Of a negative C below the grid nothing is left, but for an fp16 one on a grid of 2**-14 or finer."""
    small = total == -1
    if small.any():
        small &= c > -1
        if of.cd == "f16":
            small &= power > 2.0 ** (_ABOVE - 14)
        total[small] = 0


def _round(total: np.ndarray, power: np.ndarray, c: np.ndarray, of: Sums, overflown: np.ndarray | None):
    """c = total * 2**(X - 26) in D's type; zero is positive. Returns `overflown` and what has become so."""
    if of.cd == "f16":
        halves = (total * power.astype(np.float64) * 2.0**-_ABOVE).astype(np.float16)
        np.copyto(c, halves)
        infinite = np.isinf(c)
        if infinite.any():
            c[infinite] = 0
            overflown = infinite if overflown is None else overflown | infinite
    else:
        np.copyto(c, total, casting="unsafe")  # to nearest even
        np.multiply(c, _SCALE, out=c)
        np.multiply(c, power, out=c)
        if of.cd == "bf16":
            np.bitwise_and(c.view(I32), I32(-0x10000), out=c.view(I32))
    np.add(c, F32(0), out=c)
    return overflown

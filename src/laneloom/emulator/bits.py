"""Bit arithmetic on numpy integers for vector and scalar instructions: counting, fields, bytes, wide products."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

U8, U16, I32, U32, I64, U64 = np.uint8, np.uint16, np.int32, np.uint32, np.int64, np.uint64


def count_ones(x: np.ndarray) -> np.ndarray:
    """Set bits of uint32 or uint64, in the same type."""
    t = x.dtype.type
    bits = x.dtype.itemsize * 8

    def repeated(byte: int):
        return t(int.from_bytes(bytes([byte]) * (bits // 8)))

    x = x - ((x >> t(1)) & repeated(0x55))
    x = (x & repeated(0x33)) + ((x >> t(2)) & repeated(0x33))
    x = (x + (x >> t(4))) & repeated(0x0F)
    return (x * repeated(0x01)) >> t(bits - 8)


def leading_zeros(x: np.ndarray) -> np.ndarray:
    """Zeros above the highest set bit as int32; -1 for zero."""
    if x.dtype == U64:
        high, low = (x >> U64(32)).astype(U32), x.astype(U32)
        of_low = leading_zeros(low)
        return np.where(high != 0, leading_zeros(high), np.where(of_low < 0, of_low, of_low + I32(32)))
    length = np.frexp(x.astype(np.float64))[1]
    return np.where(x == 0, I32(-1), I32(32) - length).astype(I32)


def trailing_zeros(x: np.ndarray) -> np.ndarray:
    """Zeros below the lowest set bit as int32; -1 for zero."""
    lowest = x & (~x + x.dtype.type(1))
    place = leading_zeros(lowest)
    return np.where(place < 0, place, I32(x.dtype.itemsize * 8 - 1) - place)


def leading_signs(x: np.ndarray) -> np.ndarray:
    """Bits from the top until the first that differs from the sign, as int32; -1 where none does. x is signed."""
    differs = x ^ (x >> x.dtype.type(x.dtype.itemsize * 8 - 1))
    return leading_zeros(differs.view(f"u{x.dtype.itemsize}"))


_REVERSED_BYTE = np.array([int(f"{b:08b}"[::-1], 2) for b in range(256)], U8)


def reverse_bits(x: np.ndarray) -> np.ndarray:
    """Bit 0 to the top and so on, for uint32 or uint64."""
    x = np.ascontiguousarray(x)
    size = x.dtype.itemsize
    octets = _REVERSED_BYTE[x.reshape(-1).view(U8).reshape(-1, size)[:, ::-1]]
    return np.ascontiguousarray(octets).view(x.dtype).reshape(x.shape)


def extract_unsigned(x: np.ndarray, offset: np.ndarray, width: np.ndarray) -> np.ndarray:
    """`width` bits of x from bit `offset`; offset and width already reduced to the range of the instruction."""
    t = x.dtype.type
    return (x >> offset.astype(x.dtype)) & ((t(1) << width.astype(x.dtype)) - t(1))


def extract_signed(x: np.ndarray, offset: np.ndarray, width: np.ndarray) -> np.ndarray:
    """`width` bits of signed x from bit `offset`, extended from their top bit; width 0 gives 0."""
    bits = x.dtype.itemsize * 8
    up = x.dtype.type(bits) - np.minimum(width, bits).astype(x.dtype)
    # numpy shifts by the full width give 0, which is what a field of no bits is.
    return ((x >> offset.astype(x.dtype)) << up) >> up


def high_half(product: np.ndarray) -> np.ndarray:
    """The upper 32 bits of uint64 or int64, as uint32 or int32."""
    half = U32 if product.dtype == U64 else I32
    if product.ndim and product.flags.c_contiguous:
        return product.view(half)[..., 1::2]
    return (product >> product.dtype.type(32)).astype(half)


def multiply_high_u32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(a * b) >> 32 of uint32."""
    return high_half(np.multiply(a, b, dtype=U64))


def multiply_high_i32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(a * b) >> 32 of int32."""
    return high_half(np.multiply(a, b, dtype=I64))


def saturating(operation: np.ufunc, dtype: type) -> Callable:
    """`operation` on integers computed in 64 bits and limited to the range of `dtype`."""
    info = np.iinfo(dtype)

    def function(*sources: np.ndarray) -> np.ndarray:
        wide = operation(*(np.asarray(s).astype(I64) for s in sources))
        return np.clip(wide, info.min, info.max).astype(dtype)

    return function


def saturate(x: np.ndarray, dtype: type) -> np.ndarray:
    """Integers limited to the range of `dtype`."""
    info = np.iinfo(dtype)
    return np.clip(x, info.min, info.max).astype(dtype)


def pack(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two 16-bit values (any dtype of 2 bytes) as one uint32."""
    low, high = np.asarray(low).view(U16), np.asarray(high).view(U16)
    return low.astype(U32) | (high.astype(U32) << U32(16))


# -- bytes -------------------------------------------------------------------------------------------------------------


def permute_bytes(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """v_perm_b32: each byte of the selector picks a byte of {a, b} (b is bytes 0 to 3), a sign, 0x00 or 0xff."""
    # Nearly always one selector serves all lanes, or one of two.
    first = selector.flat[0]
    same = selector == first
    if same.all():
        return _constant_permutation(int(first))(a, b)
    second = selector.flat[int(np.argmin(same))]
    if (same | (selector == second)).all():
        return np.where(same, _constant_permutation(int(first))(a, b), _constant_permutation(int(second))(a, b))
    both = (a.astype(U64) << U64(32)) | b
    out = U32(0)
    for k in range(0, 32, 8):
        choice = ((selector >> U32(k)) & U32(0xFF)).astype(U64)
        byte = (both >> ((choice & U64(7)) << U64(3))) & U64(0xFF)
        if (choice > 7).any():
            sign = (both >> (((choice & U64(3)) << U64(4)) | U64(15))) & U64(1)
            constant = np.where(choice == 12, U64(0), np.where(choice > 12, U64(0xFF), sign * U64(0xFF)))
            byte = np.where(choice > 7, constant, byte)
        out = out | (byte.astype(U32) << U32(k))
    return np.asarray(out)


@lru_cache(maxsize=256)
def _constant_permutation(selector: int) -> Callable:
    choice = [selector >> 8 * k & 0xFF for k in range(4)]
    low_half, high_half = _aligned_half(choice[0], choice[1]), _aligned_half(choice[2], choice[3])
    if low_half is not None and high_half is not None:
        (low_word, low_shift), (high_word, high_shift) = low_half, high_half

        def of_halves(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            sources = (b, a)
            low = sources[low_word] >> U32(16) if low_shift else sources[low_word] & U32(0xFFFF)
            high = sources[high_word] & U32(0xFFFF0000) if high_shift else sources[high_word] << U32(16)
            return low | high

        return of_halves

    def of_bytes(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        both = (a.astype(U64) << U64(32)) | b
        out = U32(0)
        for k, c in enumerate(choice):
            if c < 8:
                byte = (both >> U64(8 * c)) & U64(0xFF)
            elif c < 12:
                byte = (both >> U64(16 * (c - 8) + 15) & U64(1)) * U64(0xFF)
            else:
                byte = U64(0 if c == 12 else 0xFF)
            out = out | (byte.astype(U32) << U32(8 * k))
        return np.asarray(out)

    return of_bytes


def _aligned_half(first: int, second: int) -> tuple[int, int] | None:
    """(word, half) where two neighbouring selector bytes take one whole 16-bit half."""
    if first < 8 and first % 2 == 0 and second == first + 1:
        return first // 4, first // 2 % 2
    return None


def byte_of(x: np.ndarray, k: int) -> np.ndarray:
    """Byte k of uint32, as uint32."""
    return (x >> U32(8 * k)) & U32(0xFF)


def absolute_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a - b| of unsigned integers."""
    return np.maximum(a, b) - np.minimum(a, b)

"""Whether a kernel's output is right: error budgets that are derived, poisoned outputs, guard bands. numpy only.

Truth is FP64. An element may differ from it by

    2 x (worst error of the same sums in the same precision by numpy) x (sum of its terms' magnitudes) + one rounding

where the middle factor scales the error of a sum by what was summed, so that elements that cancel are not judged by
large ones; and what the GPU is known to lose besides, of denormals and by WMMA's cuts. NaN is right only where the
truth is NaN, an infinity only where the truth is that infinity or rounds to it. Integers are exact, modulo the size of
their dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import UnsupportedError

#: Half a unit in the last place of 1.0, smallest subnormal, and largest finite value of the float formats.
UNIT_ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"fp64": 2.0**-1074, "fp32": 2.0**-149, "fp16": 2.0**-24, "bf16": 2.0**-133}
SMALLEST_NORMAL = {"fp64": 2.0**-1022, "fp32": 2.0**-126, "fp16": 2.0**-14, "bf16": 2.0**-126}
LARGEST = {
    "fp64": float(np.finfo(np.float64).max),
    "fp32": float(np.finfo(np.float32).max),
    "fp16": 65504.0,
    "bf16": 2.0**127 * (2 - 2.0**-7),
}
#: How an array holds each format; numpy has no bfloat16 and no 8-bit floats, their bits are carried as integers.
STORAGE = {
    "fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "fp8": np.uint8, "bf8": np.uint8,
    "int32": np.int32, "int8": np.int8, "uint8": np.uint8,
}  # fmt: skip
_INTEGERS = ("int32", "int8", "uint8")


def _float8_values(dtype: str) -> np.ndarray:
    """The value of each code: E4M3 (one NaN, no infinity) for "fp8", E5M2 for "bf8"."""
    codes = np.arange(256)
    if dtype == "bf8":
        return (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent, np.ldexp(8.0 + mantissa, exponent - 10), np.ldexp(1.0 * mantissa, -9))
    values[codes & 0x7F == 0x7F] = np.nan
    return np.where(codes & 0x80, -values, values)


def _encode_float8(values: np.ndarray, dtype: str) -> np.ndarray:
    """To nearest, ties to even; beyond the largest to NaN ("fp8") or infinity ("bf8"), as torch does."""
    known = _float8_values(dtype)[:128]
    top = int(np.sum(np.isfinite(known)))
    known = np.append(known[:top], 2 * known[top - 1] - known[top - 2])  # where rounding up would lead
    size = np.abs(values)
    above = np.clip(np.searchsorted(known, size), 1, top)
    middle = (known[above - 1] + known[above]) / 2
    codes = np.where((size > middle) | ((size == middle) & (above % 2 == 0)), above, above - 1)
    codes = np.where(size > known[top], top, codes)
    codes = np.where(np.isnan(values), 0x7F, codes).astype(np.uint8)
    return codes | (np.signbit(values).astype(np.uint8) << 7)


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` rounded to the nearest of `dtype` (ties to even), in its storage.

    Raises UnsupportedError for a format that is not in STORAGE.
    """
    if dtype not in STORAGE:
        raise UnsupportedError(f"dtype: expected one of {', '.join(STORAGE)}, got {dtype}")
    if dtype in ("fp8", "bf8"):
        return _encode_float8(np.asarray(values, np.float64), dtype)
    if dtype != "bf16":
        with np.errstate(over="ignore"):
            return np.asarray(values, STORAGE[dtype])
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The values in FP64 of an array in `dtype`'s storage."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype in ("fp8", "bf8"):
        return _float8_values(dtype)[stored]
    return stored.astype(np.float64)


@dataclass(frozen=True)
class Verdict:
    """The comparison of one output with the truth, at its worst element: where error / budget is largest."""

    ok: bool
    error: float  #: |output - truth| there; infinite where one is NaN and the other is not
    budget: float  #: what is allowed there
    index: tuple[int, ...]  #: where; empty for an output with no elements

    @property
    def share(self) -> float:
        """Error over budget; right is at most 1."""
        return self.error / self.budget if self.budget else (0.0 if self.error == 0 else float("inf"))


def judge_integers(got: np.ndarray, truth: np.ndarray) -> Verdict:
    """Compare integers with the truth, of which the low bits that `got` has count; every one has to be equal."""
    if got.size == 0:
        return Verdict(True, 0.0, 0.0, ())
    error = np.abs(got.astype(np.float64) - truth.astype(got.dtype).astype(np.float64))
    index = np.unravel_index(int(np.argmax(error)), error.shape)
    return Verdict(not error.any(), float(error[index]), 0.0, tuple(int(i) for i in index))


def judge(
    got: np.ndarray,
    truth: np.ndarray,
    same_precision: np.ndarray,
    magnitude: np.ndarray,
    dtype: str,
    accumulator: str = "fp32",
    lost: np.ndarray | float = 0.0,
) -> Verdict:
    """Compare `got` with `truth` under the budget of this module.

    got: FP64 values of the output, which was stored in `dtype`. truth: the product in FP64. same_precision: the same
    sums in the kernel's accumulation precision, not rounded to `dtype`. magnitude: the sums of the terms' absolute
    values. All of one shape. accumulator: what the sums are made in, of which half a unit in the last place is allowed
    whatever numpy's error was. lost: what each element may be off besides, as `lost_to_zeros` says. An element whose
    truth overflows `dtype` may be an infinity of its sign.
    """
    if got.size == 0:
        return Verdict(True, 0.0, 0.0, ())
    finite = np.isfinite(truth) & np.isfinite(same_precision)
    summed = np.where(finite & (magnitude > 0), magnitude, 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        relative = np.abs(same_precision - truth) / summed
        worst = max(float(np.max(relative, initial=0.0, where=finite)), UNIT_ROUNDOFF[accumulator])
        sums = 2 * worst * np.where(finite, magnitude, 0.0) + lost
        # The rounding is of the computed sum, which may lie beyond the truth by its own error.
        budget = sums + np.maximum(UNIT_ROUNDOFF[dtype] * (np.abs(truth) + sums), SMALLEST[dtype] / 2)
        budget = np.where(finite, budget, 0.0)
        error = np.abs(got - truth)
        reaches = finite & (np.abs(truth) + budget > LARGEST[dtype] * (1 + UNIT_ROUNDOFF[dtype] / 2))
        same = (np.isnan(got) & np.isnan(truth)) | (got == truth)
    same |= reaches & np.isinf(got) & (np.sign(got) == np.sign(truth))
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    share = np.divide(error, budget, out=np.where(error > 0, np.inf, 0.0), where=budget > 0)
    index = np.unravel_index(int(np.argmax(share)), share.shape)
    at = tuple(int(i) for i in index)
    return Verdict(bool(share[index] <= 1.0), float(error[index]), float(budget[index]), at)


def lost_to_zeros(a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    """The most that each element of A B loses where the GPU takes denormals of A and B, of `dtype`, for zeros, and
    those of its FP32 products and sums, of which there are as many as products.
    """
    whole = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    kept = [np.where(x < SMALLEST_NORMAL[dtype], 0.0, x) for x in whole]
    with np.errstate(invalid="ignore", over="ignore"):
        lost = np.matmul(*whole) - np.matmul(*kept) + 2 * a.shape[-1] * SMALLEST_NORMAL["fp32"]
    return np.where(np.isfinite(lost), lost, 0.0)


def lost_to_cuts(a: np.ndarray, b: np.ndarray, dtype: str, products: int, accumulator: str = "fp32") -> np.ndarray:
    """The most that each element of A B loses where the GPU adds `products` at a time to the sum, in the order of k,
    and cuts the terms off (docs/emulator.md): beside the rounding of each sum, which numpy's sums have too.

    a, b: values of `dtype`, [..., M, K] and [..., K, N]. products: 2 on RDNA 3, 4 on RDNA 4, 8 on CDNA 3.
    """
    lost = _lost_of_eight(a, b) if products == 8 else _lost_by_wmma(a, b, dtype, products, accumulator)
    return np.where(np.isfinite(lost), lost, 0.0)


def _lost_of_eight(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Seven of the eight and the sum may each lose 2**-24 of the largest product; the largest of all steps add up to
    the sum of all sizes at most. Of what it has become each step's sum loses 2**-32, and 2**-31 before it is rounded.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        magnitude = np.matmul(*(np.abs(x.astype(np.float64)) for x in (a, b)))
    return (8 * 2.0**-24 + -(-a.shape[-1] // 8) * (2.0**-32 + 2.0**-31)) * magnitude


def _lost_by_wmma(a: np.ndarray, b: np.ndarray, dtype: str, products: int, accumulator: str) -> np.ndarray:
    """The grid of a step lies 24 places below the largest product's exponent, or 26 below the sum's. Where the sum
    leads, RDNA 3 loses a unit of each product, RDNA 4 of each of two pairs, of whose smaller product a unit of the
    pair's own grid is lost before. Where a product leads, the sum loses a unit too. Sums in bf16 lose what lies below
    their last place."""
    least = SMALLEST_NORMAL[dtype]  # denormals count as exponents of normal numbers
    wide, other = a.astype(np.float64), b.astype(np.float64)
    sizes = [np.where(x != 0, np.maximum(np.abs(x), least), 0.0) for x in (wide, other)]
    with np.errstate(invalid="ignore", over="ignore"):
        magnitude = np.matmul(*sizes)
        total = np.zeros_like(magnitude)
        sums = magnitude.copy()  # of |C| over blocks of 16 products; within one it grows by their magnitude at most
        for k in range(0, a.shape[-1], 16):
            sums += np.abs(total)
            total += np.matmul(wide[..., k : k + 16], other[..., k : k + 16, :])
        units = (3 if products == 2 else 5) * 2.0**-24 * magnitude
        share = 2 * 2.0**-26 + (2.0**-7 if accumulator == "bf16" else 0.0)
        return units + share * (16 / products) * sums


class Guarded:
    """An output filled with NaN between two bands that nobody may write.

    `array` is the output, of `shape`, in row-major order or with `strides` in elements; what it does not cover
    between its first and last element is guarded as well.
    """

    BAND = 256  # elements on either side

    def __init__(self, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None):
        storage = np.dtype(STORAGE[dtype])
        if strides is None:
            strides = tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))
        inside = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        # A NaN whose bits no kernel makes, so that a write shows even if it wrote NaN; of integers an unlikely one.
        missing = np.array([0x5A]) if dtype in _INTEGERS else encode(np.array([np.nan]), dtype)
        poison = np.ascontiguousarray(missing, storage).view(f"u{storage.itemsize}")[0] | 0x35
        whole = np.full(inside + 2 * self.BAND + 256, poison, f"u{storage.itemsize}")
        skip = -whole.ctypes.data % 256 // storage.itemsize  # aligned to 256 bytes, as a GPU's allocator gives memory
        self._bits = whole[skip : skip + inside + 2 * self.BAND]
        self._poison = poison
        start = self._bits[self.BAND :].view(storage)
        self.array = np.lib.stride_tricks.as_strided(start, shape, [s * storage.itemsize for s in strides])

    def untouched_outside(self) -> bool:
        """Whether every element that is not of `array` still has its poison."""
        rest = self._bits.copy()
        view = np.lib.stride_tricks.as_strided(rest[self.BAND :], self.array.shape, self.array.strides)
        view[...] = self._poison
        return bool((rest == self._poison).all())

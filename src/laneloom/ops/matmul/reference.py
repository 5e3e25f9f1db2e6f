"""The matrix product by numpy: the truth, and what the kernels' precision can reach."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np

from ... import verify
from ...gpu import Gpu
from .problem import SCALE_BLOCK

_LONG = 256  #: products of a sum, more than a block of BLAS has, which adds the sums of blocks
_MOST = 2**28  #: products in all that are summed one after another for that
_FEW = 2**20  #: products in all that always are
_SAMPLES = 1024  #: sums that tell how much one may lose
_ORDERS, _MOST_ADDED = 16, 20_000  #: of few sums in other orders: most orders, and products of a sum in all of them
_SHORT = 64  #: products of a sum that are added one after another to learn what FP32 loses


def truth(a: np.ndarray, b: np.ndarray, accumulator: str = "fp32") -> np.ndarray:
    """A B in FP64, for FP64 sums in numpy's longest float; exact products of half-precision inputs, sums with an error
    of 2**-53 of their magnitude.
    """
    kind = np.longdouble if accumulator == "fp64" else np.float64
    return np.matmul(a.astype(kind), b.astype(kind))


def same_precision(a: np.ndarray, b: np.ndarray, accumulator: str = "fp32") -> np.ndarray:
    """A B with products and sums in `accumulator`, not rounded further; in FP64.

    For 16-bit and FP64 sums each product is added to the sum of those before it, and the sum rounded, which is how much
    a chain of matrix instructions or multiply-adds may lose; numpy adds in several chains, as many as the machine's
    vectors have lanes, which lose less. With few products that matters for FP32 operands as well, and of a single row
    or column BLAS makes dot products, whose chains are shorter still, as those of a few rows and columns may be.
    """
    if b.ndim == 1:
        return same_precision(a, b[:, None], accumulator)[..., 0]
    if a.ndim == 1:
        return same_precision(a[None], b, accumulator)[..., 0, :]
    with np.errstate(over="ignore", invalid="ignore"):
        single = a.astype(np.float32), b.astype(np.float32)
        short = a.shape[-1] <= _SHORT and not all(_has_exact_products(x) for x in single)
        chain = short or a.size * b.shape[-1] < (_MOST if a.shape[-1] > _LONG else _FEW)
        if accumulator == "fp32" and not chain and 1 not in (a.shape[-2], b.shape[-1]):
            return np.matmul(*single).astype(np.float64)
        a, b = (a.astype(np.float64), b.astype(np.float64)) if accumulator != "fp32" else single
        total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
        for k in range(a.shape[-1]):
            total = total + a[..., :, k, None].astype(np.float64) * b[..., None, k, :]
            total = verify.decode(verify.encode(total, accumulator), accumulator)
        return total


def _worst_of_orders(a: np.ndarray, b: np.ndarray, accumulator: str, true: np.ndarray) -> np.ndarray:
    """`same_precision`; of few sums in several orders of K, of each the one that is furthest off: one row's errors in
    one order tell little of what a sum may lose.
    """
    same = same_precision(a, b, accumulator)
    depth = a.shape[-1]
    if 1 in (a.ndim, b.ndim) or not 0 < same.size < _SAMPLES:
        return same
    g = np.random.default_rng(0)
    for _ in range(min(-(-_SAMPLES // same.size), _ORDERS, _MOST_ADDED // max(depth, 1))):
        order = g.permutation(depth)
        other = same_precision(a[..., order], b[..., order, :], accumulator)
        same = np.where(np.abs(other - true) > np.abs(same - true), other, same)
    return same


def _has_exact_products(x: np.ndarray) -> bool:
    """Whether the values have at most 12 significant bits, so that FP32 holds their products: halves, bytes."""
    return not (x.view(np.uint32) & 0xFFF).any()


def judge(
    got: np.ndarray, a: np.ndarray, b: np.ndarray, dtype_out: str, accumulator: str = "fp32",
    zeros: str | None = None, cuts: tuple[str, int] | None = None,
) -> verify.Verdict:  # fmt: skip
    """Compare a product with the truth under `verify`'s budget.

    got, a, b hold the values in any float dtype, or in any integer one for sums in int32; `got` was stored as
    `dtype_out`. FP64 sums are held to the sums of numpy's longest floats. zeros: the dtype of A and B, where the GPU
    takes its denormals for zeros. cuts: their dtype and `Gpu.products_of_step`, where the GPU cuts products off.
    """
    if dtype_out == "int32":
        return verify.judge_integers(got, np.matmul(a.astype(np.int64), b.astype(np.int64)))
    if accumulator == "int32":
        accumulator = "fp32"  # what they are rounded to
    with np.errstate(over="ignore", invalid="ignore"):
        magnitude = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
        true = truth(a, b, accumulator)
        same = _worst_of_orders(a, b, accumulator, true)
        lost = verify.lost_to_zeros(a, b, zeros) if zeros else 0.0
        if cuts:
            lost = lost + verify.lost_to_cuts(a, b, *cuts, accumulator)
        return verify.judge(got.astype(true.dtype), true, same, magnitude, dtype_out, accumulator, lost)


def cuts_of(gpu: Gpu, dtype: str) -> tuple[str, int] | None:
    """What `judge` takes for products of `dtype` by the matrix instructions of a GPU."""
    step = gpu.products_of_step
    if step == 2 and dtype in ("fp8", "bf8"):
        return "fp16", step  # RDNA 3 multiplies them as halves
    # CDNA 3 cuts products of 8-bit floats as it does those of 16 bits.
    if step is None or dtype not in (("fp16", "bf16", "fp8", "bf8") if step == 8 else ("fp16", "bf16")):
        return None
    return dtype, step


def activate(z: np.ndarray, activation: str | None) -> np.ndarray:
    """The activation of z in z's precision; erf and exp are rounded to it."""
    if activation == "relu":
        return np.where(z < 0, z.dtype.type(0), z)
    if activation == "gelu":
        part = np.asarray([erf(x) for x in np.ravel(z / np.sqrt(z.dtype.type(2)))], z.dtype).reshape(z.shape)
        return z.dtype.type(0.5) * z * (1 + part)
    if activation == "silu":
        return z / (1 + np.exp(-z))
    return z


def judge_gemm(
    got: np.ndarray, a: np.ndarray, b: np.ndarray, dtype_out: str, *, accumulator: str = "fp32", **terms: Any
) -> verify.Verdict:
    """Compare activation(alpha scale_a (A B) scale_b + beta C + bias) with the truth under `verify`'s budget.

    terms: those of `_judge_sums`.
    """
    exact = np.int64 if accumulator == "int32" else None
    kinds = (np.longdouble, np.float64) if accumulator == "fp64" else (np.float64, np.float32)
    with np.errstate(all="ignore"):
        wide = np.matmul(a.astype(exact or kinds[0]), b.astype(exact or kinds[0])).astype(kinds[0])
        narrow = (wide if exact else _worst_of_orders(a, b, accumulator, wide)).astype(kinds[1])
        magnitude = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    floor = "fp64" if accumulator == "fp64" else "fp32"
    return _judge_sums(got, (wide, narrow, magnitude), dtype_out, floor, **terms)


def judge_blocks(
    got: np.ndarray, a: np.ndarray, b: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray, dtype_out: str,
    **terms: Any,
) -> verify.Verdict:  # fmt: skip
    """The same where blocks along K have scales: FP32 sums of each block, scaled and added in FP32.

    scale_a: [..., M, X] or [..., ceil(M / 128), X] with X = ceil(K / 128); scale_b: [..., X, N] or [..., X, ceil(N /
    128)]. terms: those of `_judge_sums` but the scales.
    """
    rows = _each(scale_a, -2, a.shape[-2])
    columns = _each(scale_b, -1, b.shape[-1])

    def sums(product: Callable[..., np.ndarray], kind: type, take: Callable[..., np.ndarray]) -> np.ndarray:
        total = np.zeros((), kind)
        for block, first in enumerate(range(0, a.shape[-1], SCALE_BLOCK)):
            part = slice(first, first + SCALE_BLOCK)
            scale = take(rows[..., block, None].astype(kind)) * take(columns[..., block, None, :].astype(kind))
            total = total + product(take(a[..., part]), take(b[..., part, :])).astype(kind) * scale
        return total

    with np.errstate(all="ignore"):
        wide, magnitude = (sums(truth, np.float64, take) for take in (np.positive, np.abs))
        narrow = sums(same_precision, np.float32, np.positive)
    return _judge_sums(got, (wide, narrow, magnitude), dtype_out, "fp32", **terms)


def _each(scale: np.ndarray, axis: int, size: int) -> np.ndarray:
    """A scale for each of `size` rows or columns, of which SCALE_BLOCK may share one."""
    return scale if scale.shape[axis] == size else np.repeat(scale, SCALE_BLOCK, axis).take(range(size), axis)


def _judge_sums(
    got: np.ndarray,
    sums: tuple[np.ndarray, np.ndarray, np.ndarray],
    dtype_out: str,
    floor: str,
    *,
    c: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str | None = None,
    scale_a: np.ndarray | None = None,
    scale_b: np.ndarray | None = None,
) -> verify.Verdict:
    """Compare activation(alpha scale_a S scale_b + beta C + bias) with the truth under `verify`'s budget.

    sums: S in a wider precision, S in the kernel's, and the sums of the terms' absolute values. Scales are [1], or [M]
    and [N]. Every term counts in the sum's magnitude. An activation raises an error by a factor of 1.13 at most (gelu).
    """

    def terms(product: np.ndarray, take) -> np.ndarray:
        kind = product.dtype.type
        factor = np.ones((1, 1), kind) * take(kind(alpha))
        if scale_a is not None:
            factor = factor * take(scale_a.reshape(-1, 1).astype(kind))
        if scale_b is not None:
            factor = factor * take(scale_b.reshape(1, -1).astype(kind))
        z = factor * product if alpha else np.zeros_like(product)
        if c is not None and beta:
            z = z + take(kind(beta)) * take(c.astype(kind))
        return z if bias is None else z + take(bias.astype(kind))

    with np.errstate(all="ignore"):
        wide, narrow, magnitude = sums
        true = activate(terms(wide, np.positive), activation)
        same = activate(terms(narrow, np.positive), activation).astype(np.float64)
        magnitude = terms(magnitude, np.abs) * 1.13
    true, same, magnitude = (np.broadcast_to(x, got.shape) for x in (true, same, magnitude))
    return verify.judge(got.astype(true.dtype), true, same, magnitude, dtype_out, floor)

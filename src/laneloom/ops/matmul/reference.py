"""The matrix product by numpy: the truth, and what the kernels' precision can reach."""

from __future__ import annotations

from math import erf

import numpy as np

from ... import verify


def truth(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B in FP64; exact products of half-precision inputs, sums with an error of 2**-53 of their magnitude."""
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


def same_precision(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B with FP32 products and sums, not rounded further; in FP64."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.float64)


def judge(got: np.ndarray, a: np.ndarray, b: np.ndarray, dtype_out: str) -> verify.Verdict:
    """Compare a product with the truth under `verify`'s budget.

    got, a, b hold the values in any float dtype; `got` was stored as `dtype_out`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        magnitude = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
        return verify.judge(got.astype(np.float64), truth(a, b), same_precision(a, b), magnitude, dtype_out)


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
    got: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    dtype_out: str,
    *,
    c: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str | None = None,
) -> verify.Verdict:
    """Compare activation(alpha A B + beta C + bias) with the truth under `verify`'s budget.

    Every term counts in the sum's magnitude. An activation raises an error by a factor of 1.13 at most (gelu).
    """

    def terms(product: np.ndarray, take) -> np.ndarray:
        kind = product.dtype.type
        z = take(kind(alpha)) * product if alpha else np.zeros_like(product)
        if c is not None and beta:
            z = z + take(kind(beta)) * take(c.astype(kind))
        return z if bias is None else z + take(bias.astype(kind))

    with np.errstate(all="ignore"):
        wide, narrow = (np.matmul(a.astype(t), b.astype(t)) for t in (np.float64, np.float32))
        magnitude = terms(np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))), np.abs)
        true = activate(terms(wide, np.positive), activation)
        same = activate(terms(narrow, np.positive), activation).astype(np.float64)
    true, same, magnitude = (np.broadcast_to(x, got.shape) for x in (true, same, magnitude * 1.13))
    return verify.judge(got.astype(np.float64), true, same, magnitude, dtype_out)

"""The matrix product by numpy: the truth, and what the kernels' precision can reach."""

from __future__ import annotations

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

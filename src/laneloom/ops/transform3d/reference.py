"""The transform by numpy in FP64: the truth, and the bound on its own rounding errors."""

from __future__ import annotations

import numpy as np

_UNIT_ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "complex128": 2.0**-53, "complex64": 2.0**-24}


def transform(coeffs: np.ndarray, matrix: np.ndarray, *, transpose: bool = False) -> np.ndarray:
    """R[...,a',b',c'] = sum over a, b, c of X[...,a,b,c] T0[a,a'] T1[b,b'] T2[c,c'], in FP64 or complex128.

    coeffs: [..., K, K, K]. matrix: [K, K] for all axes or [3, K, K]. transpose: T[a',a] in place of T[a,a'].
    """
    result = coeffs.astype(np.complex128 if np.iscomplexobj(coeffs) else np.float64)
    wide = matrix.astype(np.complex128 if np.iscomplexobj(matrix) else np.float64)
    matrices = np.broadcast_to(wide, (3, *matrix.shape[-2:]))
    for axis in range(3):
        factor = matrices[axis].T if transpose else matrices[axis]
        # The axis that leads is contracted, the new one is appended: three turns restore the order.
        result = np.moveaxis(result, -3, -1) @ factor
    return result


def rounding_bound(
    coeffs: np.ndarray, matrix: np.ndarray, *, transpose: bool = False, dtype: str = "fp64"
) -> np.ndarray:
    """Bound on |computed - exact| of each element when every sum of K products is taken in `dtype`, in any order.

    gamma(3 K) |X| |T0| |T1| |T2| with gamma(n) = n u / (1 - n u): three chained sums of K products. A complex matrix
    makes each part a sum of 2 K, and both parts add: 3 K sqrt(8) in all, taken as 9 K.
    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    n = (9 if np.iscomplexobj(matrix) else 3) * coeffs.shape[-1]
    u = _UNIT_ROUNDOFF[dtype]
    return n * u / (1 - n * u) * transform(np.abs(coeffs), np.abs(matrix), transpose=transpose)


def worst_share(
    got: np.ndarray,
    coeffs: np.ndarray,
    matrix: np.ndarray,
    *,
    transpose: bool = False,
    dtype: str = "fp64",
    start: np.ndarray | None = None,
) -> float:
    """The largest error of `got` as a share of the bound of its element; NaN where it should not be counts as infinite.

    start: what the output held, where the transform was added to it; its addition rounds once more.
    """
    truth = transform(coeffs, matrix, transpose=transpose)
    bound = rounding_bound(coeffs, matrix, transpose=transpose, dtype=dtype)
    if start is not None:
        truth = truth + start
        bound = bound + 2 * _UNIT_ROUNDOFF[dtype] * np.abs(start)
    error = np.abs(got.astype(truth.dtype) - truth)
    if not np.isfinite(error).all():
        return float("inf")
    share = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)
    return float(share.max(initial=0.0))

"""The chain in FP64, and the error that its one rounding of the intermediate may make. numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ... import verify


@dataclass(frozen=True)
class Truth:
    """D1 in FP64 with unrounded P, and how far a right result may be from it."""

    d1: np.ndarray
    budget: np.ndarray


def chain(
    a0: np.ndarray, b0: np.ndarray, b1: np.ndarray, c1: np.ndarray | None = None, *, alpha0: float = 1.0,
    alpha1: float = 1.0, beta1: float = 0.0, dtype: str = "fp16",
) -> Truth:  # fmt: skip
    """The truth for operands in FP64 that `dtype` represents.

    With u32 and u the unit roundoffs of FP32 and of dtype, an FP32 sum of K terms errs at most by K u32 times the sum
    of their magnitudes (any order), so that P errs by
        E = u |alpha0 A0 B0| + (1 + u) |alpha0| (K0 + 1) u32 |A0| |B0| + half the smallest subnormal number of dtype,
    and D1, before its own rounding, by
        |alpha1| (E |B1| + (N0 + 2) u32 (|P| + E) |B1|) + 2 u32 |beta1 C1|.
    One rounding to dtype follows. The bound is doubled nowhere: it holds for every input.
    """
    u32, u = verify.UNIT_ROUNDOFF["fp32"], verify.UNIT_ROUNDOFF[dtype]
    p = alpha0 * (a0 @ b0)
    magnitude = abs(alpha0) * (np.abs(a0) @ np.abs(b0))
    e = u * np.abs(p) + (1 + u) * (a0.shape[-1] + 1) * u32 * magnitude + verify.SMALLEST[dtype] / 2
    d1 = alpha1 * (p @ b1)
    weight = np.abs(b1)
    error = abs(alpha1) * (e @ weight + (b1.shape[-2] + 2) * u32 * ((np.abs(p) + e) @ weight))
    if c1 is not None and beta1 != 0:
        d1 = d1 + beta1 * c1
        error = error + 2 * u32 * np.abs(beta1 * c1)
    error = error + u32 * np.abs(d1)  # the sum of the two terms
    return Truth(d1, error + np.maximum(u * (np.abs(d1) + error), verify.SMALLEST[dtype] / 2))


def worst_share(got: np.ndarray, truth: Truth) -> float:
    """Largest error over budget, infinite where got is NaN; right is at most 1."""
    if got.size == 0:
        return 0.0
    share = np.abs(got - truth.d1) / truth.budget
    return float(np.where(np.isnan(share), np.inf, share).max())

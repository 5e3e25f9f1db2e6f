"""Products with weights of few bits by numpy: the truth, and what the kernels' precision can reach."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import verify
from ..matmul.reference import same_precision, truth
from .weight import QuantizedWeight, is_tensor, to_float32

STEP = 16  #: of K, of a matrix instruction of 16-bit floats


def parts_of(weight: QuantizedWeight) -> tuple[np.ndarray, np.ndarray]:
    """q - zero [..., N, K] and scales [..., N, G], in FP64."""
    q, scales = _array(weight.numbers()), _array(to_float32(weight.scales, weight.dtype_scale))
    if weight.zeros is not None:
        zeros = _array(to_float32(weight.zeros, "uint8"))
        q = q - np.repeat(zeros, weight.group or max(q.shape[-1], 1), -1)[..., : q.shape[-1]]
    return q, scales


def _array(x: Any) -> np.ndarray:
    return (x.numpy() if is_tensor(x) else x).astype(np.float64)


def judge(
    got: np.ndarray, x: np.ndarray, weight: QuantizedWeight, dtype_out: str, bias: np.ndarray | None = None,
    flushed: str | None = None, lost_of_step: float = 0.0, cuts: tuple[str, int] | None = None,
) -> verify.Verdict:  # fmt: skip
    """Compare a product with the truth under `verify`'s budget: FP32 sums of each group, scaled and added in FP32.

    got [..., M, N], x [..., M, K] and bias [N] hold values in any float dtype; `got` was stored as `dtype_out`.
    flushed: x's dtype, where the GPU takes its denormals for zeros. lost_of_step: what tensor cores lose in a step of
    16 of K, of its largest sum: 2**-23 on Hopper, which cuts sums off. cuts: x's dtype and `Gpu.products_of_step`.
    """
    q, scales = parts_of(weight)
    group = weight.group or max(q.shape[-1], 1)
    shape = np.broadcast_shapes(x.shape[:-2], q.shape[:-2])
    true, magnitude, lost = (np.zeros((*shape, x.shape[-2], q.shape[-2])) for _ in range(3))
    same = true.astype(np.float32)
    with np.errstate(all="ignore"):
        for g, first in enumerate(range(0, q.shape[-1], group)):
            a = x[..., first : first + group].astype(np.float64)
            b = q[..., first : first + group].swapaxes(-1, -2)
            scale = scales[..., None, :, g]
            true = true + truth(a, b) * scale
            size = np.matmul(np.abs(a), np.abs(b)) * np.abs(scale)
            magnitude = magnitude + size
            lost = lost + (a.shape[-1] / STEP + 1) * lost_of_step * size
            same = same + same_precision(a, b).astype(np.float32) * scale.astype(np.float32)
            if flushed:
                lost = lost + verify.lost_to_zeros(a, b, flushed) * np.abs(scale)
            if cuts:
                lost = lost + verify.lost_to_cuts(a, b, *cuts) * np.abs(scale)
        if bias is not None:
            true, magnitude = true + bias, magnitude + np.abs(bias)
            same = same + bias.astype(np.float32)
    return verify.judge(got.astype(np.float64), true, same.astype(np.float64), magnitude, dtype_out, "fp32", lost)

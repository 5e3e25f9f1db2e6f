"""Three passes of one Triton kernel: c[i, j] = sum_k a[k, i] b[k, j] (i < K^2, j < K), each through device memory.

For AMD's GPUs and the emulator. A program owns ROWS rows i and keeps their outputs in registers; with DOT the products
go through the matrix unit (FP64 MFMA 16x16x4 on CDNA), padded to 16. The seed's levels 3 and 4.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ....gpu import Gpu
from ..config import RowsConfig
from ..problem import Transform3dProblem

_DOT_MIN = 16


@triton.jit
def rows_kernel(
    a_ptr, b_ptr, out_ptr, n_rows, stride_a, stride_out, stride_bk, stride_bn,
    K: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, ACCUMULATE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tensor = row // (K * K)
    i = (row % (K * K)).to(tl.int32)
    j = tl.arange(0, PADDED)
    row_ok = row < n_rows
    a_row = a_ptr + tensor * stride_a + i
    if DOT:
        k = tl.arange(0, PADDED)
        a = tl.load(a_row[:, None] + k[None, :] * (K * K), mask=row_ok[:, None] & (k < K)[None, :], other=0.0)
        b_mask = (k < K)[:, None] & (j < K)[None, :]
        b = tl.load(b_ptr + k[:, None] * stride_bk + j[None, :] * stride_bn, mask=b_mask, other=0.0)
        acc = tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)  # [ROWS, PADDED]
    else:
        acc = tl.zeros((ROWS, PADDED), a_ptr.dtype.element_ty)
        for k in range(K):
            a = tl.load(a_row + k * (K * K), mask=row_ok, other=0.0)
            b = tl.load(b_ptr + k * stride_bk + j * stride_bn, mask=j < K, other=0.0)
            acc += a[:, None] * b[None, :]
    out = out_ptr + (tensor * stride_out + i * K)[:, None] + j[None, :]
    mask = row_ok[:, None] & (j < K)[None, :]
    if ACCUMULATE:
        acc += tl.load(out, mask=mask, other=0.0)
    tl.store(out, acc, mask=mask)


def padded(config: RowsConfig, k: int) -> int:
    """Columns of a program's tile: a power of two, at least 16 for the matrix unit."""
    return max(_DOT_MIN if config.dot else 1, triton.next_power_of_2(k))


def launch(problem: Transform3dProblem, config: RowsConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """x, out: torch tensors [N, K, K, K], each tensor dense; factors: [K, K] or [3, K, K], any strides."""
    import torch

    per_axis = (factors, factors, factors) if problem.same_matrix else tuple(factors)
    first, second = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    n_rows = problem.count * problem.k**2
    grid = (triton.cdiv(n_rows, config.rows),)
    for source, factor, target in zip((x, first, second), per_axis, (first, second, out), strict=True):
        rows_kernel[grid](
            source, factor, target, n_rows, source.stride(0), target.stride(0), *factor.stride(),
            K=problem.k, PADDED=padded(config, problem.k), ROWS=config.rows,
            ACCUMULATE=problem.accumulate and target is out, DOT=config.dot, num_warps=config.num_warps,
        )  # fmt: skip

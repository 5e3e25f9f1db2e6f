"""One Triton kernel, c[n, i, j] = sum_k a[n, k, i] b[k, j] for any strides; the transform is three of its launches.

For AMD's GPUs and the emulator, and for the building blocks mTxm and its kin. A program owns ROWS rows (n, i) and keeps
their outputs in registers; with DOT the products go through the matrix unit (FP64 MFMA 16x16x4 on CDNA). The seed's
levels 3 and 4.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ....gpu import Gpu
from ..config import RowsConfig
from ..problem import Transform3dProblem

_DOT_MIN, _MAX_COLUMNS = 16, 64


@triton.jit
def rows_kernel(
    a_ptr, b_ptr, out_ptr, n_rows, rows_each, n_columns, depth,
    stride_an, stride_ak, stride_ai, stride_bk, stride_bj, stride_on, stride_oi, stride_oj,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ACCUMULATE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = row // rows_each
    i = row % rows_each
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_ok = row < n_rows
    j_ok = j < n_columns
    a_row = a_ptr + n * stride_an + i * stride_ai
    b_column = b_ptr + j * stride_bj
    acc = tl.zeros((ROWS, COLUMNS), a_ptr.dtype.element_ty)
    if DOT:
        for k0 in range(0, depth, DEPTH):
            k = k0 + tl.arange(0, DEPTH)
            k_ok = k < depth
            a = tl.load(a_row[:, None] + k[None, :] * stride_ak, mask=row_ok[:, None] & k_ok[None, :], other=0.0)
            b = tl.load(b_column[None, :] + k[:, None] * stride_bk, mask=k_ok[:, None] & j_ok[None, :], other=0.0)
            acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=acc.dtype)  # [ROWS, COLUMNS]
    else:
        for k in range(depth):
            a = tl.load(a_row + k * stride_ak, mask=row_ok, other=0.0)
            b = tl.load(b_column + k * stride_bk, mask=j_ok, other=0.0)
            acc += a[:, None] * b[None, :]
    out = out_ptr + (n * stride_on + i * stride_oi)[:, None] + j[None, :] * stride_oj
    mask = row_ok[:, None] & j_ok[None, :]
    if ACCUMULATE:
        acc += tl.load(out, mask=mask, other=0.0)
    tl.store(out, acc, mask=mask)


def tile(config: RowsConfig, columns: int) -> dict[str, Any]:
    """The kernel's constants for so many columns: powers of two, at least 16 for the matrix unit."""
    least = _DOT_MIN if config.dot else 1
    width = min(max(least, triton.next_power_of_2(columns)), _MAX_COLUMNS)
    return {"ROWS": config.rows, "COLUMNS": width, "DEPTH": _DOT_MIN, "DOT": config.dot}


def multiply(config: RowsConfig, a: Any, b: Any, out: Any, *, accumulate: bool) -> None:
    """out[n, i, j] (+)= sum_k a[n, k, i] b[k, j] for a [N, K, I], b [K, J], out [N, I, J] with any strides.

    A complex a and out are two real ones with twice the stride; a complex b makes four products of them.
    """
    import torch

    if not a.is_complex():
        _multiply_real(config, a, b, out, accumulate)
        return
    a_parts, out_parts = torch.view_as_real(a).unbind(-1), torch.view_as_real(out).unbind(-1)
    if not b.is_complex():
        for a_part, out_part in zip(a_parts, out_parts, strict=True):
            _multiply_real(config, a_part, b, out_part, accumulate)
        return
    real, imaginary = torch.view_as_real(b).unbind(-1)
    for out_part, factors in zip(out_parts, ((real, -imaginary), (imaginary, real)), strict=True):
        _multiply_real(config, a_parts[0], factors[0], out_part, accumulate)
        _multiply_real(config, a_parts[1], factors[1], out_part, True)


def _multiply_real(config: RowsConfig, a: Any, b: Any, out: Any, accumulate: bool) -> None:
    n, depth, rows = a.shape
    columns = b.shape[1]
    constants = tile(config, columns)
    grid = (triton.cdiv(n * rows, config.rows), triton.cdiv(columns, constants["COLUMNS"]))
    rows_kernel[grid](
        a, b, out, n * rows, rows, columns, depth, *a.stride(), *b.stride(), *out.stride(),
        ACCUMULATE=accumulate, num_warps=config.num_warps, enable_fp_fusion=True, **constants,
    )  # fmt: skip


def launch(problem: Transform3dProblem, config: RowsConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """x, out: torch tensors [N, K, K, K], each tensor dense; factors: [K, K] or [3, K, K], any strides."""
    import torch

    n, k = problem.count, problem.k
    per_axis = (factors, factors, factors) if problem.same_matrix else tuple(factors)
    first, second = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    for source, factor, target in zip((x, first, second), per_axis, (first, second, out), strict=True):
        # The leading axis is contracted, the new one is appended: three turns restore the order.
        accumulate = problem.accumulate and target is out
        multiply(config, source.view(n, k, k * k), factor, target.view(n, k * k, k), accumulate=accumulate)

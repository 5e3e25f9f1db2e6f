"""Zeros in the rows of a matrix that belong to no group, behind the last one's; which these are only the GPU knows.

Of a gradient, whose other rows a grouped product has written. A program without such a row ends at once. Plain Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from .prepared import PreparedLaunch

_ROWS, _COLUMNS = 32, 128


@triton.jit
def clear_rows_behind(out_ptr, last_ptr, M, N, stride_m, stride_n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows from that at last_ptr on are zeros in out [M, N]."""
    first = tl.maximum(tl.load(last_ptr), 0)
    row = tl.program_id(0).to(tl.int64) * ROWS
    if row + ROWS > first:
        rows = row + tl.arange(0, ROWS)
        in_rows = ((rows >= first) & (rows < M))[:, None]
        for n in range(0, N, COLUMNS):
            columns = n + tl.arange(0, COLUMNS).to(tl.int64)
            places = out_ptr + rows[:, None] * stride_m + columns[None, :] * stride_n
            tl.store(places, tl.zeros((ROWS, COLUMNS), out_ptr.dtype.element_ty), mask=in_rows & (columns < N)[None, :])


def prepare_clearing(out: Any, last: Any) -> Callable[[Any, Any], None]:
    """What clears rows behind the number in `last` ([1] int32) of matrices that lie as `out` ([M, N], torch)."""
    grid = (triton.cdiv(out.shape[0], _ROWS),)
    sizes = (*out.shape, *out.stride(), _ROWS, _COLUMNS)
    if out.device.type == "cuda":
        return PreparedLaunch(clear_rows_behind, grid, lambda *tensors: (*tensors, *sizes), num_warps=4)
    return lambda out, last: clear_rows_behind[grid](out, last, *sizes, num_warps=4, enable_fp_fusion=True)

"""Attention over part of the keys, added to that over the others: one pass over memory.

O = w O_a + (1 - w) O_b with w = exp(L_a - L), L = log(exp L_a + exp L_b); L is the log of the sums that the softmax
divided by. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_ELEMENTS = 4096  #: of O in one program


@triton.jit
def merge_parts_kernel(
    old_ptr, lse_ptr, part_ptr, sums_ptr, out_ptr, rows_all, first, rows, D: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """old, out: [heads, rows_all, D], lse [heads, rows_all]; part [heads, rows, D], sums [heads, rows]."""
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at, at_part = head * rows_all + first + row, head * rows + row
    old_lse = tl.load(lse_ptr + at, mask=inside, other=-float("inf"))
    new_lse = tl.load(sums_ptr + at_part, mask=inside, other=-float("inf"))
    # Where rows are fewer than lanes, every warp loads the same ones, and one of them stores: after all have loaded.
    tl.debug_barrier()
    top = tl.maximum(old_lse, new_lse)
    top = tl.where(top == -float("inf"), 0.0, top)  # a query that has seen no key: exp gives 0, not NaN
    old_sum, new_sum = tl.exp(old_lse - top), tl.exp(new_lse - top)
    total = old_sum + new_sum
    seen = total > 0
    total = tl.where(seen, total, 1.0)
    tl.store(lse_ptr + at, tl.where(seen, top + tl.log(total), -float("inf")), mask=inside)
    column = tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < D)[None, :]
    old = tl.load(old_ptr + at[:, None] * D + column[None, :], mask=mask, other=0.0).to(tl.float32)
    new = tl.load(part_ptr + at_part[:, None] * D + column[None, :], mask=mask, other=0.0).to(tl.float32)
    merged = (old_sum / total)[:, None] * old + (new_sum / total)[:, None] * new
    tl.store(out_ptr + at[:, None] * D + column[None, :], merged.to(out_ptr.dtype.element_ty), mask=mask)


def merge_parts(
    old: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, sums: torch.Tensor, out: torch.Tensor, first: int = 0
) -> None:
    """Into the rows of out [B, H, N, D] from `first` on: those of old merged with part [B, H, n, D].

    lse [B, H, N] becomes that of both, sums [B, H, n] is part's. FP32 arithmetic, one rounding to out's dtype; out may
    be old. All contiguous.
    """
    batch, heads, rows, d = part.shape
    if part.numel() == 0:
        return
    columns = triton.next_power_of_2(d)
    block = max(1, _ELEMENTS // columns)
    kernel: Any = merge_parts_kernel
    kernel[triton.cdiv(rows, block), batch * heads](
        old, lse, part, sums, out, old.shape[2], first, rows, D=d, ROWS=block, COLUMNS=columns, enable_fp_fusion=True
    )

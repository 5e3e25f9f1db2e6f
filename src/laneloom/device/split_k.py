"""Sum the partial products of a split-K schedule: C[m, n] = sum over s of W[s, m, n], in the order of s.

The second launch of every schedule that splits K: which program wrote which part never matters, so the same inputs give
the same bits. With programmatic dependent launch it starts while the first launch drains. Triton, any GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def reduce_splits(parts_ptr, c_ptr, elements, N, stride_cm, stride_cn, SPLITS: tl.constexpr, PADDED: tl.constexpr,
                  BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One program sums BLOCK elements of the row-major [M, N] result."""
    if PDL:
        gdc_launch_dependents()
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < elements
    split = tl.arange(0, PADDED)  # PADDED: SPLITS rounded up to a power of two
    m = offs // N
    n = offs % N
    c_ptrs = c_ptr + m * stride_cm + n * stride_cn
    parts_ptrs = parts_ptr + split[:, None] * elements + offs[None, :]  # [PADDED, BLOCK]
    if PDL:
        # The partial products are written by the launch ahead.
        gdc_wait()
    parts = tl.load(parts_ptrs, mask=(split < SPLITS)[:, None] & mask[None, :], other=0.0)
    tl.store(c_ptrs, tl.sum(parts, axis=0).to(c_ptr.dtype.element_ty), mask=mask)


def launch_reduce(parts, out, splits: int, *, pdl: bool) -> None:
    """Reduce `parts` (fp32, [splits, M, N], dense) into `out` (2-D, any strides)."""
    rows, columns = out.shape
    padded = 1 << (splits - 1).bit_length()
    block = max(32, min(1024, 8192 // padded, 1 << max(rows * columns // 264, 1).bit_length()))
    grid = (triton.cdiv(rows * columns, block),)
    reduce_splits[grid](
        parts, out, rows * columns, columns, out.stride(0), out.stride(1), splits, padded, block, pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip

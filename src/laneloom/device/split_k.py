"""Sum the partial products of a split-K schedule: C[m, n] = sum over s of W[s, m, n], in the order of s.

The second launch of every schedule that splits K: which program wrote which part never matters, so the same inputs give
the same bits. With programmatic dependent launch it starts while the first launch drains. Triton, Hopper.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .prepared import PreparedLaunch

MOST_WIDE, MOST_PAIRS = 6, 12  #: splits of which one thread asks for all at once: 16 bytes of each, or 8
MOST_UNROLLED = 16  #: splits that one thread adds up by itself; beyond, they are spread over the threads


@triton.jit
def reduce_splits(parts_ptr, c_ptr, elements, N, pitch, stride_part, stride_pm, stride_pn, stride_cm, stride_cn,
                  SPLITS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, IN_LINE: tl.constexpr,
                  DENSE: tl.constexpr):
    """One program sums BLOCK of the elements of rows of `pitch`, of which N are the result's: one thread all of an
    element's parts, or CHUNK at a time. IN_LINE: a part's rows stand one behind the other; DENSE: those of both do."""
    gdc_launch_dependents()
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < elements
    mask_c = mask
    if DENSE:
        offs_parts = offs
        offs_c = offs
    else:
        m = (offs // pitch).to(tl.int64)
        n = (offs % pitch).to(tl.int64)
        mask_c = mask & (n < N)
        # Only where the compiler sees that neighbours are neighbours in memory do a warp's lanes load such.
        offs_parts = offs if IN_LINE else m * stride_pm + n * stride_pn
        offs_c = m * stride_cm + n * stride_cn
    # The partial products are written by the launch ahead.
    gdc_wait()
    if CHUNK == 1:
        total = tl.load(parts_ptr + offs_parts, mask=mask, other=0)
        for split in tl.static_range(1, SPLITS):
            # A stride of 1, of a single element, comes as a number of Python's.
            total += tl.load(parts_ptr + split * tl.cast(stride_part, tl.int64) + offs_parts, mask=mask, other=0)
    else:
        split = tl.arange(0, CHUNK)
        parts_ptrs = parts_ptr + split.to(tl.int64)[:, None] * stride_part + offs_parts[None, :]  # [CHUNK, BLOCK]
        parts = tl.load(parts_ptrs, mask=(split < SPLITS)[:, None] & mask[None, :], other=0)
        total = tl.sum(parts, axis=0)
    tl.store(c_ptr + offs_c, total.to(c_ptr.dtype.element_ty), mask=mask_c)


class ReduceLaunch:
    """The reduction of one shape, call after call."""

    def __init__(self, *, pdl: bool) -> None:
        self._pdl = pdl
        self._launch: PreparedLaunch | None = None

    def __call__(self, parts: torch.Tensor, out: torch.Tensor) -> None:
        """Reduce `parts` (fp32 or int32, [splits, >= M, >= N]) into `out` ([M, N]), fewer than 2^31 elements.

        Every call has the same shapes and strides, and outputs of equal alignment.
        """
        if self._launch is None:
            self._prepare(parts, out)
        assert self._launch is not None
        self._launch(parts, out)

    def _prepare(self, parts: torch.Tensor, out: torch.Tensor) -> None:
        (rows, columns), splits = out.shape, parts.shape[0]
        c_strides, p_strides = out.stride(), parts.stride()
        if c_strides[0] == 1 and c_strides[1] != 1:  # neighbours of a column are neighbours in memory
            rows, columns, c_strides, p_strides = columns, rows, c_strides[::-1], (*p_strides[:1], *p_strides[:0:-1])
        # Along rows of parts as they lie, so that their whole pieces of 16 bytes are loaded, whatever N is. A single
        # row may have any stride.
        pitch = p_strides[1] if p_strides[2] == 1 and p_strides[1] >= columns else columns
        elements = rows * pitch
        chunk = 1 if splits <= MOST_UNROLLED else 1 << (splits - 1).bit_length()
        # Small enough that every SM has work, large enough for 16-byte loads by each thread.
        block = 16 if chunk > 1 else 1024 if elements >= 1024 * 528 else 512 if elements >= 512 * 264 else 256
        warps = 4 if block > 256 else 2
        if chunk == 1 and splits > MOST_WIDE:
            # ptxas keeps to 32 registers and waits for some parts before it asks for others, unless all of them fit.
            block, warps = 256 if splits <= MOST_PAIRS else 128, 4
        in_line = p_strides[1:] == (pitch, 1)
        dense = in_line and c_strides == (columns, 1) and pitch == columns
        arguments = (elements, columns, pitch, *p_strides, *c_strides, splits, chunk, block, in_line, dense)
        self._launch = PreparedLaunch(
            reduce_splits, (triton.cdiv(elements, block),), lambda *tensors: (*tensors, *arguments),
            num_warps=warps, launch_pdl=self._pdl,
        )  # fmt: skip

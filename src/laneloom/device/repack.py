"""Copy one or two matrices to a pitch of whole 128-byte lines, in one launch.

TMA needs 16-byte pitches; matrices of odd sizes have none. The copy runs at memory speed and costs O(MK + KN) against a
product of O(MNK). A pitch of whole lines, not of 16 bytes, keeps each of TMA's 128-byte requests inside one line:
on one H200 (2026-11-20) a 4095x4097x4099 product ran at 617 TFLOP/s from it and at 486 from a 16-byte pitch.
"""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .prepared import PreparedLaunch

LINE_BYTES = 128
BLOCK_ROWS = 8
BLOCK_COLUMNS = 512


@triton.jit
def _copy_block(source_ptr, copy_ptr, block, rows, column_vectors, source_vectors, copy_pitch, VECTOR: tl.constexpr,
                ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # Counted in vectors, so that the compiler sees that VECTOR divides them, and loads whole ones.
    columns = column_vectors * VECTOR
    source_pitch = source_vectors * VECTOR
    blocks_across = tl.cdiv(columns, COLUMNS)
    row = (block // blocks_across) * ROWS + tl.arange(0, ROWS)
    column = (block % blocks_across) * COLUMNS + tl.arange(0, COLUMNS)
    rows_in = (row < rows)[:, None]
    values = tl.load(source_ptr + row.to(tl.int64)[:, None] * source_pitch + column[None, :],
                     mask=rows_in & (column < columns)[None, :])
    tl.store(copy_ptr + row.to(tl.int64)[:, None] * copy_pitch + column[None, :], values,
             mask=rows_in & (column < copy_pitch)[None, :])


@triton.jit
def repack(a_ptr, a_copy_ptr, a_rows, a_columns, a_pitch, a_copy_pitch, b_ptr, b_copy_ptr, b_rows, b_columns, b_pitch,
           b_copy_pitch, A_VECTOR: tl.constexpr, B_VECTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
           PDL: tl.constexpr):
    """The first programs copy A's blocks, the rest B's. Columns past the end hold anything: TMA masks them.

    Columns and pitches of the sources are in vectors of A_VECTOR and B_VECTOR elements.
    """
    if PDL:
        gdc_launch_dependents()
        # The copies may still be read, and the sources still be written, by the launches ahead.
        gdc_wait()
    block = tl.program_id(0)
    a_blocks = tl.cdiv(a_rows, ROWS) * tl.cdiv(a_columns * A_VECTOR, COLUMNS)
    if block < a_blocks:
        _copy_block(a_ptr, a_copy_ptr, block, a_rows, a_columns, a_pitch, a_copy_pitch, A_VECTOR, ROWS, COLUMNS)
    else:
        _copy_block(
            b_ptr, b_copy_ptr, block - a_blocks, b_rows, b_columns, b_pitch, b_copy_pitch, B_VECTOR, ROWS, COLUMNS)


def line_pitch(columns: int, element_bytes: int) -> int:
    """The pitch, in elements, of rows of whole 128-byte lines."""
    line = LINE_BYTES // element_bytes
    return -(-columns // line) * line


class RepackLaunch:
    """The copy of one or two matrices of fixed shapes, call after call."""

    def __init__(self, *, pdl: bool) -> None:
        self._pdl = pdl
        self._launches: dict[tuple[int, ...], PreparedLaunch] = {}  #: by alignment of the sources

    def __call__(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy the first of each of one or two (source, copy) pairs into the second; both contiguous along the last
        axis.

        A copy has at least the source's columns. Every call has the same shapes and strides.
        """
        # No program reaches the second of two pairs that are the same.
        tensors = [x for pair in (pairs * 2)[:2] for x in pair]
        alignments = tuple(source.data_ptr() % 16 for source, _ in pairs)
        launch = self._launches.get(alignments)
        if launch is None:
            launch = self._launches[alignments] = self._prepare(pairs)
        launch(*tensors)

    def _prepare(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> PreparedLaunch:
        sizes: list[list[int]] = []
        vectors: list[int] = []
        blocks = 0
        for source, copy in pairs:
            rows, columns = source.shape
            pitch = source.stride(0)
            # Elements of the widest aligned load of at most 16 bytes.
            vectors.append(gcd(columns, pitch, 16 // source.element_size()) if source.data_ptr() % 16 == 0 else 1)
            sizes.append([rows, columns // vectors[-1], pitch // vectors[-1], copy.stride(0)])
            blocks += triton.cdiv(rows, BLOCK_ROWS) * triton.cdiv(columns, BLOCK_COLUMNS)
        (first, second), (a_vector, b_vector) = (sizes * 2)[:2], (vectors * 2)[:2]
        return PreparedLaunch(
            repack, (blocks,),
            lambda a, a_copy, b, b_copy: (
                a, a_copy, *first, b, b_copy, *second, a_vector, b_vector, BLOCK_ROWS, BLOCK_COLUMNS, self._pdl),
            num_warps=4, launch_pdl=self._pdl,
        )  # fmt: skip

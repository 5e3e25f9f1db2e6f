"""A tile of either operand as a list of 16-byte vectors: one sequence of loads serves waves with different operands.

A [ROWS, BLOCK_K] tile of 16-bit elements is [VECTORS, 8]. Contiguous along K, vector v is group v // ROWS of 8 steps of
row v % ROWS; contiguous along its rows, it is 8 rows at step v // (ROWS / 8). Gluon, AMD.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .wmma_tiles import load_tile, tile_pointers


@gluon.jit
def vector_offsets(
    rows_left, stride_row, stride_k, ROWS: gl.constexpr, BLOCK_K: gl.constexpr, MAJOR: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Of each vector the offset of its first element in elements, and that element's step of K.

    Rows beyond the matrix read the first ones again.
    """
    v = gl.arange(0, ROWS * BLOCK_K // 8, gl.SliceLayout(1, LAYOUT))
    if MAJOR == "k":
        row = v % ROWS
        k = v // ROWS * 8
        return gl.where(row < rows_left, row, 0) * stride_row + k, k
    else:
        row = v % (ROWS // 8) * 8
        k = v // (ROWS // 8)
        return gl.where(row < rows_left, row, 0) + k * stride_k, k


@gluon.jit
def load_vectors(tile_ptr, offs, LAYOUT: gl.constexpr):
    """The vectors of a whole K-tile, [VECTORS, 8]."""
    return load_tile(tile_ptr, offs, gl.arange(0, 8, gl.SliceLayout(0, LAYOUT)), "k", 8, False)


@gluon.jit
def load_last_vectors(tile_ptr, offs, k, along_k, k_left, WHOLE: gl.constexpr, LAYOUT: gl.constexpr):
    """The vectors of a K-tile of which k_left columns exist, all if WHOLE; the others are zeros.

    along_k: 1 if a vector's elements are steps of K, 0 if they are rows.
    """
    offs_e = gl.arange(0, 8, gl.SliceLayout(0, LAYOUT))
    pointers = tile_pointers(tile_ptr, offs, offs_e, "k", 8, False)
    if WHOLE:
        return gl.load(pointers)
    else:
        mask = k[:, None] + (offs_e * along_k)[None, :] < k_left
        return gl.load(pointers, mask=mask, other=0.0)


@gluon.jit
def store_vectors(slot, x, MAJOR: gl.constexpr, STORE: gl.constexpr):
    """Store a tile's vectors as [ROWS, BLOCK_K] where fragments are read, turned in registers where they are rows."""
    ROWS: gl.constexpr = slot.shape[0]
    BLOCK_K: gl.constexpr = slot.shape[1]
    if MAJOR == "k":
        x = x.reshape([BLOCK_K // 8, ROWS, 8]).permute([1, 0, 2]).reshape([ROWS, BLOCK_K])
    else:
        x = x.reshape([BLOCK_K, ROWS]).permute([1, 0])
    slot.store(gl.convert_layout(x, STORE))

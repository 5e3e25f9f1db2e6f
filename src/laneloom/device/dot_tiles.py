"""Which tile a program has, for kernels of plain Triton: one program a tile of every product of a batch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of_program(M, N, inner, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """This program's outer and inner batch index, and its rows and columns of C, all 64-bit; GROUP_M rows of tiles are
    walked together."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    batch = tl.program_id(0) // (tiles_m * tiles_n)
    tile_m, tile_n = tl.swizzle2d(tile // tiles_n, tile % tiles_n, tiles_m, tiles_n, GROUP_M)
    offs_m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    return (batch // inner).to(tl.int64), (batch % inner).to(tl.int64), offs_m, offs_n


@triton.jit
def tile_of_group(ends_ptr, M, N, groups, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr):
    """The same of rows in groups, which end at the rows ends[g]: the tile's group, the row behind its group's last, and
    its rows and columns of C, all 64-bit. GROUPS: a power of two, `groups` or more.

    A group's tiles of the same columns follow each other, so that its matrix is read once. Programs that are more than
    there are tiles find group 0, end 0 and columns behind the last.
    """
    of = tl.arange(0, GROUPS)
    firsts = tl.load(ends_ptr + of - 1, mask=(of > 0) & (of < groups), other=0)
    firsts = tl.minimum(tl.maximum(firsts, 0), M)
    ends = tl.minimum(tl.load(ends_ptr + of, mask=of < groups, other=0), M)
    tiles_m = tl.cdiv(tl.maximum(ends - firsts, 0), BLOCK_M)
    tiles = tiles_m * tl.cdiv(N, BLOCK_N)
    behind = tl.cumsum(tiles, 0)
    group = tl.sum((behind <= tl.program_id(0)).to(tl.int32), 0)
    own = of == group  # nowhere, if there is no tile
    tile = tl.program_id(0) - tl.sum(tl.where(own, behind - tiles, 0), 0)
    of_group = tl.sum(tl.where(own, tiles_m, 0), 0)
    first = tl.sum(tl.where(own, firsts, 0), 0)
    end = tl.sum(tl.where(own, ends, 0), 0)
    tile_m = tile % tl.maximum(of_group, 1)
    offs_m = first + tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (tile // tl.maximum(of_group, 1)).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    group = tl.where(of_group > 0, group, 0).to(tl.int64)
    return group, end.to(tl.int64), offs_m, tl.where(of_group > 0, offs_n, N)


@triton.jit
def k_of_group(ends_ptr, group, K):
    """Where a group of K begins, and how much of K it has: groups lie one after another and end at ends[g]."""
    first = tl.load(ends_ptr + group - 1, mask=group > 0, other=0)
    first = tl.minimum(tl.maximum(first, 0), K)
    return first.to(tl.int64), tl.maximum(tl.minimum(tl.load(ends_ptr + group), K) - first, 0)

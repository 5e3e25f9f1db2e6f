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

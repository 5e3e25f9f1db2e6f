"""Which tile of which group a program has, of rows or of K in groups that only the GPU knows. Gluon, AMD only;
`dot_tiles.py` has the same for plain Triton.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.language import core

from .tile_order import tile_of
from .wmma_tiles import place_tile


@builtin
def _first_lane(x, _semantic=None):
    known = {(core.dtype("int32"),): ("llvm.amdgcn.readfirstlane.i32", core.dtype("int32"))}
    return core.extern_elementwise("", "", [x], known, is_pure=True, _semantic=_semantic)


@gluon.jit
def _scalar_sum(x):
    """The sum of x in a scalar register; CDNA 1 has it in every lane otherwise, and all addresses with it."""
    return _first_lane(gl.sum(x, 0))


@gluon.jit
def _add(x, y):
    return x + y


@gluon.jit
def place_tile_in_groups(
    program, ends_ptr, groups, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ORDER: gl.constexpr,
    GROUP: gl.constexpr, CHIPLETS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """As `wmma_tiles.place_tile`, of the tiles of rows in groups, which end at the row ends[g], group after group: the
    inner number is the group's. For a program more than there are tiles no row exists.

    LAYOUT: of `groups` numbers or more, which every wave holds whole, so that waves exchange nothing.
    """
    GROUPS: gl.constexpr = LAYOUT.size_per_thread[0] * LAYOUT.threads_per_warp[0]
    of = gl.arange(0, GROUPS, LAYOUT)
    firsts = gl.maximum(gl.load(ends_ptr + of - 1, mask=(of > 0) & (of < groups), other=0), 0)
    ends = gl.minimum(gl.load(ends_ptr + of, mask=of < groups, other=0), M)
    tiles_n = (N - 1) // BLOCK_N + 1
    tiles = gl.where(ends > firsts, (ends - firsts - 1) // BLOCK_M + 1, 0) * tiles_n
    behind = gl.associative_scan(tiles, 0, _add)
    group = _scalar_sum((behind <= program).to(gl.int32))
    own = of == group  # of none, if there is no tile
    first = _scalar_sum(gl.where(own, firsts, 0))
    end = _scalar_sum(gl.where(own, ends, 0))
    # of what is no tile no order may make one
    program = gl.where(group < GROUPS, program - _scalar_sum(gl.where(own, behind - tiles, 0)), 0)
    tile_m, tile_n = tile_of(program, (end - first - 1) // BLOCK_M + 1, tiles_n, ORDER, GROUP, CHIPLETS)
    m0 = first + tile_m.to(gl.int64) * BLOCK_M
    n0 = tile_n.to(gl.int64) * BLOCK_N
    rows_m = gl.minimum(end - m0, BLOCK_M).to(gl.int32)
    rows_n = gl.minimum(N - n0, BLOCK_N).to(gl.int32)
    return gl.to_tensor(0).to(gl.int64), group.to(gl.int64), m0, n0, rows_m, rows_n


@gluon.jit
def place_tile_of_all(
    program, ends_ptr, M, N, batch_inner, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ORDER: gl.constexpr,
    GROUP: gl.constexpr, CHIPLETS: gl.constexpr, BATCHED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """`place_tile` where LAYOUT is None, else of rows in `batch_inner` groups."""
    if LAYOUT is None:
        return place_tile(program, M, N, batch_inner, BLOCK_M, BLOCK_N, ORDER, GROUP, CHIPLETS, BATCHED)
    else:
        return place_tile_in_groups(
            program, ends_ptr, batch_inner, M, N, BLOCK_M, BLOCK_N, ORDER, GROUP, CHIPLETS, LAYOUT
        )  # fmt: skip


@gluon.jit
def k_of_group(ends_ptr, group, K):
    """Where a group of K begins, and how much of K it has: groups lie one after another and end at ends[g]."""
    first = gl.load(ends_ptr + group - 1, mask=group > 0, other=0)
    end = gl.load(ends_ptr + group)
    first = gl.minimum(gl.maximum(_first_lane(first), 0), K)
    return first.to(gl.int64), gl.maximum(gl.minimum(_first_lane(end), K) - first, 0).to(gl.int32)

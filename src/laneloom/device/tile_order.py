"""The order in which programs visit the tiles of a matrix: maps from a program's number to its tile."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def grouped_tile(program, tiles_m, tiles_n, GROUP_M: gl.constexpr):
    """Column by column through groups of GROUP_M rows of tiles, so that concurrent programs share operands in the L2.

    A bijection from 0 .. tiles_m * tiles_n - 1 to (tile_m, tile_n) on every grid: the last group is as tall as what is
    left.
    """
    per_group = GROUP_M * tiles_n
    first_m = (program // per_group) * GROUP_M
    height = gl.minimum(tiles_m - first_m, GROUP_M)
    within = program % per_group
    return first_m + within % height, within // height

"""Tile orders in Python: bijections on every grid, and what each promises."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneloom.ops.matmul.tile_orders import CHIPLETS, ORDERS, footprint

GRIDS = {"tiles_m": st.integers(1, 70), "tiles_n": st.integers(1, 70), "group": st.integers(1, 12)}


@pytest.mark.parametrize("order", ORDERS)
@settings(deadline=None)
@given(**GRIDS)
def test_bijection(order, tiles_m, tiles_n, group):
    visited = [ORDERS[order](program, tiles_m, tiles_n, group) for program in range(tiles_m * tiles_n)]
    assert sorted(visited) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]


@settings(deadline=None)
@given(**GRIDS)
def test_hilbert_and_snake_never_jump(tiles_m, tiles_n, group):
    for order in ("hilbert", "snake"):
        visited = [ORDERS[order](program, tiles_m, tiles_n, group) for program in range(tiles_m * tiles_n)]
        assert all(max(abs(m - p), abs(n - q)) == 1 for (m, n), (p, q) in pairwise(visited))


def test_pictures():
    """The 4 x 4 grids of docs/presets.md."""
    pictures = {
        "row": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
        "column": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
        "snake": [[0, 1, 2, 3], [7, 6, 5, 4], [8, 9, 10, 11], [15, 14, 13, 12]],
        "grouped": [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]],
        "chunked": [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]],
        "hilbert": [[0, 1, 14, 15], [3, 2, 13, 12], [4, 7, 8, 11], [5, 6, 9, 10]],
        "chiplet": [[0, 1, 2, 3], [8, 9, 10, 11], [4, 5, 6, 7], [12, 13, 14, 15]],
    }
    for order, picture in pictures.items():
        got = [[0] * 4 for _ in range(4)]
        for program in range(16):
            m, n = ORDERS[order](program, 4, 4, 2)
            got[m][n] = program
        assert got == picture, order


def test_each_chiplet_has_a_stretch_of_the_grouped_order():
    tiles = 11, 13
    place = {ORDERS["grouped"](p, *tiles, 4): p for p in range(11 * 13)}
    for die in range(CHIPLETS):
        mine = [place[ORDERS["chiplet"](p, *tiles, 4)] for p in range(die, 11 * 13, CHIPLETS)]
        assert mine == list(range(mine[0], mine[0] + len(mine)))


def test_footprints():
    """64 programs at once on a grid of 32 x 32: squares need the fewest rows and columns."""
    assert footprint("row", 32, 32, 8, 64) == (2, 32)
    assert footprint("grouped", 32, 32, 8, 64) == (8, 8)
    assert footprint("hilbert", 32, 32, 8, 64) == (8, 8)
    assert footprint("column", 32, 32, 8, 64) == (32, 2)

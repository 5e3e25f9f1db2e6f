"""Stream-K's pieces are every K-tile once, its parts are added in K's order, and its programs end together."""

from __future__ import annotations

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from laneloom.ops.matmul.stream_k import Shares


@settings(max_examples=300, deadline=None, derandomize=True)
@given(tiles=st.integers(1, 300), steps=st.integers(1, 70), workers=st.integers(1, 130))
def test_pieces_are_every_k_tile_once_and_parts_are_in_order(tiles, steps, workers):
    shares = Shares.of(tiles, steps, workers)
    made: dict[int, list[tuple[int, int, int]]] = {tile: [] for tile in range(shares.shared)}
    for program in range(shares.programs):
        tile, first, end, slot = shares.piece(program)
        assert 0 <= first <= end <= steps
        if first < end:
            made[tile].append((first, end, slot))
    assert (shares.whole + shares.shared, shares.whole % workers) == (tiles, 0)
    slots = [slot for pieces in made.values() for _, _, slot in pieces]
    assert sorted(set(slots)) == sorted(slots)
    assert max(slots, default=-1) < shares.slots
    for tile, pieces in made.items():
        pieces.sort()
        assert [0, *(end for _, end, _ in pieces)] == [*(first for first, _, _ in pieces), steps]
        assert shares.parts(tile) == [slot for _, _, slot in pieces]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(shared=st.integers(1, 127), steps=st.integers(8, 200), workers=st.integers(2, 128))
def test_the_dispatcher_keeps_all_workers_busy_to_the_end(shared, steps, workers):
    """Whoever is done takes the next program: nobody ends more than two K-tiles after an equal share of the work."""
    shares = Shares.of(shared % workers or 1, steps, workers)
    assert shares.shared > 0
    busy = [0] * shares.workers
    for program in range(shares.programs):
        _, first, end, _ = shares.piece(program)
        heapq.heappush(busy, heapq.heappop(busy) + end - first)
    assert max(busy) <= -(-shares.units // shares.workers) + 2

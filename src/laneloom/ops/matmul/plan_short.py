"""Configs of `hopper_cluster` for 33 to 128 rows, or columns, of 8 or 16 bits beside more of them, with estimates.

As in `plan_few` nearly all that is read is the operand of the long side, so that SMs which share a pair count; but the
short side may be cut into tiles, or take wgmma's 64 rows, and multiplying and what is read again are in the estimate.
Fitted to 600 products on one H200, 2026-11-29, and held against others, results/h200/tiles_short.csv;
docs/hopper-gemm-tried.md. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from ...gpu import Gpu
from .config_cluster import ClusterConfig, finishers
from .config_hopper import tma_writes
from .fit_cluster import MOST_STAGES, ROWS, fetched_slices, fitted, panels_and_stages
from .model_hopper import (
    CLOCKS_PER_US,
    H200,
    LINE_BYTES,
    SECTOR_BYTES,
    SLICE_BYTES,
    Rows,
    ceil_div,
    clusters_at_once,
    rows_of,
)
from .plan_few import ALONE, MOST_FEW, streamable
from .problem import DTYPE_BYTES, MatmulProblem

MOST_SHORT, LEAST_LONGER = 128, 2  #: of the short side, and how often it is in the long one
LEAST_K_BYTES = 512  #: of a row
#: CTAs that share B's columns, that share A's rows, and that have a part of K each
CLUSTERS = (
    (1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 1, 4), (1, 1, 5), (1, 1, 6), (1, 1, 8), (1, 2, 1), (1, 2, 2), (1, 2, 3),
    (1, 2, 4), (1, 4, 1), (1, 4, 2), (2, 1, 1), (2, 1, 2), (2, 1, 3), (2, 1, 4), (2, 2, 1), (2, 2, 2), (4, 1, 1),
    (4, 1, 2), (4, 2, 1), (8, 1, 1),
)  # fmt: skip
#: rows of a tile of the long side, into how many tiles the short one is cut then, columns where that takes the rows
TILE_ROWS, CUTS, COLUMNS = tuple(ROWS), (1, 2, 3), range(32, 257, 8)
ROW_CLOCKS = 2.103  #: to load a row of a slice
#: more for one that is not there, where all tiles have such rows, and where the last ones of many have
MISSING_CLOCKS, MISSING_AT_END_CLOCKS = 2.54, 0.6
ROW_FACTORS = {Rows.LINES: 1.0, Rows.SECTORS: 1.288, Rows.BROKEN: 1.679}
BOTH_FACTOR = 1.276  #: on loads of CTAs that share both operands
MULTIPLY_CLOCKS = 2.383 / 64  #: for each element of a tile, of a slice
LATENCY_CLOCKS = 2974.0  #: until a slice is there
LONE_FACTOR = 0.85  #: on the slices of CTAs that have a pair of SMs each
PAIR_FACTOR = 0.818  #: on loads of the long side's rows, by a CTA that shares a pair of SMs, when others are done
#: of the launch, more of one of clusters of so many CTAs, and more where no SM is left to the next product
LAUNCH_CLOCKS, CLUSTER_CLOCKS = 3051.0, {1: 0.0, 2: 450.0, 3: 378.0, 4: 378.0, 5: 609.0, 6: 609.0, 8: 609.0}
FULL_CLOCKS, FULL = 492.0, 0.97
STORE_CLOCKS, EXCHANGE_CLOCKS = 0.0969, 0.297  #: for each sum that a CTA finishes, and of each part that it receives
CUT_SECTORS_CLOCKS = 393.0  #: where tiles beside each other write a part of a sector of C each
BYTES_PER_US, IN_PAIRS, IN_STEP = 4.664e6, 1.056, 0.962  #: from memory; on its time where two, or more, CTAs share
CUT_LINES = 1.05  #: on its time where columns of the long side that are neighbours in memory begin inside of lines
AGAIN = 0.191  #: of what is read again, the share that is as slow as memory
FETCHED_CLOCKS = 2210.0  #: most that is saved where slices are asked for ahead, on SMs that are left to them
MOST_TRIED = 24  #: of the shortest estimates, of which some are not valid


@dataclass(frozen=True)
class _Shapes:
    """Tiles and clusters of many configs that are alike in all else: arrays of one number each."""

    rows: np.ndarray
    columns: np.ndarray
    share_b: np.ndarray
    share_a: np.ndarray
    parts: np.ndarray
    stages: np.ndarray
    fetched: np.ndarray

    @property
    def peers(self) -> np.ndarray:
        """CTAs of a cluster."""
        return self.share_b * self.share_a * self.parts

    @property
    def finished(self) -> np.ndarray:
        """Columns of a tile that a CTA finishes."""
        return self.columns // _FINISHERS[self.columns // 8, self.parts]


_FINISHERS = np.array([[finishers(8 * columns, parts) for parts in range(9)] for columns in range(33)])
_ALONE = np.array([ALONE.get(peers, 0) for peers in range(9)])
_CLUSTER_CLOCKS = np.array([CLUSTER_CLOCKS.get(peers, 0.0) for peers in range(9)])


def has_short_side(problem: MatmulProblem) -> bool:
    """Whether it is of the sizes that are meant here."""
    short, long = sorted((problem.m, problem.n))
    of_size = MOST_FEW < short <= MOST_SHORT and long >= LEAST_LONGER * short
    return of_size and problem.k * DTYPE_BYTES[problem.dtype_a] >= LEAST_K_BYTES and streamable(problem)


def is_short(problem: MatmulProblem) -> bool:
    """Whether `short_configs` has what is the fastest; what lanes need to store C, `plan_cluster` knows better."""
    return has_short_side(problem) and tma_writes(problem)


def _clocks(problem: MatmulProblem, config: ClusterConfig, shapes: _Shapes, gpu: Gpu) -> np.ndarray:
    """The model's times; config: what all are alike in."""
    of, size = config.as_multiplied(problem), DTYPE_BYTES[problem.dtype_a]
    m, n, share_b, share_a, peers = shapes.rows, shapes.columns, shapes.share_b, shapes.share_a, shapes.peers
    down, right = ceil_div(ceil_div(of.m, m), share_b), ceil_div(ceil_div(of.n, n), share_a)
    clusters = down * right
    slices = ceil_div(ceil_div(of.k * size, SLICE_BYTES), shapes.parts)

    in_panels = not config.along_k(of, "b")
    columns = ceil_div(n, 64) * 64 if in_panels else n
    absent_a, absent_b = ceil_div(of.m, m) * m - of.m, ceil_div(of.n, n) * n - of.n + columns - n
    missing = np.where(of.m > m, MISSING_AT_END_CLOCKS, MISSING_CLOCKS) * np.minimum(m / share_a, absent_a)
    missing += np.where(of.n > n, MISSING_AT_END_CLOCKS, MISSING_CLOCKS) * np.minimum(columns / share_b, absent_b)
    of_a = ROW_CLOCKS * ROW_FACTORS[rows_of(of.a, size)] * m / share_a
    of_b = ROW_CLOCKS * ROW_FACTORS[rows_of(of.b, size)] * columns / share_b
    load = (of_a + of_b + missing) * np.where((share_a > 1) & (share_b > 1), BOTH_FACTOR, 1.0)
    alone = slices * np.maximum(np.maximum(load, LATENCY_CLOCKS / shapes.stages), MULTIPLY_CLOCKS * m * n)
    lone = _ALONE[peers] * gpu.compute_units / 132
    alone *= np.where(clusters * peers <= lone, LONE_FACTOR, 1.0)
    paired = slices * PAIR_FACTOR * (of_a if of.m >= of.n else of_b)
    again = of.k * size * ((right - 1) * of.m if of.m >= of.n else (down - 1) * of.n)
    memory = (problem.bytes + AGAIN * again) / BYTES_PER_US * H200.bandwidth_gbs / gpu.bandwidth_gbs * CLOCKS_PER_US
    if of.m < of.n and in_panels:
        memory = memory * np.where(n * size % LINE_BYTES, CUT_LINES, 1.0)
    of_cta = memory * np.choose(np.minimum(share_a * share_b, 3) - 1, (1.0, IN_PAIRS, IN_STEP)) / (clusters * peers)

    def together(count: Any) -> np.ndarray:
        """So many clusters at once."""
        more = np.maximum(count * peers - lone, 0)
        time = np.minimum(count * peers, lone) * of_cta
        time += np.where(more > 0, ((more * of_cta) ** 3 + paired**3) ** (1 / 3), 0.0)
        return (time**3 + alone**3) ** (1 / 3)

    at_once = clusters_at_once(peers, gpu)
    rounds, left = divmod(clusters - 1, at_once)
    last = together(left + 1)
    idle = np.maximum(0.0, 1 - clusters * peers / gpu.compute_units)
    saved = FETCHED_CLOCKS * np.minimum(1.0, shapes.fetched / slices) * idle
    sums = m * shapes.finished
    cut = CUT_SECTORS_CLOCKS * (n * DTYPE_BYTES[problem.dtype_out] % SECTOR_BYTES > 0) * (not config.swapped)
    launch = LAUNCH_CLOCKS + _CLUSTER_CLOCKS[peers] + FULL_CLOCKS * (clusters >= FULL * at_once)
    return (
        launch + rounds * together(at_once) + last - saved * last / (saved + last) + cut
        + (STORE_CLOCKS + EXCHANGE_CLOCKS * (shapes.parts - 1)) * sums
    )  # fmt: skip


def short_us(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> float:
    """The model's time of a config of `short_configs`."""
    numbers = (
        config.block_m, config.block_n, config.cluster_m, config.cluster_n, config.cluster_k, config.stages,
        config.fetched,
    )  # fmt: skip
    return float(_clocks(problem, config, _Shapes(*(np.array([x]) for x in numbers)), gpu)[0]) / CLOCKS_PER_US


def _tiles(of: MatmulProblem) -> list[tuple[int, int]]:
    """Rows and columns of tiles for the product that is multiplied."""
    if of.m >= of.n:
        widths = sorted({ceil_div(ceil_div(of.n, cuts), 8) * 8 for cuts in CUTS})
        return list(product(TILE_ROWS, widths))
    return list(product(sorted({64, ceil_div(of.m, 64) * 64}), COLUMNS))


def _shapes(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> _Shapes:
    """Every tile and cluster for a config that says the rest."""
    of, size_out = config.as_multiplied(problem), DTYPE_BYTES[problem.dtype_out]
    tiles, clusters = np.array(_tiles(of)), np.array(CLUSTERS)
    tile, cluster = (x.ravel() for x in np.indices((len(tiles), len(clusters))))
    (rows, columns), (share_b, share_a, parts) = tiles[tile].T, clusters[cluster].T
    consumers = np.choose(rows // 64, (0, *ROWS.values()))
    fetched = fetched_slices(problem, config.block_k, parts)
    shapes = _Shapes(rows, columns, share_b, share_a, parts, np.zeros_like(parts), fetched)
    lines = rows + (columns if config.along_k(of, "b") else ceil_div(columns, 64) * 64)
    room = gpu.lds_bytes - (parts - 1) * rows * shapes.finished * 4 - 32 * consumers * (parts > 1)
    panels = ceil_div(shapes.finished, SLICE_BYTES // size_out)
    stages = panels_and_stages(room, lines * SLICE_BYTES, 4 * consumers, panels, MOST_STAGES)[1]
    clusters_of = ceil_div(ceil_div(of.m, rows), share_b) * ceil_div(ceil_div(of.n, columns), share_a)
    fits = (parts == 1) | (clusters_of <= clusters_at_once(shapes.peers, gpu))
    fits &= (stages >= 2) & (rows % share_a == 0) & (columns % share_b == 0)
    return _Shapes(*(x[fits] for x in vars(replace(shapes, stages=stages)).values()))


def short_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, float]]:
    """Valid configs with the model's time, in microseconds, the shortest of MOST_TRIED first."""
    found = []
    for swapped in (False, True):
        config = ClusterConfig(
            block_m=64, block_n=64, block_k=SLICE_BYTES // DTYPE_BYTES[problem.dtype_a], stages=MOST_STAGES,
            consumers=1, swapped=swapped,
        )  # fmt: skip
        if config.why_not_swapped(problem) is None:
            shapes = _shapes(problem, config, gpu)
            times = _clocks(problem, config, shapes, gpu) / CLOCKS_PER_US
            numbers = zip(*(x.tolist() for x in vars(shapes).values()), strict=True)
            found += [(time_us, tile, config) for time_us, tile in zip(times.tolist(), numbers, strict=True)]
    found.sort(key=lambda item: item[0])
    for time_us, (rows, columns, share_b, share_a, parts, *_), config in found[:MOST_TRIED]:
        tried = fitted(config.with_knobs(
            block_m=rows, block_n=columns, consumers=ROWS[rows], cluster_m=share_b, cluster_n=share_a, cluster_k=parts,
        ), problem, gpu)  # fmt: skip
        if tried.why_invalid(problem, gpu) is None:
            yield tried, time_us

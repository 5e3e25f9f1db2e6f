"""Configs of `hopper_cluster` for 33 to 128 rows or columns of 8 or 16 bits, and for more of few tiles, with estimates.

Of few rows nearly all that is read is the operand of the long side, as in `plan_few`, so that SMs which share a pair
count; of more, what CTAs ask the L2 for, alone or together. Fitted to 1,170 products on one H200, 2026-11-29, and held
against others, results/h200/tiles_short.csv and tiles_small.csv; what columns inside of lines and rows that break
sectors cost to 79 gradients of layers, 2026-11-30, tiles_gradients.csv; docs/hopper-gemm-tried.md. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from ...gpu import Gpu
from .config_cluster import ClusterConfig, finishers
from .config_hopper import TMA_BYTES, tma_writes
from .config_sums import most_sums
from .fit_cluster import CLASSES, MOST_STAGES, ROWS, fetched_slices, fitted, operand_rows, panels_and_stages
from .model_hopper import (
    CLOCKS_PER_US,
    H200,
    LINE_BYTES,
    SECTOR_BYTES,
    SLICE_BYTES,
    Rows,
    ceil_div,
    clusters_at_once,
    constants_of,
    rows_of,
)
from .plan_few import ALONE, MOST_FEW, streamable
from .problem import DTYPE_BYTES, MatmulProblem

MOST_SHORT, MOST_C = 128, 1 << 21  #: of the short side, or elements of C
LEAST_K_BYTES = 512  #: of a row
#: CTAs that share B's columns, that share A's rows, and that have a part of K each
CLUSTERS = (
    (1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 1, 4), (1, 1, 5), (1, 1, 6), (1, 1, 8), (1, 2, 1), (1, 2, 2), (1, 2, 3),
    (1, 2, 4), (1, 4, 1), (1, 4, 2), (2, 1, 1), (2, 1, 2), (2, 1, 3), (2, 1, 4), (2, 2, 1), (2, 2, 2), (4, 1, 1),
    (4, 1, 2), (4, 2, 1), (8, 1, 1),
)  # fmt: skip
#: columns of a tile of the long side, and the least ones where the short side is cut evenly
COLUMNS, LEAST_CUT = range(32, 257, 8), 48
ROW_CLOCKS = 2.249  #: to load a row of a slice
#: more for one that is not there, where all tiles have such rows, and where the last ones of many have
MISSING_CLOCKS, MISSING_AT_END_CLOCKS = 2.161, 0.2933
ROW_FACTORS = {
    Rows.LINES: 1.0, Rows.SECTORS: 1.358, Rows.BROKEN: 1.81, Rows.CLASS_32: 1.169, Rows.CLASS_64: 1.136,
    Rows.CLASS_128: 1.119,
}  # fmt: skip
#: on those of columns that are neighbours in memory, where tiles begin inside of lines, or of sectors
CUT_ROWS, CUT_SECTOR_ROWS = 1.2, 2.3
BOTH_FACTOR, BOTH_BY_EIGHT = 1.225, 1.397  #: on loads of four, and of eight, CTAs that share both operands
#: on loads of lines that many CTAs ask for, none of them in a cluster: the L2 answers neighbours together
TOGETHER = 0.7399
BROKEN_ALONE = 1.291  #: the same where rows break sectors: neighbours are no help
#: for each element of a tile, of a slice, and for each row; on both, by one consumer
MULTIPLY_CLOCKS, STRIP_CLOCKS, ONE_FACTOR = 2.228 / 64, 0.4542, 1.171
LATENCY_CLOCKS = 2881.0  #: until a slice is there
LONE_FACTOR = 0.8202  #: on the slices of CTAs that have a pair of SMs each
PARTS_FACTOR = 0.9654  #: on those of three or more parts of K
PAIR_FACTOR = 0.5297  #: on loads of the long side's rows, by a CTA that shares a pair of SMs, when others are done
#: of the launch, more where so many CTAs share loads, where they have parts of K, and where clusters leave no SM to the
#: next product
LAUNCH_CLOCKS, SHARED_CLOCKS, PARTS_CLOCKS = 2915.0, {1: 0.0, 2: 499.1, 4: 460.7, 8: 950.3}, 263.4
FULL_CLOCKS, FULL = 526.8, 0.97
#: for each sum that a CTA finishes, more where it is turned on its way out, and for each that it receives
STORE_CLOCKS, TURNED_CLOCKS, EXCHANGE_CLOCKS = 0.09695, 0.03041, 0.3302
CUT_SECTORS_CLOCKS = 490.7  #: where tiles beside each other write a part of a sector of C each
BYTES_PER_US, IN_PAIRS, IN_STEP = 4.611e6, 1.032, 0.9523  #: from memory; on its time where two, or more, CTAs share
CUT_LINES = 1.059  #: on its time where columns of the long side that are neighbours in memory begin inside of lines
AGAIN = 0.1662  #: of what is read again, the share that is as slow as memory
FETCHED_CLOCKS = 1767.0  #: most that is saved where slices are asked for ahead, on SMs that are left to them
MOST_TRIED = 24  #: of the shortest estimates, of which some are not valid
ALL_ROWS = 256  #: of tiles that are visited before the next column's


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
_SHARED_CLOCKS = np.array([SHARED_CLOCKS.get(sharers, 0.0) for sharers in range(9)])
_MEMORY_FACTORS = np.array([0.0, 1.0, IN_PAIRS, *(6 * [IN_STEP])])


def has_short_side(problem: MatmulProblem, gpu: Gpu) -> bool:
    """Whether it is of the sizes that are meant here: few tiles on GPUs like an H200 alone, where they were fitted."""
    short = min(problem.m, problem.n)
    few_tiles = problem.m * problem.n <= MOST_C and constants_of(gpu) is H200
    of_size = short > MOST_FEW and (short <= MOST_SHORT or few_tiles)
    return of_size and problem.k * DTYPE_BYTES[problem.dtype_a] >= LEAST_K_BYTES and streamable(problem)


def is_short(problem: MatmulProblem, gpu: Gpu) -> bool:
    """Whether `short_configs` has what is the fastest; what lanes need to store C, `plan_cluster` knows better."""
    return has_short_side(problem, gpu) and tma_writes(problem)


def _clocks(problem: MatmulProblem, config: ClusterConfig, shapes: _Shapes, gpu: Gpu) -> np.ndarray:
    """The model's times; config: what all are alike in."""
    whole, size = config.as_multiplied(problem), DTYPE_BYTES[problem.dtype_a]
    of, classes = config.as_multiplied(config.as_launched(problem)), config.classes(problem)
    m, n, share_b, share_a, peers = shapes.rows, shapes.columns, shapes.share_b, shapes.share_a, shapes.peers
    sharers = share_b * share_a
    tiles_m, tiles_n = ceil_div(of.m, m), ceil_div(of.n, n)
    down = ceil_div(tiles_m, share_b) * (1 if config.swapped else classes)
    right = ceil_div(tiles_n, share_a) * (classes if config.swapped else 1)
    clusters = down * right
    before = max(config.line - TMA_BYTES, 0)
    slices = ceil_div(ceil_div(of.k * size + before, SLICE_BYTES), shapes.parts)

    in_panels = not config.along_k(of, "b")
    columns = ceil_div(n, 64) * 64 if in_panels else n
    rows_a, rows_b = operand_rows(problem, config, size)
    absent_a, absent_b = tiles_m * m - of.m, tiles_n * n - of.n + columns - n
    missing = np.where(of.m > m, MISSING_AT_END_CLOCKS, MISSING_CLOCKS) * np.minimum(m / share_a, absent_a)
    missing += np.where(of.n > n, MISSING_AT_END_CLOCKS, MISSING_CLOCKS) * np.minimum(columns / share_b, absent_b)
    of_a = ROW_CLOCKS * ROW_FACTORS[rows_a] * m / share_a
    of_b = ROW_CLOCKS * ROW_FACTORS[rows_b] * columns / share_b
    if in_panels and rows_b is not Rows.BROKEN:
        of_b = of_b * np.where(n * size % SECTOR_BYTES, CUT_SECTOR_ROWS, np.where(n * size % LINE_BYTES, CUT_ROWS, 1.0))
    both = np.where(sharers > 4, BOTH_BY_EIGHT, BOTH_FACTOR)
    load = (of_a + of_b + missing) * np.where((share_a > 1) & (share_b > 1), both, 1.0)
    together_factor = BROKEN_ALONE if Rows.BROKEN in (rows_a, rows_b) else TOGETHER
    load *= np.where(peers == 1, 1 - (1 - together_factor) * (1 - 1 / right) * (1 - 1 / down), 1.0)
    multiply = (MULTIPLY_CLOCKS * n + STRIP_CLOCKS) * m * np.where(m == 64, ONE_FACTOR, 1.0)
    alone = slices * np.maximum(np.maximum(load, LATENCY_CLOCKS / shapes.stages), multiply)
    lone = _ALONE[peers] * gpu.compute_units / 132
    alone *= np.where(clusters * peers <= lone, LONE_FACTOR, 1.0) * np.where(shapes.parts > 2, PARTS_FACTOR, 1.0)
    by_rows = whole.m >= whole.n
    paired = slices * PAIR_FACTOR * (of_a if by_rows else of_b)
    again = of.k * size * ((right - 1) * whole.m if by_rows else (down - 1) * whole.n)
    memory = (problem.bytes + AGAIN * again) / BYTES_PER_US * H200.bandwidth_gbs / gpu.bandwidth_gbs * CLOCKS_PER_US
    if not by_rows and in_panels:
        memory = memory * np.where(n * size % LINE_BYTES, CUT_LINES, 1.0)
    of_cta = memory * _MEMORY_FACTORS[sharers] / (clusters * peers)

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
    stores = (STORE_CLOCKS + TURNED_CLOCKS * config.swapped) * m * shapes.finished
    cut = CUT_SECTORS_CLOCKS * (n * DTYPE_BYTES[problem.dtype_out] % SECTOR_BYTES > 0) * (not config.swapped)
    launch = LAUNCH_CLOCKS + _SHARED_CLOCKS[sharers] + PARTS_CLOCKS * (shapes.parts > 1)
    launch += FULL_CLOCKS * ((peers > 1) & (clusters >= FULL * at_once))
    return (
        launch + rounds * (together(at_once) + stores) + last - saved * last / (saved + last) + cut
        + stores + EXCHANGE_CLOCKS * (shapes.parts - 1) * m * shapes.finished
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
        cuts = range(ceil_div(of.n, COLUMNS[-1]), max(of.n // LEAST_CUT, 1) + 1)
        widths: Iterable[int] = sorted({ceil_div(ceil_div(of.n, number), 8) * 8 for number in cuts})
    else:
        widths = COLUMNS
    return list(product(ROWS, widths))


def _shapes(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> _Shapes:
    """Every tile and cluster for a config that says the rest."""
    of, size_out = config.as_multiplied(config.as_launched(problem)), DTYPE_BYTES[problem.dtype_out]
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
    fits = (parts == 1) | (clusters_of * config.classes(problem) <= clusters_at_once(shapes.peers, gpu))
    whole, cut = (
        np.choose(rows // 64, (0, *(
            most_sums(config.with_knobs(block_m=r, consumers=c, cluster_k=of_k), problem) for r, c in ROWS.items()
        ))) for of_k in (1, 2)
    )  # fmt: skip
    fits &= rows * columns <= 128 * consumers * np.where(parts == 1, whole, cut)
    fits &= (stages >= 2) & (rows % share_a == 0) & (columns % share_b == 0)
    return _Shapes(*(x[fits] for x in vars(replace(shapes, stages=stages)).values()))


def in_order(config: ClusterConfig, problem: MatmulProblem) -> ClusterConfig:
    """The config with the order of tiles in which neighbours share what CTAs of their clusters do not.

    Of clusters that share B's columns those of one row of tiles come after each other, of those that share A's rows
    those of one column, of others those along the shorter side: where all run at once. 3% on the mean of the first,
    1% of the others, up to a fifth; nothing with few rows, nor where both operands are shared."""
    at_once = config.programs // config.peers
    if min(problem.m, problem.n) <= MOST_SHORT or config.tiles(config.as_launched(problem)) > at_once:
        return config
    whole, more = config.as_multiplied(problem), config.cluster_m - config.cluster_n
    along_rows = more > 0 or (more == 0 and whole.m >= whole.n)
    return config.with_knobs(group_m=1 if along_rows else ALL_ROWS)


def short_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, float]]:
    """Valid configs with the model's time, in microseconds, the shortest of MOST_TRIED first."""
    found = []
    size = DTYPE_BYTES[problem.dtype_a]
    lines = (0, *CLASSES) if rows_of(problem.a, size) is Rows.BROKEN else (0,)
    for swapped, line in product((False, True), lines):
        config = ClusterConfig(
            block_m=64, block_n=64, block_k=SLICE_BYTES // size, stages=MOST_STAGES, consumers=1, swapped=swapped,
            line=line,
        )  # fmt: skip
        if config.why_not_swapped(problem) is None and config.why_not_in_classes(problem) is None:
            shapes = _shapes(problem, config, gpu)
            times = _clocks(problem, config, shapes, gpu) / CLOCKS_PER_US
            numbers = zip(*(x.tolist() for x in vars(shapes).values()), strict=True)
            found += [(time_us, tile, config) for time_us, tile in zip(times.tolist(), numbers, strict=True)]
    found.sort(key=lambda item: item[0])
    for time_us, (rows, columns, share_b, share_a, parts, *_), config in found[:MOST_TRIED]:
        tried = in_order(fitted(config.with_knobs(
            block_m=rows, block_n=columns, consumers=ROWS[rows], cluster_m=share_b, cluster_n=share_a, cluster_k=parts,
        ), problem, gpu), problem)  # fmt: skip
        if tried.why_invalid(problem, gpu) is None:
            yield tried, time_us

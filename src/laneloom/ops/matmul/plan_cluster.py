"""Configs of the CUDA C++ schedules on Hopper: `hopper_cluster` and `hopper_precise`. Pure.

`model_hopper` ranks tiles of every width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod
from typing import NamedTuple

import numpy as np

from ...gpu import Gpu
from .config_cluster import NARROWER, OWN_ROWS, PIECES, ClusterConfig, piece_dtype
from .config_hopper import TMA_BYTES, tma_reads, tma_writes
from .config_shares import MANY_PARTS, added_up, handy, in_line
from .config_sums import most_sums
from .dtypes import HALVES
from .fit_cluster import (
    CLASSES,
    FETCHED_US,
    MOST_STAGES,
    ROWS,
    SHORT_SLICES,
    fitted,
    leaves_room,
    operand_rows,
    overlapped,
    panels_and_stages,
    short_ring,
)
from .model_hopper import (
    HIDDEN_HELD,
    HIDDEN_SPLIT,
    LINE_BYTES,
    SLICE_BYTES,
    WIDE_TILE,
    Rows,
    boxes_of,
    ceil_div,
    clusters_at_once,
    compared_as,
    loaded_columns,
    memory_us,
    product_us,
    rows_of,
)
from .plan_few import few_configs, few_us, is_few
from .plan_short import is_short, short_configs, short_us
from .problem import DTYPE_BYTES, MatmulProblem

_Configs = Callable[[MatmulProblem, Gpu], Iterator[tuple[ClusterConfig, float]]]
_Time = Callable[[MatmulProblem, ClusterConfig, Gpu], float]

#: precision -> slices after which the sums are promoted, so that their error stays below that of cuBLAS
PROMOTE = {"3xtf32": 1, "3xbf16": 1}
#: how many CTAs share B's columns, share A's rows, and have a part of K
CLUSTERS = (
    (1, 1, 1), (2, 1, 1), (1, 2, 1), (4, 1, 1), (2, 2, 1), (4, 2, 1), (2, 4, 1), (1, 1, 2), (1, 1, 4),
    (2, 1, 2), (1, 2, 2), (4, 1, 2), (2, 2, 2), (2, 1, 4), (1, 2, 4),
)  # fmt: skip
#: those that share B's columns, or A's rows, where warpgroups have tiles of their own, of more of them than SMs
OWN_CLUSTERS, OWN = ((1, 1), (2, 1), (1, 2)), 3
OWN_COLUMNS = 96  #: of such a tile; narrower ones were never the fastest
OWN_INTEGERS = 0.98  #: on their slices; 8 to 10% faster than others at 4096 and 8192 cubed, on an H100 and an H200
#: from where on clusters that share loads and have parts of K were measured: 24 products of whole sectors
SHARED_PARTS_ROWS, SHARED_PARTS_BYTES = 48, 16 << 20
LEAST_COLUMNS = 64  #: of tiles, but where two of them would cover the product
LEAST_SLICES = 8  #: of a part of K
#: parts of K that a second launch adds up: as many as make tiles of so many rows and columns these shares of the SMs
PARTS_TILE, PARTS_SHARES, LEAST_SLICES_OF_PART = 128, (0.25, 0.5, 0.75, 1.0, 1.5), 8
SECOND_US, SECOND_MB_US, MANY_PARTS_US = 1.2, 0.8, 2.6  #: that launch, a megabyte of parts, and where they are many
SHORT_PARTS = 1.1  #: on these times where `short_us` has the others, of 220 products on one H200
COPIES_US, COPIED_MB_US = 1.5, 0.6  #: a launch that copies, and a megabyte of what it writes
LONG_K = 16  #: times the longer side of C, from which on it need not be of few tiles
MOST_OF_FEW_ROWS = 1024  #: columns beside fewer rows than a tile has: more are streamed


def _needs_copy(problem: MatmulProblem, name: str, pieces: int, dtype: str) -> bool:
    """Whether the tensor cores cannot have operand "a" or "b" from where it lies."""
    matrix = problem.a if name == "a" else problem.b
    along_k = matrix.major == ("n" if name == "a" else "t")
    return pieces > 1 or not tma_reads(problem, name) or not (along_k or dtype in HALVES)


class Tiles(NamedTuple):
    """Tiles and clusters of many configs: arrays of one number each."""

    m: np.ndarray
    n: np.ndarray
    share_b: np.ndarray  #: CTAs of a cluster that share B's columns
    share_a: np.ndarray  #: that share A's rows
    parts: np.ndarray  #: that have a part of K
    tiles_n: np.ndarray  #: of two widths, or 0
    #: 1 where C is written while the tensor cores multiply, 2 where two strips take turns as well, OWN where warpgroups
    hiding: np.ndarray


@dataclass(frozen=True)
class _Multiplied:
    """What the model asks about the product that is multiplied: a problem's, or its transpose's."""

    problem: MatmulProblem
    size: int  #: bytes of an element of an operand
    a_along_k: bool
    in_panels: bool  #: whether B comes in panels of 64 columns
    rows: tuple[Rows, Rows]  #: A's and B's
    swapped: bool
    by_tma: bool  #: whether TMA can write C where it lies
    scattered: bool  #: whether C's rows do not begin at 16 bytes
    panel: int  #: columns of C in 128 bytes
    before: int  #: bytes by which K begins earlier
    classes: int  #: of C's rows, each a product of a batch

    @staticmethod
    def by(config: ClusterConfig, problem: MatmulProblem) -> _Multiplied:
        """What `config` multiplies for `problem`, whatever its tile."""
        multiplied = config.as_multiplied(config.as_launched(problem))
        kind = piece_dtype(multiplied, config, "a")
        size, size_out = 4 if kind == "tf32" else DTYPE_BYTES[kind], DTYPE_BYTES[problem.dtype_out]
        return _Multiplied(
            multiplied, size, config.along_k(multiplied, "a"), not config.along_k(multiplied, "b"),
            operand_rows(problem, config, size),
            config.swapped,
            tma_writes(problem) and not (config.swapped and size_out > 2),
            problem.out.strides[2] * size_out % TMA_BYTES > 0, SLICE_BYTES // size_out, max(config.line - TMA_BYTES, 0),
            config.classes(problem),
        )  # fmt: skip

    def time_us(self, gpu: Gpu, tiles: Tiles, pieces: int) -> np.ndarray:
        """The model's times."""
        m, n, cluster = tiles.m, tiles.n, (tiles.share_b, tiles.share_a, tiles.parts)
        own = tiles.hiding == OWN
        integers = self.problem.dtype_a in ("int8", "uint8")
        by_tma = self.by_tma & (self.swapped | (n // tiles.parts % self.panel == 0))
        return product_us(
            self.problem, gpu, self.size, (m, n), columns=loaded_columns(n, self.in_panels), cluster=cluster,
            rows=self.rows, pieces=pieces, stages=self.stages(gpu, tiles, pieces),
            boxes=boxes_of(m, self.a_along_k) + boxes_of(n, not self.in_panels),
            cuda=True, by_tma=by_tma, swapped=self.swapped, scattered=self.scattered,
            hidden=np.choose(tiles.hiding, (0.0, HIDDEN_HELD, HIDDEN_SPLIT, 1.0)), own=own,
            slice_factor=np.where(own & integers, OWN_INTEGERS, 1.0),
            before=self.before, classes=self.classes, tiles_n=tiles.tiles_n,
        )  # fmt: skip

    def stages(self, gpu: Gpu, tiles: Tiles, pieces: int) -> np.ndarray:
        """Of the ring, as `fitted` has them."""
        m, n, parts = tiles.m, tiles.n, tiles.parts
        finished, warps = n // parts, 4 * np.choose(m // 64, (0, *ROWS.values()))
        lines = m + (ceil_div(n, 64) * 64 if self.in_panels else n)
        short = ceil_div(self.problem.k * self.size + self.before, SLICE_BYTES) <= SHORT_SLICES
        most = short_ring(m + n, tiles.share_b * tiles.share_a) if short else MOST_STAGES
        room = gpu.lds_bytes - (parts - 1) * m * finished * 4 - warps * 8
        return panels_and_stages(room, pieces * lines * SLICE_BYTES, warps, ceil_div(finished, self.panel), most)[1]

    def uneven(self, gpu: Gpu, tiles: Tiles) -> np.ndarray:
        """The numbers of tiles along N that fill the last round, if tiles of that width or a little less cover N so;
        else 0: as few as do."""
        n, share_b = self.problem.n, tiles.share_b
        if self.in_panels or self.classes > 1 or n < LEAST_COLUMNS:
            return np.zeros_like(tiles.n)
        of_column = ceil_div(self.problem.m, tiles.m * share_b) * self.problem.batches
        few, at_once = ceil_div(n, tiles.n), clusters_at_once(share_b, gpu)
        filling = ceil_div(of_column * few, at_once) * at_once // of_column
        fits = (filling > few) & (filling * (tiles.n - NARROWER) <= n) & (tiles.n >= LEAST_COLUMNS)
        return np.where(fits & (tiles.share_a * tiles.parts == 1), filling, 0)

    def shapes(self, config: ClusterConfig, gpu: Gpu) -> Tiles:
        """Every tile and cluster for a config that says the rest."""
        n = self.problem.n
        slices = ceil_div(self.problem.k * self.size, SLICE_BYTES)
        step = 16 if self.in_panels else 8
        least = min(LEAST_COLUMNS, ceil_div(n, 2 * step) * step) if self.classes == 1 else LEAST_COLUMNS
        found, clusters = [], np.array(CLUSTERS).T
        small = min(self.problem.m, n) < SHARED_PARTS_ROWS or self.problem.bytes < SHARED_PARTS_BYTES
        if small or self.classes > 1 or Rows.BROKEN in self.rows:
            clusters = clusters[:, (clusters[0] * clusters[1] == 1) | (clusters[2] == 1)]
        for rows, consumers in ROWS.items():
            if consumers == 3 and self.problem.epilogue:
                continue  # measured slower
            by_rows = config.with_knobs(block_m=rows, consumers=consumers)
            sums = most_sums(by_rows, self.problem) // (2 if config.promote else 1)
            most = min(256, sums * 128 * consumers // rows, max(ceil_div(n, 16) * 16, least))
            columns = np.arange(least, most + 1, step)
            if self.classes > 1:  # 1 to 8% slower, measured: multiplying is the limit there
                columns = columns[rows * columns != WIDE_TILE]
            hiding = [_hiding(overlapped(by_rows.with_knobs(block_n=x), self.problem)) for x in columns.tolist()]
            width, cluster = (x.ravel() for x in np.indices((len(columns), clusters.shape[1])))
            parts = clusters[2, cluster]
            in_parts = (columns[width] % (8 * parts) == 0) & (slices >= LEAST_SLICES * parts)
            tiles = np.stack((
                np.full_like(width, rows), columns[width], *clusters[:, cluster], np.zeros_like(width),
                np.where(parts == 1, np.array(hiding, dtype=int)[width], 0),
            ))  # fmt: skip
            found.append(tiles[:, (parts == 1) | in_parts])
        return Tiles(*np.concatenate((*found, self.own_tiles(config, gpu, step)), axis=1))

    def own_tiles(self, config: ClusterConfig, gpu: Gpu, step: int) -> np.ndarray:
        """Tiles of one warpgroup each, where every SM has more than one of them."""
        one = config.with_knobs(block_m=OWN_ROWS, own_tiles=True, tma_store=self.by_tma)
        most = 0 if config.promote or self.problem.n < OWN_COLUMNS else most_sums(one, self.problem)
        columns = np.arange(OWN_COLUMNS, most + 1, step)
        down = ceil_div(self.problem.m, OWN_ROWS) * self.problem.batches
        columns = columns[down * ceil_div(self.problem.n, columns) > gpu.compute_units]
        width, cluster = (x.ravel() for x in np.indices((len(columns), len(OWN_CLUSTERS))))
        clusters = np.array(OWN_CLUSTERS).T
        rest = np.zeros_like(width)
        return np.stack((rest + OWN_ROWS, columns[width], *clusters[:, cluster], rest + 1, rest, rest + OWN))


def uneven_numbers(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> list[int]:
    """The numbers of tiles of two widths that fill all SMs, of whatever tile; `config` says the rest."""
    found = set()
    for swapped in (False, True):
        turned = config.with_knobs(swapped=swapped, line=0)
        if turned.why_not_swapped(problem) is None:
            multiplied = _Multiplied.by(turned, problem)
            found |= set(multiplied.uneven(gpu, multiplied.shapes(turned, gpu)).tolist())
    return sorted(found - {0})


def _hiding(config: ClusterConfig) -> int:
    """As `Tiles` has it."""
    return OWN if config.own_tiles else int(config.split) + int(config.hold_back > 0)


def tiles_of(configs: Sequence[ClusterConfig]) -> Tiles:
    """What the model asks about configs that are alike in all else."""
    return Tiles(*np.array([
        (c.block_m, c.block_n, c.cluster_m, c.cluster_n, c.cluster_k, c.tiles_n, _hiding(c)) for c in configs
    ]).T)  # fmt: skip


def estimate_us(problem: MatmulProblem, config: ClusterConfig, tiles: Tiles, gpu: Gpu) -> np.ndarray:
    """The model's times in microseconds, without copies of operands; config: what all of `tiles` are alike in."""
    return _Multiplied.by(config, problem).time_us(gpu, tiles, config.pieces)


def every_tile(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, Tiles]]:
    """All that is ranked: tiles and clusters, and a config of what those beside each other are alike in."""
    pieces = PIECES.get(problem.precision) or 1
    any_tile = ClusterConfig(
        block_m=128, block_n=128, block_k=0, stages=MOST_STAGES, pieces=pieces,
        promote=PROMOTE.get(problem.precision, 0),
    )  # fmt: skip
    a, b = piece_dtype(problem, any_tile, "a"), piece_dtype(problem, any_tile, "b")
    size = 4 if a == "tf32" else DTYPE_BYTES[a]
    any_tile = any_tile.with_knobs(
        block_k=SLICE_BYTES // size,
        copy_a=_needs_copy(problem, "a", pieces, a), copy_b=_needs_copy(problem, "b", pieces, b),
    )  # fmt: skip
    broken = rows_of(problem.a, size, any_tile.copy_a) is Rows.BROKEN
    # Results of 4 bytes of operands of 16 bits are turned for few rows only: plan_few.py.
    turns = DTYPE_BYTES[problem.dtype_out] == 2 or problem.dtype_a not in HALVES
    for swapped, line in product((False, True) if turns else (False,), (0, *CLASSES) if broken else (0,)):
        config = any_tile.with_knobs(swapped=swapped, line=line)
        if config.why_not_in_classes(problem) is None and config.why_not_swapped(problem) is None:
            multiplied = _Multiplied.by(config, problem)
            tiles = multiplied.shapes(config, gpu)
            uneven = np.array(tiles._replace(tiles_n=multiplied.uneven(gpu, tiles)))
            yield config, Tiles(*np.concatenate((tiles, uneven[:, uneven[5] > 0]), axis=1))


def own_estimate(problem: MatmulProblem, gpu: Gpu) -> tuple[_Configs, _Time] | None:
    """What ranks the configs of few rows, columns or tiles, and the time of one of them; None for other products."""
    if is_few(problem):
        return few_configs, few_us
    return (short_configs, short_us) if is_short(problem, gpu) else None


def cluster_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, float]]:
    """Every valid config with the model's time, in microseconds, without copies of operands; the shortest first.

    Times are those beside which other schedules' may be held (`compared_as`): the shortest of these for the first."""
    if (own := own_estimate(problem, gpu)) is None:
        yield from general_configs(problem, gpu)
        return
    (configs, us), shared = own, compared_as(gpu)
    for config, time_us in configs(problem, gpu):
        yield config, time_us if shared == gpu else us(problem, config, shared)


def general_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, float]]:
    """The same by the model of all products."""
    shared = compared_as(gpu)
    found, alike, times = [], [], []
    for config, tiles in every_tile(problem, gpu):
        columns = (estimate_us(problem, config, tiles, gpu), *tiles[:-1], tiles.hiding == OWN)
        found += [(*row, len(alike)) for row in zip(*(x.tolist() for x in columns), strict=True)]
        times += (columns[0] if shared == gpu else estimate_us(problem, config, tiles, shared)).tolist()
        alike.append(config)
    ranked = zip(sorted(found), sorted(times), strict=True)
    for (_, m, n, share_b, share_a, parts, tiles_n, own, number), time_us in ranked:
        short = ceil_div(problem.k, alike[number].block_k) <= SHORT_SLICES
        config = fitted(alike[number].with_knobs(
            block_m=m, block_n=n, consumers=ROWS[m], cluster_m=share_b, cluster_n=share_a, cluster_k=parts,
            tiles_n=tiles_n, own_tiles=own, stages=int(short_ring(m + n, share_b * share_a)) if short else MOST_STAGES,
        ), problem, gpu)  # fmt: skip
        if config.why_invalid(problem, gpu) is None:
            yield config, time_us - (FETCHED_US if leaves_room(config, problem) else 0.0)


def cluster_parts(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, float]]:
    """Configs with K in parts that a second launch adds up, with the time of both: the best of each number of parts."""
    short, long = sorted((problem.m, problem.n))
    few = problem.batches * ceil_div(short, LEAST_COLUMNS) * ceil_div(long, LEAST_COLUMNS) <= gpu.compute_units // 2
    alone = problem.batches == 1 and problem.k >= LONG_K * long
    if not (few or alone) or short < LEAST_COLUMNS < MOST_OF_FEW_ROWS < long:
        return
    if problem.batches > 1 and not in_line(problem):
        return
    tiles = problem.batches * ceil_div(problem.m, PARTS_TILE) * ceil_div(problem.n, PARTS_TILE)
    block_k = SLICE_BYTES // DTYPE_BYTES[problem.dtype_a]
    slices = ceil_div(problem.k, block_k)
    numbers = {
        handy(min(round(share * gpu.compute_units / tiles), slices // LEAST_SLICES_OF_PART)) for share in PARTS_SHARES
        if share * gpu.compute_units >= tiles and slices >= LEAST_SLICES_OF_PART
    }
    read_us = memory_us(problem.bytes, compared_as(gpu))
    for number in sorted(numbers - {1}):
        split = ClusterConfig(block_m=128, block_n=128, block_k=block_k, stages=2, split_k=number)
        part = replace(split.as_launched(problem), k=ceil_div(slices, number) * block_k)
        if (best := best_cluster(part, gpu)) is not None:
            config = best[0].with_knobs(split_k=number)
            added = DTYPE_BYTES[part.dtype_out] * added_up(number) * problem.batches * problem.m * problem.n / 1e6
            if config.why_invalid(problem, gpu) is None:
                first_us = max(best[1], read_us)  # a part's operands are not all that is read
                time_us = first_us + SECOND_US + SECOND_MB_US * added + MANY_PARTS_US * (number > MANY_PARTS)
                yield config, time_us * (SHORT_PARTS if is_short(problem, gpu) else 1.0)


def likely_configs(problem: MatmulProblem, gpu: Gpu, in_place: bool) -> list[tuple[ClusterConfig, float]]:
    """Of one product, to hold beside other schedules': without copies where TMA reads both operands `in_place`, else
    those of 16 bits with the time of copies."""
    if not in_place and problem.dtype_a not in HALVES:
        return []
    found = (*islice(cluster_configs(problem, gpu), 4), *cluster_parts(problem, gpu))
    if in_place:
        return [pair for pair in found if not (pair[0].copy_a or pair[0].copy_b)]
    return [(config, time_us + copies_us(problem, config)) for config, time_us in found]


def copies_us(problem: MatmulProblem, config: ClusterConfig) -> float:
    """What the launch takes that copies operands, once each, to rows of whole lines."""
    lines = 0
    for operand, matrix, rows, copied in (
        ("a", problem.a, problem.m, config.copy_a), ("b", problem.b, problem.n, config.copy_b),
    ):  # fmt: skip
        along, across = (problem.k, rows) if config.along_k(problem, operand) else (rows, problem.k)
        products = prod(size for size, step in zip(problem.batch, matrix.strides, strict=False) if step)
        lines += copied * products * across * ceil_div(along * DTYPE_BYTES[problem.dtype_a], LINE_BYTES)
    return COPIES_US + COPIED_MB_US * LINE_BYTES * lines / 1e6 if lines else 0.0


def best_cluster(problem: MatmulProblem, gpu: Gpu) -> tuple[ClusterConfig, float] | None:
    """The config of the shortest estimate; None where none is valid."""
    return next(cluster_configs(problem, gpu), None)

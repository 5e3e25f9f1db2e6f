"""Configs of the CUDA C++ schedules on Hopper: `hopper_cluster` and `hopper_precise`. Pure.

`model_hopper` ranks tiles of every width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ...gpu import Gpu
from .config_cluster import NARROWER, PIECES, PRECISE_TILES, ClusterConfig, PreciseConfig, piece_dtype
from .config_hopper import TMA_BYTES, tma_reads, tma_writes
from .model_hopper import (
    BROKEN_FACTOR,
    HIDDEN_HELD,
    HIDDEN_SPLIT,
    SECTOR_BYTES,
    SLICE_BYTES,
    WIDE_TILE,
    ceil_div,
    clusters_at_once,
    loaded_columns,
    product_us,
    row_factor,
)
from .problem import DTYPE_BYTES, MatmulProblem, Matrix

#: precision -> slices after which the sums are promoted, so that their error stays below that of cuBLAS in FP32
PROMOTE = {"3xtf32": 1, "3xbf16": 1}
#: rows of a tile -> warpgroups that multiply it
ROWS = {64: 1, 128: 2, 192: 3, 256: 2}
#: how many CTAs share B's columns, share A's rows, and have a part of K
CLUSTERS = (
    (1, 1, 1), (2, 1, 1), (1, 2, 1), (4, 1, 1), (2, 2, 1), (4, 2, 1), (2, 4, 1), (1, 1, 2), (1, 1, 4),
)  # fmt: skip
#: bytes of the lines that rows of A in classes begin alike in -> factor on loading such rows: fitted on one H200,
#: 2026-11-23, to 1,700 pairs of product and config
LINE_FACTORS = {32: 1.223, 64: 1.164, 128: 0.9755}
LEAST_COLUMNS = 64  #: of tiles, but where two of them would cover the product
ENOUGH_STAGES = 6  #: more are less than what a warp gains that need not wait for a panel of C to be read
LEAST_SLICES = 8  #: of a part of K
MOST_STAGES = 14
PANEL_BYTES = 2048  #: of C that a warp stages at a time: 128 of each of its 16 rows
BARRIER_BYTES = 16  #: of a stage
MOST_FETCHED, MOST_FETCHED_BYTES = 8, 2 << 20  #: slices, and bytes of a product, that are asked for ahead of time
FETCHED_US = 0.3  #: that it saves between two launches
#: of so few slices a ring of more stages and bytes is 2% slower, measured at 1000 cubed; in clusters of 4 one of 8 is
#: 2% faster. Smaller slices take more: 8 x 4096 x 512 by 64x8 tiles 3.4 us with 7, 3.0 with 14
SHORT_SLICES, SHORT_STAGES, SHORT_STAGES_OF_FOUR, SHORT_BYTES = 16, 7, 8, 172032


def _pitch(matrix: Matrix) -> int:
    return matrix.strides[2] if matrix.major == "n" else matrix.strides[3]


def _needs_copy(problem: MatmulProblem, name: str, pieces: int, dtype: str) -> bool:
    """Whether the tensor cores cannot have operand "a" or "b" from where it lies."""
    matrix = problem.a if name == "a" else problem.b
    along_k = matrix.major == ("n" if name == "a" else "t")
    sixteen_bits = dtype in ("bf16", "fp16")
    return pieces > 1 or not tma_reads(problem, name) or not (along_k or sixteen_bits)


def _factor(matrix: Matrix, size: int, copied: bool) -> float:
    return 1.0 if copied else row_factor(_pitch(matrix) * size)


@dataclass(frozen=True)
class _Multiplied:
    """What the model asks about the product that is multiplied: a problem's, or its transpose's."""

    problem: MatmulProblem
    size: int  #: bytes of an element of an operand
    in_panels: bool  #: whether B comes in panels of 64 columns
    factors: tuple[float, float]  #: on loading A's and B's rows
    swapped: bool
    by_tma: bool  #: whether TMA can write C where it lies
    scattered: bool  #: whether C's rows do not begin at 16 bytes
    panel: int  #: columns of C in 128 bytes
    before: int  #: bytes by which K begins earlier
    classes: int  #: of C's rows, each a product of a batch

    @staticmethod
    def by(config: ClusterConfig, problem: MatmulProblem) -> _Multiplied:
        """What `config` multiplies for `problem`, whatever its tile."""
        multiplied = config.as_multiplied(config.in_classes(problem))
        kind = piece_dtype(multiplied, config, "a")
        size, size_out = 4 if kind == "tf32" else DTYPE_BYTES[kind], DTYPE_BYTES[problem.dtype_out]
        factors = _factor(problem.a, size, config.copy_a), _factor(problem.b, size, config.copy_b)
        if config.line:
            factors = LINE_FACTORS[config.line], factors[1]
        if config.swapped:
            factors = factors[1], factors[0]
        return _Multiplied(
            multiplied, size, multiplied.b.major == "n" and not config.copy_b, factors, config.swapped,
            tma_writes(problem), problem.out.strides[2] * size_out % TMA_BYTES > 0, SLICE_BYTES // size_out,
            max(config.line - TMA_BYTES, 0), config.classes(problem),
        )  # fmt: skip

    def time_us(
        self, gpu: Gpu, tile: tuple[int, int], cluster: tuple[int, int, int], pieces: int, hidden: float = 0.0,
        tiles_n: int = 0,
    ) -> float:  # fmt: skip
        """The model's time."""
        columns = loaded_columns(tile[1], self.in_panels)
        by_tma = self.by_tma and (self.swapped or tile[1] // cluster[2] % self.panel == 0)
        return product_us(
            self.problem, gpu, self.size, tile, columns=columns, cluster=cluster, factors=self.factors, pieces=pieces,
            stages=self.stages(gpu, tile, cluster, pieces),
            cuda=True, by_tma=by_tma, swapped=self.swapped, scattered=self.scattered,
            hidden=hidden, before=self.before, classes=self.classes, tiles_n=tiles_n,
        )  # fmt: skip

    def stages(self, gpu: Gpu, tile: tuple[int, int], cluster: tuple[int, int, int], pieces: int) -> int:
        """Of the ring, as `_fit` has them."""
        m, n = tile
        finished = n // cluster[2]
        lines = m + (ceil_div(n, 64) * 64 if self.in_panels else n)
        short = ceil_div(self.problem.k * self.size + self.before, SLICE_BYTES) <= SHORT_SLICES
        most = _short_ring(m + n, cluster) if short else MOST_STAGES
        room = gpu.lds_bytes - (cluster[2] - 1) * m * finished * 4 - 4 * ROWS[m] * 8
        stage_bytes = pieces * lines * SLICE_BYTES
        return _panels_and_stages(room, stage_bytes, 4 * ROWS[m], ceil_div(finished, self.panel), most)[1]

    def uneven(self, gpu: Gpu, tile: tuple[int, int], cluster: tuple[int, int, int]) -> int:
        """The number of tiles along N that fills the last round, if tiles of that width or a little less cover N so;
        else 0: as few as do."""
        n, width = self.problem.n, tile[1]
        if self.in_panels or cluster[1] * cluster[2] > 1 or self.classes > 1 or min(n, width) < LEAST_COLUMNS:
            return 0
        of_column = ceil_div(self.problem.m, tile[0] * cluster[0]) * self.problem.batches
        few, at_once = ceil_div(n, width), clusters_at_once(cluster[0], gpu)
        filling = ceil_div(of_column * few, at_once) * at_once // of_column
        return filling if filling > few and filling * (width - NARROWER) <= n else 0

    def shapes(self, config: ClusterConfig) -> Iterator[tuple[int, int, tuple[int, int, int]]]:
        """Rows and columns of tiles, and clusters, for a config that says the rest."""
        n = self.problem.n
        slices = ceil_div(self.problem.k * self.size, SLICE_BYTES)
        step = 16 if self.in_panels else 8
        least = min(LEAST_COLUMNS, ceil_div(n, 2 * step) * step) if self.classes == 1 else LEAST_COLUMNS
        for rows, consumers in ROWS.items():
            if consumers == 3 and self.problem.epilogue:
                continue  # measured slower
            sums = config.with_knobs(consumers=consumers).most_sums(self.problem) // (2 if config.promote else 1)
            most = min(256, sums * 128 * consumers // rows, max(ceil_div(n, 16) * 16, least))
            for columns in range(least, most + 1, step):
                if self.classes > 1 and rows * columns == WIDE_TILE:
                    continue  # 1 to 8% slower, measured: multiplying is the limit there
                for cluster in CLUSTERS:
                    parts = cluster[2]
                    if parts == 1 or (columns % (8 * parts) == 0 and slices >= LEAST_SLICES * parts):
                        yield rows, columns, cluster


def uneven_numbers(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> list[int]:
    """The numbers of tiles of two widths that fill all SMs, of whatever tile; `config` says the rest."""
    found = set()
    for swapped in (False, True):
        turned = config.with_knobs(swapped=swapped, line=0)
        if turned.why_not_swapped(problem) is None:
            multiplied = _Multiplied.by(turned, problem)
            found |= {multiplied.uneven(gpu, (m, n), cluster) for m, n, cluster in multiplied.shapes(turned)}
    return sorted(found - {0})


def _hidden(config: ClusterConfig) -> float:
    """The share of a tile's ends that the tensor cores do not wait for."""
    if config.split and config.hold_back:
        return HIDDEN_SPLIT
    return HIDDEN_HELD if config.split or config.hold_back else 0.0


def estimate_us(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> float:
    """The model's time in microseconds, without copies of operands."""
    tile, cluster = (config.block_m, config.block_n), (config.cluster_m, config.cluster_n, config.cluster_k)
    return _Multiplied.by(config, problem).time_us(
        gpu, tile, cluster, config.pieces, _hidden(config), config.tiles_n)  # fmt: skip


def cluster_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, float]]:
    """Every valid config with the model's time, in microseconds, without copies of operands; the shortest first."""
    pieces = PIECES[problem.precision] or 1
    any_tile = ClusterConfig(
        block_m=128, block_n=128, block_k=0, stages=MOST_STAGES, pieces=pieces,
        promote=PROMOTE.get(problem.precision, 0),
    )  # fmt: skip
    a, b = piece_dtype(problem, any_tile, "a"), piece_dtype(problem, any_tile, "b")
    size = 4 if a == "tf32" else DTYPE_BYTES[a]
    short = ceil_div(problem.k * size, SLICE_BYTES) <= SHORT_SLICES
    any_tile = any_tile.with_knobs(
        block_k=SLICE_BYTES // size,
        copy_a=_needs_copy(problem, "a", pieces, a), copy_b=_needs_copy(problem, "b", pieces, b),
    )  # fmt: skip
    found = []
    broken = _factor(problem.a, size, any_tile.copy_a) == BROKEN_FACTOR
    for swapped, line in product((False, True), (0, *LINE_FACTORS) if broken else (0,)):
        config = any_tile.with_knobs(swapped=swapped, line=line)
        if config.why_not_in_classes(problem) is None and config.why_not_swapped(problem) is None:
            multiplied = _Multiplied.by(config, problem)
            hidden: dict[tuple[int, int, int], float] = {}
            for m, n, cluster in multiplied.shapes(config):
                if (key := (m, n, cluster[2])) not in hidden:
                    tile = config.with_knobs(block_m=m, block_n=n, consumers=ROWS[m], cluster_k=cluster[2])
                    hidden[key] = _hidden(tile.overlapped(problem))
                for tiles_n in {0, multiplied.uneven(gpu, (m, n), cluster)}:
                    time_us = multiplied.time_us(gpu, (m, n), cluster, pieces, hidden[key], tiles_n)
                    found.append((time_us, swapped, line, m, n, cluster, tiles_n))
    for time_us, swapped, line, m, n, cluster, tiles_n in sorted(found):
        config = _fit(any_tile.with_knobs(
            swapped=swapped, line=line, block_m=m, block_n=n, consumers=ROWS[m], cluster_m=cluster[0],
            cluster_n=cluster[1], cluster_k=cluster[2], tiles_n=tiles_n,
            stages=_short_ring(m + n, cluster) if short else MOST_STAGES,
        ), problem, gpu)  # fmt: skip
        if config.why_invalid(problem, gpu) is None:
            yield config, time_us - (FETCHED_US if config.fetched else 0.0)


def _short_ring(lines: int, cluster: tuple[int, int, int]) -> int:
    """Stages for a short K, of so many lines each."""
    least = SHORT_STAGES if cluster[0] * cluster[1] < 4 else SHORT_STAGES_OF_FOUR
    return min(max(least, SHORT_BYTES // (lines * SLICE_BYTES)), MOST_STAGES)


def _panels_and_stages(room: int, stage_bytes: int, warps: int, of_tile: int, most: int) -> tuple[int, int]:
    """The panels of C that each warp stages at a time, of a tile's, as many as cost no stage that matters, and the
    stages that `room` bytes hold beside them."""

    def beside(panels: int) -> int:
        return min((room - warps * panels * PANEL_BYTES) // (stage_bytes + BARRIER_BYTES), most)

    best = 1
    for panels in (2, 4):
        if panels > of_tile or beside(panels) < min(beside(best), ENOUGH_STAGES):
            break
        best = panels
    return best, beside(best)


def _fit(config: ClusterConfig, problem: MatmulProblem, gpu: Gpu) -> ClusterConfig:
    """The config with the way that C is stored, the stages that fit, and panels that cost none that matters."""
    panel = SLICE_BYTES // DTYPE_BYTES[problem.dtype_out]
    columns = config.block_n // config.cluster_k
    # Every program walks over an equal share of the tiles: a cluster that does not fit would begin when others end.
    config = config.with_knobs(programs=clusters_at_once(config.peers, gpu) * config.peers)
    rounds = config.tiles(config.in_classes(problem)) * config.peers / config.programs
    broken = problem.out.strides[2] * DTYPE_BYTES[problem.dtype_out] % SECTOR_BYTES
    # The copy engine is slow to write rows that break sectors: 3% at 1000 cubed, where nothing hides it.
    masked = broken and rounds <= 1 and not config.swapped
    config = config.with_knobs(tma_store=config.stores_by_tma(problem) and not masked)

    multiplied = config.as_multiplied(config.in_classes(problem))
    empty = config.with_knobs(panels=0, stages=0)
    panels, stages = _panels_and_stages(
        gpu.lds_bytes - empty.shared_bytes(problem), config.stage_bytes(multiplied), 4 * config.consumers,
        ceil_div(columns, panel), config.stages,
    )  # fmt: skip
    best = config.with_knobs(panels=panels, stages=max(stages, 2))
    return best.overlapped(problem).with_knobs(fetched=_fetched(best, problem))


def _fetched(config: ClusterConfig, problem: MatmulProblem) -> int:
    """Slices to ask the L2 for ahead of time: all of a product that leaves half of the SMs to the next one, whose CTAs
    then wait there with nothing to do. In larger products the copy engine or memory has no time for it."""
    slices = ceil_div(problem.k, config.block_k)
    idle = 2 * config.tiles(problem) * config.peers <= config.programs
    small = slices <= MOST_FETCHED and problem.bytes <= MOST_FETCHED_BYTES
    return slices if idle and small and not (config.copy_a or config.copy_b or config.line) else 0


def best_cluster(problem: MatmulProblem, gpu: Gpu) -> tuple[ClusterConfig, float] | None:
    """The config of the shortest estimate; None where none is valid."""
    return next(cluster_configs(problem, gpu), None)


def precise(problem: MatmulProblem, gpu: Gpu) -> PreciseConfig:
    """FP64 by DMMA: the tile whose rounds over all SMs take the least time."""

    def cost(tile: tuple[int, int]) -> float:
        tiles = ceil_div(problem.m, tile[0]) * ceil_div(problem.n, tile[1]) * problem.batches
        return ceil_div(tiles, gpu.compute_units) * tile[0] * tile[1] * PRECISE_TILES[tile]

    block_m, block_n = min(PRECISE_TILES, key=cost)
    config = PreciseConfig(
        block_m=block_m, block_n=block_n, block_k=16, stages=6, copy_a=not tma_reads(problem, "a"),
        copy_b=not tma_reads(problem, "b"), programs=gpu.compute_units,
    )  # fmt: skip
    while config.stages > 2 and config.shared_bytes(problem) > gpu.lds_bytes:
        config = config.with_knobs(stages=config.stages - 1)
    return config

"""Configs of the CUDA C++ schedules on Hopper: `hopper_cluster` and `hopper_precise`. Pure.

`model_hopper` ranks tiles of every width.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...gpu import Gpu
from .config_cluster import PIECES, PRECISE_TILES, ClusterConfig, PreciseConfig, piece_dtype
from .config_hopper import tma_reads, tma_writes
from .model_hopper import BROKEN_FACTOR, SECTOR_BYTES, SLICE_BYTES, WIDE_TILE, ceil_div, product_us
from .problem import DTYPE_BYTES, MatmulProblem, Matrix

#: precision -> slices after which the sums are promoted, so that their error stays below that of cuBLAS in FP32
PROMOTE = {"3xtf32": 1, "3xbf16": 1}
#: rows of a tile -> warpgroups that multiply it, its most columns, and how many CTAs may share B's columns, A's rows
ROWS = {
    64: (1, 256, ((1, 1), (2, 1))), 128: (2, 256, ((1, 1), (2, 1))),
    192: (3, 128, ((1, 1), (1, 2))), 256: (2, 128, ((1, 1), (1, 2))),
}  # fmt: skip
LEAST_COLUMNS, COLUMN_STEP = 64, 16
MOST_STAGES = 12
SHORT_SLICES, SHORT_STAGES = 16, 7  #: of so few slices a deeper ring is 2% slower, measured at 1000 cubed


def _pitch(matrix: Matrix) -> int:
    return matrix.strides[2] if matrix.major == "n" else matrix.strides[3]


def _needs_copy(problem: MatmulProblem, name: str, pieces: int, dtype: str) -> bool:
    """Whether the tensor cores cannot have operand "a" or "b" from where it lies."""
    matrix = problem.a if name == "a" else problem.b
    along_k = matrix.major == ("n" if name == "a" else "t")
    sixteen_bits = dtype in ("bf16", "fp16")
    return pieces > 1 or not tma_reads(problem, name) or not (along_k or sixteen_bits)


def _factor(matrix: Matrix, size: int, copied: bool) -> float:
    return BROKEN_FACTOR if not copied and _pitch(matrix) * size % SECTOR_BYTES else 1.0


def estimate_us(
    problem: MatmulProblem, config: ClusterConfig, gpu: Gpu, tile: tuple[int, int], cluster: tuple[int, int]
) -> float:
    """The model's time in microseconds, without copies of operands, by another tile and cluster than `config`'s."""
    kind = piece_dtype(problem, config, "a")
    size = 4 if kind == "tf32" else DTYPE_BYTES[kind]
    factors = _factor(problem.a, size, config.copy_a), _factor(problem.b, size, config.copy_b)
    columns = config.b_columns(problem, tile[1])
    return product_us(
        problem, gpu, size, tile, columns=columns, cluster=cluster, factors=factors, pieces=config.pieces, cuda=True
    )


def cluster_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, float]]:
    """Every valid config with the model's time, in microseconds, without copies of operands; the shortest first."""
    pieces = PIECES[problem.precision] or 1
    any_tile = ClusterConfig(
        block_m=128, block_n=128, block_k=0, stages=MOST_STAGES, pieces=pieces,
        promote=PROMOTE.get(problem.precision, 0), programs=gpu.compute_units,
    )  # fmt: skip
    a, b = piece_dtype(problem, any_tile, "a"), piece_dtype(problem, any_tile, "b")
    size = 4 if a == "tf32" else DTYPE_BYTES[a]
    short = ceil_div(problem.k * size, SLICE_BYTES) <= SHORT_SLICES
    any_tile = any_tile.with_knobs(
        block_k=SLICE_BYTES // size, stages=SHORT_STAGES if short else MOST_STAGES,
        copy_a=_needs_copy(problem, "a", pieces, a), copy_b=_needs_copy(problem, "b", pieces, b),
    )  # fmt: skip
    found = []
    for m, (consumers, most, clusters) in ROWS.items():
        if consumers == 3 and problem.epilogue:
            continue  # no registers left for terms
        if any_tile.promote:  # both sets of sums
            most //= 2
        for n in range(min(LEAST_COLUMNS, max(32, ceil_div(problem.n, 16) * 16)), most + 1, COLUMN_STEP):
            found += [(estimate_us(problem, any_tile, gpu, (m, n), c), m, n, consumers, c) for c in clusters]
    panel = SLICE_BYTES // DTYPE_BYTES[problem.dtype_out]
    for time_us, m, n, consumers, (cluster_m, cluster_n) in sorted(found):
        config = any_tile.with_knobs(
            block_m=m, block_n=n, consumers=consumers, cluster_m=cluster_m, cluster_n=cluster_n,
            panels=2 if m * n >= WIDE_TILE and n >= 2 * panel else 1, tma_store=tma_writes(problem) and n % panel == 0,
        )  # fmt: skip
        while config.stages > 2 and config.shared_bytes(problem) > gpu.lds_bytes:
            config = config.with_knobs(stages=config.stages - 1)
        if config.why_invalid(problem, gpu) is None:
            yield config, time_us


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

"""Configs of the CUDA C++ schedules on Hopper: `hopper_cluster` and `hopper_precise`. Pure.

The model is that of `plan_hopper`: for each K-slice of 128 bytes a tile takes the longer of multiplying and of loading,
where neighbours in a cluster share their loads. Fitted on one H200, 2026-11-20.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...gpu import Gpu
from .config_cluster import PIECES, PRECISE_TILES, ClusterConfig, PreciseConfig, piece_dtype
from .config_hopper import tma_reads, tma_writes
from .problem import DTYPE_BYTES, MatmulProblem, Matrix

SLICE_BYTES = 128
CLOCKS_PER_US = 1900
REQUEST_CLOCKS = 2.3  #: of one SM's copy engine, for 128 bytes of a row
BROKEN_ROW_FACTOR = 2.0  #: rows whose pitch is no multiple of 32 bytes take two requests
MMA_BYTES_PER_CLOCK = 4096  #: rows x columns x bytes of a slice that the tensor cores take in one clock
TILE_CLOCKS = 2000
#: precision -> slices after which the sums are promoted, so that their error stays below that of cuBLAS in FP32
PROMOTE = {"3xtf32": 1, "3xbf16": 1}
#: SMs that clusters of a size fill together on one H200: its parts of the chip have 16 or 18 SMs, and one has fewer
SMS_IN_CLUSTERS = {1: 132, 2: 132, 4: 120, 8: 120}


@dataclass(frozen=True)
class ClusterTile:
    """One CTA's tile and the cluster that it works in."""

    m: int
    n: int
    consumers: int
    panels: int
    cluster_m: int = 1
    cluster_n: int = 1


#: In the order in which equal costs are resolved.
TILES = (
    ClusterTile(128, 256, 2, 2, cluster_m=2),
    ClusterTile(256, 128, 2, 2, cluster_n=2),
    ClusterTile(128, 256, 2, 2),
    ClusterTile(128, 128, 2, 2),
    ClusterTile(64, 128, 1, 1, cluster_m=2),
    ClusterTile(64, 128, 1, 1),
    ClusterTile(128, 64, 2, 1),
    ClusterTile(64, 64, 1, 1),
    ClusterTile(64, 32, 1, 1),
)


def _ceil(x: int, y: int) -> int:
    return -(-x // y)


def _pitch(matrix: Matrix) -> int:
    return matrix.strides[2] if matrix.major == "n" else matrix.strides[3]


def _needs_copy(problem: MatmulProblem, name: str, pieces: int, dtype: str) -> bool:
    """Whether the tensor cores cannot have operand "a" or "b" from where it lies."""
    matrix = problem.a if name == "a" else problem.b
    along_k = matrix.major == ("n" if name == "a" else "t")
    sixteen_bits = dtype in ("bf16", "fp16")
    return pieces > 1 or not tma_reads(problem, name) or not (along_k or sixteen_bits)


def estimate_us(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> float:
    """The model's time of the multiplication, in microseconds, without copies of operands."""
    dtype = piece_dtype(problem, config, "a")
    size = 4 if dtype == "tf32" else DTYPE_BYTES[dtype]
    slices = _ceil(problem.k * size, SLICE_BYTES)
    peers = config.cluster_m * config.cluster_n
    tiles = _ceil(problem.m, config.block_m * config.cluster_m) * _ceil(problem.n, config.block_n * config.cluster_n)
    rounds = _ceil(tiles * problem.batches, SMS_IN_CLUSTERS[peers] * gpu.compute_units // 132 // peers)
    products = config.pieces * (config.pieces + 1) // 2
    multiply = config.block_m * config.block_n * SLICE_BYTES * products / MMA_BYTES_PER_CLOCK
    rows = 0.0
    for matrix, copied, share in (
        (problem.a, config.copy_a, config.block_m / config.cluster_n),
        (problem.b, config.copy_b, config.block_n / config.cluster_m),
    ):
        broken = not copied and _pitch(matrix) * size % 32
        rows += share * config.pieces * (BROKEN_ROW_FACTOR if broken else 1.0)
    clocks = max(multiply, rows * REQUEST_CLOCKS) * slices + TILE_CLOCKS
    return rounds * clocks / CLOCKS_PER_US


def cluster_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, float]]:
    """Every tile with its estimate, shortest first."""
    pieces = PIECES[problem.precision] or 1
    promote = PROMOTE.get(problem.precision, 0)
    found = []
    for tile in TILES:
        config = ClusterConfig(
            block_m=tile.m, block_n=tile.n, block_k=0, stages=7, consumers=tile.consumers, panels=tile.panels,
            cluster_m=tile.cluster_m, cluster_n=tile.cluster_n, pieces=pieces, promote=promote,
            programs=gpu.compute_units,
        )  # fmt: skip
        a, b = piece_dtype(problem, config, "a"), piece_dtype(problem, config, "b")
        panel = SLICE_BYTES // DTYPE_BYTES[problem.dtype_out]
        config = config.with_knobs(
            block_k=SLICE_BYTES // (4 if a == "tf32" else DTYPE_BYTES[a]),
            copy_a=_needs_copy(problem, "a", pieces, a),
            copy_b=_needs_copy(problem, "b", pieces, b),
            panels=min(tile.panels, _ceil(tile.n, panel)),
            tma_store=tma_writes(problem) and tile.n % panel == 0,
        )
        while config.stages > 2 and config.shared_bytes(problem) > gpu.lds_bytes:
            config = config.with_knobs(stages=config.stages - 1)
        found.append((config, estimate_us(problem, config, gpu)))
    yield from sorted((pair for pair in found if pair[0].why_invalid(problem, gpu) is None), key=lambda pair: pair[1])


def best_cluster(problem: MatmulProblem, gpu: Gpu) -> tuple[ClusterConfig, float] | None:
    """The config of the shortest estimate; None where none is valid."""
    return next(cluster_configs(problem, gpu), None)


def precise(problem: MatmulProblem, gpu: Gpu) -> PreciseConfig:
    """FP64 by DMMA: the tile whose rounds over all SMs take the least time."""

    def cost(tile: tuple[int, int]) -> float:
        tiles = _ceil(problem.m, tile[0]) * _ceil(problem.n, tile[1]) * problem.batches
        return _ceil(tiles, gpu.compute_units) * tile[0] * tile[1] * PRECISE_TILES[tile]

    block_m, block_n = min(PRECISE_TILES, key=cost)
    config = PreciseConfig(
        block_m=block_m, block_n=block_n, block_k=16, stages=6, copy_a=not tma_reads(problem, "a"),
        copy_b=not tma_reads(problem, "b"), programs=gpu.compute_units,
    )  # fmt: skip
    while config.stages > 2 and config.shared_bytes(problem) > gpu.lds_bytes:
        config = config.with_knobs(stages=config.stages - 1)
    return config

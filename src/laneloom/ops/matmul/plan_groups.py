"""Which config a grouped product takes; on Hopper one of `hopper_cluster`. Pure.

On Hopper a model ranks a few tiles. It has no ends to look at: groups are taken to be as likely as each other, and
their rows to be more or fewer than the mean by up to UNEVEN of it, so that the last tile of each is partly empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...errors import UnsupportedError
from ...gpu import Gpu
from .config import MatmulConfig, plan
from .config_cluster import ClusterConfig
from .dtypes import default_output
from .model_hopper import clusters_at_once
from .problem import DTYPE_BYTES, MatmulProblem, Matrix


class _Tile(NamedTuple):
    """A tile, CTAs that share its A, and the picoseconds of a CTA for each element of C: for 2 bytes of K, and once."""

    rows: int
    columns: int
    consumers: int
    share_a: int
    panels: int
    holds: bool  #: C's last strip is written while the next tile is multiplied, where it has 16 bits
    group_m: int
    step_ps: float
    element_ps: float = 0.0
    own: bool = False  #: of one warpgroup, while another writes
    scaled: int = 0  #: parts of a tile's columns whose sums are scaled in turn, where blocks of K have scales


#: Of rows in groups, bf16 and fp8 with scales of rows: 116 products on one H100, 2026-11-27, of nine layers of experts,
#: 16 to 2048 rows each, 21 to 25 configs; of K: 67, of 35. What the model prefers is 1.6% and 1.1% slower than the
#: fastest, on average.
OF_ROWS = (
    _Tile(64, 64, 1, 2, 1, False, 8, 0.623), _Tile(64, 128, 1, 2, 1, False, 8, 0.287, 7.8),
    _Tile(128, 128, 2, 2, 1, False, 8, 0.194, 64.0), _Tile(192, 128, 3, 2, 1, False, 8, 0.138, 83.6),
    _Tile(128, 160, 2, 2, 2, False, 8, 0.161, 43.2, own=True), _Tile(128, 176, 2, 1, 2, False, 8, 0.189, own=True),
    _Tile(128, 192, 2, 1, 2, False, 8, 0.160, own=True),
)  # fmt: skip
#: of 8-bit floats whose blocks of K have scales, or whose sums are promoted: 35 products, of 37 to 57; 0.8%
OF_SCALED = (
    _Tile(64, 128, 1, 1, 1, False, 8, 0.70, scaled=1), _Tile(192, 128, 3, 1, 1, False, 8, 0.37, scaled=1),
    _Tile(128, 256, 2, 1, 1, False, 8, 0.37, scaled=2),
)  # fmt: skip
OF_K = (
    _Tile(128, 128, 2, 1, 2, True, 1, 0.635, 62.5), _Tile(128, 128, 2, 2, 2, False, 8, 0.362, 86.0, own=True),
    _Tile(128, 192, 2, 1, 1, False, 8, 0.251, 106.0, own=True),
)  # fmt: skip
UNEVEN = 0.25
#: of rows in groups, and where sums leave the tensor cores for each block of K: rounds of tiles beside those that fill
#: the SMs, and the share of the memory's time that nothing hides
_ENDS, _ENDS_OF_SCALED = (1.0, 0.5), (0.7, 0.7)
_MOST_STAGES = 12


def kind_of(problem: MatmulProblem) -> dict[str, Any]:
    """The knobs that say what lies in groups."""
    return {"k_grouped": True, "fetched": 0, "split": False} if problem.k_grouped else {"grouped": True}


def tile_config(tile: _Tile, problem: MatmulProblem, gpu: Gpu) -> ClusterConfig:
    """The config of a tile, with as many stages as there is room for."""
    config = ClusterConfig(
        block_m=tile.rows, block_n=tile.columns, block_k=128 // DTYPE_BYTES[problem.dtype_a], stages=0,
        consumers=tile.consumers, cluster_n=tile.share_a, panels=tile.panels, group_m=tile.group_m, own_tiles=tile.own,
        scaled=tile.scaled,
        programs=int(clusters_at_once(tile.share_a, gpu)) * tile.share_a, **kind_of(problem))  # fmt: skip
    # Registers: there are none for the scales of each column, or FP32 results, beside both ways to store them.
    tight = problem.scales and (problem.scales.columns == 1 or DTYPE_BYTES[problem.dtype_out] > 2)
    config = config.with_knobs(tma_store=config.stores_by_tma(problem) and not tight)
    held = config.with_knobs(hold_back=1)
    if tile.holds and held.why_not_overlapped(problem) is None:
        config = held
    empty, one = (config.with_knobs(stages=stages).shared_bytes(problem) for stages in (0, 1))
    return config.with_knobs(stages=min((gpu.lds_bytes - empty) // (one - empty), _MOST_STAGES))


def _mean_tiles(rows: float, block: int) -> float:
    """Of `block` rows each, on the mean of groups of rows between (1 - UNEVEN) and (1 + UNEVEN) times so many."""

    def integral(x: float) -> float:  # of the tiles of up to x rows
        whole = x // block
        return block * whole * (whole + 1) / 2 + (x - block * whole) * (whole + 1)

    return max((integral((1 + UNEVEN) * rows) - integral((1 - UNEVEN) * rows)) / (2 * UNEVEN * rows), 1.0)


def _estimate_us(tile: _Tile, config: ClusterConfig, problem: MatmulProblem, gpu: Gpu) -> float:
    """Rounds of tiles; of rows in groups, what of the memory's time they do not hide as well."""
    size, size_out, groups = DTYPE_BYTES[problem.dtype_a], DTYPE_BYTES[problem.dtype_out], problem.batches
    area_us = tile.rows * tile.columns * 0.5e-6

    def of_tile(k: float) -> float:
        return area_us * (tile.step_ps * k * size + tile.element_ps * size_out)

    if problem.k_grouped:
        rounds = max(config.tiles(problem) * config.peers / gpu.compute_units, 1.0)
        return rounds * of_tile(problem.k / groups)
    filled = groups * (1 - (1 - 1 / groups) ** problem.m)  # those that have rows
    right = -(-problem.n // (tile.columns * tile.share_a)) * tile.share_a
    tiles = filled * right * _mean_tiles(problem.m / filled, tile.rows)
    moved = size * (problem.m + filled * problem.n) * problem.k + size_out * problem.m * problem.n
    tail, unhidden = _ENDS_OF_SCALED if problem.adds_blocks else _ENDS
    rounds = max(tiles / gpu.compute_units + tail, 1.0)
    return rounds * of_tile(problem.k) + unhidden * moved / (gpu.bandwidth_gbs * 1e3)


@lru_cache(maxsize=1024)
def plan_groups(problem: MatmulProblem, gpu: Gpu) -> ClusterConfig:
    """The config of the shortest estimate. Raises UnsupportedError with the reason where there is none."""
    tiles = OF_K if problem.k_grouped else OF_SCALED if problem.adds_blocks else OF_ROWS
    configs = [(tile, tile_config(tile, problem, gpu)) for tile in tiles]
    for _, config in sorted(configs, key=lambda pair: _estimate_us(*pair, problem, gpu)):
        if config.why_invalid(problem, gpu) is None:
            return config
    any_tile = ClusterConfig(
        block_m=64, block_n=64, block_k=128 if problem.dtype_a in ("fp8", "bf8") else 64, stages=4, consumers=1,
        tma_store=False, scaled=int(problem.adds_blocks), **kind_of(problem))  # fmt: skip
    raise UnsupportedError(any_tile.why_invalid(problem, gpu) or f"no grouped schedule can do {problem.key}")


def plan_dense(sizes: Sequence[int], dtype: str, gpu: Gpu, *, of_k: bool) -> MatmulConfig:
    """The config for G, M, N, K, rows or K in groups, of operands that lie densely, of 8 bits along K; raises
    UnsupportedError."""
    groups, m, n, k = sizes
    a = Matrix((0, 0, 1, m) if of_k else (0, 0, k, 1))
    b, out = (Matrix((0, 0 if each else x * n, n, 1)) for each, x in ((of_k, k), (not of_k, m)))
    if DTYPE_BYTES[dtype] == 1:
        b = Matrix((0, k * n, 1, k))
    dtypes = (dtype, dtype, default_output(dtype, False))
    problem = MatmulProblem(m, n, k, *dtypes, (1, groups), a, b, out, grouped=not of_k, k_grouped=of_k)
    return plan(problem, gpu) if gpu.vendor == "amd" else plan_groups(problem, gpu)

"""Which config a grouped product takes; on Hopper one of `hopper_cluster`. Pure.

On Hopper a model ranks a few tiles. It has no ends to look at: groups are taken to be as likely as each other, and
their rows to be more or fewer than the mean by up to UNEVEN of it, so that the last tile of each is partly empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from ...errors import UnsupportedError
from ...gpu import Gpu
from .config import MatmulConfig, plan
from .config_cluster import ClusterConfig
from .model_hopper import clusters_at_once
from .plan_blocks import scaled_configs
from .problem import DTYPE_BYTES, MatmulProblem, Matrix


class _Tile(NamedTuple):
    """A tile, the CTAs that share B and A, and the picoseconds that a CTA takes for each element of C: for 2 bytes of K
    and for the element itself."""

    rows: int
    columns: int
    consumers: int
    share_b: int
    share_a: int
    panels: int
    overlaps: bool  #: C is written while the tensor cores multiply, as far as can be
    step_ps: float
    element_ps: float


#: Measured on one H100, 2026-11-27: 192 products of rows in groups, 54 of K, of layers of seven mixtures of experts, 22
#: configs each. What the model prefers of them is slower than the fastest by 2.2% and 1.9% (docs/hopper-gemm-tried.md).
_OF_ROWS = (
    _Tile(64, 64, 1, 1, 2, 1, False, 0.607, 73.6), _Tile(64, 128, 1, 1, 1, 1, False, 0.396, 73.6),
    _Tile(64, 128, 1, 1, 2, 1, False, 0.390, 73.6), _Tile(64, 128, 1, 2, 1, 1, False, 0.250, 73.6),
    _Tile(128, 128, 2, 1, 2, 1, False, 0.256, 73.6), _Tile(128, 256, 2, 1, 1, 1, False, 0.217, 73.6),
    _Tile(192, 128, 3, 1, 2, 1, False, 0.2015, 73.6), _Tile(192, 192, 3, 1, 1, 1, False, 0.2076, 73.6),
    _Tile(256, 128, 2, 1, 2, 2, True, 0.2193, 73.6),
)  # fmt: skip
_OF_K = (
    _Tile(128, 128, 2, 1, 1, 2, True, 0.433, 73.7), _Tile(256, 128, 2, 1, 2, 2, True, 0.267, 85.1),
    _Tile(192, 192, 3, 1, 1, 1, False, 0.272, 90.7),
)  # fmt: skip
UNEVEN = 0.25
#: rounds of tiles beside those that fill the SMs, and the share of the memory's time that nothing hides
_TAIL, _MEMORY = (0.697, 0.0), (0.687, 0.12)
_ABSENT_US = 0.081  #: for a slice of a tile whose rows are not there: the copy engine takes longer for them
_MOST_STAGES = 12


def kind_of(problem: MatmulProblem) -> dict[str, Any]:
    """The knobs that say what lies in groups."""
    return {"k_grouped": True, "fetched": 0, "split": False} if problem.k_grouped else {"grouped": True}


def _config(tile: _Tile, problem: MatmulProblem, gpu: Gpu) -> ClusterConfig:
    """The config of a tile, with as many stages as there is room for."""
    config = ClusterConfig(
        block_m=tile.rows, block_n=tile.columns, block_k=128 // DTYPE_BYTES[problem.dtype_a], stages=0,
        consumers=tile.consumers, cluster_m=tile.share_b, cluster_n=tile.share_a, panels=tile.panels,
        programs=int(clusters_at_once(tile.share_a * tile.share_b, gpu)) * tile.share_a * tile.share_b,
        **kind_of(problem))  # fmt: skip
    config = config.with_knobs(tma_store=config.stores_by_tma(problem))
    room = gpu.lds_bytes - config.shared_bytes(problem)
    config = config.with_knobs(stages=min(room // (config.with_knobs(stages=1).shared_bytes(problem)
                                                   - config.shared_bytes(problem)), _MOST_STAGES))  # fmt: skip
    if not tile.overlaps:
        return config
    held = config.with_knobs(hold_back=1) if problem.k_grouped else config.overlapped(problem)
    return held if held.why_not_overlapped(problem) is None else config


def _mean_tiles(rows: float, block: int) -> float:
    """Of `block` rows each, on the mean of groups of rows between (1 - UNEVEN) and (1 + UNEVEN) times so many."""

    def integral(x: float) -> float:  # of the tiles of up to x rows
        whole = x // block
        return block * whole * (whole + 1) / 2 + (x - block * whole) * (whole + 1)

    return max((integral((1 + UNEVEN) * rows) - integral((1 - UNEVEN) * rows)) / (2 * UNEVEN * rows), 1.0)


def _estimate_us(tile: _Tile, config: ClusterConfig, problem: MatmulProblem, gpu: Gpu) -> float:
    """Rounds of tiles, and what of the memory's time they do not hide."""
    size, size_out = DTYPE_BYTES[problem.dtype_a], DTYPE_BYTES[problem.dtype_out]
    groups, of_k = problem.batches, problem.k_grouped
    if of_k:
        k, tiles, filled = problem.k / groups, config.tiles(problem) * config.peers, groups
    else:
        k, filled = problem.k, groups * (1 - (1 - 1 / groups) ** problem.m)  # those that have rows
        right = -(-problem.n // (tile.columns * tile.share_a)) * tile.share_a
        tiles = filled * right * tile.share_b * _mean_tiles(problem.m / filled, tile.rows * tile.share_b)
    moved = size * ((problem.m + problem.n) * problem.k if of_k else (problem.m + filled * problem.n) * problem.k)
    moved += size_out * problem.m * problem.n * (groups if of_k else 1)
    rounds = max(tiles / gpu.compute_units + _TAIL[of_k], 1.0)
    work_us = tile.rows * tile.columns * (tile.step_ps * k * size + tile.element_ps * size_out) / 2 * 1e-6
    if not of_k:
        absent = max(1 - problem.m / tile.rows, 0.0) / tile.share_a
        work_us += _ABSENT_US * absent * problem.k / config.block_k
    return rounds * work_us + _MEMORY[of_k] * moved / (gpu.bandwidth_gbs * 1e3)


def _candidates(problem: MatmulProblem, gpu: Gpu) -> Iterator[ClusterConfig]:
    if problem.scales:  # as if all groups were as large
        alike = replace(problem, m=-(-problem.m // problem.batches), grouped=False)
        yield from (c.with_knobs(grouped=True) for c, _ in scaled_configs(alike, gpu) if c.peers == 1)
        return
    ranked = []
    for tile in _OF_K if problem.k_grouped else _OF_ROWS:
        config = _config(tile, problem, gpu)
        ranked.append((_estimate_us(tile, config, problem, gpu), len(ranked), config))
    yield from (config for *_, config in sorted(ranked))


@lru_cache(maxsize=1024)
def plan_groups(problem: MatmulProblem, gpu: Gpu) -> ClusterConfig:
    """The config of the shortest estimate. Raises UnsupportedError with the reason where there is none."""
    for config in _candidates(problem, gpu):
        if config.why_invalid(problem, gpu) is None:
            return config
    any_tile = ClusterConfig(
        block_m=64, block_n=64, block_k=128 if problem.dtype_a in ("fp8", "bf8") else 64, stages=4, consumers=1,
        tma_store=False, scaled=int(problem.scales is not None), **kind_of(problem))  # fmt: skip
    raise UnsupportedError(any_tile.why_invalid(problem, gpu) or f"no grouped schedule can do {problem.key}")


def plan_dense(sizes: Sequence[int], dtype: str, gpu: Gpu, *, of_k: bool) -> MatmulConfig:
    """The config for G, M, N, K, rows or K in groups, of operands that lie densely; raises UnsupportedError."""
    groups, m, n, k = sizes
    a = Matrix((0, 0, 1, m) if of_k else (0, 0, k, 1))
    b, out = (Matrix((0, 0 if each else x * n, n, 1)) for each, x in ((of_k, k), (not of_k, m)))
    problem = MatmulProblem(
        m, n, k, dtype, dtype, dtype, (1, groups), a, b, out, grouped=not of_k, k_grouped=of_k)  # fmt: skip
    return plan(problem, gpu) if gpu.vendor == "amd" else plan_groups(problem, gpu)

"""Which config a grouped product takes, as if all groups were as large; on Hopper one of `hopper_cluster`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ...errors import UnsupportedError
from ...gpu import Gpu
from .config import MatmulConfig, plan
from .config_cluster import ClusterConfig
from .config_hopper import filled
from .plan_blocks import scaled_configs
from .plan_cluster import cluster_configs
from .problem import MatmulProblem, Matrix

#: Tiles for groups of K, whose results are large: each with its time an element beside the best's, and the same where a
#: group has at most SHORT_K, which is when C's way to memory is the limit. Measured on one H200: docs/hopper-gemm.md.
_LARGE_TILES: tuple[tuple[dict[str, Any], float, float], ...] = (
    ({"block_m": 192, "block_n": 192, "consumers": 3, "cluster_m": 2, "stages": 4, "panels": 1}, 0.98, 1.1),
    ({"block_m": 128, "block_n": 256, "swapped": True, "stages": 4, "panels": 2}, 1.0, 1.0),
    ({"block_m": 128, "block_n": 256, "hold_back": 1, "stages": 4, "panels": 2}, 1.02, 1.02),
    ({"block_m": 256, "block_n": 128, "stages": 4, "panels": 2}, 1.06, 0.97),
    ({"block_m": 192, "block_n": 128, "consumers": 3, "stages": 5, "panels": 1}, 1.05, 0.99),
)  # fmt: skip
SHORT_K = 128
MOST_EMPTY = 1.15  #: of a large tile's elements over C's


def kind_of(problem: MatmulProblem) -> dict[str, Any]:
    """The knobs that say what lies in groups."""
    return {"k_grouped": True, "fetched": 0, "split": False} if problem.k_grouped else {"grouped": True}


def _large_tiles(problem: MatmulProblem, gpu: Gpu) -> Iterator[ClusterConfig]:
    """Configs of large tiles, where these fill the GPU and C fills them."""
    ranked = []
    for knobs, long, short in _LARGE_TILES:
        config = ClusterConfig(block_k=64, **(knobs | kind_of(problem)))
        m, n = (problem.n, problem.m) if config.swapped else (problem.m, problem.n)
        tiles = config.tiles(problem) * config.peers
        empty = tiles * config.block_m * config.block_n / (problem.batches * m * n)
        if empty <= MOST_EMPTY and filled(tiles, gpu.compute_units) > 1 / MOST_EMPTY:
            time = empty * (short if problem.k <= SHORT_K * problem.batches else long)
            ranked.append((time / filled(tiles, gpu.compute_units), len(ranked), config))
    yield from (config for *_, config in sorted(ranked))


def _candidates(problem: MatmulProblem, gpu: Gpu) -> Iterator[ClusterConfig]:
    if problem.k_grouped:
        yield from _large_tiles(problem, gpu)
        # Where groups begin does not matter to the copy engine: as if they were of whole lines.
        whole = 64 * problem.batches
        alike = replace(problem, k=-(-problem.k // whole) * whole).of_equal_groups()
    else:
        alike = replace(problem, m=-(-problem.m // problem.batches), grouped=False)
    for config, _ in (scaled_configs if problem.scales else cluster_configs)(alike, gpu):
        yield config.with_knobs(**kind_of(problem))


@lru_cache(maxsize=1024)
def plan_groups(problem: MatmulProblem, gpu: Gpu) -> ClusterConfig:
    """The config for groups of equal sizes. Raises UnsupportedError with the reason where there is none."""
    for config in _candidates(problem, gpu):
        if (config.peers == 1 or problem.k_grouped) and config.why_invalid(problem, gpu) is None:
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

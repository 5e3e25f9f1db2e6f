"""What runs products of 8-bit floats whose blocks along K have scales. Pure.

On Hopper a model ranks the configs of `hopper_cluster`: of 75 products on one H100, 3000 configs in all, what it
prefers is 1.6% slower than the fastest (2026-11-26).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ...gpu import Gpu
from .config import MatmulConfig
from .config_blocks import any_gpu
from .config_cluster import ClusterConfig
from .config_hopper import tma_reads
from .model_hopper import ceil_div, clusters_at_once
from .problem import SCALE_BLOCK, MatmulProblem

#: rows, columns, warpgroups that multiply, and parts of the columns that take turns
TILES = (
    (64, 32, 1, 1), (64, 64, 1, 1), (64, 96, 1, 1), (64, 128, 1, 1), (64, 256, 1, 2), (128, 64, 2, 1), (128, 96, 2, 1),
    (128, 128, 2, 1), (128, 192, 2, 2), (128, 256, 2, 2), (192, 96, 3, 1), (192, 128, 3, 1), (256, 64, 2, 1),
    (256, 128, 2, 1),
)  # fmt: skip
MOST_TURNED = 128  #: rows of A that may be the columns of C^T = B^T A^T
CLUSTERS = ((1, 1), (2, 1), (1, 2))  #: CTAs that share columns of B, and rows of A
SPLIT_SHARES, MOST_PARTS, LEAST_SLICES = (0.5, 1.0, 2.0), 16, 2  #: of the SMs that parts of K fill; slices of a part
MOST_STAGES, ENOUGH_STAGES = 12, 8
#: clocks of a slice: its multiplication, for 32 elements of a tile; what of its additions, for 128, is not hidden; the
#: wait for them, of one warpgroup, and where the next slice is multiplied meanwhile; 128 bytes of shared memory
MULTIPLY, ADD, WAIT, DUAL_WAIT, SHARED = 1.035, 0.2686, 108.4, 11.44, 1.1
#: to load one row of 128 bytes, one that a neighbour shares, more in clusters, and until a slice is there
ROW, SHARED_ROW, CLUSTER, LATENCY = 1.276, 3.889, 26.69, 2586.0
TWO_PARTS, CUT_BLOCKS = 1.027, 1.3  #: factors of two parts, of tiles whose columns do not begin and end with blocks
LAUNCH, END = 2197.0, 0.0955  #: clocks once, and for each element of a tile
CLOCKS_PER_US, BYTES_PER_US, LAUNCH_US = 1650, 2.728e6, 1.5  #: the memory of one H100
SECOND_US, PARTS_US = 1.343, 0.436  #: a launch that adds up parts of K, and a megabyte of them
COPY_US, COPY_BYTES_PER_US = 3.0, 1.2e6  #: of an operand that TMA or wgmma does not read where it lies
H100_GBS = 3350


def _estimate_us(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> float:
    m, n = config.block_m, config.block_n
    tiles = config.tiles(problem) * config.split_k
    rounds = ceil_div(tiles, int(clusters_at_once(config.peers, gpu)))
    slices = ceil_div(ceil_div(problem.k, SCALE_BLOCK), config.split_k)
    multiply, add = m * n / 32 * MULTIPLY, m * n / 128 * ADD
    multiplied = config.as_multiplied(problem)
    assert multiplied.scales is not None
    if multiplied.scales.columns == 1:
        add *= 2  # their scales are multiplied with those of rows for each element
    wait = DUAL_WAIT if config.dual else WAIT * config.scaled * config.strips
    if config.consumers > 1:  # others multiply meanwhile
        work = multiply + add / 2 + wait * (0.5 if config.consumers == 2 else 0.1)
    elif config.dual:
        work = max(multiply, add) + min(multiply, add) / 2
    else:
        work = multiply + add + wait
    shared = (2 * m + n + m // 64 * n) * SHARED
    own = m / config.cluster_n + n / config.cluster_m
    load = own * ROW + (m + n - own) * SHARED_ROW + CLUSTER * (config.peers > 1)
    clocks = sum(x**6 for x in (work, shared, load, LATENCY / max(config.stages - 1, 1))) ** (1 / 6)
    clocks *= (TWO_PARTS if config.scaled == 2 else 1.0) * (CUT_BLOCKS if config.cuts_blocks(multiplied) else 1.0)
    compute = (LAUNCH + rounds * (slices * clocks + END * m * n)) / CLOCKS_PER_US
    memory = problem.bytes / (BYTES_PER_US * gpu.bandwidth_gbs / H100_GBS) + LAUNCH_US
    time_us = (compute**4 + memory**4) ** 0.25
    if config.split_k > 1:
        time_us += SECOND_US + PARTS_US * config.split_k * problem.m * problem.n * 4e-6
    copied = config.copy_a * problem.m * problem.k + config.copy_b * problem.k * problem.n
    return time_us + (COPY_US + 2 * copied / COPY_BYTES_PER_US if copied else 0.0)


def _parts(tiles: int, k: int, gpu: Gpu) -> list[int]:
    """Parts of K that fill shares of the SMs, and none."""
    slices = ceil_div(k, SCALE_BLOCK)
    wanted = (int(share * gpu.compute_units / tiles) for share in SPLIT_SHARES)
    return sorted({1, *(min(parts, MOST_PARTS) for parts in wanted if 1 < parts <= slices // LEAST_SLICES)})


def _shapes(problem: MatmulProblem, gpu: Gpu) -> Iterator[ClusterConfig]:
    """Tiles, clusters and parts of K; upright, and of few rows turned."""
    m, n = problem.m, problem.n
    any_tile = ClusterConfig(
        block_m=64, block_n=64, block_k=SCALE_BLOCK, stages=MOST_STAGES, scaled=1, programs=gpu.compute_units,
        copy_a=problem.a.major != "n" or not tma_reads(problem, "a"),
        copy_b=problem.b.major != "t" or not tma_reads(problem, "b"),
    )  # fmt: skip
    for rows, columns, consumers, scaled in TILES:
        if rows >= 2 * max(m, 64) or columns >= 2 * max(n, 32):
            continue  # half of it would be empty
        tile = any_tile.with_knobs(
            block_m=rows, block_n=columns, consumers=consumers, scaled=scaled,
            panels=1 if rows == 256 else min(2, ceil_div(columns, 64)))
        parts = [1] if problem.epilogue else _parts(tile.tiles(problem), problem.k, gpu)
        for share_b, share_a in CLUSTERS:
            if (share_b == 1 or m > rows) and (share_a == 1 or n > columns):
                for split_k in parts:
                    yield tile.with_knobs(cluster_m=share_b, cluster_n=share_a, split_k=split_k)
    if m <= MOST_TURNED:
        for rows, consumers in ((64, 1), (128, 2)):
            for share_b in (1, 2):
                yield any_tile.with_knobs(
                    block_m=rows, block_n=ceil_div(m, 8 * share_b) * 8 * share_b, consumers=consumers,
                    cluster_m=share_b, swapped=True)  # fmt: skip


def _fit(config: ClusterConfig, problem: MatmulProblem, gpu: Gpu) -> ClusterConfig | None:
    """The config with the stages that shared memory holds, and one panel of C where more cost a stage of few; None
    if it is invalid."""
    config = config.with_knobs(tma_store=config.stores_by_tma(config.as_launched(problem)))

    def holding(panels: int) -> ClusterConfig:
        held = config.with_knobs(panels=panels)
        while held.stages > 2 and held.shared_bytes(problem) > gpu.lds_bytes:
            held = held.with_knobs(stages=held.stages - 1)
        return held

    fewer, more = holding(1), holding(config.panels)
    config = more if more.stages >= min(fewer.stages, ENOUGH_STAGES) else fewer
    return config if config.why_invalid(problem, gpu) is None else None


@lru_cache(maxsize=1024)
def scaled_configs(problem: MatmulProblem, gpu: Gpu) -> tuple[tuple[ClusterConfig, float], ...]:
    """Every valid config of `hopper_cluster` with an estimate in microseconds, the shortest first."""
    if gpu.matrix_instructions != "wgmma":
        return ()
    shapes = (shape.with_knobs(dual=dual) for shape in _shapes(problem, gpu) for dual in (False, True))
    fitting = (config for shape in shapes if (config := _fit(shape, problem, gpu)) is not None)
    return tuple(sorted(((c, _estimate_us(problem, c, gpu)) for c in fitting), key=lambda pair: pair[1]))


def candidates(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """Configs for the problem with the reason for their place, best first."""
    for config, time_us in scaled_configs(problem, gpu)[:8]:
        yield config, f"shortest estimate, {time_us:.1f} us"
    yield from any_gpu(problem, gpu)

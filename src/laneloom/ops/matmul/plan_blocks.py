"""What runs products of 8-bit floats whose blocks along K have scales, and on Hopper whose sums are promoted. Pure.

There a model ranks the configs of `hopper_cluster`: of 98 products on one H100, 2200 configs in all, what it prefers
is 2.1% slower than the fastest (2026-11-27).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import log2

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
#: more of them without scales, whose blocks no tile cuts
FREE_TILES = (
    (64, 160, 1, 1), (64, 192, 1, 1), (128, 144, 2, 1), (128, 160, 2, 1), (128, 176, 2, 1), (128, 192, 2, 1),
    (192, 64, 3, 1), (256, 96, 2, 1),
)  # fmt: skip
ONLY_TURNED, MOST_TURNED = 32, 128  #: rows of A that are, and that may be, the columns of C^T = B^T A^T
CLUSTERS = ((1, 1), (2, 1), (1, 2))  #: CTAs that share columns of B, and rows of A
LARGE_CLUSTERS = ((4, 1), (1, 4), (2, 2))  #: where every tile has an SM
SPLIT_SHARES, MOST_PARTS, LEAST_SLICES = (0.5, 1.0, 2.0), 16, 2  #: of the SMs that parts of K fill; slices of one
MOST_STAGES, ENOUGH_STAGES = 12, 8
#: clocks of a slice: its multiplication, for 32 elements of a tile; its additions, for 128, so many times with scales
#: of single columns, and without scales; what of them other warpgroups do not hide; the wait for the sums of one, and
#: where the next slice is multiplied meanwhile, the shares of it that two and three leave; 128 bytes of shared memory
MULTIPLY, ADD, ADD_BY_COLUMN, ADD_FREE, ADD_BESIDE = 0.2225, 0.1912, 3.43, 1.424, 1.034
WAIT, WAIT_STRIPS, DUAL_WAIT, DUAL_SHORTER, WAIT_OF = 386.2, 0.2243, 11.37, 0.4964, {1: 1.0, 2: 0.8389, 3: 0.1035}
SHARED = 1.001
#: to load one row of 128 bytes, one that a neighbour shares, for each doubling of a cluster, and until a slice is there
ROW, SHARED_ROW, CLUSTER, LATENCY = 2.856, 0.7462, 18.88, 1181.0
TWO_PARTS, CUT_BLOCKS = 1.023, 1.202  #: factors of two parts, of tiles whose columns do not begin and end with blocks
#: clocks once, for each doubling of a cluster, and for each element of a tile, over a power of the warpgroups
LAUNCH, MEET, END, END_POWER = 1850.0, 76.14, 0.1631, 0.3775
CLOCKS_PER_US, BYTES_PER_US, LAUNCH_US = 1650, 3.077e6, 1.5  #: the memory of one H100
SECOND_US, PARTS_US = 0.948, 0.7577  #: a launch that adds up parts of K, and a megabyte of them
COPY_US, COPY_BYTES_PER_US = 3.0, 1.2e6  #: of an operand that TMA or wgmma does not read where it lies
H100_GBS = 3350


def _estimate_us(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> float:
    m, n = config.block_m, config.block_n
    tiles = config.tiles(problem) * config.split_k
    rounds = ceil_div(tiles, int(clusters_at_once(config.peers, gpu)))
    slices = ceil_div(ceil_div(problem.k, SCALE_BLOCK), config.split_k)
    multiplied = config.as_multiplied(problem)
    multiply, add = m * n / 32 * MULTIPLY, m * n / 128
    if multiplied.scales is None:
        add *= ADD_FREE
    else:  # scales of single columns are multiplied with those of rows for each element
        add *= ADD * (ADD_BY_COLUMN if multiplied.scales.columns == 1 else 1)
    wait = DUAL_WAIT if config.dual else WAIT * config.scaled * config.strips**WAIT_STRIPS
    if config.consumers > 1:
        work = multiply + add * ADD_BESIDE + wait * WAIT_OF[config.consumers]
    elif config.dual:
        work = max(multiply, add) + min(multiply, add) * DUAL_SHORTER
    else:
        work = multiply + add + wait
    shared = (2 * m + n + m // 64 * n) * SHARED
    own, doublings = m / config.cluster_n + n / config.cluster_m, log2(config.peers)
    load = own * ROW + (m + n - own) * SHARED_ROW + CLUSTER * doublings
    clocks = sum(x**6 for x in (work, shared, load, LATENCY / max(config.stages - 1, 1))) ** (1 / 6)
    clocks *= (TWO_PARTS if config.scaled == 2 else 1.0) * (CUT_BLOCKS if config.cuts_blocks(multiplied) else 1.0)
    end = END * m * n / config.consumers**END_POWER
    compute = (LAUNCH + MEET * doublings + rounds * (slices * clocks + end)) / CLOCKS_PER_US
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
    turns = any_tile.with_knobs(swapped=True).why_not_swapped(problem) is None
    for rows, columns, consumers, scaled in TILES if problem.scales else (*TILES, *FREE_TILES):
        if rows >= 2 * max(m, 64) or columns >= 2 * max(n, 32) or (m <= ONLY_TURNED and turns):
            continue  # half of it would be empty
        tile = any_tile.with_knobs(
            block_m=rows, block_n=columns, consumers=consumers, scaled=scaled,
            panels=1 if rows == 256 else min(2, ceil_div(columns, 64)))
        tiles = tile.tiles(problem)
        parts = [1] if problem.epilogue else _parts(tiles, problem.k, gpu)
        for share_b, share_a in (*CLUSTERS, *LARGE_CLUSTERS) if tiles <= gpu.compute_units else CLUSTERS:
            if (share_b == 1 or m > rows) and (share_a == 1 or n > columns):
                peers = share_b * share_a
                programs = int(clusters_at_once(peers, gpu)) * peers
                for split_k in parts:
                    yield tile.with_knobs(cluster_m=share_b, cluster_n=share_a, programs=programs, split_k=split_k)
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

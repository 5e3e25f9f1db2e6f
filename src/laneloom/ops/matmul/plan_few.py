"""Configs of `hopper_cluster` for few rows, or few columns, of 8 or 16 bits beside many, with estimates. Pure.

The short side is the width of one tile, so that the other operand is read once: what counts is how many SMs read it,
and how evenly. Pairs of SMs have equal shares of the memory. Up to about 60 CTAs each have a pair for themselves; of
more, those that share one are the last. Fitted to 397 products on one H200, 2026-11-29, and held against the others of
results/h200/tiles_decode.csv; docs/hopper-gemm-tried.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...gpu import Gpu
from .config_cluster import ClusterConfig
from .config_hopper import tma_reads
from .dtypes import HALVES
from .fit_cluster import MOST_STAGES, ROWS, fitted
from .model_hopper import CLOCKS_PER_US, H200, SLICE_BYTES, Rows, ceil_div, clusters_at_once, rows_of
from .problem import DTYPE_BYTES, MatmulProblem

MOST_FEW = 32  #: of the short side
LEAST_LONG, LEAST_ELEMENTS = 256, 1 << 19  #: of the other, and of its operand: smaller ones were not measured
TILE_ROWS = (64, 128, 192)  #: of the long side
#: CTAs that share the short side's slices, and CTAs with a part of K each. Of 397 products the fastest of these is 0.5%
#: behind the fastest of 21 such pairs and other schedules
CLUSTERS = (
    (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 8), (2, 1), (2, 2), (2, 3), (2, 4), (4, 1), (4, 2),
)  # fmt: skip
#: CTAs of a cluster -> CTAs of such clusters up to which each has a pair of SMs for itself, on one H200
ALONE = {1: 66, 2: 66, 3: 57, 4: 60, 5: 55, 6: 48, 8: 56}
ROW_CLOCKS, COLUMN_CLOCKS = 2.18, 2.04  #: to load a row of the long operand's slice, and of the short one's
ROW_FACTORS = {Rows.LINES: 1.0, Rows.SECTORS: 1.1, Rows.BROKEN: 1.36}  #: on those of the long operand
PAIR_CLOCKS = 2.4  #: for each of its rows that a CTA that shares a pair of SMs still has to load when others are done
LATENCY_CLOCKS, BUSY_STAGES = 1840.0, 1.41  #: until a slice is there; stages of the ring in which none is under way
LAUNCH_CLOCKS, ROUND_CLOCKS = 3726.0, 985.0  #: of the launch, of each round of tiles but the last
EXCHANGE_CLOCKS = 0.108  #: for each sum of a part of K that a CTA receives
BYTES_PER_US, IN_STEP = 4.8e6, 0.957  #: from memory; on its time where four CTAs ask in step
FETCHED_CLOCKS = 1390.0  #: saved where all slices are asked for ahead, by CTAs that leave the other SMs to them


def streamable(problem: MatmulProblem) -> bool:
    """Whether `few_configs` and `short_configs` are for its operands: two matrices of 16 bits, or of 8-bit floats along
    K, that are read where they lie, the larger one of a size that was measured."""
    pair, long = {problem.dtype_a, problem.dtype_b}, max(problem.m, problem.n)
    if problem.batches > 1 or problem.grouped or problem.k_grouped or problem.adds_blocks:
        return False
    if long < LEAST_LONG or long * problem.k < LEAST_ELEMENTS or not all(tma_reads(problem, name) for name in "ab"):
        return False
    halves = problem.dtype_a in HALVES and len(pair) == 1
    return halves or (pair <= {"fp8", "bf8"} and problem.a.major == "n" and problem.b.major == "t")


def is_few(problem: MatmulProblem) -> bool:
    """Whether `few_configs` has what is the fastest."""
    config = ClusterConfig(block_m=64, block_n=8, block_k=0, stages=2, swapped=problem.m <= problem.n)
    few = min(problem.m, problem.n) <= MOST_FEW and config.why_not_swapped(problem) is None
    return few and streamable(problem)


def few_us(problem: MatmulProblem, config: ClusterConfig, gpu: Gpu) -> float:
    """The model's time of a config of `few_configs`."""
    few = problem if config.swapped else problem.transposed()
    size = DTYPE_BYTES[problem.dtype_a]
    shared, parts, peers = config.cluster_m, config.cluster_k, config.peers
    clusters = ceil_div(ceil_div(few.n, config.block_m), shared)
    slices = ceil_div(ceil_div(few.k * size, SLICE_BYTES), parts)
    factor = ROW_FACTORS[rows_of(few.b, size)]

    loaded = ROW_CLOCKS * factor * config.block_m + COLUMN_CLOCKS * config.block_n / shared
    alone = slices * (loaded**4 + (LATENCY_CLOCKS / (config.stages - BUSY_STAGES)) ** 4) ** 0.25
    paired = slices * PAIR_CLOCKS * factor * config.block_m
    memory = problem.bytes / BYTES_PER_US * H200.bandwidth_gbs / gpu.bandwidth_gbs * CLOCKS_PER_US
    of_cta = memory * (IN_STEP if shared >= 4 else 1.0) / (clusters * peers)

    def together(count: int) -> float:
        """So many clusters at once."""
        ctas, lone = count * peers, ALONE[peers] * gpu.compute_units / 132
        time = min(ctas, lone) * of_cta
        if ctas > lone:
            time += (((ctas - lone) * of_cta) ** 3 + paired**3) ** (1 / 3)
        return (time**3 + alone**3) ** (1 / 3)

    at_once = int(clusters_at_once(peers, gpu))
    rounds, last = divmod(clusters - 1, at_once)
    clocks = LAUNCH_CLOCKS + rounds * (together(at_once) + ROUND_CLOCKS) + together(last + 1)
    clocks += (parts - 1) * EXCHANGE_CLOCKS * config.block_m * config.finished
    idle = max(0.0, 1 - clusters * peers / gpu.compute_units)
    return (clocks - FETCHED_CLOCKS * min(1.0, config.fetched / slices) * idle) / CLOCKS_PER_US


def few_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[ClusterConfig, float]]:
    """Every config with the model's time, in microseconds, the shortest first."""
    short = min(problem.m, problem.n)
    found = []
    for rows in TILE_ROWS:
        for shared, parts in CLUSTERS:
            config = fitted(
                ClusterConfig(
                    block_m=rows, block_n=ceil_div(short, 8) * 8, block_k=SLICE_BYTES // DTYPE_BYTES[problem.dtype_a],
                    stages=MOST_STAGES, consumers=ROWS[rows], cluster_m=shared, cluster_k=parts,
                    swapped=problem.m <= problem.n,
                ),
                problem, gpu,
            )  # fmt: skip
            if config.why_invalid(problem, gpu) is None:
                found.append((config, few_us(problem, config, gpu)))
    yield from sorted(found, key=lambda pair: pair[1])

"""What takes a whole batch by one launch on Hopper, of all schedules, by estimates that may be held beside each other.

Each schedule's model was fitted to that schedule alone, and those of `hopper_rows` and `hopper_cluster` miss what a
batch of few rows costs by much the same everywhere. So each has a factor here, fitted to 356 batches on one H200 and on
one H100, tiles_batches.csv of results/h200 and h100, 2026-11-29.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig
from .config_hopper import TMA_BYTES
from .model_hopper import H200, constants_of
from .plan_cluster import best_cluster, cluster_parts, copies_us, estimate_us, tiles_of
from .plan_half import half_best
from .plan_rows import batched_rows
from .problem import DTYPE_BYTES, MatmulProblem

LYING = "operands where they lie, by asynchronous copies"


@dataclass(frozen=True)
class _Beside:
    """On the estimates of each schedule."""

    lying: float  #: hopper_async, of operands that TMA reads too; 1 of others
    rows: float
    cluster: float
    cluster_us: float  #: more, once
    scattered_us: float  #: more for each MB of C whose rows do not begin at 16 bytes
    parts: float  #: hopper_cluster with K in parts


ON_H100 = _Beside(1.04, 1.4, 1.15, cluster_us=0.3, scattered_us=0.44, parts=1.4)
ON_H200 = _Beside(0.89, 1.3, 1.015, cluster_us=-0.55, scattered_us=0.2, parts=0.88)


def batch_configs(problem: MatmulProblem, gpu: Gpu, in_place: bool) -> list[tuple[MatmulConfig, float, str]]:
    """Configs with their times in microseconds and the reason for each, the shortest first.

    in_place: whether TMA reads both operands where they lie."""
    if not problem.m * problem.n * problem.k:
        return []
    beside = ON_H200 if constants_of(gpu) is H200 else ON_H100
    lying = beside.lying if in_place else 1.0
    found: list[tuple[MatmulConfig, float, str]] = [
        (config, lying * time_us, LYING) for config, time_us in half_best(problem, gpu)]  # fmt: skip
    streamed = "few rows or columns: the other operand streams through registers, past mma"
    found += [(config, beside.rows * time_us, streamed) for config, time_us in batched_rows(problem, gpu)]
    if best := best_cluster(problem, gpu):
        time_us = beside.cluster * float(estimate_us(problem, best[0], tiles_of([best[0]]), gpu)[0])
        time_us += beside.cluster_us
        size = DTYPE_BYTES[problem.dtype_out]
        if problem.out.strides[2] * size % TMA_BYTES:
            time_us += beside.scattered_us * problem.batches * problem.m * problem.n * size / 1e6
        time_us += copies_us(problem, best[0])
        found.append((best[0], time_us, "a batch in one launch"))
        for config, parts_us in cluster_parts(problem, gpu):
            found.append((config, beside.parts * parts_us, "a batch in one launch, K in parts"))
    return sorted(found, key=lambda item: item[1])

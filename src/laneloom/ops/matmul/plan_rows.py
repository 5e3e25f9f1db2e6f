"""Configs of `hopper_rows` for batches of few rows, or few columns, with estimates of their times. Pure.

What a product streams is read once, so that memory decides: CTAs for about every SM, as many warps as may load at once.
Measured at 32 batches on one H200; docs/hopper-gemm-tried.md.
"""

from __future__ import annotations

from ...gpu import Gpu
from .config_rows import CLUSTERS, EIGHTH, FEW_ROWS, GROUP, MOST_ROWS, TWO_IN_FLIGHT, UNIT, RowsConfig
from .model_hopper import ceil_div
from .problem import MatmulProblem

LEAST_FILLED = 0.5  #: CTAs for each SM, below which K is cut
LEAST_UNITS = 12  #: of K in a part
MOST_CTAS = {16: 1.2, 8: 4.0}  #: for each SM with so many warps; with more CTAs four warps are enough
WIDE_CTAS = 1.9  #: of 64 columns for each SM, from which on a long K is read in wide lines
FEW_WIDE_CTAS = 2.5  #: of wide lines for each SM, up to which sixteen warps read them
WIDE_UNITS = 32  #: of such a K
SHORT_K = 2  #: rows for each unit of K, above which `hopper_async` loses less at the ends
#: in us: a launch, a megabyte of device memory, a row of the CTAs of an SM, a ragged end of K there, parts of K
LAUNCH_US, MEGABYTE_US, ROW_US, RAGGED_US, PARTS_US = 1.98, 0.234, 0.0067, 0.42, 1.48


def batched_rows(problem: MatmulProblem, gpu: Gpu) -> list[tuple[RowsConfig, float]]:
    """The config for a batch of few rows, or few columns, with its estimate; none for any other problem."""
    swapped = problem.n < problem.m
    few = problem.transposed() if swapped else problem
    if problem.batches == 1 or not 0 < few.m <= MOST_ROWS or few.n < GROUP or not few.k:
        return []
    block_m, units, count = ceil_div(few.m, EIGHTH) * EIGHTH, ceil_div(few.k, UNIT), gpu.compute_units
    if units * SHORT_K < block_m:
        return []
    one_by_one = not RowsConfig(block_m=block_m, block_n=GROUP, num_warps=4, swapped=swapped).k_piece(problem)
    if one_by_one and block_m > EIGHTH:
        return []  # every lane on a row of its own, for each 64 columns once
    products = ceil_div(few.n, GROUP) * problem.batches
    parts = next(
        (c for c in CLUSTERS if products * c >= LEAST_FILLED * count or units < LEAST_UNITS * 2 * c), CLUSTERS[-1])
    of_sm, across = products * parts / count, 1
    warps = next((warps for warps, most in MOST_CTAS.items() if of_sm <= most), 4)
    filled = few.n % (2 * GROUP) == 0 or few.n % (2 * GROUP) > GROUP  # else half of the last wide lines is read twice
    if filled and of_sm >= WIDE_CTAS and units >= WIDE_UNITS:
        across, of_sm = 2, ceil_div(few.n, 2 * GROUP) * problem.batches * parts / count
        warps = 16 if of_sm <= FEW_WIDE_CTAS else 8
    least = 2 if few.m > EIGHTH else 3
    while warps > 2 and units * across < least * warps * parts:
        warps //= 2
    stages = 3 if one_by_one or EIGHTH < block_m <= FEW_ROWS else 2 if EIGHTH < block_m <= TWO_IN_FLIGHT else 1
    while True:
        config = RowsConfig(
            block_m=block_m, block_n=GROUP * across, num_warps=warps, across=across, stages=stages, cluster_k=parts,
            swapped=swapped,
        )  # fmt: skip
        if config.why_invalid(problem, gpu) is None:
            break
        if stages > 1:
            stages -= 1
        elif warps > 4:
            warps //= 2
        else:
            return []
    columns = ceil_div(few.n, config.block_n) * config.block_n
    time_us = LAUNCH_US + MEGABYTE_US * problem.bytes / 1e6 * columns / few.n
    time_us += of_sm * (ROW_US * block_m + RAGGED_US * (few.k % UNIT > 0)) + PARTS_US * (parts > 1)
    return [(config, time_us)]

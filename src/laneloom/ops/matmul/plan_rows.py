"""Configs for few rows or columns, with estimates of their times: of `hopper_rows` for batches, of `hopper_skinny` for
one row or column. Pure.

What a product streams is read once, so that memory decides: CTAs for about every SM, as many warps as may load at once.
Measured at 32 batches and 29 rows on one H200; docs/hopper-gemm-tried.md.
"""

from __future__ import annotations

from ...gpu import Gpu
from .config_hopper import SkinnyConfig
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

#: columns of B, k of a slice and warps of a program of `hopper_skinny`, with registers of a thread: each loads 16
#: elements at once, and as many programs run as an SM has room for
BLOCKS = {
    (2, 1024, 4): 39, (2, 2048, 8): 39, (4, 1024, 8): 55, (4, 512, 4): 48, (8, 512, 8): 53, (1, 2048, 4): 40,
}  # fmt: skip
LEAST_K, LEAST_COLUMNS = 768, 512  #: of one row; less goes past the tensor cores
#: in us: a launch, a program of an SM, the latency of a slice, a byte that an SM loads
ROW_LAUNCH_US, PROGRAM_US, LATENCY_US, LOADED_US = 1.307, 0.02876, 0.6205, 1.724e-05
READ_SHARE = 1.096  #: of the memory's rate by the data sheet, a part comes from the L2
TOGETHER, LIMITS = 1.877, 3.737  #: how latency and loads, and both and memory, add up: as sums of such powers


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


def one_row(problem: MatmulProblem, gpu: Gpu) -> SkinnyConfig | None:
    """The config of `hopper_skinny` for one row beside a B, or one column beside an A, along K in 16 bits."""
    swapped = problem.n == 1 != problem.m
    of = problem.transposed() if swapped else problem
    if of.m != 1 or of.b.major != "t" or of.k < LEAST_K or of.n < LEAST_COLUMNS:
        return None
    if of.b.strides[3] % 16 or of.b.alignment % 16:  # what Triton's wide loads ask for
        return None
    found = [
        (SkinnyConfig(block_n=n, block_k=k, num_warps=warps, stages=1, use_dot=False, swapped=swapped), registers)
        for (n, k, warps), registers in BLOCKS.items()
    ]
    best, _ = min(found, key=lambda pair: _row_us(of, *pair, gpu))
    return best


def _row_us(of: MatmulProblem, config: SkinnyConfig, registers: int, gpu: Gpu) -> float:
    """The model's time."""
    warps = config.num_warps
    resident = min((1 << 16) // (32 * warps * ceil_div(registers, 8) * 8), 64 // warps, 32)
    of_sm = ceil_div(of.n, config.block_n) / gpu.compute_units
    rounds, rest = divmod(of_sm, resident)

    def together(programs: float) -> float:
        """A slice of so many programs of one SM."""
        loaded = programs * 2 * config.block_n * config.block_k * LOADED_US
        return (LATENCY_US**TOGETHER + loaded**TOGETHER) ** (1 / TOGETHER)

    slices = ceil_div(of.k, config.block_k)
    running = rounds * together(resident) + (together(rest) if rest else 0)
    running = ROW_LAUNCH_US + of_sm * PROGRAM_US + slices * running
    reading = ROW_LAUNCH_US + 2 * of.n * of.k / (READ_SHARE * gpu.bandwidth_gbs * 1e3)
    return (running**LIMITS + reading**LIMITS) ** (1 / LIMITS)

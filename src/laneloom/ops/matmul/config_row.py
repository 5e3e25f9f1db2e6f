"""The config of `hopper_row`: one row times B contiguous along N, by FMA. Pure; `plan_hopper` chooses."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig
from .config_hopper import FLOAT_OUTPUTS, MOST_SIZE, filled, tma_reads, why_not_bare
from .problem import DTYPE_BYTES, MatmulProblem

UNIT = 8  #: rows of B that a lane loads at once
LEAST_COLUMNS, LEAST_K = 3072, 1024  #: of B; the ring of `hopper`, with more parts of K, is as fast below
AHEAD_BYTES = 32 << 10  #: that a CTA asks the L2 for: less, or twice as much, is 1 to 2% slower
COLUMNS = (32, 64, 128, 256)
CLUSTERS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class RowConfig(MatmulConfig):
    """kernels/hopper_row.cu: a CTA streams block_n columns of B and, of a cluster of cluster_k, one part of K."""

    schedule: str = "hopper_row"
    block_m: int = 1
    block_k: int = UNIT
    stages: int = 1  #: units in flight in a lane
    cluster_k: int = 1  #: CTAs of a cluster, each with a part of K
    ahead: int = 0  #: rows of B that a CTA asks the L2 for before the kernel ahead in the stream has ended
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def ctas(self, problem: MatmulProblem) -> int:
        """CTAs of the launch."""
        return -(-problem.n // self.block_n) * self.cluster_k

    @property
    def turn(self) -> int:
        """Units of rows that a CTA has in flight."""
        return self.stages * self.num_warps * 32 * 8 // self.block_n

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_row: needs clusters, {gpu.name} has none"
        if why := why_not_bare(self.schedule, problem):
            return why
        if problem.batches != 1 or problem.m != 1:
            return f"hopper_row: one product of one row, the problem has {problem.batches} of {problem.m}"
        if problem.dtype_a != problem.dtype_b or problem.dtype_a not in ("bf16", "fp16"):
            return f"hopper_row: multiplies bf16 or fp16, got {problem.dtype_a} and {problem.dtype_b}"
        if problem.dtype_out not in FLOAT_OUTPUTS:
            return f"hopper_row: writes {', '.join(FLOAT_OUTPUTS)}, got {problem.dtype_out}"
        if self.block_n not in COLUMNS or self.cluster_k not in CLUSTERS or (self.block_m, self.block_k) != (1, UNIT):
            return f"hopper_row: 32 to 256 columns, units of {UNIT} rows, clusters of 1 to 8, got {self.text}"
        if problem.b.major != "n" or not tma_reads(problem, "b") or problem.n % 8 or problem.n < self.block_n:
            return f"hopper_row: reads rows of {self.block_n} columns or more of B, in whole pieces of 16 bytes"
        if max(problem.n, problem.k) > MOST_SIZE:
            return f"hopper_row: N and K of at most {MOST_SIZE}, got {problem.n} and {problem.k}"
        threads = 32 * self.num_warps
        if not (self.block_n <= threads <= 512 and 1 <= self.stages <= 2 and self.ahead >= 0):
            return f"hopper_row: a thread for each column, 512 at most, 1 or 2 units in flight, got {self.text}"
        return None


#: columns of a CTA -> its warps and the units that a lane has in flight: what was fastest
_SHAPES = {64: (16, 1), 128: (8, 2), 256: (8, 2)}
#: columns of a CTA, parts of K, and how much of the rounds that its CTAs take they have to fill, in the order of trial
_CHOICES = ((64, 1, 0.9), (256, 4, 0.8), (64, 2, 0.8))


def stream_row(problem: MatmulProblem, gpu: Gpu) -> RowConfig | None:
    """The config for one row against many columns that lie along N; None for any other problem.

    Memory serves all CTAs alike, so their number has to be near a multiple of that of SMs, or else well below it, or
    rows are read in wide pieces by as many CTAs as there may be. Measured at 20 sizes; docs/hopper-gemm-tried.md.
    """
    if problem.m != 1 or problem.b.major != "n" or problem.n < LEAST_COLUMNS or problem.k < LEAST_K:
        return None
    units = gpu.compute_units

    for columns, parts, least in _CHOICES:
        if filled(-(-problem.n // columns) * parts, units) >= least:
            break
    else:
        few = 3 * problem.n <= 2 * 64 * units
        columns, parts = (128, 8) if problem.n < 4096 else (64, 1) if few else (256, 8)
    warps, stages = _SHAPES[columns]
    config = RowConfig(
        block_n=columns, num_warps=warps, stages=stages, cluster_k=parts,
        ahead=AHEAD_BYTES // (columns * DTYPE_BYTES[problem.dtype_b]),
    )  # fmt: skip
    return config if config.why_invalid(problem, gpu) is None else None

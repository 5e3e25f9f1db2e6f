"""The config of `hopper_row`: one row times B contiguous along N, or that transposed, by FMA. Pure; `plan_hopper`
chooses."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig
from .config_hopper import MOST_SIZE, filled, tma_reads, why_not_bare
from .dtypes import FLOAT_OUTPUTS, HALVES
from .model_hopper import LINE_BYTES
from .problem import DTYPE_BYTES, MatmulProblem

UNIT = 8  #: rows of B that a lane loads at once
#: of B of 16 bits beside one row; the ring of `hopper`, with more parts of K, is as fast below
LEAST_COLUMNS, LEAST_K = 3072, 1024
LEAST_LINES, LEAST_ROWS, ROWS_OF_PART = 4, 256, 384  #: of B, and rows of a CTA of several, where CTAs read lines
AHEAD_BYTES = 32 << 10  #: that a CTA asks the L2 for: less, or twice as much, is 1 to 2% slower
PIECE_BYTES = 16  #: that a lane loads of a row
LANES = (4, 8, 16, 32)  #: that load a row
CLUSTERS = (1, 2, 4, 8)
WIDE = ("fp32", "fp64")


@dataclass(frozen=True, kw_only=True)
class RowConfig(MatmulConfig):
    """kernels/hopper_row.cu: a CTA streams block_n columns of B and, of a cluster of cluster_k, one part of K."""

    schedule: str = "hopper_row"
    block_m: int = 1
    block_k: int = UNIT
    stages: int = 1  #: units in flight in a lane
    cluster_k: int = 1  #: CTAs of a cluster, each with a part of K
    ahead: int = 0  #: rows of B that a CTA asks the L2 for before the kernel ahead in the stream has ended
    swapped: bool = False  #: C^T = B^T A^T: one column, A contiguous along M
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def as_multiplied(self, problem: MatmulProblem) -> MatmulProblem:
        """The product as the kernel sees it."""
        return problem.transposed() if self.swapped else problem

    def ctas(self, problem: MatmulProblem) -> int:
        """CTAs of the launch."""
        return -(-self.as_multiplied(problem).n // self.block_n) * self.cluster_k

    def lanes(self, problem: MatmulProblem) -> int:
        """That load a row of a CTA's columns."""
        return self.block_n * DTYPE_BYTES[problem.dtype_b] // PIECE_BYTES

    def turn(self, problem: MatmulProblem) -> int:
        """Units of rows that a CTA has in flight."""
        return self.stages * self.num_warps * 32 // self.lanes(problem)

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_row: needs clusters, {gpu.name} has none"
        if why := why_not_bare(self.schedule, problem):
            return why
        of = self.as_multiplied(problem)
        if of.batches != 1 or of.m != 1:
            return f"hopper_row: one product of one row, the problem has {of.batches} of {of.m}"
        dtype = of.dtype_a
        if dtype != of.dtype_b or (dtype not in HALVES and (dtype not in WIDE or dtype != of.dtype_out)):
            words = f"{of.dtype_a} by {of.dtype_b} in {of.dtype_out}"
            return f"hopper_row: multiplies bf16 or fp16, or fp32 or fp64 in itself, got {words}"
        if dtype in HALVES and of.dtype_out not in FLOAT_OUTPUTS:
            return f"hopper_row: writes {', '.join(FLOAT_OUTPUTS)}, got {of.dtype_out}"
        fits = self.lanes(of) in LANES and self.block_n % (PIECE_BYTES // DTYPE_BYTES[dtype]) == 0
        if not fits or self.cluster_k not in CLUSTERS or (self.block_m, self.block_k) != (1, UNIT):
            return f"hopper_row: 64 to 512 bytes of columns, units of {UNIT} rows, clusters of 1 to 8, got {self.text}"
        whole = of.n * DTYPE_BYTES[dtype] % PIECE_BYTES == 0
        if of.b.major != "n" or not tma_reads(of, "b") or not whole or of.n < self.block_n:
            return f"hopper_row: reads rows of {self.block_n} columns or more of B, in whole pieces of 16 bytes"
        if max(of.n, of.k) > MOST_SIZE:
            return f"hopper_row: N and K of at most {MOST_SIZE}, got {of.n} and {of.k}"
        threads = 32 * self.num_warps
        if not (self.block_n <= threads <= 512 and 1 <= self.stages <= 2 and self.ahead >= 0):
            return f"hopper_row: a thread for each column, 512 at most, 1 or 2 units in flight, got {self.text}"
        return None


#: columns of a CTA -> its warps and the units that a lane has in flight: what was fastest
_SHAPES = {64: (16, 1), 128: (8, 2), 256: (8, 2)}
#: columns of a CTA, parts of K, and how much of the rounds that its CTAs take they have to fill, in the order of trial
_CHOICES = ((64, 1, 0.9), (256, 4, 0.8), (64, 2, 0.8))


def stream_row(problem: MatmulProblem, gpu: Gpu) -> RowConfig | None:
    """The config for one row against many columns that lie along N, or for that transposed; None for any other problem.

    Memory serves all CTAs alike, so their number has to be near a multiple of that of SMs, or else well below it, or
    rows are read in wide pieces by as many CTAs as there may be. Measured at 20 sizes; docs/hopper-gemm-tried.md.
    """
    if problem.m != 1 or problem.dtype_a in WIDE:
        return _in_lines(problem, gpu)
    if problem.b.major != "n" or problem.n < LEAST_COLUMNS or problem.k < LEAST_K:
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


def _in_lines(problem: MatmulProblem, gpu: Gpu) -> RowConfig | None:
    """Lines of 128 bytes, each by as many CTAs as SMs are left for it and K has rows for: of 33 products within 10% of
    the fastest of 40 configs."""
    swapped = problem.m != 1
    of = problem.transposed() if swapped else problem
    columns = LINE_BYTES // DTYPE_BYTES[of.dtype_b]
    lines = -(-of.n // columns)
    if of.b.major != "n" or lines < LEAST_LINES or of.k < LEAST_ROWS:
        return None
    fitting = [p for p in CLUSTERS if lines * p <= gpu.compute_units and of.k >= p * ROWS_OF_PART]
    parts = max(fitting, default=1)
    warps, stages = (8, 2) if parts == CLUSTERS[-1] else (16, 1)
    config = RowConfig(
        block_n=columns, num_warps=warps, stages=stages, cluster_k=parts, ahead=AHEAD_BYTES // LINE_BYTES,
        swapped=swapped,
    )  # fmt: skip
    return config if config.why_invalid(problem, gpu) is None else None

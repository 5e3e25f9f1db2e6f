"""Configs of `hopper_rows`: few rows, or few columns, times a matrix that streams past mma. Pure; `plan_hopper`
chooses."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig
from .config_hopper import MOST_SIZE, filled, tma_reads, why_not_bare
from .config_row import CLUSTERS
from .dtypes import FLOAT_OUTPUTS
from .problem import DTYPE_BYTES, MatmulProblem, Matrix

UNIT = 32  #: of K, what a warp multiplies at once
GROUP = 64  #: columns of B that a lane's eight loads belong to
EIGHTH = 8  #: rows of A that one mma takes
PADDING = 4  #: words behind each row of a warp's sums
MOST_REGISTERS = 65536  #: of an SM
MOST_ROWS = 64
MOST_CTAS = 1 << 31
#: below, `hopper_plain` needs no launch more and is as fast
LEAST_COLUMNS, LEAST_K = 512, 256
FILLED = 0.79  #: of the rounds that its CTAs take: with fewer parts of K memory waits for the last ones
#: rows up to which many parts of K, in warps and CTAs, cost nothing; for more, parts, and bytes that cost more to copy
FEW_ROWS, MOST_PARTS, COPIED_BYTES = 16, 16, 24 << 20
TWO_IN_FLIGHT = 40  #: rows up to which registers hold two units
#: rows of lines that TMA reads as well, and their columns of B along K, for which the ring of `hopper` is 5% slower
IN_PLACE_ROWS, IN_PLACE_FILLED, IN_PLACE_K = 8, 0.9, 2048
AHEAD = 256  #: K that is asked for ahead there


def pieces_of(matrix: Matrix, columns: int = 0) -> int:
    """Elements of 16 bits that may be loaded at once from wherever a line of a matrix begins: 8, 4, 2, or 0.

    columns: of lines along N, the last of which a block is moved back to.
    """
    steps = [*matrix.strides[:2], matrix.strides[2] if matrix.major == "n" else matrix.strides[3], columns]
    for count in (8, 4, 2):
        aligned = matrix.alignment >= 2 * count and all(step % count == 0 for step in steps)
        if matrix.major != "x" and aligned:
            return count
    return 0


@dataclass(frozen=True, kw_only=True)
class RowsConfig(MatmulConfig):
    """kernels/hopper_rows.cu: a CTA streams block_n columns of B and, of a cluster of cluster_k, one part of K."""

    schedule: str = "hopper_rows"
    block_k: int = UNIT
    stages: int = 2  #: units in flight in a lane
    across: int = 1  #: warps beside each other, which read the same of A; the others take units in turn
    cluster_k: int = 1  #: CTAs of a cluster, each with a part of K
    resident: int = 1  #: CTAs on an SM for which registers are kept
    ahead: int = 0  #: K that a CTA asks the L2 for before the kernel ahead in the stream has ended
    swapped: bool = False  #: C^T = B^T A^T: few columns, and A streams
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def as_multiplied(self, problem: MatmulProblem) -> MatmulProblem:
        """The product of few rows."""
        return problem.transposed() if self.swapped else problem

    def piece(self, problem: MatmulProblem) -> int:
        """Elements of B that a lane loads at once."""
        few = self.as_multiplied(problem)
        return pieces_of(few.b, few.n if few.b.major == "n" else 0)

    def k_piece(self, problem: MatmulProblem) -> int:
        """Elements along K that a lane loads at once, of A, and of B if that lies so; 0: A has to come one by one."""
        few = self.as_multiplied(problem)
        of_a = pieces_of(few.a) if few.a.major == "n" else 0
        return of_a if few.b.major == "n" else self.piece(problem) if of_a >= self.piece(problem) else 0

    def blocks(self, problem: MatmulProblem) -> int:
        """Blocks of columns of one product."""
        return -(-self.as_multiplied(problem).n // self.block_n)

    def ctas(self, problem: MatmulProblem) -> int:
        """CTAs of the launch."""
        return self.blocks(problem) * problem.batches * self.cluster_k

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA: each warp's sums, and the parts of K of those that it finishes."""
        parts = self.block_m * self.block_n if self.cluster_k > 1 else 0
        return 4 * (self.num_warps // self.across * self.block_m * (self.block_n + PADDING) + parts)

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_rows: needs clusters, {gpu.name} has none"
        if why := why_not_bare(self.schedule, problem):
            return why
        few = self.as_multiplied(problem)
        if few.m > self.block_m:
            side = "columns" if self.swapped else "rows"
            return f"hopper_rows: at most {self.block_m} {side}, the problem has {few.m}"
        if problem.dtype_a != problem.dtype_b or problem.dtype_a not in ("bf16", "fp16"):
            return f"hopper_rows: multiplies bf16 or fp16, got {problem.dtype_a} and {problem.dtype_b}"
        if problem.dtype_out not in FLOAT_OUTPUTS:
            return f"hopper_rows: writes {', '.join(FLOAT_OUTPUTS)}, got {problem.dtype_out}"
        if max(few.n, few.k) > MOST_SIZE:
            return f"hopper_rows: N and K of at most {MOST_SIZE}, got {few.n} and {few.k}"
        if not self.piece(problem) or few.n < self.block_n:
            return f"hopper_rows: streams {self.block_n} columns or more of B, in pieces of 4 bytes or more"
        return self._why_resources(problem, gpu)

    def _why_resources(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        groups = self.block_n // GROUP // max(self.across, 1)
        if self.block_m not in range(8, 65, 8) or self.block_n % GROUP or self.block_k != UNIT:
            return f"hopper_rows: rows in eights up to 64, columns in {GROUP}s, units of {UNIT}, got {self.text}"
        if groups not in (1, 2, 4) or groups * GROUP * self.across != self.block_n or self.num_warps % self.across:
            return f"hopper_rows: 1, 2 or 4 times {GROUP} columns for each of the warps across, got {self.text}"
        if self.cluster_k not in CLUSTERS or self.num_warps not in (1, 2, 4, 8, 16):
            return f"hopper_rows: clusters of 1 to 8, 1 to 16 warps, powers of two, got {self.text}"
        if not (1 <= self.stages <= 4 and 1 <= self.resident <= 4 and self.ahead >= 0):
            return f"hopper_rows: 1 to 4 units in flight, 1 to 4 CTAs an SM, got {self.text}"
        if self.ctas(problem) >= MOST_CTAS:
            return f"hopper_rows: less than {MOST_CTAS} CTAs, got {self.ctas(problem)}"
        needed = self.shared_bytes(problem)
        if needed * self.resident > gpu.lds_bytes:
            return f"hopper_rows: {self.resident} CTAs need {needed} bytes each, {gpu.name} has {gpu.lds_bytes}"
        held = (32 * groups + self.block_m // 2) * self.stages + 2 * self.block_m * groups
        if held > min(255, MOST_REGISTERS // (32 * self.num_warps * self.resident)) - 24:
            return f"hopper_rows: holds {held} registers of loads and sums, {self.resident} CTAs leave a thread fewer"
        return None


def stream_rows(problem: MatmulProblem, gpu: Gpu) -> RowsConfig | None:
    """The config for few rows, or few columns, and many of the other in lines that TMA cannot read, or where it is
    faster than TMA; None for any other problem.

    Measured at 20 sizes; docs/hopper-gemm-tried.md.
    """
    swapped = problem.n < problem.m
    few = problem.transposed() if swapped else problem
    if few.n < LEAST_COLUMNS or few.k < LEAST_K or few.m > MOST_ROWS or problem.batches > 1:
        return None
    blocks, units = -(-few.n // GROUP), gpu.compute_units
    block_m = -(-few.m // EIGHTH) * EIGHTH
    if tma_reads(few, "b"):
        once = few.b.major == "t" and few.m <= IN_PLACE_ROWS and few.k >= IN_PLACE_K
        if not (once and IN_PLACE_FILLED * units <= 2 * blocks <= units):
            return None
        config = RowsConfig(block_m=block_m, block_n=GROUP, num_warps=16, stages=1, cluster_k=2, ahead=AHEAD)
    else:
        one_by_one = few.a.major == "n" and not RowsConfig(block_m=block_m, block_n=GROUP, num_warps=4).k_piece(few)
        if one_by_one and block_m > EIGHTH:
            return None  # every lane on a row of its own, for each 64 columns once
        if block_m > FEW_ROWS and few.n * few.k * DTYPE_BYTES[few.dtype_b] < COPIED_BYTES:
            return None
        config = _filling(blocks, units, block_m, few.k)
    config = config.with_knobs(swapped=swapped)
    return config if config.why_invalid(problem, gpu) is None else None


def _filling(blocks: int, units: int, block_m: int, k: int) -> RowsConfig:
    """As few parts of K as fill the rounds that CTAs take, or else as fill them best."""

    def warps(parts: int) -> int:
        if block_m > FEW_ROWS:
            return min(8, MOST_PARTS // parts)
        return 4 if blocks * parts > 2 * units else 8

    allowed = [parts for parts in CLUSTERS if parts == 1 or k >= 2 * UNIT * parts * warps(parts)]
    fills = {parts: filled(blocks * parts, units) for parts in allowed}
    parts = next((parts for parts in allowed if fills[parts] >= FILLED), max(fills, key=fills.__getitem__))
    return RowsConfig(
        block_m=block_m, block_n=GROUP, num_warps=warps(parts), stages=2 if block_m <= TWO_IN_FLIGHT else 1,
        cluster_k=parts,
    )  # fmt: skip

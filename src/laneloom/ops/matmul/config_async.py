"""Configs of `hopper_async`: 16 bits and FP64 by mma, FP32 by FMA, any strides and batch. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig
from .config_hopper import MOST_SIZE, why_not_bare
from .config_row import CLUSTERS
from .problem import DTYPE_BYTES, MatmulProblem

SLICES_BYTES = (64, 128, 256)  #: of a slice along K
STEP = {"fp32": 4, "fp64": 8, "bf16": 16, "fp16": 16}  #: of K, which a group of threads multiplies at once, at most
PADDING = {"fp32": 4, "fp64": 4, "bf16": 8, "fp16": 8}  #: elements behind each line in shared memory
PIECE, SHORT_LINE = 8, 16  #: of 16 bits: in 16 bytes; lines of operands not along K that come element by element
SUM_PADDING = 4  #: behind each line of sums there
WARPS = 4
MOST_CTAS = (1 << 31) - 1

#: tiles of FP32, with the part of a thread: reads of shared memory take as long as 8 x 8 multiplications
FP32_TILES = {
    (128, 64): (8, 8), (128, 32): (8, 8), (128, 16): (8, 8), (128, 8): (8, 8), (128, 4): (8, 4),
    (128, 1): (8, 1), (64, 64): (8, 8), (64, 32): (8, 8), (64, 16): (8, 8), (64, 8): (8, 4), (64, 4): (4, 4),
    (64, 1): (4, 1), (32, 32): (8, 4),
}  # fmt: skip
#: tiles of FP64, with 16s of rows and 8s of columns of a warp
FP64_TILES = {
    (128, 64): (4, 4), (64, 64): (2, 4), (64, 32): (2, 2), (32, 32): (1, 2), (64, 16): (1, 2), (64, 8): (1, 1),
    (128, 8): (2, 1),
}  # fmt: skip
#: tiles of 16 bits, with the same
HALF_TILES = {
    (128, 64): (4, 4), (128, 32): (2, 4), (128, 16): (2, 2), (128, 8): (2, 1), (64, 64): (2, 4), (64, 32): (2, 2),
    (64, 16): (1, 2), (64, 8): (1, 1), (32, 32): (1, 2), (32, 16): (1, 2), (16, 16): (1, 2),
}  # fmt: skip
TILES = {"fp32": FP32_TILES, "fp64": FP64_TILES, "bf16": HALF_TILES, "fp16": HALF_TILES}


@dataclass(frozen=True, kw_only=True)
class AsyncConfig(MatmulConfig):
    """kernels/hopper_async.cu: a CTA multiplies one tile and, of a cluster of cluster_k, one part of K."""

    schedule: str = "hopper_async"
    num_warps: int = WARPS
    group_m: int = 1
    stages: int  #: K-slices in the ring
    cluster_k: int = 1  #: CTAs of a cluster, each with a part of K
    split_k: int = 1  #: parts of K of as many clusters, summed in order by a second launch
    swapped: bool = False  #: C^T = B^T A^T: the tile's longer side along N
    resident: int = 2  #: CTAs on an SM for which registers are kept
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def as_multiplied(self, problem: MatmulProblem) -> MatmulProblem:
        """The product as the kernel sees it."""
        return problem.transposed() if self.swapped else problem

    def as_written(self, problem: MatmulProblem) -> MatmulProblem:
        """The product whose result the kernel writes: of parts of K the bare sums."""
        return problem.of_sums() if self.split_k > 1 else problem

    def tiles(self, problem: MatmulProblem) -> tuple[int, int]:
        """Tiles of each product of the batch, along the kernel's M and N."""
        multiplied = self.as_multiplied(problem)
        return -(-multiplied.m // self.block_m), -(-multiplied.n // self.block_n)

    def ctas(self, problem: MatmulProblem) -> int:
        """CTAs of the launch."""
        across, down = self.tiles(problem)
        return across * down * problem.batches * self.cluster_k * self.split_k

    def stage_bytes(self, problem: MatmulProblem) -> int:
        """Of one slice of both operands."""
        multiplied = self.as_multiplied(problem)
        padding = PADDING[problem.dtype_a]
        elements = _lines(multiplied.a.major == "n", self.block_m, self.block_k, padding)
        elements += _lines(multiplied.b.major == "t", self.block_n, self.block_k, padding)
        return elements * DTYPE_BYTES[problem.dtype_a]

    def shifted(self, problem: MatmulProblem) -> tuple[bool, bool]:
        """Whether A's, B's rows of 16 bits begin anywhere: aligned pieces come that cover them."""
        of = self.as_multiplied(problem)
        a, b = (
            DTYPE_BYTES[problem.dtype_a] == 2 and vector == 1
            and (matrix.major == along_k or (matrix.major != "x" and side > SHORT_LINE))
            for matrix, vector, along_k, side in (
                (of.a, of.vector_a, "n", self.block_m), (of.b, of.vector_b, "t", self.block_n))
        )  # fmt: skip
        return a, b

    def vectors(self, problem: MatmulProblem) -> tuple[int, int]:
        """Elements of A, of B that a lane copies at once."""
        of = self.as_multiplied(problem)
        a, b = (PIECE if shifted else vector
                for shifted, vector in zip(self.shifted(problem), (of.vector_a, of.vector_b), strict=True))  # fmt: skip
        return a, b

    def groups(self, dtype: str) -> int:
        """Groups of a CTA's threads, which take steps of a slice in turn."""
        rows, columns = TILES[dtype][self.block_m, self.block_n]
        if dtype == "fp32":
            return 32 * self.num_warps // (self.block_m // rows * (self.block_n // columns))
        return self.num_warps // (self.block_m // (16 * rows) * (self.block_n // (8 * columns)))

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA: the ring, in whose place the sums come."""
        tile = max((self.block_m + SUM_PADDING) * self.block_n, self.block_m * (self.block_n + SUM_PADDING))
        sums = self.groups(problem.dtype_a) * tile * DTYPE_BYTES[problem.dtype_sums]
        return max(self.stages * self.stage_bytes(problem), sums)

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_async: needs clusters, {gpu.name} has none"
        if why := why_not_bare(self.schedule, problem):
            return why
        dtype = problem.dtype_a
        if dtype not in TILES or problem.dtype_b != dtype or problem.dtype_out not in (dtype, problem.dtype_acc):
            return f"hopper_async: operands of 16 bits, fp32 or fp64, results as they or their sums, got {problem.key}"
        if (self.block_m, self.block_n) not in TILES[dtype] or self.num_warps != WARPS:
            words = ", ".join(f"{m}x{n}" for m, n in TILES[dtype])
            return f"hopper_async: tiles of {words} by {WARPS} warps, got {self.block_m}x{self.block_n}"
        if self.block_k * DTYPE_BYTES[dtype] not in SLICES_BYTES:
            return f"hopper_async: slices of {SLICES_BYTES} bytes, got {self.block_k} elements"
        if self.groups(dtype) * (2 if dtype == "fp64" else 1) > self.block_k // STEP[dtype]:
            return f"hopper_async: {self.groups(dtype)} groups of threads have no step each in {self.block_k}"
        if self.split_k < 1 or (self.split_k > 1 and problem.batches > 1):
            return f"hopper_async: parts of K of one product, got {self.split_k} of {problem.batches} products"
        if self.cluster_k not in CLUSTERS or not (2 <= self.stages <= 16 and 1 <= self.resident <= 8):
            return f"hopper_async: clusters of 1 to 8, 2 to 16 stages, 1 to 8 CTAs an SM, got {self.text}"
        if max(problem.m, problem.n, problem.k) > MOST_SIZE or self.ctas(problem) > MOST_CTAS:
            return f"hopper_async: sizes of at most {MOST_SIZE} and {MOST_CTAS} CTAs, got {self.ctas(problem)} CTAs"
        needed = self.shared_bytes(problem)
        if needed * self.resident > gpu.lds_bytes:
            return f"hopper_async: {self.resident} CTAs need {needed} bytes each, {gpu.name} has {gpu.lds_bytes}"
        return None


def _lines(along_k: bool, rows: int, block_k: int, padding: int) -> int:
    """Elements of a slice with its padding."""
    return rows * (block_k + padding) if along_k else block_k * (rows + padding)

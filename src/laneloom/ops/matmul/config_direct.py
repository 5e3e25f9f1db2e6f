"""The knobs of the direct schedule: 8-bit products whose operands go from memory to the matrix instruction, no LDS."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import MOST_PROGRAMS, Gpu
from .config import MatmulConfig, why_not_plain
from .problem import DTYPE_BYTES, MatmulProblem

#: operands -> what they may be stored as
OUTPUTS = {"int8": ("int32",), "fp8": ("fp32", "fp16", "bf16"), "bf8": ("fp32", "fp16", "bf16")}
_SUMS = 128  #: of a lane


@dataclass(frozen=True, kw_only=True)
class DirectConfig(MatmulConfig):
    """kernels/wmma_direct.py, for RDNA 4. Waves are num_warps / waves_n x waves_n over the tile."""

    schedule: str = "wmma_direct"
    block_m: int = 64
    block_n: int = 64
    block_k: int = 64
    num_warps: int = 4
    waves_n: int = 2
    doubled: bool = True  #: a lane loads 16 neighbours along K, for two products; else 8, for one

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        """See MatmulConfig."""
        if gpu.matrix_instructions != "wmma" or gpu.major != 12:
            return f"the direct schedule holds half of K's elements in each half wave, as RDNA 4 does, not {gpu.family}"
        if why := why_not_plain(self.schedule, problem):
            return why
        if problem.dtype_a not in OUTPUTS:
            return f"a: expected dtype {', '.join(OUTPUTS)}, got {problem.dtype_a}"
        if problem.dtype_b != problem.dtype_a:
            return f"b: expected a's dtype {problem.dtype_a}, got {problem.dtype_b}"
        if problem.dtype_out not in OUTPUTS[problem.dtype_a]:
            return f"out_dtype: expected {' or '.join(OUTPUTS[problem.dtype_a])}, got {problem.dtype_out}"
        if problem.epilogue is not None:
            return "the direct schedule stores the bare product, without alpha, c, bias, scales or activation"
        if problem.k > 1 and (problem.a.strides[3], problem.b.strides[2]) != (1, 1):
            return f"A and B must be contiguous along K (layout nt), got {problem.layout}"
        sizes = (self.block_m, self.block_n, self.block_k, self.num_warps, self.waves_n)
        if any(n < 1 or n & (n - 1) for n in sizes) or self.block_k < 32 or self.num_warps % self.waves_n:
            return f"blocks, num_warps and waves_n must be powers of two, block_k at least 32, got {self.text}"
        waves_m = self.num_warps // self.waves_n
        if self.block_m < 16 * waves_m or self.block_n < 16 * self.waves_n:
            return f"each of {waves_m} x {self.waves_n} waves needs 16 x 16 of the tile, got {self.text}"
        if self.block_m * self.block_n > _SUMS * 32 * self.num_warps:
            return f"a lane holds at most {_SUMS} sums, got {self.text}"
        if self.programs(problem) > MOST_PROGRAMS:
            return f"one launch has at most {MOST_PROGRAMS} programs, this takes {self.programs(problem)}"
        return None

    def programs(self, problem: MatmulProblem) -> int:
        """Workgroups: one for each tile of each product."""
        return problem.batches * -(-problem.m // self.block_m) * -(-problem.n // self.block_n)

    def load_bytes(self, problem: MatmulProblem) -> int:
        """Bytes of one load of either operand, if addresses allow."""
        vector = min(problem.vector_a, problem.vector_b) * DTYPE_BYTES[problem.dtype_a]
        return min(vector, 16 if self.doubled else 8)


CONFIGS = {"wmma_direct": DirectConfig}

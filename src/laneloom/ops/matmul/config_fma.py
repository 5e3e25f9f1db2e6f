"""What can be chosen for FP32 and FP64 products of GPUs without matrix instructions for them: kernels/fma.py. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig, why_not_plain
from .config_wmma import NARROW_REGISTERS, is_power_of_two
from .dtypes import outputs, words
from .problem import DTYPE_BYTES, MatmulProblem
from .tile_orders import ORDERS

#: dtype -> rows and columns of a piece of sums that a thread reads as one: 16 bytes
PIECE = {"fp32": 4, "fp64": 2}
SUM_REGISTERS = 128  #: of a lane


@dataclass(frozen=True, kw_only=True)
class FmaConfig(MatmulConfig):
    """kernels/fma.py: tiles through LDS, fused multiply-adds, the next tile loaded meanwhile."""

    schedule: str = "fma"
    num_warps: int = 8
    order: str = "grouped"  #: in which programs visit the tiles: one of `tile_orders.ORDERS`

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wmma" and not gpu.is_cdna_1:
            return f"gpu: the schedule fma is for RDNA 3, 3.5 and 4 and CDNA 1, got {gpu.name} ({gpu.family})"
        if why := why_not_plain(self.schedule, problem):
            return why
        if problem.dtype_a not in PIECE or problem.dtype_b != problem.dtype_a:
            return f"a: the schedule fma takes fp32 or fp64, got {problem.dtype_a} and {problem.dtype_b}"
        if problem.precision != "ieee":
            return f"precision: {gpu.name} multiplies fp32 in FP32 only, got {problem.precision!r}"
        stored = outputs(problem.dtype_a, bool(problem.epilogue))
        if problem.dtype_out not in stored:
            return f"out_dtype: expected {words(stored)}, got {problem.dtype_out}"
        for name, size in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
            if not 0 < size < 1 << 31:
                return f"{name}: expected 1 to 2**31 - 1, got {size}"
        return self._why_not_tiles(problem, gpu)

    def _why_not_tiles(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        for name in ("block_m", "block_n", "block_k", "num_warps"):
            if not is_power_of_two(getattr(self, name)):
                return f"{name}: expected a power of two, got {getattr(self, name)}"
        if not 4 <= self.block_k <= 32:
            return f"block_k: expected 4, 8, 16 or 32, got {self.block_k}"
        if self.order not in ORDERS:
            return f"order: expected {words([*map(repr, ORDERS)])}, got {self.order!r}"
        if self.group_m < 1:
            return f"group_m: expected at least 1, got {self.group_m}"
        threads = gpu.wave * self.num_warps
        if threads > 512 or min(self.block_m, self.block_n) * self.block_k < threads:
            return f"num_warps: {threads} threads need an element of each tile and are 512 at most, got {self.text}"
        registers = self.block_m * self.block_n // threads * DTYPE_BYTES[problem.dtype_a] // 4
        if not 1 <= registers <= SUM_REGISTERS:
            return f"block_m x block_n: expected 1 to {SUM_REGISTERS} registers of sums, got {registers}"
        held = (self.block_m + self.block_n) * self.block_k // threads
        if min(problem.vector_a, problem.vector_b) == 1 and registers + 3 * held > NARROW_REGISTERS:
            return f"block_k: {held} elements of each thread arrive one by one, and leave no registers"
        row_bytes = (self.block_m + self.block_n) * DTYPE_BYTES[problem.dtype_a] + 32
        if (needed := 2 * self.block_k * row_bytes) > gpu.lds_bytes:
            return f"block_k: the tiles take {needed} bytes of LDS, {gpu.name} has {gpu.lds_bytes}"
        return None

"""Configs of `blocks`: 8-bit floats whose blocks along K have scales, on every GPU, by Triton's own `tl.dot`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...gpu import MOST_PROGRAMS, Gpu
from . import config_mfma, config_wmma
from .config import MatmulConfig, why_not_grouped
from .config_dot import DotConfig, by_work
from .dtypes import FLOAT_OUTPUTS, words
from .problem import SCALE_BLOCK, MatmulProblem

DTYPES = ("fp8", "bf8")
TILES = ((128, 128, 8), (64, 64, 4), (32, 32, 4), (16, 16, 1))  #: rows, columns and warps


def multiplies_float8(problem: MatmulProblem, gpu: Gpu) -> bool:
    """Whether matrix instructions take the operands as they are; elsewhere they become bf16, exactly."""
    if gpu.matrix_instructions == "mfma":  # Triton 3.6 gives fp8 with bf8 the instruction of the other order
        return not config_mfma.is_upcast(problem, gpu) and problem.dtype_a == problem.dtype_b
    return gpu.matrix_instructions != "wmma" or not config_wmma.is_upcast(problem, gpu)


@dataclass(frozen=True, kw_only=True)
class BlocksConfig(DotConfig):
    """kernels/blocks.py: as `dot`, with a `tl.dot` for each block_k of a block of K."""

    schedule: str = "blocks"

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        """See MatmulConfig."""
        if not problem.scales:
            return "blocks: the schedule is for blocks along K that have scales"
        if why := why_not_grouped(self.schedule, problem):
            return why
        if problem.epilogue:
            return "blocks: writes the scaled product; its terms are a launch of their own"
        if not {problem.dtype_a, problem.dtype_b} <= set(DTYPES):
            return f"blocks: multiplies {words(DTYPES)}, got {problem.dtype_a} and {problem.dtype_b}"
        if problem.dtype_out not in FLOAT_OUTPUTS:
            return f"out_dtype: expected {words(FLOAT_OUTPUTS)}, got {problem.dtype_out}"
        for name, size in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
            if not 0 < size < (1 << 31) - SCALE_BLOCK:
                return f"{name}: expected 1 to 2**31 - {SCALE_BLOCK + 1}, got {size}"
        blocks = (self.block_m, self.block_n, self.block_k)
        if any(block < 16 or block & (block - 1) for block in blocks) or self.block_k > SCALE_BLOCK:
            return f"blocks: tiles of powers of two from 16 up, along K up to {SCALE_BLOCK}, got {self.text}"
        if self.num_warps not in (1, 2, 4, 8) or self.stages < 1 or self.group_m < 1:
            return f"blocks: 1, 2, 4 or 8 warps, stages and group_m of 1 or more, got {self.text}"
        if self.programs(problem) > MOST_PROGRAMS:
            return f"blocks: at most {MOST_PROGRAMS} programs, got {self.programs(problem)}"
        size = 1 if multiplies_float8(problem, gpu) else 2
        needed = max(self.stages - 1, 1) * (self.block_m + self.block_n) * self.block_k * size
        if needed > gpu.lds_bytes:
            return f"blocks: needs {needed} bytes of LDS, {gpu.name} gives {gpu.lds_bytes}"
        return None


CONFIGS: dict[str, type[MatmulConfig]] = {"blocks": BlocksConfig}


def any_gpu(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """The tiles in the order of the busiest compute unit's work; large ones load less."""
    small = min(problem.m, problem.n) <= 16
    tiles = [
        BlocksConfig(block_m=m, block_n=n, block_k=64, num_warps=warps) for m, n, warps in TILES if m > 16 or small
    ]
    yield from by_work(tiles, problem, gpu)

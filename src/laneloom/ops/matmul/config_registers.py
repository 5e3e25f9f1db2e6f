"""What can be chosen of TF32 products with an operand in registers on Hopper, and what is. Pure.

The model is `plan_cluster`'s: for each K-slice of 128 bytes a tile takes the longer of multiplying and of loading.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from ...gpu import Gpu
from .config import MatmulConfig
from .config_hopper import MOST_LAUNCHES, tma_reads, tma_writes, why_not_walked
from .problem import MatmulProblem

_SLICE_BYTES = 128
_CLOCKS_PER_US = 1900
_REQUEST_CLOCKS = 2.3  #: of one SM's copy engine, for 128 bytes of a row
_MMA_BYTES_PER_CLOCK = 4096
_TILE_CLOCKS = 2500
#: rows and columns of D, in the order in which equal costs are resolved
_TILES = ((128, 256), (128, 128), (64, 128), (64, 64))


def register_operand(problem: MatmulProblem) -> str | None:
    """The operand that wgmma takes from registers, "a" or "b": not contiguous along K, and such that TMA reads it."""
    if problem.b.major == "n" and tma_reads(problem, "b"):
        return "b"
    return "a" if problem.a.major == "t" and tma_reads(problem, "a") else None


@dataclass(frozen=True, kw_only=True)
class RegistersConfig(MatmulConfig):
    """kernels/hopper_registers.cu: D = R^T S with R in registers, C = D or, where R is B, its transpose."""

    schedule: str = "hopper_registers"
    num_warps: int = 4  #: of one warpgroup that multiplies
    stages: int  #: K-slices of 128 bytes in the ring
    copy_other: bool = False  #: copy the operand that is not in registers first, contiguous along K
    programs: int = 132  #: most CTAs that are launched; each walks over several tiles
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def with_knobs(self, **knobs: Any) -> Self:
        """The same config with some knobs changed."""
        return replace(self, **knobs)

    def tile(self, problem: MatmulProblem) -> tuple[int, int]:
        """Rows and columns of D in one tile."""
        turned = register_operand(problem) == "b"
        return (self.block_n, self.block_m) if turned else (self.block_m, self.block_n)

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA."""
        ring = self.stages * (self.block_m + self.block_n) * _SLICE_BYTES
        return ring + self.tile(problem)[0] // 64 * 2 * 8192 + 16 * self.stages

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_registers: needs wgmma and TMA, {gpu.name} has {gpu.matrix_instructions}"
        dtypes = {problem.dtype_a, problem.dtype_b, problem.dtype_out, problem.dtype_acc}
        if dtypes != {"fp32"} or problem.precision != "tf32" or problem.epilogue:
            return f"hopper_registers: bare products of fp32 in precision tf32, got {problem.key}"
        found = register_operand(problem)
        if found is None:
            return "hopper_registers: needs an operand at multiples of 16 bytes that is not contiguous along K"
        other, along_k = ("a", problem.a.major == "n") if found == "b" else ("b", problem.b.major == "t")
        if not self.copy_other and not (along_k and tma_reads(problem, other)):
            return f"hopper_registers: wgmma takes {other} along K only, at multiples of 16 bytes, or copied first"
        if self.copy_other and problem.batches > MOST_LAUNCHES:
            return f"hopper_registers: copies operands of at most {MOST_LAUNCHES} products, got {problem.batches}"
        if not tma_writes(problem):
            return "hopper_registers: writes C by TMA, which takes pitches of whole 16 bytes"
        rows, columns = self.tile(problem)
        if rows not in (64, 128) or columns not in (64, 128, 256) or self.num_warps != 4 or self.block_k != 32:
            return f"hopper_registers: tiles of 64 or 128 rows of registers, 64 to 256 columns, got {rows}x{columns}"
        if self.stages < 2 or self.programs < 1:
            return f"hopper_registers: at least 2 stages and a program, got {self.stages} and {self.programs}"
        if why := why_not_walked(self, problem.m, problem.n, problem.k):
            return why
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_registers: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None


def in_registers(problem: MatmulProblem, gpu: Gpu) -> tuple[RegistersConfig, float] | None:
    """The config of the shortest estimate with that, in microseconds; None where none is valid."""
    found = register_operand(problem)
    if found is None:
        return None
    turned = found == "b"
    other, along_k = ("a", problem.a.major == "n") if turned else ("b", problem.b.major == "t")
    best: tuple[RegistersConfig, float] | None = None
    for tile_rows, tile_columns in _TILES:
        config = RegistersConfig(
            block_m=tile_columns if turned else tile_rows, block_n=tile_rows if turned else tile_columns, block_k=32,
            stages=8, copy_other=not (along_k and tma_reads(problem, other)),
            programs=gpu.compute_units,
        )  # fmt: skip
        while config.stages > 2 and config.shared_bytes(problem) > gpu.lds_bytes:
            config = config.with_knobs(stages=config.stages - 1)
        tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n) * problem.batches
        rounds = -(-tiles // gpu.compute_units)
        multiply = tile_rows * tile_columns * _SLICE_BYTES / _MMA_BYTES_PER_CLOCK
        load = (tile_rows + tile_columns) * _REQUEST_CLOCKS
        time_us = rounds * (-(-problem.k // 32) * max(multiply, load) + _TILE_CLOCKS) / _CLOCKS_PER_US
        if config.why_invalid(problem, gpu) is None and (best is None or time_us < best[1]):
            best = config, time_us
    return best

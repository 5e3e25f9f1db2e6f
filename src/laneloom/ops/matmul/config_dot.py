"""Configs of `dot`, the schedule of CDNA 5: the tile, which Triton's own `tl.dot` multiplies. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...gpu import MOST_PROGRAMS, Gpu
from .config import MatmulConfig
from .config_hopper import why_not_bare
from .dtypes import FULL_PRECISIONS, outputs, words
from .problem import DTYPE_BYTES, MatmulProblem

DTYPES = ("fp16", "bf16", "fp8", "bf8", "int8", "fp32", "fp64")
ROW_BYTES = 128  #: of K in a tile of up to 16 bits
TILES = ((128, 128), (64, 64), (32, 32))


@dataclass(frozen=True, kw_only=True)
class DotConfig(MatmulConfig):
    """kernels/dot.py: one program a tile, masked loads, `tl.dot`, as Triton pipelines them."""

    schedule: str = "dot"
    num_warps: int = 4
    stages: int = 2  #: K-tiles in flight

    def programs(self, problem: MatmulProblem) -> int:
        """Programs of the launch."""
        return problem.tiles(self.block_m, self.block_n)

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wmma3":
            return f"dot: the schedule is for CDNA 5, got {gpu.name} ({gpu.family})"
        if why := why_not_bare(self.schedule, problem, takes_groups=True, precisions=FULL_PRECISIONS):
            return why
        eights = {"fp8", "bf8"}
        pair = {problem.dtype_a, problem.dtype_b}
        if problem.dtype_a not in DTYPES or not (len(pair) == 1 or pair == eights):
            return f"dot: multiplies {', '.join(DTYPES)}, of 8-bit floats any pair; got {problem.key}"
        stored = outputs(problem.dtype_a, bool(problem.epilogue))
        if problem.dtype_out not in stored:
            return f"out_dtype: expected {words(stored)}, got {problem.dtype_out}"
        blocks = (self.block_m, self.block_n, self.block_k)
        if any(block < 16 or block & (block - 1) for block in blocks) or self.num_warps not in (1, 2, 4, 8):
            return f"dot: blocks of powers of two from 16 up and 1 to 8 warps, got {self.text}"
        if self.stages < 1 or self.group_m < 1 or self.programs(problem) > MOST_PROGRAMS:
            return f"dot: stages and group_m of 1 or more and at most {MOST_PROGRAMS} programs, got {self.text}"
        needed = self.stages * (self.block_m + self.block_n) * self.block_k * DTYPE_BYTES[problem.dtype_a]
        if needed > gpu.lds_bytes:
            return f"dot: needs {needed} bytes of LDS, {gpu.name} gives {gpu.lds_bytes}"
        return None


CONFIGS: dict[str, type[MatmulConfig]] = {"dot": DotConfig}


def candidates(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """The tiles in the order of the busiest compute unit's work; large ones load less."""
    block_k = max(16, ROW_BYTES // DTYPE_BYTES[problem.dtype_a])
    tiles = [DotConfig(block_m=m, block_n=n, block_k=block_k) for m, n in TILES]
    if problem.dtype_a in ("fp32", "fp64"):  # sums of multiply-adds fill more registers
        tiles = tiles[1:]
    yield from by_work(tiles, problem, gpu)


def by_work(tiles: Sequence[DotConfig], problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """Configs in the order of the busiest compute unit's work."""

    def work(config: DotConfig) -> float:
        return -(-config.programs(problem) // gpu.compute_units) * config.block_m * config.block_n

    for config in sorted(tiles, key=work):
        yield config, "least work for the busiest compute unit"

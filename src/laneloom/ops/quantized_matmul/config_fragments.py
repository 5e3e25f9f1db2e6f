"""Schedule "fragments": W's words are unpacked in the lanes that multiply them, for many rows on AMD. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import MOST_PROGRAMS, Gpu
from ..matmul.config import MOST_GROUPS
from ..matmul.dtypes import FLOAT_OUTPUTS, HALVES
from .config import MOST_STEPS, BaseConfig
from .problem import DTYPE_BYTES, QuantizedProblem

GPUS = ("gfx942", "gfx950")  #: of CDNA: of the others' instructions some have 8 of K
_MOST_EXTENT = 1 << 30
_MOST_STRIDE = 1 << 22  #: of rows, so that offsets in a tile fit 32 bits


def lane_parts(gpu: Gpu) -> int:
    """Lanes that share a row of a fragment, 8 of K each; RDNA 3's hold 16 each, twice."""
    return {0: 4, 1: 1, 2: 2}[gpu.wmma_version]


def words_of_lane(problem: QuantizedProblem, config: FragmentsConfig, gpu: Gpu) -> int:
    """Words of 32 bits that a lane loads side by side: up to 16 bytes, and what a K-tile has for each."""
    per_word = 8 if problem.is_packed else 4
    return min(4, config.depth(problem) // per_word // lane_parts(gpu))


@dataclass(frozen=True, kw_only=True)
class FragmentsConfig(BaseConfig):
    """kernels/fragments.py: a program has block_m x block_n of C, a wave all rows and 16 columns or a multiple."""

    schedule: str = "fragments"
    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 4
    group_m: int = 8  #: rows of tiles that are visited together, so that their operands stay in the L2

    def depth(self, problem: QuantizedProblem) -> int:
        """K of a part of a K-tile, which lies in LDS by itself: of one group, rows of at most 128 bytes."""
        return min(self.block_k, 64, problem.group or 64)

    def span(self, problem: QuantizedProblem) -> int:
        """K whose sums are scaled together: a group, or part of a large one; else a K-tile."""
        if problem.folds:
            return self.block_k
        return max(self.block_k, min(problem.group, MOST_STEPS * self.block_k))

    def programs(self, problem: QuantizedProblem) -> int:
        """Of the launch."""
        return problem.row_tiles(self.block_m) * -(-problem.n // self.block_n)

    def why_invalid(self, problem: QuantizedProblem, gpu: Gpu) -> str | None:
        """See BaseConfig."""
        name = self.schedule
        if gpu.wmma_version not in (1, 2) and gpu.name not in GPUS:
            return f"{name}: for RDNA 3, 3.5 and 4, {' and '.join(GPUS)}, got {gpu.name}"
        if problem.dtype not in HALVES:
            return f"{name}: multiplies {' and '.join(HALVES)}, got {problem.dtype}"
        if problem.dtype_out not in FLOAT_OUTPUTS:
            return f"out_dtype: expected fp32, fp16 or bf16, got {problem.dtype_out}"
        if problem.ragged and problem.batches > MOST_GROUPS:
            return f"{name}: at most {MOST_GROUPS} groups of rows, got {problem.batches}"
        for axis, size in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
            if not 0 < size <= _MOST_EXTENT:
                return f"{axis}: expected 1 to {_MOST_EXTENT}, got {size}"
        if self.block_m not in (16, 32, 64, 128, 256) or self.block_n not in (16, 32, 64, 128, 256):
            return f"{name}: blocks of 16 to 256 rows and columns, powers of two, got {self.text}"
        if self.block_k not in (32, 64, 128):
            return f"{name}: block_k of 32, 64 or 128, got {self.block_k}"
        if self.num_warps not in (1, 2, 4, 8) or 16 * self.num_warps > self.block_n or self.group_m < 1:
            return f"{name}: 1, 2, 4 or 8 warps of 16 columns or more, and group_m of 1 or more, got {self.text}"
        if 0 < problem.group < 32 or (problem.zeros and 0 < problem.group < self.block_k):
            return f"{name}: groups of 32 or more, with zeros of whole K-tiles, got {problem.group}"
        if problem.k % self.span(problem):
            return f"{name}: K of whole K-tiles and groups, got {problem.k}"
        vector = 4 * words_of_lane(problem, self, gpu)
        for what, matrix, size, aligned in (
            ("x", problem.x, DTYPE_BYTES[problem.dtype], 16), ("weight", problem.values, 1, vector)
        ):  # fmt: skip
            *others, column = matrix.strides
            if column != 1 or matrix.alignment < aligned or any(s * size % aligned for s in others):
                return f"{name}: rows of {what} along K that begin at {aligned} bytes, got strides {matrix.strides}"
        if max(problem.x.strides[2], problem.values.strides[2], *problem.out.strides[2:]) > _MOST_STRIDE:
            return f"{name}: rows of at most {_MOST_STRIDE} elements"
        if self.programs(problem) > MOST_PROGRAMS:
            return f"{name}: at most {MOST_PROGRAMS} programs, got {self.programs(problem)}"
        return None


CONFIGS: dict[str, type[BaseConfig]] = {"fragments": FragmentsConfig}

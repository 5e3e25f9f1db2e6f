"""What can be chosen of the CUDA C++ schedules on Hopper: a Config class for each. Pure; `plan_cluster` chooses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from ...gpu import Gpu
from .config import MatmulConfig
from .config_hopper import (
    ACCUMULATORS_PER_THREAD,
    FLOAT_OUTPUTS,
    MOST_LAUNCHES,
    TMA_BYTES,
    tma_reads,
    tma_writes,
    why_not_bare,
)
from .problem import DTYPE_BYTES, MatmulProblem

PIECES = {"ieee": 0, "tf32": 1, "3xtf32": 2, "3xbf16": 3}  #: of each fp32 operand, by precision; 0: not by wgmma
#: dtypes that wgmma multiplies with each other
_WGMMA_GROUPS = (("bf16",), ("fp16",), ("fp8", "bf8"), ("int8", "uint8"))


def piece_dtype(problem: MatmulProblem, config: ClusterConfig, operand: str) -> str:
    """What the tensor cores see of operand "a" or "b": its own dtype, or that of its pieces."""
    dtype = problem.dtype_a if operand == "a" else problem.dtype_b
    if dtype != "fp32":
        return dtype
    return "bf16" if problem.precision == "3xbf16" else "tf32"


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(MatmulConfig):
    """kernels/hopper_cluster.cu: clusters share loads by multicast; one producer warp, one or two warpgroups."""

    schedule: str = "hopper_cluster"
    num_warps: int = 4  #: of one consumer
    stages: int  #: K-slices of 128 bytes in the ring
    consumers: int = 2  #: warpgroups, each with block_m / consumers rows
    cluster_m: int = 1  #: CTAs down C's columns that share each tile of B
    cluster_n: int = 1  #: CTAs along C's rows that share each tile of A
    panels: int = 1  #: 128-byte columns of C that a warp stages at a time
    tma_store: bool = True
    copy_a: bool = False  #: copy A first, contiguous along K
    copy_b: bool = False
    pieces: int = 1  #: of each FP32 operand: 1 with precision "tf32", 2 with "3xtf32", 3 with "3xbf16"
    promote: int = 0  #: K-slices after which sums leave the tensor cores for FP32 additions; 0: at the end
    grouped: bool = False  #: rows of A in groups, each against a B of its own; see ops/matmul/grouped.py
    programs: int = 132  #: most CTAs that are launched; each walks over several tiles
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def with_knobs(self, **knobs: Any) -> Self:
        """The same config with some knobs changed."""
        return replace(self, **knobs)

    @property
    def peers(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def strips(self) -> int:
        """wgmmas of 64 rows of one consumer."""
        return self.block_m // self.consumers // 64

    def b_columns(self, problem: MatmulProblem, block_n: int = 0) -> int:
        """Columns of B that a slice holds, of a tile `block_n` wide: contiguous along N, it comes in panels of 64."""
        wide = block_n or self.block_n
        return -(-wide // 64) * 64 if problem.b.major == "n" and not self.copy_b else wide

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA."""
        ring = self.stages * self.pieces * (self.block_m + self.b_columns(problem)) * 128
        return ring + self.consumers * 4 * self.panels * 2048 + 16 * self.stages

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_cluster: needs wgmma and TMA, {gpu.name} has {gpu.matrix_instructions}"
        return self._why_operands(problem) or self._why_output(problem) or self._why_tile(problem, gpu)

    def _why_operands(self, problem: MatmulProblem) -> str | None:
        pair = (problem.dtype_a, problem.dtype_b)
        pieces = PIECES[problem.precision] if pair == ("fp32", "fp32") else 1
        if pieces == 0 or not any(set(pair) <= set(group) for group in (*_WGMMA_GROUPS, ("fp32",))):
            return f"hopper_cluster: wgmma does not multiply {pair[0]} by {pair[1]} in precision {problem.precision}"
        if self.pieces != pieces:
            return f"hopper_cluster: precision {problem.precision} takes {pieces} pieces, got {self.pieces}"
        if self.grouped and (self.copy_a or self.copy_b or problem.epilogue or pieces != 1):
            return "hopper_cluster: groups are read where they lie and written as bare sums"
        for name, matrix, copied in (("a", problem.a, self.copy_a), ("b", problem.b, self.copy_b)):
            if self.pieces > 1 and not copied:
                return f"hopper_cluster: pieces of {name} have to be made first, by a copy"
            if copied and problem.batches > MOST_LAUNCHES:
                return f"hopper_cluster: copies operands of at most {MOST_LAUNCHES} products, got {problem.batches}"
            both_majors = piece_dtype(problem, self, name) in ("bf16", "fp16")
            along_k = matrix.major == ("n" if name == "a" else "t")
            if not copied and not (tma_reads(problem, name) and (both_majors or along_k)):
                return f"hopper_cluster: TMA and wgmma need {name} at multiples of {TMA_BYTES} bytes, or copied first"
        return None

    def _why_output(self, problem: MatmulProblem) -> str | None:
        integers = problem.dtype_a in ("int8", "uint8")
        outputs = (*FLOAT_OUTPUTS, "int32") if integers and not problem.epilogue else FLOAT_OUTPUTS
        if problem.dtype_out not in outputs:
            return f"hopper_cluster: writes {', '.join(outputs)}, got {problem.dtype_out}"
        if integers and self.promote:
            return "hopper_cluster: sums of integers are exact and need no promotion"
        if problem.dtype_acc not in ("fp32", "int32"):
            return f"hopper_cluster: sums in fp32 or int32, got {problem.dtype_acc}"
        if self.tma_store and (not tma_writes(problem) or self.block_n * DTYPE_BYTES[problem.dtype_out] % 128):
            return f"hopper_cluster: a TMA store needs C at multiples of {TMA_BYTES} bytes and tiles of whole lines"
        return None

    def _why_tile(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        slab = self.block_m // self.consumers if self.consumers in (1, 2, 3) else 0
        if slab not in (64, 128) or slab * self.consumers != self.block_m or self.num_warps != 4:
            return f"hopper_cluster: 1 to 3 consumers take 64 or 128 rows each, got {self.block_m} for {self.consumers}"
        if self.block_n % 8 or not 8 <= self.block_n <= 256:
            return f"hopper_cluster: block_n is a multiple of 8 up to 256, got {self.block_n}"
        size = 4 if piece_dtype(problem, self, "a") == "tf32" else DTYPE_BYTES[piece_dtype(problem, self, "a")]
        if self.block_k != 128 // size:
            return f"hopper_cluster: a K-slice has 128 bytes, got {self.block_k} elements"
        accumulators = slab * self.block_n // 128 * (2 if self.promote else 1)
        room = 64 if self.consumers == 3 else 192 if self.promote else ACCUMULATORS_PER_THREAD
        if accumulators > room:
            return f"hopper_cluster: {accumulators} sums a thread, {room} fit beside {self.consumers} consumers"
        clusters = (1, 2, 4, 8)
        if self.cluster_m not in clusters or self.cluster_n not in clusters or self.peers > 8:
            return f"hopper_cluster: clusters of 1, 2, 4 or 8 CTAs, got {self.cluster_m} by {self.cluster_n}"
        shared = ((self.block_m, self.cluster_n), (self.block_n, self.cluster_m))
        if any(rows % sharers for rows, sharers in shared):
            return f"hopper_cluster: a cluster of {self.cluster_m} by {self.cluster_n} cannot share the tile out evenly"
        if self.stages < 2 or self.panels < 1 or self.promote < 0 or self.programs < self.peers:
            return "hopper_cluster: at least 2 stages, one panel, one cluster"
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_cluster: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None


#: tiles of hopper_precise with the time of a multiplication in them, in units of the best tile's
PRECISE_TILES = {(128, 128): 1.0, (64, 128): 1.05, (64, 64): 1.15}


@dataclass(frozen=True, kw_only=True)
class PreciseConfig(MatmulConfig):
    """kernels/hopper_precise.cu: FP64 by DMMA; one producer warp, eight warps that multiply."""

    schedule: str = "hopper_precise"
    num_warps: int = 8
    stages: int
    copy_a: bool = False  #: copy A first, contiguous along K
    copy_b: bool = False  #: copy B first, contiguous along K
    programs: int = 132  #: most CTAs that are launched; each walks over several tiles
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def with_knobs(self, **knobs: Any) -> Self:
        """The same config with some knobs changed."""
        return replace(self, **knobs)

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA."""
        return self.stages * (self.block_m + self.block_n) * 128 + 16 * self.stages

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_precise: needs TMA, {gpu.name} has none"
        dtypes = {problem.dtype_a, problem.dtype_b, problem.dtype_out, problem.dtype_acc}
        if dtypes != {"fp64"}:
            return f"hopper_precise: fp64 throughout, got {problem.key}"
        if why := why_not_bare(self.schedule, problem):
            return why
        for name, copied in (("a", self.copy_a), ("b", self.copy_b)):
            if copied and problem.batches > MOST_LAUNCHES:
                return f"hopper_precise: copies operands of at most {MOST_LAUNCHES} products, got {problem.batches}"
            if not copied and not tma_reads(problem, name):
                return f"hopper_precise: TMA needs {name} at a base and a pitch of {TMA_BYTES} bytes, or copied"
        if (self.block_m, self.block_n) not in PRECISE_TILES or self.num_warps != 8:
            words = ", ".join(f"{m}x{n}" for m, n in PRECISE_TILES)
            return f"hopper_precise: tiles of {words}, got {self.block_m}x{self.block_n}"
        if self.block_k != 16 or self.stages < 2 or self.programs < 1:
            return f"hopper_precise: slices of 128 bytes in 2 stages at least, got {self.block_k} elements"
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_precise: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None

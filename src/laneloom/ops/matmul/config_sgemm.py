"""The FP32 ladder: K1 to K8 on RDNA and seven steps on Hopper as configs, and every limit of theirs. Pure.

    laneloom.matmul(a, b, config="sgemm_k6")

Each step changes one thing of the step before; docs/sgemm-ladder.md has the differences, down to the machine code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ...gpu import Gpu
from .config import MatmulConfig, why_not_grouped
from .problem import DTYPE_BYTES, MatmulProblem, Matrix

_MOST_BYTES = 1 << 31  #: from a tile's first element to its last
#: The integers of the kernels that are written in Gluon, one machine code for all values.
INTEGERS = (
    "M", "N", "K", "stride_am", "stride_bk", "stride_cm", "inner",
    "stride_ao", "stride_ai", "stride_bo", "stride_bi", "stride_co", "stride_ci",
)  # fmt: skip
_MOST_TILES = 65535  #: along one axis of the grid


@dataclass(frozen=True, kw_only=True)
class SgemmConfig(MatmulConfig):
    """What all steps share: FP32, C = A B with all three row-major, any sizes, batches as launches of their own."""

    group_m: int = 1

    @property
    def step(self) -> str:
        """The step of the ladder that this is, "k1" to "k8"; for other knobs the one that it is made of."""
        raise NotImplementedError

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        return (
            self._why_not_gpu(gpu)
            or self._why_not_knobs()
            or why_not_grouped(self.schedule, problem)
            or self._why_not_problem(problem)
            or self._why_not_strides(problem)
        )

    def _why_not_gpu(self, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wmma":
            return f"gpu: the schedule {self.schedule} is for RDNA 3, 3.5 and 4, got {gpu.name} ({gpu.family})"
        return None

    def _why_not_problem(self, problem: MatmulProblem) -> str | None:
        for name in ("dtype_a", "dtype_b", "dtype_out"):
            if getattr(problem, name) != "fp32":
                return f"{name}: the schedule {self.schedule} multiplies fp32, got {getattr(problem, name)}"
        if problem.precision != "ieee" or problem.dtype_acc != "fp32":
            return (f"precision: the schedule {self.schedule} multiplies and sums in fp32, got {problem.precision} and "
                    f"{problem.dtype_acc}")  # fmt: skip
        if problem.epilogue is not None:
            return f"the schedule {self.schedule} stores bare products, got the terms {problem.epilogue.key}"
        for name, size, most in (("M", problem.m, _MOST_TILES * self.block_m), ("N", problem.n, 1 << 31),
                                 ("K", problem.k, 1 << 30)):  # fmt: skip
            if not 0 < size <= most - 1:
                return f"{name}: expected 1 to {most - 1}, got {size}"
        return None

    def _why_not_strides(self, problem: MatmulProblem) -> str | None:
        for name, matrix, columns in (("a", problem.a, problem.k), ("b", problem.b, problem.n),
                                      ("out", problem.out, problem.n)):  # fmt: skip
            if columns > 1 and matrix.strides[3] != 1:
                return (f"{name}: the schedule {self.schedule} takes row-major matrices, got the column stride "
                        f"{matrix.strides[3]}")  # fmt: skip
        if self.schedule != "sgemm_assembly" and problem.batches > _MOST_TILES:
            return f"batch: expected at most {_MOST_TILES} products, got {problem.batches}"
        rows = max(self.block_m, self.block_k) + 8
        for name, matrix in (("a", problem.a), ("b", problem.b), ("out", problem.out)):
            if rows * matrix.strides[2] * DTYPE_BYTES["fp32"] >= _MOST_BYTES:
                return f"{name}: a tile spans 2 GiB with the row stride {matrix.strides[2]}"
        return None

    def _why_not_knobs(self) -> str | None:
        fixed = _SHAPES[self.schedule]
        if (self.block_m, self.block_n, self.block_k, self.num_warps) not in fixed:
            words = " or ".join(f"{m} x {n} x {k} by {warps} waves" for m, n, k, warps in fixed)
            return (f"block_m, block_n, block_k, num_warps: expected {words}, got {self.block_m} x {self.block_n} x "
                    f"{self.block_k} by {self.num_warps}")  # fmt: skip
        if self.group_m != 1:
            return f"group_m: the schedule {self.schedule} visits tiles row by row, got {self.group_m}"
        return None


@dataclass(frozen=True, kw_only=True)
class NaiveConfig(SgemmConfig):
    """kernels/sgemm_naive.py: a lane per element of C, operands from global memory."""

    schedule: str = "sgemm_naive"
    block_m: int = 16
    block_n: int = 16
    block_k: int = 1
    num_warps: int = 8

    @property
    def step(self) -> str:
        return "k1"


@dataclass(frozen=True, kw_only=True)
class SquareConfig(SgemmConfig):
    """kernels/sgemm_square.py: a lane per element of C, tiles of both operands through LDS."""

    schedule: str = "sgemm_square"
    block_m: int = 32
    block_n: int = 32
    block_k: int = 32
    num_warps: int = 32

    @property
    def step(self) -> str:
        return "k2"


@dataclass(frozen=True, kw_only=True)
class RegisterTileConfig(SgemmConfig):
    """kernels/sgemm_tiles.py: 128 x 128 of C in the registers of 8 waves (8 x 8 a lane) or of 4 (16 x 8)."""

    schedule: str = "sgemm_tiles"
    block_m: int = 128
    block_n: int = 128
    block_k: int = 8
    num_warps: int = 8
    prefetch: bool = False  #: the next tile is on its way to registers while this one is multiplied
    padded: bool = False  #: four floats after each column of A in LDS
    cu_mode: bool = False  #: the workgroup on one compute unit, with that one's half of the LDS (Triton 3.9)

    @property
    def step(self) -> str:
        return "k5" if self.padded or self.num_warps == 4 else "k4" if self.prefetch else "k3"


@dataclass(frozen=True, kw_only=True)
class AssemblyConfig(SgemmConfig):
    """kernels/sgemm_assembly.py: dual-issue multiplications, written in assembly."""

    schedule: str = "sgemm_assembly"
    block_m: int = 128
    block_n: int = 128
    block_k: int = 8
    num_warps: int = 4
    unroll: bool = False  #: the 8 k-steps of a tile one after another, without a loop
    priority: bool = False  #: s_setprio around the multiplications
    loads: str = "addressed"  #: a 64-bit address per lane and load; or "batched", from scalar bases, over the k-steps

    @property
    def step(self) -> str:
        return "k8" if self.loads == "batched" else "k7" if self.unroll else "k6"

    def _why_not_knobs(self) -> str | None:
        if self.loads not in ("addressed", "batched"):
            return f"loads: expected 'addressed' or 'batched', got {self.loads!r}"
        if self.loads == "batched" and not self.unroll:
            return "loads: 'batched' loads are spread over unrolled k-steps, got unroll=False"
        if self.priority and not self.unroll:
            return "priority: it is raised in unrolled k-steps, got unroll=False"
        if self.group_m not in (1, 2, 4, 8, 16, 32):
            return f"group_m: expected a power of two up to 32, got {self.group_m}"
        return SgemmConfig._why_not_knobs(replace(self, group_m=1))


#: Of each step on Hopper: rows and columns of C in a CTA, steps of K at a time, warps.
_HOPPER_STEPS = {
    1: (16, 16, 1, 8),
    2: (32, 32, 32, 32),
    3: (128, 128, 8, 8),
    4: (128, 128, 8, 8),
    5: (128, 128, 8, 8),
    6: (128, 256, 16, 8),
    7: (128, 256, 16, 8),
}


@dataclass(frozen=True, kw_only=True)
class HopperStepConfig(SgemmConfig):
    """kernels/sgemm_hopper.cu: step `number` of the ladder on Hopper; its shape follows from the number."""

    schedule: str = "sgemm_hopper"
    block_m: int = 0
    block_n: int = 0
    block_k: int = 0
    num_warps: int = 0
    number: int = 1

    def __post_init__(self) -> None:
        shape = _HOPPER_STEPS.get(self.number, (0, 0, 0, 0))
        for name, value in zip(("block_m", "block_n", "block_k", "num_warps"), shape, strict=True):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, value)

    @property
    def step(self) -> str:
        return f"h{self.number}"

    def _why_not_gpu(self, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"gpu: the schedule {self.schedule} is for Hopper, got {gpu.name} ({gpu.family})"
        return None

    def _why_not_knobs(self) -> str | None:
        if self.number not in _HOPPER_STEPS:
            return f"number: expected a step from 1 to {max(_HOPPER_STEPS)}, got {self.number}"
        shape = _HOPPER_STEPS[self.number]
        if (self.block_m, self.block_n, self.block_k, self.num_warps) != shape:
            return f"block_m, block_n, block_k, num_warps: step {self.number} has {shape}, got other ones"
        return None


def pitches(problem: MatmulProblem) -> tuple[int, int, int]:
    """Row strides of A, B and C in elements."""
    return problem.a.strides[2], problem.b.strides[2], problem.out.strides[2]


def batch_offsets(problem: MatmulProblem) -> list[tuple[int, int, int]]:
    """Elements from the base of A, B and C to each product of the batch."""
    outer, inner = problem.batch

    def at(matrix: Matrix, o: int, i: int) -> int:
        return o * matrix.strides[0] + i * matrix.strides[1]

    return [
        (at(problem.a, o, i), at(problem.b, o, i), at(problem.out, o, i)) for o in range(outer) for i in range(inner)
    ]


def grid(problem: MatmulProblem, config: SgemmConfig) -> tuple[int, int, int]:
    """Workgroups along N, M and the batch."""
    return -(-problem.n // config.block_n), -(-problem.m // config.block_m), problem.batches


def arguments(problem: MatmulProblem) -> dict[str, int]:
    """The integers of the kernels that are written in Gluon."""
    values = (
        problem.m, problem.n, problem.k, *pitches(problem), problem.batch[1],
        *problem.a.strides[:2], *problem.b.strides[:2], *problem.out.strides[:2],
    )  # fmt: skip
    return dict(zip(INTEGERS, values, strict=True))


def tiles(problem: MatmulProblem, config: SgemmConfig) -> str:
    """The grid in words."""
    columns, rows, batches = grid(problem, config)
    return f"{batches} x {rows} x {columns} workgroups of {config.block_m} x {config.block_n}"


#: What each schedule's block and waves may be.
_SHAPES = {
    "sgemm_naive": ((16, 16, 1, 8),),
    "sgemm_square": ((32, 32, 32, 32),),
    "sgemm_tiles": ((128, 128, 8, 8), (128, 128, 8, 4)),
    "sgemm_assembly": ((128, 128, 8, 4),),
}
CONFIGS = {
    "sgemm_naive": NaiveConfig,
    "sgemm_square": SquareConfig,
    "sgemm_tiles": RegisterTileConfig,
    "sgemm_assembly": AssemblyConfig,
    "sgemm_hopper": HopperStepConfig,
}
#: The steps by name.
LADDER: Mapping[str, SgemmConfig] = MappingProxyType({
    "sgemm_k1": NaiveConfig(),
    "sgemm_k2": SquareConfig(),
    "sgemm_k3": RegisterTileConfig(),
    "sgemm_k4": RegisterTileConfig(prefetch=True),
    "sgemm_k5": RegisterTileConfig(prefetch=True, num_warps=4, padded=True, cu_mode=True),
    "sgemm_k6": AssemblyConfig(),
    "sgemm_k7": AssemblyConfig(unroll=True, priority=True),
    "sgemm_k8": AssemblyConfig(unroll=True, priority=True, loads="batched"),
    **{f"sgemm_h{number}": HopperStepConfig(number=number) for number in _HOPPER_STEPS},
})  # fmt: skip

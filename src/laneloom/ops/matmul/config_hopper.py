"""What can be chosen on Hopper: one Config class for each of its schedules. Pure; `plan_hopper` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig, why_not_plain
from .dtypes import FLOAT_OUTPUTS, HALVES
from .problem import DTYPE_BYTES, MatmulProblem, Matrix

#: What a multiplication by wgmma takes, and what it accumulates in.
WGMMA_DTYPES = ("bf16", "fp16", "fp8", "int8")
PLAIN_DTYPES = ("bf16", "fp16", "fp32", "fp64", "int8")
TMA_BYTES = 16  #: TMA needs its base and its pitch to be multiples of this
RING_OVERHEAD_BYTES = 1024  #: barriers, the warp specialisation's state, alignment
MOST_LAUNCHES = 256  #: products of a batch that one call launches one after the other
PRODUCER_REGISTERS = 24
ADDRESS_REGISTERS = 40  #: what a consumer needs beside its accumulators
MOST_SIZE = (1 << 31) - (1 << 12)  #: of M, N and K where these are 32-bit integers, which the last tile may reach past
ACCUMULATORS_PER_THREAD = 128  #: what a consumer's 232 to 240 registers hold beside addresses


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def why_not_bare(
    schedule: str, problem: MatmulProblem, *, takes_groups: bool = False, precisions: Sequence[str] = ("ieee",)
) -> str | None:
    """Why a schedule that sums in the default dtype and writes bare products cannot do `problem`."""
    if problem.has_terms:
        return f"{schedule}: writes the bare product; its terms are a launch of their own"
    if why := why_not_plain(schedule, problem, takes_groups=takes_groups):
        return why
    if problem.precision not in precisions:
        return f"{schedule}: computes in full precision, got precision {problem.precision}"
    if problem.dtype_acc not in ("fp32", "fp64", "int32"):
        return f"{schedule}: sums in fp32, fp64 or int32, got {problem.dtype_acc}"
    return None


def why_not_walked(config: MatmulConfig, m: int, n: int, k: int) -> str | None:
    """Why a kernel cannot walk over the tiles of an m x n result, in 32-bit integers, by `group_m` rows of them."""
    if max(m, n, k) > MOST_SIZE:
        return f"{config.schedule}: sizes of at most {MOST_SIZE}, got M, N, K of {m}, {n}, {k}"
    if not 1 <= config.group_m * -(-n // config.block_n) < 1 << 31:
        return f"{config.schedule}: group_m: expected at least 1 and less than 2^31 tiles, got {config.group_m}"
    return None


def filled(ctas: int, units: int) -> float:
    """How much so many CTAs fill of the rounds over so many SMs that they take."""
    return ctas / (-(-ctas // units) * units)


def _suits_tma(matrix: Matrix, pitch: int, dtype: str) -> bool:
    strides = (pitch, *matrix.strides[:2])
    return matrix.alignment >= TMA_BYTES and all(s * DTYPE_BYTES[dtype] % TMA_BYTES == 0 for s in strides)


def tma_reads(problem: MatmulProblem, operand: str) -> bool:
    """Whether TMA can read operand "a" or "b" where it lies."""
    matrix, major, dtype = (
        (problem.a, problem.a.major, problem.dtype_a)
        if operand == "a"
        else (problem.b, problem.b.major, problem.dtype_b)
    )
    return major != "x" and _suits_tma(matrix, matrix.strides[2] if major == "n" else matrix.strides[3], dtype)


def tma_writes(problem: MatmulProblem) -> bool:
    """Whether TMA can write C where it lies. It writes whole pieces of 16 bytes, even behind a row's end, and takes no
    box that begins between them."""
    whole = problem.n * DTYPE_BYTES[problem.dtype_out] % TMA_BYTES == 0
    return whole and problem.out.strides[3] == 1 and _suits_tma(problem.out, problem.out.strides[2], problem.dtype_out)


def adds_lines(problem: MatmulProblem) -> bool:
    """Whether the epilogue adds rows of a 16-bit type that are whole pieces of 16 bytes."""
    e = problem.epilogue
    if e is None or e.addend is None or e.dtype_addend not in ("bf16", "fp16"):
        return False
    whole = problem.n * DTYPE_BYTES[e.dtype_addend] % TMA_BYTES == 0
    return whole and e.addend.strides[3] == 1 and _suits_tma(e.addend, e.addend.strides[2], e.dtype_addend)


@dataclass(frozen=True, kw_only=True)
class HopperConfig(MatmulConfig):
    """kernels/hopper.py: TMA ring, one producer warp, one or two consumer warpgroups, persistent."""

    schedule: str = "hopper"
    num_warps: int = 4  #: of one consumer
    stages: int  #: K-slices in the ring
    consumers: int = 2  #: warpgroups, each with block_m / consumers rows
    split_k: int = 1  #: parts of K, summed in order by a second launch
    pieces: int = 2  #: column pieces in which a consumer stores its slab
    buffers: int = 1  #: pieces of a slab in shared memory at a time
    lead: int = 0  #: K-slices by which the first consumer gets ahead of the second
    tma_store: bool = True
    repack_a: bool = False  #: copy A to a pitch of whole 128-byte lines first
    repack_b: bool = False
    swapped: bool = False  #: compute the transpose of C, so that N takes wgmma's 64 rows
    programs: int = 132  #: most programs that are launched; each walks over several tiles
    max_registers: int = 168  #: per thread at entry, before the warpgroups share them out
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one program."""
        ring = self.stages * (self.block_m + self.block_n) * self.block_k * DTYPE_BYTES[problem.dtype_a]
        staging = self.block_m * self.block_n // self.pieces * self.buffers
        return ring + staging * (4 if self.split_k > 1 else DTYPE_BYTES[problem.dtype_out]) + RING_OVERHEAD_BYTES

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper: needs wgmma and TMA, {gpu.name} has {gpu.matrix_instructions}"
        if problem.batches > MOST_LAUNCHES:
            return f"hopper: one launch for each of at most {MOST_LAUNCHES} products, got {problem.batches}"
        return (
            why_not_bare(self.schedule, problem)
            or self._why_operands(problem)
            or self._why_tile(problem)
            or self._why_resources(problem, gpu)
        )

    def _why_operands(self, problem: MatmulProblem) -> str | None:
        a, b = problem.dtype_a, problem.dtype_b
        if a not in WGMMA_DTYPES or a != b:
            return f"hopper: multiplies two operands of {', '.join(WGMMA_DTYPES)}, got {a} and {b}"
        if DTYPE_BYTES[a] == 1 and problem.layout != "nt":
            return f"hopper: wgmma takes 8-bit operands along K only, the layout is {problem.layout}"
        outputs = ("int32",) if a == "int8" else FLOAT_OUTPUTS
        if problem.dtype_out not in outputs:
            return f"hopper: products of {a} go to {', '.join(outputs)}, got {problem.dtype_out}"
        for operand, repacked in (("a", self.repack_a), ("b", self.repack_b)):
            major = problem.a.major if operand == "a" else problem.b.major
            if major == "x":
                return f"hopper: {operand} is contiguous along neither axis"
            if repacked and a not in HALVES:
                return f"hopper: copies operands of {', '.join(HALVES)} only, got {a}"
            if not repacked and not tma_reads(problem, operand):
                return f"hopper: TMA needs {operand} at a base and a pitch of {TMA_BYTES} bytes, or repacked"
        if self.tma_store and (self.swapped or (self.split_k == 1 and not tma_writes(problem))):
            return f"hopper: a TMA store needs C at a base and a row pitch of {TMA_BYTES} bytes, not swapped"
        # Offsets inside a tile, and of a part of a split K, are 32-bit integers.
        reach = max(self.block_m, self.block_n) * max(problem.out.strides[2:])
        if not self.tma_store and reach >= 1 << 31:
            return f"hopper: C's strides {problem.out.strides[2:]} put a tile's elements 2^31 apart"
        if self.split_k > 1 and self.split_k * problem.m * (problem.n + 31) >= 1 << 31:  # in rows of whole lines
            return f"hopper: {self.split_k} parts of C have 2^31 elements or more"
        return None

    def _why_tile(self, problem: MatmulProblem) -> str | None:
        slab = self.block_m // self.consumers if self.consumers in (1, 2) else 0
        if slab not in (64, 128):
            return f"hopper: 1 or 2 consumers take 64 or 128 rows each, got {self.block_m} for {self.consumers}"
        if not (_is_power_of_two(self.block_n) and 16 <= self.block_n <= 256):
            return f"hopper: block_n is a power of two from 16 to 256, got {self.block_n}"
        if problem.dtype_a == "int8" and self.block_n > 128:
            return f"hopper: int8 takes block_n up to 128, got {self.block_n}"
        if not _is_power_of_two(self.block_k) or self.block_k * DTYPE_BYTES[problem.dtype_a] not in (64, 128, 256):
            return f"hopper: a K-slice has 64, 128 or 256 bytes, got {self.block_k} elements of {problem.dtype_a}"
        if self.pieces not in (1, 2, 4) or self.block_n // self.pieces < 16:
            return f"hopper: 1, 2 or 4 pieces of 16 columns or more, got {self.pieces} of {self.block_n} columns"
        if self.num_warps != 4:
            return f"hopper: a consumer is one warpgroup of 4 warps, got {self.num_warps}"
        slices = -(-problem.k // self.block_k)
        if not 1 <= self.split_k <= max(slices, 1):
            return f"hopper: split_k is 1 to the {slices} K-slices, got {self.split_k}"
        # Buffers are taken in turn: a tile's last piece must leave the turn where the next tile begins.
        if self.buffers < 1 or self.pieces % self.buffers:
            return f"hopper: buffers divide the {self.pieces} pieces, got {self.buffers}"
        # The second consumer waits for a slice that has to come, and to fit in the ring.
        if self.lead and not (self.consumers == 2 and 0 < self.lead < min(self.stages, slices // self.split_k)):
            return f"hopper: lead is under the {self.stages} stages and the slices of a part, got {self.lead}"
        return None

    def _why_resources(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if self.stages < 2:
            return f"hopper: the ring has at least 2 stages, got {self.stages}"
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        accumulators = self.block_m // self.consumers * self.block_n // 128
        if accumulators > ACCUMULATORS_PER_THREAD:
            return f"hopper: {accumulators} accumulators a thread, {ACCUMULATORS_PER_THREAD} fit"
        # Warpgroups trade registers within what they start with: one more for the producer and its idle warps.
        if self.consumers == 2 and self.max_registers != 168:
            return f"hopper: two consumers start with 168 registers a thread, got {self.max_registers}"
        left = 2 * self.max_registers - PRODUCER_REGISTERS
        if self.max_registers % 8 or not accumulators + ADDRESS_REGISTERS <= left or self.max_registers > 248:
            return f"hopper: {self.max_registers} registers at entry leave a consumer {left}: too few, or uneven"
        if min(self.programs, self.group_m) < 1:
            return f"hopper: launches at least one program, with group_m of at least 1, got {self.text}"
        return None


@dataclass(frozen=True, kw_only=True)
class SkinnyConfig(MatmulConfig):
    """kernels/hopper_skinny.py: up to 16 rows against a streamed B, or columns against a streamed A."""

    schedule: str = "hopper_skinny"
    block_m: int = 16
    num_warps: int = 4
    stages: int = 4
    split_k: int = 1
    use_dot: bool = True  #: by mma with M padded to 16; otherwise (M = 1) by FMA
    swapped: bool = False  #: C^T = B^T A^T
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def as_multiplied(self, problem: MatmulProblem) -> MatmulProblem:
        """The product as the kernel sees it."""
        return problem.transposed() if self.swapped else problem

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.vendor != "nvidia":
            return f"hopper_skinny: launches for NVIDIA GPUs, got {gpu.name}"
        if why := why_not_bare(self.schedule, problem):
            return why
        if problem.batches != 1:
            return f"hopper_skinny: one product at a time, the problem has {problem.batches}"
        rows = self.as_multiplied(problem).m
        if rows > (self.block_m if self.use_dot else 1):
            return f"hopper_skinny: takes {self.block_m if self.use_dot else 1} rows at most, got {rows}"
        if problem.dtype_a != problem.dtype_b or problem.dtype_a not in ("bf16", "fp16"):
            return f"hopper_skinny: multiplies bf16 or fp16, got {problem.dtype_a} and {problem.dtype_b}"
        if not all(_is_power_of_two(block) for block in (self.block_m, self.block_n, self.block_k)):
            return "hopper_skinny: blocks are powers of two"
        if self.use_dot and min(self.block_m, self.block_n, self.block_k) < 16:
            return "hopper_skinny: mma takes blocks of 16 at least"
        slice_bytes = (self.block_m + self.block_n) * self.block_k * DTYPE_BYTES[problem.dtype_a]
        if self.stages * slice_bytes > gpu.lds_bytes:
            return f"hopper_skinny: needs {self.stages * slice_bytes} bytes of shared memory"
        return None


@dataclass(frozen=True, kw_only=True)
class PlainConfig(MatmulConfig):
    """kernels/hopper_plain.py: masked pointers, any strides and batch."""

    schedule: str = "hopper_plain"
    stages: int = 3
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.vendor != "nvidia":
            return f"hopper_plain: launches for NVIDIA GPUs, got {gpu.name}"
        if why := why_not_bare(self.schedule, problem):
            return why
        if problem.dtype_a != problem.dtype_b or problem.dtype_a not in PLAIN_DTYPES:
            return (
                f"hopper_plain: two operands of {', '.join(PLAIN_DTYPES)}, got {problem.dtype_a} and {problem.dtype_b}"
            )
        if not all(_is_power_of_two(b) and b >= 16 for b in (self.block_m, self.block_n, self.block_k)):
            return "hopper_plain: blocks are powers of two, 16 at least"
        if self.group_m < 1:
            return f"hopper_plain: group_m: expected at least 1, got {self.group_m}"
        return None

"""What can be chosen on RDNA for one product: the knobs of the WMMA schedules, and every limit of theirs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig, why_not_plain
from .dtypes import ACCUMULATORS, MIXED, outputs, words
from .problem import DTYPE_BYTES, MatmulProblem
from .stream_k import Shares
from .tile_orders import ORDERS

VECTOR_BYTES = 16  #: of the widest access of a lane
ACROSS = 8  #: elements of one load of an operand that is contiguous along its rows
STAGED = 8  #: elements of C that a lane has at least, for its stores
SUMS = 128  #: of a lane; with the fragments and the tiles on their way, more would spill
#: Of a lane, where a tile arrives element by element, each with its own address: this many sums, or this many
#: registers for sums and addresses.
NARROW_SUMS, NARROW_REGISTERS = 32, 128
INPUT_DTYPES = ("fp16", "bf16", "int8", "uint8", "int4", "uint4", "fp8", "bf8")
LDS_LAYOUTS = ("swizzled", "padded", "xor")
TRANSPOSES = ("registers", "scalar", "gather", "shuffle")
STORES = ("staged", "direct")
CONTROLS = ("fences", "waits", "priority")


def is_power_of_two(value: int) -> bool:
    """1, 2, 4, ..."""
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True, kw_only=True)
class WmmaConfig(MatmulConfig):
    """kernels/wmma.py: tiles through LDS, the next one loaded during the matrix instructions."""

    schedule: str = "wmma"
    num_warps: int = 4
    waves_n: int = 2  #: waves side by side along N; the others are along M
    lds: str = "swizzled"  #: how a tile lies in LDS: or "padded", without bank conflicts as well, or the seed's "xor"
    buffers: int = 2  #: tiles of each operand in LDS
    prefetch: bool = True  #: load the next tiles before the matrix instructions, not after
    transpose: str = "registers"  #: an operand contiguous along its rows: or "scalar", "gather", "shuffle"
    stores: str = "staged"  #: C through LDS into rows; or "direct", from where the sums are
    control: str = "fences"  #: what holds the loop's order; also "waits", or "priority" for multiplying waves
    order: str = "grouped"  #: in which programs visit the tiles: one of `tile_orders.ORDERS`
    split_k: int = 1  #: parts of K, by programs of their own, at most
    stream_k: int = 0  #: the last round of tiles is shared by so many workgroups for each compute unit; 0: it is not

    def k_part(self, problem: MatmulProblem) -> int:
        """Stored elements of K in a part: whole K-tiles."""
        return -(-problem.k_stored // (self.block_k * self.split_k)) * self.block_k

    def parts(self, problem: MatmulProblem) -> int:
        return -(-problem.k_stored // self.k_part(problem))

    def shares(self, problem: MatmulProblem, gpu: Gpu) -> Shares:
        """What the programs of stream-K make."""
        tiles = problem.batches * -(-problem.m // self.block_m) * -(-problem.n // self.block_n)
        return Shares.of(tiles, -(-problem.k_stored // self.block_k), self.stream_k * gpu.compute_units)

    def workspace(self, problem: MatmulProblem, gpu: Gpu) -> tuple[int, int, int] | None:
        """How many parts of tiles stream-K leaves, and their two sizes; None if all tiles are finished."""
        slots = self.shares(problem, gpu).slots if self.stream_k else 0
        return (slots, self.block_m, self.block_n) if slots else None

    @property
    def loaders(self) -> int:
        """Waves that load one operand together."""
        return self.num_warps

    def lds_bytes(self, problem: MatmulProblem, gpu: Gpu) -> int:
        """LDS of all buffers of both tiles; with padding, at most."""
        rows = self.block_m + self.block_n
        row_bytes = self.block_k * lds_element_bytes(problem, gpu)
        if self.lds == "padded":
            row_bytes += VECTOR_BYTES + 4
        return self.buffers * rows * row_bytes

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        return self._why_not_problem(problem, gpu) or self._why_not_knobs(problem) or self._why_not_tiles(problem, gpu)

    def _why_not_problem(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wmma":
            return (
                f"gpu: the schedule {self.schedule} needs WMMA instructions (RDNA 3, 3.5, 4), got {gpu.name} "
                f"({gpu.family})"
            )
        if why := why_not_plain(self.schedule, problem, takes_groups=self.schedule == "wmma"):
            return why
        if problem.dtype_a not in INPUT_DTYPES:
            return f"a: the schedule {self.schedule} takes {words(INPUT_DTYPES)}, got {problem.dtype_a}"
        if problem.dtype_b != problem.dtype_a and {problem.dtype_a, problem.dtype_b} not in MIXED:
            return f"b: expected a's dtype {problem.dtype_a}, got {problem.dtype_b}"
        stored = outputs(problem.dtype_a, bool(problem.epilogue))
        if problem.dtype_out not in stored:
            return f"out_dtype: expected {words(stored)}, got {problem.dtype_out}"
        if problem.dtype_acc not in ACCUMULATORS[problem.dtype_a]:
            return f"acc_dtype: expected {words(ACCUMULATORS[problem.dtype_a])}, got {problem.dtype_acc}"
        for name, size in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
            if not 0 < size < 1 << 31:
                return f"{name}: expected 1 to 2**31 - 1, got {size}"
        if self.control == "waits" and gpu.is_rdna_4m:
            return f"control: explicit waits are written for RDNA 3, 3.5 and 4, not for {gpu.name} ({gpu.family})"
        return None

    def _why_not_knobs(self, problem: MatmulProblem) -> str | None:
        for name in ("block_m", "block_n", "num_warps", "waves_n"):
            if not is_power_of_two(getattr(self, name)):
                return f"{name}: expected a power of two, got {getattr(self, name)}"
        depths = (16, 32, 64) if DTYPE_BYTES[problem.dtype_a] == 2 else (16, 32, 64, 128)
        if self.block_k not in depths:
            return f"block_k: expected {words([*map(str, depths)])} elements, got {self.block_k}"
        for name, known in (("lds", LDS_LAYOUTS), ("transpose", TRANSPOSES), ("stores", STORES),
                            ("control", CONTROLS), ("order", tuple(ORDERS))):  # fmt: skip
            if getattr(self, name) not in known:
                return f"{name}: expected {words([*map(repr, known)])}, got {getattr(self, name)!r}"
        if not 1 <= self.split_k <= 65535:
            return f"split_k: expected 1 to 65535, got {self.split_k}"
        if not 0 <= self.stream_k <= 32 or (self.stream_k and self.split_k > 1):
            return f"stream_k: expected 0 to 32, and 0 with split_k, got {self.stream_k} and split_k={self.split_k}"
        if problem.in_groups and (self.split_k > 1 or self.stream_k):
            return f"split_k: rows or K in groups are summed whole, got {self.split_k} and stream_k={self.stream_k}"
        if self.buffers not in (1, 2):
            return f"buffers: expected 1 or 2, got {self.buffers}"
        if self.group_m < 1:
            return f"group_m: expected at least 1, got {self.group_m}"
        return None

    def _why_not_tiles(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if self.num_warps > 16 or self.waves_n > self.num_warps:
            return f"waves_n: expected at most num_warps, and that at most 16, got {self.waves_n} and {self.num_warps}"
        waves_m = self.num_warps // self.waves_n
        if self.block_m < 16 * waves_m or self.block_n < 16 * self.waves_n:
            return (f"block_m and block_n: expected at least 16 x 16 for each of {waves_m} x {self.waves_n} waves, "
                    f"got {self.block_m} x {self.block_n}")  # fmt: skip
        threads = 32 * self.num_warps
        if self.block_m * self.block_n < STAGED * threads:
            return (f"block_m x block_n: expected at least {STAGED} elements for each of {threads} threads, got "
                    f"{self.block_m} x {self.block_n}")  # fmt: skip
        smaller, loading = min(self.block_m, self.block_n) * self.block_k, 32 * self.loaders
        size = lds_element_bytes(problem, gpu)
        if smaller * size < 4 * loading:
            return f"block_k: {loading} threads need at least 4 bytes of each tile, got {self.text}"
        if self.transpose == "shuffle":
            if DTYPE_BYTES[problem.dtype_a] != 2:
                return f"transpose: 'shuffle' takes 16-bit elements, got {problem.dtype_a}"
            if smaller * size < VECTOR_BYTES * loading:
                return f"transpose: 'shuffle' needs {VECTOR_BYTES} bytes of each tile in each of {loading} threads"
        if self.block_m * self.block_n > SUMS * threads:
            return (f"block_m x block_n: expected at most {SUMS} elements for each of {threads} threads, got "
                    f"{self.block_m} x {self.block_n}")  # fmt: skip
        vectors, narrow = self.load_vector(problem, gpu)
        sums, held = self.block_m * self.block_n // threads, (self.block_m + self.block_n) * self.block_k // loading
        held = held if size == 2 else held // vectors  # loads, with an address each; halves are counted one by one
        if narrow and (sums > NARROW_SUMS or held > 2 * NARROW_SUMS) and sums + 2 * held > NARROW_REGISTERS:
            return (f"block_m x block_n: expected at most {NARROW_SUMS} elements for each of {threads} threads,"
                    f" or {NARROW_REGISTERS} with the addresses, with loads of {vectors} elements, got {sums} elements "
                    f"and {2 * held} addresses")  # fmt: skip
        if self.stores == "direct" and self.block_m * self.block_n > 64 * threads:
            return (f"stores: 'direct' takes at most 64 sums for each of {threads} threads, got "
                    f"{self.block_m} x {self.block_n}")  # fmt: skip
        if self.stream_k and (shares := self.shares(problem, gpu)).units * shares.workers >= 1 << 31:
            return f"stream_k: K is too long for 32-bit numbers of K-tiles, {shares.steps} for a tile"
        if (needed := self.lds_bytes(problem, gpu)) > gpu.lds_bytes:
            return f"block_k: the tiles take {needed} bytes of LDS, {gpu.name} has {gpu.lds_bytes}"
        return None

    def load_vector(self, problem: MatmulProblem, gpu: Gpu) -> tuple[int, bool]:
        """Elements of the narrowest global load of the operands, and whether one is narrower than its tile allows."""
        vectors, narrow = [], False
        for vector, along_k, rows in (
            (problem.vector_a, problem.a.major != "t", self.block_m),
            (problem.vector_b, problem.b.major != "n", self.block_n),
        ):
            held = min(self.widest_load(problem, gpu, along_k), rows * self.block_k // (32 * self.loaders))
            vectors.append(1 if self.transpose == "gather" and not along_k else min(vector, held))
            narrow |= vectors[-1] < held
        return min(vectors), narrow

    def widest_load(self, problem: MatmulProblem, gpu: Gpu, along_k: bool) -> int:
        """Elements that one load of an operand takes at most."""
        return VECTOR_BYTES // lds_element_bytes(problem, gpu) if along_k else ACROSS


@dataclass(frozen=True, kw_only=True)
class RolesConfig(WmmaConfig):
    """A WMMA schedule whose two halves of waves have different work: kernels/wmma_coop.py and wmma_pingpong.py."""

    num_warps: int = 8

    @property
    def loaders(self) -> int:
        """One half of the waves loads A, the other B."""
        return self.num_warps // 2

    def _why_not_knobs(self, problem: MatmulProblem) -> str | None:
        for name, only in (("buffers", 2), ("prefetch", True), ("control", "fences"), ("split_k", 1), ("stream_k", 0)):
            if getattr(self, name) != only:
                return f"{name}: the schedule {self.schedule} has {only!r} only, got {getattr(self, name)!r}"
        if self.num_warps < 2 * self.waves_n or self.num_warps < 2:
            return f"num_warps: expected two halves of at least {self.waves_n} waves, got {self.num_warps} waves"
        return super()._why_not_knobs(problem)


@dataclass(frozen=True, kw_only=True)
class CoopConfig(RolesConfig):
    """kernels/wmma_coop.py: half of the waves load A, the other half B; all multiply."""

    schedule: str = "wmma_coop"


@dataclass(frozen=True, kw_only=True)
class WideConfig(RolesConfig):
    """kernels/wmma_wide.py: as CoopConfig, with every access of the loop 16 bytes wide."""

    schedule: str = "wmma_wide"
    num_warps: int = 4

    def _why_not_knobs(self, problem: MatmulProblem) -> str | None:
        for name, only in (("lds", "swizzled"), ("transpose", "registers")):
            if getattr(self, name) != only:
                return f"{name}: the schedule {self.schedule} has {only!r} only, got {getattr(self, name)!r}"
        return super()._why_not_knobs(problem)

    def _why_not_tiles(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if DTYPE_BYTES[problem.dtype_a] != 2:
            return f"a: the schedule {self.schedule} takes 16-bit elements, got {problem.dtype_a}"
        if self.block_m != self.block_n or self.block_m * self.block_k != 64 * 32 * self.loaders:
            return (f"block_m: the schedule {self.schedule} takes square tiles with 64 elements of each operand for "
                    f"each thread of half the waves, got {self.text}")  # fmt: skip
        if min(problem.vector_a, problem.vector_b) < ACROSS:
            return f"a, b: the schedule {self.schedule} loads 16 bytes at a time, the strides or addresses allow fewer"
        if needs_wide_offsets(problem, self):
            return f"a, b: the schedule {self.schedule} has 32-bit offsets inside a tile"
        return super()._why_not_tiles(problem, gpu)


@dataclass(frozen=True, kw_only=True)
class PingpongConfig(RolesConfig):
    """kernels/wmma_pingpong.py: while half of the waves multiply, the other half moves tiles; then they change."""

    schedule: str = "wmma_pingpong"


def is_upcast(problem: MatmulProblem, gpu: Gpu) -> bool:
    """Whether 8-bit floats become fp16 on their way to LDS, exactly: RDNA 3 has no instruction for them."""
    return problem.dtype_a in ("fp8", "bf8") and gpu.wmma_version == 1


def lds_element_bytes(problem: MatmulProblem, gpu: Gpu) -> int:
    """Bytes of an element of A and B in LDS."""
    return 2 if is_upcast(problem, gpu) else DTYPE_BYTES[problem.dtype_a]


def needs_wide_offsets(problem: MatmulProblem, config: MatmulConfig) -> bool:
    """Whether byte offsets inside a tile pass 32 bits, as with rows of 16 million elements and more."""
    tiles = [
        (problem.a, config.block_m, config.block_k, problem.dtype_a),
        (problem.b, config.block_k, config.block_n, problem.dtype_b),
        (problem.out, config.block_m, config.block_n, problem.dtype_out),
    ]
    if problem.epilogue and problem.epilogue.addend:
        tiles.append((problem.epilogue.addend, config.block_m, config.block_n, problem.epilogue.dtype_addend))
    return any(
        (rows * matrix.strides[2] + columns * matrix.strides[3]) * DTYPE_BYTES[dtype] >= 1 << 31
        for matrix, rows, columns, dtype in tiles
    )

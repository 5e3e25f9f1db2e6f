"""What can be chosen on RDNA for one product: the knobs of the WMMA schedules, and every limit of theirs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig
from .problem import DTYPE_BYTES, MatmulProblem
from .tile_orders import ORDERS

VECTOR = 8  #: fp16 or bf16 elements in 16 bytes
ACCUMULATORS = 128  #: of a lane; with the fragments and the tiles on their way, more would spill
#: Of a lane, where a tile arrives element by element, each with its own address: this many sums, or this many
#: registers for sums and addresses.
NARROW_ACCUMULATORS, NARROW_REGISTERS = 32, 128
INPUT_DTYPES = ("fp16", "bf16")
OUTPUT_DTYPES = ("fp32", "fp16", "bf16")
LDS_LAYOUTS = ("swizzled", "padded", "xor")
TRANSPOSES = ("registers", "scalar", "gather", "shuffle")
STORES = ("staged", "direct")
CONTROLS = ("fences", "waits", "priority")


def _is_power_of_two(value: int) -> bool:
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

    @property
    def loaders(self) -> int:
        """Waves that load one operand together."""
        return self.num_warps

    def lds_bytes(self) -> int:
        """LDS of all buffers of both tiles; with padding, at most."""
        rows = self.block_m + self.block_n
        elements = rows * self.block_k
        if self.lds == "padded":
            elements += rows * (VECTOR + 2)
        return 2 * self.buffers * elements

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        return self._why_not_problem(problem, gpu) or self._why_not_knobs() or self._why_not_tiles(problem, gpu)

    def _why_not_problem(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wmma":
            return (
                f"gpu: the schedule {self.schedule} needs WMMA instructions (RDNA 3, 3.5, 4), got {gpu.name} "
                f"({gpu.family})"
            )
        if problem.dtype_a not in INPUT_DTYPES:
            return f"a: expected dtype {' or '.join(INPUT_DTYPES)}, got {problem.dtype_a}"
        if problem.dtype_b != problem.dtype_a:
            return f"b: expected a's dtype {problem.dtype_a}, got {problem.dtype_b}"
        if problem.dtype_out not in OUTPUT_DTYPES:
            return f"out_dtype: expected fp32, fp16 or bf16, got {problem.dtype_out}"
        if problem.dtype_acc != "fp32":
            return f"acc_dtype: expected fp32, got {problem.dtype_acc}"
        for name, size in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
            if not 0 < size < 1 << 31:
                return f"{name}: expected 1 to 2**31 - 1, got {size}"
        return None

    def _why_not_knobs(self) -> str | None:
        for name in ("block_m", "block_n", "num_warps", "waves_n"):
            if not _is_power_of_two(getattr(self, name)):
                return f"{name}: expected a power of two, got {getattr(self, name)}"
        if self.block_k not in (16, 32, 64):
            return f"block_k: expected 16, 32 or 64, got {self.block_k}"
        for name, known in (("lds", LDS_LAYOUTS), ("transpose", TRANSPOSES), ("stores", STORES),
                            ("control", CONTROLS), ("order", tuple(ORDERS))):  # fmt: skip
            if getattr(self, name) not in known:
                words = ", ".join(map(repr, known[:-1]))
                return f"{name}: expected {words} or {known[-1]!r}, got {getattr(self, name)!r}"
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
        if self.block_m * self.block_n < VECTOR * threads:
            return (f"block_m x block_n: expected at least {VECTOR} elements for each of {threads} threads, got "
                    f"{self.block_m} x {self.block_n}")  # fmt: skip
        smaller, loading = min(self.block_m, self.block_n) * self.block_k, 32 * self.loaders
        if smaller < 2 * loading:
            return f"block_k: {loading} threads need at least 2 elements of each tile, got {self.text}"
        if self.transpose == "shuffle" and smaller < VECTOR * loading:
            return f"transpose: 'shuffle' needs {VECTOR} elements of each tile in each of {loading} threads"
        if self.block_m * self.block_n > ACCUMULATORS * threads:
            return (f"block_m x block_n: expected at most {ACCUMULATORS} elements for each of {threads} threads, got "
                    f"{self.block_m} x {self.block_n}")  # fmt: skip
        vectors, narrow = self.load_vector(problem)
        sums, held = self.block_m * self.block_n // threads, (self.block_m + self.block_n) * self.block_k // loading
        if narrow and sums > NARROW_ACCUMULATORS and sums + 2 * held > NARROW_REGISTERS:
            return (f"block_m x block_n: expected at most {NARROW_ACCUMULATORS} elements for each of {threads} threads,"
                    f" or {NARROW_REGISTERS} with the addresses, with loads of {vectors} elements, got {sums} elements "
                    f"and {2 * held} addresses")  # fmt: skip
        if self.stores == "direct" and self.block_m * self.block_n > 64 * threads:
            return (f"stores: 'direct' takes at most 64 sums for each of {threads} threads, got "
                    f"{self.block_m} x {self.block_n}")  # fmt: skip
        if self.lds_bytes() > gpu.lds_bytes:
            return f"block_k: the tiles take {self.lds_bytes()} bytes of LDS, {gpu.name} has {gpu.lds_bytes}"
        return None

    def load_vector(self, problem: MatmulProblem) -> tuple[int, bool]:
        """Elements of the narrowest global load of the operands, and whether one is narrower than its tile allows."""
        vectors, narrow = [], False
        for vector, along_k, rows in (
            (problem.vector_a, problem.a.major != "t", self.block_m),
            (problem.vector_b, problem.b.major != "n", self.block_n),
        ):
            held = min(VECTOR, rows * self.block_k // (32 * self.loaders))
            vectors.append(1 if self.transpose == "gather" and not along_k else min(vector, held))
            narrow |= vectors[-1] < held
        return min(vectors), narrow


@dataclass(frozen=True, kw_only=True)
class RolesConfig(WmmaConfig):
    """A WMMA schedule whose two halves of waves have different work: kernels/wmma_coop.py and wmma_pingpong.py."""

    num_warps: int = 8

    @property
    def loaders(self) -> int:
        """One half of the waves loads A, the other B."""
        return self.num_warps // 2

    def _why_not_knobs(self) -> str | None:
        for name, only in (("buffers", 2), ("prefetch", True), ("control", "fences")):
            if getattr(self, name) != only:
                return f"{name}: the schedule {self.schedule} has {only!r} only, got {getattr(self, name)!r}"
        if self.num_warps < 2 * self.waves_n or self.num_warps < 2:
            return f"num_warps: expected two halves of at least {self.waves_n} waves, got {self.num_warps} waves"
        return super()._why_not_knobs()


@dataclass(frozen=True, kw_only=True)
class CoopConfig(RolesConfig):
    """kernels/wmma_coop.py: half of the waves load A, the other half B; all multiply."""

    schedule: str = "wmma_coop"


@dataclass(frozen=True, kw_only=True)
class PingpongConfig(RolesConfig):
    """kernels/wmma_pingpong.py: while half of the waves multiply, the other half moves tiles; then they change."""

    schedule: str = "wmma_pingpong"


def needs_wide_offsets(problem: MatmulProblem, config: WmmaConfig) -> bool:
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

"""RDNA's configs and the order in which they are tried for a problem. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...gpu import Gpu
from .config import MatmulConfig
from .problem import DTYPE_BYTES, MatmulProblem

VECTOR = 8  #: fp16 or bf16 elements in 16 bytes
ACCUMULATORS = 128  #: of a lane; with the fragments and the tiles on their way, more would spill
NARROW_ACCUMULATORS = 32  #: of a lane where a tile arrives element by element, each with its own address
INPUT_DTYPES = ("fp16", "bf16")
OUTPUT_DTYPES = ("fp32", "fp16", "bf16")


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True, kw_only=True)
class WmmaConfig(MatmulConfig):
    """kernels/wmma.py: tiles through LDS in two buffers, the next one loaded during the matrix instructions."""

    schedule: str = "wmma"
    num_warps: int = 4
    waves_n: int = 2  #: waves side by side along N; the others are along M
    lds: str = "swizzled"  #: or "padded": how a tile lies in LDS; neither has bank conflicts

    def lds_bytes(self) -> int:
        """LDS of the two buffers of both tiles; with padding, at most."""
        rows = self.block_m + self.block_n
        elements = rows * self.block_k
        if self.lds == "padded":
            elements += rows * (VECTOR + 2)
        return 2 * 2 * elements

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        return self._why_not_problem(problem, gpu) or self._why_not_tiles(problem, gpu)

    def _why_not_problem(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wmma":
            return f"gpu: the schedule wmma needs WMMA instructions (RDNA 3, 3.5, 4), got {gpu.name} ({gpu.family})"
        if problem.dtype_a not in INPUT_DTYPES:
            return f"a: expected dtype {' or '.join(INPUT_DTYPES)}, got {problem.dtype_a}"
        if problem.dtype_b != problem.dtype_a:
            return f"b: expected a's dtype {problem.dtype_a}, got {problem.dtype_b}"
        if problem.dtype_out not in OUTPUT_DTYPES:
            return f"out_dtype: expected fp32, fp16 or bf16, got {problem.dtype_out}"
        for name, size in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
            if not 0 < size < 1 << 31:
                return f"{name}: expected 1 to 2**31 - 1, got {size}"
        return None

    def _why_not_tiles(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        for name in ("block_m", "block_n", "num_warps", "waves_n"):
            if not _is_power_of_two(getattr(self, name)):
                return f"{name}: expected a power of two, got {getattr(self, name)}"
        if self.block_k not in (16, 32, 64):
            return f"block_k: expected 16, 32 or 64, got {self.block_k}"
        if self.lds not in ("swizzled", "padded"):
            return f"lds: expected 'swizzled' or 'padded', got {self.lds!r}"
        if self.group_m < 1:
            return f"group_m: expected at least 1, got {self.group_m}"
        if self.num_warps > 16 or self.waves_n > self.num_warps:
            return f"waves_n: expected at most num_warps, and that at most 16, got {self.waves_n} and {self.num_warps}"
        waves_m = self.num_warps // self.waves_n
        if self.block_m < 16 * waves_m or self.block_n < 16 * self.waves_n:
            return (f"block_m and block_n: expected at least 16 x 16 for each of {waves_m} x {self.waves_n} waves, "
                    f"got {self.block_m} x {self.block_n}")  # fmt: skip
        threads = 32 * self.num_warps
        if min(self.block_m, self.block_n) * self.block_k < VECTOR * threads:
            return f"block_k: {threads} threads need at least {VECTOR} elements of each tile, got {self.text}"
        vectors = min(problem.vector_a, problem.vector_b)
        limit = ACCUMULATORS if vectors == VECTOR else NARROW_ACCUMULATORS
        if self.block_m * self.block_n > limit * threads:
            return (f"block_m x block_n: expected at most {limit} elements for each of {threads} threads with loads of "
                    f"{vectors} elements, got {self.block_m} x {self.block_n}")  # fmt: skip
        if self.lds_bytes() > gpu.lds_bytes:
            return f"block_k: the tiles take {self.lds_bytes()} bytes of LDS, {gpu.name} has {gpu.lds_bytes}"
        return None


CONFIGS = {"wmma": WmmaConfig}


def needs_wide_offsets(problem: MatmulProblem, config: WmmaConfig) -> bool:
    """Whether byte offsets inside a tile pass 32 bits, as with rows of 16 million elements and more."""
    tiles = (
        (problem.a, config.block_m, config.block_k, problem.dtype_a),
        (problem.b, config.block_k, config.block_n, problem.dtype_b),
        (problem.out, config.block_m, config.block_n, problem.dtype_out),
    )
    return any(
        (rows * matrix.strides[2] + columns * matrix.strides[3]) * DTYPE_BYTES[dtype] >= 1 << 31
        for matrix, rows, columns, dtype in tiles
    )


#: Block tiles with their waves, and the share of the matrix units' rate that their LDS traffic is taken to allow: the
#: fewer rows and columns a wave has, the more often it reads each of them.
TILES = (
    (WmmaConfig(block_m=128, block_n=128, block_k=32), 1.0),
    (WmmaConfig(block_m=128, block_n=64, block_k=32), 0.85),
    (WmmaConfig(block_m=64, block_n=128, block_k=32), 0.85),
    (WmmaConfig(block_m=64, block_n=64, block_k=32), 0.65),
    (WmmaConfig(block_m=32, block_n=64, block_k=32, num_warps=2), 0.5),
    (WmmaConfig(block_m=64, block_n=32, block_k=32, num_warps=2, waves_n=1), 0.5),
    (WmmaConfig(block_m=32, block_n=32, block_k=32, num_warps=1, waves_n=1), 0.45),
)


def _tiles(problem: MatmulProblem, config: MatmulConfig) -> int:
    return problem.batches * -(-problem.m // config.block_m) * -(-problem.n // config.block_n)


def _cost(problem: MatmulProblem, config: MatmulConfig, share: float, gpu: Gpu) -> float:
    """Relative time: the elements that the busiest compute unit makes, over the rate at which it makes them."""
    return -(-_tiles(problem, config) // gpu.compute_units) * config.block_m * config.block_n / share


def candidates(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """The tiles in the order of the time that `_cost` gives them; larger ones first where it gives the same."""
    ranked = sorted(TILES, key=lambda tile: _cost(problem, tile[0], tile[1], gpu))
    for place, (config, share) in enumerate(ranked):
        tiles = _tiles(problem, config)
        useful = problem.batches * problem.m * problem.n / (tiles * config.block_m * config.block_n)
        yield config, (
            f"rank {place + 1} of {len(ranked)} by the busiest compute unit's work: {tiles} tiles of "
            f"{config.block_m} x {config.block_n} on {gpu.compute_units} units, {useful:.0%} of them in the product, "
            f"LDS traffic allows {share:.0%} of the matrix rate"
        )

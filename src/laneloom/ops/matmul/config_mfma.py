"""What can be chosen on CDNA: kernels/mfma.py, and the order in which its tiles are tried. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...gpu import Gpu
from .config import MatmulConfig, why_not_plain
from .config_fma import FmaConfig
from .config_wmma import is_power_of_two
from .dtypes import FULL_PRECISIONS, outputs, words
from .problem import DTYPE_BYTES, MatmulProblem
from .tile_orders import ORDERS

#: dtype -> elements of K of its 16 x 16 matrix instruction, and those that a lane has side by side
INSTRUCTIONS = {
    "fp16": (16, 4), "bf16": (16, 4), "int8": (32, 8), "fp32": (4, 1), "fp64": (4, 1), "fp8": (32, 8), "bf8": (32, 8),
}
_CDNA4 = INSTRUCTIONS | {"fp16": (32, 8), "bf16": (32, 8), "int8": (64, 16), "fp8": (128, 16), "bf8": (128, 16)}
_CDNA3 = INSTRUCTIONS | {"fp8": (16, 4), "bf8": (16, 4)}
_CDNA2 = _CDNA3 | {"int8": (16, 4)}
_CDNA1 = _CDNA2 | {"bf16": (8, 2), "fp8": (8, 2), "bf8": (8, 2)}
SUM_REGISTERS = 128  #: of a lane
SWIZZLED_ROWS = (64, 128)  #: bytes of a row in LDS; others are padded


def instruction_of(dtype: str, gpu: Gpu) -> tuple[int, int]:
    """INSTRUCTIONS' row of a dtype."""
    return {"gfx908": _CDNA1, "gfx90a": _CDNA2, "gfx942": _CDNA3, "gfx950": _CDNA4}.get(gpu.name, INSTRUCTIONS)[dtype]


def format_of(dtype: str, gpu: Gpu) -> str:
    """Of 8-bit floats, as CDNA 4's instructions with scales call them: of 128 of K, twice as fast as those without."""
    return {"fp8": "e4m3", "bf8": "e5m2"}.get(dtype, "") if gpu.name == "gfx950" else ""


def is_upcast(problem: MatmulProblem, gpu: Gpu) -> bool:
    """Whether 8-bit floats become bf16 on their way to LDS, exactly: CDNA 1 and 2 have no instruction for them, and
    CDNA 3's are of FNUZ formats.

    Not fp16 as on RDNA 3: there the smallest of E5M2 are denormals, which CDNA 2 takes for zeros.
    """
    return problem.dtype_a in ("fp8", "bf8") and gpu.name in ("gfx908", "gfx90a", "gfx942")


def lds_element_bytes(problem: MatmulProblem, gpu: Gpu) -> int:
    """Bytes of an element of A and B in LDS."""
    return 2 if is_upcast(problem, gpu) else DTYPE_BYTES[problem.dtype_a]


@dataclass(frozen=True, kw_only=True)
class MfmaConfig(MatmulConfig):
    """kernels/mfma.py: tiles through LDS, the next one loaded during the matrix instructions."""

    schedule: str = "mfma"
    num_warps: int = 4
    order: str = "chiplet"  #: in which programs visit the tiles: one of `tile_orders.ORDERS`

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "mfma":
            return f"gpu: the schedule mfma is for CDNA, got {gpu.name} ({gpu.family})"
        if why := why_not_plain(self.schedule, problem, takes_groups=True):
            return why
        # Triton 3.6 gives products of fp8 with bf8 the instruction of the other order: they are wrong.
        if problem.dtype_a not in INSTRUCTIONS or problem.dtype_b != problem.dtype_a:
            return (
                f"a: the schedule mfma takes {words([*INSTRUCTIONS])}, both operands alike, got {problem.dtype_a} and "
                f"{problem.dtype_b}"
            )
        if problem.dtype_a == "fp64" and gpu.is_cdna_1:
            return f"a: {gpu.name} has no matrix instruction of FP64, the schedule fma multiplies it"
        if problem.precision not in FULL_PRECISIONS:
            return f"precision: {gpu.name} multiplies fp32 in FP32 only, got {problem.precision!r}"
        if problem.dtype_acc in ("fp16", "bf16"):
            return f"acc_dtype: {gpu.name} sums halves in fp32, got {problem.dtype_acc}"
        stored = outputs(problem.dtype_a, bool(problem.epilogue))
        if problem.dtype_out not in stored:
            return f"out_dtype: expected {words(stored)}, got {problem.dtype_out}"
        for name, size in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
            if not 0 < size < 1 << 31:
                return f"{name}: expected 1 to 2**31 - 1, got {size}"
        for name in ("block_m", "block_n", "block_k", "num_warps"):
            if not is_power_of_two(getattr(self, name)):
                return f"{name}: expected a power of two, got {getattr(self, name)}"
        if self.order not in ORDERS or self.group_m < 1:
            return f"order: expected {words([*ORDERS])} in groups of at least 1, got {self.order!r}, {self.group_m}"
        depth, size = instruction_of(problem.dtype_a, gpu)[0], lds_element_bytes(problem, gpu)
        if self.block_k < depth or min(self.block_m, self.block_n) < 16 * self.num_warps:
            return f"block_k: expected at least {depth}, and 16 rows and columns a wave, got {self.text}"
        threads = 64 * self.num_warps
        registers = self.block_m * self.block_n // threads * max(size, 4) // 4
        if not 4 <= registers <= SUM_REGISTERS:
            return f"block_m x block_n: expected 4 to {SUM_REGISTERS} registers of sums, got {registers}"
        row = self.block_k * size
        needed = (self.block_m + self.block_n) * (row if row in SWIZZLED_ROWS else row + 16)
        if needed > gpu.lds_bytes:
            return f"block_k: the tiles take {needed} bytes of LDS, {gpu.name} has {gpu.lds_bytes}"
        return None


CONFIGS: dict[str, type[MatmulConfig]] = {"mfma": MfmaConfig}
ROW_BYTES = 128  #: of a tile in LDS
#: Tiles and the share of the matrix units' rate that their LDS traffic is taken to allow.
TILES = (
    (MfmaConfig(block_m=128, block_n=128, block_k=64), 1.0),
    (MfmaConfig(block_m=64, block_n=64, block_k=64), 0.7),
    (MfmaConfig(block_m=32, block_n=32, block_k=64, num_warps=2), 0.4),
)
#: Of CDNA 4, whose LDS has room for three such workgroups, in 16 bits and int8; CDNA 3's for one.
CDNA_4_TILES = ((MfmaConfig(block_m=256, block_n=128, block_k=64), 1.3), *TILES)
#: Of CDNA 3 in 16 bits, of operands whose lines of memory lie across K: rows of 64 bytes leave LDS room for two.
CDNA_3_ACROSS = ((MfmaConfig(block_m=256, block_n=128, block_k=32), 1.1), *TILES)
LARGE_TRITON = (3, 9)  #: earlier ones give a wave of these more than 256 registers, so that a SIMD has room for one

#: Of CDNA 1, whose FP64 products are vector instructions.
CDNA_1_FP64_TILES = (
    (FmaConfig(block_m=64, block_n=64, block_k=4, num_warps=4), 1.0),
    (FmaConfig(block_m=32, block_n=32, block_k=4, num_warps=1), 0.8),
)


def _leaves_registers(problem: MatmulProblem) -> bool:
    """Whether tiles of 256 rows have two waves on a SIMD: operands by 16 bytes, few terms behind the product."""
    from ...codegen.versions import parse_version, triton_version

    e, most = problem.epilogue, 16 // DTYPE_BYTES[problem.dtype_a]
    few = e is None or not (e.addend or e.scale_a or e.scale_b or e.activation not in (None, "relu"))
    whole = problem.vector_a == problem.vector_b == most
    return few and whole and parse_version(triton_version()) >= LARGE_TRITON


def candidates(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """The tiles in the order of the busiest compute unit's work."""
    size = lds_element_bytes(problem, gpu)
    tiles = CDNA_1_FP64_TILES if gpu.is_cdna_1 and problem.dtype_a == "fp64" else TILES
    if _leaves_registers(problem):
        halves, across = problem.dtype_a in ("fp16", "bf16"), (problem.a.major, problem.b.major) == ("t", "n")
        if gpu.name == "gfx950" and (halves or (problem.dtype_a == "int8" and not across)):
            tiles = CDNA_4_TILES
        elif gpu.name == "gfx942" and halves and across:
            tiles = CDNA_3_ACROSS

    def work(config: MatmulConfig, share: float) -> float:
        count = problem.batches * -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
        return -(-count // gpu.compute_units) * config.block_m * config.block_n / share

    for config, _ in sorted(tiles, key=lambda tile: work(*tile)):
        if isinstance(config, MfmaConfig):
            if problem.dtype_a == "fp64":
                config = replace(config, block_m=min(config.block_m, 64), block_n=min(config.block_n, 64))
            if config is not CDNA_3_ACROSS[0][0]:
                config = replace(config, block_k=max(8, ROW_BYTES // size))
        yield config, "least work for the busiest compute unit"

"""What can be chosen of FP32 products on Hopper's tensor cores with an operand in registers, and what is. Pure.

The model: a CTA multiplies its share of the slices at a pace that the tile decides; where tiles are cut along K, their
parts meet in memory. docs/hopper-gemm.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self

from ...gpu import Gpu
from .config_cluster import ClusterConfig
from .config_hopper import MOST_LAUNCHES, TMA_BYTES, tma_reads, tma_writes, why_not_walked
from .config_shares import SharedConfig
from .problem import MatmulProblem

PIECES = {"tf32": 1, "3xtf32": 2}  #: of each operand, by precision
_SLICE_BYTES = 128
_MOST_STAGES = 8


@dataclass(frozen=True)
class _Model:
    """What a product takes in one precision. Times in us."""

    pace: dict[tuple[int, int], float]  #: clocks of a slice, by rows and columns of D in a tile
    launch: float
    tile: float  #: a tile's first slice and its last store
    store_kb: float  #: of a tile
    cut: float  #: the last CTA is waited for
    cut_pace: float  #: what a slice takes longer where tiles are cut
    part: float  #: a part of a tile is waited for, written and read again
    part_kb: float
    copy: float  #: a launch that copies operands
    copied_per_us: float  #: bytes that it reads and writes
    memory_per_us: float  #: bytes of device memory
    #: of `hopper_cluster`, on its own model's estimate; for each 10^6 elements that it copies, and where it copies any
    cluster: float
    cluster_copied: float
    cluster_copy: float


_CLOCKS_PER_US = 1755
#: fitted on one H100, 2026-11-25, to 600 pairs of product and config each, 64 products: what it prefers is slower than
#: the fastest by 1.4% and 0.8%. Tiles in the order in which equal costs are resolved
_MODELS = {
    "tf32": _Model(
        {(128, 256): 1029, (128, 192): 782, (128, 128): 763, (128, 96): 675, (128, 64): 568, (128, 32): 453,
         (128, 16): 445, (64, 256): 793, (64, 192): 754, (64, 128): 494, (64, 96): 494, (64, 64): 312, (64, 32): 357,
         (64, 16): 349},
        1.589, 0.2216, 0.0119, 1.745, 1.341, 0.5941, 0.02452, 1.401, 2.009e6, 2.51e6, 1.011, 3.887, 0.5773,
    ),
    "3xtf32": _Model(
        {(128, 128): 1928, (128, 96): 1524, (128, 64): 1204, (128, 32): 847, (128, 16): 786, (64, 128): 1534,
         (64, 96): 1195, (64, 64): 885, (64, 32): 569, (64, 16): 539},
        1.38, 0.5534, 0.003207, 2.089, 1.112, 0.2313, 0.0226, 1.312, 2.048e6, 2.212e6, 0.9448, 5.596, 1.12,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RegistersConfig(SharedConfig):
    """kernels/hopper_registers.cu: D = R S^T with R in registers. R is A and C = D, or B, and C is D's transpose."""

    schedule: str = "hopper_registers"
    num_warps: int = 4  #: of one warpgroup that multiplies
    stages: int  #: K-slices of 128 bytes in the ring
    turned: bool = False  #: R is B
    split: bool = False  #: cut the tiles that would not fill a last round along K
    copy_a: bool = False  #: copy A first, contiguous along K
    copy_b: bool = False  #: copy B first, contiguous along K
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def with_knobs(self, **knobs: Any) -> Self:
        """The same config with some knobs changed."""
        return replace(self, **knobs)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of D in one tile."""
        return (self.block_n, self.block_m) if self.turned else (self.block_m, self.block_n)

    def by_tma(self, problem: MatmulProblem) -> bool:
        """Whether TMA writes C: 32 columns of D at a time, or as many lines of C."""
        return tma_writes(problem) and (self.turned or self.tile[1] >= 32)

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA."""
        rows, columns = self.tile
        pieces = PIECES[problem.precision]
        stage = (rows + pieces * columns) * _SLICE_BYTES + 24
        return self.stages * stage + (rows // 64 * 2 * 8192 if self.by_tma(problem) else 0)

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_registers: needs wgmma and TMA, {gpu.name} has {gpu.matrix_instructions}"
        dtypes = {problem.dtype_a, problem.dtype_b, problem.dtype_out, problem.dtype_acc}
        if dtypes != {"fp32"} or problem.precision not in PIECES or problem.epilogue:
            return f"hopper_registers: bare products of fp32 in precision tf32 or 3xtf32, got {problem.key}"
        for name, copied, along_k in (
            ("a", self.copy_a, problem.a.major == "n"), ("b", self.copy_b, problem.b.major == "t"),
        ):  # fmt: skip
            if copied and problem.batches > MOST_LAUNCHES:
                return f"hopper_registers: copies operands of at most {MOST_LAUNCHES} products, got {problem.batches}"
            if not copied and not tma_reads(problem, name):
                return f"hopper_registers: TMA needs {name} at a base and a pitch of {TMA_BYTES} bytes, or copied"
            if not copied and not along_k and (name == "b") != self.turned:
                return f"hopper_registers: wgmma takes {name} along K only, or copied first"
        rows, columns = self.tile
        tiles = _MODELS[problem.precision].pace
        if (rows, columns) not in tiles or self.num_warps != 4 or self.block_k != 32:
            words = ", ".join(f"{m}x{n}" for m, n in tiles)
            return f"hopper_registers: tiles of D of {words} in {problem.precision}, got {rows}x{columns}"
        if self.split and columns == 256:
            return "hopper_registers: tiles of 256 columns are not cut: their sums leave too few registers for it"
        if self.stages < 2 or self.programs < 1:
            return f"hopper_registers: at least 2 stages and a program, got {self.stages} and {self.programs}"
        if why := why_not_walked(self, problem.m, problem.n, problem.k):
            return why
        if why := self.why_not_shared(problem):
            return why
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_registers: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None


def _copied(problem: MatmulProblem, config: RegistersConfig | ClusterConfig) -> int:
    """Elements that are copied ahead."""
    return (config.copy_a * problem.m + config.copy_b * problem.n) * problem.k * problem.batches


def estimate_us(problem: MatmulProblem, config: RegistersConfig) -> float:
    """The model's time: what the SM with the longest share does, or the memory, and the copies ahead."""
    model, area_kb = _MODELS[problem.precision], config.block_m * config.block_n * 4 / 1000
    tile_us = -(-problem.k // config.block_k) * model.pace[config.tile] / _CLOCKS_PER_US
    around_us = model.tile + model.store_kb * area_kb
    rounds, share, parts = config.longest(problem)
    time_us = rounds * (tile_us + around_us)
    if share:
        time_us += share * tile_us * model.cut_pace + max(1, share) * around_us
        time_us += model.cut + parts * (model.part + model.part_kb * area_kb)
    time_us = model.launch + (time_us**4 + (problem.bytes / model.memory_per_us) ** 4) ** 0.25
    copied = _copied(problem, config)
    return time_us + (model.copy + 8 * copied / model.copied_per_us if copied else 0.0)


def cluster_us(problem: MatmulProblem, config: ClusterConfig, estimate: float) -> float:
    """What `hopper_cluster` takes of FP32, by its model's estimate, which was fitted to 16-bit types."""
    model = _MODELS[problem.precision]
    copied = _copied(problem, config)
    time_us = ((model.cluster * estimate) ** 4 + (problem.bytes / model.memory_per_us) ** 4) ** 0.25
    return time_us + (model.cluster_copy + model.cluster_copied * copied / 1e6 if copied else 0.0)


def registers_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[RegistersConfig]:
    """Every tile, upright and turned, cut or not, with the stages that fit; what TMA or wgmma does not read, copied."""
    if problem.precision not in PIECES:
        return
    for (rows, columns), turned, split in product(_MODELS[problem.precision].pace, (False, True), (False, True)):
        m, n = (problem.n, problem.m) if turned else (problem.m, problem.n)
        if rows >= 2 * max(m, 64) or columns >= 2 * max(n, 16):
            continue  # half of it would be empty
        config = RegistersConfig(
            block_m=columns if turned else rows, block_n=rows if turned else columns, block_k=32, stages=_MOST_STAGES,
            turned=turned, split=split, programs=gpu.compute_units,
            copy_a=not tma_reads(problem, "a") or (turned and problem.a.major != "n"),
            copy_b=not tma_reads(problem, "b") or (not turned and problem.b.major != "t"),
        )  # fmt: skip
        if split:
            # Parts of one length, so that CTAs ask for the same lines at the same time: the L2 gives them more then.
            parts = gpu.compute_units // config.tiles(problem)
            if parts < 2:
                continue
            config = config.with_knobs(programs=parts * config.tiles(problem))
        while config.stages > 2 and config.shared_bytes(problem) > gpu.lds_bytes:
            config = config.with_knobs(stages=config.stages - 1)
        if config.why_invalid(problem, gpu) is None:
            yield config


def in_registers(problem: MatmulProblem, gpu: Gpu) -> tuple[RegistersConfig, float] | None:
    """The config of the shortest estimate with that, in microseconds; None where none is valid."""
    found = [(config, estimate_us(problem, config)) for config in registers_configs(problem, gpu)]
    return min(found, key=lambda item: item[1], default=None)

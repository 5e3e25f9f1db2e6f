"""What can be chosen of FP64 products by matrix instructions on Hopper, fed by TMA, and what is. Pure.

The model: a CTA multiplies its share of the slices at a pace that the tile decides; where tiles are cut along K, their
parts meet in memory. Fitted to tiles_wide.csv of results/h200.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...gpu import Gpu
from .config_hopper import TMA_BYTES, tma_reads, why_not_bare, why_not_walked
from .config_shares import CTA_BYTES, Costs, SharedConfig, shared_us
from .problem import MatmulProblem

_DMMA_PER_US = 128 * 1755  #: multiplications of one SM
_MODEL = Costs(
    launch=1.349, tile=0.3644, store_kb=0.01758, narrow_kb=0.0248, narrow_written=3.464, cut=3.234,
    cut_pace=1.125, part=1.295, alone=0.7758, bandwidth_share=0.8444, second=0.9464, second_mb=0.5687,
)  # fmt: skip
#: multiplications from which on the chip's power decides the clock, and what a tile reads again is power: paces then
_POWER_LIMITED = 1 << 33
_LONG_PACES = {(128, 112): 0.985, (128, 128): 1.0, (96, 160): 1.01, (128, 64): 1.015, (160, 96): 1.03}
_OTHER_FACTOR = 1.15  #: times what the other tiles take else
_MOST_STAGES = 6
LEAST_SIDE = 8  #: of C


@dataclass(frozen=True)
class _Tile:
    """What belongs to a tile shape and the warps that multiply it."""

    pace: float  #: time of a multiplication
    resident: int = 1  #: CTAs of an SM
    warps_m: int = 2  #: warps along M: a warp has two blocks of 16 rows at least, and columns in eights


#: by rows, columns and warps, in the order in which equal costs are resolved
PRECISE_TILES = {
    (128, 128, 8): _Tile(1.087), (160, 96, 8): _Tile(1.022), (96, 160, 8): _Tile(0.9423),
    (128, 112, 8): _Tile(0.9717, 1, 4), (64, 128, 8): _Tile(0.9387), (128, 64, 8): _Tile(0.9133),
    (160, 64, 8): _Tile(0.974), (64, 96, 8): _Tile(0.9627), (96, 64, 8): _Tile(0.9289),
    (128, 48, 8): _Tile(0.9722, 1, 4), (64, 64, 8): _Tile(0.9799), (32, 128, 8): _Tile(1.088, 1, 1),
    (128, 32, 8): _Tile(1.059, 1, 4), (64, 32, 8): _Tile(1.4), (64, 80, 4): _Tile(1.042, 2),
    (80, 64, 4): _Tile(1.284, 2, 1), (64, 48, 4): _Tile(1.121, 2), (48, 64, 4): _Tile(1.026, 2, 1),
    (32, 96, 4): _Tile(1.179, 2, 1), (96, 32, 4): _Tile(1.404, 2), (64, 32, 4): _Tile(1.201, 2),
    (32, 64, 4): _Tile(1.25, 2, 1), (32, 32, 4): _Tile(1.462, 2, 1), (48, 32, 4): _Tile(1.273, 2, 1),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PreciseConfig(SharedConfig):
    """kernels/hopper_precise.cu: FP64 by DMMA; one producer warp, four or eight warps that multiply. What is
    copied first, lies along K then."""

    schedule: str = "hopper_precise"
    num_warps: int = 8
    stages: int
    split: bool = False  #: cut the tiles that would not fill a last round along K
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    @property
    def tile(self) -> _Tile:
        """What belongs to its tile."""
        return PRECISE_TILES[self.block_m, self.block_n, self.num_warps]

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
            if not copied and not tma_reads(problem, name):
                return f"hopper_precise: TMA needs {name} at a base and a pitch of {TMA_BYTES} bytes, or copied"
        if (self.block_m, self.block_n, self.num_warps) not in PRECISE_TILES:
            words = ", ".join(f"{m}x{n} by {warps}" for m, n, warps in PRECISE_TILES)
            return f"hopper_precise: tiles of {words} warps, got {self.block_m}x{self.block_n} by {self.num_warps}"
        if self.block_k != 16 or self.stages < 2 or self.programs < 1:
            return f"hopper_precise: slices of 128 bytes in 2 stages at least, got {self.block_k} elements"
        if why := why_not_walked(self, problem.m, problem.n, problem.k):
            return why
        if why := self.why_not_shared(problem):
            return why
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_precise: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None


def estimate_us(problem: MatmulProblem, config: PreciseConfig, gpu: Gpu) -> float:
    """The model's time of the product, without copies."""
    tile, area = config.tile, config.block_m * config.block_n
    long = problem.m * problem.n * problem.k * problem.batches >= _POWER_LIMITED
    pace = _LONG_PACES.get((config.block_m, config.block_n), _OTHER_FACTOR * tile.pace) if long else tile.pace
    tile_us = area * config.slices(problem) * config.block_k * pace * tile.resident / _DMMA_PER_US
    return shared_us(problem, config, tile.resident, tile_us, _MODEL, gpu)


def precise_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[PreciseConfig]:
    """Every tile, cut or not or in parts of K, with the stages that fit; what TMA does not read is copied."""
    if min(problem.m, problem.n) < LEAST_SIDE:
        return  # rows that are not there cost as much: `hopper_async` has tiles for these
    for (block_m, block_n, num_warps), tile in PRECISE_TILES.items():
        room = (gpu.lds_bytes - CTA_BYTES * (tile.resident - 1)) // tile.resident
        for split in (False, True):
            config = PreciseConfig(
                block_m=block_m, block_n=block_n, block_k=16, num_warps=num_warps, stages=_MOST_STAGES, split=split,
                copy_a=not tma_reads(problem, "a"), copy_b=not tma_reads(problem, "b"),
                programs=gpu.compute_units * tile.resident,
            )  # fmt: skip
            if split and config.whole_tiles(problem) == config.tiles(problem):
                continue
            while config.stages > 2 and config.shared_bytes(problem) > room:
                config = config.with_knobs(stages=config.stages - 1)
            for each in (config, *(config.in_parts(problem) if not split else ())):
                if each.why_invalid(problem, gpu) is None:
                    yield each

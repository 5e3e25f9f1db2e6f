"""What can be chosen of FP64 products by matrix instructions on Hopper, fed by TMA, and what is. Pure.

The model: a CTA multiplies its share of the slices at a pace that the tile decides; where tiles are cut along K, their
parts meet in memory. Fitted to results/h200/tiles_wide.csv; docs/hopper-gemm.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from ...gpu import Gpu
from .config_hopper import MOST_LAUNCHES, TMA_BYTES, tma_reads, why_not_bare, why_not_walked
from .config_shares import SharedConfig
from .problem import DTYPE_BYTES, MatmulProblem

_DMMA_PER_US = 128 * 1755  #: multiplications of one SM
_LAUNCH_US, _TILE_US, _STORED_PER_US = 2.41, 0.164, 43850
_CUT_US = 1.59  #: where tiles are cut, the last CTA is waited for
_PART_US, _PART_KB_US = 0.457, 0.00748  #: a part is waited for, written and read again
_CUT_PACE = 1.1  #: what multiplying takes longer where tiles are cut
_MOST_STAGES = 6
#: tiles with the time of a multiplication in them, in the order in which equal costs are resolved
PRECISE_TILES = {(128, 128): 0.958, (64, 128): 0.975, (64, 64): 1.034}


@dataclass(frozen=True, kw_only=True)
class PreciseConfig(SharedConfig):
    """kernels/hopper_precise.cu: FP64 by DMMA; one producer warp, eight warps that multiply."""

    schedule: str = "hopper_precise"
    num_warps: int = 8
    stages: int
    split: bool = False  #: cut the tiles that would not fill a last round along K
    copy_a: bool = False  #: copy A first, contiguous along K
    copy_b: bool = False  #: copy B first, contiguous along K
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
        if why := why_not_walked(self, problem.m, problem.n, problem.k):
            return why
        if why := self.why_not_shared(problem):
            return why
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_precise: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None


def estimate_us(problem: MatmulProblem, config: PreciseConfig) -> float:
    """The model's time of the product, without copies: what the SM with the longest share does."""
    area, pace = config.block_m * config.block_n, PRECISE_TILES[config.block_m, config.block_n]
    stored_bytes = area * DTYPE_BYTES["fp64"]
    slices = -(-problem.k // config.block_k)
    tile_us = area * slices * config.block_k * pace / _DMMA_PER_US
    tile_us *= _CUT_PACE if config.split else 1
    rounds, share, parts = config.longest(problem)
    time_us = _LAUNCH_US + rounds * tile_us
    if share:
        time_us += _CUT_US + share * tile_us + parts * (_PART_US + _PART_KB_US * stored_bytes / 1000)
        rounds += max(1, share)
    return time_us + rounds * (_TILE_US + stored_bytes / _STORED_PER_US)


def precise_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[PreciseConfig]:
    """Every tile, cut or not, with the stages that fit; what TMA does not read is copied."""
    for block_m, block_n in PRECISE_TILES:
        for split in (False, True):
            config = PreciseConfig(
                block_m=block_m, block_n=block_n, block_k=16, stages=_MOST_STAGES, split=split,
                copy_a=not tma_reads(problem, "a"), copy_b=not tma_reads(problem, "b"), programs=gpu.compute_units,
            )  # fmt: skip
            if split and config.whole_tiles(problem) == config.tiles(problem):
                continue
            while config.stages > 2 and config.shared_bytes(problem) > gpu.lds_bytes:
                config = config.with_knobs(stages=config.stages - 1)
            if config.why_invalid(problem, gpu) is None:
                yield config

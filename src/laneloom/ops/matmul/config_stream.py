"""What can be chosen of FP32 products by FMA on Hopper, and what is. Pure.

The model: a CTA multiplies its share of the slices at a pace that the tile decides; where tiles are cut along K every
CTA has the same share, and their parts meet in memory. Fitted on one H200, 2026-11-20; docs/sgemm-ladder.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from ...gpu import Gpu
from .config import MatmulConfig
from .config_hopper import MOST_LAUNCHES, TMA_BYTES, tma_reads, why_not_bare, why_not_walked
from .problem import DTYPE_BYTES, MatmulProblem

_BARRIER_BYTES = 128  #: behind a stage's operands
_FMA_PER_US = 128 * 1980 * 0.84  #: of one SM, in the best tile
_TILE_US = 2.5  #: a tile's first slice and its last store
_PART_US = 2.5  #: a part is waited for
_PART_BYTES_PER_US = 37_000  #: and written or read again, by one SM
_LEAST_SLICES = 4  #: of a CTA's share
_MOST_SLICES = 1 << 31  #: of all tiles that are cut


@dataclass(frozen=True)
class _Tile:
    """What belongs to a tile shape."""

    block_k: int  #: of a slice: its code has to stay in 32 KB of instruction cache
    pace: float  #: time of a multiplication, in units of the best tile's


#: by rows and columns, in the order in which equal costs are resolved
STREAM_TILES = {
    (128, 256): _Tile(14, 1.0), (128, 128): _Tile(24, 1.02), (64, 128): _Tile(32, 1.16), (64, 64): _Tile(32, 1.37),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StreamConfig(MatmulConfig):
    """kernels/hopper_stream.cu: FP32 by FMA; one producer warp, eight warps that multiply; tiles cut along K."""

    schedule: str = "hopper_stream"
    num_warps: int = 8
    stages: int
    split: bool = True  #: cut the tiles that would not fill a last round along K
    copy_a: bool = False  #: copy A first, contiguous along M
    copy_b: bool = False  #: copy B first, contiguous along N
    programs: int = 132  #: most CTAs that are launched; each multiplies several tiles
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    def with_knobs(self, **knobs: Any) -> Self:
        """The same config with some knobs changed."""
        return replace(self, **knobs)

    def stage_bytes(self) -> int:
        """Of one slice of A and of B, and its barriers."""
        return (self.block_m + self.block_n) * self.block_k * DTYPE_BYTES["fp32"] + _BARRIER_BYTES

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA; a C that cannot be stored 16 bytes at a time passes through it."""
        staging = 0 if _stores_wide(problem) else self.num_warps * 16 * self.block_n
        return self.stages * self.stage_bytes() + staging

    def tiles(self, problem: MatmulProblem) -> int:
        """Of every product of the batch."""
        return -(-problem.m // self.block_m) * -(-problem.n // self.block_n) * problem.batches

    def whole_tiles(self, problem: MatmulProblem) -> int:
        """Tiles that one CTA each multiplies: full rounds of them. The others are cut along K."""
        tiles = self.tiles(problem)
        if not self.split or tiles % self.programs == 0:
            return tiles
        # The last full round is cut with what is left, so that a share is longer than a tile.
        return max(tiles // self.programs - 1, 0) * self.programs

    def ctas(self, problem: MatmulProblem) -> int:
        """CTAs that are launched."""
        tiles = self.tiles(problem)
        if self.whole_tiles(problem) == tiles:
            return min(self.programs, tiles)
        return min(self.programs, max(1, tiles * -(-problem.k // self.block_k) // _LEAST_SLICES))

    def workspace_bytes(self, problem: MatmulProblem) -> int:
        """Of the parts of tiles, one for each CTA, and their flags."""
        if self.whole_tiles(problem) == self.tiles(problem):
            return 0
        return self.ctas(problem) * (self.block_m * self.block_n * DTYPE_BYTES["fp32"] + 8)

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_stream: needs TMA, {gpu.name} has none"
        dtypes = {problem.dtype_a, problem.dtype_b, problem.dtype_out, problem.dtype_acc}
        if dtypes != {"fp32"}:
            return f"hopper_stream: fp32 throughout, got {problem.key}"
        if why := why_not_bare(self.schedule, problem):
            return why
        for name, matrix, across, copied in (
            ("a", problem.a, "t", self.copy_a), ("b", problem.b, "n", self.copy_b)
        ):  # fmt: skip
            if copied and problem.batches > MOST_LAUNCHES:
                return f"hopper_stream: copies operands of at most {MOST_LAUNCHES} products, got {problem.batches}"
            if not copied and not tma_reads(problem, name):
                return f"hopper_stream: TMA needs {name} at a base and a pitch of {TMA_BYTES} bytes, or copied"
            if not copied and matrix.major != across:
                return f"hopper_stream: {name} has to be contiguous along C's axis, or copied so"
        tile = STREAM_TILES.get((self.block_m, self.block_n))
        if tile is None or self.num_warps != 8:
            words = ", ".join(f"{m}x{n}" for m, n in STREAM_TILES)
            return f"hopper_stream: tiles of {words} by 8 warps, got {self.block_m}x{self.block_n}"
        if self.block_k % 2 or not 2 <= self.block_k <= tile.block_k:
            return f"hopper_stream: an even block_k up to {tile.block_k} with this tile, got {self.block_k}"
        if self.stages < 2 or self.programs < 1:
            return "hopper_stream: at least 2 stages and one program"
        if why := why_not_walked(self, problem.m, problem.n, problem.k):
            return why
        slices = (self.tiles(problem) - self.whole_tiles(problem)) * -(-problem.k // self.block_k)
        if slices >= _MOST_SLICES:
            return f"hopper_stream: shares of less than {_MOST_SLICES} slices in all, got {slices}"
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_stream: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None


def _stores_wide(problem: MatmulProblem) -> bool:
    return problem.vector_out * DTYPE_BYTES["fp32"] == TMA_BYTES


def estimate_us(problem: MatmulProblem, config: StreamConfig) -> float:
    """The model's time of the product, without copies."""
    tiles, whole, ctas = config.tiles(problem), config.whole_tiles(problem), config.ctas(problem)
    pace = STREAM_TILES[config.block_m, config.block_n].pace
    tile_us = config.block_m * config.block_n * problem.k * pace / _FMA_PER_US + _TILE_US
    if whole == tiles:
        return -(-tiles // ctas) * tile_us
    shared = tiles - whole
    # A tile's finisher adds the parts of all others that had a share of it.
    parts = 1 - (-ctas // shared)
    part_us = _PART_US + config.block_m * config.block_n * DTYPE_BYTES["fp32"] / _PART_BYTES_PER_US
    return whole // ctas * tile_us + shared * tile_us / ctas + parts * part_us


def stream(problem: MatmulProblem, gpu: Gpu) -> StreamConfig:
    """The tile, cut or not, that takes the least time."""
    room = gpu.lds_bytes
    found = []
    for (block_m, block_n), tile in STREAM_TILES.items():
        for split in (False, True):
            config = StreamConfig(
                block_m=block_m, block_n=block_n, block_k=tile.block_k, stages=2, split=split,
                copy_a=not tma_reads(problem, "a") or problem.a.major != "t",
                copy_b=not tma_reads(problem, "b") or problem.b.major != "n", programs=gpu.compute_units,
            )  # fmt: skip
            free = room - config.shared_bytes(problem)
            found.append(config.with_knobs(stages=2 + min(free // config.stage_bytes(), 10)))
    return min(found, key=lambda config: estimate_us(problem, config))

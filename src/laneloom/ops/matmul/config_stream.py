"""What can be chosen of FP32 products by FMA on Hopper, and what is. Pure.

The model: a CTA multiplies its share of the slices at a pace that the tile and its lanes decide; where tiles are cut
along K every CTA has the same share, and their parts meet in memory. Fitted to tiles_wide.csv of results/h200.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ...gpu import Gpu
from .config_hopper import TMA_BYTES, tma_reads, why_not_bare, why_not_walked
from .config_shares import CTA_BYTES, Costs, SharedConfig, shared_us
from .problem import DTYPE_BYTES, MatmulProblem

_BARRIER_BYTES = 128  #: behind a stage's operands
_FMA_PER_US = 128 * 1980 * 0.84  #: of one SM
_MODEL = Costs(
    launch=1.843, tile=0.669, store_kb=0.04332, narrow_kb=0.01001, narrow_written=1.842, cut=2.1,
    cut_pace=1.015, part=0.2488, part_kb=0.03244, alone=0.7378, bandwidth_share=0.7688, second=0.4732, second_mb=0.457,
)  # fmt: skip
#: multiplications of an SM that an element costs, by `Feed`
_COSTS = (0.0, 10.35, 13.54, 11.5, 3.95)
_MOST_STAGES = 12
_COPY_UNIT = 8  #: steps of K that lanes ask for at once
_READ_K, _READ_SUMS = 16, 32  #: steps of a slice, and most sums of a lane, whose A is read along K


class Feed(IntEnum):
    """How an operand comes to those that multiply; hopper_stream_feed.cuh has the same names and numbers."""

    IN_ROWS = 0  #: by TMA, along M or N, where it lies or from a copy
    ALONG_ROWS = 1  #: element by element, along M or N
    ALONG_K = 2  #: element by element, along K
    TURNED = 3  #: by TMA, along K, and then turned
    AS_IT_LIES = 4  #: by TMA, along K

    @property
    def by_tma(self) -> bool:
        """Whether the copy engine brings it."""
        return self not in (Feed.ALONG_ROWS, Feed.ALONG_K)


@dataclass(frozen=True)
class _Tile:
    """What belongs to a tile shape and the warps that multiply it."""

    block_k: int  #: of a slice: its code has to stay in 32 KB of instruction cache
    pace: float  #: time of a multiplication
    resident: int = 2  #: CTAs of an SM
    warps_m: int = 2  #: warps along M: a warp's rows are a multiple of 32, its columns of 16


#: by rows, columns and warps, in the order in which equal costs are resolved
STREAM_TILES = {
    (128, 256, 8): _Tile(14, 0.967, 1), (128, 128, 8): _Tile(24, 0.9174, 1), (96, 128, 4): _Tile(16, 1.034, 2, 1),
    (64, 128, 4): _Tile(16, 0.976, 2, 1), (128, 64, 4): _Tile(16, 0.9735), (64, 192, 4): _Tile(16, 1.013, 2, 1),
    (192, 64, 4): _Tile(16, 1.049), (128, 64, 8): _Tile(24, 1.16, 1), (64, 128, 8): _Tile(24, 1.141, 1),
    (64, 64, 4): _Tile(16, 1.121), (64, 64, 8): _Tile(24, 1.201, 1), (32, 128, 8): _Tile(24, 1.208, 1, 1),
    (128, 32, 8): _Tile(24, 1.22, 1, 4), (32, 128, 4): _Tile(16, 1.136, 2, 1), (128, 32, 4): _Tile(16, 1.146),
    (32, 192, 4): _Tile(16, 1.085, 2, 1), (192, 32, 4): _Tile(16, 1.148), (64, 32, 4): _Tile(16, 1.218),
    (32, 64, 4): _Tile(16, 1.269, 2, 1),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StreamConfig(SharedConfig):
    """kernels/hopper_stream.cu: FP32 by FMA; four producer warps, four or eight that multiply; tiles cut along K. What
    is copied first, lies along M or N then."""

    schedule: str = "hopper_stream"
    stages: int
    #: lanes bring A: what TMA reads along K is turned, or multiplied so in small tiles, else element by element
    lanes_a: bool = False
    lanes_b: bool = False  #: lanes bring B: turned or element by element
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    @property
    def tile(self) -> _Tile:
        """What belongs to its tile."""
        return STREAM_TILES[self.block_m, self.block_n, self.num_warps]

    @property
    def lane_sums(self) -> int:
        """Of a lane that multiplies."""
        return self.block_m * self.block_n // (32 * self.num_warps)

    def feed(self, problem: MatmulProblem, name: str) -> Feed:
        """How operand "a" or "b" comes."""
        if not (self.lanes_a if name == "a" else self.lanes_b):
            return Feed.IN_ROWS
        if (problem.a.major != "n") if name == "a" else (problem.b.major != "t"):
            return Feed.ALONG_ROWS
        if not tma_reads(problem, name):
            return Feed.ALONG_K
        small = self.block_k == _READ_K and self.lane_sums <= _READ_SUMS
        return Feed.AS_IT_LIES if name == "a" and small else Feed.TURNED

    def stage_bytes(self, problem: MatmulProblem) -> int:
        """Of one slice of A and of B, perhaps as they came as well, and its barriers."""
        a, b = (self.feed(problem, name) for name in "ab")
        rows = self.block_m * (1 + (a is Feed.TURNED)) + self.block_n * (1 + (b is Feed.TURNED))
        return rows * self.block_k * DTYPE_BYTES["fp32"] + _BARRIER_BYTES * (4 if a is Feed.AS_IT_LIES else 1)

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA; a C that cannot be stored 16 bytes at a time passes through it, 16 rows a warp."""
        staging = 0 if self.stores_wide(problem) else self.tile.warps_m * 16 * self.block_n * DTYPE_BYTES["fp32"]
        return self.stages * self.stage_bytes(problem) + staging

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_stream: needs TMA, {gpu.name} has none"
        dtypes = {problem.dtype_a, problem.dtype_b, problem.dtype_out, problem.dtype_acc}
        if dtypes != {"fp32"}:
            return f"hopper_stream: fp32 throughout, got {problem.key}"
        if why := why_not_bare(self.schedule, problem):
            return why
        tile = STREAM_TILES.get((self.block_m, self.block_n, self.num_warps))
        if tile is None:
            words = ", ".join(f"{m}x{n} by {warps}" for m, n, warps in STREAM_TILES)
            return f"hopper_stream: tiles of {words} warps, got {self.block_m}x{self.block_n} by {self.num_warps}"
        for name, copied, by_lanes in (("a", self.copy_a, self.lanes_a), ("b", self.copy_b, self.lanes_b)):
            if why := self._why_not_fed(problem, name, copied=copied, by_lanes=by_lanes):
                return f"hopper_stream: {why}"
        if self.block_k % 2 or not 2 <= self.block_k <= tile.block_k:
            return f"hopper_stream: an even block_k up to {tile.block_k} with this tile, got {self.block_k}"
        if self.stages < 2 or self.programs < 1:
            return "hopper_stream: at least 2 stages and one program"
        if why := why_not_walked(self, problem.m, problem.n, problem.k):
            return why
        if why := self.why_not_shared(problem):
            return why
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_stream: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None

    def _why_not_fed(self, problem: MatmulProblem, name: str, *, copied: bool, by_lanes: bool) -> str | None:
        matrix, across = (problem.a, "t") if name == "a" else (problem.b, "n")
        if copied and by_lanes:
            return f"{name} is copied or brought by lanes, not both"
        if by_lanes and matrix.major == "x":
            return f"lanes bring {name} where it is contiguous along an axis"
        if by_lanes and self.block_k % _COPY_UNIT:
            return f"lanes bring {_COPY_UNIT} steps of K at once, got a block_k of {self.block_k}"
        if copied or by_lanes:
            return None
        if not tma_reads(problem, name):
            return f"TMA needs {name} at a base and a pitch of {TMA_BYTES} bytes, or copied, or brought by lanes"
        if matrix.major != across:
            return f"{name} has to be contiguous along C's axis, or copied so, or brought by lanes"
        return None


def estimate_us(problem: MatmulProblem, config: StreamConfig, gpu: Gpu) -> float:
    """The model's time of the product, without copies."""
    tile = config.tile
    lanes = config.block_m * _COSTS[config.feed(problem, "a")] + config.block_n * _COSTS[config.feed(problem, "b")]
    work = config.block_m * config.block_n * tile.pace + lanes
    tile_us = tile.resident * work * config.slices(problem) * config.block_k / _FMA_PER_US
    return shared_us(problem, config, tile.resident, tile_us, _MODEL, gpu)


def stream_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[StreamConfig]:
    """Every tile, cut or not or in parts of K, and every way to bring what TMA does not read in rows along M and N."""
    ways: list[tuple[dict[str, Any], ...]] = []
    for name, matrix, across in (("a", problem.a, "t"), ("b", problem.b, "n")):
        if tma_reads(problem, name) and matrix.major == across:
            ways.append(({},))
        else:
            ways.append(({f"copy_{name}": True}, {f"lanes_{name}": True}))
    for (block_m, block_n, num_warps), tile in STREAM_TILES.items():
        room = (gpu.lds_bytes - CTA_BYTES * (tile.resident - 1)) // tile.resident
        for split, way_a, way_b in ((split, a, b) for split in (False, True) for a in ways[0] for b in ways[1]):
            config = StreamConfig(
                block_m=block_m, block_n=block_n, block_k=tile.block_k, num_warps=num_warps, stages=2, split=split,
                programs=gpu.compute_units * tile.resident, **way_a, **way_b,
            )  # fmt: skip
            if (read := config.with_knobs(block_k=_READ_K)).feed(problem, "a") is Feed.AS_IT_LIES:
                config = read
            if split and config.whole_tiles(problem) == config.tiles(problem):
                continue
            free = room - config.shared_bytes(problem)
            config = config.with_knobs(stages=2 + min(free // config.stage_bytes(problem), _MOST_STAGES - 2))
            for each in (config, *(config.in_parts(problem) if not split else ())):
                if each.why_invalid(problem, gpu) is None:
                    yield each

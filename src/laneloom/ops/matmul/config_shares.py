"""Which tiles a kernel of kernels/hopper_shares.cuh cuts along K, and what that takes. Pure."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from ...gpu import Gpu
from .config import MatmulConfig
from .config_hopper import MOST_LAUNCHES, TMA_BYTES
from .problem import DTYPE_BYTES, MatmulProblem

LEAST_SLICES = 4  #: of a CTA's share, or of a part
MOST_SLICES = 1 << 31  #: of all tiles that are cut
MANY_PARTS = 16  #: beyond which threads share a sum's parts: MOST_UNROLLED of device/split_k.py
NEAR_POWER = 1.125  #: times a power of two, which so many parts become
SHARES, PARTS = 1, 2  #: how hopper_shares.cuh cuts tiles
CTA_BYTES = 1024  #: of an SM's shared memory that each CTA takes for itself
_FLAG_BYTES = 8  #: says that a part is there

#: A launch's flags hold its number once a part is there. What memory held before is no number of these, but by a chance
#: of one in 2^62; and a part's reader writes another one, so that the same launch in a graph begins anew.
LAUNCHES = itertools.count(secrets.randbits(62))


def handy(parts: int) -> int:
    """So many parts of K, or a few less: many are added up as a power of two of them."""
    power = 1 << parts.bit_length() - 1
    return power if MANY_PARTS < parts <= NEAR_POWER * power else parts


def added_up(parts: int) -> int:
    """Parts of K whose time it takes to add `parts` of them up."""
    return parts if parts <= MANY_PARTS else 1 << (parts - 1).bit_length()


def in_line(problem: MatmulProblem) -> bool:
    """Whether the rows of all products of a batch stand in one line in C: one launch adds up their parts of K."""
    behind = problem.batches == 1 or problem.out.strides[1] == problem.m * problem.out.strides[2]
    return problem.batch[0] == 1 and behind


class PartsConfig(MatmulConfig):
    """A config that may cut K into parts for a second launch to add up, and copy operands first."""

    split_k: int
    copy_a: bool
    copy_b: bool

    def one_by_one(self, problem: MatmulProblem) -> bool:
        """Whether a batch goes product by product: parts of K are of one, or of rows `in_line`."""
        return self.split_k > 1 and not in_line(problem)

    def parts_shape(self, problem: MatmulProblem) -> tuple[int, int, int]:
        """Parts, rows and columns of what a second launch adds up: rows of whole pieces of 16 bytes."""
        pieces = 16 // DTYPE_BYTES[problem.dtype_sums]
        rows = problem.m if self.one_by_one(problem) else problem.batches * problem.m
        return self.split_k, rows, -(-problem.n // pieces) * pieces

    def why_not_added_up(self, problem: MatmulProblem) -> str | None:
        """Why a second launch cannot add the parts up."""
        if self.one_by_one(problem) and problem.batches > MOST_LAUNCHES:
            return f"{self.schedule}: parts of K of at most {MOST_LAUNCHES} products, got {problem.batches}"
        if math.prod(self.parts_shape(problem)) >= 1 << 31:
            return f"{self.schedule}: {self.split_k} parts of C have 2^31 elements or more"
        return None


class TiledConfig(MatmulConfig):
    """A config of tiles of C that stand where they are, one behind the other."""

    split_k: int

    def tiles(self, problem: MatmulProblem) -> int:
        """Of every product of the batch."""
        return -(-problem.m // self.block_m) * -(-problem.n // self.block_n) * problem.batches

    def slices(self, problem: MatmulProblem) -> int:
        """Of K, in a part of it."""
        slices = -(-problem.k // self.block_k)
        return -(-slices // self.split_k)


@dataclass(frozen=True, kw_only=True)
class SharedConfig(TiledConfig, PartsConfig):
    """A config whose tiles that would not fill a last round are cut along K into equal shares, if it says so."""

    split: bool = True  #: cut the tiles that would not fill a last round along K
    split_k: int = 1  #: parts of K of every tile, which a second launch adds up
    programs: int = 132  #: most CTAs that are launched; each multiplies several tiles
    copy_a: bool = False  #: copy A first
    copy_b: bool = False  #: copy B first

    @property
    def cut(self) -> int:
        """How tiles are cut, or 0."""
        return PARTS if self.split_k > 1 else SHARES if self.split else 0

    def stores_wide(self, problem: MatmulProblem) -> bool:
        """Whether the kernel stores 16 bytes at a time: where C's rows allow it, and parts of K."""
        return self.split_k > 1 or problem.vector_out * DTYPE_BYTES[problem.dtype_out] == TMA_BYTES

    def whole_tiles(self, problem: MatmulProblem) -> int:
        """Tiles that one CTA each multiplies: full rounds of them. The others are cut along K."""
        tiles = self.tiles(problem)
        if not self.split or self.split_k > 1 or tiles % self.programs == 0:
            return tiles
        # The last full round is cut with what is left, so that a share is longer than a tile.
        return max(tiles // self.programs - 1, 0) * self.programs

    def ctas(self, problem: MatmulProblem) -> int:
        """CTAs that are launched."""
        tiles = self.tiles(problem)
        if self.whole_tiles(problem) == tiles:
            return min(self.programs, tiles * self.split_k)
        return min(self.programs, max(1, tiles * -(-problem.k // self.block_k) // LEAST_SLICES))

    def added_megabytes(self, problem: MatmulProblem) -> float:
        """What it takes to add parts of K up, as memory that is read."""
        _, rows, columns = self.parts_shape(problem)
        return added_up(self.split_k) * rows * columns * DTYPE_BYTES[problem.dtype_a] / 1e6

    def workspace_bytes(self, problem: MatmulProblem) -> int:
        """Of the parts of tiles: all of them, or one for each CTA and their flags."""
        if self.split_k > 1:
            parts, rows, columns = self.parts_shape(problem)
            return parts * rows * columns * DTYPE_BYTES[problem.dtype_a]
        if self.whole_tiles(problem) == self.tiles(problem):
            return 0
        return self.ctas(problem) * (self.block_m * self.block_n * DTYPE_BYTES[problem.dtype_a] + _FLAG_BYTES)

    def longest(self, problem: MatmulProblem) -> tuple[int, float, int]:
        """Of the busiest CTA: whole tiles or parts of K, its share of tiles cut otherwise, in tiles, and the parts of
        others that it adds."""
        tiles, whole, ctas = self.tiles(problem), self.whole_tiles(problem), self.ctas(problem)
        if self.split_k > 1:
            return -(-tiles * self.split_k // ctas), 0.0, 0
        rounds, shared, slices = -(-whole // ctas), tiles - whole, -(-problem.k // self.block_k)
        if not shared:
            return rounds, 0.0, 0
        return rounds, -(-shared * slices // ctas) / slices, -(-ctas // shared) - 1

    def why_not_shared(self, problem: MatmulProblem) -> str | None:
        """Why tiles cannot be cut so."""
        slices = (self.tiles(problem) - self.whole_tiles(problem)) * -(-problem.k // self.block_k)
        if slices >= MOST_SLICES:
            return f"{self.schedule}: shares of less than {MOST_SLICES} slices in all, got {slices}"
        if self.split_k == 1:
            return None
        if self.split_k < 1 or self.split:
            return f"{self.schedule}: K in parts or in equal shares, got split_k={self.split_k}, split={self.split}"
        if (self.split_k - 1) * self.slices(problem) * self.block_k >= problem.k:
            return f"{self.schedule}: {self.split_k} parts of whole slices leave some of K = {problem.k} empty"
        return self.why_not_added_up(problem)

    def in_parts(self, problem: MatmulProblem) -> Iterator[Self]:
        """The same with K in as many parts as fill half of the CTAs, all, or two rounds of them."""
        each = problem if in_line(problem) else problem.one_product()
        tiles, slices = self.tiles(each), -(-problem.k // self.block_k)
        found = set()
        for ctas in (self.programs // 2, self.programs, 2 * self.programs):
            parts = min(ctas // tiles, slices // LEAST_SLICES)
            if parts < 2:
                continue
            length = -(-slices // handy(parts))
            found.add(-(-slices // length))  # of equal length, but the last
        for parts in sorted(found):
            yield replace(self, split=False, split_k=parts)

    def describe_cut(self, problem: MatmulProblem) -> list[str]:
        """What is cut, as a sentence, if anything is."""
        if self.split_k > 1:
            return [f"K in {self.split_k} parts, summed in their order by a second launch"]
        if cut := self.tiles(problem) - self.whole_tiles(problem):
            return [f"{cut} of them cut along K into equal shares; {self.workspace_bytes(problem)} bytes for parts"]
        return []


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a schedule takes beside multiplying. Times in us, of kilobytes of a tile where they say kb."""

    launch: float  #: with the first slice and the last store
    tile: float  #: between a CTA's tiles
    store_kb: float
    narrow_kb: float  #: where rows of C do not allow 16 bytes at a time
    narrow_written: float  #: bytes of memory that one of such a C counts as
    cut: float  #: where tiles are cut, the last CTA is waited for
    cut_pace: float  #: times what multiplying takes where tiles are cut
    part: float  #: a part is waited for
    part_kb: float = 0.0  #: and written and read again
    alone: float  #: times that a tile takes where an SM has one CTA of two
    bandwidth_share: float  #: of the memory's rate, what is reached
    second: float  #: a second launch that adds up parts of K
    second_mb: float  #: of all parts


def shared_us(
    problem: MatmulProblem, config: SharedConfig, resident: int, tile_us: float, costs: Costs, gpu: Gpu
) -> float:
    """The model's time of the product, without copies: what the SM with the longest share does.

    resident: CTAs of an SM. tile_us: what multiplying a whole tile takes them.
    """
    size = DTYPE_BYTES[problem.dtype_a]
    kilobytes, is_narrow = config.block_m * config.block_n * size / 1000, not config.stores_wide(problem)
    tile_us *= costs.cut_pace if config.split else 1
    if resident > 1 and config.ctas(problem) <= config.programs // resident:
        tile_us *= costs.alone
    rounds, share, parts = config.longest(problem)
    time_us = costs.launch + rounds * tile_us
    if share:
        time_us += costs.cut + share * tile_us + parts * (costs.part + costs.part_kb * kilobytes)
        rounds += max(1, share)
    stored_us = (costs.store_kb + costs.narrow_kb * is_narrow) * kilobytes
    time_us += (rounds - 1) * costs.tile / resident + rounds * stored_us
    moved = problem.bytes + is_narrow * (costs.narrow_written - 1) * problem.m * problem.n * problem.batches * size
    time_us = (time_us**4 + (moved / (costs.bandwidth_share * gpu.bandwidth_gbs * 1e3)) ** 4) ** 0.25
    if config.split_k > 1:
        time_us += costs.second + costs.second_mb * config.added_megabytes(problem)
    return time_us

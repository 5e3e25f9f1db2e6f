"""Which tiles a kernel of kernels/hopper_shares.cuh cuts along K, and what that takes."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass

from .config import MatmulConfig
from .problem import DTYPE_BYTES, MatmulProblem

LEAST_SLICES = 4  #: of a CTA's share
MOST_SLICES = 1 << 31  #: of all tiles that are cut
CTA_BYTES = 1024  #: of an SM's shared memory that each CTA takes for itself
_FLAG_BYTES = 8  #: says that a part is there

#: A launch's flags hold its number once a part is there. What memory held before is no number of these, but by a chance
#: of one in 2^62; and a part's reader writes another one, so that the same launch in a graph begins anew.
LAUNCHES = itertools.count(secrets.randbits(62))


class TiledConfig(MatmulConfig):
    """A config of tiles of C that stand where they are, one behind the other."""

    def tiles(self, problem: MatmulProblem) -> int:
        """Of every product of the batch."""
        return -(-problem.m // self.block_m) * -(-problem.n // self.block_n) * problem.batches


@dataclass(frozen=True, kw_only=True)
class SharedConfig(TiledConfig):
    """A config whose tiles that would not fill a last round are cut along K into equal shares, if it says so."""

    split: bool = True  #: cut the tiles that would not fill a last round along K
    programs: int = 132  #: most CTAs that are launched; each multiplies several tiles

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
        return min(self.programs, max(1, tiles * -(-problem.k // self.block_k) // LEAST_SLICES))

    def workspace_bytes(self, problem: MatmulProblem) -> int:
        """Of the parts of tiles, one for each CTA, and their flags."""
        if self.whole_tiles(problem) == self.tiles(problem):
            return 0
        return self.ctas(problem) * (self.block_m * self.block_n * DTYPE_BYTES[problem.dtype_a] + _FLAG_BYTES)

    def longest(self, problem: MatmulProblem) -> tuple[int, float, int]:
        """Of the busiest CTA: whole tiles, its share of the cut ones in tiles, and the parts of others that it adds."""
        tiles, whole, ctas = self.tiles(problem), self.whole_tiles(problem), self.ctas(problem)
        rounds, shared, slices = -(-whole // ctas), tiles - whole, -(-problem.k // self.block_k)
        if not shared:
            return rounds, 0.0, 0
        return rounds, -(-shared * slices // ctas) / slices, -(-ctas // shared) - 1

    def why_not_shared(self, problem: MatmulProblem) -> str | None:
        """Why tiles cannot be cut so."""
        slices = (self.tiles(problem) - self.whole_tiles(problem)) * -(-problem.k // self.block_k)
        if slices >= MOST_SLICES:
            return f"{self.schedule}: shares of less than {MOST_SLICES} slices in all, got {slices}"
        return None

    def describe_cut(self, problem: MatmulProblem) -> list[str]:
        """What is cut, as a sentence, if anything is."""
        if cut := self.tiles(problem) - self.whole_tiles(problem):
            return [f"{cut} of them cut along K into equal shares; {self.workspace_bytes(problem)} bytes for parts"]
        return []

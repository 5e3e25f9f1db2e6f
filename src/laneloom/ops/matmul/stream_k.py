"""How stream-K cuts the last, partly filled round of tiles into pieces: what `plan` reckons with and tests hold the
kernels to. Pure; `device/stream_k.py` says the same in Gluon.

Workgroups make whole tiles as long as all of them have one. The K-tiles of the tiles that are left are one sequence of
units, tile after tile, of which each of `workers` workgroups has an equal stretch. A stretch is no longer than a tile,
so it lies in one tile or in two, and is one piece or two. A piece is a program: first come the beginnings of all
stretches, then the second pieces, the longest first, because the longest belongs to the stretch whose beginning is done
first. So the dispatcher of the hardware, which gives the next program to whoever is done, keeps all busy to the end,
and no workgroup ever waits for another. Source: Osama et al., "Stream-K", PPoPP 2023, with a second launch in place of
its waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

LEAST_UNITS = 4  #: K-tiles of a stretch


@dataclass(frozen=True)
class Shares:
    """Who makes what of a product: a program each of `whole` tiles, and after them several each of the others."""

    steps: int  #: K-tiles of a tile
    whole: int  #: tiles that one program makes
    shared: int  #: tiles after them
    workers: int  #: stretches, of at least LEAST_UNITS K-tiles unless tiles are shorter

    @classmethod
    def of(cls, tiles: int, steps: int, workers: int) -> Shares:
        """For a product of so many tiles and workgroups that run at once."""
        shared = tiles % workers
        return cls(steps, tiles - shared, shared, min(workers, max(1, shared, shared * steps // LEAST_UNITS)))

    @property
    def units(self) -> int:
        """K-tiles of the shared tiles."""
        return self.shared * self.steps

    @property
    def copies(self) -> int:
        """Shared tiles that begin where a stretch does; second pieces of one length come in so many."""
        return gcd(self.workers, self.shared) if self.shared else 1

    @property
    def inverse(self) -> int:
        """Which tile has the shortest beginning of a stretch before it: the inverse of workers / copies modulo
        shared / copies.
        """
        cycle = self.shared // self.copies
        return pow(self.workers // self.copies, -1, cycle) if cycle > 1 else 0

    @property
    def programs(self) -> int:
        """Pieces of shared tiles, each made by a program."""
        return self.workers + self.shared - self.copies if self.shared else 0

    @property
    def slots(self) -> int:
        """Parts of tiles that the launch leaves: one for each stretch's beginning, one for each tile's."""
        return self.workers + self.shared if self.shared else 0

    def first_unit(self, worker: int) -> int:
        """Where a stretch begins."""
        return worker * self.units // self.workers

    def worker_of(self, unit: int) -> int:
        """Whose stretch has a unit."""
        return ((unit + 1) * self.workers - 1) // self.units

    def piece(self, program: int) -> tuple[int, int, int, int]:
        """A program's shared tile, the first K-tile of it that it makes, the first that it does not, and its slot.

        Where a second piece would begin with a stretch, it is empty.
        """
        if program < self.workers:
            first = self.first_unit(program)
            tile, slot = first // self.steps, program
            end = min(self.first_unit(program + 1), (tile + 1) * self.steps)
        else:
            length, copy = divmod(program - self.workers, self.copies)
            cycle = self.shared // self.copies
            tile = (length + 1) * self.inverse % cycle + copy * cycle
            first, slot = tile * self.steps, self.workers + tile
            end = self.first_unit(tile * self.workers // self.shared + 1)
        return tile, first - tile * self.steps, end - tile * self.steps, slot

    def parts(self, tile: int) -> list[int]:
        """The slots to be added up for the shared tile of this number, in the order of K."""
        first, last = self.worker_of(tile * self.steps), self.worker_of((tile + 1) * self.steps - 1)
        begins = first if self.first_unit(first) == tile * self.steps else self.workers + tile
        return [begins, *range(first + 1, last + 1)]

"""Strict mode: places in LDS that a copy past the registers has yet to write, or to read: loads straight into LDS
(CDNA 1 to 4), asynchronous copies and tensor transfers (CDNA 5).

No register stands for such a place, and the wave that started the copy is no other wave, so neither waits on registers
nor races tell whether it has landed: until a wait for its counter says so, nobody may read what it writes, or write
what it reads or writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .races import Touch
from .shadow import Found

_WRITES, _READS = np.uint8(1), np.uint8(2)


def starts_copy(name: str) -> bool:
    """Whether an instruction moves data between global memory and LDS past the registers."""
    return "_async_" in name or "_load_lds_" in name or name.startswith("tensor_")


@dataclass(eq=False)
class _Copy:
    touch: Touch
    counter: str
    description: str


class Flights:
    """The copies under way of one LDS."""

    def __init__(self, units: int):
        self.state = np.zeros(units, np.uint8)
        self.copies: list[_Copy] = []
        self.starts_copy = False  #: the running instruction is a copy itself, whose accesses count when it lands

    def begin(self, touch: Touch, counter: str, description: str) -> None:
        """A copy has been issued."""
        self.copies.append(_Copy(touch, counter, description))
        self.state[touch.unit] |= _WRITES if touch.wrote else _READS

    def end(self, touch: Touch) -> None:
        """A wait says that it is done; another part of a group that was split may have said so before."""
        kept = [copy for copy in self.copies if copy.touch is not touch]
        if len(kept) == len(self.copies):
            return
        self.copies = kept
        self.state[touch.unit] = 0
        for copy in kept:  # places that two of them touch
            self.state[copy.touch.unit] |= _WRITES if copy.touch.wrote else _READS

    def check(self, unit: np.ndarray, active: np.ndarray | None, wrote: bool) -> None:
        """An ordinary access to units [wave, lane, n]. Raises Found where a copy is under way that it clashes with."""
        if not self.copies or self.starts_copy:
            return
        bad = np.asarray(self.state.take(unit) & (_WRITES | _READS if wrote else _WRITES) != 0)
        if active is not None:
            bad &= active
        if not bad.any():
            return
        place = int(unit[bad][0])
        copy = next(c for c in self.copies if place in c.touch.unit)
        verb = "overwrites LDS" if wrote else "reads LDS"
        text = f"{verb} before a wait for {copy.counter}: {copy.description} may still be under way there"
        raise Found("wait", text)

"""Waves that poll: found, and passed over until something that they could see has changed.

A group that comes back to a block with the registers it had there, while nobody stored anything, will go round until
somebody does. Passing it over is only a choice of whose turn it is, and the scheduler gives every group a turn now and
then, so nothing depends on this being complete.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .state import Waves

_PATIENCE = 8  #: turns without a store after which a group's registers are looked at
_MOST_PATIENCE = 4096  #: of a group whose registers change, such as in a loop that computes


class Polling:
    """What is known of one group: how long nothing was stored, and the registers that it had at a block since."""

    def __init__(self, patience: int = _PATIENCE):
        self.patience, self.turns = patience, 0
        self.seen: tuple[int, ...] = ()
        self.block = -1
        self.registers: tuple[np.ndarray, np.ndarray] | None = None
        self.rests = False

    def watch(self, g: Waves) -> None:
        """After `g` ran a block."""
        now = _versions(g)
        if now != self.seen:
            self.seen, self.turns, self.registers, self.rests = now, 0, None, False
        self.turns += 1
        if self.rests or self.turns < self.patience:
            return
        if self.registers is None:
            self.block, self.registers = g.block, (g.S.copy(), g.V.copy())
        elif g.block == self.block:
            if all(np.array_equal(a, b) for a, b in zip(self.registers, (g.S, g.V), strict=True)):
                self.rests, self.patience = True, 1
            else:
                self.turns, self.patience = 0, min(2 * max(self.patience, _PATIENCE), _MOST_PATIENCE)
            self.registers = None


def _versions(g: Waves) -> tuple[int, ...]:
    """Changes whenever a poll could give something else."""
    return g.memory.version, g.memory.ticks, g.lds.version


def awake(groups: list[Waves]) -> list[Waves]:
    """The groups that may find something new; none where all of them wait for somebody else."""
    return [g for g in groups if not g.polling.rests or g.polling.seen != _versions(g)]


def digest(groups: list[Waves]) -> bytes:
    """Of the whole state of all waves and of what they wrote."""
    state = hashlib.sha256()
    for g in groups:
        state.update(struct.pack("<qq", g.block, g.memory.version))
        state.update(g.lds.bytes.tobytes())  # a loop that stores the same again makes no progress
        state.update(g.V.tobytes())
        state.update(g.S.tobytes())
    return state.digest()

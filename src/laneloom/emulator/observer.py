"""What may watch a launch: an `Observer` chooses the workgroups that run and hears of every block and every access.

The timing model traces a few workgroups with one. Without an observer a launch does nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from .alu import Step
    from .memory import GlobalMemory
    from .program import Program
    from .state import Waves


class Enough(Exception):
    """An observer has seen what it wants of the running batch: its other instructions are left out."""


class Observer(Protocol):
    """What a launch tells; `begin` comes first, with everything that holds for the whole launch."""

    splits: int  #: counted by the launch: times that waves which ran together parted
    steps: list[list[Step]]  #: what runs in place of each block's steps; they may note which instruction runs

    def begin(self, program: Program, workgroups: int, waves_per_group: int) -> np.ndarray:
        """The workgroups to execute, by number in dispatch order."""
        ...

    def enter(self, g: Waves) -> None:
        """These waves execute the block `g.block` next. May raise Enough."""
        ...

    def watch(self, memory: GlobalMemory) -> None:
        """Set `memory.counters` to self to hear of accesses."""
        ...

    def count_local(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        """An access of LDS: addresses [wave, lane] within the workgroup."""
        ...

    def count_global(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        """An access of global memory: addresses [wave, lane], or [wave, 1] of a scalar load."""
        ...

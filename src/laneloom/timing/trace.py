"""What the waves of a few workgroups execute, recorded by the emulator: the blocks of each wave in order, and what each
access of LDS and global memory asks for.

A `Trace` is one pass over chosen workgroups. `Reach` is a short look at all workgroups that run at the same time: how
many lines of 128 bytes they ask for together, which says what the L2 cache can share between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..emulator.alu import Step
from ..emulator.counters import LINE_BYTES, distinct_lines
from ..emulator.memory import GlobalMemory
from ..emulator.observer import Enough
from ..emulator.program import Program
from ..emulator.state import Waves
from ..isa.lds_banks import access_cycles, banks_of

_KEPT_PATTERNS = 4096  #: LDS address patterns whose cost is remembered


@dataclass(slots=True)
class Visit:
    """Waves that executed one block together."""

    block: int
    row: dict[int, int]  #: number of a wave -> its place in the lists of `asked`
    asked: list[tuple[int, list]]  #: instruction, and per wave its LDS clocks or the lines that it wants


class _Watching:
    """The part of an observer that knows which instruction runs."""

    def __init__(self, workgroups: Sequence[int] | np.ndarray):
        self.workgroups = np.asarray(workgroups, np.int64)
        self.splits = 0
        self.steps: list[list[Step]] = []
        self.now = -1

    def begin(self, program: Program, workgroups: int, waves_per_group: int) -> np.ndarray:
        code = program.listing.instructions
        number = {id(ins): k for k, ins in enumerate(code)}
        self.program, self.waves_per_group = program, waves_per_group
        self.banks = banks_of(program.gpu)
        self.atomic = [ins.name.startswith("ds_") and not ins.name.startswith(("ds_load", "ds_store")) for ins in code]
        self.local_load = [ins.name.startswith("ds_load") for ins in code]
        memory = ("ds_", "global_", "flat_", "buffer_", "s_load", "s_buffer_load")
        self.steps = [
            [
                self._noting(step, number[id(ins)]) if ins.name.startswith(memory) else step
                for step, ins in zip(block.steps, block.sources, strict=True)
            ]
            for block in program.blocks
        ]
        return self.workgroups[self.workgroups < workgroups]

    def _noting(self, step: Step, number: int) -> Step:
        def noting(g: Waves) -> None:
            self.now = number
            step(g)

        return noting

    def watch(self, memory: GlobalMemory) -> None:
        memory.counters = self
        self.memory = memory

    @property
    def loads(self) -> bool:
        """Whether the instruction that runs is a vector load of global memory."""
        return "_load_" in self.program.listing.instructions[self.now].name


class Trace(_Watching):
    """Everything that the chosen workgroups do, from start to end."""

    def __init__(self, workgroups: Sequence[int] | np.ndarray):
        super().__init__(workgroups)
        self.visits: list[Visit] = []
        self._rows: tuple[np.ndarray, dict[int, int]] = (np.empty(0, np.int64), {})
        self._patterns: dict[tuple, list[tuple[int, int]]] = {}
        self._loaded: list[np.ndarray] = []

    def enter(self, g: Waves) -> None:
        if self._rows[0] is not g.ids:
            self._rows = (g.ids, {int(wave): k for k, wave in enumerate(g.ids)})
        self.visits.append(Visit(g.block, self._rows[1], []))

    def count_local(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        atomic, load = self.atomic[self.now], self.local_load[self.now]
        key = (nbytes, atomic, load, address.tobytes(), None if active is None else active.tobytes())
        clocks = self._patterns.get(key)
        if clocks is None:
            phases, extra = access_cycles(address, nbytes, active, atomic=atomic, banks=self.banks, load=load)
            if len(self._patterns) >= _KEPT_PATTERNS:
                self._patterns.clear()
            clocks = self._patterns[key] = [(int(p), int(e)) for p, e in zip(phases, extra, strict=True)]
        self.visits[-1].asked.append((self.now, clocks))

    def count_global(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        line, new = distinct_lines(address, nbytes, active)
        if self.loads:
            self._loaded.append(np.unique(line[new]))
        wanted = np.split(line[new], np.cumsum(new.sum(axis=1))[:-1])
        self.visits[-1].asked.append((self.now, [tuple(w.tolist()) for w in wanted]))

    def loaded(self) -> tuple[int, int]:
        """(bytes of the different lines that these workgroups load, bytes of the arguments that they load from)."""
        if not self._loaded:
            return 0, 0
        lines = np.unique(np.concatenate(self._loaded))
        starts, ends = self.memory.starts, self.memory.ends
        touched = np.unique(np.searchsorted(starts, lines * LINE_BYTES + LINE_BYTES - 1, side="right") - 1)
        return len(lines) * LINE_BYTES, int((ends[touched] - starts[touched]).sum())

    def of_wave(self, wave: int) -> list[int]:
        """The visits of one wave, in order."""
        return [k for k, visit in enumerate(self.visits) if wave in visit.row]

    @property
    def waves(self) -> list[int]:
        """Numbers of all traced waves."""
        return sorted({wave for visit in self.visits for wave in visit.row})


class Reach(_Watching):
    """Lines that workgroups which run at the same time ask for, until each wave has executed `limit` instructions."""

    def __init__(self, workgroups: Sequence[int] | np.ndarray, limit: int, units: int):
        super().__init__(workgroups)
        self.limit, self.units = limit, units
        self.executed = 0
        self._batch: int | None = None
        self.lines: list[np.ndarray] = []  #: of loads: line and unit (the WGP that asks) in one number
        self.kind: dict[int, bool] = {}

    def enter(self, g: Waves) -> None:
        if self._batch != id(g.lds):
            self._batch, self.executed = id(g.lds), 0
        block = self.program.blocks[g.block]
        self.executed += (block.last - block.first) * g.count
        if self.executed > self.limit * (len(g.lds.bytes) // max(g.lds.stride, 1) or 1) * self.waves_per_group:
            raise Enough
        self._ids = g.ids

    def count_local(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        pass

    def count_global(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        if not self.loads or address.shape[1] == 1:
            return
        line, new = distinct_lines(address, nbytes, active)
        unit = np.searchsorted(self.workgroups, self._ids // self.waves_per_group) % self.units
        both = line * self.units + unit[:, None]
        self.lines.append(np.unique(both[new]))

    def count(self) -> tuple[int, int]:
        """(different lines of each WGP, summed; different lines of all together)."""
        if not self.lines:
            return 0, 0
        both = np.unique(np.concatenate(self.lines))
        return len(both), len(np.unique(both // self.units))

"""Strict mode: places in LDS that a copy past the registers has yet to write, or to read: loads straight into LDS
(CDNA 1 to 4), asynchronous copies and tensor transfers (CDNA 5).

No register stands for such a place, and the wave that started the copy is no other wave, so neither waits on registers
nor races tell whether it has landed: until a wait for its counter says so, nobody may read what it writes, or write
what it reads or writes.

A copy that arrives at a barrier in LDS needs no such wait. The waves that branch on the barrier's word, once the phase
of the arrival is over, know that it has landed, and so does the whole workgroup behind its next barrier. Until then
such a copy is no access that races could find: this file alone says who may touch its place.

Copies take their time: a barrier's word is as it was before they arrived until some wave loads it a second time, so
that each wave that waits for the wrong phase passes, and is found out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .races import NOBODY, Tags, Touch, same_access, wave_numbers
from .shadow import Found

_WRITES, _READS = np.uint8(1), np.uint8(2)
_LATER = 1 << 62  #: the phase of an arrival that is still to come


def starts_copy(name: str) -> bool:
    """Whether an instruction moves data between global memory and LDS past the registers."""
    return "_async_" in name or "_load_lds_" in name or name.startswith("tensor_")


def arrives(name: str) -> bool:
    """Whether an instruction can make copies arrive at a barrier in LDS."""
    return name == "ds_atomic_async_barrier_arrive_b64" or name.startswith("tensor_")


@dataclass(eq=False)
class _Copy:
    """One instruction's copy, or one wave's part of it."""

    touch: Touch
    whole: Touch  #: of all waves that ran the instruction together
    counter: str
    description: str
    wave: int | None  #: None: of all of them
    arrived: dict[int, int] = field(default_factory=dict)  #: first byte of a barrier -> the phase that it counts for
    aware: set[int] = field(default_factory=set)  #: waves that know that it has landed
    epoch: int | None = None  #: behind the barrier that ends this epoch the whole workgroup knows
    waited: bool = False  #: its wave has waited for the counter

    def tell(self, wave: int, epoch: int) -> None:
        """A wave learns that it has landed."""
        self.aware.add(wave)
        self.epoch = epoch if self.epoch is None else min(epoch, self.epoch)


@dataclass(eq=False)
class _Arrival:
    """An arrival of copies that is still to come."""

    wave: int
    byte: int  #: the barrier's first
    count: Callable[[], tuple[int, bool]]  #: counts it; the word before, and whether its phase is then over
    copies: list[_Copy] = field(default_factory=list)


class Flights:
    """The copies under way of one LDS."""

    def __init__(self, tags: Tags, unit_bytes: int, waves_per_group: int, by_wave: bool):
        """by_wave: whether copies may arrive at barriers, which each wave does for itself."""
        self.tags, self.unit_bytes, self.waves_per_group, self.by_wave = tags, unit_bytes, waves_per_group, by_wave
        self.state = np.zeros(len(tags.writer), np.uint8)
        self.copies: list[_Copy] = []
        self.phases: dict[int, int] = {}  #: first byte of a barrier -> phases that are over
        self._words: dict[int, int] = {}  #: the unit with a barrier's phase -> its first byte
        self._to_come: list[_Arrival] = []
        self._issued = 0  #: how many of them are of earlier instructions
        self._asked: set[tuple[int, int]] = set()  #: barrier, wave: who has loaded its word while they are to come
        self._mark = np.zeros(len(self.state), np.bool_)
        # of the running instruction
        self.starts_copy = False  #: it is a copy itself, whose accesses count when it lands
        self.is_tested = False  #: it loads what the next branch depends on
        self.polled = False  #: a wave of it has loaded a barrier's word once more
        self.ids = self.epochs = np.zeros(0, np.int64)  #: its waves, and the barriers that each has passed

    def begin(self, touch: Touch, counter: str, description: str) -> None:
        """A copy has been issued."""
        for wave, part in self._parts(touch):
            # Whoever reads there has to know of the newer copy, and so need not of the one before.
            self._drop([c for c in self.copies if c.epoch is not None and c.wave == wave and _same(c.touch, part)])
            self.copies.append(_Copy(part, touch, counter, description, wave))
        self.state[touch.unit] |= _WRITES if touch.wrote else _READS

    def _parts(self, touch: Touch) -> list[tuple[int | None, Touch]]:
        if not self.by_wave:
            return [(None, touch)]
        number = self._waves(touch)
        found = []
        for wave in np.unique(number).tolist():
            its = number == wave
            found.append((wave, Touch(touch.unit[its], touch.mine[its], touch.wrote)))
        return found

    def _waves(self, touch: Touch) -> np.ndarray:
        return wave_numbers(touch.mine, self.waves_per_group)

    def end(self, touch: Touch, ids: np.ndarray | None, epoch: dict[int, int]) -> None:
        """A wait of waves `ids` says that it is done; another part of a split group may have said so before."""
        done = [c for c in self.copies if c.whole is touch and (c.wave is None or ids is None or c.wave in ids)]
        for copy in done:
            if copy.wave is not None:
                copy.waited = True
                copy.tell(copy.wave, epoch[copy.wave])
        self._drop([c for c in done if not c.arrived])

    def _drop(self, gone: list[_Copy]) -> None:
        if not gone:
            return
        self.copies = [copy for copy in self.copies if copy not in gone]
        for copy in gone:
            self.state[copy.touch.unit] = 0
        for copy in self.copies:  # places that two of them touch
            self.state[copy.touch.unit] |= _WRITES if copy.touch.wrote else _READS

    # -- barriers in LDS -----------------------------------------------------------------------------------------------

    def arrive(self, wave: int, byte: int, count: Callable[[], tuple[int, bool]]) -> int:
        """A wave arrives at the barrier in that byte, or will when its copies have landed. The word before."""
        self._words[(byte + 3) // self.unit_bytes] = byte
        if self.starts_copy:
            self._to_come.append(_Arrival(wave, byte, count))
            return 0
        self.land()
        return self._count(byte, count)

    def _count(self, byte: int, count: Callable[[], tuple[int, bool]]) -> int:
        word, over = count()
        self.phases[byte] = self.phases.get(byte, 0) + over
        return word

    def land(self) -> None:
        """All copies issued so far arrive."""
        for arrival in self._to_come:
            phase = self.phases.get(arrival.byte, 0)
            for copy in arrival.copies:
                copy.arrived[arrival.byte] = min(copy.arrived[arrival.byte], phase)
            self._count(arrival.byte, arrival.count)
        self._to_come.clear()
        self._asked.clear()
        self._issued, self.polled = 0, False

    def settle_arrivals(self, counter: str) -> None:
        """What arrives by the running instruction are its wave's copies of the counter so far, which end in order."""
        known: set[tuple[int, int]] = set()
        for arrival in self._to_come[self._issued :]:
            if (arrival.wave, arrival.byte) in known:  # by another lane
                continue
            known.add((arrival.wave, arrival.byte))
            for copy in self.copies:
                if copy.wave == arrival.wave and copy.counter == counter:
                    if not copy.arrived:
                        self._untrack(copy)
                    copy.arrived.setdefault(arrival.byte, _LATER)
                    arrival.copies.append(copy)
        self._issued = len(self._to_come)

    def _untrack(self, copy: _Copy) -> None:
        """Take a copy from what races know, and from what counts again behind the workgroup's barrier."""
        array = self.tags.writer if copy.touch.wrote else self.tags.reader
        unit, whole = copy.touch.unit, copy.whole
        array[unit[same_access(array[unit], copy.touch.mine)]] = NOBODY
        others = self._waves(whole) != copy.wave
        whole.unit, whole.mine = whole.unit[others], whole.mine[others]

    def _observe(self, unit: np.ndarray, active: np.ndarray | None) -> None:
        """Waves load words, of barriers maybe: where they then branch on them, they know which phases are over."""
        for place in np.unique(unit if active is None else unit[active]).tolist():
            byte = self._words.get(place)
            if byte is None:
                continue
            hit = unit == place if active is None else (unit == place) & active
            waves, phase = np.flatnonzero(hit.reshape(len(hit), -1).any(axis=1)), self.phases.get(byte, 0)
            asked = {(byte, int(self.ids[k])) for k in waves} if self._to_come else set()
            self.polled |= not asked.isdisjoint(self._asked)
            self._asked |= asked
            for copy in self.copies if self.is_tested else ():
                if copy.arrived.get(byte, phase) < phase:
                    for k in waves:
                        copy.tell(int(self.ids[k]), int(self.epochs[k]))
        self._drop([c for c in self.copies if len(c.aware) == self.waves_per_group])

    def landed(self, touch: Touch, ids: np.ndarray) -> bool:
        """Whether these waves know that their parts of a copy have landed."""
        return all(c.wave in c.aware for c in self.copies if c.whole is touch and c.wave in ids)

    # -- ordinary accesses ---------------------------------------------------------------------------------------------

    def check(self, unit: np.ndarray, active: np.ndarray | None, wrote: bool) -> None:
        """An ordinary access to units [wave, lane, n]. Raises Found where a copy is under way that it clashes with."""
        if self.starts_copy or not (self.copies or self._to_come):
            return
        if not wrote and (self.is_tested or self._to_come):
            self._observe(unit, active)
        bad = np.asarray(self.state.take(unit) & (_WRITES | _READS if wrote else _WRITES) != 0)
        if active is not None:
            bad &= active
        if not bad.any():
            return
        for copy in self.copies:
            if not (wrote or copy.touch.wrote):
                continue
            unaware = self._unaware(copy)
            if not unaware.any():
                continue
            self._mark[copy.touch.unit] = True
            hit = self._mark.take(unit)
            self._mark[copy.touch.unit] = False
            if not (hit & bad & unaware[:, None, None]).any():
                continue
            verb = "overwrites LDS" if wrote else "reads LDS"
            barrier = ", or for the barrier in LDS at which it arrives" if copy.arrived else ""
            text = f"{verb} before a wait for {copy.counter}{barrier}: {copy.description} may still be under way there"
            raise Found("wait", text)

    def _unaware(self, copy: _Copy) -> np.ndarray:
        """Which of the running waves do not know that a copy has landed."""
        if copy.wave is None or not copy.arrived:
            return np.ones(len(self.ids), np.bool_)
        knows = np.isin(self.ids, list(copy.aware))
        if copy.epoch is not None:
            knows |= self.epochs > copy.epoch
        own = self.ids // self.waves_per_group == copy.wave // self.waves_per_group
        return ~np.where(own, knows, copy.waited)  # other workgroups of a cluster wait at the cluster's barrier


def _same(a: Touch, b: Touch) -> bool:
    return a.wrote == b.wrote and np.array_equal(a.unit, b.unit)

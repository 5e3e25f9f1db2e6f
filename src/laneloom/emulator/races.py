"""Memory that remembers who touched each unit last, and so finds accesses that no barrier orders (strict mode).

A unit (4 bytes, or 2 or 1 where the program has narrower accesses) carries two tags: its last writer and its last
reader. A tag is workgroup, epoch (barriers that the wave has passed), wave, whether the access was under way at a
barrier, and instruction in one int64. Two accesses of one workgroup conflict when their epochs are equal, their waves
differ and one of them writes. Writing the value that is already there, as replicated layouts do, is no conflict.
Atomics are not tracked. Different values that two workgroups store conflict where nothing orders the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .between_groups import overwritten
from .lds_replicas import left_by_wave
from .memory import GlobalMemory, LocalMemory, Region

NOBODY = np.int64(0)  #: so that tags of what no wave touches take no memory
WAVE_BITS, INSTRUCTION_BITS, EPOCH_BITS = 6, 18, 14
LATE = np.int64(1 << INSTRUCTION_BITS)  #: of an access that was under way when its wave reached a barrier
WAVE_SHIFT = np.int64(INSTRUCTION_BITS + 1)
EPOCH_SHIFT = np.int64(WAVE_SHIFT + WAVE_BITS)
GROUP_SHIFT = np.int64(EPOCH_SHIFT + EPOCH_BITS)
RECENT = 256  #: loads that are remembered to tell a replicated read from a race
_ONE_WAVE, _ONE_EPOCH = np.uint64(1) << np.uint64(WAVE_SHIFT), np.uint64(1) << np.uint64(EPOCH_SHIFT)
_EPOCHS = np.int64((1 << EPOCH_BITS) - 1)
SEVERAL = np.int64((1 << WAVE_BITS) - 1)  #: the wave of a unit that several waves have read


def tag(group: np.ndarray, epoch: np.ndarray, wave: np.ndarray, instruction: int) -> np.ndarray:
    """Tags [wave, 1] of an access by an instruction."""
    packed = group + 1 << GROUP_SHIFT | (epoch & _EPOCHS) << EPOCH_SHIFT | wave << WAVE_SHIFT | np.int64(instruction)
    return packed[:, None]


def wave_numbers(tags: np.ndarray, waves_per_group: int) -> np.ndarray:
    """Of the launch's waves, those in tags."""
    return ((tags >> GROUP_SHIFT) - 1) * waves_per_group + (tags >> WAVE_SHIFT & SEVERAL)


def same_access(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two tags are of one wave and instruction, whichever barriers it has passed in between."""
    return ((a ^ b) & ~(_EPOCHS << EPOCH_SHIFT | LATE)) == 0


def instruction_of(value: int) -> int:
    """The instruction in a tag."""
    return int(value) & ((1 << INSTRUCTION_BITS) - 1)


def wave_of(value: int) -> int | None:
    """The wave in a tag; None for several."""
    wave = int(value) >> int(WAVE_SHIFT) & ((1 << WAVE_BITS) - 1)
    return None if wave == SEVERAL else wave


def conflicts(other: np.ndarray, mine: np.ndarray) -> np.ndarray:
    """Where two tags are of one workgroup and epoch but of different waves."""
    differ = np.asarray(other ^ mine).view(np.uint64)
    # Nothing above the wave's bits differs, and something in them: one comparison, as smaller numbers wrap round.
    return differ - _ONE_WAVE < _ONE_EPOCH - _ONE_WAVE


class RaceFault(Exception):
    """A conflict, before anyone has put it into words."""

    def __init__(self, other: int, mine: int, wave: int, lane: int, wrote: bool, address: int, lds: bool):
        super().__init__("race")
        self.lds = lds  #: whether the address is one of LDS
        self.other, self.mine, self.wave, self.lane, self.wrote, self.address = other, mine, wave, lane, wrote, address
        self.group = (other >> int(GROUP_SHIFT)) - 1 if (other ^ mine) >> int(GROUP_SHIFT) else None  #: another one's


@dataclass
class Touch:
    """One access of one instruction: where, by whom, and how."""

    unit: np.ndarray
    mine: np.ndarray
    wrote: bool


class Tags:
    """Last writer and last reader of every unit."""

    def __init__(self, units: int):
        self.writer, self.reader = (np.zeros(units, np.int64) for _ in range(2))

    def read(self, unit: np.ndarray, mine: np.ndarray, active: np.ndarray | None) -> np.ndarray:
        """Record a load; where it conflicts, as booleans of `unit`'s shape."""
        shape = unit.shape
        unit, mine, active = _as_rows(unit, mine, active)
        bad = conflicts(self.writer.take(unit), mine)
        if active is not None:
            bad &= active
        several = mine | SEVERAL << WAVE_SHIFT
        now = np.where(conflicts(self.reader.take(unit), mine), several, mine)
        _put(self.reader, unit, now, active)
        after = self.reader.take(unit)
        lost = after != now
        if lost.any():  # another wave of this instruction reads the same unit
            lost &= conflicts(after, mine)
            if active is not None:
                lost &= active
            self.reader[unit[lost]] = np.broadcast_to(several, unit.shape)[lost]
        return bad.reshape(shape)

    def write(self, unit: np.ndarray, mine: np.ndarray, active: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """Record a store: where it conflicts with a reader, an earlier writer, itself; and the earlier writers."""
        shape = unit.shape
        unit, mine, active = _as_rows(unit, mine, active)
        writers = self.writer.take(unit)
        reads, earlier = conflicts(self.reader.take(unit), mine), conflicts(writers, mine)
        _put(self.writer, unit, np.broadcast_to(mine, unit.shape), active)
        collide = conflicts(self.writer.take(unit), mine)
        collide |= earlier
        if active is not None:
            reads &= active
            earlier &= active
            collide &= active
        return tuple(x.reshape(shape) for x in (reads, earlier, collide, writers))

    def postpone(self, touch: Touch, next_epoch: np.ndarray, waves_per_group: int) -> None:
        """An access that is under way when its wave reaches a barrier counts for what comes after the barrier too.

        next_epoch: by a wave's number the epoch behind the barrier where it stands there, else -1; and -1 at the end.
        """
        mine = touch.mine[:, :1, :1] if touch.mine.ndim == 3 else touch.mine  # one tag a wave, spread over its lanes
        epoch = next_epoch.take(wave_numbers(mine, waves_per_group), mode="clip")
        later = mine & ~(_EPOCHS << EPOCH_SHIFT) | (epoch & _EPOCHS) << EPOCH_SHIFT | LATE
        here = np.broadcast_to(epoch >= 0, touch.unit.shape)
        array = self.writer if touch.wrote else self.reader
        array[touch.unit[here]] = np.broadcast_to(later, touch.unit.shape)[here]


def _as_rows(unit: np.ndarray, mine: np.ndarray, active: np.ndarray | None):
    """Units, tags and activity of an access as one row a wave: numpy is slow where the last axis is short."""
    rows = unit.reshape(len(unit), -1)
    return rows, mine.reshape(-1, 1), None if active is None else active.reshape(rows.shape)


def _put(array: np.ndarray, unit: np.ndarray, value: np.ndarray, active: np.ndarray | None) -> None:
    if active is None:
        array[unit] = value
    else:
        array[unit[active]] = value[active]


class _Tracked:
    """What LDS and global memory share: watch gathers and scatters of the instruction that is `now`."""

    unit_bytes: int
    tags: Tags
    now: np.ndarray | None  #: tags [wave, 1] of the running instruction; None: not watched (atomics, scalar loads)
    touches: list[Touch]
    recent_loads: deque[Touch]
    shares_small_tensors = False  #: whether compilers let several waves load one element that one of them stores
    doubtful: np.ndarray | None = None  #: [wave, lane] of the last load: another wave may have stored first, or nobody
    flights: Any = None  #: of LDS: the Flights of copies that pass no register
    in_order = False  #: whether accesses of different waves of a workgroup take effect in the order of their issue
    apart = False  #: whether nothing in the code could order two workgroups
    _active: np.ndarray | None

    def units(self, offset: np.ndarray) -> np.ndarray:
        """Unit numbers of byte offsets."""
        return offset >> self.unit_bytes.bit_length() - 1

    def _spread(self, offset: np.ndarray, nbytes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Units [wave, lane, n], tags and activity, of an access."""
        first = self.units(offset)
        count = max(nbytes // self.unit_bytes, 1)
        inside = offset & (self.unit_bytes - 1)
        straddles = bool(inside.any())
        count += straddles
        assert self.now is not None
        unit = np.empty((*first.shape, count), np.int64)
        for k in range(count):  # adding an axis of 4 at the end takes numpy three times as long
            np.add(first, k, out=unit[..., k])
        active = None if self._active is None else np.broadcast_to(self._active[..., None], unit.shape)
        if straddles:  # of an access that is not aligned, the units that lie wholly inside
            k, inside = np.arange(count), inside[..., None]
            whole = (k >= (inside > 0)) & ((k + 1) * self.unit_bytes <= inside + nbytes)
            active = whole if active is None else active & whole
        return unit, self.now[..., None], active

    def watch_load(self, offset: np.ndarray, nbytes: int) -> None:
        if self.now is None:
            return
        unit, mine, active = self._spread(offset, nbytes)
        if self.flights is not None:
            self.flights.check(unit, active, wrote=False)
        bad = self.tags.read(unit, mine, active)
        touch = Touch(unit if active is None else unit[active], _chosen(mine, unit, active), False)
        self.touches.append(touch)
        self.recent_loads.append(touch)
        if bad.any() and self.shares_small_tensors:
            forgiven = self._replicated(self.tags.writer[unit], mine, unit, bad)
            bad &= ~forgiven
            self.doubtful = np.asarray(forgiven.any(axis=-1))
        if bad.any():
            self._race(bad, self.tags.writer[unit], mine, unit, True)

    def watch_store(self, offset: np.ndarray, nbytes: int, differ: np.ndarray) -> np.ndarray | None:
        """`differ`: [wave, lane, n] the bits that the store changes. Where its own writers may collide."""
        if self.now is None:
            return None
        changed = np.asarray(differ.any(axis=-1))
        unit, mine, active = self._spread(offset, nbytes)
        if self.flights is not None:
            self.flights.check(unit, active, wrote=True)
        read, earlier, collide, writers = self.tags.write(unit, mine, active)
        self.touches.append(Touch(unit if active is None else unit[active], _chosen(mine, unit, active), True))
        earlier &= changed[..., None]
        if earlier.any() and (self.shares_small_tensors or (earlier := left_by_wave(earlier, unit, active)).any()):
            self._race(earlier, writers, mine, unit, True)
        read &= changed[..., None]
        if read.any() and self.shares_small_tensors:
            read &= ~self._replicated(mine, self.tags.reader[unit], unit, read)
        if read.any():
            self._race(read, self.tags.reader[unit], mine, unit, False)
        self._check_groups(writers, mine, unit, offset, differ, active)
        return collide if collide.any() else None

    def _replicated(self, storing, loading, unit, bad) -> np.ndarray:
        """Where the storing wave has itself read the unit by the instruction with which the other wave reads it.

        Compilers give small tensors in global memory to several waves at once: all of them load, one of them stores.
        What the others load must reach no memory, so what they load after the store counts as undefined.
        """
        same = np.zeros(bad.shape, np.bool_)
        writers, units = np.broadcast_to(storing, bad.shape)[bad] >> WAVE_SHIFT, unit[bad]
        loads = {instruction_of(int(t)) for t in np.unique(np.broadcast_to(loading, bad.shape)[bad])}
        for touch in self.recent_loads:
            if touch.mine.size and instruction_of(int(touch.mine.flat[0])) in loads:
                # A unit, and a wave of one workgroup and epoch, as one number.
                who, number = np.unique(touch.mine >> WAVE_SHIFT, return_inverse=True)
                keys = number.reshape(touch.unit.shape) << np.int64(40) | touch.unit
                at = np.minimum(np.searchsorted(who, writers), len(who) - 1)
                same[bad] |= (who[at] == writers) & np.isin(at.astype(np.int64) << np.int64(40) | units, keys)
        return same

    def _check_groups(self, writers, mine, unit, offset, differ, active) -> None:
        """Where another workgroup stored something else into a unit."""
        groups = (writers >> GROUP_SHIFT, mine >> GROUP_SHIFT) if self.apart else None
        if groups and (bad := overwritten(*groups, active, differ, offset, self.unit_bytes)) is not None:
            self._race(bad, writers, mine, unit, True)

    def _race(self, bad, others, mine, unit, wrote: bool):
        wave, lane, k = (int(x[0]) for x in np.nonzero(bad))
        own = int(np.broadcast_to(mine, bad.shape)[wave, lane, k])
        address, lds = self.address_of(int(unit[wave, lane, k])), isinstance(self, LocalMemory)
        raise RaceFault(int(others[wave, lane, k]), own, wave, lane, wrote, address, lds)

    def address_of(self, unit: int) -> int:
        """The address of a unit, for messages."""
        raise NotImplementedError


def _chosen(mine: np.ndarray, unit: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    whole = np.broadcast_to(mine, unit.shape)
    return whole if active is None else whole[active]


class Misaligned(Exception):
    """An address that its access does not allow; wave and lane count within the group that runs."""

    def __init__(self, text: str, wave: int, lane: int):
        super().__init__(text)
        self.text, self.wave, self.lane = text, wave, lane


def check_alignment(offset: np.ndarray, nbytes: int, active: np.ndarray | None, waves: int) -> None:
    """Addresses of atomics must be multiples of their size.

    Loads and stores may have any: drivers for compute put the hardware into its unaligned mode, and LLVM counts on that
    when it makes one access of two neighbours.
    """
    bad = (offset & (nbytes - 1)) != 0
    if not bad.any():
        return
    if active is not None:
        bad = bad & active
        if not bad.any():
            return
    wave, lane = (int(x[0]) for x in np.nonzero(np.broadcast_to(bad, (waves, bad.shape[1]))))
    off = int(offset[wave, lane]) % nbytes
    raise Misaligned(f"a {nbytes}-byte atomic {off} bytes off a multiple of {nbytes}", wave, lane)


class TrackedLocalMemory(_Tracked, LocalMemory):
    """LDS that finds races."""

    def __init__(self, workgroups: int, nbytes: int, unit_bytes: int):
        LocalMemory.__init__(self, workgroups, nbytes)
        self.unit_bytes, self.now, self.touches, self._active = unit_bytes, None, [], None
        self.recent_loads = deque(maxlen=RECENT)
        self.tags = Tags(len(self.bytes) // unit_bytes + 16)

    def address_of(self, unit: int) -> int:
        return unit * self.unit_bytes % max(self.stride, 1)

    def check(self, base, address, nbytes, active):
        self._active = active
        return LocalMemory.check(self, base, address, nbytes, active)

    def check_atomic(self, base, address, nbytes, active):
        offset = self.check(base, address, nbytes, active)
        check_alignment(offset, nbytes, active, base.shape[0])
        return offset

    def gather(self, offset, nbytes):
        self.watch_load(offset, nbytes)
        return LocalMemory.gather(self, offset, nbytes)

    def scatter(self, offset, words, nbytes, active):
        self._active = active
        _tracked_scatter(self, LocalMemory, offset, words, nbytes, active)


class TrackedGlobalMemory(_Tracked, GlobalMemory):
    """Global memory that finds races inside a workgroup."""

    shares_small_tensors = True

    def __init__(self, regions: Sequence[Region], unit_bytes: int, in_order: bool, apart: bool = False):
        GlobalMemory.__init__(self, regions)
        self.in_order, self.apart = in_order, apart
        self.unit_bytes, self.now, self.touches, self._active = unit_bytes, None, [], None
        self.recent_loads = deque(maxlen=RECENT)
        sizes = [-(-(end - start) // unit_bytes) + 16 for start, end in self._list]
        self._first_unit = np.cumsum([0, *sizes], dtype=np.int64)[:-1]
        self.tags = Tags(sum(sizes) + 16)

    def units(self, offset: np.ndarray) -> np.ndarray:
        address = offset + self.base
        region = np.maximum(np.searchsorted(self.starts, address, side="right") - 1, 0)
        return (address - self.starts[region]) // self.unit_bytes + self._first_unit[region]

    def address_of(self, unit: int) -> int:
        region = int(np.searchsorted(self._first_unit, unit, side="right")) - 1
        return int(self.starts[region]) + (unit - int(self._first_unit[region])) * self.unit_bytes

    def _watched(self, address, active):
        """The active lanes but for those in the host's buffer, of which waves take packets by atomics alone."""
        if self.host is None:
            return active
        kernels_own = (address < self.host.region.address) | (address >= self.host.region.end)
        return kernels_own if active is None else active & kernels_own

    def check(self, address, nbytes, active):
        self._active = self._watched(address, active)
        return GlobalMemory.check(self, address, nbytes, active)

    def check_atomic(self, address, nbytes, active):
        offset = self.check(address, nbytes, active)
        check_alignment(offset, nbytes, active, len(offset))
        return offset

    def gather(self, offset, nbytes):
        self.watch_load(offset, nbytes)
        if self.not_given and self.now is not None:
            lacks = np.asarray(self.not_given.lacks(offset + self.base, nbytes).any(axis=-1))
            self.doubtful = lacks if self.doubtful is None else self.doubtful | lacks
        return GlobalMemory.gather(self, offset, nbytes)

    def scatter(self, offset, words, nbytes, active):
        self._active = self._watched(offset + self.base, active)
        _tracked_scatter(self, GlobalMemory, offset, words, nbytes, active)


def _tracked_scatter(memory, plain, offset, words, nbytes, active) -> None:
    """Store, and hold what is there before and after against what each lane meant to write."""
    if memory.now is None:
        plain.scatter(memory, offset, words, nbytes, active)
        return
    meant = words if nbytes >= 4 else words & np.uint32((1 << 8 * nbytes) - 1)
    collide = memory.watch_store(offset, nbytes, plain.gather(memory, offset, nbytes) ^ meant)
    plain.scatter(memory, offset, words, nbytes, active)
    if collide is None and plain is LocalMemory:  # lanes of one wave
        return
    lost = (differ := plain.gather(memory, offset, nbytes) ^ meant).any(axis=-1)
    if memory._active is not None:
        lost &= memory._active
    if not lost.any():
        return
    unit, mine, active = memory._spread(offset, nbytes)
    writers, bad = memory.tags.writer[unit], np.zeros(unit.shape, np.bool_)
    memory._check_groups(writers, mine, unit, offset, differ, active)
    if collide is not None:
        bad |= lost[..., None] & collide
        bad = bad if plain is GlobalMemory else left_by_wave(bad, unit, active)
    if plain is GlobalMemory:
        bad |= (lost & (writers == mine).all(axis=-1))[..., None]
    if bad.any():
        memory._race(bad, writers, mine, unit, True)

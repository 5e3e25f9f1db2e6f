"""What atomics order between workgroups, followed while they run (strict mode).

Every atomic on global memory counts as acquire and release of its address, whatever its semantics say, and takes what
it finds there from the workgroup that stored it. So there may be less order than is seen here, never more: what is
reported nothing orders. Addresses share a fixed number of places, which only adds order.

A clock says of each workgroup how many of its releases are known. A store carries the releases that its workgroup had
made before, so it comes before whatever knows of more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .between_groups import overwritten
from .memory import Region
from .races import GROUP_SHIFT, TrackedGlobalMemory

PLACES = 1024
ROOM = 1 << 24  #: numbers in all clocks; where more would be kept, all workgroups that took part count as ordered


class GroupClocks:
    """Clocks of workgroups and of places. Those that met share one, which nobody changes afterwards."""

    def __init__(self, groups: int):
        self.own = np.zeros(groups, np.int32)  #: releases of each workgroup
        self.of_group: dict[int, np.ndarray] = {}
        self.of_place: dict[int, np.ndarray] = {}
        self.most = max(ROOM // max(groups, 1), 4)
        self.made = 0

    def meet(self, groups: np.ndarray, places: np.ndarray) -> None:
        """Pairs of a workgroup and a place that it acquires and releases, all at once."""
        number = np.zeros(len(self.own), np.int64)
        number[groups] = 1
        who = np.flatnonzero(number)
        number[who] = np.arange(len(who))
        member = number[groups]
        where = np.flatnonzero(np.bincount(places, minlength=PLACES))
        if 2 * len(who) > self.most:
            return self._join(who.tolist(), where.tolist())
        label, label_of_place = _connected(member, places, len(who))
        parts: dict[int, tuple[list[int], list[int]]] = {n: ([], []) for n in label.tolist()}
        for group, n in zip(who.tolist(), label.tolist(), strict=True):
            parts[n][0].append(group)
        for place, n in zip(where.tolist(), label_of_place[where].tolist(), strict=True):
            parts[n][1].append(place)
        for part in parts.values():
            self._join(*part)

    def _join(self, groups: Sequence[int], places: Sequence[int]) -> None:
        known = _distinct([*map(self.of_group.get, groups), *map(self.of_place.get, places)])
        total = known[0].copy() if known else np.zeros_like(self.own)
        for clock in known[1:]:
            np.maximum(total, clock, out=total)
        at = np.asarray(groups)
        self.own[at] += 1
        total[at] = self.own[at]
        self.of_group.update(dict.fromkeys(groups, total))
        self.of_place.update(dict.fromkeys(places, total))
        self.made += 1
        if self.made > self.most:
            self.made = len(_distinct([*self.of_group.values(), *self.of_place.values()]))
            if 2 * self.made > self.most:
                self.made = 0
                self._join(list(self.of_group), list(self.of_place))

    def unknown(self, groups: np.ndarray, others: np.ndarray, releases: np.ndarray) -> np.ndarray:
        """Of stores of other workgroups, with their releases before, those that nothing puts before `groups`."""
        found = np.ones(len(groups), np.bool_)
        for group in np.unique(groups).tolist():
            clock = self.of_group.get(group)
            if clock is not None:
                mine = groups == group
                found[mine] = clock[others[mine]] <= releases[mine]
        return found


def _distinct(clocks: Iterable[np.ndarray | None]) -> list[np.ndarray]:
    return list({id(c): c for c in clocks if c is not None}.values())


def _connected(member: np.ndarray, places: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of members 0 to count - 1 that share places, directly or through others, the lowest; and of places."""
    label = np.arange(count)
    while True:
        lowest = np.full(PLACES, count)
        np.minimum.at(lowest, places, label[member])
        after = label.copy()
        np.minimum.at(after, member, lowest[places])
        after = after[after]
        if np.array_equal(after, label):
            return label, lowest
        label = after


class OrderedMemory(TrackedGlobalMemory):
    """Global memory of a launch whose workgroups only atomics order."""

    groups: np.ndarray  #: [wave] the workgroups that access it now
    is_polled = False  #: a load on which the next branch depends, now
    stored = False  #: whether anything was

    def __init__(self, regions: Sequence[Region], unit_bytes: int, in_order: bool, groups: int):
        TrackedGlobalMemory.__init__(self, regions, unit_bytes, in_order, apart=True)
        self.clocks = GroupClocks(groups)
        units = len(self.tags.writer)
        self.last = np.zeros(units, np.int64)  #: the tag of what stored last
        self.releases = np.zeros(units, np.int32)  #: what its workgroup had released before

    def check_atomic(self, address, nbytes, active):
        offset = TrackedGlobalMemory.check_atomic(self, address, nbytes, active)
        self._meet(offset, nbytes, active)
        return offset

    def gather(self, offset, nbytes):
        if self.is_polled and self.now is not None:
            self._meet(offset, nbytes, self._active)
        return TrackedGlobalMemory.gather(self, offset, nbytes)

    def _meet(self, offset: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        """The workgroups meet at what they access, and meet there those that stored it."""
        wave = np.broadcast_to(np.arange(len(offset))[:, None], offset.shape)
        if active is None:
            wave, offset = wave.ravel(), offset.ravel()
        else:
            wave, offset = wave[active], offset[active]
        place = _place(offset)
        touched = np.zeros(len(self.groups) * PLACES, np.bool_)
        touched[wave * PLACES + place] = True
        pairs = np.flatnonzero(touched)  # which numpy does several times as fast as sorting, or in two dimensions
        groups, places = [self.groups[pairs // PLACES]], [pairs % PLACES]
        for k in range(0, nbytes if self.stored else 0, self.unit_bytes):
            writer = (self.last.take(self.units(offset + k)) >> GROUP_SHIFT) - 1
            other = (writer >= 0) & (writer != self.groups[wave])
            if other.any():
                groups.append(writer[other])
                places.append(place[other])
        if len(pairs):
            self.clocks.meet(np.concatenate(groups), np.concatenate(places))

    def _check_groups(self, writers, mine, unit, offset, differ, active) -> None:
        """As in a memory whose workgroups nothing orders, but for stores that come before."""
        others, releases = self.last.take(unit), self.releases.take(unit)
        bad = overwritten(others >> GROUP_SHIFT, mine >> GROUP_SHIFT, active, differ, offset, self.unit_bytes)
        if bad is not None:
            group = np.broadcast_to((mine >> GROUP_SHIFT) - 1, unit.shape)
            bad[bad] = self.clocks.unknown(group[bad], (others[bad] >> GROUP_SHIFT) - 1, releases[bad])
            if bad.any():
                self._race(bad, others, mine, unit, True)
        self.stored, own = True, self.clocks.own[(mine >> GROUP_SHIFT) - 1]
        if active is None:
            self.last[unit], self.releases[unit] = mine, own
        else:
            at = unit[active]
            self.last[at] = np.broadcast_to(mine, unit.shape)[active]
            self.releases[at] = np.broadcast_to(own, unit.shape)[active]


def _place(offset: np.ndarray) -> np.ndarray:
    """Of byte offsets: words of 8 bytes that lie evenly apart get different places mostly."""
    return (offset >> 3) * 0x9E3779B1 >> 22 & PLACES - 1

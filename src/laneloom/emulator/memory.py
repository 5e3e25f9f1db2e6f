"""Memory as the emulated waves see it: the kernel's arguments at their real addresses, and LDS.

Every access is checked against the regions before anything is read or written, so a wild address stops with a message
instead of touching the process. Units: addresses and sizes in bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import EmulationError, OutOfBoundsError
from .not_given import NotGiven

U64 = np.uint64
_WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}  # a 16-byte item moves as complex128


class AccessFault(Exception):
    """An access outside the memory it may touch, before anyone knows which instruction made it."""

    error: type[EmulationError] = OutOfBoundsError  #: what it becomes when the instruction is known

    def __init__(self, text: str, wave: int, lane: int):
        super().__init__(text)
        self.text, self.wave, self.lane = text, wave, lane


FIRST_PAGE = 4096  #: nothing is ever allocated below
BESIDE = 64  #: bytes from what is ours within which an access was meant for it


@dataclass(frozen=True)
class Region:
    """A stretch of memory that the kernel may touch."""

    name: str  #: the argument's name, as error messages show it
    address: int
    nbytes: int
    owner: Any = None  #: keeps the memory alive while the launch runs
    ours: bool = False  #: not the caller's memory: what every launch comes with

    @property
    def end(self) -> int:
        return self.address + self.nbytes


def window(address: int, nbytes: int) -> np.ndarray:
    """The bytes at a real address as a writable uint8 array."""
    buffer = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.ctypeslib.as_array(buffer)


class GlobalMemory:
    """The union of some regions, addressed by 64-bit pointers."""

    now: Any = None  #: in strict mode: who accesses it, by wave

    def __init__(self, regions: Sequence[Region]):
        self.regions = sorted((r for r in regions if r.nbytes > 0), key=lambda r: (r.address, r.end))
        merged: list[list[int]] = []
        for r in self.regions:  # views of one tensor overlap: check against their union
            if merged and r.address < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], r.end)
            else:
                merged.append([r.address, r.end])
        self.clusters: Any = None  #: the Clusters of the launch
        self.named: Any = None  #: its NamedBarriers
        self.sync: Any = None  #: its GlobalWaveSync
        self.not_given = NotGiven(0, 0, 0)  #: arguments that the launch leaves out
        self.host: Any = None  #: the Hostcall that answers this kernel's calls to the host
        self.counters: Any = None  #: the Counters that want to know of every access
        self.ticks = 0  #: of the clocks that code can read
        self.version = 0  #: grows with every store, so that a state can be told from an earlier one
        self.starts = np.array([m[0] for m in merged], np.int64)
        self.ends = np.array([m[1] for m in merged], np.int64)
        self._list = [(int(a), int(b)) for a, b in merged]
        # One window over all regions makes a gather one numpy call. It spans foreign memory, so it may only be indexed:
        # any numpy function that could copy it whole, or write it back, is out.
        self.base = (self._list[0][0] & ~255) if merged else 0
        span = (self._list[-1][1] - self.base + 255) & ~255 if merged else 0
        self._views = {}
        if span:
            everything = window(self.base, span)
            self._views = {size: everything.view(dtype) for size, dtype in _WORD.items()}

    def check(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> np.ndarray:
        """Byte offsets into the window for int64 addresses [wave, lane]; inactive lanes get a harmless offset.

        Raises AccessFault with the first offending lane and the nearest argument.
        """
        offset = self._offset(address, nbytes, active)
        if self.counters is not None:  # they know the arguments' lines only
            self.counters.count_global(address, nbytes, active)
        return offset

    def _offset(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> np.ndarray:
        if active is not None:
            if not active.any():
                return np.zeros(address.shape, np.int64)
            fill = address[active][0]
            address = np.where(active, address, fill)
        low, high = int(address.min()), int(address.max()) + nbytes
        for start, end in self._list:
            if start <= low and high <= end:
                return address - self.base
        good = self.holds(address, nbytes)
        if good.all():
            return address - self.base
        bad = ~np.broadcast_to(good, address.shape)
        wave, lane = (int(x[0]) for x in np.nonzero(bad if active is None else bad & active))
        raise AccessFault(self._complain(int(address[wave, lane]), nbytes), wave, lane)

    def holds(self, address: np.ndarray, nbytes: int) -> np.ndarray:
        """Whether all bytes of an access lie inside, per address."""
        if not self._list:
            return np.zeros(address.shape, bool)
        at = np.searchsorted(self.starts, address, side="right") - 1
        return (at >= 0) & (address + nbytes <= self.ends[np.maximum(at, 0)])

    check_atomic = check  #: strict mode asks more of an atomic

    def _complain(self, address: int, nbytes: int) -> str:
        regions = [r for r in self.regions if self.sync is None or r is not self.sync.region]
        where = "this kernel has no memory arguments"
        if 0 <= address < FIRST_PAGE:
            where = "through a null pointer, which is what a tensor without elements has"
        else:

            def distance(r: Region) -> int:
                return max(r.address - address, address + nbytes - r.end, 0)

            # Small arrays lie among ours, which a kernel that runs off them did not mean.
            meant = [r for r in regions if not r.ours or distance(r) <= BESIDE]
            near = min(meant, key=distance, default=None)
            if near is None:
                return f"{nbytes}-byte access at {address:#x}, {where}"
            what = f"{'' if near.ours else 'argument '}{near.name!r} ({near.nbytes} bytes)"
            past = address + nbytes - near.end
            before = near.address - address
            where = f"{before} bytes before {what}" if before > 0 else f"{past} bytes past the end of {what}"
            if hasattr(near.owner, "untyped_storage"):
                storage = near.owner.untyped_storage()
                if storage.data_ptr() <= address and address + nbytes <= storage.data_ptr() + storage.nbytes():
                    where += ", a view of memory that reaches there (bounds='storage' allows that)"
        return f"{nbytes}-byte access at {address:#x}, {where}"

    def gather(self, offset: np.ndarray, nbytes: int) -> np.ndarray:
        """`nbytes` (1, 2, 4, 8, 12, 16) per lane as uint32 [wave, lane, words]; 1 and 2 bytes zero-extended."""
        return _gather(self._views, offset, nbytes)

    def scatter(self, offset: np.ndarray, words: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        """Store per lane what `gather` would load; where lanes collide the highest wave and lane wins."""
        self.version += 1
        _scatter(self._views, offset, words, nbytes, active)

    def view(self, nbytes: int) -> np.ndarray:
        """The whole window as items of `nbytes`."""
        return self._views[nbytes]


class LocalMemory:
    """LDS of a batch of workgroups, one slice each."""

    now: Any = None  #: as in GlobalMemory
    flights: Any = None  #: in strict mode: the Flights of copies that pass no register
    drops = False  #: past the end loads give 0 and stores are dropped; else both are errors

    def __init__(self, workgroups: int, nbytes: int):
        self.nbytes = nbytes
        self.counters: Any = None  #: as in GlobalMemory
        self.version = 0
        self.stride = (nbytes + 255) & ~255
        self.bytes = np.zeros(max(workgroups * self.stride, 256), np.uint8)
        self._views = {size: self.bytes.view(dtype) for size, dtype in _WORD.items()}

    def check(self, base: np.ndarray, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> np.ndarray:
        """Byte offsets [wave, lane] for LDS addresses (int64) of workgroups whose slices start at `base` [wave, 1]."""
        if self.counters is not None:
            self.counters.count_local(address, nbytes, active)
        if active is not None:
            address = np.where(active, address, 0)
            if not active.any():
                return np.zeros(address.shape, np.int64)
        if int(address.max()) + nbytes > self.nbytes or int(address.min()) < 0:
            bad = (address + nbytes > self.nbytes) | (address < 0)
            if active is not None:
                bad &= active
            if bad.any():
                wave, lane = (int(x[0]) for x in np.nonzero(bad))
                at = int(address[wave, lane])
                inside = f"the {self.nbytes} bytes that the kernel allocates"
                text = f"{nbytes}-byte LDS access at byte {at}, outside {inside}"
                if at >= self.nbytes and not self.drops:
                    text += "; bounds='hardware' lets loads give 0 there and drops stores"
                raise AccessFault(text, wave, lane)
        return address + base

    check_atomic = check

    def dropped(self, address: np.ndarray) -> np.ndarray | None:
        """Which addresses are past the end, where that is no error; None if none is."""
        if not self.drops or int(address.max()) < self.nbytes:
            return None
        return address >= self.nbytes

    def gather(self, offset: np.ndarray, nbytes: int) -> np.ndarray:
        """As GlobalMemory.gather."""
        return _gather(self._views, offset, nbytes)

    def scatter(self, offset: np.ndarray, words: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        """As GlobalMemory.scatter."""
        self.version += 1
        _scatter(self._views, offset, words, nbytes, active)

    def view(self, nbytes: int) -> np.ndarray:
        """All slices as items of `nbytes`."""
        return self._views[nbytes]


def _unit(offset: np.ndarray, nbytes: int) -> int:
    """The largest item that divides both the access and every address of it."""
    bits = int(np.bitwise_or.reduce(offset, axis=None)) | nbytes
    return min(bits & -bits, 16)


def _gather(views: dict[int, np.ndarray], offset: np.ndarray, nbytes: int) -> np.ndarray:
    unit = _unit(offset, nbytes)
    view = views[unit]
    shift = unit.bit_length() - 1
    if unit == nbytes:
        items = view.take(offset >> shift)
    else:
        index = (offset >> shift)[..., None] + np.arange(nbytes // unit)
        items = view.take(index)
    if nbytes < 4:
        if unit < nbytes:
            items = np.ascontiguousarray(items).view(_WORD[nbytes])[..., 0]
        return items.astype(np.uint32)[..., None]
    return np.ascontiguousarray(items).view(np.uint32).reshape(*offset.shape, nbytes // 4)


def _scatter(views, offset: np.ndarray, words: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
    unit = _unit(offset, nbytes)
    view = views[unit]
    shift = unit.bit_length() - 1
    if active is not None:
        offset, words = offset[active], words[active]
    if nbytes < 4:
        words = words.astype(_WORD[nbytes])
    items = np.ascontiguousarray(words).view(_WORD[unit]).reshape(*offset.shape, nbytes // unit)
    if unit == nbytes:
        view[offset >> shift] = items[..., 0]
    else:
        view[(offset >> shift)[..., None] + np.arange(nbytes // unit)] = items

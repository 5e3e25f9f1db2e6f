"""`Shadow`: what strict mode keeps beside the registers of a group of waves.

A set bit of `V`, `S` or `private` means that nobody wrote that bit of the register. Only a use that matters is
reported: an address, stored data, a branch, EXEC.
"""

from __future__ import annotations

import numpy as np

from ..isa.parse import NULL, Operand
from ..isa.registers import Uses
from .memory import LocalMemory
from .state import U32, Waves

FULL = U32(0xFFFFFFFF)
STORE_COUNTERS = ("vscnt", "storecnt")  #: what they count writes no register


class Found(Exception):
    """A hazard, before anyone knows which instruction and kernel: text, and a wave and lane where there is one."""

    def __init__(self, kind: str, text: str, wave: int | None = None, lane: int | None = None):
        super().__init__(text)
        self.kind, self.text, self.wave, self.lane = kind, text, wave, lane


class Shadow:
    """Undefined bits of one group of waves, and what else strict mode keeps per wave."""

    __slots__ = ("S", "V", "busy_s", "busy_v", "dirty_s", "dirty_v", "epoch", "pending", "private", "replicated", "scc")

    def __init__(self, V, S, scc, epoch, pending, dirty_v, dirty_s, private):
        self.V: np.ndarray = V  #: uint32 [register, wave, lane]
        self.S: np.ndarray = S  #: uint32 [register, wave]
        self.scc: np.ndarray = scc
        self.epoch: np.ndarray = epoch  #: barriers that each wave has passed
        self.pending: dict[str, list] = pending  #: counter -> operations under way, oldest first
        self.dirty_v: int = dirty_v  #: vector registers that may hold undefined bits
        self.dirty_s: int = dirty_s
        self.private: np.ndarray | None = private  #: undefined bits of scratch memory, uint8 [wave, lane, byte]
        self.replicated: int = 0  #: vector registers whose replication was checked since they were written
        self.count_pending()

    def count_pending(self) -> None:
        """Registers that some operation under way will write."""
        self.busy_v = self.busy_s = 0
        for counter, entries in self.pending.items():
            for group in () if counter in STORE_COUNTERS else entries:
                for e in group:
                    self.busy_v |= e.registers_v
                    self.busy_s |= e.registers_s

    @staticmethod
    def start(g: Waves, defined_s: int, vectors: int = 1) -> Shadow:
        """At a kernel's entry the first `vectors` vector registers hold something, and what `defined_s` names."""
        V = np.full(g.V.shape, FULL)
        V[:vectors] = 0
        S = np.full(g.S.shape, FULL)
        for n in range(len(S)):
            if defined_s >> n & 1:
                S[n] = 0
        dirty_v = ((1 << len(V)) - 1) & ~((1 << vectors) - 1)
        dirty_s = ((1 << len(S)) - 1) & ~defined_s
        private = None if g.private is None else np.full(g.private.shape, 0xFF, np.uint8)
        return Shadow(V, S, np.ones(g.count, bool), np.zeros(g.count, np.int64), {}, dirty_v, dirty_s, private)

    def take(self, which: np.ndarray, ids: np.ndarray) -> Shadow:
        """The part for some of the waves, whose numbers are `ids`."""
        pending: dict[str, list] = {}
        for counter, entries in self.pending.items():
            kept = [[e for e in (each.of(ids) for each in group) if e is not None] for group in entries]
            while kept and not kept[0]:
                del kept[0]
            if kept:
                pending[counter] = kept
        private = None if self.private is None else self.private[which]
        return Shadow(
            self.V[:, which], self.S[:, which], self.scc[which], self.epoch[which], pending, self.dirty_v, self.dirty_s,
            private,
        )  # fmt: skip

    @staticmethod
    def merge(parts: list[Shadow]) -> Shadow:
        """One for all; operations under way are lined up from the newest back, which is how waits count them."""
        pending: dict[str, list] = {}
        for part in parts:
            for counter, entries in part.pending.items():
                mine = pending.setdefault(counter, [])
                mine[:0] = [[] for _ in range(len(entries) - len(mine))]
                for k in range(1, len(entries) + 1):
                    mine[-k] = list(dict.fromkeys([*mine[-k], *entries[-k]]))  # parts of one group share entries
        dirty_v = dirty_s = 0
        for part in parts:
            dirty_v |= part.dirty_v
            dirty_s |= part.dirty_s
        private = [p.private for p in parts if p.private is not None]
        return Shadow(
            np.concatenate([p.V for p in parts], axis=1), np.concatenate([p.S for p in parts], axis=1),
            np.concatenate([p.scc for p in parts]), np.concatenate([p.epoch for p in parts]), pending, dirty_v, dirty_s,
            np.concatenate(private) if private else None,
        )  # fmt: skip

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, g: Waves, n: int, bits, part: int = 0xFFFFFFFF) -> None:
        """The undefined bits of active lanes of v[n] (only those in `part`)."""
        row = self.V[n]
        if part != 0xFFFFFFFF:
            bits = (row & U32(~part & 0xFFFFFFFF)) | (bits & U32(part))
        if g.exec is None:
            row[...] = bits
        else:
            np.copyto(row, np.asarray(bits, U32), where=g.exec)
        self.note(n)

    def note(self, n: int) -> None:
        """Bring `dirty_v` up to date after a change of v[n]'s undefined bits."""
        self.dirty_v = self.dirty_v | 1 << n if self.V[n].any() else self.dirty_v & ~(1 << n)

    def put_scalar(self, n: int, bits) -> None:
        """The undefined bits of s[n]."""
        if n == NULL:
            return
        self.S[n] = bits
        self.dirty_s = self.dirty_s | 1 << n if self.S[n].any() else self.dirty_s & ~(1 << n)

    def put_mask(self, g: Waves, n: int, lanes: np.ndarray) -> None:
        """The undefined bits of a lane mask, from booleans [wave, lane]."""
        words = np.packbits(np.broadcast_to(lanes, (g.count, g.lanes)), axis=1, bitorder="little").view(U32)
        for k in range(g.lanes // 32):
            self.put_scalar(n + k, words[:, k])

    def mask(self, g: Waves, n: int) -> np.ndarray:
        """Booleans [wave, lane]: which bits of a lane mask are undefined."""
        words = np.ascontiguousarray(self.S[n : n + g.lanes // 32].T).view(np.uint8)
        return np.unpackbits(words, axis=1, bitorder="little").view(np.bool_)

    def clean(self, g: Waves, wrote: Uses) -> None:
        """Everything that an instruction with defined sources writes becomes defined."""
        for n in bits_of(wrote.writes_v & self.dirty_v):
            self.put(g, n, U32(0))
        for n in bits_of(wrote.writes_s & self.dirty_s):
            self.put_scalar(n, 0)

    # -- reading -------------------------------------------------------------------------------------------------------

    def of(self, operand: Operand, high: bool | None = None):
        """Undefined bits of a 32-bit operand, or of one half of it shifted down; [wave, lane], [wave, 1] or 0."""
        if operand.kind == "v":
            row = self.V[operand.index]
        elif operand.kind == "s" and operand.index != NULL:
            row = self.S[operand.index][:, None]
        else:
            return U32(0)
        if high is None:
            return row
        return row >> U32(16) if high else row & U32(0xFFFF)

    def any_of(self, operand: Operand):
        """Booleans: whether any bit of any register of the operand is undefined."""
        found = np.False_
        for k in range(operand.count):
            if operand.kind == "v":
                found = found | (self.V[operand.index + k] != 0)
            elif operand.kind == "s" and operand.index + k != NULL:
                found = found | (self.S[operand.index + k] != 0)[:, None]
        return found


class UndefinedBits(LocalMemory):
    """One undefined bit for each bit of LDS, all set at the start."""

    _LOOKS = 64  #: stores after which nobody looks any more whether all bits are defined by now

    def __init__(self, workgroups: int, nbytes: int):
        super().__init__(workgroups, nbytes)
        self.bytes[: workgroups * self.stride].reshape(workgroups, -1)[:, :nbytes] = 0xFF
        self.clean = nbytes == 0  #: every bit is known to be defined
        self.looks = 0

    def scatter(self, offset, words, nbytes, active) -> None:
        super().scatter(offset, words, nbytes, active)
        if self.clean:
            self.clean = not words.any()
        elif self.looks < self._LOOKS:
            self.looks += 1
            self.clean = not self.view(8).any()

    def combine(self, g: Waves, at: np.ndarray, nbytes: int, active: np.ndarray) -> None:
        """An atomic makes new words out of these, so somebody must have written them."""
        if self.clean:
            return
        bad = self.gather(at, nbytes).any(axis=-1) & active
        if bad.any():
            wave, lane = (int(x[0]) for x in np.nonzero(bad))
            raise Found("undefined", "an atomic combines bits of LDS that nobody wrote", int(g.ids[wave]), lane)

    def exchange(self, g: Waves, at: np.ndarray, nbytes: int, active: np.ndarray, destination: int) -> None:
        """Defined words replace these; the registers from `destination` on take what was undefined."""
        if self.clean:
            return
        found = self.gather(at, nbytes)
        self.scatter(at, np.zeros_like(found), nbytes, active)
        for k in range(found.shape[-1]):
            g.shadow.put(g, destination + k, found[..., k])


def bits_of(mask: int):
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low

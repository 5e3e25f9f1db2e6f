"""`Waves`: the registers of a group of waves that share one program counter, as numpy arrays.

Vector registers are one array [register, wave, lane] of uint32, so that an instruction is one numpy operation over all
waves and lanes. `u`, `i`, `f` are its rows seen as uint32, int32 and float32; `h` its rows as 16-bit halves
[wave, lane, 2]. Scalar registers are [register, wave]; `sv` shows a row as [wave, 1], ready to broadcast over lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..isa.parse import EXEC, NULL
from .polling import Polling

if TYPE_CHECKING:
    from .memory import GlobalMemory, LocalMemory

U32, U64 = np.uint32, np.uint64
_GATHER_BITS, _HIGHEST_BYTE = U64(0x0102040810204080), U64(56)


class Waves:
    """Waves in lock-step at one block of the program; a divergent branch splits them, meeting again merges them."""

    __slots__ = (
        "V", "S", "scc", "ids", "block", "at_barrier", "exec", "u", "i", "f", "h", "s", "sv",
        "_masks", "_exec_bits", "_twin", "addresses", "lanes", "lds", "lds_base", "memory", "closed",
        "private", "shadow", "undefined_lds", "waves_per_group", "calls", "polling",
    )  # fmt: skip

    def __init__(self, V, S, scc, ids, lds_base, lanes, memory, lds, closed, private=None):
        self.V: np.ndarray = V
        self.S: np.ndarray = S
        self.scc: np.ndarray = scc
        self.ids: np.ndarray = ids  #: number of each wave within its batch
        self.lds_base: np.ndarray = lds_base  #: [wave, 1] first LDS byte of the wave's workgroup
        self.lanes: int = lanes
        self.memory: GlobalMemory = memory
        self.lds: LocalMemory = lds
        self.closed: bool = closed  #: whole workgroups only: a barrier has nobody else to wait for
        self.private = private
        self.shadow: Any = None  #: strict mode's Shadow
        self.undefined_lds: Any = None  #: strict mode: undefined bits of the LDS
        self.waves_per_group = 1
        self.calls: tuple[int, ...] = ()  #: strict mode: where the functions return to that these waves are in
        self.block = 0
        self.polling = Polling()
        self.at_barrier = ""  #: "workgroup" or "cluster": whose barrier holds them back
        self._bind()

    def _bind(self) -> None:
        V, S = self.V, self.S
        self.u = list(V)
        self.i = list(V.view(np.int32))
        self.f = list(V.view(np.float32))
        self.h = list(V.view(np.uint16).reshape(*V.shape, 2))
        self.s = list(S)
        self.sv = list(S[:, :, None])
        self.addresses = self.u  #: of LDS and scratch: a twin takes them from the waves that it follows
        self._masks: dict[int, np.ndarray] = {}
        self._exec_bits: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
        self._twin: Waves | None = None
        self.exec: np.ndarray | None = None
        self.refresh_exec()

    @property
    def count(self) -> int:
        """How many waves move together."""
        return len(self.ids)

    # -- lane masks: SGPRs that hold one bit per lane ------------------------------------------------------------------

    def refresh_exec(self) -> None:
        """Recompute `exec` (None where every lane of every wave is active) after a write to EXEC."""
        full = 0xFFFFFFFF
        whole = bool((self.s[EXEC] == full).all()) and (self.lanes == 32 or bool((self.s[EXEC + 1] == full).all()))
        self.exec = None if whole else self._unpack(EXEC)

    def forget_masks(self) -> None:
        """After scalar registers were written past this object: EXEC and the masks are read again."""
        self._masks.clear()
        self.refresh_exec()

    def _unpack(self, n: int) -> np.ndarray:
        words = self.S[n : n + self.lanes // 32].T
        octets = np.ascontiguousarray(words).view(np.uint8)
        return np.unpackbits(octets, axis=1, bitorder="little").view(np.bool_)

    def mask(self, n: int) -> np.ndarray:
        """The lane mask in SGPR `n` (a pair in wave64) as booleans [wave, lane]."""
        if n == EXEC:
            return self.active()
        found = self._masks.get(n)
        if found is None:
            found = self._masks[n] = self._unpack(n)
        return found

    def active(self) -> np.ndarray:
        """EXEC as booleans [wave, lane]."""
        if self.exec is None:
            return np.ones((self.count, self.lanes), np.bool_)
        return self.exec

    def set_mask(self, n: int, value: np.ndarray) -> None:
        """Write booleans [wave, lane] (or what broadcasts to it) to the SGPRs of a lane mask."""
        shape = (self.count, self.lanes)
        full = np.ascontiguousarray(value if value.shape == shape else np.broadcast_to(value, shape), np.bool_)
        # Eight booleans in a row are the bytes of a word; the product gathers their lowest bits in the highest byte.
        words = ((full.view(U64) * _GATHER_BITS) >> _HIGHEST_BYTE).astype(np.uint8).view(U32)
        for k in range(self.lanes // 32):
            self.s[n + k][...] = words[:, k]
            self._masks.pop(n + k, None)
        if n == EXEC:
            self.refresh_exec()
        elif n != NULL:
            self._masks[n] = full
        else:
            self.S[NULL] = 0

    def set_scalar(self, n: int, value) -> None:
        """Write one SGPR of every wave."""
        if n == NULL:
            return
        self.s[n][...] = value
        if self._masks:
            self._masks.pop(n, None)
            self._masks.pop(n - 1, None)
        if n == EXEC or n == EXEC + 1:
            self.refresh_exec()

    def set_scalar64(self, n: int, value) -> None:
        """Write a 64-bit SGPR pair of every wave."""
        value = np.broadcast_to(np.asarray(value, U64), (self.count,))
        self.set_scalar(n, value.astype(U32))
        self.set_scalar(n + 1, (value >> U64(32)).astype(U32))

    def scalar64(self, n: int) -> np.ndarray:
        """A 64-bit SGPR pair of every wave."""
        return self.s[n].astype(U64) | (self.s[n + 1].astype(U64) << U64(32))

    # -- vector registers ----------------------------------------------------------------------------------------------

    def put(self, n: int, value: np.ndarray) -> None:
        """Write 32-bit lanes of VGPR `n` where EXEC is set; `value` is uint32, or has a 4-byte dtype."""
        if value.dtype != U32:
            value = value.view(U32)
        if self.exec is None:
            self.u[n][...] = value
        else:
            # Several times faster than np.copyto with `where`.
            row = self.u[n]
            change = row ^ value
            change &= self.exec_bits()
            np.bitwise_xor(row, change, out=row)

    def exec_bits(self) -> np.ndarray:
        """`exec` (not None) as uint32: all bits of a lane set or none."""
        of, bits = self._exec_bits
        if of is not self.exec or bits is None:
            assert self.exec is not None
            bits = np.negative(self.exec.astype(U32))
            self._exec_bits = (self.exec, bits)
        return bits

    def pair(self, n: int) -> np.ndarray:
        """VGPRs n and n + 1 as uint64 [wave, lane]."""
        out = np.empty((self.count, self.lanes, 2), U32)
        out[..., 0] = self.u[n]
        out[..., 1] = self.u[n + 1]
        return out.view(U64)[..., 0]

    def twin(self, V: np.ndarray) -> Waves:
        """The same waves with other vector registers: scalar registers, EXEC and addresses are shared."""
        other = self._twin
        if other is None or other.V is not V:
            other = Waves(V, self.S, self.scc, self.ids, self.lds_base, self.lanes, self.memory, self.lds, self.closed)
            other.addresses = self.u
            self._twin = other
        other.exec, other._masks = self.exec, self._masks
        return other

    # -- splitting and merging -----------------------------------------------------------------------------------------

    def split(self, chosen: np.ndarray) -> tuple[Waves, Waves]:
        """The waves where `chosen` is true, and the others."""
        return self._take(chosen), self._take(~chosen)

    def _take(self, which: np.ndarray) -> Waves:
        part = Waves(
            self.V[:, which], self.S[:, which], self.scc[which], self.ids[which], self.lds_base[which],
            self.lanes, self.memory, self.lds, False, None if self.private is None else self.private[which],
        )  # fmt: skip
        part.block, part.at_barrier, part.calls = self.block, self.at_barrier, self.calls
        part.polling = Polling(self.polling.patience)
        if self.shadow is not None:
            part.shadow = self.shadow.take(which, part.ids)
        part.undefined_lds, part.waves_per_group = self.undefined_lds, self.waves_per_group
        return part

    @staticmethod
    def merge(parts: list[Waves]) -> Waves:
        """One group of several that stand at the same block."""
        first = parts[0]
        private = None if first.private is None else np.concatenate([p.private for p in parts if p.private is not None])
        whole = Waves(
            np.concatenate([p.V for p in parts], axis=1), np.concatenate([p.S for p in parts], axis=1),
            np.concatenate([p.scc for p in parts]), np.concatenate([p.ids for p in parts]),
            np.concatenate([p.lds_base for p in parts]), first.lanes, first.memory, first.lds, False, private,
        )  # fmt: skip
        whole.block, whole.at_barrier, whole.calls = first.block, first.at_barrier, first.calls
        if first.shadow is not None:
            whole.shadow = type(first.shadow).merge([p.shadow for p in parts])
        whole.undefined_lds, whole.waves_per_group = first.undefined_lds, first.waves_per_group
        return whole

"""Stores and atomics from scalar registers, which gfx9 has: `s_store_dword`, `s_buffer_store_dword`, `s_atomic_add`,
and `s_scratch_store_dword`, whose offset in a register counts 64 bytes.

Waves take effect one after another. Sources: AMD Vega and CDNA 3 ISA guides, "Scalar Memory Operations"; LLVM,
SMInstructions.
"""

from __future__ import annotations

import re

import numpy as np

from ..isa.parse import Instruction
from .alu import Builder, Step, Target
from .atomics import OPERATIONS, apply
from .state import U32, Waves

_COMBINES = "swap cmpswap add sub smin umin smax umax and or xor inc dec".split()
_TAILS = [f"store_dword{words}" for words in ("", "x2", "x4")]
_TAILS += [f"atomic_{op}{wide}" for op in _COMBINES for wide in ("", "_x2")]
NAMES = frozenset(f"s_{buffer}{tail}" for buffer in ("", "buffer_") for tail in _TAILS) | {
    f"s_scratch_{tail}" for tail in _TAILS if tail.startswith("store")
}
_NAME = re.compile(r"s_(buffer_|scratch_)?(?:store_dword(x2|x4)?|atomic_(\w+?)(_x2)?)$")
_SIGNED = {"smin": "min", "smax": "max", "umin": "min", "umax": "max"}
_BUFFER_BASE = np.int64((1 << 48) - 1)


class ScalarStore:
    """A store or an atomic; calling it executes it."""

    def __init__(self, ins: Instruction, target: Target):
        match = _NAME.match(ins.name)
        assert match
        self.data, self.base, self.offset = ins.operands
        self.extra = ins.number("offset")
        self.mask = _BUFFER_BASE if match[1] == "buffer_" else np.int64(-1)
        self.scale = np.int64(64 if match[1] == "scratch_" else 1)
        self.operation, self.returns = match[3] or "", ins.flag("glc")
        self.nbytes = 8 if match[4] else {"": 4, "x2": 8, "x4": 16}[match[2] or ""]

    def address(self, g: Waves) -> np.ndarray:
        """int64 [wave]"""
        offset = self.offset
        more = g.s[offset.index].astype(np.int64) * self.scale if offset.kind == "s" else np.int64(offset.value)
        base = g.scalar64(self.base.index).view(np.int64) & self.mask
        return (base + more + self.extra) & ~np.int64(3)

    def __call__(self, g: Waves) -> None:
        """Raises AccessFault where the memory refuses."""
        if self.operation:
            self._combine(g)
            return
        at = g.memory.check(self.address(g)[:, None], self.nbytes, None)
        g.memory.scatter(at, self._words(g, 0)[:, None], self.nbytes, None)

    def _words(self, g: Waves, skip: int) -> np.ndarray:
        """The words [wave, word] from the data registers, `skip` left out."""
        first = self.data.index + skip
        return np.ascontiguousarray(g.S[first : first + self.nbytes // 4].T)

    def _combine(self, g: Waves) -> None:
        letter = "i" if self.operation.startswith("s") and self.operation in _SIGNED else "u"
        dtype = np.dtype(f"{letter}{self.nbytes}")
        combine = OPERATIONS[_SIGNED.get(self.operation, self.operation)][0]
        at = g.memory.check_atomic(self.address(g)[:, None], self.nbytes, None)[:, 0]
        items = g.memory.view(self.nbytes).view(dtype)
        data = [self._words(g, 0).view(dtype)[:, 0]]
        if self.operation == "cmpswap":  # the new value, then the one to compare with
            data.append(self._words(g, self.nbytes // 4).view(dtype)[:, 0])
        found = apply(items, at // self.nbytes, combine, tuple(data))
        g.memory.version += 1
        if self.returns:
            words = np.ascontiguousarray(found).view(U32).reshape(g.count, -1)
            for k in range(self.nbytes // 4):
                g.set_scalar(self.data.index + k, words[:, k])


def _build(ins: Instruction, target: Target) -> Step:
    return ScalarStore(ins, target)


def find(name: str) -> Builder | None:
    """The builder of a scalar store or atomic."""
    return _build if name in NAMES else None

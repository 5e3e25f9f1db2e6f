"""Loads from memory straight into LDS, of CDNA: `global_load_lds_*`, `scratch_load_lds_*`, and `buffer_load_*` with
`lds` (see cdna.py).

Lane l's data lands at M0 + the instruction's offset + l times the bytes of a lane, counted from the first byte of the
workgroup's LDS. Of M0 buffer loads read the low 16 bits on gfx942, whose LDS has 64 KiB, and 18 on gfx950, the others
bits 17 to 2 (CDNA 3 and 4 ISA guides, 9.1.9 and 10.3; rocjitsu). Of 1 and 2 bytes, extended, 4 are written. Triton
turns a wave off by an M0 of 0x7fffffff: the hardware drops such a load before it fetches anything.
"""

from __future__ import annotations

import re

import numpy as np

from ..isa.parse import M0, Instruction
from .alu import Builder, Step, Target
from .buffer_access import Buffer
from .global_access import Access, extend, global_addresses
from .lds_access import is_nowhere
from .memory import LocalMemory
from .private_access import check_private, gather_private, scratch_addresses
from .state import U32, Waves

_NAME = re.compile(r"(global|buffer|scratch)_load_lds_([bui]\d+)$")


class LdsLoad:
    """One such load; calling it executes it. Lanes out of a buffer's range deliver 0."""

    def __init__(self, ins: Instruction, target: Target):
        match = _NAME.match(ins.name)
        assert match
        of_buffer = 0xFFFF if target.gpu.lds_bytes <= 1 << 16 else 0x3FFFF
        self.reach = U32(of_buffer if match[1] == "buffer" else 0x3FFFC)  #: the bits of M0 that count
        self.access, self.offset = Access(f"load_{match[2]}"), ins.number("offset")
        self.nbytes = max(self.access.nbytes, 4)  #: that a lane writes
        self.buffer: Buffer | None = None
        self.private = match[1] == "scratch"
        if match[1] == "buffer":
            self.source = self.buffer = Buffer(ins, target, *ins.operands, nbytes=self.access.nbytes)
        else:
            place = scratch_addresses if self.private else global_addresses
            address = place(ins, ins.operands[0], ins.operands[1], target)
            self.source = lambda g: (address(g), g.active())

    def __call__(self, g: Waves) -> None:
        """Raises AccessFault where either memory refuses."""
        access = self.access
        address, inside = self.source(g)
        if (nowhere := self.nowhere(g, g.lds)) is not None:
            inside = inside & ~nowhere
        if self.buffer is not None and not inside.all() and self.buffer.straddles():
            self.deliver(g, g.lds, self.buffer.gather_by_words(g, address))
            return
        if self.private:
            words = gather_private(g, check_private(g, address, access.nbytes, inside), access.nbytes)
        else:
            at = g.memory.check(address, access.nbytes, inside)
            words = g.memory.gather(at, access.nbytes) if inside.any() else np.zeros((1, 1, 1), U32)
        words = np.where(inside[..., None], words, U32(0))
        if access.nbytes < 4:
            words = extend(words[..., 0], access.nbytes, access.signed)[..., None]
        self.deliver(g, g.lds, words)

    def places(self, g: Waves) -> np.ndarray:
        """Where in the workgroup's LDS the lanes' data land."""
        return (g.s[M0] & self.reach).astype(np.int64)[:, None] + self.offset + self.nbytes * np.arange(g.lanes)

    def nowhere(self, g: Waves, lds: LocalMemory) -> np.ndarray | None:
        """The lanes whose load is dropped; None if none is."""
        waves, past = is_nowhere(g.s[M0].astype(np.int64)), lds.dropped(self.places(g))
        if waves is None:
            return past
        return waves[:, None] if past is None else waves[:, None] | past

    def deliver(self, g: Waves, lds: LocalMemory, words: np.ndarray) -> None:
        """Write `words`, or what broadcasts to them, to the lanes' places."""
        active = g.exec
        if (nowhere := self.nowhere(g, lds)) is not None:
            active = np.broadcast_to(g.active() & ~nowhere, (g.count, g.lanes))
        at = lds.check(g.lds_base, self.places(g), self.nbytes, active)
        lds.scatter(at, np.broadcast_to(words, (g.count, g.lanes, self.nbytes // 4)), self.nbytes, active)


def _build(ins: Instruction, target: Target) -> Step:
    return LdsLoad(ins, target)


def find(name: str) -> Builder | None:
    """The builder of a load to LDS."""
    return _build if _NAME.match(name) else None

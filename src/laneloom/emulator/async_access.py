"""Copies between global memory and LDS that pass no register (CDNA 5): each lane moves 1, 4, 8 or 16 bytes.

A VGPR holds the lane's place in LDS, counted from the first byte of the workgroup's; the instruction's offset is added
to both addresses. `cluster_load_async_to_lds` delivers to the workgroups of the cluster that bits 15:0 of M0 name
(cluster.py). A lane whose place is out of any LDS takes no part, by which Triton masks. Source: LLVM,
"AMDGPU DMA Operations", and the intrinsics of gfx1250.
"""

from __future__ import annotations

import re

import numpy as np

from ..isa.parse import M0, Instruction
from .alu import Builder, Step, Target
from .global_access import global_addresses
from .lds_access import addresses, is_nowhere
from .memory import LocalMemory
from .state import U32, Waves

_NAME = re.compile(r"(?:global|cluster)_load_async_to_lds_b(8|32|64|128)$|global_store_async_from_lds_b(8|32|64|128)$")


class AsyncCopy:
    """One such copy; calling it executes it."""

    def __init__(self, ins: Instruction, target: Target):
        match = _NAME.match(ins.name)
        assert match
        self.load = match[1] is not None
        self.nbytes = int(match[1] or match[2]) // 8
        place, vaddr = ins.operands[:2] if self.load else ins.operands[1::-1]
        self.place, self.offset = place.index, ins.number("offset")
        self.multicast = ins.name.startswith("cluster_")
        self.address = global_addresses(ins, vaddr, ins.operands[2], target, self.nbytes)

    def active(self, g: Waves) -> np.ndarray | None:
        """The lanes that take part; None for all."""
        nowhere = is_nowhere(addresses(g, self.place, self.offset))
        if nowhere is None:
            return g.exec
        return ~nowhere if g.exec is None else g.exec & ~nowhere

    def __call__(self, g: Waves) -> None:
        """Raises AccessFault where either memory refuses."""
        active = self.active(g)
        at = g.memory.check(self.address(g), self.nbytes, active)
        if self.load:
            self.deliver(g, g.lds, g.memory.gather(at, self.nbytes))
        else:
            g.memory.scatter(at, self.stored(g, g.lds), self.nbytes, active)

    def deliver(self, g: Waves, lds: LocalMemory, words: np.ndarray) -> None:
        """Write `words`, or what broadcasts to them, to the lanes' places."""
        active, where = self.active(g), addresses(g, self.place, self.offset)
        words = np.broadcast_to(words, (g.count, g.lanes, max(self.nbytes // 4, 1)))
        mask = g.s[M0] & U32(0xFFFF) if self.multicast else np.zeros(g.count, U32)
        for waves, base in g.memory.clusters.receivers(g.ids, g.lds_base, lds, mask):
            lanes = active
            if waves is not None:
                lanes = g.active() & waves[:, None] if active is None else active & waves[:, None]
            lds.scatter(lds.check(base, where, self.nbytes, lanes), words, self.nbytes, lanes)

    def stored(self, g: Waves, lds: LocalMemory) -> np.ndarray:
        """What a store finds in the lanes' places, as words [wave, lane, words]."""
        at = lds.check(g.lds_base, addresses(g, self.place, self.offset), self.nbytes, self.active(g))
        return lds.gather(at, self.nbytes)


def _build(ins: Instruction, target: Target) -> Step:
    return AsyncCopy(ins, target)


#: every such instruction
NAMES = tuple(
    f"{kind}_b{bits}"
    for kind in ("global_load_async_to_lds", "cluster_load_async_to_lds", "global_store_async_from_lds")
    for bits in (8, 32, 64, 128)
)


def find(name: str) -> Builder | None:
    """The builder of an asynchronous copy."""
    return _build if name in NAMES else None

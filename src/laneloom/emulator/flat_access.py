"""Flat loads and stores: the upper half of an address says whether it is LDS, scratch or global memory.

Two apertures of 4 GiB hold LDS and scratch, where Linux's driver places them for GPUs since gfx9 (kfd_flat_memory.c).
`src_shared_base` and `src_private_base` give them to the code. On CDNA 5 an address of scratch names its lane, too:
private offset + lane << 52 + `src_flat_scratch_base` (LLVM, FeatureGloballyAddressableScratch); of another wave's
scratch it would be one of the running wave here.
"""

from __future__ import annotations

import numpy as np

from ..isa.parse import NULL, Instruction, Operand
from .alu import Builder, Step, Target
from .global_access import Access, is_access, signed_offset
from .operands import PRIVATE_APERTURE, SCRATCH_APERTURE, SHARED_APERTURE
from .private_access import check_private, gather_private, scatter_private
from .state import U64, Waves

_LANE = np.int64(0x3F << 20)  #: where the upper half of an address of scratch names a lane


class FlatAddress:
    """The address of a flat instruction, and the lanes that go to each memory.

    CDNA 5 has an SGPR pair to which 32 bits of a VGPR are added, as for global memory (`global_addresses`).
    """

    def __init__(self, ins: Instruction, vaddr: Operand, nbytes: int, target: Target):
        last, self.names_lanes = ins.operands[-1], target.gpu.is_cdna5
        self.register, self.offset = vaddr.index, signed_offset(ins)
        self.base = last.index if last.kind == "s" and last.index != NULL else None
        self.scale = np.int64(nbytes if ins.flag("scale_offset") else 1)

    def __call__(self, g: Waves) -> np.ndarray:
        """int64 [wave, lane]."""
        n = self.register
        if self.base is not None:
            within = g.addresses[n].view(np.int32) * self.scale + self.offset
            return within + g.scalar64(self.base).view(np.int64)[:, None]
        pair = g.addresses[n].astype(U64) | g.addresses[n + 1].astype(U64) << U64(32)
        return pair.view(np.int64) + self.offset

    def split(self, g: Waves) -> tuple[np.ndarray, dict[str, np.ndarray | None]]:
        """The address, and for "global", "lds" and "private" the active lanes, where there are any (None: all)."""
        address = self(g)
        upper = address >> 32
        shared, private = upper == SHARED_APERTURE, upper == PRIVATE_APERTURE
        if self.names_lanes:
            private |= upper & ~_LANE == SCRATCH_APERTURE
        if not shared.any() and not private.any():
            return address, {"global": g.exec}
        masks = {"global": ~(shared | private), "lds": shared, "private": private}
        masks = {space: mask if g.exec is None else mask & g.exec for space, mask in masks.items()}
        return address, {space: mask for space, mask in masks.items() if mask.any()}

    def owners(self, g: Waves, address: np.ndarray) -> np.ndarray | None:
        """The lane whose scratch each address means, [wave, lane]; None where it is each lane's own."""
        upper = address >> 32
        named = upper & ~_LANE == SCRATCH_APERTURE
        if not (self.names_lanes and named.any()):
            return None
        return np.where(named, upper >> 20 & (g.lanes - 1), np.arange(g.lanes))


class FlatAccess:
    """A flat load or store; calling it executes it."""

    def __init__(self, ins: Instruction, target: Target):
        access = self.access = Access(ins.name.split("_", 1)[1], target.gpu)
        data, vaddr = ins.operands[:2] if access.load else ins.operands[1::-1]
        if data.half:
            access.half = data.half
        self.where, self.data = FlatAddress(ins, vaddr, access.nbytes, target), data.index

    def __call__(self, g: Waves) -> None:
        """Raises AccessFault where any of the three memories refuses."""
        self.run(g, "global", "lds", "private")

    def run(self, g: Waves, *wanted: str) -> None:
        """Only the lanes that go to these memories; a load gives the others 0."""
        access, nbytes = self.access, self.access.nbytes
        address, spaces = self.where.split(g)
        owners = self.where.owners(g, address) if "private" in spaces else None
        total = np.zeros((g.count, g.lanes, max(nbytes // 4, 1)), np.uint32)
        for space, mask in spaces.items():
            if space not in wanted:
                continue
            if space == "global":
                memory, at = g.memory, g.memory.check(address, nbytes, mask)
            elif space == "lds":
                memory, at = g.lds, g.lds.check(g.lds_base, address & 0xFFFFFFFF, nbytes, mask)
            else:
                memory, at = None, check_private(g, address & 0xFFFFFFFF, nbytes, mask)
            if not access.load:
                words = access.get(g, self.data)
                if memory is not None:
                    memory.scatter(at, words, nbytes, mask)
                else:
                    scatter_private(g, at, words, nbytes, mask, owners)
                continue
            words = memory.gather(at, nbytes) if memory is not None else gather_private(g, at, nbytes, owners)
            total = words if mask is None else np.where(mask[..., None], words, total)
        if access.load:
            access.put(g, self.data, total)


def _build(ins: Instruction, target: Target) -> Step:
    return FlatAccess(ins, target)


def find(name: str) -> Builder | None:
    """The builder of a flat load or store."""
    prefix, _, tail = name.partition("_")
    return _build if prefix == "flat" and is_access(tail) else None

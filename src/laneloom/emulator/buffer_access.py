"""Buffer loads and stores: global memory through a resource of four SGPRs, and scratch where the resource says so.

gfx90a reaches scratch by buffer instructions. Its kernels start with the resource in SGPRs and each wave's place in the
whole launch's scratch beside it; the code adds the two (LLVM AMDGPUUsage, "Private Segment Buffer"). The hardware then
lays the 4-byte words of 64 lanes side by side, so what is added to the base, as the stack pointer is, counts 64 times.
"""

from __future__ import annotations

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import Instruction, Operand
from .alu import Builder, Step, Target
from .global_access import Access, is_access, resource_extent
from .memory import AccessFault
from .operands import constant
from .private_access import check_private, gather_private, scatter_private
from .state import U32, Waves

_SWIZZLE, _ADD_LANE = 1 << 31, 1 << 23  #: of the second and of the fourth word: words of lanes lie side by side
_SCRATCH_BASE = 1 << 46  #: no address of this machine's memory
_PLACES = 64  #: of waves in scratch; nothing of one is seen by another that has the same


def scratch_resource(nbytes: int) -> tuple[int, int, int, int]:
    """The resource that kernels start with, of `nbytes` of scratch for each lane."""
    return _SCRATCH_BASE & 0xFFFFFFFF, _SCRATCH_BASE >> 32 | _SWIZZLE, _PLACES * 64 * nbytes, _ADD_LANE


def scratch_place(ids: np.ndarray, nbytes: int) -> np.ndarray:
    """The byte of the launch's scratch that each wave's begins at."""
    return (ids % _PLACES * 64 * nbytes).astype(U32)


def scalar_offset(operand: Operand) -> Operand:
    """The scalar offset of a buffer instruction: a register, or a constant as the integer whose bits it has."""
    if operand.kind == "const":
        return Operand("const", value=int(constant(operand, "u32")))
    if operand.kind != "s":
        raise UnknownInstructionError(f"operand {operand.value!r} as a buffer's offset is not implemented")
    return operand


class SwizzledFault(AccessFault):
    """A resource whose elements do not lie one after another."""

    error = UnknownInstructionError


class Buffer:
    """Addressing of a buffer instruction: 128-bit resource in SGPRs, VGPR index and offset, SGPR offset, immediate.

    nbytes: what a lane accesses. A lane counts as in range with all of it; `words_inside` tells the words apart.
    """

    def __init__(
        self, ins: Instruction, target: Target, vaddr: Operand, resource: Operand, soffset: Operand, nbytes: int
    ):
        self.resource = resource.index
        self.wide = target.gpu.is_cdna5  #: 57 bits of address and 45 of records share the first three registers
        self.offen, self.idxen = ins.flag("offen"), ins.flag("idxen")
        self.by_index = self.idxen or target.gpu.major != 9
        self.vaddr = vaddr.index if vaddr.kind == "v" else -1
        self.soffset = scalar_offset(soffset)
        self.offset = ins.number("offset")
        self.nbytes = nbytes
        self._room: np.ndarray = np.zeros((1, 1), np.int64)
        if ins.flag("tfe"):
            raise UnknownInstructionError("tfe, the register that says which lanes failed, is not implemented")
        #: bits of the second word that say that elements are swizzled; CDNA 5 has other fields there
        self.swizzles = U32(0 if self.wide else 1 << 31 if target.gpu.major == 9 else 3 << 30)

    def __call__(self, g: Waves) -> tuple[np.ndarray, np.ndarray]:
        """Addresses [wave, lane], and which lanes are within the resource's range and active."""
        if (swizzled := g.s[self.resource + 1] & self.swizzles).any():
            raise SwizzledFault("a buffer of swizzled elements is not implemented", int(np.flatnonzero(swizzled)[0]), 0)
        stride, records = (x.astype(np.int64)[:, None] for x in resource_extent(g, self.resource, self.wide))
        if self.soffset.kind == "s":
            scalar = g.sv[self.soffset.index].astype(np.int64)
        else:
            scalar = np.int64(self.soffset.value)
        index = g.u[self.vaddr].astype(np.int64) if self.idxen else np.zeros((1, 1), np.int64)
        n = self.vaddr + int(self.idxen)
        within = g.u[n].astype(np.int64) + self.offset if self.offen else np.full((1, 1), self.offset)
        # RDNA 3 ISA guide, "Buffer range checking": structured by index where there is a stride, else raw by offset.
        # On gfx9 records are bytes for an instruction without an index, too (AMD's PAL, gfx9 `CalcNumRecords`).
        # The offset is no sum of 32 bits: one that would come back into range by going round is out of it (LLVM,
        # SITargetLowering::splitBufferOffsets and pull request 169230).
        structured = (stride > 0) & self.by_index
        whole = np.where(index < records, np.int64(self.nbytes), 0)
        self._room = np.where(structured, whole, records - scalar - within)
        inside = self._room >= self.nbytes
        address = self._base(g)[:, None] + scalar + within + index * stride
        shape = (g.count, g.lanes)
        inside = np.broadcast_to(inside, shape)
        return np.broadcast_to(address, shape), inside if g.exec is None else inside & g.exec

    def words_inside(self) -> np.ndarray:
        """How many whole words of 4 bytes of the last access are in range: each is checked for itself.

        Source: LLVM's pull request 134734 (what an access across the end of a buffer does); Vulkan drivers for these
        GPUs promise robust accesses by 4 bytes.
        """
        return np.clip(self._room >> 2, 0, self.nbytes >> 2)

    def straddles(self) -> bool:
        """Whether the end of the buffer lies within what some lane accesses."""
        words = self.words_inside()
        return self.nbytes > 4 and bool(((words > 0) & (words < self.nbytes >> 2)).any())

    def gather_by_words(self, g: Waves, address: np.ndarray) -> np.ndarray:
        """What a load gets, [wave, lane, word], 0 where a word is out of range."""
        found, whole = np.zeros((*address.shape, self.nbytes >> 2), U32), self.words_inside()
        for k in range(self.nbytes >> 2):
            inside = (whole > k) & g.active()
            if inside.any():
                words = g.memory.gather(g.memory.check(address + 4 * k, 4, inside), 4)[..., 0]
                found[..., k] = np.where(inside, words, U32(0))
        return found

    def _base(self, g: Waves) -> np.ndarray:
        """The address in the resource, of 48 bits or (CDNA 5) 57, int64 [wave]."""
        low, high = g.s[self.resource], g.s[self.resource + 1]
        return low.astype(np.int64) | (high.astype(np.int64) & (0x1FFFFFF if self.wide else 0xFFFF)) << 32

    def in_scratch(self, g: Waves) -> bool:
        """Whether the resource is that of scratch."""
        return not self.wide and bool((g.s[self.resource + 3] & U32(_ADD_LANE)).any())

    def scratch_bytes(self, g: Waves) -> np.ndarray:
        """The byte of its own scratch that each lane accesses, int64 [wave, lane]."""
        size = 0 if g.private is None else g.private.shape[2]
        pointer = g.s[self.soffset.index] if self.soffset.kind == "s" else np.int64(self.soffset.value)
        first = self._base(g) - _SCRATCH_BASE - scratch_place(g.ids, size) + pointer
        # The sum has 32 bits: LLVM takes negative registers with an offset behind them where nothing checks the range.
        within = g.addresses[self.vaddr] + U32(self.offset) if self.offen else np.full((1, 1), U32(self.offset))
        return np.broadcast_to((first // 64)[:, None] + within, (g.count, g.lanes))


class BufferAccess:
    """A buffer load or store; calling it executes it."""

    def __init__(self, ins: Instruction, target: Target):
        access = self.access = Access(ins.name.split("_", 1)[1], target.gpu)
        data, vaddr, resource, soffset = ins.operands
        if data.half:
            access.half = data.half
        self.where, self.data = Buffer(ins, target, vaddr, resource, soffset, access.nbytes), data.index

    def __call__(self, g: Waves) -> None:
        """Raises AccessFault where the memory refuses."""
        access, n, nbytes = self.access, self.data, self.access.nbytes
        if self.where.in_scratch(g):
            at = check_private(g, self.where.scratch_bytes(g), nbytes, g.exec)
            if access.load:
                access.put(g, n, gather_private(g, at, nbytes))
            else:
                scatter_private(g, at, access.get(g, n), nbytes, g.exec)
            return
        address, inside = self.where(g)
        if not inside.all() and self.where.straddles():
            self._by_words(g, address)
            return
        at = g.memory.check(address, nbytes, None if inside.all() else inside)
        if not access.load:
            g.memory.scatter(at, access.get(g, n), nbytes, inside)
            return
        # Lanes out of range read 0; nothing is fetched for them, wherever their address points.
        some = inside.any()
        words = g.memory.gather(at, nbytes) if some else np.zeros((g.count, g.lanes, max(nbytes // 4, 1)), U32)
        access.put(g, n, words if inside.all() else np.where(inside[..., None], words, U32(0)))

    def _by_words(self, g: Waves, address: np.ndarray) -> None:
        """Where the end of the buffer lies within an access."""
        if self.access.load:
            self.access.put(g, self.data, self.where.gather_by_words(g, address))
            return
        whole = self.where.words_inside()
        for k in range(self.access.nbytes >> 2):
            inside = (whole > k) & g.active()
            at = g.memory.check(address + 4 * k, 4, inside)
            g.memory.scatter(at, g.u[self.data + k][..., None], 4, inside)


def _build(ins: Instruction, target: Target) -> Step:
    return BufferAccess(ins, target)


def find(name: str) -> Builder | None:
    """The builder of a buffer load or store."""
    prefix, _, tail = name.partition("_")
    return _build if prefix == "buffer" and is_access(tail) else None

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
_ANYTHING = 1 << 62  #: bytes left of a buffer whose end nobody checks
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
    """An access that goes on into another element of a swizzled resource."""

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
        self.major = target.gpu.major
        #: where the lane counts as an index, the format of a resource that needs none holds more bits of the stride
        self.longer = self.major == 9 and "format" not in ins.name  # (LLVM, SIInstrInfo::getScratchRsrcWords23)
        self.vaddr = vaddr.index if vaddr.kind == "v" else -1
        self.soffset = scalar_offset(soffset)
        self.offset = ins.number("offset")
        self.nbytes = nbytes
        self._room: np.ndarray = np.zeros((1, 1), np.int64)
        if ins.flag("tfe"):
            raise UnknownInstructionError("tfe, the register that says which lanes failed, is not implemented")

    def __call__(self, g: Waves) -> tuple[np.ndarray, np.ndarray]:
        """Addresses [wave, lane], and which lanes are within the resource's range and active."""
        stride, records = (x.astype(np.int64)[:, None] for x in resource_extent(g, self.resource, self.wide))
        if self.wide:  # scalar loads do not look at the scale
            stride = stride * np.array([1, 4, 8, 32], np.int64)[g.sv[self.resource + 3] >> U32(26) & U32(3)]
        scalar = np.int64(self.soffset.value) if self.soffset.kind == "const" else self._scalar(g)
        element = self._element(g)
        index = g.u[self.vaddr].astype(np.int64) if self.idxen else np.zeros((1, 1), np.int64)
        if not self.wide and (g.s[self.resource + 3] & U32(_ADD_LANE)).any():
            last = g.sv[self.resource + 3]
            index = index + np.where(last & U32(_ADD_LANE), np.arange(g.lanes), 0)
            if self.longer:
                stride = stride | np.where(last & U32(_ADD_LANE), last.astype(np.int64) >> 15 & 15, 0) << 14
        n = self.vaddr + int(self.idxen)
        within = g.u[n].astype(np.int64) + self.offset if self.offen else np.full((1, 1), self.offset)
        swizzled = element > 0
        self._room = self._bytes_left(g, index, within, scalar, stride, records, swizzled)
        inside = self._room >= self.nbytes
        offset = scalar + within + index * stride
        if swizzled.any():
            offset = np.where(swizzled, self._swizzled(g, index, within, scalar, stride, element, inside), offset)
        shape = (g.count, g.lanes)
        inside = np.broadcast_to(inside, shape)
        address = self._base(g)[:, None] + offset
        return np.broadcast_to(address, shape), inside if g.exec is None else inside & g.exec

    def _scalar(self, g: Waves) -> np.ndarray:
        return g.sv[self.soffset.index].astype(np.int64)

    def _bytes_left(self, g: Waves, index, within, scalar, stride, records, swizzled) -> np.ndarray:
        """How many bytes of the buffer, or of one record, there are from where each lane's access begins.

        The offset is no sum of 32 bits: one that would come back into range by going round is out of it (LLVM,
        SITargetLowering::splitBufferOffsets and pull request 169230).
        """
        of_record = stride - within
        by_index = np.where(index < records, np.int64(self.nbytes), 0)
        if self.wide:  # as rocjitsu has it: records are bytes, a bit asks for the record's end too
            left = records - scalar - within - index * stride
            record_too = g.sv[self.resource + 3] >> U32(29) & U32(1) == 1
            left = np.where(record_too, np.minimum(left, of_record - scalar), left)
            return np.where(swizzled, _ANYTHING, left)
        raw = records - scalar - within
        if self.major == 9:
            # Records are bytes for an instruction without an index (AMD's PAL, gfx9 `CalcNumRecords`).
            return np.where((stride > 0) & (self.idxen | swizzled), by_index, raw)
        # RDNA 3 ISA guide, OOB_SELECT; bytes are counted from the record's begin (rocjitsu, by gfx11 and gfx12). What
        # the guide asks for where there is no stride would leave 0 no byte to access: raw.
        mode = g.sv[self.resource + 3] >> U32(28) & U32(3)
        structured = np.where(index < records, of_record, 0)
        by_offset = np.where((stride > 0) & (swizzled | (mode == 0)), structured, raw)
        unchecked = np.where(records > 0, np.int64(_ANYTHING), 0)
        return np.where(mode == 1, by_index, np.where(mode == 2, unchecked, by_offset))

    def _element(self, g: Waves) -> np.ndarray:
        """The bytes of an element of a swizzled resource, 0 where it is not swizzled, [wave, 1]."""
        if self.wide:
            return (g.sv[self.resource + 3] >> U32(28) & U32(1)).astype(np.int64) * 16
        bits = g.sv[self.resource + 1] >> U32(30)
        return np.array([0, 0, 4, 4] if self.major == 9 else [0, 4, 8, 16], np.int64)[bits]

    def _swizzled(self, g: Waves, index, within, scalar, stride, element, inside) -> np.ndarray:
        """The byte that an access to a swizzled resource begins at: elements of neighbouring records lie side by side
        (RDNA 3 and CDNA 3 ISA guides, "Buffer addressing"). CDNA 5 counts the scalar offset within the record.
        """
        element = np.where(element == 0, np.int64(1), element)
        together = np.int64(32) if self.wide else np.int64(8) << (g.sv[self.resource + 3] >> U32(21) & U32(3))
        if self.wide:
            within, scalar = within + scalar & (1 << 45) - 1, np.int64(0)
        crossing = (element > 1) & (within % element + self.nbytes > element) & inside & g.active()
        if crossing.any():
            wave, lane = np.argwhere(crossing)[0]
            text = "an access that goes on into the next element of a swizzled buffer is not implemented"
            raise SwizzledFault(text, int(wave), int(lane))
        group, rest = index // together, index % together
        return scalar + (group * stride + within // element * element) * together + rest * element + within % element

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
        if self.major != 9 or not (g.s[self.resource + 3] & U32(_ADD_LANE)).any():
            return False
        return bool((self._base(g) >> 40 == _SCRATCH_BASE >> 40).any())

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

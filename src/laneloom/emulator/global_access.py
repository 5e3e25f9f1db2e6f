"""Global and scalar loads and stores, and what loads and stores of every kind share."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..gpu import Gpu
from ..isa.parse import NULL, Instruction, Operand
from .alu import Builder, Step, Target
from .state import U32, Waves

Addresses = Callable[[Waves], np.ndarray]  #: int64 [wave, lane]

_ACCESS = re.compile(r"(load|store)_(addtid_|d16_hi_|d16_)?([bui])(8|16|32|64|96|128)$")


def clears_other_half(gpu: Gpu) -> bool:
    """Whether a load into one half of a register writes zeros to the other."""
    return gpu.major == 9


class Access:
    """What a load or store mnemonic's tail means: bytes per lane, extension, and which half it touches.

    With the ECC of CDNA's memories a load into one half writes zeros to the other (LLVM's `d16PreservesUnusedBits`,
    review D112635), which Tensile's kernels rely on; RDNA leaves it as it was.
    """

    def __init__(self, tail: str, gpu: Gpu | None = None):
        match = _ACCESS.fullmatch(tail)
        if not match:
            raise UnknownInstructionError(tail)
        self.load = match[1] == "load"
        self.nbytes = int(match[4]) // 8
        self.signed = match[3] == "i"
        self.half = {"d16_hi_": "h", "d16_": "l"}.get(match[2] or "", "")
        self.clears = gpu is not None and clears_other_half(gpu)

    def put(self, g: Waves, n: int, words: np.ndarray) -> None:
        """Write loaded words [wave, lane, words] to VGPRs from n on."""
        if self.nbytes >= 4:
            for k in range(self.nbytes // 4):
                g.put(n + k, words[..., k])
            return
        value = extend(words[..., 0], self.nbytes, self.signed)
        if not self.half:
            g.put(n, value)
            return
        if self.clears:
            g.put(n, value << U32(16) if self.half == "h" else value & U32(0xFFFF))
            return
        part = g.h[n][..., int(self.half == "h")]
        if g.exec is None:
            part[...] = value
        else:
            np.copyto(part, value.astype(np.uint16), where=g.exec)

    def get(self, g: Waves, n: int) -> np.ndarray:
        """The words [wave, lane, words] to store from VGPRs n on."""
        if self.nbytes > 4:
            return g.V[n : n + self.nbytes // 4].transpose(1, 2, 0)
        value = g.u[n] >> U32(16) if self.half == "h" else g.u[n]
        return value[..., None]


def extend(value: np.ndarray, nbytes: int, signed: bool) -> np.ndarray:
    """A zero-extended 8- or 16-bit value, sign-extended to 32 bits where `signed`."""
    if not signed:
        return value
    shift = np.int32(32 - 8 * nbytes)
    return ((value.view(np.int32) << shift) >> shift).view(U32)


def signed_offset(ins: Instruction) -> int:
    """The instruction's immediate byte offset."""
    return ins.number("offset")


def global_addresses(ins: Instruction, vaddr: Operand, saddr: Operand, target: Target, nbytes: int = 1) -> Addresses:
    """A 64-bit VGPR pair, or an SGPR pair plus a 32-bit VGPR offset; plus the immediate.

    The VGPR offset is unsigned, but on CDNA 5 signed, where `scale_offset` multiplies it by the bytes of the access.
    """
    offset = signed_offset(ins)
    if saddr.kind == "s" and saddr.index != NULL:
        base = saddr.index
        if vaddr.kind != "v":
            return lambda g: np.broadcast_to((g.scalar64(base).view(np.int64) + offset)[:, None], (g.count, g.lanes))
        n = vaddr.index
        if target.gpu.is_cdna5:
            scale = np.int64(nbytes if ins.flag("scale_offset") else 1)
            return lambda g: g.i[n] * scale + (g.scalar64(base).view(np.int64) + offset)[:, None]
        return lambda g: g.u[n] + (g.scalar64(base).view(np.int64) + offset)[:, None]
    n = vaddr.index
    if offset == 0:
        return lambda g: g.pair(n).view(np.int64)
    return lambda g: g.pair(n).view(np.int64) + offset


def _word_of_lane(ins: Instruction, saddr: Operand, target: Target) -> Addresses:
    base = global_addresses(ins, Operand("symbol", value="off"), saddr, target)
    places = 4 * np.arange(target.lanes)
    return lambda g: base(g) + places


def _build_global(ins: Instruction, target: Target) -> Step:
    access = Access(ins.name.split("_", 1)[1], target.gpu)
    nbytes = access.nbytes
    if "_addtid_" in ins.name:
        data, saddr = ins.operands
        address = _word_of_lane(ins, saddr, target)
    else:
        data, vaddr = ins.operands[:2] if access.load else ins.operands[1::-1]
        address = global_addresses(ins, vaddr, ins.operands[2], target, nbytes)
    n = data.index
    if data.half:
        access.half = data.half
    if access.load:

        def load(g: Waves) -> None:
            at = g.memory.check(address(g), nbytes, g.exec)
            access.put(g, n, g.memory.gather(at, nbytes))

        return load

    def store(g: Waves) -> None:
        at = g.memory.check(address(g), nbytes, g.exec)
        g.memory.scatter(at, access.get(g, n), nbytes, g.exec)

    return store


def resource_extent(g: Waves, n: int, wide: bool) -> tuple[np.ndarray, np.ndarray]:
    """Stride and records of the resource in s[n:n+3], [wave]. wide: CDNA 5's, as LLVM lowers
    `llvm.amdgcn.make.buffer.rsrc`."""
    one, two, three = (g.s[n + k] for k in (1, 2, 3))
    if not wide:
        return one >> U32(16) & U32(0x3FFF), two
    low, middle, high = (x.astype(np.int64) for x in (one >> U32(25), two, three & U32(0x3F)))
    return three >> U32(12) & U32(0x3FFF), low | middle << 7 | high << 39


_SCALAR = re.compile(r"s_(buffer_|scratch_)?load_(?:([bui])(8|16|32|64|96|128|256|512)|dword(?:x(\d+))?)$")


class ScalarLoad:
    """s_load, s_buffer_load and gfx9's s_scratch_load, whose offset in a register counts 64 bytes; calling it executes
    it.

    Without a load of 3 words (gfx11) LLVM reads 3 words from a multiple of 8 bytes by a load of 4. The fourth shares 8
    aligned bytes with the third, so no GPU faults on it, and nobody uses it where it lies outside the memory.
    """

    def __init__(self, ins: Instruction, target: Target):
        match = _SCALAR.match(ins.name)
        if not match:
            raise UnknownInstructionError(ins.name)
        self.nbytes = int(match[3]) // 8 if match[3] else 4 * int(match[4] or 1)
        self.signed = match[2] == "i"
        bits = 64 if match[1] != "buffer_" else 57 if target.gpu.is_cdna5 else 48  # of a buffer's resource
        self.buffer, self.wide = match[1] == "buffer_", target.gpu.is_cdna5
        self.mask = np.int64(-1) if bits == 64 else np.int64((1 << bits) - 1)
        self.destination, self.base, self.offset = ins.operands
        self.extra = ins.number("offset")
        steps = 64 if match[1] == "scratch_" else self.nbytes if ins.flag("scale_offset") else 1
        self.scale = np.int64(steps)  # of an offset in a register

    def _within(self, g: Waves) -> np.ndarray:
        """The offset from the base, int64 [wave] or one for all."""
        offset = self.offset
        more = g.s[offset.index].astype(np.int64) * self.scale if offset.kind == "s" else np.int64(offset.value)
        return np.asarray(more + self.extra)

    def address(self, g: Waves) -> np.ndarray:
        """int64 [wave]"""
        address = (g.scalar64(self.base.index).view(np.int64) & self.mask) + self._within(g)
        return address & ~np.int64(3) if self.nbytes >= 4 else address

    def words_inside(self, g: Waves) -> np.ndarray | None:
        """Of a buffer: how many of the words are within its records, [wave]; None where all are."""
        if not self.buffer:
            return None
        stride, records = (x.astype(np.int64) for x in resource_extent(g, self.base.index, self.wide))
        room = np.where(stride > 0, stride * records, records) - self._within(g)
        size = min(self.nbytes, 4)
        inside = np.clip(room // size, 0, self.nbytes // size)
        return None if (inside == self.nbytes // size).all() else inside

    def _by_words(self, g: Waves, address: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """What a buffer gives, [wave, word]: 0 beyond its records."""
        size = min(self.nbytes, 4)
        words = np.zeros((g.count, self.nbytes // size), U32)
        for k in range(self.nbytes // size):
            part = inside > k
            if part.any():
                at = g.memory.check(address[:, None] + size * k, size, part[:, None])
                words[part, k] = g.memory.gather(at, size)[part, 0, 0]
        return words

    def lacks_last(self, g: Waves, address: np.ndarray) -> np.ndarray | None:
        """The waves whose fourth word alone lies outside the memory; None where there are none."""
        if self.nbytes != 16 or (inside := g.memory.holds(address, 16)).all():
            return None
        lacks = ~inside & (address & 7 == 0) & g.memory.holds(address, 12)
        return lacks if lacks.any() else None

    def __call__(self, g: Waves) -> None:
        address = self.address(g)
        lacks, inside = self.lacks_last(g, address), self.words_inside(g)
        if inside is not None:
            words = self._by_words(g, address, inside)
        elif lacks is not None:
            words = np.full((g.count, 4), 0xFFFFFFFF, U32)
            for part, nbytes in ((lacks, 12), (~lacks, 16)):
                at = g.memory.check(address[:, None], nbytes, part[:, None])[part]
                words[part, : nbytes // 4] = g.memory.gather(at, nbytes)[:, 0]
        else:
            words = g.memory.gather(g.memory.check(address[:, None], self.nbytes, None), self.nbytes)[:, 0]
        if self.nbytes < 4:
            g.set_scalar(self.destination.index, extend(words[:, 0], self.nbytes, self.signed))
            return
        for k in range(self.nbytes // 4):
            g.set_scalar(self.destination.index + k, words[:, k])


def find(name: str) -> Builder | None:
    """The builder of a global or scalar memory instruction."""
    if _SCALAR.match(name):
        return lambda ins, target: ScalarLoad(ins, target)
    prefix, _, tail = name.partition("_")
    return _build_global if prefix == "global" and is_access(tail) else None


def is_access(tail: str) -> bool:
    """Whether this is a load's or store's name behind the prefix that says which memory."""
    return _ACCESS.fullmatch(tail) is not None



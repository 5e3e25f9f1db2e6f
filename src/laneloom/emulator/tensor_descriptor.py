"""D#, the descriptor of CDNA 5's Tensor Data Mover: what its registers say, and how Triton's host code fills them.

Groups 0 to 3 have 4, 8, 4 and 4 registers. Dimension 0 is the innermost, of stride 1.
Source of the fields: Triton's `createTDMDescriptor` and `encodeTDMDescriptor`; LLVM MLIR's AMDGPUToROCDL; rocjitsu
(ROCm/rocm-systems), which follows the CDNA 5 ISA guide, 10.11; of iteration, notes on 10.11.3.1 of that guide.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_GROUPS = (4, 8, 4, 4)  #: registers
#: (group, first bit, bits) of the tensor's sizes, the tile's, and the strides of dimensions 1 to 4
_TENSOR = ((1, 48, 32), (1, 80, 32), (2, 0, 32), (2, 32, 32), (3, 48, 32))
_TILE = ((1, 112, 16), (1, 128, 16), (1, 144, 16), (2, 112, 16), (3, 80, 16))
_STRIDES = ((1, 160, 48), (1, 208, 48), (2, 64, 48), (3, 0, 48))
#: of a descriptor that iterates, in place of dimensions 3 and 4: repeats beyond the first, and elements between them
_REPEATS, _LDS_STEP, _STEP = (2, 112, 16), (2, 32, 32), (2, 64, 48)


def _field(words: list[int], bit: int, width: int) -> int:
    """`width` bits of a group of registers, from `bit` on."""
    whole = sum(word << 32 * k for k, word in enumerate(words))
    return whole >> bit & ((1 << width) - 1)


@dataclass(frozen=True)
class Descriptor:
    """What the registers of one wave say."""

    active: bool
    lds: int  #: first byte in LDS
    address: int  #: of the tile's first element
    nbytes: int  #: of an element
    tensor: tuple[int, ...]  #: what is left of the tensor from the tile's first element on, innermost first
    tile: tuple[int, ...]
    strides: tuple[int, ...]  #: in elements; the first is 1
    rows: tuple[int, ...] | None  #: of a gather or scatter
    pad_every: int  #: bytes; 0: no padding
    pad: int  #: bytes
    barrier: int | None  #: byte in LDS of a barrier at which the transfer arrives
    receivers: int  #: ranks of the workgroups of the cluster that a load delivers to, as a mask; 0: the own
    lds_step: int | None = None  #: bytes in LDS from one repeat, which is the last dimension, to the next

    def coordinates(self) -> list[np.ndarray]:
        """Of every element of the tile, innermost first in the order of LDS, its place along each dimension."""
        number = np.arange(int(np.prod(self.tile, dtype=np.int64)))
        found = []
        for size in self.tile:
            found.append(number % size)
            number = number // size
        if self.rows is not None:
            found[1] = np.array(self.rows, np.int64)[found[1]]
        return found

    def in_lds(self) -> np.ndarray:
        """Of every element of the tile, its first byte in LDS; only loads leave gaps there."""
        total = int(np.prod(self.tile, dtype=np.int64))
        of_one = total // self.tile[-1] if self.lds_step is not None else total
        repeat, number = np.divmod(np.arange(total, dtype=np.int64), max(of_one, 1))
        byte = self.nbytes * number
        if self.pad_every:
            byte += byte // self.pad_every * self.pad
        return self.lds + byte + repeat * (self.lds_step or 0)


def read_descriptor(groups: list[list[int]], load: bool = True) -> Descriptor:
    """What the registers say to a load, or to a store, which leaves no gaps in LDS and serves one workgroup."""
    g0, g1, g2, g3 = groups
    gathers, wide_rows = bool(g0[0] >> 31), bool(g0[0] >> 30 & 1)
    nbytes = 1 << _field(g1, 16, 2)
    tensor, tile, strides = (
        [_field(groups[group], bit, width) for group, bit, width in fields] for fields in (_TENSOR, _TILE, _STRIDES)
    )
    strides = [1, *strides]
    rows = None
    if gathers:
        tile, tensor, strides = tile[:2], tensor[:2], strides[:2]
        listed = g2 + g3
        rows = tuple(listed if wide_rows else [word >> s & 0xFFFF for word in listed for s in (0, 16)])[: tile[1]]
    iterates = not gathers and bool(_field(g1, 19, 1))
    tile = tile[: 3 if iterates else None]
    rank = max((d + 1 for d, size in enumerate(tile) if size), default=1)
    tile = [size or (0 if d == 0 else 1) for d, size in enumerate(tile[:rank])]  # 0 of the innermost: nothing moves
    lds_step = None
    if iterates:  # repeats are one more dimension, which the tensor's sizes do not bound
        more, lds_step, step = (_field(groups[group], bit, width) for group, bit, width in (_REPEATS, _LDS_STEP, _STEP))
        for values, last in ((tile, more + 1), (tensor, more + 1), (strides, step)):
            values[rank:] = [last]
        rank += 1
    padded = load and bool(_field(g1, 20, 1))
    return Descriptor(
        active=bool(g0[0] & 3),
        lds=g0[1],
        address=g0[2] | (g0[3] & 0x1FFFFFF) << 32,
        nbytes=nbytes,
        tensor=tuple(tensor[:rank]),
        tile=tuple(tile),
        strides=tuple(strides[:rank]),
        rows=rows,
        pad_every=4 << _field(g1, 22, 3) + 1 if padded else 0,
        pad=4 * (_field(g1, 25, 7) + 1) if padded else 0,
        barrier=8 * _field(g1, 32, 16) if _field(g1, 18, 1) else None,
        receivers=_field(g1, 0, 16) if load else 0,
        lds_step=None if lds_step is None else lds_step * nbytes,
    )


def host_descriptor(
    address: int, shape: Sequence[int], strides: Sequence[int], block: Sequence[int], bits: int, warps: int,
    padding: tuple[int, int],
) -> bytes:
    """The descriptor of a whole tensor that Triton's host code hands a kernel; sizes and strides outermost first.

    block: of which each of `warps` moves a part; bits: of an element; padding: elements between gaps, and of a gap.
    """
    groups = [[0] * n for n in _GROUPS]

    def put(place: tuple[int, int, int], value: int) -> None:
        group, bit, width = place
        for k in range(width):
            groups[group][(bit + k) // 32] |= (value >> k & 1) << (bit + k) % 32

    every, gap = (n * bits // 32 for n in padding)
    put((0, 0, 1), 1)
    put((0, 64, 57), address)
    put((0, 126, 2), 2)
    put((1, 16, 2), (bits // 8).bit_length() - 1)
    if every and gap:
        put((1, 20, 1), 1)
        put((1, 22, 3), every.bit_length() - 2)
        put((1, 25, 7), gap - 1)
    for places, values in (
        (_TENSOR, shape[::-1]), (_TILE, _per_warp(block, warps)[::-1]), (_STRIDES, strides[-2::-1]),
    ):  # fmt: skip
        for place, value in zip(places, values, strict=False):
            put(place, value)
    used = groups if len(shape) > 2 else groups[:2]
    return b"".join(struct.pack(f"<{len(group)}I", *group) for group in used)


def _per_warp(block: Sequence[int], warps: int) -> list[int]:
    """What one warp moves: they are spread along the outermost dimension, then the next (Triton, TDMCommon.h)."""
    if len(block) == 1:
        return [-(-block[0] // warps)]
    found = []
    for size in block:
        along = 1
        while warps > 1 and along * 2 <= size:
            along, warps = along * 2, warps // 2
        found.append(-(-size // along))
    return found

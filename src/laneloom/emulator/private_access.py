"""Scratch: the private memory of each lane, by scratch instructions and by flat ones."""

from __future__ import annotations

import numpy as np

from ..isa.parse import NULL, Instruction, Operand
from .alu import Builder, Step, Target
from .global_access import Access, Addresses, is_access, signed_offset
from .memory import AccessFault
from .state import U32, Waves


def check_private(g: Waves, at: np.ndarray, nbytes: int, active: np.ndarray | None) -> np.ndarray:
    """Byte offsets int64 [wave, lane], 0 for lanes that take no part. Raises AccessFault outside of the allocation."""
    if g.private is None:
        raise AccessFault("the kernel uses scratch memory that its descriptor does not declare", 0, 0)
    size = g.private.shape[2]
    at = np.broadcast_to(at, (g.count, g.lanes))
    if active is not None:
        at = np.where(active, at, 0)
    bad = (at < 0) | (at + nbytes > size)
    if active is not None:
        bad &= active
    if bad.any():
        wave, lane = (int(x[0]) for x in np.nonzero(bad))
        place = f"{nbytes}-byte scratch access at byte {int(at[wave, lane])}"
        raise AccessFault(f"{place}, outside the {size} bytes that the kernel declares for each lane", wave, lane)
    return at


def gather_private(g: Waves, at: np.ndarray, nbytes: int, owners: np.ndarray | None = None) -> np.ndarray:
    """`nbytes` per lane as uint32 [wave, lane, words]; 1 and 2 bytes zero-extended.

    owners: the lane of the wave whose scratch each lane means [wave, lane]; None: its own.
    """
    assert g.private is not None
    index = at[..., None] + np.arange(nbytes)
    rows, columns = np.arange(g.count)[:, None, None], np.arange(g.lanes)[None, :, None]
    columns = columns if owners is None else owners[..., None]
    padded = np.zeros((g.count, g.lanes, max(nbytes, 4)), np.uint8)
    padded[..., :nbytes] = g.private[rows, columns, index]
    return padded.view(U32)


def scatter_private(
    g: Waves,
    at: np.ndarray,
    words: np.ndarray,
    nbytes: int,
    active: np.ndarray | None,
    owners: np.ndarray | None = None,
) -> None:
    """Store per lane what `gather_private` would load."""
    assert g.private is not None
    octets = np.ascontiguousarray(words).view(np.uint8)[..., :nbytes]
    index = at[..., None] + np.arange(nbytes)
    if active is None and owners is None:
        g.private[np.arange(g.count)[:, None, None], np.arange(g.lanes)[None, :, None], index] = octets
    else:
        w, lane = np.nonzero(g.active() if active is None else active)
        whose = lane if owners is None else owners[w, lane]
        g.private[w[:, None], whose[:, None], index[w, lane]] = octets[w, lane]


def scratch_addresses(ins: Instruction, vaddr: Operand, saddr: Operand, target: Target, nbytes: int = 1) -> Addresses:
    """The byte of its own scratch that each lane means: VGPR + SGPR + immediate, the VGPR signed since RDNA 4.

    CDNA 5's `scale_offset` multiplies the VGPR by the bytes of the access, in 32 bits, and compilers count on that.
    """
    offset, scale = signed_offset(ins), nbytes if ins.flag("scale_offset") else int(target.gpu.major == 12)

    def place(g: Waves) -> np.ndarray:
        at = np.full((g.count, g.lanes), offset, np.int64)
        if vaddr.kind == "v" and scale:
            at = at + (g.addresses[vaddr.index] * U32(scale)).view(np.int32)
        elif vaddr.kind == "v":
            at = at + g.addresses[vaddr.index]
        if saddr.kind == "s" and saddr.index != NULL:
            at = at + g.s[saddr.index].view(np.int32)[:, None]
        return at

    return place


def _build_scratch(ins: Instruction, target: Target) -> Step:
    access = Access(ins.name.split("_", 1)[1], target.gpu)
    nbytes = access.nbytes
    data, vaddr, saddr = ins.operands if access.load else (ins.operands[1], ins.operands[0], ins.operands[2])
    if data.half:
        access.half = data.half
    place, n = scratch_addresses(ins, vaddr, saddr, target, nbytes), data.index

    def step(g: Waves) -> None:
        at = check_private(g, place(g), nbytes, g.exec)
        if access.load:
            access.put(g, n, gather_private(g, at, nbytes))
        else:
            scatter_private(g, at, access.get(g, n), nbytes, g.exec)

    return step


def find(name: str) -> Builder | None:
    """The builder of a scratch instruction."""
    prefix, _, tail = name.partition("_")
    return _build_scratch if prefix == "scratch" and is_access(tail) else None

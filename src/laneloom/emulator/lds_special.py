"""The rarer LDS accesses: exchanges of two places, counters that a wave takes from, addresses made of lane numbers, and
CDNA 1's combinations of two places.

Source: RDNA 3, RDNA 4, CDNA 4 and Vega ISA guides, "LDS Instructions" (pseudo-code of each).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import M0, Instruction
from .alu import Builder, Step, Target
from .atomics import operation_of
from .global_access import Access
from .lds_access import addresses
from .memory import AccessFault
from .state import U32, Waves

_EXCHANGE = re.compile(r"ds_storexchg_2addr_(stride64_)?rtn_b(32|64)$")


def _turns(places: list[np.ndarray], active: np.ndarray) -> Iterator[np.ndarray]:
    """Masks of lanes that may go together: all at once where no place is touched twice, else one after another."""
    touched = np.concatenate([p[active] for p in places])
    if len(np.unique(touched)) == len(touched):
        yield active
        return
    for wave, lane in np.argwhere(active):
        one = np.zeros_like(active)
        one[wave, lane] = True
        yield one


def _build_exchange(ins: Instruction, target: Target) -> Step:
    """Two places exchanged with two registers, each lane's pair at once."""
    match = _EXCHANGE.match(ins.name)
    assert match
    access = Access(f"load_b{match[2]}")
    nbytes, words = access.nbytes, access.nbytes // 4
    unit = nbytes * (64 if match[1] else 1)
    offsets = (ins.number("offset0") * unit, ins.number("offset1") * unit)
    destination, address, *data = (o.index for o in ins.operands)

    def step(g: Waves) -> None:
        places = [g.lds.check(g.lds_base, addresses(g, address, o), nbytes, g.exec) for o in offsets]
        sent = [np.array(g.V[n : n + words].transpose(1, 2, 0)) for n in data]
        found = [np.zeros_like(x) for x in sent]
        if g.undefined_lds is not None:
            for k, at in enumerate(places):
                g.undefined_lds.exchange(g, at, nbytes, g.active(), destination + k * words)
        for lanes in _turns(places, g.active()):
            for k, at in enumerate(places):
                found[k][lanes] = g.lds.gather(at, nbytes)[lanes]
            for at, words_sent in zip(places, sent, strict=True):
                g.lds.scatter(at, words_sent, nbytes, lanes)
        for k, x in enumerate(found):
            access.put(g, destination + k * words, x)

    return step


def _build_conditional_exchange(ins: Instruction, target: Target) -> Step:
    """Two neighbouring words; each is replaced by the low 31 bits of its data where the data's top bit is set."""
    destination, address, data = (o.index for o in ins.operands)
    offset = ins.number("offset")

    def step(g: Waves) -> None:
        at = g.lds.check(g.lds_base, addresses(g, address, offset) & 0xFFF8, 8, g.exec)
        sent = np.array(g.V[data : data + 2].transpose(1, 2, 0))
        found = np.zeros_like(sent)
        if g.undefined_lds is not None:
            g.undefined_lds.combine(g, at, 8, g.active())
        for lanes in _turns([at], g.active()):
            old = g.lds.gather(at, 8)
            found[lanes] = old[lanes]
            new = np.where(sent >> U32(31) != 0, sent & U32(0x7FFFFFFF), old)
            g.lds.scatter(at, new, 8, lanes)
        for k in range(2):
            g.put(destination + k, found[..., k])

    return step


class UnclearBase(AccessFault):
    """A counter whose address may or may not have a part in M0."""

    error = UnknownInstructionError


def _build_count(ins: Instruction, target: Target) -> Step:
    """ds_append and ds_consume: one word of LDS grows or shrinks by the number of active lanes; each gets the old one.

    On gfx11 the high half of M0 is added to the offset. LLVM puts the address of LDS into the low half, on every
    generation; no guide says that it counts, so code that relies on it is refused.
    """
    destination, offset = ins.operands[0].index, ins.number("offset")
    sign, based = (1 if ins.name == "ds_append" else -1), target.gpu.major == 11

    def step(g: Waves) -> None:
        active = g.active()
        if (unclear := (g.s[M0] & U32(0xFFFF)) != 0).any():
            text = f"whether {ins.name} adds M0[15:0], here not 0, to its offset is not documented"
            raise UnclearBase(text, int(np.argmax(unclear)), 0)
        base = g.s[M0] >> U32(16) if based else np.zeros(g.count, U32)
        at = np.broadcast_to(base.astype(np.int64)[:, None] + offset, active.shape)
        at = g.lds.check(g.lds_base, at, 4, None)
        found = np.zeros((g.count, 1), U32)
        if g.undefined_lds is not None:
            g.undefined_lds.combine(g, at, 4, active)
        first = np.zeros(g.lanes, bool)
        first[0] = True
        for wave in np.flatnonzero(active.any(axis=1)):  # one wave after another: they may share the word
            found[wave] = g.lds.gather(at, 4)[wave, 0]
            new = found[wave] + U32(sign * int(active[wave].sum()) & 0xFFFFFFFF)
            turn = np.zeros_like(active)
            turn[wave] = first
            g.lds.scatter(at, np.broadcast_to(new, (*active.shape, 1)), 4, turn)
        g.put(destination, np.broadcast_to(found, active.shape))

    return step


def _build_by_lane(ins: Instruction, target: Target) -> Step:
    """ds_load_addtid and ds_store_addtid: address = M0[15:0] + offset + 4 x lane."""
    access = Access("load_b32" if "load" in ins.name else "store_b32")
    n, offset = ins.operands[0].index, ins.number("offset")

    def step(g: Waves) -> None:
        at = (g.s[M0] & U32(0xFFFF)).astype(np.int64)[:, None] + offset + 4 * np.arange(g.lanes)
        at = g.lds.check(g.lds_base, at, 4, g.exec)
        if access.load:
            access.put(g, n, g.lds.gather(at, 4))
        else:
            g.lds.scatter(at, access.get(g, n), 4, g.exec)

    return step


def _build_source_in_lds(ins: Instruction, target: Target) -> Step:
    """A place is combined with another, as many words behind it as the offset says: 15 bits with their sign."""
    match = _SOURCE_IN_LDS.match(ins.name)
    found = operation_of(match[1], match[2], int(match[3])) if match else None
    assert found
    combine, dtype = found
    size, offset = dtype.itemsize, ins.number("offset")
    if offset & 0x8000:
        raise UnknownInstructionError(f"{ins.mnemonic} with a distance in the address's upper half")
    address, distance = ins.operands[0].index, 4 * ((offset ^ 0x4000) - 0x4000)
    replaces = match is not None and match[1] == "swap"

    def step(g: Waves) -> None:
        active, there = g.active(), addresses(g, address, 0)
        to = g.lds.check_atomic(g.lds_base, there, size, g.exec)
        source = g.lds.check(g.lds_base, there + distance & 0xFFFFFFFF, size, g.exec)
        if g.undefined_lds is not None:
            for at in (source,) if replaces else (source, to):
                g.undefined_lds.combine(g, at, size, active)
            if replaces:
                g.undefined_lds.scatter(to, np.zeros((*to.shape, size // 4), U32), size, active)
        items = g.lds.view(size).view(dtype)
        for lanes in _turns([at + k for at in (to, source) for k in range(0, size, 4)], active):
            other = np.ascontiguousarray(g.lds.gather(source, size)[lanes]).view(dtype)[:, 0]
            index = to[lanes] // size
            items[index] = combine(items[index], other)
        g.lds.version += 1

    return step


_SOURCE_IN_LDS = re.compile(r"ds_(\w+)_src2_([uibf])(32|64)$")
_COMBINED = {
    "u": ("add", "sub", "rsub", "inc", "dec", "min", "max"), "i": ("min", "max"), "b": ("and", "or", "xor", "swap"),
    "f": ("min", "max"),
}  # fmt: skip
BUILDERS: dict[str, Builder] = {
    **{
        f"ds_storexchg_2addr_{stride}rtn_b{bits}": _build_exchange for stride in ("", "stride64_") for bits in (32, 64)
    },
    "ds_condxchg32_rtn_b64": _build_conditional_exchange,
    "ds_append": _build_count,
    "ds_consume": _build_count,
    "ds_load_addtid_b32": _build_by_lane,
    "ds_store_addtid_b32": _build_by_lane,
    **{
        f"ds_{name}_src2_{kind}{bits}": _build_source_in_lds
        for kind, names in _COMBINED.items() for name in names for bits in (32, 64)
    },
    "ds_add_src2_f32": _build_source_in_lds,
}


def find(name: str) -> Builder | None:
    """The builder of one of these instructions."""
    return BUILDERS.get(name)

"""How memory instructions spread undefined bits (strict mode): addresses and stored data must be defined.

LDS and scratch remember which of their bits nobody wrote; global memory counts as written.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ..isa.parse import M0, NULL, Instruction, Operand
from ..isa.registers import Uses, is_scalar_load, mask_of, results, uses
from .alu import Step, Target
from .async_access import AsyncCopy
from .block_access import BlockAccess
from .buffer_access import Buffer, BufferAccess
from .flat_access import FlatAccess, FlatAddress
from .format_access import FormatAccess, data_bits
from .global_access import Access, ScalarLoad, clears_other_half
from .lds_direct import LdsLoad
from .scalar_stores import ScalarStore
from .shadow import Found, Shadow, bits_of
from .state import U32, Waves
from .tensor_access import TensorMove
from .undefined import Rule
from .undefined_swap import flat_swap_rule, is_swap, swap_rule

_STORES = "stores bits that nobody wrote"


def memory_rule(ins: Instruction, target: Target, step: Step) -> Rule:
    """What has to be defined for a memory instruction, and what is defined after it; called before it runs."""
    touched = uses(ins, target.lanes)
    if isinstance(step, LdsLoad):
        return _lds_load_rule(ins, step)
    if ins.name.startswith("scratch_"):
        return _scratch_rule(ins, touched, step)
    if is_swap(ins):
        return swap_rule(ins) if ins.name.startswith("ds_") else _flat_swap_rule(ins, target)
    if ins.name.startswith("ds_"):
        return _lds_rule(ins, target, touched, step)
    if isinstance(step, AsyncCopy):
        return _async_rule(ins, step)
    if isinstance(step, TensorMove):
        return _tensor_rule(ins, step)
    if isinstance(step, BlockAccess):
        return _block_rule(ins, step)
    if isinstance(step, FlatAccess):
        return _flat_rule(ins, touched, step)
    if isinstance(step, ScalarStore):
        return _scalar_store_rule(ins, touched)
    if is_scalar_load(ins):
        return _scalar_rule(ins, touched, step)
    if isinstance(step, FormatAccess):
        return _format_rule(ins, target, step)
    if isinstance(step, BufferAccess):
        return _buffer_rule(ins, target, touched, step)
    return _global_rule(ins, target, touched)


def _require(g: Waves, o: Operand, active: np.ndarray, text: str, parts: int = 0xFFFFFFFF) -> None:
    shadow: Shadow = g.shadow
    dirty = shadow.dirty_v if o.kind == "v" else shadow.dirty_s
    if not mask_of(o) & dirty:
        return
    for k in range(o.count):
        n = o.index + k
        if o.kind == "s" and n == NULL:
            continue
        row = shadow.V[n] if o.kind == "v" else shadow.S[n][:, None]
        bad = ((row & U32(parts)) != 0) & active
        if bad.any():
            wave, lane = (int(x[0]) for x in np.nonzero(bad))
            raise Found("undefined", f"{text} ({o.kind}{n})", int(g.ids[wave]), lane)


def _registers(ins: Instruction, data: Operand | None) -> list[Operand]:
    """The operands that make the address."""
    count = results(ins)
    return [o for k, o in enumerate(ins.operands) if k >= count and o is not data and o.kind in ("v", "s")]


# -- global memory -----------------------------------------------------------------------------------------------------


def _global_rule(ins: Instruction, target: Target, touched: Uses) -> Rule:
    """What is loaded is defined."""
    data, parts, half = _data_operand(ins), _stored_bits(ins), _loaded_part(ins, target)
    addresses = _registers(ins, data)
    buffer = Buffer(ins, target, *ins.operands[1:4], nbytes=4) if ins.name.startswith("buffer") else None
    wide = buffer is not None and "_store_" in ins.name and data is not None and data.count > 1
    if buffer is not None and wide and data is not None:
        buffer.nbytes = 4 * data.count

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        active = buffer(g)[1] if buffer is not None and data is not None else g.active()
        for o in addresses:
            _require(g, o, g.active(), "the address depends on a value that nobody wrote")
        if buffer is not None and wide and data is not None:  # each word that is in range
            for k in range(data.count):
                word = replace(data, index=data.index + k, count=1)
                _require(g, word, (buffer.words_inside() > k) & g.active(), _STORES)
        elif data is not None:
            _require(g, data, active, _STORES, parts)
        if half:
            n = ins.operands[0].index
            if shadow.dirty_v >> n & 1:
                shadow.put(g, n, U32(0), half)
        else:
            shadow.clean(g, touched)

    return follow


def _block_rule(ins: Instruction, block: BlockAccess) -> Rule:
    """As for one register of the block after another; those that M0 leaves out are neither read nor written."""
    addresses = [*_registers(ins, None if block.load else ins.operands[1]), Operand("s", M0)]

    def follow(g: Waves) -> None:
        for o in addresses:
            _require(g, o, g.active(), "the address depends on a value that nobody wrote")
        for k, active in block.parts(g):
            n = block.data + k
            if not block.load:
                _require(g, Operand("v", n), active, _STORES)
            elif g.shadow.dirty_v >> n & 1:
                g.shadow.put(g, n, np.where(active, U32(0), g.shadow.V[n]))

    return follow


def _data_operand(ins: Instruction) -> Operand | None:
    if "_load_" in ins.name:
        return None
    if ins.name.startswith("buffer") or "_addtid_" in ins.name:
        return ins.operands[0]
    return ins.operands[results(ins) + 1]


def _stored_bits(ins: Instruction) -> int:
    if "_store_" not in ins.name:
        return 0xFFFFFFFF
    access = Access(ins.name.split("_", 1)[1])
    low = (1 << 8 * min(access.nbytes, 4)) - 1
    data = _data_operand(ins)
    return low << 16 if access.half == "h" or (data is not None and data.half == "h") else low


def _loaded_part(ins: Instruction, target: Target) -> int:
    if "_load_" not in ins.name or re.search("_tr[_0-9]", ins.name) or clears_other_half(target.gpu):
        return 0
    half = Access(ins.name.split("_", 1)[1]).half or ins.operands[0].half
    return {"h": 0xFFFF0000, "l": 0xFFFF}.get(half, 0)


def _scalar_rule(ins: Instruction, touched: Uses, step: Step) -> Rule:
    assert isinstance(step, ScalarLoad)
    addresses = _registers(ins, None)

    def follow(g: Waves) -> None:
        for o in addresses:
            for k in range(o.count):
                if o.index + k != NULL and g.shadow.S[o.index + k].any():
                    wave = int(np.flatnonzero(g.shadow.S[o.index + k])[0])
                    text = f"the address depends on a value that nobody wrote (s{o.index + k})"
                    raise Found("undefined", text, int(g.ids[wave]))
        g.shadow.clean(g, touched)
        if (lacks := step.lacks_last(g, step.address(g))) is not None:
            g.shadow.put_scalar(step.destination.index + 3, np.where(lacks, U32(0xFFFFFFFF), U32(0)))
        if g.memory.not_given:
            for k, bits in enumerate(_bits_not_given(g, step)):
                g.shadow.put_scalar(step.destination.index + k, bits | g.shadow.S[step.destination.index + k])

    return follow


def _bits_not_given(g: Waves, load: ScalarLoad) -> np.ndarray:
    """Bits [word, wave] of a scalar load that belong to arguments that the launch leaves out."""
    lacks = g.memory.not_given.lacks(load.address(g), load.nbytes)
    above = np.repeat(lacks[:, -1:] & load.signed, max(4 - load.nbytes, 0), axis=1)  # copies of the sign, or 0
    return np.where(np.hstack([lacks, above]), np.uint8(0xFF), np.uint8(0)).view(U32).T


def _scalar_store_rule(ins: Instruction, touched: Uses) -> Rule:
    data = ins.operands[0]

    def follow(g: Waves) -> None:
        everywhere = np.ones((g.count, 1), np.bool_)
        _require(g, data, everywhere, _STORES)
        for o in ins.operands[1:]:
            if o.kind == "s":
                _require(g, o, everywhere, "the address depends on a value that nobody wrote")
        g.shadow.clean(g, touched)

    return follow


def _lds_load_rule(ins: Instruction, load: LdsLoad) -> Rule:
    """What lands in LDS is defined, but for what scratch has of bits that nobody wrote."""
    addresses = [*_registers(ins, None), Operand("s", M0)]

    def follow(g: Waves) -> None:
        for o in addresses:
            _require(g, o, g.active(), "the address depends on a value that nobody wrote")
        if load.private and g.private is not None:
            twin = g.twin(g.shadow.V)
            twin.private, twin.lds = g.shadow.private, g.undefined_lds
            load(twin)
            return
        load.deliver(g, g.undefined_lds, np.zeros((1, 1, 1), U32))

    return follow


def _async_rule(ins: Instruction, copy: AsyncCopy) -> Rule:
    """What lands in LDS is defined; what leaves it has to be."""

    def follow(g: Waves) -> None:
        active = copy.active(g)
        for o in ins.operands:
            if o.kind in ("v", "s"):
                _require(g, o, g.active(), "the address depends on a value that nobody wrote")
        if copy.load:
            copy.deliver(g, g.undefined_lds, np.zeros((1, 1, 1), U32))
        elif not g.undefined_lds.clean:
            bad = np.asarray(copy.stored(g, g.undefined_lds).any(axis=-1))
            _report(g, bad if active is None else bad & active)

    return follow


def _tensor_rule(ins: Instruction, move: TensorMove) -> Rule:
    """As for asynchronous copies; the descriptor has to be defined."""

    def follow(g: Waves) -> None:
        for o in ins.operands:
            _require(g, o, np.ones((g.count, 1), np.bool_), "the descriptor depends on a value that nobody wrote")
        lds = g.undefined_lds
        for wave, at, inside, nbytes in move.each_place(g, lds):
            if move.load:
                lds.scatter(at, np.zeros((*at.shape, max(nbytes // 4, 1)), U32), nbytes, None)
            elif not lds.clean and (lds.gather(at, nbytes).any(axis=-1) & inside).any():
                raise Found("undefined", _STORES, int(g.ids[wave]))

    return follow


def _report(g: Waves, bad: np.ndarray) -> None:
    if bad.any():
        wave, lane = (int(x[0]) for x in np.nonzero(bad))
        raise Found("undefined", _STORES, int(g.ids[wave]), lane)


# -- LDS and scratch ---------------------------------------------------------------------------------------------------


def _lds_rule(ins: Instruction, target: Target, touched: Uses, step: Step) -> Rule:
    """The access itself, run on the undefined bits of LDS and registers."""
    count = results(ins)
    address: Operand | None = ins.operands[count] if len(ins.operands) > count else None
    base = address
    if re.search("addtid|append|consume", ins.name):  # the address is made of M0; gfx12 counts without it
        address, base = None, Operand("s", M0, count=int("addtid" in ins.name or target.gpu.major == 11))
    atomic = not re.match(r"ds_(load|store)_", ins.name)
    halves = "_d16" in ins.name or bool(ins.operands[0].half)  # the other half stays as it was

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        assert base is not None
        _require(g, base, g.active(), "the LDS address depends on a value that nobody wrote")
        if atomic:
            for o in ins.operands[count + (address is not None) :]:
                _require(g, o, g.active(), "an atomic combines bits that nobody wrote")
            shadow.clean(g, touched)
            return
        if g.undefined_lds.clean and not halves and not touched.reads_v & shadow.dirty_v:
            shadow.clean(g, touched)
            return
        twin = g.twin(shadow.V)
        twin.lds = g.undefined_lds
        step(twin)
        for n in bits_of(touched.writes_v):
            shadow.note(n)

    return follow


def _scratch_rule(ins: Instruction, touched: Uses, step: Step) -> Rule:
    """The access itself, run on the undefined bits: compilers spill registers that are partly unused."""
    data = ins.operands[0 if "_load_" in ins.name or ins.name.startswith("buffer_") else 1]
    addresses = [o for o in ins.operands if o is not data and o.kind in ("v", "s")]
    addresses += [Operand("s", M0)] if isinstance(step, BlockAccess) else []

    def follow(g: Waves) -> None:
        for o in addresses:
            _require(g, o, g.active(), "the scratch address depends on a value that nobody wrote")
        if g.private is not None:
            twin = g.twin(g.shadow.V)
            twin.private = g.shadow.private
            step(twin)
        for n in bits_of(touched.writes_v):
            g.shadow.note(n)

    return follow


def _buffer_rule(ins: Instruction, target: Target, touched: Uses, step: BufferAccess) -> Rule:
    """As for the memory that the resource leads to."""
    in_global, in_scratch = _global_rule(ins, target, touched), _scratch_rule(ins, touched, step)
    return lambda g: (in_scratch if step.where.in_scratch(g) else in_global)(g)


def _format_rule(ins: Instruction, target: Target, step: FormatAccess) -> Rule:
    """What is loaded is defined, the other half of a register as it was or, on gfx9, cleared."""
    data, addresses = data_bits(ins), _registers(ins, ins.operands[0])

    def follow(g: Waves) -> None:
        for o in addresses:
            _require(g, o, g.active(), "the address depends on a value that nobody wrote")
        for o, bits in data:
            if not step.is_load:
                _require(g, o, g.active(), _STORES, bits)
            elif g.shadow.dirty_v >> o.index & 1:
                g.shadow.put(g, o.index, U32(0), bits if step.keeps else 0xFFFFFFFF)

    return follow


def _flat_rule(ins: Instruction, touched: Uses, step: FlatAccess) -> Rule:
    """As for the memory that each lane's address lies in."""
    data, parts = _data_operand(ins), _stored_bits(ins)
    addresses = _registers(ins, data)

    def follow(g: Waves) -> None:
        for o in addresses:
            _require(g, o, g.active(), "the address depends on a value that nobody wrote")
        spaces = step.where.split(g)[1]
        if data is not None and "global" in spaces:
            mask = spaces["global"]
            _require(g, data, g.active() if mask is None else mask, _STORES, parts)
        twin = g.twin(g.shadow.V)
        twin.private, twin.lds = g.shadow.private, g.undefined_lds
        step.run(twin, "lds", "private")
        for n in bits_of(touched.writes_v):
            g.shadow.note(n)

    return follow


def _flat_swap_rule(ins: Instruction, target: Target) -> Rule:
    """What goes to global memory has to be defined; to LDS and scratch, what decides the swap."""
    vaddr, data = ins.operands[results(ins) :][:2]
    addresses, where = _registers(ins, data), FlatAddress(ins, vaddr, 4, target)
    swap = flat_swap_rule(ins, where)

    def follow(g: Waves) -> None:
        for o in addresses:
            _require(g, o, g.active(), "the address depends on a value that nobody wrote")
        spaces = where.split(g)[1]
        if "global" in spaces:
            mask = spaces["global"]
            _require(g, data, g.active() if mask is None else mask, _STORES)
        swap(g)

    return follow

"""Strict mode: undefined bits through instructions that move data between lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.parse import Instruction
from .shadow import FULL
from .state import U32, Waves
from .undefined_carry import value_of

Rule = Callable[[Waves], None]


def read_lane_rule(ins: Instruction) -> Rule:
    """The word of the lane that is read."""
    destination, source = ins.operands[0].index, ins.operands[1]
    lane = ins.operands[2] if len(ins.operands) > 2 else None

    def follow(g: Waves) -> None:
        row = np.broadcast_to(g.shadow.of(source), (g.count, g.lanes))
        if lane is None:
            index = np.zeros(g.count, np.intp) if g.exec is None else np.argmax(g.exec, axis=1)
        else:
            index = np.broadcast_to((value_of(g, lane) & U32(g.lanes - 1)).reshape(-1), (g.count,)).astype(np.intp)
        g.shadow.put_scalar(destination, row[np.arange(g.count), index])

    return follow


def write_lane_rule(ins: Instruction) -> Rule:
    """The word of the lane that is written."""
    n, data, lane = ins.operands[0].index, ins.operands[1], ins.operands[2]

    def follow(g: Waves) -> None:
        index = np.broadcast_to((value_of(g, lane) & U32(g.lanes - 1)).reshape(-1), (g.count,)).astype(np.intp)
        row = g.shadow.V[n]
        row[np.arange(g.count), index] = np.broadcast_to(g.shadow.of(data), (g.count, 1))[:, 0]
        g.shadow.note(n)

    return follow


def permute_rule(ins: Instruction, step: Rule) -> Rule:
    """ds_bpermute and ds_permute: data follows the addresses, which must be defined."""
    d, address, backward = ins.operands[0].index, ins.operands[1], "bpermute" in ins.name

    def follow(g: Waves) -> None:
        lost = np.broadcast_to(g.shadow.of(address) != 0, (g.count, g.lanes)) & g.active()
        step(g.twin(g.shadow.V))
        g.shadow.note(d)
        if lost.any():  # who sends to an unknown lane may send to any
            lost = lost if backward else lost.any(axis=1, keepdims=True)
            g.shadow.put(g, d, np.where(lost, FULL, g.shadow.V[d]))

    return follow


def permlane_rule(ins: Instruction, step: Rule) -> Rule:
    """Data moves as the instruction does, run on the shadow itself; what an undefined selection takes is undefined."""
    d, *select = (ins.operands[0].index, *ins.operands[2:])
    moved = [o.index for o in ins.operands[:2] if o.kind == "v"] if "swap" in ins.name else [d]
    looked_at = U32(15 if "_var_" in ins.name else 0xFFFFFFFF)

    def follow(g: Waves) -> None:
        lost = np.zeros((g.count, 1), np.bool_)
        for o in select:
            lost = lost | (np.asarray(g.shadow.of(o), U32) & looked_at != 0)
        step(g.twin(g.shadow.V))
        for n in moved:
            g.shadow.note(n)
        if lost.any():
            g.shadow.put(g, d, np.where(lost, FULL, g.shadow.V[d]))

    return follow

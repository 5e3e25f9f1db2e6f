"""Strict mode: undefined bits through instructions that select bytes and halves of their registers (gfx9's SDWA)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.parse import VCC, Instruction
from ..isa.registers import results
from . import sdwa
from .alu import VECTOR
from .shadow import FULL, Shadow
from .state import U32, Waves
from .undefined_bits import bits_written


def sdwa_rule(ins: Instruction) -> Callable[[Waves], None]:
    """Any undefined bit of the selected parts makes the selected part of the result undefined."""
    count, part = results(ins), bits_written(ins, 9)
    sources = ins.operands[count:]
    parts = [((1 << bits) - 1) << first for first, bits in (sdwa.selection(ins, f"src{k}_sel") for k in range(2))]
    op = VECTOR[ins.name]
    own = [ins.operands[0]] if op.reads_dst else []
    reads_vcc = op.src[-1:] == ("mask",) or "_co_ci_" in ins.name

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        bad = shadow.mask(g, VCC) if reads_vcc else np.zeros((g.count, 1), np.bool_)
        for k, operand in enumerate([*sources[:2], *own]):
            bad = bad | ((shadow.of(operand) & U32(parts[k] if k < len(sources[:2]) else 0xFFFFFFFF)) != 0)
        for destination in ins.operands[:count]:
            if destination.kind == "s":
                shadow.put_mask(g, destination.index, bad & g.active())
            else:
                shadow.put(g, destination.index, np.where(bad, FULL, U32(0)), part)

    return follow

"""Strict mode: the rules of instructions that work bit by bit."""

from __future__ import annotations

from collections.abc import Callable

from ..isa.parse import Instruction
from .state import U32, Waves
from .undefined_carry import halves_chosen, value_of

Rule = Callable[[Waves], None]


def bitwise_rule(ins: Instruction, function: Callable) -> Rule:
    """Of whole registers; `function` is from BITWISE."""
    n, sources = ins.operands[0].index, ins.operands[1:]

    def follow(g: Waves) -> None:
        pairs = [(value_of(g, o), g.shadow.of(o)) for o in sources]
        g.shadow.put(g, n, function(*pairs)[1])

    return follow


def bitwise_halves_rule(ins: Instruction, function: Callable, part: int) -> Rule:
    """Of halves; `function` is from BITWISE_HALVES. What gfx9 clears beside the result is defined.

    part: the bits of the result's register that are written.
    """
    destination, *sources = ins.operands
    highs, high = halves_chosen(ins)

    def follow(g: Waves) -> None:
        pairs = []
        for o, up in zip(sources, highs, strict=True):
            value = value_of(g, o, "b16")
            pairs.append((value >> U32(16) if up else value & U32(0xFFFF), g.shadow.of(o, up)))
        bits = function(*pairs)[1] & U32(0xFFFF)
        g.shadow.put(g, destination.index, bits << U32(16) if high else bits, part)

    return follow

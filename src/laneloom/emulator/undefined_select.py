"""Strict mode: (x ^ y) & m ^ y, by which LLVM takes the bits of x where m has ones and those of y elsewhere.

Where m has ones the two sums take y out again, and with it what nobody wrote of y, which no rule of one instruction can
see. So the three tell each other: the first what of x is undefined, the second what m picks of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..isa.parse import EXEC, Instruction, Operand
from ..isa.registers import mask_of, uses
from .state import Waves
from .undefined_carry import scalar_word, value_of

Rule = Callable[[Waves], None]
_SUM, _AND = re.compile(r"[sv]_xor_b(32|64)"), re.compile(r"[sv]_and_b(32|64)")
_REACH = 16  #: instructions from one to the next


@dataclass
class Select:
    """One such triple; word by word."""

    x: Operand
    y: Operand
    mask: Operand
    sum: Operand  #: x ^ y
    result: Operand
    of_x: list[Any] = field(default_factory=list)  #: undefined bits
    picked: list[Any] = field(default_factory=list)  #: undefined bits of what m picks
    sure: list[Any] = field(default_factory=list)  #: where m has ones that are known

    def words(self, g: Waves, operand: Operand) -> list[tuple[Any, Any]]:
        """Value and undefined bits of each word."""
        if self.result.kind == "v":
            return [(value_of(g, operand), g.shadow.of(operand))]
        return [scalar_word(g, operand, k) for k in range(self.result.count)]

    def first(self, follow: Rule) -> Rule:
        """The rule of the first sum."""

        def rule(g: Waves) -> None:
            self.of_x = [bits + 0 for _, bits in self.words(g, self.x)]  # a copy: the sum may replace x
            follow(g)

        return rule

    def second(self, follow: Rule) -> Rule:
        """The rule of the conjunction."""

        def rule(g: Waves) -> None:
            sums, masks = self.words(g, self.sum), self.words(g, self.mask)
            self.sure = [m & ~u for m, u in masks]
            unsure = [u & (t | of_t) for (_, u), (t, of_t) in zip(masks, sums, strict=True)]
            self.picked = [known & bits | rest for known, bits, rest in zip(self.sure, self.of_x, unsure, strict=True)]
            follow(g)

        return rule

    def third(self, follow: Rule) -> Rule:
        """The rule of the second sum."""

        def rule(g: Waves) -> None:
            of_y = [bits for _, bits in self.words(g, self.y)]
            found = [p | y & ~known for p, y, known in zip(self.picked, of_y, self.sure, strict=True)]
            follow(g)
            for k, bits in enumerate(found):
                if self.result.kind == "v":
                    g.shadow.put(g, self.result.index, bits)
                else:
                    g.shadow.put_scalar(self.result.index + k, bits)

        return rule


def selects(body: list[Instruction], lanes: int) -> Iterator[tuple[Select, int, int, int]]:
    """The triples of a block, with the places of their instructions."""
    for k, ins in enumerate(body):
        if not plain(ins, _SUM):
            continue
        total = ins.operands[0]
        for x, y in (ins.operands[1:], ins.operands[:0:-1]):
            if y.kind not in ("v", "s") or _overlap(total, y):
                continue
            middle = next_plain(body, k, _AND, {total}, [total, y], lanes)
            if middle is None or _overlap(body[middle].operands[0], y):
                continue
            picked = body[middle].operands[0]
            last = next_plain(body, middle, _SUM, {picked, y}, [picked, y], lanes)
            if last is not None:
                one, other = body[middle].operands[1:]
                yield Select(x, y, other if one == total else one, total, body[last].operands[0]), k, middle, last
                break


def follow_selects(guards: list[Any], body: list[Instruction], lanes: int) -> None:
    """Let the guards of each triple in a block follow it; these have a `follow` each."""
    for select, *places in selects(body, lanes):
        for place, rule in zip(places, (select.first, select.second, select.third), strict=True):
            guards[place].follow = rule(guards[place].follow)


def plain(ins: Instruction, pattern: re.Pattern) -> bool:
    """Whether it is such an instruction, in one part and of whole registers of its own lane."""
    known = pattern.fullmatch(ins.name) is not None and ins.second is None
    known = known and len(ins.operands) in (2, 3)  # v_cmpx writes EXEC alone from gfx11 on
    return known and "dpp" not in ins.encoding and "sdwa" not in ins.encoding


def _overlap(a: Operand, b: Operand) -> bool:
    return a.kind == b.kind and bool(mask_of(a) & mask_of(b))


def next_plain(
    body: list[Instruction], start: int, pattern: re.Pattern, sources: set[Operand], kept: list[Operand], lanes: int
) -> int | None:
    """The next such instruction with these two sources, if none before it writes what is to be kept, or EXEC."""
    vectors = sum(mask_of(o) for o in kept if o.kind == "v")
    scalars = sum(mask_of(o) for o in kept if o.kind == "s") | 3 << EXEC
    for k in range(start + 1, min(start + 1 + _REACH, len(body))):
        if plain(body[k], pattern) and sources <= set(body[k].operands[-2:]):
            return k
        used = uses(body[k], lanes)
        if used.writes_v & vectors or used.writes_s & scalars:
            return None
    return None

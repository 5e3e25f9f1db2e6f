"""Strict mode: compare-and-swap of words of LDS that are written in part.

LLVM makes an atomic of 8 or 16 bits a loop: it loads the word around, makes a new one in which the other bits are as
they were, and swaps the two if the word is still the one that it loaded. What nobody wrote of the other bits is put
back and decides nothing: where the word in memory and the expected one are undefined in the same bits and alike in
them, one is taken for a copy of the other. Then the loop's test of the two is decided as well, which no rule of one
instruction can see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..isa.parse import EXEC, Instruction
from ..isa.registers import results
from .atomics import apply
from .lds_access import addresses
from .shadow import Found
from .state import U32, Waves
from .undefined_select import next_plain

Rule = Callable[[Waves], None]
_SWAP, _TEST = re.compile(r"ds_cmpstore(_rtn)?_b32"), re.compile(r"v_cmpx?_(eq|ne)_[ui]32")
_WORD = np.dtype([("value", U32), ("undefined", U32)])


def is_swap(ins: Instruction) -> bool:
    """Whether swap_rule is the rule of this instruction."""
    return _SWAP.fullmatch(ins.name) is not None


def swap_rule(ins: Instruction) -> Rule:
    """What has to be defined, and what is afterwards of the word and of the register that takes the old one."""
    destination = ins.operands[0].index if results(ins) else None
    address, new, expected = (o.index for o in ins.operands[results(ins) :])
    offset, registers = ins.number("offset"), 1 << address | 1 << new | 1 << expected

    def follow(g: Waves) -> None:
        V, active = g.shadow.V, g.active()
        if g.undefined_lds.clean and not g.shadow.dirty_v & registers:
            if destination is not None:
                g.shadow.put(g, destination, U32(0))
            return
        _refuse(g, active & (V[address] != 0), f"the LDS address depends on a value that nobody wrote (v{address})")
        where = addresses(g, address, offset)
        inside = (where >= 0) & (where + 4 <= g.lds.nbytes) & (where & 3 == 0)
        if not (inside | ~active).all() or not active.any():
            return  # the access itself says what is wrong
        place, lane_of = np.unique((where + g.lds_base)[active] // 4, return_inverse=True)
        words = np.zeros(len(place), _WORD)
        words["value"], words["undefined"] = g.lds.view(4)[place], g.undefined_lds.view(4)[place]
        unsure = np.zeros(len(lane_of), np.bool_)

        def swap(old: np.ndarray, new: np.ndarray, expected: np.ndarray, of_new, of_expected, lanes) -> np.ndarray:
            value, undefined = old["value"], old["undefined"]
            differ = ((value ^ expected) & ~(undefined | of_expected)) != 0  # in bits that are known
            alike = (value == expected) & (undefined == of_expected)
            unsure[lanes] = ~(differ | alike)
            left = old.copy()
            left["value"], left["undefined"] = np.where(alike, new, value), np.where(alike, of_new, undefined)
            return left

        data = [x[active] for x in (g.u[new], g.u[expected], V[new], V[expected])]
        found = apply(words, lane_of, swap, (*data, np.arange(len(lane_of))))
        bad = np.zeros(active.shape, np.bool_)
        bad[active] = unsure
        _refuse(g, bad, "an atomic combines bits of LDS that nobody wrote")
        g.undefined_lds.view(4)[place] = words["undefined"]
        g.undefined_lds.clean &= not words["undefined"].any()
        if destination is not None:
            V[destination][active] = found["undefined"]
            g.shadow.note(destination)

    return follow


def _refuse(g: Waves, bad: np.ndarray, text: str) -> None:
    if bad.any():
        wave, lane = (int(x[0]) for x in np.nonzero(bad))
        raise Found("undefined", text, int(g.ids[wave]), lane)


def follow_swaps(guards: list[Any], body: list[Instruction], lanes: int) -> None:
    """A test whether the word found is the expected one is decided by the swap; the guards have a `follow` each."""
    for k, ins in enumerate(body):
        if is_swap(ins) and results(ins):
            pair = [ins.operands[0], ins.operands[3]]
            if pair[0] != pair[1] and (at := next_plain(body, k, _TEST, set(pair), pair, lanes)) is not None:
                masks = [o.index for o in body[at].operands[:-2]] + [EXEC] * body[at].name.startswith("v_cmpx")
                guards[at].follow = _decided(guards[at].follow, masks)


def _decided(follow: Rule, masks: list[int]) -> Rule:
    def rule(g: Waves) -> None:
        follow(g)
        for n in masks:
            g.shadow.put_mask(g, n, np.zeros((1, 1), np.bool_))

    return rule

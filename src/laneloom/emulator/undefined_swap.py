"""Strict mode: compare-and-swap of words of LDS and of scratch that are written in part.

LLVM makes an atomic of 8 or 16 bits a loop: it loads the word around, makes a new one in which the other bits are as
they were, and swaps the two if the word is still the one that it loaded. What nobody wrote of the other bits is put
back and decides nothing: where the word in memory and the expected one are undefined in the same bits and alike in
them, one is taken for a copy of the other. Then the loop's test of the two is decided as well, which no rule of one
instruction can see. Neither can it see what follows a swap of 8 or 16 bits that failed: whether the other bits of the
word found are those that the expected word was made with, and if so the loop ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..isa.parse import EXEC, Instruction, Listing, Operand
from ..isa.registers import mask_of, results, uses
from .atomics import apply
from .calls import LEAVING, Places
from .flat_access import FlatAddress
from .lds_access import addresses
from .shadow import Found
from .state import U32, Waves
from .undefined_select import next_plain, plain

Rule = Callable[[Waves], None]
_SWAP, _TEST = re.compile(r"ds_cmpstore(_rtn)?_b32|flat_atomic_cmpswap_b32"), re.compile(r"v_cmpx?_(eq|ne)_[ui]32")
_PICK, _NARROWS = re.compile(r"v_and_b32"), re.compile(r"v_cmpx_|s_and_saveexec_b")
_REACH = 32  #: instructions from a swap to the code that looks at what it found
_WORD = np.dtype([("value", U32), ("undefined", U32)])


def is_swap(ins: Instruction) -> bool:
    """Whether swap_rule or flat_swap_rule is the rule of this instruction."""
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
        place = addresses(g, address, offset)
        if _in_lds(g, place, active):
            swap(g, active, place + g.lds_base, "LDS", new, expected, destination)

    return follow


def flat_swap_rule(ins: Instruction, where: FlatAddress) -> Rule:
    """The same of a flat swap whose address is defined, as its data are where it lies in global memory."""
    destination = ins.operands[0].index if results(ins) else None
    new = ins.operands[results(ins) + 1].index

    def follow(g: Waves) -> None:
        address, spaces = where.split(g)
        for space, mask in spaces.items():
            active, place = g.active() if mask is None else mask, address & 0xFFFFFFFF
            if space == "global":  # what it holds counts as written
                if destination is not None:
                    g.shadow.V[destination][active] = 0
                    g.shadow.note(destination)
            elif space == "lds":
                if _in_lds(g, place, active):
                    swap(g, active, place + g.lds_base, "LDS", new, new + 1, destination)
            elif g.private is not None and ((place + 4 <= g.private.shape[2]) | ~active).all():
                lanes, size = g.private.shape[1:]
                owners = where.owners(g, address)
                rows = np.arange(g.count)[:, None] * lanes + (np.arange(lanes) if owners is None else owners)
                swap(g, active, rows * size + place, "scratch", new, new + 1, destination)

    return follow


def _in_lds(g: Waves, place: np.ndarray, active: np.ndarray) -> bool:
    """Whether there is something to follow; where an address is wrong, the access itself says so."""
    inside = (place >= 0) & (place + 4 <= g.lds.nbytes) & (place & 3 == 0)
    return bool((inside | ~active).all() and active.any())


def swap(g: Waves, active, place: np.ndarray, space: str, new: int, expected: int, destination: int | None) -> None:
    """One lane after another at bytes `place` [wave, lane] of LDS or scratch."""
    V, lds = g.shadow.V, space == "LDS"
    arrays: Any = (g.lds.bytes, g.undefined_lds.bytes) if lds else (g.private, g.shadow.private)
    memory, undefined = (array.reshape(-1) for array in arrays)
    first, lane_of = np.unique(place[active], return_inverse=True)
    octets = first[:, None] + np.arange(4)
    words = np.zeros(len(first), _WORD)
    words["value"], words["undefined"] = (x[octets].view(U32)[:, 0] for x in (memory, undefined))
    unsure = np.zeros(len(lane_of), np.bool_)

    def combine(old: np.ndarray, new: np.ndarray, expected: np.ndarray, of_new, of_expected, lanes) -> np.ndarray:
        differ, alike = _compared(old["value"], expected, old["undefined"], of_expected)
        unsure[lanes] = ~(differ | alike)
        left = old.copy()
        left["value"], left["undefined"] = (
            np.where(alike, x, old[name]) for name, x in (("value", new), ("undefined", of_new))
        )
        return left

    data = [x[active] for x in (g.u[new], g.u[expected], V[new], V[expected])]
    found = apply(words, lane_of, combine, (*data, np.arange(len(lane_of))))
    bad = np.zeros(active.shape, np.bool_)
    bad[active] = unsure
    _refuse(g, bad, f"an atomic combines bits of {space} that nobody wrote")
    undefined[octets] = np.ascontiguousarray(words["undefined"])[:, None].view(np.uint8)
    if lds:
        g.undefined_lds.clean &= not words["undefined"].any()
    if destination is not None:
        V[destination][active] = found["undefined"]
        g.shadow.note(destination)


def _compared(x, y, of_x, of_y) -> tuple[np.ndarray, np.ndarray]:
    """Where two words differ in bits that are known, and where one is taken for a copy of the other."""
    return ((x ^ y) & ~(of_x | of_y)) != 0, (x == y) & (of_x == of_y)


def _refuse(g: Waves, bad: np.ndarray, text: str) -> None:
    if bad.any():
        wave, lane = (int(x[0]) for x in np.nonzero(bad))
        raise Found("undefined", text, int(g.ids[wave]), lane)


def _expected(ins: Instruction) -> Operand:
    """Of a swap that gives what it found, the register with which that is compared."""
    if ins.name.startswith("ds_"):
        return ins.operands[3]
    return Operand("v", ins.operands[2].index + 1)  # behind the new word


def follow_swaps(guards: list[Any], block: Any, listing: Listing, places: Places, lanes: int) -> None:
    """A test whether the word found is the expected one is decided by the swap; the guards have a `follow` each."""
    body = listing.instructions[block.first : block.last]
    for k, ins in enumerate(body):
        if is_swap(ins) and results(ins):
            pair = [ins.operands[0], _expected(ins)]
            if pair[0] != pair[1] and (at := next_plain(body, k, _TEST, set(pair), pair, lanes)) is not None:
                guards[at].follow = _decided(guards[at].follow, _masks(body[at]))
    earlier = max(block.first - _REACH, 0)
    if any(is_swap(ins) for ins in listing.instructions[earlier : block.last]):
        # Only code that is passed before the block, whatever way leads there: from the last label on.
        labels = {*listing.labels.values(), *places.reached(listing)}
        start = max((n for n in labels if earlier <= n <= block.first), default=earlier)
        _follow_other_bits(guards, listing.instructions[start : block.last], block.first - start, lanes)


def _follow_other_bits(guards: list[Any], code: list[Instruction], first: int, lanes: int) -> None:
    """The test of the other bits, where it stands behind code[first], which is the first with a guard."""
    for k, ins in enumerate(code):
        if not (is_swap(ins) and results(ins)):
            continue
        whole, parts = mask_of(ins.operands[0]), 0  # registers with the word found, and with some of its bits
        known = _made_of(code[:k], _expected(ins), lanes)
        for at, other in enumerate(code[k + 1 :], k + 1):
            used, narrows = uses(other, lanes), _NARROWS.match(other.name)
            if other.name in (*LEAVING, "s_branch") or (used.writes_s & 3 << EXEC and not narrows):
                break
            if at >= first and plain(other, _TEST):
                one, two = (mask_of(o) if o.kind == "v" else 0 for o in other.operands[-2:])
                if (one & parts and two & known) or (two & parts and one & known):
                    guards[at - first].follow = _alike(guards[at - first].follow, other)
            picks = plain(other, _PICK) and any(o.kind == "v" and mask_of(o) & whole for o in other.operands[1:])
            whole, parts, known = (x & ~used.writes_v for x in (whole, parts, known))
            parts |= mask_of(other.operands[0]) if picks else 0


def _made_of(code: list[Instruction], word: Operand, lanes: int) -> int:
    """The vector registers that the last write of a word has read, less those that were written since."""
    written = 0
    for ins in reversed(code):
        used = uses(ins, lanes)
        written |= used.writes_v
        if used.writes_v & mask_of(word):
            return used.reads_v & ~written
        if used.writes_s & 3 << EXEC:
            break  # other lanes may not have written it there
    return 0


def _masks(test: Instruction) -> list[int]:
    return [o.index for o in test.operands[:-2]] + [EXEC] * test.name.startswith("v_cmpx")


def _alike(follow: Rule, test: Instruction) -> Rule:
    one, two = test.operands[-2:]

    def rule(g: Waves) -> None:
        x, y, of_x, of_y = g.u[one.index], g.u[two.index], g.shadow.of(one), g.shadow.of(two)
        differ, alike = _compared(x, y, of_x, of_y)
        follow(g)
        for n in _masks(test):
            g.shadow.put_mask(g, n, g.shadow.mask(g, n) & ~(differ | alike))

    return rule


def _decided(follow: Rule, masks: list[int]) -> Rule:
    def rule(g: Waves) -> None:
        follow(g)
        for n in masks:
            g.shadow.put_mask(g, n, np.zeros((1, 1), np.bool_))

    return rule

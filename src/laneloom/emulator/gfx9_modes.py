"""Modes of gfx9 that change what the instructions behind them do.

Registers by number: from `s_set_gpr_idx_on` to `s_set_gpr_idx_off`, M0[7:0] is added to the numbers of those vector
registers that the mode names. Moves between registers are RDNA's `v_movrel*` (cdna.py); every other instruction is
built once for each number that comes by.

Skipped vector instructions: from `s_setvskip` with the chosen bit set to the one that clears it, nothing that begins
with v_, ds_, buffer_, flat_, global_ or scratch_ is issued, nor counted by a wait. It is a jump over them.

Source: AMD CDNA 3 ISA guide, "VGPR Indexing", S_SETVSKIP; LLVM, "gpr_idx".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from ..errors import EmulationError, UnknownInstructionError
from ..isa.parse import M0, Instruction
from ..isa.registers import results
from .alu import Step, Target
from .dpp import lane_source
from .operands import read_scalar
from .sdwa import is_sdwa
from .shadow import Found, Shadow
from .state import U32, Waves

INDEXED = "v_indexed"
_DST = 8
# What the guide's table of special cases turns around or reads twice, and lanes that others read.
_READS_TWICE = re.compile(
    r"v_(fmac|mac|pk_fmac|dot\dc)_|v_\w*rev_|v_(fmam|fmaa|mada|madm)k|v_(read|permlane|swap|mfma|smfmac)"
)

T = TypeVar("T")


class _ByNumber(Generic[T]):
    """What an instruction becomes for each value of M0[7:0]."""

    def __init__(self, ins: Instruction, make: Callable[[Instruction], T]):
        self.ins, self.make = ins, make
        self.made: dict[int, T | None] = {}

    def at(self, number: int, registers: int) -> T | None:
        """None where the result would be beyond the last of the `registers`: nothing is done then."""
        if number not in self.made:
            there = moved(self.ins, number, registers)
            self.made[number] = None if there is None else self.make(there)
        return self.made[number]


def moved(ins: Instruction, by: int, registers: int = 1 << 30) -> Instruction | None:
    """The instruction that stands behind `v_indexed`, with `by` added to the numbers of the registers in question.

    A source beyond the last register is v0; a result there is none of the instruction at all.
    """
    name, enabled = _behind(ins)
    plain = replace(ins, name=name, modifiers={k: v for k, v in ins.modifiers.items() if k != INDEXED})
    count = results(plain)
    operands = []
    for k, o in enumerate(ins.operands):
        if o.kind == "v" and enabled >> (3 if k < count else k - count) & 1:
            there = o.index + by + o.count <= registers
            if not there and k < count:
                return None
            o = replace(o, index=o.index + by if there else 0)
        operands.append(o)
    return replace(plain, operands=tuple(operands))


def indexed(ins: Instruction, enabled: int) -> Instruction:
    """What has M0 added to some of its registers; enabled: bits 0 to 2 for the sources, 3 for the destination."""
    modifiers = ins.modifiers | {INDEXED: f"{enabled} {ins.name}"}
    return replace(ins, name=INDEXED, modifiers=modifiers, written=ins.mnemonic)


def selects(ins: Instruction) -> bool:
    """Whether an instruction takes parts of its registers, or other lanes."""
    return is_sdwa(ins) or lane_source(ins, 64) is not None


def _behind(ins: Instruction) -> tuple[str, int]:
    enabled, name = ins.modifiers[INDEXED].split()
    return name, int(enabled)


def build_indexed(ins: Instruction, target: Target) -> Step:
    """A step that does what M0 says, wave by wave where they differ."""
    from .builders import find_builder  # which knows this one

    name, enabled = _behind(ins)
    twice = _READS_TWICE.match(name) or (name.startswith("v_writelane") and enabled != _DST)
    if (twice or selects(ins)) and enabled & 15:
        raise UnknownInstructionError(f"{name} with registers by number")

    def make(plain: Instruction) -> Step:
        builder = find_builder(plain.name)
        if builder is None:
            raise UnknownInstructionError(name)
        return builder(plain, target)

    steps = _ByNumber(ins, make)
    steps.at(0, 1 << 30)  # what is unknown is so before it is reached

    def step(g: Waves) -> None:
        for number, part in _parts(g):
            if (plain := steps.at(number, len(g.V))) is not None:
                plain(part)

    return step


class IndexedGuard:
    """Strict mode's checks of an instruction whose registers M0 moves."""

    def __init__(self, ins: Instruction, make: Callable[[Instruction], object]):
        self.ins = ins
        self._guards: _ByNumber = _ByNumber(ins, make)

    def before(self, g: Waves) -> None:
        """As Guard.before; the register's number has to be defined."""
        if (bad := g.shadow.S[M0] & U32(0xFF)).any():
            wave = int(g.ids[int(np.flatnonzero(bad)[0])])
            raise Found("undefined", "the register's number depends on a value that nobody wrote (m0)", wave)
        for number, part in _parts(g):
            if (guard := self._guards.at(number, len(g.V))) is not None:
                guard.before(part)

    def after(self, g: Waves) -> None:
        """As Guard.after."""
        for number, part in _parts(g):
            if (guard := self._guards.at(number, len(g.V))) is not None:
                guard.after(part)


def _parts(g: Waves) -> Iterator[tuple[int, Waves]]:
    """The waves by M0[7:0]: neighbours of one number together, on the same registers as `g`."""
    numbers = g.s[M0] & U32(0xFF)
    if g.count == 1 or (numbers == numbers[0]).all():
        yield int(numbers[0]), g
        return
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), g.count]
    for first, end in pairwise(bounds):
        some = slice(first, end)
        part = Waves(
            g.V[:, some], g.S[:, some], g.scc[some], g.ids[some], g.lds_base[some], g.lanes, g.memory, g.lds, False
        )
        part.waves_per_group, part.undefined_lds = g.waves_per_group, g.undefined_lds
        if g.shadow is not None:
            part.shadow = _window(g.shadow, some)
        yield int(numbers[first]), part
        if g.shadow is not None:
            g.shadow.dirty_v |= part.shadow.dirty_v
            g.shadow.dirty_s |= part.shadow.dirty_s
    g.forget_masks()


def _window(shadow: Shadow, some: slice) -> Shadow:
    part = Shadow(
        shadow.V[:, some], shadow.S[:, some], shadow.scc[some], shadow.epoch[some], shadow.pending, shadow.dirty_v,
        shadow.dirty_s, None,
    )  # fmt: skip
    part.busy_v, part.busy_s, part.replicated = shadow.busy_v, shadow.busy_s, shadow.replicated
    return part


# -- skipping ----------------------------------------------------------------------------------------------------------

_VECTOR = ("v_", "ds_", "buffer_", "flat_", "global_", "scratch_")


def skipped_to(code: list[Instruction], labels: set[int], index: int) -> int:
    """Where a wave that skips goes on: at the `s_setvskip` that clears the mode set at `index`; at the next where none.

    Raises EmulationError unless nothing but vector instructions stands between.
    """
    if clears_skip(code[index]):
        return index + 1
    for k in range(index + 1, len(code)):
        if clears_skip(code[k]):
            return k
        if k in labels or not code[k].name.startswith((*_VECTOR, "s_nop")):
            index = k
            break
    raise EmulationError(f"line {code[index].line}: {code[index].text!r} under s_setvskip is not implemented")


def clears_skip(ins: Instruction) -> bool:
    """Whether this is the `s_setvskip` behind which vector instructions run again."""
    return ins.name == "s_setvskip" and all(o.kind == "const" and not o.value for o in ins.operands[:1])


def build_skip(ins: Instruction, following: int, behind: int) -> Callable[[Waves], np.ndarray]:
    """Which block each wave goes on at: `behind` where it skips."""
    value, place = (read_scalar(o, "u32") for o in ins.operands)

    def go(g: Waves) -> np.ndarray:
        skips = np.broadcast_to(value(g) >> (place(g) & U32(31)) & U32(1), (g.count,))
        return np.where(skips != 0, behind, following)

    return go

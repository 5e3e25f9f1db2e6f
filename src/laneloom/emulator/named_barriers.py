"""Named barriers of a workgroup (CDNA 5): 1 to 16, each with a number of members and of signals.

A signal counts one; as many as there are members complete the barrier, which lets each wave that has joined it pass its
next wait. A wave has joined one barrier at most and waits for that one, whichever number its wait has; a wave that has
joined none waits for nothing. Bits 5:0 of M0 are a barrier's number, 22:16 its members, where they are not 0.
Source: RDNA 4 ISA guide, S_BARRIER_SIGNAL and S_GET_BARRIER_STATE; LLVM, "AMDGPU Execution Synchronization" and its
lowering of `llvm.amdgcn.s.barrier.*`; HipKittens' barriers for gfx1250 (fields of the state).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import M0, Instruction
from .alu import Step, Target, special
from .memory import AccessFault
from .state import U32, Waves


@dataclass
class _Barrier:
    members: int = 0
    signals: int = 0
    valid: bool = False


@dataclass
class NamedBarriers:
    """Those of all workgroups of a launch."""

    waves_per_group: int
    barriers: dict[tuple[int, int], _Barrier] = field(default_factory=lambda: defaultdict(_Barrier))
    joined: dict[int, int] = field(default_factory=dict)  #: wave -> barrier
    complete: set[int] = field(default_factory=set)  #: waves that may pass their next wait

    def of(self, wave: int, number: int) -> _Barrier:
        """A barrier of the wave's workgroup."""
        return self.barriers[wave // self.waves_per_group, number]

    def signal(self, wave: int, number: int) -> bool:
        """One wave signals; whether it is the first to."""
        barrier = self.of(wave, number)
        first = barrier.signals == 0
        barrier.signals += 1
        if barrier.signals == barrier.members:
            barrier.signals = 0
            group = wave // self.waves_per_group
            mine = range(group * self.waves_per_group, (group + 1) * self.waves_per_group)
            self.complete.update(w for w in mine if self.joined.get(w) == number)
        return first

    def passing(self, ids: np.ndarray) -> np.ndarray:
        """Which waves may leave their wait; they have then left it."""
        found = np.array([not self.joined.get(int(w)) or int(w) in self.complete for w in ids])
        self.complete.difference_update(int(w) for w in ids[found])
        return found


class _Unfollowed(AccessFault):
    error = UnknownInstructionError


def _numbers(g: Waves, ins: Instruction) -> tuple[np.ndarray, np.ndarray]:
    """The barrier that each wave means, and the members that M0 gives it."""
    if g.shadow is not None:
        raise _Unfollowed("strict mode does not follow named barriers", 0, 0)
    operand, word = ins.operands[-1], g.s[M0]
    if operand.kind == "const":
        members = word if ins.name == "s_barrier_init" else np.zeros_like(word)
        return np.full(g.count, int(operand.value)), members >> U32(16) & U32(127)
    return (word & U32(63)).astype(np.int64), word >> U32(16) & U32(127)


def signal(g: Waves, ins: Instruction) -> np.ndarray:
    """Waves signal; which are the first to, [wave]."""
    numbers, members = _numbers(g, ins)
    first = np.zeros(g.count, np.bool_)
    for k, (wave, number, count) in enumerate(zip(g.ids, numbers, members, strict=True)):
        if count:
            g.memory.named.of(int(wave), int(number)).members = int(count)
        if number:
            first[k] = g.memory.named.signal(int(wave), int(number))
    return first


def _build_init(ins: Instruction, target: Target) -> Step:
    def step(g: Waves) -> None:
        for wave, number, count in zip(g.ids, *_numbers(g, ins), strict=True):
            barrier = g.memory.named.of(int(wave), int(number))
            barrier.signals, barrier.valid = 0, True
            barrier.members = int(count) or barrier.members

    return step


def _build_join(ins: Instruction, target: Target) -> Step:
    def step(g: Waves) -> None:
        for wave, number in zip(g.ids, _numbers(g, ins)[0], strict=True):
            g.memory.named.joined[int(wave)] = int(number)
            g.memory.named.complete.discard(int(wave))

    return step


def _build_state(ins: Instruction, target: Target) -> Step:
    """Whether it was initialized, its members from bit 4 and its signals from bit 16 on."""
    if ins.operands[1].kind == "const" and int(ins.operands[1].value) < 0:
        raise UnknownInstructionError("the state of the workgroup's own barrier is not kept")

    def step(g: Waves) -> None:
        found = [g.memory.named.of(int(w), int(n)) for w, n in zip(g.ids, _numbers(g, ins)[0], strict=True)]
        words = [b.valid | b.members << 4 | b.signals << 16 for b in found]
        g.set_scalar(ins.operands[0].index, np.array(words, U32))

    return step


special("s_barrier_init", _build_init)
special("s_barrier_join", _build_join)
special("s_get_barrier_state", _build_state)

"""What orders the workgroups of a whole launch: global wave sync (`ds_gws_*`), and what a runtime hands over for it.

HIP's `grid.sync()` is one of the two: on gfx908 and gfx90a (elsewhere too, as older compilers' libraries have it)
`ds_gws_barrier`, else atomics on words behind a hidden argument. Here every launch is a cooperative one: all of its
workgroups can be under way at a time.

64 resources count: a barrier down, a semaphore what it may still let pass. A barrier's wave that finds 0 releases those
that wait and sets the count to its own data for the next time; waves act once, whatever their lanes.
Source: RDNA 2 and 3 and CDNA 3 ISA guides, DS_GWS_*; LLVM, `llvm.amdgcn.ds.gws.*` (M0); ROCm's runtime,
`KernelBlitManager::RunGwsInit` (what a launch finds in resource 0) and `Device::MGSyncInfo`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from ..isa.parse import M0, Instruction
from .alu import Builder, Step, Target
from .memory import Region
from .state import U32, Waves

RESOURCES = 64


@dataclass
class _Resource:
    count: int = 0
    waiting: list[int] = field(default_factory=list)  #: waves, in the order in which they came


class GlobalWaveSync:
    """The resources of one launch, and the two words that others count in, before the number of workgroups."""

    def __init__(self, workgroups: int):
        self.resources = [_Resource() for _ in range(RESOURCES)]
        self.resources[0].count = workgroups - 1
        self._words = np.frombuffer(struct.pack("<QIIQQIIQ", 0, 0, 0, 0, 0, 0, 0, workgroups), np.uint8).copy()
        self.address = self._words.ctypes.data  #: what `hidden_multigrid_sync_arg` gets
        self.region = Region("words that workgroups synchronize by", self.address, self._words.nbytes)
        self._free: set[int] = set()

    def barrier(self, wave: int, number: int, next_count: int) -> None:
        """A wave arrives; `next_count` is what it brings for the barrier's next use."""
        resource = self.resources[number]
        resource.waiting.append(wave)
        if resource.count:
            resource.count -= 1
            return
        resource.count = next_count
        self._free.update(resource.waiting)
        resource.waiting.clear()

    def want(self, wave: int, number: int) -> None:
        """A wave queues for a semaphore."""
        self.resources[number].waiting.append(wave)
        self._serve(number)

    def give(self, number: int, count: int | None) -> None:
        """Let `count` more waves pass a semaphore; None: as many as wait."""
        resource = self.resources[number]
        resource.count = len(resource.waiting) if count is None else resource.count + count
        self._serve(number)

    def _serve(self, number: int) -> None:
        resource = self.resources[number]
        while resource.waiting and resource.count:
            resource.count -= 1
            self._free.add(resource.waiting.pop(0))

    def passing(self, ids: np.ndarray) -> np.ndarray:
        """Which waves may go on; they have then left."""
        found = np.array([int(w) in self._free for w in ids])
        self._free.difference_update(int(w) for w in ids[found])
        return found


def waits(name: str) -> bool:
    """Whether an instruction holds waves until others of the launch let them go on."""
    return name in ("ds_gws_barrier", "ds_gws_sema_p")


def _build(ins: Instruction, target: Target) -> Step:
    kind = ins.name.removeprefix("ds_gws_")
    data = ins.operands[0].index if ins.operands else None
    offset = ins.number("offset")

    def step(g: Waves) -> None:
        sync: GlobalWaveSync = g.memory.sync
        numbers = (g.s[M0] >> U32(16)) + U32(offset) & U32(RESOURCES - 1)
        first = g.active().argmax(axis=1)
        words = np.zeros(g.count, U32) if data is None else g.u[data][np.arange(g.count), first]
        for wave, number, word in zip(g.ids.tolist(), numbers.tolist(), words.tolist(), strict=True):
            if kind == "barrier":
                sync.barrier(wave, number, word)
            elif kind == "sema_p":
                sync.want(wave, number)
            elif kind == "init":
                sync.resources[number].count = word
            else:
                sync.give(number, {"sema_v": 1, "sema_br": word}.get(kind))

    return step


BUILDERS: dict[str, Builder] = {
    f"ds_gws_{kind}": _build for kind in ("init", "barrier", "sema_v", "sema_br", "sema_p", "sema_release_all")
}


def find(name: str) -> Builder | None:
    """The builder of an instruction of global wave sync."""
    return BUILDERS.get(name)

"""Clusters of workgroups (CDNA 5): up to 16 that run at once, wait for each other, and get copies into their LDS.

A cluster is a box of the grid; its members have ranks, x fastest. A copy into LDS with a mask delivers to the members
whose ranks the mask names. The cluster's barrier (-3) is complete when each workgroup has signalled once, which by
convention one of its waves does; that lets each wave of the cluster pass its next wait there.
Source: LLVM, `lowerWorkGroupId` (TTMP6, 7 and 9, IB_STS2) and "AMDGPU Execution Synchronization"; rocjitsu
(ROCm/rocm-systems), cluster_lds_multicast.cpp and hwreg.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import ArgumentError
from ..gpu import Gpu
from ..isa.parse import Instruction
from .alu import Step, Target, special
from .global_sync import GlobalWaveSync, waits
from .memory import LocalMemory
from .named_barriers import NamedBarriers, signal
from .state import U32, Waves

MOST = 16  #: workgroups of a cluster, and bits of a mask
BARRIER = -3
#: what holds waves back -> as messages say it
BARRIERS = {
    "cluster": "its cluster's barrier", "named": "a named barrier", "workgroup": "its workgroup's barrier",
    "launch": "a barrier or semaphore of the launch (GWS)",
}  # fmt: skip

_Three = tuple[int, int, int]


class Clusters:
    """The clusters of one launch. A size of 1, 1, 1 is a launch without any."""

    def __init__(self, size: _Three, grid: _Three, gpu: Gpu):
        self.size, self.grid = size, grid
        self.count = size[0] * size[1] * size[2]
        if self.count > 1 and not gpu.is_cdna5:
            raise ArgumentError(f"{gpu.name} has no clusters of workgroups")
        if min(size) < 1 or self.count > MOST or any(g % s for g, s in zip(grid, size, strict=True)):
            raise ArgumentError(
                f"a cluster has 1 to {MOST} workgroups and divides the grid; got {size} for a grid of {grid}"
            )

    def begin(self, waves_per_group: int) -> None:
        """Nobody has come to a barrier yet."""
        groups = self.grid[0] * self.grid[1] * self.grid[2]
        self._waves_per_group = waves_per_group
        members = groups if self.count > 1 else 0
        self._signals = np.zeros(members, np.int64)  #: of each cluster, since its barrier was last complete
        self._may_pass = np.zeros(members * waves_per_group, np.bool_)
        self._signalled = np.zeros(groups, np.bool_)  #: workgroups one of whose waves has come to their own barrier

    # -- who is where --------------------------------------------------------------------------------------------------

    def place(self, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of workgroups: the cluster's number, and the rank within it."""
        number, rank = np.zeros_like(group), np.zeros_like(group)
        clusters = ranks = 1
        for size, extent in zip(self.size, self.grid, strict=True):
            at, group = group % extent, group // extent
            number += at // size * clusters
            rank += at % size * ranks
            clusters, ranks = clusters * (extent // size), ranks * size
        return number, rank

    def together(self, groups: np.ndarray, order: np.random.Generator | None) -> np.ndarray:
        """Workgroups so that each cluster is a run of them, by rank; clusters in their order, or in a random one."""
        number, rank = self.place(groups)
        if order is not None:
            number = order.permutation(number.max(initial=0) + 1)[number]
        return groups[np.lexsort((rank, number))]

    def registers(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """TTMP6 (place in the cluster, its size), TTMP7 and TTMP9 (place of the cluster) of workgroups x, y, z."""
        sx, sy, sz = (U32(s) for s in self.size)
        sizes = (sx - 1) << 12 | (sy - 1) << 16 | (sz - 1) << 20 | U32(self.count - 1) << 24
        inside = x % sx | (y % sy) << U32(4) | (z % sz) << U32(8)
        return inside | U32(sizes), y // sy | (z // sz) << U32(16), x // sx

    def status(self, g: Waves) -> np.ndarray:
        """IB_STS2: bits 9:6 say whether there is a cluster, 24:21 the rank."""
        if self.count == 1:
            return np.zeros(g.count, np.int64)
        return np.int64(1 << 6) | self.place(g.ids // self._waves_per_group)[1] << 21

    # -- multicast -----------------------------------------------------------------------------------------------------

    def receivers(
        self, ids: np.ndarray, base: np.ndarray, lds: LocalMemory, mask: np.ndarray
    ) -> Iterator[tuple[np.ndarray | None, np.ndarray]]:
        """Where copies of waves go that name ranks by `mask` [wave]: which waves' (None: all), and bases [wave, 1].

        base: of the waves' own workgroups in `lds`. A mask of 0 names these, as every mask does outside of a cluster.
        """
        if self.count == 1 or not mask.any():
            yield None, base
            return
        if (mask == 0).any():
            yield mask == 0, base
        rank = self.place(ids // self._waves_per_group)[1]
        for r in range(self.count):
            named = (mask >> U32(r) & U32(1)).astype(np.bool_)
            if named.any():
                yield named, base + ((r - rank) * lds.stride)[:, None]

    # -- barriers ------------------------------------------------------------------------------------------------------

    def signal(self, ids: np.ndarray) -> None:
        """Waves signal the cluster's barrier."""
        for number in self.place(ids // self._waves_per_group)[0]:
            self._signals[number] += 1
            if self._signals[number] == self.count:
                self._signals[number] = 0
                groups = np.arange(len(self._signalled))
                members = groups[self.place(groups)[0] == number]
                waves = members[:, None] * self._waves_per_group + np.arange(self._waves_per_group)
                self._may_pass[waves] = True

    def passing(self, ids: np.ndarray) -> np.ndarray:
        """Which waves may leave the cluster's barrier; they have then left it."""
        if self.count == 1:
            return np.ones(len(ids), np.bool_)
        found = self._may_pass[ids]
        self._may_pass[ids] = False
        return found

    def first(self, ids: np.ndarray) -> np.ndarray:
        """Which waves are the first of their workgroup to signal the workgroup's barrier since it was complete."""
        group = ids // self._waves_per_group
        found = np.zeros(len(ids), np.bool_)
        found[np.unique(group, return_index=True)[1]] = True
        found &= ~self._signalled[group]
        self._signalled[group] = True
        return found

    def left(self, ids: np.ndarray) -> None:
        """Waves have passed the barrier of their workgroup."""
        self._signalled[ids // self._waves_per_group] = False


def passed(g: Waves, barrier: str) -> list[Waves]:
    """What becomes of waves that stand behind a "cluster", "named" or "launch" barrier: some go on, others wait."""
    free = _keeper(g, barrier).passing(g.ids)
    parts = [g] if free.all() or not free.any() else list(g.split(free))
    parts[0].at_barrier = "" if free.any() else barrier
    for part in parts[1:]:
        part.at_barrier = barrier
    return parts


def _keeper(g: Waves, barrier: str) -> Clusters | NamedBarriers | GlobalWaveSync:
    return {"cluster": g.memory.clusters, "named": g.memory.named, "launch": g.memory.sync}[barrier]


def release(groups: list[Waves], waves_per_group: int) -> list[Waves]:
    """Of the groups that wait at barriers, those that may go on.

    A workgroup's own barrier opens when all of its living waves wait there. `groups` gets the parts of split ones.
    """
    held = [g.ids // waves_per_group for g in groups if g.at_barrier != "workgroup"]
    outside = np.unique(np.concatenate(held)) if held else np.zeros(0, np.int64)
    free = []
    for g in list(groups):
        if not g.at_barrier:
            continue
        own = g.at_barrier == "workgroup"
        may = ~np.isin(g.ids // waves_per_group, outside) if own else _keeper(g, g.at_barrier).passing(g.ids)
        if not may.any():
            continue
        if not may.all():
            groups.remove(g)
            go, stay = g.split(may)
            groups += [go, stay]
            g = go
        free.append(g)
    return free


def barrier_id(ins: Instruction) -> int | None:
    """Which barrier an instruction means; None where M0 says so."""
    operand = ins.operands[0] if ins.operands else None
    if operand is None or operand.kind != "const":
        return None
    return (int(operand.value) + 0x8000) % 0x10000 - 0x8000


def _is_named(ins: Instruction, gpu: Gpu) -> bool:
    number = barrier_id(ins)
    return gpu.major == 12 and (number is None or number >= 0)


def is_barrier(name: str) -> bool:
    """Whether waves may have to wait behind an instruction for others to come."""
    return name in ("s_barrier", "s_barrier_wait") or waits(name)


def held_by(ins: Instruction, gpu: Gpu) -> str:
    """Which barrier a wait is for: "cluster", "named", "launch", or "barrier" for the workgroup's."""
    if waits(ins.name):
        return "launch"
    if ins.name != "s_barrier_wait":
        return "barrier"
    return "cluster" if barrier_id(ins) == BARRIER else "named" if _is_named(ins, gpu) else "barrier"


def _build_signal(ins: Instruction, target: Target) -> Step:
    if _is_named(ins, target.gpu):

        def step(g: Waves) -> None:
            signal(g, ins)

        return step
    if barrier_id(ins) != BARRIER:
        return lambda g: None
    return lambda g: g.memory.clusters.signal(g.ids) if g.memory.clusters.count > 1 else None


def _build_first(ins: Instruction, target: Target) -> Step:
    """SCC says whether the wave is the first of its workgroup to signal."""
    if _is_named(ins, target.gpu):

        def step_of_named(g: Waves) -> None:
            g.scc[...] = signal(g, ins)

        return step_of_named

    def step(g: Waves) -> None:
        g.scc[...] = g.memory.clusters.first(g.ids)

    return step


special("s_barrier_signal", _build_signal)
special("s_barrier_signal_isfirst", _build_first)

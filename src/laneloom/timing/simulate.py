"""One workgroup processor, event by event: its waves take turns at the pipes and wait for what is under way.

Each wave has one instruction that it wants to issue, at the time when its operands are there. The earliest request is
served first; a pipe that is busy makes it wait. Every wave issues at most one instruction per cycle, every SIMD at most
one per cycle and pipe (RDNA architecture white paper). Loads and LDS are found done by the waits that the code has.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from .caches import Memory
from .decode import COUNTERS, SCALARS, Cost, Pipe
from .machine import Machine

_REGISTERS = SCALARS + 128
_VALU, _SALU, _SCALAR, _LDS, _LOAD, _STORE = (
    int(Pipe.VALU), int(Pipe.SALU), int(Pipe.SCALAR_MEMORY), int(Pipe.LDS), int(Pipe.LOAD), int(Pipe.STORE),
)  # fmt: skip


@dataclass(slots=True)
class Stream:
    """What one wave executes: instructions by number, and for each what it asks of a memory (None elsewhere)."""

    workgroup: int
    instructions: list[int]
    asked: list
    marks: dict[int, int] = field(default_factory=dict)  #: place in `instructions` -> mark reached there


@dataclass(slots=True)
class Slice:
    """One instruction of the timeline: cycles."""

    wave: int
    simd: int
    instruction: int
    wanted: float  #: its operands are there
    start: float  #: its pipe takes it
    free: float  #: its pipe takes the next
    end: float  #: its result is there


@dataclass
class Outcome:
    """One simulated WGP."""

    cycles: float
    busy: dict[str, float]  #: pipe -> cycles in use, over those of all its copies in the WGP (0 to 1)
    stalls: dict[str, float]  #: reason -> part of the waves' time
    marks: list[dict[int, float]]  #: of each wave: mark -> when
    ends: list[float]
    issued: int
    slices: list[Slice]


@dataclass(slots=True)
class _Group:
    """The barriers of one workgroup."""

    waves: int
    arrived: int = 0
    latest: float = 0.0  #: arrival so far
    released: list[float] = field(default_factory=list)  #: of each barrier so far
    blocked: list[_Wave] = field(default_factory=list)


class _Wave:
    """One wave while it runs."""

    __slots__ = (
        "at", "epoch", "group", "marks", "number", "pending", "place", "priority", "ready", "simd", "since", "stalls",
        "stream",
    )  # fmt: skip

    def __init__(self, number: int, stream: Stream, group: _Group, simd: int):
        self.number, self.stream, self.group, self.simd = number, stream, group, simd
        self.place = 0
        self.at = 0.0
        self.ready = [0.0] * _REGISTERS
        self.pending: list[list[float]] = [[] for _ in COUNTERS]
        self.priority = 0
        self.epoch = 0
        self.since = 0.0
        self.marks: dict[int, float] = {}
        self.stalls: dict[str, float] = dict.fromkeys(_REASONS, 0.0)


_REASONS = (
    "dependency", "VALU", "matrix", "SALU", "LDS pipe", "L0 pipe", "LDS data", "memory", "scalar loads", "barrier",
    "branch",
)  # fmt: skip
_WAITS = {
    "lgkmcnt": "LDS data", "dscnt": "LDS data", "kmcnt": "scalar loads", "vmcnt": "memory", "loadcnt": "memory",
    "vscnt": "memory", "storecnt": "memory",
}  # fmt: skip
_OUT_OF_ORDER = tuple(COUNTERS.index(c) for c in ("lgkmcnt", "kmcnt"))


def simulate(
    machine: Machine,
    code: Sequence[Cost],
    streams: Sequence[Stream],
    memory: Memory,
    *,
    whole_wgp: bool = False,
    timeline_of: int | None = None,
) -> Outcome:
    """Run the waves of `streams` on one WGP from one start.

    whole_wgp: the waves of a workgroup spread over both CUs (WGP mode); else workgroups alternate between the CUs.
    timeline_of: the workgroup whose instructions are kept.
    """
    return _Wgp(machine, code, streams, memory, whole_wgp, timeline_of).run()


class _Wgp:
    def __init__(self, machine, code, streams, memory, whole_wgp, timeline_of):
        self.machine: Machine = machine
        self.code: Sequence[Cost] = code
        self.memory: Memory = memory
        self.timeline_of = timeline_of
        self.slices: list[Slice] = []
        self.valu_free = [0.0] * 4
        self.trans_free = [0.0] * 4
        self.salu_free = [0.0] * 4
        self.matrix_free = [0.0] * 4
        self.lds_free = [0.0] * machine.cus
        self.port_free = [0.0] * 2
        self.busy = dict.fromkeys(("VALU", "matrix", "transcendental", "SALU", "LDS"), 0.0)
        numbers = list(dict.fromkeys(s.workgroup for s in streams))
        groups = {n: _Group(sum(s.workgroup == n for s in streams)) for n in numbers}
        self.waves: list[_Wave] = []
        load = [0] * 4
        for k, stream in enumerate(streams):
            unit = numbers.index(stream.workgroup) % 2
            simds = range(4) if whole_wgp or machine.cus == 1 else (2 * unit, 2 * unit + 1)
            simd = min(simds, key=lambda s: load[s])
            load[simd] += 1
            self.waves.append(_Wave(k, stream, groups[stream.workgroup], simd))
        self.queue: list[tuple[float, int, int]] = []
        self.issued = 0

    def run(self) -> Outcome:
        start = float(self.machine.wave_start_cycles)
        for wave in self.waves:
            self._advance(wave, start)
        queue = self.queue
        while queue:
            at, _, number = heapq.heappop(queue)
            self._issue(self.waves[number], at)
        ends = [w.at for w in self.waves]
        # What the last stores still move keeps those that come after from moving theirs.
        cycles = max(max(ends, default=0.0), self.memory.l2_free, self.memory.memory_free)
        total = max(cycles, 1.0)
        cus = self.machine.cus
        copies = {"VALU": 4, "matrix": 4, "transcendental": 4, "SALU": 4, "LDS": cus, "L0": cus, "L2": 1, "memory": 1}
        busy = {name: x / copies[name] / total for name, x in {**self.busy, **self.memory.busy}.items()}
        lived = max(sum(ends), 1.0)
        stalls = {reason: sum(w.stalls[reason] for w in self.waves) / lived for reason in _REASONS}
        return Outcome(cycles, busy, stalls, [w.marks for w in self.waves], ends, self.issued, self.slices)

    def _issue(self, wave: _Wave, at: float) -> None:
        """The wave's next instruction takes its pipe; then the wave goes on to the one after."""
        stream = wave.stream
        place = wave.place
        index = stream.instructions[place]
        cost = self.code[index]
        simd, pipe, machine = wave.simd, int(cost.pipe), self.machine
        cu = simd >> 1 if machine.cus == 2 else 0
        ready = wave.ready
        if cost.hold and max(self.matrix_free[simd], self.valu_free[simd]) > at:
            # Others may use the VALU until the matrix core is free.
            later = max(self.matrix_free[simd], self.valu_free[simd])
            wave.stalls["matrix"] += later - at
            heapq.heappush(self.queue, (later, -wave.priority, wave.number))
            return
        self.issued += 1
        if cost.hold:
            busy, start = cost.busy, at
            self.matrix_free[simd], self.valu_free[simd] = start + busy, start + cost.hold
            self.busy["matrix"] += busy
            done = start + cost.latency
            for register in cost.writes:
                ready[register] = done
        elif pipe == _VALU:
            busy = cost.busy
            start = max(at, self.valu_free[simd])
            if cost.trans:
                start = max(start, self.trans_free[simd])
                self.trans_free[simd] = start + cost.trans
                self.busy["transcendental"] += cost.trans
            self.valu_free[simd] = start + busy
            self.busy["matrix" if cost.matrix else "VALU"] += busy
            done = start + cost.latency
            for register in cost.writes:
                ready[register] = done
            wave.stalls["matrix" if cost.matrix else "VALU"] += start - at
        elif pipe == _LDS:
            busy = sum(phases + extra for phases, extra in stream.asked[place] or ((2, 0),)) / machine.lds_pace
            if machine.lds_port_bytes:
                start, done = self._shared_lds(simd >> 1, at, busy)
            else:
                start = max(at, self.lds_free[cu])
                self.lds_free[cu] = start + busy
                done = start + machine.lds_latency + busy
            self.busy["LDS"] += busy
            wave.stalls["LDS pipe"] += start - at
            self._under_way(wave, cost, done)
        elif pipe in (_LOAD, _STORE):
            lines = stream.asked[place][0] if stream.asked[place] else _SCRATCH_LINES
            move = self.memory.load if pipe == _LOAD else self.memory.store
            start, done = move(cu, at, lines, cost.register_bytes, cost.lanes)
            busy = max(len(lines), 1)
            wave.stalls["L0 pipe"] += start - at
            self._under_way(wave, cost, done)
        elif pipe == _SCALAR:
            start, busy = at, 1
            done = self.memory.scalar(at, stream.asked[place][0] if stream.asked[place] else ())
            self._under_way(wave, cost, done)
        else:
            start = max(at, self.salu_free[simd])
            busy = machine.issue_cycles
            self.salu_free[simd] = start + busy
            self.busy["SALU"] += busy
            done = start + machine.salu_latency
            for register in cost.writes:
                ready[register] = done
            wave.stalls["SALU"] += start - at
        if stream.workgroup == self.timeline_of:
            self.slices.append(Slice(wave.number, simd, index, at, start, start + busy, done))
        wave.place = place + 1
        self._advance(wave, start + machine.issue_cycles)

    def _shared_lds(self, pair: int, at: float, busy: float) -> tuple[float, float]:
        """(issue, arrival) of an access of `busy` clocks of the banks, which all SIMDs share; each pair has its port.

        A queue in front of each port lets waves go on while their accesses wait.
        """
        machine = self.machine
        port = busy * machine.lds_bytes_per_clock / machine.lds_port_bytes
        issue = max(at, self.port_free[pair] - machine.lds_queue * port)
        start = max(issue, self.port_free[pair], self.lds_free[0])
        self.lds_free[0], self.port_free[pair] = start + busy, start + port
        return issue, start + machine.lds_latency + port

    def _under_way(self, wave: _Wave, cost: Cost, done: float) -> None:
        """Put a memory operation on its counters. Those of one counter are done in order, but for scalar loads."""
        for counter in cost.counters:
            pending = wave.pending[counter]
            if pending and counter not in _OUT_OF_ORDER:
                done = max(done, pending[-1])
            pending.append(done)

    def _advance(self, wave: _Wave, at: float) -> None:
        """From `at` on the wave looks for its next instruction that needs a pipe, and asks for that pipe."""
        stream, code, machine = wave.stream, self.code, self.machine
        instructions, place, group = stream.instructions, wave.place, wave.group
        count = len(instructions)
        while place < count:
            if place in stream.marks:
                wave.marks[stream.marks[place]] = at
            cost = code[instructions[place]]
            pipe = cost.pipe
            if pipe is Pipe.NONE:
                at += cost.nap
                for counter, most in cost.waits:
                    at = self._wait(wave, counter, most, at)
                if cost.priority is not None:
                    wave.priority = cost.priority
            elif pipe is Pipe.BRANCH:
                at += machine.issue_cycles
                if stream.asked[place]:  # taken
                    at += machine.branch_cycles
                    wave.stalls["branch"] += machine.branch_cycles
            elif pipe is Pipe.SIGNAL or pipe is Pipe.BARRIER or pipe is Pipe.WAIT_BARRIER:
                at += machine.issue_cycles
                if pipe is not Pipe.WAIT_BARRIER:
                    wave.epoch += 1
                    group.arrived += 1
                    group.latest = max(group.latest, at) if machine.barrier_latest else at
                    if group.arrived == group.waves:
                        self._release(group)
                if pipe is not Pipe.SIGNAL:
                    if len(group.released) < wave.epoch:
                        wave.place, wave.since = place + 1, at
                        group.blocked.append(wave)
                        return
                    released = group.released[wave.epoch - 1]
                    if released > at:
                        wave.stalls["barrier"] += released - at
                        at = released
            elif pipe is Pipe.END:
                break
            else:
                wanted = at
                ready = wave.ready
                for register in cost.reads:
                    if ready[register] > at:
                        at = ready[register]
                wave.stalls["dependency"] += at - wanted
                wave.place = place
                heapq.heappush(self.queue, (at, -wave.priority, wave.number))
                return
            place += 1
        if count in stream.marks:
            wave.marks[stream.marks[count]] = at
        wave.place, wave.at = count, at
        group.waves -= 1
        if group.waves and group.arrived == group.waves:
            group.latest = max(group.latest, at) if machine.barrier_latest else at
            self._release(group)

    def _wait(self, wave: _Wave, counter: int, most: int, at: float) -> float:
        pending = wave.pending[counter]
        if len(pending) <= most:
            return at
        done = max(pending) if counter in _OUT_OF_ORDER and not most else max(pending[: len(pending) - most])
        del pending[: len(pending) - most]
        if done > at:
            wave.stalls[_WAITS.get(COUNTERS[counter], "memory")] += done - at
            return done
        return at

    def _release(self, group: _Group) -> None:
        """All waves of the workgroup have arrived."""
        release = group.latest + self.machine.barrier_cycles
        group.released.append(release)
        group.arrived = 0
        blocked, group.blocked = group.blocked, []
        for wave in blocked:
            wave.stalls["barrier"] += release - wave.since
            self._advance(wave, release)


_SCRATCH_LINES = (-1,)  #: a wave's slot of scratch memory: one line per access, always in L0

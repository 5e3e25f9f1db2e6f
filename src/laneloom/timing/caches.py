"""Memory as one WGP sees it: an L0 cache for each CU, and its share of the L2, of the Infinity Cache and of memory.

Each of them is a queue with a rate and a latency. What the L2 can share between WGPs is known beforehand, by
`trace.Reach`: of the lines that reach the L2 the part `missing` has to be fetched, the rest another WGP has fetched.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from .machine import Machine
from .trace import LINE_BYTES


class Memory:
    """The memory system of one WGP while one simulation runs. Times are cycles."""

    def __init__(self, machine: Machine, missing: float, far: float, near: bool = False):
        self.machine = machine
        self.missing = missing  #: part of the L2's requests that it has to fetch
        clock = machine.clock_ghz
        self._sets = machine.l0_bytes // LINE_BYTES // machine.l0_ways
        self.l0 = [[OrderedDict[int, float]() for _ in range(self._sets)] for _ in range(machine.cus)]
        self.l0_free = [0.0] * machine.cus
        self.in_flight: list[deque[float]] = [deque() for _ in range(machine.cus)]  #: arrivals
        self.scalars: dict[int, float] = {}
        self.l2_free = self.memory_free = 0.0
        self.l2_line = LINE_BYTES * machine.wgps / machine.l2_bytes_per_clock
        # What the L2 fetches, shared by all WGPs: the part `far` from memory, all of it past the Infinity Cache.
        rate = min(machine.memory_gbs / max(far, 1e-9), machine.mall_gbs or machine.memory_gbs)
        self.memory_line = LINE_BYTES * machine.wgps * clock / rate  # bytes per clock = GB/s over GHz
        stored = machine.mall_gbs if near else machine.memory_gbs  # near: the Infinity Cache holds all arguments
        self.store_line = LINE_BYTES * machine.wgps * clock / stored
        self.memory_latency = clock * (far * machine.memory_latency_ns + (1 - far) * machine.mall_latency_ns)
        self._owed = 0.0
        self.busy = {"L0": 0.0, "L2": 0.0, "memory": 0.0}
        self.requests = {"L0": 0, "L2": 0, "memory": 0}

    def load(
        self, cu: int, at: float, lines: tuple[int, ...], register_bytes: int, lanes: int
    ) -> tuple[float, float]:  # fmt: skip
        """(start, arrival of the last byte) of a wave's load of these lines that a CU issues at `at`."""
        m = self.machine
        start = max(at, self.l0_free[cu])
        busy = max(len(lines), register_bytes / m.l0_bytes_per_clock, lanes / m.l0_lanes_per_clock)
        self.l0_free[cu] = start + busy
        self.busy["L0"] += busy
        self.requests["L0"] += len(lines)
        arrival = start + m.l0_latency + busy
        for line in lines:
            cache = self.l0[cu][line % self._sets]
            there = cache.pop(line, None)
            if there is None:
                there = self._fetch(self._room(cu, start))
                if m.l0_in_flight:
                    self.in_flight[cu].append(there)
                if len(cache) >= m.l0_ways:
                    cache.popitem(last=False)
            cache[line] = there
            arrival = max(arrival, there)
        return start, arrival

    def _room(self, cu: int, at: float) -> float:
        """When another line can be asked for: the L0 has a place for each that is under way."""
        arrivals = self.in_flight[cu]
        while arrivals and arrivals[0] <= at:
            arrivals.popleft()
        if self.machine.l0_in_flight and len(arrivals) >= self.machine.l0_in_flight:
            return max(at, arrivals.popleft())
        return at

    def _fetch(self, at: float) -> float:
        """When a line that L0 lacks arrives."""
        start = max(at, self.l2_free)
        self.l2_free = start + self.l2_line
        self.busy["L2"] += self.l2_line
        self.requests["L2"] += 1
        arrival = start + self.machine.l2_latency
        self._owed += self.missing
        if self._owed >= 1:
            self._owed -= 1
            arrival = self._from_memory(start)
        return arrival

    def _from_memory(self, at: float) -> float:
        start = max(at, self.memory_free)
        self.memory_free = start + self.memory_line
        self.busy["memory"] += self.memory_line
        self.requests["memory"] += 1
        return start + self.memory_latency

    def store(
        self, cu: int, at: float, lines: tuple[int, ...], register_bytes: int, lanes: int
    ) -> tuple[float, float]:  # fmt: skip
        """(start, acknowledgement) of a wave's store; it goes to the L2, which writes each line to memory once."""
        m = self.machine
        start = max(at, self.l0_free[cu])
        busy = max(len(lines), register_bytes / m.l0_bytes_per_clock, lanes / m.l0_lanes_per_clock)
        self.l0_free[cu] = start + busy
        self.busy["L0"] += busy
        done = start + busy
        part = min(1.0, register_bytes / max(len(lines), 1) / LINE_BYTES)
        for line in lines:
            self.l0[cu][line % self._sets].pop(line, None)
            self.l2_free = max(start, self.l2_free) + self.l2_line * part
            self.busy["L2"] += self.l2_line * part
            self.memory_free = max(start, self.memory_free) + self.store_line * part
            self.busy["memory"] += self.store_line * part
            done = max(done, self.l2_free)
        return start, done + m.l2_latency

    def scalar(self, at: float, lines: tuple[int, ...]) -> float:
        """When a scalar load's last word arrives."""
        arrival = at + self.machine.scalar_latency
        for line in lines:
            if line not in self.scalars:
                self.scalars[line] = self._fetch(at)
            arrival = max(arrival, self.scalars[line])
        return arrival

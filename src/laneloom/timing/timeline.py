"""The timeline of one workgroup as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

One process for each SIMD, one track for each wave: the time that an instruction holds its pipe, cut off where the wave
goes on to its next one (Perfetto drops bars of one track that overlap), and before it the time that it waits for the
pipe. Loads, stores and LDS accesses have a bar of their own from issue to arrival. One microsecond of the trace is one
cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from .decode import Pipe, decode
from .machine import Machine
from .prediction import KernelPrediction
from .simulate import Slice

_UNDER_WAY = (Pipe.LDS, Pipe.LOAD, Pipe.STORE, Pipe.SCALAR_MEMORY)


def trace_events(kernel: KernelPrediction, machine: Machine) -> dict[str, Any]:
    """The trace as JSON can hold it: `traceEvents` and, in `otherData`, what it shows."""
    code = kernel.program.listing.instructions
    pipes = [decode(ins, machine, kernel.program.lanes).pipe for ins in code]
    events: list[dict[str, Any]] = []
    seen: set[tuple[int, int]] = set()
    slices = kernel.outcome.slices
    for number, (s, goes_on) in enumerate(zip(slices, _next_starts(slices), strict=True)):
        if (s.simd, s.wave) not in seen:
            seen.add((s.simd, s.wave))
            events.append(_name("process_name", s.simd, s.wave, f"SIMD {s.simd}"))
            events.append(_name("thread_name", s.simd, s.wave, f"wave {s.wave}"))
        ins, pipe = code[s.instruction], pipes[s.instruction]
        where = {"pid": s.simd, "tid": s.wave, "cat": pipe.name}
        if s.start > s.wanted:
            events.append(where | {"name": "waits for its pipe", "ph": "X", "ts": s.wanted, "dur": s.start - s.wanted})
        about = {"line": ins.line, "text": ins.text, "source": str(ins.source) if ins.source else None}
        about["pipe_held_cycles"] = s.free - s.start
        shown = min(s.free, goes_on) - s.start
        events.append(where | {"name": ins.name, "ph": "X", "ts": s.start, "dur": shown, "args": about})
        if pipe in _UNDER_WAY:
            flight = where | {"name": f"{ins.name} under way", "id": number}
            events += [flight | {"ph": "b", "ts": s.start}, flight | {"ph": "e", "ts": s.end}]
    about = {
        "label": "predicted", "kernel": kernel.kernel, "gpu": kernel.gpu, "unit": "1 us of the trace is 1 cycle",
        "clock_ghz": kernel.clock_ghz, "limiter": kernel.limiter,
    }  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _next_starts(slices: Sequence[Slice]) -> list[float]:
    """Of each slice, when the next one of its wave begins, its wait for the pipe included."""
    found = [inf] * len(slices)
    last: dict[tuple[int, int], int] = {}
    for number in sorted(range(len(slices)), key=lambda number: slices[number].start):
        s = slices[number]
        if (before := last.get((s.simd, s.wave))) is not None:
            found[before] = min(s.wanted, s.start)
        last[s.simd, s.wave] = number
    return found


def _name(kind: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": text}}

"""Predict how long a call takes on a GPU: `predict(lambda: matmul(a, b), "gfx1100")`.

The call runs under `emulated`, but only the workgroups of one WGP are executed, in full, and those that run beside them
for a moment; the addresses are those of the real launch. What C holds afterwards means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..emulator.driver import emulated
from ..emulator.launch import LaunchRecord, launch
from ..emulator.memory import Region
from ..emulator.program import Program
from ..errors import ArgumentError
from ..gpu import Gpu, get_gpu
from ..isa.occupancy import occupancy
from .caches import Memory
from .decode import decode
from .machine import Machine, cus_together, machine_of
from .prediction import KernelPrediction, Prediction
from .simulate import Outcome, simulate
from .streams import PACE_ENDS, PACE_STARTS, Cut, cut_streams
from .trace import Reach, Trace

_MOST_BESIDE = 4096  #: waves that are looked at for what the L2 can share


def predict(call: Callable[[], Any], gpu: str | Gpu, *, machine: Machine | None = None) -> Prediction:
    """The predicted time of everything that `call` launches, on `gpu` (gfx11, gfx12, gfx942 or gfx950).

    call: launches kernels on CPU tensors or arrays, as inside `laneloom.emulated`; what they write is incomplete.
    machine: the costs to use in place of the GPU's own (`timing.machine`).
    Raises ArgumentError where the call launches nothing, UnsupportedError for a GPU without a model.
    """
    machine = machine or machine_of(gpu)
    samples = sample(call, gpu)
    if not samples:
        raise ArgumentError("the call launched no kernel, so there is no time to predict")
    return Prediction(tuple(evaluate(s, machine) for s in samples), machine.launch_us)


@dataclass(frozen=True)
class Sample:
    """What the emulator saw of one launch: enough to predict it for any costs."""

    program: Program
    grid: tuple[int, int, int]
    waves: int  #: of a workgroup
    whole_wgp: bool
    resident: int  #: workgroups of one WGP, on CDNA of one CU
    cuts: list[Cut]
    missing: float  #: part of the L2's requests that nobody else has asked for
    footprint: int  #: bytes of all arguments
    loaded: int  #: bytes of the lines that the workgroups of one WGP load
    sources: int  #: bytes of the arguments that are loaded from
    executed: int  #: instructions of one workgroup

    @property
    def workgroups(self) -> int:
        """Of the whole grid."""
        return math.prod(self.grid)


class Sampler:
    """Stands in for `emulator.launch.launch`, and keeps a sample of every launch."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self.samples: list[Sample] = []

    def launch(
        self,
        program: Program,
        grid: Sequence[int],
        kernarg: bytes,
        *,
        workgroup_size: int | Sequence[int],
        lds_bytes: int = 0,
        regions: Sequence[Region] = (),
        **_: Any,
    ) -> LaunchRecord:
        """Execute some workgroups of a launch."""
        x, y, z = [*grid, 1, 1][:3]
        together = cus_together(self.gpu)
        groups, wgps, dies = x * y * z, self.gpu.compute_units // together, machine_of(self.gpu).dies
        threads = math.prod(workgroup_size) if isinstance(workgroup_size, Sequence) else workgroup_size
        waves = -(-threads // program.lanes)
        whole_wgp = together == 2 and bool(program.listing.directive("workgroup_processor_mode", 1))
        lds = max(lds_bytes, program.listing.directive("group_segment_fixed_size"))
        by_registers = self.gpu.waves_per_simd(program.listing.directive("next_free_vgpr", 256), program.lanes)
        fits = occupancy(
            self.gpu, by_registers=by_registers, lds_bytes=lds, num_warps=waves, workgroup_processor_mode=whole_wgp
        )
        resident = min(max(1, fits.workgroups * (1 if whole_wgp else together)), -(-groups // wgps))

        def run(observer: Trace | Reach) -> LaunchRecord:
            return launch(
                program, grid, kernarg, workgroup_size=workgroup_size, lds_bytes=lds_bytes, regions=regions,
                observer=observer,
            )  # fmt: skip

        # Workgroups go to the WGPs in turn, so the first WGP has every wgps-th.
        trace = Trace(np.arange(resident) * wgps)
        record = run(trace)
        cuts = cut_streams(trace)
        executed = sum(c.executed for c in cuts) // resident
        until = max((max(c.stream.marks, default=0) for c in cuts), default=0)
        # Those of other dies ask another L2.
        beside = min(groups, resident * wgps, max(1, _MOST_BESIDE // waves * dies))
        reach = Reach(np.arange(0, beside, dies), until or executed // waves, wgps // dies)
        run(reach)
        apart, distinct = reach.count()
        self.samples.append(
            Sample(
                program, (x, y, z), waves, whole_wgp, resident, cuts, distinct / apart if apart else 1.0,
                sum(r.nbytes for r in regions), *trace.loaded(), executed,
            )
        )  # fmt: skip
        return record


def sample(call: Callable[[], Any], gpu: str | Gpu) -> list[Sample]:
    """What the emulator sees of everything that `call` launches."""
    row = get_gpu(gpu)
    sampler = Sampler(row)
    with emulated(row) as emulation:
        emulation.launcher = sampler.launch
        call()
    return sampler.samples


def evaluate(launched: Sample, machine: Machine, longer: float = 1.0) -> KernelPrediction:
    """The predicted time of a launch on `machine`, or of one whose main loop goes round `longer` times as often."""
    if machine.matrix_clock_ghz is not None:
        # Busy matrix cores lower the clock; a second look takes the one that the first calls for.
        first = evaluate(launched, replace(machine, matrix_clock_ghz=None), longer)
        slowed = _matrix_share(launched, first, machine, longer) * (machine.clock_ghz - machine.matrix_clock_ghz)
        return evaluate(launched, replace(machine, clock_ghz=machine.clock_ghz - slowed, matrix_clock_ghz=None), longer)
    program = launched.program
    code = [decode(ins, machine, program.lanes) for ins in program.listing.instructions]
    missing, far = _misses(launched, machine, longer)
    near = launched.footprint <= machine.mall_bytes

    def round_of(workgroups: int, timeline: bool = False) -> tuple[float, Outcome]:
        chosen = [c for c in launched.cuts if c.stream.workgroup // machine.wgps < workgroups]
        outcome = simulate(
            machine, code, [c.stream for c in chosen], Memory(machine, missing, far, near),
            whole_wgp=launched.whole_wgp,
            timeline_of=chosen[0].stream.workgroup if timeline and chosen else None,
        )  # fmt: skip
        return outcome.cycles + _left_out(outcome, chosen, longer), outcome

    cycles, outcome = round_of(launched.resident, timeline=True)
    at_once = launched.resident * machine.wgps
    full, rest = divmod(launched.workgroups, at_once)
    total = full * cycles
    if rest:
        last = -(-rest // machine.wgps)
        total += cycles if last == launched.resident else round_of(last)[0]
    # a launch that makes what others leave reads a part of its arguments
    read = launched.loaded * longer * machine.wgps * launched.workgroups / at_once
    moved = min(launched.footprint, launched.footprint - launched.sources + read) if read else launched.footprint
    bandwidth_us = moved / (machine.mall_gbs if near else machine.memory_gbs) * 1e-3
    time_us = max(total / machine.clock_ghz * 1e-3, bandwidth_us)
    return KernelPrediction(
        program.kernel, machine.gpu.name, time_us, _limiter(outcome, time_us, bandwidth_us), outcome.busy,
        outcome.stalls, launched.grid, launched.resident, launched.resident * launched.waves / 4,
        launched.workgroups / at_once, cycles, missing, bandwidth_us, launched.executed, outcome, program,
        machine.clock_ghz,
    )  # fmt: skip


def _misses(launched: Sample, machine: Machine, longer: float) -> tuple[float, float]:
    """The part of its requests that the L2 has to fetch, and the part of those that the Infinity Cache does not hold.

    The launch is one of many, as in a benchmark: arguments that fit a cache are there from the launch before. Else
    everything is fetched once, and what does not fit again for each round of workgroups.
    """
    if launched.footprint <= machine.mall_bytes:
        kept = machine.l2_kept and launched.footprint <= machine.l2_bytes
        return (0.0 if kept else launched.missing), 0.0
    rounds = launched.workgroups / (launched.resident * machine.wgps)
    asked = launched.loaded * longer * machine.wgps * rounds
    if not asked or not launched.sources:
        return launched.missing, 1.0
    missing = launched.missing
    if launched.sources <= machine.l2_bytes:  # of each die
        missing = min(missing, launched.sources * machine.dies / asked)
    first, beyond = launched.sources / (asked * missing), 1 - machine.mall_bytes / launched.sources
    return missing, min(1.0, max(first, beyond))


def _matrix_share(launched: Sample, predicted: KernelPrediction, machine: Machine, longer: float) -> float:
    """The part of a round in which the matrix cores are busy, what was not simulated included."""
    code = [decode(ins, machine, launched.program.lanes) for ins in launched.program.listing.instructions]
    cycles = [cost.busy if cost.matrix else 0 for cost in code]
    total = 0.0
    for cut in launched.cuts:
        stream = cut.stream.instructions
        total += sum(cycles[k] for k in stream)
        if cut.measured:
            place = {mark: at for at, mark in cut.stream.marks.items()}
            first, last = place[PACE_STARTS], place[PACE_ENDS]
            each = sum(cycles[k] for k in stream[first:last]) / cut.measured
            total += each * (cut.left_out + (longer - 1) * cut.iterations)
    return min(1.0, total / 4 / predicted.cycles)


def _left_out(outcome: Outcome, cuts: Sequence[Cut], longer: float) -> float:
    """Cycles of the iterations that were not simulated, at the pace of those that were."""
    paces = [
        (marks[PACE_ENDS] - marks[PACE_STARTS]) / cut.measured * (cut.left_out + (longer - 1) * cut.iterations)
        for marks, cut in zip(outcome.marks, cuts, strict=True)
        if cut.measured
    ]
    return sum(paces) / len(paces) if paces else 0.0


def _limiter(outcome: Outcome, time_us: float, bandwidth_us: float) -> str:
    """The pipe that is in use most of the time; else what waves wait for most."""
    if bandwidth_us >= 0.99 * time_us:
        return "memory bandwidth"
    used = dict(outcome.busy)
    used["VALU"] += used["matrix"]
    name, share = max(used.items(), key=lambda item: item[1])
    if name == "VALU" and used["matrix"] > used["VALU"] / 2:
        name = "matrix"
    if share >= 0.75:
        return f"{name} pipe"
    reason = max(outcome.stalls, key=lambda r: outcome.stalls[r])
    return f"waiting: {reason}"

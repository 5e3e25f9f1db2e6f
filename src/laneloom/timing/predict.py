"""Predict how long a call takes on a GPU: `predict(lambda: matmul(a, b), "gfx1100")`.

The call runs under `emulated`, but only the workgroups of one WGP are executed, in full, and those that run beside them
for a moment; the addresses are those of the real launch. What C holds afterwards means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from .machine import Machine, machine_of
from .prediction import KernelPrediction, Prediction
from .simulate import Outcome, simulate
from .streams import PACE_ENDS, PACE_STARTS, Cut, cut_streams
from .trace import Reach, Trace

_MOST_BESIDE = 4096  #: waves that are looked at for what the L2 can share


def predict(call: Callable[[], Any], gpu: str | Gpu, *, machine: Machine | None = None) -> Prediction:
    """The predicted time of everything that `call` launches, on `gpu` (gfx11 or gfx12).

    call: launches kernels on CPU tensors or arrays, as inside `laneloom.emulated`; what they write is incomplete.
    machine: the costs to use in place of the GPU's own (`timing.machine`).
    Raises ArgumentError where the call launches nothing, UnsupportedError for a GPU without a model.
    """
    machine = machine or machine_of(gpu)
    predictor = Predictor(machine)
    with emulated(get_gpu(gpu)) as emulation:
        emulation.launcher = predictor.launch
        call()
    if not predictor.kernels:
        raise ArgumentError("the call launched no kernel, so there is no time to predict")
    return Prediction(tuple(predictor.kernels), machine.launch_us)


class Predictor:
    """Stands in for `emulator.launch.launch`, and keeps a prediction of every launch."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.kernels: list[KernelPrediction] = []

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
        """Execute some workgroups, and predict the time of all."""
        m = self.machine
        sizes = [*grid, 1, 1][:3]
        groups = math.prod(sizes)
        threads = math.prod(workgroup_size) if isinstance(workgroup_size, Sequence) else workgroup_size
        waves = -(-threads // program.lanes)
        whole_wgp = bool(program.listing.directive("workgroup_processor_mode", 1))
        lds = max(lds_bytes, program.listing.directive("group_segment_fixed_size"))
        fits = occupancy(
            m.gpu, by_registers=m.gpu.waves_per_simd(program.listing.directive("next_free_vgpr", 256)), lds_bytes=lds,
            num_warps=waves, workgroup_processor_mode=whole_wgp,
        )  # fmt: skip
        resident = max(1, fits.workgroups * (1 if whole_wgp else 2))
        resident = min(resident, -(-groups // m.wgps))

        def run(observer: Trace | Reach) -> LaunchRecord:
            return launch(
                program, grid, kernarg, workgroup_size=workgroup_size, lds_bytes=lds_bytes, regions=regions,
                observer=observer,
            )  # fmt: skip

        trace = Trace(np.arange(resident) * m.wgps)
        record = run(trace)
        code = [decode(ins, m, program.lanes) for ins in program.listing.instructions]
        cuts = cut_streams(trace, code)
        executed = sum(c.executed for c in cuts) // max(resident, 1)
        until = max((min(c.stream.marks, default=0) and max(c.stream.marks) for c in cuts), default=0)
        missing = self._missing(run, groups, waves, resident, until or executed // waves)
        footprint = sum(r.nbytes for r in regions)
        mall_share = min(1.0, m.mall_bytes / footprint) if footprint else 0.0
        if footprint <= m.l2_bytes:
            mall_share = 1.0

        def round_of(workgroups: int, timeline: bool = False) -> tuple[float, Outcome]:
            chosen = [c for c in cuts if c.stream.workgroup // m.wgps < workgroups]
            outcome = simulate(
                m, code, [c.stream for c in chosen], Memory(m, missing, mall_share), whole_wgp=whole_wgp,
                timeline_of=chosen[0].stream.workgroup if timeline and chosen else None,
            )  # fmt: skip
            return outcome.cycles + _left_out(outcome, chosen), outcome

        cycles, outcome = round_of(resident, timeline=True)
        at_once = resident * m.wgps
        full, rest = divmod(groups, at_once)
        total = full * cycles
        if rest:
            last = -(-rest // m.wgps)
            total += cycles if last == resident else round_of(last)[0]
        bandwidth_us = footprint / m.memory_gbs * 1e-3
        time_us = max(total / m.clock_ghz * 1e-3, bandwidth_us)
        prediction = KernelPrediction(
            program.kernel, m.gpu.name, time_us, _limiter(outcome, time_us, bandwidth_us), outcome.busy,
            outcome.stalls, (sizes[0], sizes[1], sizes[2]), resident, resident * waves / 4, groups / at_once,
            cycles, missing, bandwidth_us, executed, outcome, program, m.clock_ghz,
        )  # fmt: skip
        self.kernels.append(prediction)
        return record

    def _missing(
        self, run: Callable[[Reach], Any], groups: int, waves: int, resident: int, instructions: int
    ) -> float:
        """The part of what reaches the L2 that no other WGP asks for in each wave's first `instructions`."""
        beside = min(groups, resident * self.machine.wgps)
        sampled = min(beside, max(1, _MOST_BESIDE // waves))
        reach = Reach(np.arange(sampled), instructions, self.machine.wgps)
        run(reach)
        apart, together = reach.count()
        return together / apart if apart else 1.0


def _left_out(outcome: Outcome, cuts: Sequence[Cut]) -> float:
    """Cycles of the iterations that were not simulated, at the pace of those that were."""
    from .streams import MEASURED

    paces = [
        (marks[PACE_ENDS] - marks[PACE_STARTS]) / MEASURED * cut.left_out
        for marks, cut in zip(outcome.marks, cuts, strict=True)
        if cut.left_out
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

"""What keeps a call from being faster: a sentence that follows from figures, measured on a GPU or predicted for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..gpu import Gpu

if TYPE_CHECKING:
    from ..timing import Prediction
    from .works import Work

NEAR = 0.6  #: of a ceiling, from which it is what limits
_CALLS = 20


@dataclass(frozen=True)
class KernelTime:
    """One kernel of a call."""

    name: str
    us: float  #: of one call
    launches: float  #: in one call


@dataclass(frozen=True)
class GpuProfile:
    """One warm call, measured."""

    kernels: tuple[KernelTime, ...]  #: most time first
    device_us: float  #: all kernels of a call, one after another
    call_us: float  #: from call to call, sustained
    host_us: float  #: until a call returns, without waiting for the GPU
    tflops: float
    gbs: float
    matrix_share: float | None  #: of the GPU table's peak for the dtype; None where it has none
    memory_share: float  #: of the GPU table's bandwidth

    @property
    def overlaps(self) -> bool:
        """Whether kernels begin before the one before them ends, by programmatic launch: their times then share."""
        return sum(k.us for k in self.kernels) > 1.05 * self.call_us

    @property
    def bottleneck(self) -> str:
        """The sentence."""
        return measured_bottleneck(self)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"label": "measured", "bottleneck": self.bottleneck}


def measured_bottleneck(p: GpuProfile) -> str:
    """What limits a measured call, and by which figures."""
    if p.host_us > p.device_us:
        return (
            f"the host: issuing a call takes {p.host_us:.1f} us and running it {p.device_us:.1f} us; calls in a CUDA "
            "graph, or larger ones, hide that"
        )
    top = p.kernels[0]
    rest = p.device_us - top.us
    if rest > 0.35 * p.device_us:
        others = len(p.kernels) - 1
        return (
            f"more than one kernel: {top.name} takes {top.us:.1f} us of {p.device_us:.1f} us, {others} "
            f"{'other' if others == 1 else 'others'} the rest"
        )
    shares = {"memory": p.memory_share, "arithmetic": p.matrix_share or 0.0}
    what, share = max(shares.items(), key=lambda item: item[1])
    if share >= NEAR:
        figure = f"{p.gbs:.0f} GB/s" if what == "memory" else f"{p.tflops:.1f} TFLOP/s"
        return f"{what}: {figure} are {share:.0%} of the GPU table's peak"
    return (
        f"neither memory ({p.memory_share:.0%} of its peak) nor arithmetic ({shares['arithmetic']:.0%}): latency. The "
        "product is too small to fill the GPU, or its work is uneven"
    )


def profile_work(work: Work, gpu: Gpu) -> GpuProfile:
    """Check one call, then measure it: its kernels by torch.profiler, its pace and its host time by the benchmarks."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from .timing import host_us, interleave

    work.check()
    timing = interleave({"laneloom": work.ours}, work.sets, rounds=7)["laneloom"]
    issued = host_us(work.ours, calls=_CALLS)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as trace:
        for i in range(_CALLS):
            work.ours(i % work.sets)
        torch.cuda.synchronize()
    sums: dict[str, list[float]] = {}
    for event in trace.events() or ():
        if event.device_type.name in ("CUDA", "HIP") and event.device_time_total > 0:
            sums.setdefault(event.name, []).append(event.device_time_total)
    kernels = sorted((KernelTime(n, sum(t) / _CALLS, len(t) / _CALLS) for n, t in sums.items()), key=lambda k: -k.us)
    if not kernels:
        # Where the profiler sees no kernel (no permission for its counters), the sustained pace stands for it.
        kernels = [KernelTime(f"{work.op}, all kernels", timing.median_us, 1.0)]
    # Kernels that overlap (programmatic launch) add up to more than the pace of calls.
    device_us = min(sum(k.us for k in kernels), timing.median_us)
    tflops, gbs = work.flops / timing.median_us * 1e-6, work.bytes / timing.median_us * 1e-3
    peak = gpu.peak_tflops.get(str(work.problem.get("dtype")))
    return GpuProfile(
        tuple(kernels), device_us, timing.median_us, issued, tflops, gbs, tflops / peak if peak else None,
        gbs / gpu.bandwidth_gbs,
    )  # fmt: skip


def predicted_bottleneck(prediction: Prediction) -> str:
    """What limits a predicted call, and by which figures."""
    slowest = prediction.slowest
    unit, busy = max(slowest.busy.items(), key=lambda item: item[1], default=("nothing", 0.0))
    if slowest.limiter in ("matrix pipe", "VALU pipe"):  # one unit issues to both
        unit, busy = "matrix and VALU together", slowest.busy["matrix"] + slowest.busy["VALU"]
    reason, stall = max(slowest.stalls.items(), key=lambda item: item[1], default=("nothing", 0.0))
    return (
        f"{slowest.limiter}: {unit} in use {busy:.0%} of the time, waves wait {stall:.0%} of theirs for {reason}; "
        f"{slowest.waves_per_simd:g} waves per SIMD, the GPU is filled {slowest.rounds:.1f} times"
    )


def shares_text(shares: Mapping[str, float]) -> str:
    """ "valu 41%, lds 20%": those of at least a hundredth, most first."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in ranked if share >= 0.01)

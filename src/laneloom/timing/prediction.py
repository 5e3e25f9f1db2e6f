"""What the timing model says of one launch, and of a call that launches several kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..emulator.program import Program
from .simulate import Outcome


@dataclass(frozen=True)
class KernelPrediction:
    """One launch. Everything is predicted, nothing measured."""

    kernel: str
    gpu: str
    time_us: float  #: of the launch, without the queue's time before it
    limiter: str  #: what keeps it from being faster
    busy: dict[str, float]  #: part of the time that each pipe is in use
    stalls: dict[str, float]  #: part of the waves' time that they wait, by reason
    grid: tuple[int, int, int]
    workgroups_per_wgp: int
    waves_per_simd: float
    rounds: float  #: how often the GPU is filled
    cycles: float  #: of one round
    l2_misses: float  #: part of the L2's requests that it has to fetch
    bandwidth_us: float  #: the least that moving the kernel's memory takes
    executed: int  #: instructions of one workgroup
    outcome: Outcome = field(repr=False, compare=False)  #: of one WGP, for the timeline
    program: Program = field(repr=False, compare=False)
    clock_ghz: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """The predicted time of everything that one call launches."""

    kernels: tuple[KernelPrediction, ...]
    launch_us: float  #: of each kernel: from one to the next in a queue

    label = "predicted"

    @property
    def time_us(self) -> float:
        """Kernels run one after another."""
        return sum(k.time_us + self.launch_us for k in self.kernels)

    @property
    def slowest(self) -> KernelPrediction:
        """The kernel that takes longest."""
        return max(self.kernels, key=lambda k: k.time_us)

    @property
    def limiter(self) -> str:
        """Of the kernel that takes longest."""
        return self.slowest.limiter

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "label": self.label,
            "time_us": self.time_us,
            "launch_us": self.launch_us,
            "limiter": self.limiter,
            "kernels": [
                {
                    "kernel": k.kernel, "gpu": k.gpu, "time_us": k.time_us, "limiter": k.limiter, "busy": k.busy,
                    "stalls": k.stalls, "grid": list(k.grid), "workgroups_per_wgp": k.workgroups_per_wgp,
                    "waves_per_simd": k.waves_per_simd, "rounds": k.rounds, "cycles": k.cycles,
                    "l2_misses": k.l2_misses, "bandwidth_us": k.bandwidth_us, "clock_ghz": k.clock_ghz,
                }
                for k in self.kernels
            ],
        }  # fmt: skip

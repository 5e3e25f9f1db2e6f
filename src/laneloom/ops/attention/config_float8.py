"""The schedule of attention on 8-bit floats: its knobs, what it can do, and which knobs a problem gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...gpu import Gpu
from .config_hopper import BARRIER_BYTES, PROCESSORS, Warpgroups, chunks, why_too_large
from .problem import HALVES, AttentionProblem

_LINE = 128  #: bytes of a line of shared memory, and elements of one
_WIDEST, _WIDEST_V = 256, 128
_PEAK = 8  #: weights are at most 2**8; the largest number in e4m3 is 448


@dataclass(frozen=True, kw_only=True)
class HopperFloat8Config(Warpgroups):
    """kernels/hopper_forward_float8.cu: warpgroups of 64 queries, warps that transpose values; tiles come by TMA."""

    role: Literal["forward"] = "forward"
    schedule: str = "hopper_forward_float8"  #: the kernel file's name
    consumers: int = 3  #: warpgroups that multiply
    stages: int = 2  #: blocks of keys, of values, and of transposed values, in shared memory
    q_buffers: int = 2  #: tiles of queries in shared memory: with 2 the next one comes while this one is worked on
    transposers: int = 3  #: warps that transpose values

    columns = _LINE  #: keys of a step: those of a line of transposed values
    peak = _PEAK

    @property
    def registers(self) -> tuple[int, int]:
        """Of a consumer's and of the producer's and transposers' threads."""
        return {1: (240, 56), 2: (240, 24), 3: (160, 32)}[self.consumers]

    def lds_bytes(self, problem: AttentionProblem) -> int:
        """Dynamic shared memory: queries (later the output), rings of keys, values and transposed values."""
        lines = -(-problem.d // _LINE)
        slab = max(lines, chunks(problem.d_v)) * 64 * _LINE
        ring = self.stages * _LINE * (self.columns * (lines + 1) + problem.d_v)
        return self.q_buffers * self.consumers * slab + ring + 1024

    def why_invalid(self, problem: AttentionProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if gpu.matrix_instructions != "wgmma":
            return f"8-bit operands are multiplied by wgmma, {gpu.name} ({gpu.family}) has none"
        if problem.dtype != "fp8" or problem.out_dtype not in HALVES:
            return f"q, k and v must be fp8 and O fp16 or bf16, got {problem.dtype} and {problem.out_dtype}"
        if problem.softcap:
            return "softcap is for fp16 and bf16 there, of 8-bit operands for AMD's GPUs"
        for name, d, widest in (("D", problem.d, _WIDEST), ("D of v", problem.d_v, _WIDEST_V)):
            if not 16 <= d <= widest or d % 16:
                return f"{name} of 8-bit operands must be a multiple of 16 from 16 to {widest}, got {d}"
        if not problem.scale > 0:
            return f"the maximum is taken before the scale, which must be above 0, got {problem.scale}"
        if self.consumers not in (1, 2, 3) or self.transposers not in (1, 2, 3) or min(self.stages, self.q_buffers) < 1:
            return (
                "consumers must be 1 to 3, stages and q_buffers at least 1, transposers 1 to 3, got "
                f"{self.consumers}, {self.stages}, {self.q_buffers}, {self.transposers}"
            )
        return why_too_large(self.lds_bytes(problem) + BARRIER_BYTES, gpu)


def float8_candidates(problem: AttentionProblem) -> list[HopperFloat8Config]:
    """Configs of the forward, best first: where tiles are fewer than multiprocessors, smaller ones run side by side."""
    # Three tiles of queries twice do not fit beside keys of more than 128 elements.
    found = [HopperFloat8Config(consumers=n, q_buffers=1 if n == 3 and problem.d > _LINE else 2) for n in (3, 2, 1)]
    fit = [config for config in found if config.tiles(problem) >= PROCESSORS]
    return [*fit, *reversed([config for config in found if config not in fit])]

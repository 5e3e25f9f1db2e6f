"""The time of `fused` and `flat` on Hopper by a model, which chooses how many tensors and warps a CTA has. Pure.

Launches follow each other. A grid of several waves rolls on: what takes longest of memory, arithmetic, the SMs' places
for CTAs and their beginnings, and the last CTA's own time behind. A grid that the GPU holds at once takes its CTAs' own
time and what they share. Fitted to results/h200/transform3d_configs.csv.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...gpu import Gpu

if TYPE_CHECKING:
    from .config import FusedConfig
    from .config_flat import FlatConfig
    from .problem import Transform3dProblem

SM_SHARED_BYTES = 228 * 1024
CTA_RESERVED_BYTES = 1024  #: what the driver takes of an SM's shared memory for each CTA
REGISTERS_OF_SM = 65536
_MOST_WARPS_OF_SM, _MOST_CTAS_OF_SM = 64, 32
_UNEVEN = 0.52, 0.93  #: shares of an SM's places at which the next launch takes what is left of them, unevenly


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The model's constants: microseconds, or of what they say."""

    at_once: float  #: a launch of a grid that the GPU holds at once
    rolling: float  #: and of one of several waves
    bandwidth: float  #: of memory, bytes in a microsecond
    unit: float  #: a matrix instruction of 4 steps of the contraction that an SM does among others
    chained: float  #: the same of a warp that does one behind the other
    converted: float  #: a number of an SM from FP32 and back, three times
    load: float  #: until a CTA's tensors come
    load_byte: float  #: and for each of their bytes
    plain: float  #: times what loading takes without bulk copies
    begin: float  #: of a CTA on an SM, one behind the other
    last: float  #: times a CTA's own time, behind what is rolling
    power: float  #: how sums of what overlaps are made: 1 nothing does, infinite all of it
    uneven: float  #: share that a grid loses which leaves places between `_UNEVEN`


@dataclass(frozen=True)
class Work:
    """What a config makes of a problem, by an SM and by a CTA."""

    units: float  #: matrix instructions of one tensor
    chain: float  #: and of the warp that has most of them
    registers: int  #: of a thread, if nothing limits them


def _up(x: int, of: int) -> int:
    return -(-x // of)


def fused_work(k: int, parts: int, group: int, warps: int) -> Work:
    """Of kernels/fused.cu: planes in phase A, 8 columns in phase B."""
    tiles, steps = _up(k, 8), _up(k, 4)
    plane, column = 2 * tiles * steps * _up(tiles, 2), steps * _up(tiles, 2) * parts
    chain = _up(group * k * parts, warps) * plane + _up(_up(group * k * k, 8), warps) * column
    return Work(k * parts * plane + k * k / 8 * column, chain, 40 * tiles)


def flat_work(k: int, parts: int, group: int, warps: int) -> Work:
    """Of kernels/flat.cu: 16 lines at a time, three times."""
    tiles, steps = _up(k, 8), _up(k, 4)
    chain = 3 * _up(_up(group * k * k * parts, 16), warps) * tiles * steps
    return Work(3 * k * k * parts / 16 * tiles * steps, chain, flat_registers(k))


def flat_registers(k: int) -> int:
    """Of a lane of kernels/flat.cu: the matrix and sums are FP64."""
    tiles = _up(k, 8)
    return 4 * tiles * tiles + 8 * tiles + 32


def ctas_by_memory(config: FusedConfig | FlatConfig, problem: Transform3dProblem) -> int:
    """That have room in the shared memory of one SM."""
    return min(SM_SHARED_BYTES // (config.shared_bytes(problem) + CTA_RESERVED_BYTES), _MOST_CTAS_OF_SM)


def ctas_of_sm(config: FusedConfig | FlatConfig, problem: Transform3dProblem, registers: int) -> int:
    """That fit on one SM."""
    allowed = min(REGISTERS_OF_SM // (32 * config.warps * config.ctas_per_sm), 255) // 8 * 8
    by_registers = REGISTERS_OF_SM // (32 * config.warps * min(_up(registers, 8) * 8, allowed))
    return max(min(ctas_by_memory(config, problem), by_registers, _MOST_WARPS_OF_SM // config.warps), 1)


def estimate_us(problem: Transform3dProblem, config: FusedConfig | FlatConfig, gpu: Gpu) -> float:
    """The model's time of one launch among others like it."""
    fused = config.schedule == "fused"
    costs, work_of = (FUSED, fused_work) if fused else (FLAT, flat_work)
    work = work_of(problem.k, problem.parts, config.group, config.warps)
    fit = ctas_of_sm(config, problem, work.registers)
    tensor = problem.k**3 * problem.element_bytes
    ctas = _up(problem.count, config.group)
    of_sm = ctas / gpu.compute_units  #: on average
    waves = ctas > fit * gpu.compute_units
    busiest = of_sm if waves else _up(ctas, gpu.compute_units)
    single = problem.element_bytes // problem.parts == 4
    memory = 2 * problem.count * tensor / costs.bandwidth
    converted = costs.converted * problem.k**3 * problem.parts if single else 0
    arithmetic = busiest * config.group * (work.units * costs.unit + converted)
    load = costs.load + costs.load_byte * 2 * config.group * tensor
    own = load * (1 if config.bulk else costs.plain) + work.chain * costs.chained
    if waves:
        power = costs.power
        shared = (memory, arithmetic, of_sm / fit * own, of_sm * costs.begin)
        return costs.rolling + sum(x**power for x in shared) ** (1 / power) + costs.last * own
    time = costs.at_once + memory + arithmetic + own + busiest * costs.begin
    return time * (1 + costs.uneven * (_UNEVEN[0] < of_sm / fit < _UNEVEN[1]))


FUSED = Costs(
    at_once=0.4115, rolling=0, bandwidth=5.655e6, unit=1.758e-3, chained=0.01287, converted=4.67e-5, load=0.7481,
    load_byte=4.38e-6, plain=4.19, begin=0.0218, last=1.613, power=1.336, uneven=0.081,
)  # fmt: skip  # what it converts and loads plainly was not measured: as FLAT
FLAT = Costs(
    at_once=1.117, rolling=1.656, bandwidth=4.911e6, unit=1.233e-3, chained=0.01238, converted=4.67e-5, load=0.1266,
    load_byte=9.48e-6, plain=4.19, begin=0.0565, last=1.202, power=1.274, uneven=0.0861,
)  # fmt: skip

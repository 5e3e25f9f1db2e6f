"""How many tensors and warps a CTA of `fused` and `flat` has on Hopper: for many tensors what was the fastest, where
that was measured and the model does worse, else what the model finds shortest. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from ...gpu import Gpu
from .config import CTA_RESERVED_BYTES, SM_SHARED_BYTES, FusedConfig
from .config_flat import PIECE, FlatConfig
from .model_hopper import REGISTERS_OF_SM, estimate_us
from .problem import Transform3dProblem

_TIMES = (1, 2, 3, 4, 6, 8, 12, 16)
_LEAST_BYTES, _MOST_BYTES = 1500, 40 * 1024  #: of a CTA's tensors, of tiny ones, and where it has several
_FUSED_WARPS, _FUSED_WARPS_COMPLEX = (4, 5, 6, 8, 12), (4, 5, 6)
_FLAT_WARPS = (3, 4, 5, 6, 7, 8, 10)
_FUSED_REGISTERS = (112, 80, 64)  #: that a thread may have at least
_FLAT_REGISTERS = (0, 128)  #: the same, or what the matrix and sums take
_LEAST_WARPS_OF_SM = 6
#: dtype -> K -> tensors and warps of a CTA that were the fastest of results/h200/transform3d_configs.csv on average of
#: the batches of MANY tensors and more
_OF_MANY: Mapping[str, Mapping[int, tuple[int, int]]] = {
    "fp64": {
        6: (2, 4), 9: (4, 7), 10: (4, 6), 11: (2, 8), 12: (2, 8), 13: (2, 8), 14: (1, 7), 15: (2, 10), 18: (1, 6),
        19: (2, 8), 21: (2, 8),
    },
    "fp32": {8: (2, 4), 13: (4, 8), 14: (2, 8), 20: (1, 4), 22: (1, 4), 28: (1, 8)},
    "complex128": {
        6: (4, 5), 7: (1, 4), 8: (1, 6), 9: (1, 6), 10: (1, 4), 11: (1, 8), 12: (1, 6), 18: (1, 8),
    },
    "complex64": {8: (2, 8), 20: (1, 10)},
}  # fmt: skip
MANY = 1000
FUSED_UP_TO = 12  #: K; beyond, a CTA of `fused` has one tensor, and its knobs are measured ones


def _fit(config: FusedConfig | FlatConfig, problem: Transform3dProblem, registers: int) -> int:
    """CTAs of an SM whose threads have so many registers."""
    by_memory = SM_SHARED_BYTES // (config.shared_bytes(problem) + CTA_RESERVED_BYTES)
    return min(REGISTERS_OF_SM // 32 // registers // config.warps, by_memory, 32)


def _valid(config: Any, registers: Sequence[int], problem: Transform3dProblem, gpu: Gpu) -> Iterator[Any]:
    """With as many CTAs of an SM as leave a thread so many registers, once each."""
    for fit in dict.fromkeys(_fit(config, problem, each) for each in registers):
        if fit * config.warps >= _LEAST_WARPS_OF_SM:
            each = replace(config, ctas_per_sm=fit)
            if each.why_invalid(problem, gpu) is None:
                yield each


def _groups(tensor: int, whole: int = 1) -> list[int]:
    """Numbers of a CTA's tensors of so many bytes, in their order; multiples of `whole` as well."""
    unit = max(_LEAST_BYTES // tensor, 1)
    found = {n * each for n in _TIMES for each in (unit, unit * whole, -(-unit // whole) * whole)}
    return [n for n in sorted(found) if n <= max(whole, unit) or n * tensor <= _MOST_BYTES]


def fused_configs(problem: Transform3dProblem, gpu: Gpu, bulk: bool) -> Iterator[FusedConfig]:
    """Of small tensors, with as many registers a thread as need none in memory."""
    k, tensor = problem.k, problem.k**3 * problem.element_bytes
    unroll = 1 if k % 8 == 2 else 2  # a last tile of two columns leaves most of its registers empty
    for group in _groups(tensor):
        for warps in _FUSED_WARPS if problem.parts == 1 else _FUSED_WARPS_COMPLEX:
            config = FusedConfig(group=group, warps=warps, bulk=bulk, unroll=unroll)
            if warps <= max(group * k * problem.parts, 4):
                yield from _valid(config, _FUSED_REGISTERS, problem, gpu)


def flat_configs(problem: Transform3dProblem, gpu: Gpu) -> Iterator[FlatConfig]:
    """Groups of whole 16 bytes by bulk copies, others by plain loads."""
    tensor = problem.k**3 * problem.element_bytes
    tiles = -(-problem.k // 8)
    registers = 4 * tiles**2 + 8 * tiles + 48  # a lane's: the matrix and sums are FP64
    whole = 1 if problem.vector_aligned else PIECE // gcd(PIECE, tensor)
    for group in _groups(tensor, whole):
        for warps in _FLAT_WARPS:
            config = FlatConfig(group=group, warps=warps, bulk=group % whole == 0)
            if config.bulk and config.why_invalid(problem, gpu) is not None:
                config = replace(config, bulk=False)
            if warps <= max(-(-group * problem.k**2 * problem.parts // 16), 3):
                yield from _valid(config, [max(registers, each) for each in _FLAT_REGISTERS], problem, gpu)


def _shortest(configs: Sequence[FusedConfig | FlatConfig], problem: Transform3dProblem, gpu: Gpu) -> Any:
    measured = _OF_MANY[problem.dtype].get(problem.k) if problem.count >= MANY else None
    known = [config for config in configs if config.bulk and (config.group, config.warps) == measured]
    return min(known or configs, key=lambda config: estimate_us(problem, config, gpu), default=None)


def fused_config(problem: Transform3dProblem, gpu: Gpu, bulk: bool) -> FusedConfig | None:
    """The shortest of them, if any fit."""
    return _shortest([*fused_configs(problem, gpu, bulk)], problem, gpu)


def flat_config(problem: Transform3dProblem, gpu: Gpu) -> FlatConfig | None:
    """The shortest of them, if any fit."""
    return _shortest([*flat_configs(problem, gpu)], problem, gpu)

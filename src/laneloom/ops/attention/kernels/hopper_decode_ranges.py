"""Attention of few queries over a cache on Hopper by programs that divide all keys evenly (hopper_decode_ranges.cu).

Wins on sm_90a over runs of one head's keys (hopper_decode.py) where lengths differ and heads are few, and where the
runs would leave a last round of programs half empty. Bound by memory. Source: "Stream-K" (Osama et al., 2023), for
the division; as for decode.py else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....codegen.code_object import CodeObject
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_decode import DecodeProblem, HopperRangesConfig
from ..hopper_decode_call import compiled, prepared


def code_object(problem: DecodeProblem, config: HopperRangesConfig, gpu: Gpu) -> CodeObject:
    """The machine code that what `prepare` gives runs."""
    return compiled(problem, config, gpu)


def prepare(
    problem: DecodeProblem, config: HopperRangesConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes out [B, N, H, D_V] and lse [B, H, N] for operands that lie as these do, by name. One launch.
    Raises UnsupportedError without the extra `cuda`."""
    units = config.units(problem)
    # Each program's part of each unit has a place of its own: program and unit never both stay the same.
    parts = units + config.ranges
    return prepared(problem, config, gpu, tensors, (problem.batch,), lambda _: (parts, units))

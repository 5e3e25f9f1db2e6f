"""Gradients of attention by Hopper's warpgroups for up to 64 columns (hopper_backward_narrow.cu), compiled by NVRTC.

Two warpgroups own keys, a third adds up dQ: five products, dQ by atomics. Wins on sm_90a where D and D of V are at
most 64. As in hopper_backward.cu the last bits of dQ may change from call to call, and `deterministic=True` takes the
general schedule. Source: as for that one; the roles are laneloom's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....codegen.code_object import CodeObject
from ....gpu import Gpu
from .. import hopper_gradients
from ..arguments import Tensors
from ..config_hopper import HopperBackwardNarrowConfig
from ..problem import AttentionProblem


def code_object(problem: AttentionProblem, config: HopperBackwardNarrowConfig, gpu: Gpu) -> CodeObject:
    """The machine code of the main kernel."""
    return hopper_gradients.owners_code(problem, config, gpu)


def prepare(
    problem: AttentionProblem, config: HopperBackwardNarrowConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes dq, dk and dv for operands that lie as these do, by three launches. Raises UnsupportedError without
    the extra `cuda`."""
    return hopper_gradients.prepare(problem, config, gpu, tensors, code_object)

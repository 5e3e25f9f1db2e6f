"""Gradients of attention by Hopper's warpgroups (hopper_backward.cu), compiled by NVRTC: five products, dQ by atomics.

Wins on sm_90a for head dimensions of 72 to 128. The order of dQ's additions is that of the programs, so that its last
bits may change from call to call; `deterministic=True` takes the general schedule. Source: Shah, Bikshandi, Zhang,
Thakkar, Ramani, Dao, "FlashAttention-3", arXiv:2407.08608; what stands where is laneloom's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....codegen.code_object import CodeObject
from ....gpu import Gpu
from .. import hopper_gradients
from ..arguments import Tensors
from ..config_hopper import HopperBackwardConfig
from ..problem import AttentionProblem


def code_object(problem: AttentionProblem, config: HopperBackwardConfig, gpu: Gpu) -> CodeObject:
    """The machine code of the main kernel."""
    return hopper_gradients.owners_code(problem, config, gpu)


def prepare(
    problem: AttentionProblem, config: HopperBackwardConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes dq, dk and dv for operands that lie as these do, by three launches. Raises UnsupportedError without
    the extra `cuda`."""
    return hopper_gradients.prepare(problem, config, gpu, tensors, code_object)

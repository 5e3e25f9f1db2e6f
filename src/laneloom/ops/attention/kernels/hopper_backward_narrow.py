"""Gradients of attention by Hopper's warpgroups for up to 64 columns (hopper_backward_narrow.cu), compiled by NVRTC.

Two warpgroups own keys, a third adds up dQ: five products, dQ by atomics. Wins on sm_90a where D and D of V are at
most 64. As in hopper_backward.cu the last bits of dQ may change from call to call, and `deterministic=True` takes the
general schedule. Source: as for that one; the roles are laneloom's.
"""

from __future__ import annotations

from ....codegen.code_object import CodeObject
from ....gpu import Gpu
from .. import hopper_gradients
from ..arguments import Tensors
from ..config_hopper import HopperBackwardNarrowConfig
from ..problem import AttentionProblem


def code_object(problem: AttentionProblem, config: HopperBackwardNarrowConfig, gpu: Gpu) -> CodeObject:
    """The machine code of the main kernel that `launch` runs."""
    return hopper_gradients.owners_code(problem, config, gpu)


def launch(problem: AttentionProblem, config: HopperBackwardNarrowConfig, gpu: Gpu, tensors: Tensors) -> None:
    """Write dq, dk and dv; see `Tensors`. Three launches. Raises UnsupportedError without the extra `cuda`."""
    hopper_gradients.launch(problem, config, gpu, tensors, code_object)

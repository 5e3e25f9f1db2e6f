"""Gradients of attention by Hopper's warpgroups for 128 to 256 columns (hopper_backward_wide.cu), compiled by NVRTC.

dK and dV of 64 keys fill a warpgroup's registers each, a third warpgroup computes scores and dQ: five products, dQ by
atomics. Wins on sm_90a where D or D of V is above 128. As in hopper_backward.cu the last bits of dQ may change from
call to call, and `deterministic=True` takes the general schedule. Source: as for that one; the roles are laneloom's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....gpu import Gpu
from .. import hopper_gradients
from ..arguments import Tensors
from ..config_hopper import HopperBackwardWideConfig
from ..hopper import source_text
from ..problem import AttentionProblem

_BLOCK = hopper_gradients.BLOCK
_MOST_COLUMNS = 128  #: of one instruction: its sums have to fit the registers that a thread of the launch begins with


def code_object(problem: AttentionProblem, config: HopperBackwardWideConfig, gpu: Gpu) -> CodeObject:
    """The machine code of the main kernel."""
    parts = {n for d in (problem.d, problem.d_v) for n in (min(d, _MOST_COLUMNS), d - _MOST_COLUMNS) if n > 0}
    functions = [
        wgmma_function("multiply_block", _BLOCK, problem.dtype),
        wgmma_function("multiply_keys", _BLOCK, problem.dtype, a_in_registers=True, b_by_row=True),
        wgmma_function("multiply_others", _BLOCK, problem.dtype, b_by_row=True),
        *(wgmma_function("add_rows", n, problem.dtype, a_by_column=True, b_by_row=True) for n in sorted(parts)),
    ]
    return compile_cuda(
        source_text("hopper_backward_wide.cu", functions, "attention_hopper_backward.cuh"),
        gpu,
        constants=hopper_gradients.constants_of(problem, config),
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name="hopper_backward_wide.cu",
    )


def prepare(
    problem: AttentionProblem, config: HopperBackwardWideConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes dq, dk and dv for operands that lie as these do, by three launches. Raises UnsupportedError without
    the extra `cuda`."""
    return hopper_gradients.prepare(problem, config, gpu, tensors, code_object)

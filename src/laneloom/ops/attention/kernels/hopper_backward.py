"""Gradients of attention by Hopper's warpgroups (hopper_backward.cu), compiled by NVRTC: five products, dQ by atomics.

Wins on sm_90a for head dimensions up to 128. The order of dQ's additions is that of the programs, so that its last bits
may change from call to call; `deterministic=True` takes the general schedule. Source: Shah, Bikshandi, Zhang, Thakkar,
Ramani, Dao, "FlashAttention-3", arXiv:2407.08608.
"""

from __future__ import annotations

from ....codegen.code_object import CodeObject
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....gpu import Gpu
from .. import hopper_gradients
from ..arguments import Tensors
from ..config_hopper import HopperBackwardConfig
from ..hopper import band_constants, source_text
from ..problem import AttentionProblem


def code_object(problem: AttentionProblem, config: HopperBackwardConfig, gpu: Gpu) -> CodeObject:
    """The machine code of the main kernel that `launch` runs."""
    consumer_registers, producer_registers = config.registers(problem)
    constants = {
        **band_constants(problem),
        "KEYS": config.rows,
        "STAGES": config.stages,
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }
    functions = [
        wgmma_function("multiply_block", hopper_gradients.BLOCK, problem.dtype),
        wgmma_function("add_values", problem.d_v, problem.dtype, a_in_registers=True, b_by_row=True),
        wgmma_function("add_keys", problem.d, problem.dtype, b_by_row=True),
        wgmma_function("multiply_queries", 64, problem.dtype, a_by_column=True, b_by_row=True),
    ]
    return compile_cuda(
        source_text("hopper_backward.cu", functions, "attention_hopper_backward.cuh"),
        gpu,
        constants=constants,
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name="hopper_backward.cu",
    )


def launch(problem: AttentionProblem, config: HopperBackwardConfig, gpu: Gpu, tensors: Tensors) -> None:
    """Write dq, dk and dv; see `Tensors`. Three launches. Raises UnsupportedError without the extra `cuda`."""
    hopper_gradients.launch(problem, config, gpu, tensors, code_object)

"""Attention forward by Hopper's warpgroups (hopper_forward.cu), compiled by NVRTC.

Wins on sm_90a for head dimensions up to 256. Source: Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao, "FlashAttention-3",
arXiv:2407.08608.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_call import CudaFunction, load_function
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_hopper import HopperForwardConfig
from ..hopper import band_constants, source_text
from ..hopper_launch import prepare_forward
from ..problem import AttentionProblem


def constants_of(problem: AttentionProblem, config: HopperForwardConfig) -> dict[str, int]:
    """The kernel's macros."""
    consumer_registers, producer_registers = config.registers
    return {
        **band_constants(problem),
        "COLUMNS": config.columns,
        "STAGES": config.stages,
        "Q_BUFFERS": config.q_buffers,
        "CONSUMERS": config.consumers,
        "RESIDENT": config.resident,
        "PING_PONG": int(config.ping_pong and config.consumers > 1),
        "Q_IN_REGISTERS": int(config.q_in_registers),
        "THRESHOLD": config.threshold,
        "EARLY": int(config.early),
        "PEAK": 0,
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }


def code_object(problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu) -> CodeObject:
    """The machine code that runs."""
    functions = [
        wgmma_function("multiply_scores", config.columns, problem.dtype, a_in_registers=config.q_in_registers),
        wgmma_function("multiply_values", problem.d_v, problem.dtype, a_in_registers=True, b_by_row=True),
    ]
    return compile_cuda(
        source_text("hopper_forward.cu", functions, "attention_hopper_forward.cuh"),
        gpu,
        constants=constants_of(problem, config),
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name="hopper_forward.cu",
    )


def prepare(
    problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes out and lse for operands that lie as these do, by name. Raises UnsupportedError without the extra
    `cuda`."""
    device = tensors.tensor("q").device.index
    return prepare_forward(_load(problem.code_key, config, gpu, device), problem, config, tensors)


@cache
def _load(problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu, device: int) -> CudaFunction:
    return load_function(code_object(problem, config, gpu), device)

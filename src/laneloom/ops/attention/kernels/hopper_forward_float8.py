"""Attention forward on 8-bit floats by Hopper's warpgroups (hopper_forward_float8.cu), compiled by NVRTC.

Wins on sm_90a, the only GPU that has it, for operands in e4m3. Source: Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao,
"FlashAttention-3", arXiv:2407.08608, section 3.3; Zhang, Huang, Zhang, Wei, Zhu, Chen, "SageAttention2",
arXiv:2411.10958, for the sum in two levels.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int32
from functools import cache
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_call import CudaFunction, Pointer, load_function
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_float8 import HopperFloat8Config
from ..hopper import band_constants, source_text
from ..hopper_launch import prepare_forward
from ..problem import AttentionProblem

_SCALES = ("scale_q", "scale_k", "scale_v")


def constants_of(problem: AttentionProblem, config: HopperFloat8Config) -> dict[str, int]:
    """The macros of the kernel's text."""
    consumer_registers, producer_registers = config.registers
    return {
        **band_constants(problem),
        "COLUMNS": config.columns,
        "STAGES": config.stages,
        "Q_BUFFERS": config.q_buffers,
        "CONSUMERS": config.consumers,
        "TRANSPOSERS": config.transposers,
        "PEAK": config.peak,
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }


def code_object(problem: AttentionProblem, config: HopperFloat8Config, gpu: Gpu) -> CodeObject:
    """The machine code that what `prepare` gives runs."""
    functions = [
        wgmma_function("multiply_scores", config.columns, problem.dtype),
        wgmma_function("multiply_values", problem.d_v, problem.dtype, a_in_registers=True),
    ]
    return compile_cuda(
        source_text("hopper_forward_float8.cu", functions, "attention_hopper_forward.cuh"),
        gpu,
        constants=constants_of(problem, config),
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name="hopper_forward_float8.cu",
    )


def prepare(
    problem: AttentionProblem, config: HopperFloat8Config, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes out and lse for operands that lie as these do, by name. scale_q, scale_k, scale_v: fp32 [B, H_kv] of
    any strides, or None. number_v multiplies O. Raises UnsupportedError without the extra `cuda`."""
    scales = [tensors.tensor(name) for name in _SCALES]
    steps = [step for x in scales for step in ((0, 0) if x is None else x.stride())]
    number = c_float(tensors.tensor("number_v"))
    kernel = _load(problem.code_key, config, gpu, tensors.tensor("q").device.index)
    more = (*(Pointer() for _ in scales), *map(c_int32, steps), number)
    return prepare_forward(kernel, problem, config, tensors, *more, names=_SCALES)


@cache
def _load(problem: AttentionProblem, config: HopperFloat8Config, gpu: Gpu, device: int) -> CudaFunction:
    return load_function(code_object(problem, config, gpu), device)

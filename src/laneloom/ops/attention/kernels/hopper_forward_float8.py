"""Attention forward on 8-bit floats by Hopper's warpgroups (hopper_forward_float8.cu), compiled by NVRTC.

Wins on sm_90a, the only GPU that has it, for operands in e4m3. Source: Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao,
"FlashAttention-3", arXiv:2407.08608, section 3.3; Zhang, Huang, Zhang, Wei, Zhu, Chen, "SageAttention2",
arXiv:2411.10958, for the sum in two levels.
"""

from __future__ import annotations

import ctypes
from functools import cache

from ....codegen.code_object import CodeObject
from ....codegen.cuda_launch import CudaKernel, argument_types
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_float8 import HopperFloat8Config
from ..hopper import band_constants, box_map, counter, processors, section, source_text
from ..problem import AttentionProblem

# q, k, v maps; out, lse, first_q, first_k, counter; five strides; scale2; queries .. tiles, three scales and their
# strides; a number
_ARGUMENTS = (
    None, None, None, *argument_types("pppppqqqqq"), ctypes.c_float, *argument_types("iiiiiiiiipppiiiiii"),
    ctypes.c_float,
)  # fmt: skip
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


def sections(problem: AttentionProblem, config: HopperFloat8Config) -> int:
    """Heads whose tiles are mixed."""
    kv_bytes = problem.keys * (problem.d + problem.d_v)
    return section(problem, kv_bytes, -(-problem.queries // config.rows) * problem.group) * problem.group


def code_object(problem: AttentionProblem, config: HopperFloat8Config, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
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


def launch(problem: AttentionProblem, config: HopperFloat8Config, gpu: Gpu, tensors: Tensors) -> None:
    """Write out and lse; see `Tensors`. scale_q, scale_k, scale_v: fp32 [B, H_kv] of any strides, or None.

    number_v multiplies O. Raises UnsupportedError without the extra `cuda`.
    """
    import torch

    q, k, v, out, lse = (tensors.tensor(name) for name in ("q", "k", "v", "out", "lse"))
    device = q.device.index
    stream = torch.cuda.current_stream(q.device).cuda_stream
    tiles = config.tiles(problem)
    scale2, *sizes, first, last = problem.scalars()
    scales = [tensors.tensor(name) for name in _SCALES]
    arguments = (
        box_map(q, problem.dtype, 64), box_map(k, problem.dtype, config.columns),
        box_map(v, problem.dtype, config.columns), out.data_ptr(), lse.data_ptr(), *tensors.lengths(),
        counter(device, stream), *out.stride()[:3], *lse.stride()[:2],
        scale2, *sizes, problem.batch, first, last, sections(problem, config), tiles,
        *(0 if x is None else x.data_ptr() for x in scales),
        *(step for x in scales for step in ((0, 0) if x is None else x.stride())), tensors.tensor("number_v"),
    )  # fmt: skip
    _load(problem.code_key, config, gpu, device).launch(min(tiles, processors(device)), stream, arguments)


@cache
def _load(problem: AttentionProblem, config: HopperFloat8Config, gpu: Gpu, device: int) -> CudaKernel:
    return CudaKernel(code_object(problem, config, gpu), _ARGUMENTS, device)

"""Attention forward by Hopper's warpgroups (hopper_forward.cu), compiled by NVRTC.

Wins on sm_90a for head dimensions up to 256. Source: Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao, "FlashAttention-3",
arXiv:2407.08608.
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
from ..config_hopper import HopperForwardConfig
from ..hopper import band_constants, box_map, counter, processors, section, source_text
from ..problem import DTYPE_BYTES, AttentionProblem

# q, k, v maps; out, lse, first_q, first_k, counter; five strides; scale2; queries .. tiles
_ARGUMENTS = (None, None, None, *argument_types("pppppqqqqq"), ctypes.c_float, *argument_types("iiiiiiiii"))


def code_object(problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    consumer_registers, producer_registers = config.registers
    constants = {
        **band_constants(problem),
        "COLUMNS": config.columns,
        "STAGES": config.stages,
        "Q_BUFFERS": config.q_buffers,
        "CONSUMERS": config.consumers,
        "PING_PONG": int(config.ping_pong and config.consumers > 1),
        "Q_IN_REGISTERS": int(config.q_in_registers),
        "THRESHOLD": config.threshold,
        "PEAK": 0,
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }
    functions = [
        wgmma_function("multiply_scores", config.columns, problem.dtype, a_in_registers=config.q_in_registers),
        wgmma_function("multiply_values", problem.d_v, problem.dtype, a_in_registers=True, b_by_row=True),
    ]
    return compile_cuda(
        source_text("hopper_forward.cu", functions, "attention_hopper_forward.cuh"),
        gpu,
        constants=constants,
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name="hopper_forward.cu",
    )


def launch(problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu, tensors: Tensors) -> None:
    """Write out and lse; see `Tensors`. Raises UnsupportedError without the extra `cuda`."""
    import torch

    q, k, v, out, lse = (tensors.tensor(name) for name in ("q", "k", "v", "out", "lse"))
    device = q.device.index
    stream = torch.cuda.current_stream(q.device).cuda_stream
    tiles = config.tiles(problem)
    kv_bytes = problem.keys * (problem.d + problem.d_v) * DTYPE_BYTES[problem.dtype]
    heads = section(problem, kv_bytes, -(-problem.queries // config.rows) * problem.group) * problem.group
    scale2, *sizes, first, last = problem.scalars()
    arguments = (
        box_map(q, problem.dtype, 64), box_map(k, problem.dtype, config.columns),
        box_map(v, problem.dtype, config.columns), out.data_ptr(), lse.data_ptr(), *tensors.lengths(),
        counter(device, stream), *out.stride()[:3], *lse.stride()[:2],
        scale2, *sizes, problem.batch, first, last, heads, tiles,
    )  # fmt: skip
    _load(problem.code_key, config, gpu, device).launch(min(tiles, processors(device)), stream, arguments)


@cache
def _load(problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu, device: int) -> CudaKernel:
    return CudaKernel(code_object(problem, config, gpu), _ARGUMENTS, device)

"""Attention forward by Hopper's warpgroups (hopper_forward.cu), compiled by NVRTC.

Wins on sm_90a for head dimensions up to 256. Source: Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao, "FlashAttention-3",
arXiv:2407.08608.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64
from functools import cache
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_call import CudaCall, CudaFunction, Pointer, load_function
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_hopper import HopperForwardConfig
from ..hopper import band_constants, boxes, counter, processors, section, source_text
from ..problem import DTYPE_BYTES, AttentionProblem


def code_object(problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu) -> CodeObject:
    """The machine code that runs."""
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


def prepare(
    problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes out and lse for operands that lie as these do, by name. Raises UnsupportedError without the extra
    `cuda`."""
    from ....device.prepared import current_stream  # needs torch, without which kernels are compiled

    q, k, v, out, lse = (tensors.tensor(name) for name in ("q", "k", "v", "out", "lse"))
    device = q.device.index
    tiles = config.tiles(problem)
    kv_bytes = problem.keys * (problem.d + problem.d_v) * DTYPE_BYTES[problem.dtype]
    heads = section(problem, kv_bytes, -(-problem.queries // config.rows) * problem.group) * problem.group
    scale2, *sizes, first, last = problem.scalars()
    maps = [boxes(x, problem.dtype, rows) for x, rows in ((q, 64), (k, config.columns), (v, config.columns))]
    pointers = [Pointer() for _ in ("out", "lse", "first_q", "first_k", "counter")]
    strides = map(c_int64, (*out.stride()[:3], *lse.stride()[:2]))
    integers = map(c_int32, (*sizes, problem.batch, first, last, heads, tiles))
    call = CudaCall(
        _load(problem.code_key, config, gpu, device), (*maps, *pointers, *strides, c_float(scale2), *integers), device,
        ctas=min(tiles, processors(device)), pdl=True,
    )  # fmt: skip

    def run(operands: dict[str, Any]) -> None:
        stream = current_stream(device)
        first_q, first_k = operands.get("first_q"), operands.get("first_k")
        starts = (0, 0) if first_q is None else (first_q.data_ptr(), first_k.data_ptr())
        call.launch_at(
            stream, operands["q"].data_ptr(), operands["k"].data_ptr(), operands["v"].data_ptr(),
            operands["out"].data_ptr(), operands["lse"].data_ptr(), *starts, counter(device, stream),
        )  # fmt: skip

    return run


@cache
def _load(problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu, device: int) -> CudaFunction:
    return load_function(code_object(problem, config, gpu), device)

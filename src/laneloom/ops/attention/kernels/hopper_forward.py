"""Attention forward by Hopper's warpgroups (hopper_forward.cu), compiled by NVRTC.

Wins on sm_90a for head dimensions up to 256. Source: Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao, "FlashAttention-3",
arXiv:2407.08608.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int32, c_int64
from dataclasses import replace
from functools import cache, partial
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_call import CudaCall, CudaFunction, Pointer, load_function
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_hopper import HopperForwardConfig
from ..hopper import band_constants, source_text
from ..hopper_launch import JOIN_THREADS, prepare_forward, starts_of
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


def join_code(problem: AttentionProblem, gpu: Gpu) -> CodeObject:
    """The machine code of what adds up parts of the keys."""
    return compile_cuda(
        source_text("hopper_forward_join.cu", [], "attention_hopper_halves.cuh"),
        gpu,
        constants=band_constants(problem),
        num_warps=JOIN_THREADS // 32,
        lds_bytes=0,
        name="hopper_forward_join.cu",
    )


def prepare(
    problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes out and lse for operands that lie as these do, by name. Raises UnsupportedError without the extra
    `cuda`."""
    device, parts = tensors.tensor("q").device.index, config.parts
    kernel = _load(problem.code_key, config, gpu, device)
    if parts == 1:
        return prepare_forward(kernel, problem, config, tensors, c_int32(1))
    return _prepare_parts(kernel, problem, config, gpu, tensors)


def _prepare_parts(
    kernel: CudaFunction, problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """The same where each tile has a part of the keys, as if each were a head of queries."""
    import torch  # here, since kernels are compiled without it

    from ....device.prepared import current_stream

    out, lse, parts = tensors.tensor("out"), tensors.tensor("lse"), config.parts
    batch, heads, queries, d_v = out.shape
    shape, dtype, where, device = (batch, heads * parts, queries), out.dtype, out.device, out.device.index

    def make_room(where: Any) -> dict[str, Any]:
        empty = partial(torch.empty, device=where)
        return {"out": empty((*shape, d_v), dtype=dtype), "lse": empty(shape, dtype=torch.float32)}

    named = {name: tensors.tensor(name) for name in "qkv"} | make_room("meta")
    split = replace(problem, heads=problem.heads * parts)
    attend = prepare_forward(kernel, split, config, Tensors(named), c_int32(parts))
    pointers = [Pointer() for _ in ("part_out", "part_lse", "out", "lse", "first_q")]
    strides = map(c_int64, (*out.stride()[:3], *lse.stride()[:2]))
    sizes = map(c_int32, (queries, heads, parts, problem.batch))
    ctas = -(-out.numel() // 8 // JOIN_THREADS)
    # Without `pdl`: its CTAs would wait where those of the kernel ahead end first.
    join = CudaCall(_load_join(problem.code_key, gpu, device), (*pointers, *strides, *sizes), device, ctas=ctas)

    def run(operands: dict[str, Any]) -> None:
        room = make_room(where)  # lives until all is launched
        attend(operands | room)
        join.launch_at(
            current_stream(device), *(x.data_ptr() for x in (*room.values(), operands["out"], operands["lse"])),
            starts_of(operands)[0],
        )  # fmt: skip

    return run


@cache
def _load(problem: AttentionProblem, config: HopperForwardConfig, gpu: Gpu, device: int) -> CudaFunction:
    return load_function(code_object(problem, config, gpu), device)


@cache
def _load_join(problem: AttentionProblem, gpu: Gpu, device: int) -> CudaFunction:
    return load_function(join_code(problem, gpu), device)

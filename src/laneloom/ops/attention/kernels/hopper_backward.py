"""Gradients of attention by Hopper's warpgroups (hopper_backward.cu), compiled by NVRTC: five products, dQ by atomics.

Wins on sm_90a for head dimensions up to 128. The order of dQ's additions is that of the programs, so that its last bits
may change from call to call; `deterministic=True` takes the general schedule. Source: Shah, Bikshandi, Zhang, Thakkar,
Ramani, Dao, "FlashAttention-3", arXiv:2407.08608.
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
from ..config_hopper import HopperBackwardConfig, chunks
from ..hopper import band_constants, box_map, counter, processors, section, source_text
from ..problem import DTYPE_BYTES, AttentionProblem

_BLOCK, _SUMS = 64, 64 * 64
_START_THREADS = 256
# g, out, lse, dlse, lines, sums, first_q; eight strides, vectors; queries .. sum_blocks
_START = argument_types("pppppppqqqqqqqqqiiiii")
# q, k, v, g maps; lines, sums, dk, dv, first_q, first_k, counter; six strides; scale2, scale; queries .. sum_blocks
_MAIN = (
    None, None, None, None, *argument_types("pppppppqqqqqq"), ctypes.c_float, ctypes.c_float,
    *argument_types("iiiiiiiiii"),
)  # fmt: skip
# sums, dq, first_q; three strides; scale; queries, heads, blocks, sum_blocks
_FINISH = (*argument_types("pppqqq"), ctypes.c_float, *argument_types("iiii"))


def code_object(problem: AttentionProblem, config: HopperBackwardConfig, gpu: Gpu) -> CodeObject:
    """The machine code of the main kernel that `launch` runs."""
    consumer_registers, producer_registers = config.registers(problem)
    constants = {
        **band_constants(problem),
        "STAGES": config.stages,
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }
    functions = [
        wgmma_function("multiply_block", _BLOCK, problem.dtype),
        wgmma_function("add_values", problem.d_v, problem.dtype, a_in_registers=True, b_by_row=True),
        wgmma_function("add_keys", problem.d, problem.dtype, b_by_row=True),
        wgmma_function("multiply_queries", 64, problem.dtype, a_by_column=True, b_by_row=True),
    ]
    return compile_cuda(
        source_text("hopper_backward.cu", functions),
        gpu,
        constants=constants,
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name="hopper_backward.cu",
    )


def _end_code(problem: AttentionProblem, gpu: Gpu, *, start: bool) -> CodeObject:
    constants = band_constants(problem) | {"START": int(start)}
    return compile_cuda(
        source_text("hopper_backward_ends.cu", []),
        gpu,
        constants=constants,
        num_warps=_START_THREADS // 32 if start else 4,
        lds_bytes=0,
        name="hopper_backward_ends.cu",
    )


def launch(problem: AttentionProblem, config: HopperBackwardConfig, gpu: Gpu, tensors: Tensors) -> None:
    """Write dq, dk and dv; see `Tensors`. Three launches. Raises UnsupportedError without the extra `cuda`."""
    import torch

    q, k, v, g, out, lse, dlse = (tensors.tensor(name) for name in ("q", "k", "v", "g", "out", "lse", "dlse"))
    dq, dk, dv = (tensors.tensor(name) for name in ("dq", "dk", "dv"))
    device = q.device.index
    stream = torch.cuda.current_stream(q.device).cuda_stream
    start, main, finish = _load(problem.code_key, config, gpu, device)
    first_q, first_k = tensors.lengths()
    blocks = -(-problem.queries // _BLOCK)
    # Where sequences are packed, block b of sequence i is the (first query of i) // 64 + i + b-th.
    sum_blocks = q.shape[2] // _BLOCK + problem.batch + 1 if problem.packed else blocks
    all_blocks = problem.heads * sum_blocks * (1 if problem.packed else problem.batch)
    sums = torch.empty(all_blocks * chunks(problem.d) * _SUMS, dtype=torch.float32, device=q.device)
    lines = torch.empty(all_blocks * 2 * _BLOCK, dtype=torch.float32, device=q.device)
    rows = problem.batch * problem.heads * blocks * _BLOCK
    start.launch(
        min(-(-rows * 16 // _START_THREADS), 16 * processors(device)), stream,
        (g.data_ptr(), out.data_ptr(), lse.data_ptr(), 0 if dlse is None else dlse.data_ptr(), lines.data_ptr(),
         sums.data_ptr(), first_q, *g.stride()[:3], *out.stride()[:3], *lse.stride()[:2], sums.numel() // 4,
         problem.queries, problem.heads, problem.batch, blocks, sum_blocks),
    )  # fmt: skip
    tiles = config.tiles(problem)
    q_bytes = problem.queries * problem.group * (problem.d + problem.d_v) * DTYPE_BYTES[problem.dtype]
    heads = section(problem, q_bytes, -(-problem.keys // config.rows))
    scale2, *sizes, first, last = problem.scalars()
    main.launch(
        min(tiles, processors(device)), stream,
        (box_map(q, problem.dtype, _BLOCK), box_map(k, problem.dtype, config.rows),
         box_map(v, problem.dtype, config.rows), box_map(g, problem.dtype, _BLOCK), lines.data_ptr(),
         sums.data_ptr(), dk.data_ptr(), dv.data_ptr(),
         first_q, first_k, counter(device, stream), *dk.stride()[:3], *dv.stride()[:3],
         scale2, problem.scale, *sizes, problem.batch, first, last, heads, tiles, sum_blocks),
    )  # fmt: skip
    finish.launch(
        problem.batch * problem.heads * blocks * chunks(problem.d), stream,
        (sums.data_ptr(), dq.data_ptr(), first_q, *dq.stride()[:3], problem.scale, problem.queries, problem.heads,
         blocks, sum_blocks),
    )  # fmt: skip


@cache
def _load(
    problem: AttentionProblem, config: HopperBackwardConfig, gpu: Gpu, device: int
) -> tuple[CudaKernel, CudaKernel, CudaKernel]:
    return (
        CudaKernel(_end_code(problem, gpu, start=True), _START, device),
        CudaKernel(code_object(problem, config, gpu), _MAIN, device),
        CudaKernel(_end_code(problem, gpu, start=False), _FINISH, device),
    )

"""The three launches of Hopper's backward: what stands before, the schedule's own kernel, what stands after."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from ...codegen.code_object import CodeObject
from ...codegen.cuda_launch import CudaKernel, argument_types
from ...codegen.nvrtc import compile_cuda
from ...codegen.wgmma import wgmma_function
from ...gpu import Gpu
from .arguments import Tensors
from .config_hopper import chunks
from .hopper import band_constants, box_map, counter, processors, section, source_text
from .problem import DTYPE_BYTES, AttentionProblem

BLOCK = 64  #: queries of a step
_SUMS = 64 * 64
_PIECES, _FLOATS = 16, 4  #: bytes of a query's lse, or delta, as three 16-bit pieces and zeros, or as FP32
# g, out, lse, dlse, lines, sums, first_q; eight strides; scale; queries, heads, blocks, sum_blocks
_START = (*argument_types("pppppppqqqqqqqq"), ctypes.c_float, *argument_types("iiii"))
# q, k, v, g maps; lines, sums, dk, dv, first_q, first_k, counter; six strides; scale2, scale; queries .. sum_blocks
_MAIN = (
    None, None, None, None, *argument_types("pppppppqqqqqq"), ctypes.c_float, ctypes.c_float,
    *argument_types("iiiiiiiiii"),
)  # fmt: skip
# sums, dq, first_q; three strides; scale; queries, heads, blocks, sum_blocks
_FINISH = (*argument_types("pppqqq"), ctypes.c_float, *argument_types("iiii"))


def constants_of(problem: AttentionProblem, config: Any) -> dict[str, int]:
    """Macros of a schedule's own kernel."""
    return {**band_constants(problem), "KEYS": config.rows, "STAGES": config.stages, **dict(config.constants)}


def owners_code(problem: AttentionProblem, config: Any, gpu: Gpu) -> CodeObject:
    """The machine code of a schedule whose warpgroups own keys (device/attention_hopper_columns.cuh)."""
    constants = constants_of(problem, config)
    functions = [
        wgmma_function("multiply_block", BLOCK, problem.dtype),
        wgmma_function("add_values", problem.d_v, problem.dtype, a_in_registers=True, b_by_row=True),
        wgmma_function("add_keys", problem.d, problem.dtype, a_in_registers=True, b_by_row=True),
        wgmma_function("multiply_queries", 64, problem.dtype, a_by_column=True, b_by_row=True),
    ]
    name = f"{config.schedule}.cu"
    return compile_cuda(
        source_text(name, functions, "attention_hopper_backward.cuh", "attention_hopper_columns.cuh"),
        gpu,
        constants=constants,
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name=name,
    )


def _end_code(problem: AttentionProblem, gpu: Gpu, *, start: bool, pieces: bool) -> CodeObject:
    constants = band_constants(problem) | {"START": int(start), "PIECES": int(pieces)}
    return compile_cuda(
        source_text("hopper_backward_ends.cu", []),
        gpu,
        constants=constants,
        num_warps=8 if start else 4 * chunks(problem.d),
        lds_bytes=0,
        name="hopper_backward_ends.cu",
    )


@cache
def _ends(problem: AttentionProblem, gpu: Gpu, device: int, pieces: bool) -> tuple[CudaKernel, CudaKernel]:
    start, finish = (_end_code(problem, gpu, start=flag, pieces=pieces) for flag in (True, False))
    return CudaKernel(start, _START, device), CudaKernel(finish, _FINISH, device)


@cache
def _main(
    code_object: Callable[..., CodeObject], problem: AttentionProblem, config: Any, gpu: Gpu, device: int
) -> CudaKernel:
    return CudaKernel(code_object(problem, config, gpu), _MAIN, device)


def launch(
    problem: AttentionProblem, config: Any, gpu: Gpu, tensors: Tensors, code_object: Callable[..., CodeObject]
) -> None:
    """Write dq, dk and dv; see `Tensors`. A tile is `config.rows` keys, which `config.cluster` CTAs share.

    code_object(problem, config, gpu): the schedule's own kernel. Raises UnsupportedError without the extra `cuda`.
    """
    import torch

    q, k, v, g, out, lse, dlse = (tensors.tensor(name) for name in ("q", "k", "v", "g", "out", "lse", "dlse"))
    dq, dk, dv = (tensors.tensor(name) for name in ("dq", "dk", "dv"))
    device = q.device.index
    stream = torch.cuda.current_stream(q.device).cuda_stream
    start, finish = _ends(problem.code_key, gpu, device, config.pieces)
    main = _main(code_object, problem.code_key, config, gpu, device)
    first_q, first_k = tensors.lengths()
    blocks = -(-problem.queries // BLOCK)
    # Where sequences are packed, block b of sequence i is the (first query of i) // 64 + i + b-th.
    sum_blocks = q.shape[2] // BLOCK + problem.batch + 1 if problem.packed else blocks
    all_blocks = problem.heads * sum_blocks * (1 if problem.packed else problem.batch)
    sums = torch.empty(all_blocks * chunks(problem.d) * _SUMS, dtype=torch.float32, device=q.device)
    lines_bytes = all_blocks * 2 * BLOCK * (_PIECES if config.pieces else _FLOATS)
    lines = torch.empty(lines_bytes, dtype=torch.uint8, device=q.device)
    arguments: tuple[Any, ...] = (
        g.data_ptr(), out.data_ptr(), lse.data_ptr(), 0 if dlse is None else dlse.data_ptr(), lines.data_ptr(),
        sums.data_ptr(), first_q, *g.stride()[:3], *out.stride()[:3], *lse.stride()[:2], problem.scale,
        problem.queries, problem.heads, blocks, sum_blocks,
    )  # fmt: skip
    start.launch(problem.batch * problem.heads * blocks, stream, arguments)
    tiles = config.tiles(problem)
    q_bytes = problem.queries * problem.group * (problem.d + problem.d_v) * DTYPE_BYTES[problem.dtype]
    heads = section(problem, q_bytes, -(-problem.keys // config.rows) * config.cluster)
    box = config.rows // config.cluster
    scale2, *sizes, first, last = problem.scalars()
    arguments = (
        box_map(q, problem.dtype, BLOCK), box_map(k, problem.dtype, box),
        box_map(v, problem.dtype, box), box_map(g, problem.dtype, BLOCK), lines.data_ptr(),
        sums.data_ptr(), dk.data_ptr(), dv.data_ptr(),
        first_q, first_k, counter(device, stream), *dk.stride()[:3], *dv.stride()[:3],
        scale2, problem.scale, *sizes, problem.batch, first, last, heads, tiles, sum_blocks,
    )  # fmt: skip
    main.launch(config.cluster * min(tiles, processors(device) // config.cluster), stream, arguments)
    arguments = (
        sums.data_ptr(), dq.data_ptr(), first_q, *dq.stride()[:3], problem.scale, problem.queries, problem.heads,
        blocks, sum_blocks,
    )  # fmt: skip
    finish.launch(problem.batch * problem.heads * blocks, stream, arguments)

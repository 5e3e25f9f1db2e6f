"""8-bit floats whose blocks of 128 along K have scales: any strides, any sizes, any batch, on every GPU.

A block's sums start from zero, then one multiply-add each in FP32 scales and adds them. Where no matrix instruction
takes 8-bit floats they become bf16 between load and `tl.dot`, exactly. Plain Triton, which chooses layouts, LDS and
order; Hopper has hopper_cluster_blocks.cuh for operands that TMA reads.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 3.3.2 (scales of 1x128 and 128x128, sums promoted to FP32).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from ....codegen import CodeObject, compile_kernel
from ....device.dot_tiles import tile_of_program
from ....device.float8 import bf16_of_float8_tile
from ....device.prepared import specialise
from ....device.triton_types import TRITON_TYPES
from ....gpu import Gpu
from ....isa.words import counted
from ..config_blocks import BlocksConfig, multiplies_float8
from ..problem import SCALE_BLOCK, MatmulProblem


@triton.jit
def matmul_blocks(a_ptr, b_ptr, c_ptr, scale_a_ptr, scale_b_ptr, M, N, K, inner, stride_ao, stride_ai, stride_am,
                  stride_ak, stride_bo, stride_bi, stride_bk, stride_bn, stride_co, stride_ci, stride_cm, stride_cn,
                  stride_so, stride_si, stride_sm, stride_sx, stride_to, stride_ti, stride_tx, stride_tn,
                  ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                  BLOCK_K: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, GROUP_M: tl.constexpr,
                  WIDENED: tl.constexpr):
    """One BLOCK_M x BLOCK_N tile of C[outer, inner, m, n]."""
    outer, within, offs_m, offs_n = tile_of_program(M, N, inner, BLOCK_M, BLOCK_N, GROUP_M)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    mask_m = offs_m < M
    mask_n = offs_n < N
    a_ptrs = a_ptr + outer * stride_ao + within * stride_ai + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + outer * stride_bo + within * stride_bi + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    rows_ptrs = scale_a_ptr + outer * stride_so + within * stride_si + offs_m // ROWS * stride_sm
    columns_ptrs = scale_b_ptr + outer * stride_to + within * stride_ti + offs_n // COLUMNS * stride_tn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in tl.range(0, K, BLOCK, num_stages=STAGES):
        part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in tl.static_range(0, BLOCK, BLOCK_K):
            mask_k = offs_k < K - first - step
            a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)  # [BLOCK_M, BLOCK_K]
            b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)  # [BLOCK_K, BLOCK_N]
            if WIDENED:
                a = bf16_of_float8_tile(a)
                b = bf16_of_float8_tile(b)
            part = tl.dot(a, b, part, out_dtype=tl.float32)
            a_ptrs += BLOCK_K * stride_ak
            b_ptrs += BLOCK_K * stride_bk
        rows = tl.load(rows_ptrs, mask=mask_m, other=0.0)
        columns = tl.load(columns_ptrs, mask=mask_n, other=0.0)
        acc += part * (rows[:, None] * columns[None, :])
        rows_ptrs += stride_sx
        columns_ptrs += stride_tx
    c_ptrs = c_ptr + outer * stride_co + within * stride_ci + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_n[None, :])


def _arguments(problem: MatmulProblem, config: BlocksConfig, gpu: Gpu) -> tuple[Any, ...]:
    """All that follows the pointers."""
    scales = problem.scales
    assert scales is not None
    return (
        problem.m, problem.n, problem.k, problem.batch[1], *problem.a.strides, *problem.b.strides,
        *problem.out.strides, *scales.a.strides, *scales.b.strides, scales.rows, scales.columns, config.block_m,
        config.block_n, config.block_k, SCALE_BLOCK, config.stages, config.group_m,
        not multiplies_float8(problem, gpu),
    )  # fmt: skip


def launch(
    problem: MatmulProblem, config: BlocksConfig, gpu: Gpu, a: Any, b: Any, out: Any, *terms: Any
) -> None:  # fmt: skip
    """Run `config` on what lies as `problem` says. terms: addend, bias, alpha, beta, all None, and both scales."""
    scales = terms[4:6]
    matmul_blocks[(config.programs(problem),)](
        a, b, out, *scales, *_arguments(problem, config, gpu), num_warps=config.num_warps, enable_fp_fusion=True
    )


def prepare(problem: MatmulProblem, config: BlocksConfig, gpu: Gpu) -> Callable[..., None]:
    """What runs `config` on tensors that lie as `problem` says, call after call."""
    return lambda a, b, out, *terms: launch(problem, config, gpu, a, b, out, *terms)


def code_object(problem: MatmulProblem, config: BlocksConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    kinds = (problem.dtype_a, problem.dtype_b, problem.dtype_out, "fp32", "fp32")
    names = matmul_blocks.arg_names[:5]
    pointers = {name: f"*{TRITON_TYPES[kind]}" for name, kind in zip(names, kinds, strict=True)}
    arguments = dict(zip(matmul_blocks.arg_names[5:], _arguments(problem, config, gpu), strict=True))
    signature, constants, divisible = specialise(matmul_blocks, arguments, pointers)
    return compile_kernel(
        matmul_blocks, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps, attrs=divisible)


def facts(problem: MatmulProblem, config: BlocksConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    lines = [f"{counted(config.programs(problem), 'program')}, loads under masks"]
    if not multiplies_float8(problem, gpu):
        lines.append(f"{gpu.name} multiplies no OCP 8-bit floats: they become bf16, exactly")
    return lines

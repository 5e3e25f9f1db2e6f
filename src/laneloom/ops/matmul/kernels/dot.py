"""Any strides, any sizes, any batch, rows or K in groups by Triton's own `tl.dot`: masked loads, plain stores, one
program a tile.

The only schedule of CDNA 5 (WMMA of the third version), for which Triton chooses layouts, LDS and order. Terms of an
epilogue are a launch of their own, but scales of rows in groups. Plain Triton.
Source: Triton's AMD backend for gfx1250; "Matrix Multiplication" in its tutorials, for the order of tiles.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ....codegen import CodeObject, compile_kernel
from ....device.dot_tiles import k_of_group, tile_of_group, tile_of_program
from ....device.prepared import specialise
from ....device.triton_types import TRITON_TYPES
from ....gpu import Gpu
from ....isa.words import counted
from ..config_dot import DotConfig
from ..problem import MatmulProblem


@triton.jit
def matmul_dot(a_ptr, b_ptr, c_ptr, ends_ptr, scale_a_ptr, scale_b_ptr, M, N, K, inner, stride_ao, stride_ai,
               stride_am, stride_ak, stride_bo, stride_bi, stride_bk, stride_bn, stride_co, stride_ci, stride_cm,
               stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
               GROUP_M: tl.constexpr, ACC: tl.constexpr, GROUPS: tl.constexpr):
    """One BLOCK_M x BLOCK_N tile of C[outer, inner, m, n]; with GROUPS, of C[m, n] whose rows are in groups, which end
    at ends_ptr, perhaps scaled by a number for each row and each column of a group; with it alone, of C[inner, m, n]
    whose K are."""
    if GROUPS == 0:
        outer, within, offs_m, offs_n = tile_of_program(M, N, inner, BLOCK_M, BLOCK_N, GROUP_M)
    else:
        outer = 0
        within, M, offs_m, offs_n = tile_of_group(ends_ptr, M, N, inner, BLOCK_M, BLOCK_N, GROUPS)
        if M == 0:  # there are fewer tiles
            return
    if ends_ptr is not None and GROUPS == 0:
        k_first, K = k_of_group(ends_ptr, within, K)
        a_ptr += k_first * stride_ak
        b_ptr += k_first * stride_bk
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    mask_m = (offs_m < M)[:, None]
    mask_n = (offs_n < N)[None, :]
    a_ptrs = a_ptr + outer * stride_ao + within * stride_ai + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + outer * stride_bo + within * stride_bi + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        a = tl.load(a_ptrs, mask=mask_m & (offs_k < K - k)[None, :], other=0.0)  # [BLOCK_M, BLOCK_K]
        b = tl.load(b_ptrs, mask=mask_n & (offs_k < K - k)[:, None], other=0.0)  # [BLOCK_K, BLOCK_N]
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=ACC)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if scale_a_ptr is not None:
        if acc.dtype == tl.int32:
            acc = acc.to(tl.float32)
        scale_b_ptr += within.to(tl.int64) * N
        acc = acc * tl.load(scale_a_ptr + offs_m, mask=offs_m < M, other=0.0)[:, None].to(acc.dtype)
        acc = acc * tl.load(scale_b_ptr + offs_n, mask=offs_n < N, other=0.0)[None, :].to(acc.dtype)
    c_ptrs = c_ptr + outer * stride_co + within * stride_ci + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_m & mask_n)


def _arguments(problem: MatmulProblem, config: DotConfig) -> tuple[Any, ...]:
    """All that follows the pointers."""
    groups = 1 << (problem.batches - 1).bit_length() if problem.grouped else 0
    acc = {"fp64": tl.float64, "int8": tl.int32}.get(problem.dtype_a, tl.float32)
    return (
        problem.m, problem.n, problem.k, problem.batch[1], *problem.a.strides, *problem.b.strides,
        *problem.out.strides, config.block_m, config.block_n, config.block_k, config.stages, config.group_m, acc,
        groups,
    )  # fmt: skip


def launch(
    problem: MatmulProblem, config: DotConfig, gpu: Gpu, a: Any, b: Any, out: Any, *terms: Any, ends: Any = None
) -> None:  # fmt: skip
    """Run `config` on what lies as `problem` says. terms: an epilogue's, of which there are scales alone, of rows and
    columns; ends: of the groups of rows, or of K, of a grouped product."""
    scales = terms[4:] or (None, None)
    arguments = _arguments(problem, config)
    matmul_dot[(config.programs(problem),)](
        a, b, out, ends, *scales, *arguments, num_warps=config.num_warps, enable_fp_fusion=True
    )


def code_object(problem: MatmulProblem, config: DotConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    kinds = (problem.dtype_a, problem.dtype_b, problem.dtype_out)
    pointers = {f"{x}_ptr": f"*{TRITON_TYPES[kind]}" for x, kind in zip("abc", kinds, strict=True)}
    if problem.in_groups:
        pointers["ends_ptr"] = "*i32"
    if problem.epilogue:
        pointers |= {"scale_a_ptr": "*fp32", "scale_b_ptr": "*fp32"}
    arguments = dict(zip(matmul_dot.arg_names[3:], (*[None] * 3, *_arguments(problem, config)), strict=True))
    signature, constants, divisible = specialise(matmul_dot, arguments, pointers)
    return compile_kernel(
        matmul_dot, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps, attrs=divisible)


def facts(problem: MatmulProblem, config: DotConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    programs = counted(config.programs(problem), "program")
    return [f"emulated, never run on an {gpu.product}", f"{programs}, loads under masks"]

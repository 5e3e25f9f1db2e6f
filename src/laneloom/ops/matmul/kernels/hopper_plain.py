"""Any strides, any sizes, any batch: masked loads, `tl.dot`, plain stores, one program per tile and batch.

The schedule that takes what TMA cannot: operands contiguous along neither axis, tiny products, broadcast batches. The
compiler's software pipeline keeps STAGES slices in flight. Plain Triton; the launch is for Hopper (PDL).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ....codegen import CodeObject, compile_kernel
from ....device.prepared import PreparedLaunch, prepared_on, specialise
from ....device.triton_types import TRITON_TYPES


@triton.jit
def matmul_plain(a_ptr, b_ptr, c_ptr, M, N, K, inner, stride_ao, stride_ai, stride_am, stride_ak, stride_bo,
                 stride_bi, stride_bk, stride_bn, stride_co, stride_ci, stride_cm, stride_cn, BLOCK_M: tl.constexpr,
                 BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, GROUP_M: tl.constexpr,
                 ACC: tl.constexpr):
    """One BLOCK_M x BLOCK_N tile of C[outer, inner, m, n]."""
    gdc_launch_dependents()
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    batch = tl.program_id(0) // (tiles_m * tiles_n)
    tile_m, tile_n = tl.swizzle2d(tile // tiles_n, tile % tiles_n, tiles_m, tiles_n, GROUP_M)
    outer = (batch // inner).to(tl.int64)
    within = (batch % inner).to(tl.int64)
    offs_m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_ptrs = a_ptr + outer * stride_ao + within * stride_ai + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + outer * stride_bo + within * stride_bi + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    mask_m = (offs_m < M)[:, None]
    mask_n = (offs_n < N)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    # Orders all loads after the launches that wrote A and B, and all stores after those that read C.
    gdc_wait()
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        a = tl.load(a_ptrs, mask=mask_m & (offs_k < K - k)[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=mask_n & (offs_k < K - k)[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee", out_dtype=ACC)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c_ptrs = c_ptr + outer * stride_co + within * stride_ci + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_m & mask_n)


def _arguments(problem, config) -> tuple[Any, ...]:
    """All that follows the pointers."""
    acc = {"fp64": tl.float64, "int8": tl.int32, "uint8": tl.int32}.get(problem.dtype_a, tl.float32)
    return (
        problem.m, problem.n, problem.k, problem.batch[1], *problem.a.strides, *problem.b.strides,
        *problem.out.strides, config.block_m, config.block_n, config.block_k, config.stages, config.group_m, acc,
    )  # fmt: skip


def _count_programs(problem, config) -> int:
    return triton.cdiv(problem.m, config.block_m) * triton.cdiv(problem.n, config.block_n) * problem.batches


def prepare(problem, config, gpu) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """What runs `config` (a PlainConfig) on tensors that lie as `problem` says, call after call, on one device."""
    arguments = _arguments(problem, config)
    return PreparedLaunch(
        matmul_plain, (_count_programs(problem, config),), lambda *tensors: (*tensors, *arguments),
        num_warps=config.num_warps, launch_pdl=config.pdl,
    )  # fmt: skip


def launch(problem, config, gpu, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    kinds = (problem.dtype_a, problem.dtype_b, problem.dtype_out)
    pointers = {f"{x}_ptr": f"*{TRITON_TYPES[kind]}" for x, kind in zip("abc", kinds, strict=True)}
    arguments = dict(zip(matmul_plain.arg_names[3:], _arguments(problem, config), strict=True))
    signature, constants, divisible = specialise(matmul_plain, arguments, pointers)
    return compile_kernel(
        matmul_plain, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps, attrs=divisible,
        options={"launch_pdl": config.pdl},
    )  # fmt: skip


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    return [f"{_count_programs(problem, config)} programs, each element loaded under a mask"]

"""Few rows against a large matrix: B is streamed once at the speed of memory, A stays in the caches.

Each program owns BLOCK_N columns of C and a part of K. With USE_DOT the M <= 16 rows are padded to one mma tile,
without it (M = 1) products are kept as an fp32 tile of B's shape and summed at the end. Loads run STAGES slices ahead.
Wins for M = 1, where the time is that of reading B. Plain Triton; the launch is for Hopper (PDL).
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
from ....device.split_k import ReduceLaunch
from ....device.triton_types import TRITON_TYPES


@triton.jit
def matmul_skinny(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                  stride_part, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                  SPLIT_K: tl.constexpr, STAGES: tl.constexpr, USE_DOT: tl.constexpr, B_IS_NK: tl.constexpr,
                  MASK_N: tl.constexpr, MASK_K: tl.constexpr):
    """C[m, n] (or its part of the sum, at stride_part) for BLOCK_N columns."""
    gdc_launch_dependents()
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    part = tl.program_id(1)
    slices = tl.cdiv(K, BLOCK_K)
    first = slices * part // SPLIT_K
    last = slices * (part + 1) // SPLIT_K
    mask_n = offs_n < N
    if MASK_N:
        # Columns past the end read column 0, whose products are not stored: no mask in the loop.
        safe_n = tl.where(mask_n, offs_n, 0).to(tl.int64)
    else:
        safe_n = offs_n.to(tl.int64)
    mask_m = offs_m < M
    safe_m = tl.where(mask_m, offs_m, 0).to(tl.int64)
    if USE_DOT:
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    elif B_IS_NK:
        acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    else:
        acc = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    # Orders all loads after the launches that wrote A and B, and all stores after those that read C.
    gdc_wait()
    for k_slice in tl.range(first, last, num_stages=STAGES):
        k = k_slice * BLOCK_K + offs_k
        k64 = k.to(tl.int64)
        if B_IS_NK:
            b_ptrs = b_ptr + safe_n[:, None] * stride_bn + k64[None, :] * stride_bk  # [BLOCK_N, BLOCK_K]
            mask_b = (k < K)[None, :]
        else:
            b_ptrs = b_ptr + k64[:, None] * stride_bk + safe_n[None, :] * stride_bn  # [BLOCK_K, BLOCK_N]
            mask_b = (k < K)[:, None]
        if MASK_K:
            b = tl.load(b_ptrs, mask=mask_b, other=0.0, eviction_policy="evict_first")
        else:
            b = tl.load(b_ptrs, eviction_policy="evict_first")
        if USE_DOT:
            a_ptrs = a_ptr + safe_m[:, None] * stride_am + k64[None, :] * stride_ak  # [BLOCK_M, BLOCK_K]
            a = tl.load(a_ptrs, mask=(k < K)[None, :], other=0.0) if MASK_K else tl.load(a_ptrs)
            acc = tl.dot(a, b.T if B_IS_NK else b, acc, out_dtype=tl.float32)
        else:
            a_ptrs = a_ptr + k64 * stride_ak
            a = (tl.load(a_ptrs, mask=k < K, other=0.0) if MASK_K else tl.load(a_ptrs)).to(tl.float32)
            acc += b.to(tl.float32) * (a[None, :] if B_IS_NK else a[:, None])
    c_ptrs = c_ptr + part.to(tl.int64) * stride_part
    if USE_DOT:
        c_ptrs += offs_m.to(tl.int64)[:, None] * stride_cm + offs_n[None, :] * stride_cn
        tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_n[None, :])
    else:
        total = tl.sum(acc, axis=1 if B_IS_NK else 0)
        tl.store(c_ptrs + offs_n.to(tl.int64) * stride_cn, total.to(c_ptr.dtype.element_ty), mask=mask_n)


def _arguments(problem, config) -> tuple[Any, ...]:
    """All that follows the pointers."""
    problem = config.as_multiplied(problem)
    strides = (*problem.out.strides[2:], 0) if config.split_k == 1 else (problem.n, 1, problem.m * problem.n)
    return (
        problem.m, problem.n, problem.k, *problem.a.strides[2:], *problem.b.strides[2:], *strides,
        config.block_m, config.block_n, config.block_k, config.split_k, config.stages, config.use_dot,
        problem.b.major == "t", problem.n % config.block_n != 0, problem.k % config.block_k != 0,
    )  # fmt: skip


def prepare(problem, config, gpu) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """What runs `config` (a SkinnyConfig) on tensors that lie as `problem` says, call after call, on one device."""
    of, arguments = config.as_multiplied(problem), _arguments(problem, config)
    out_shape, out_strides = (of.m, of.n), of.out.strides[2:]
    grid = (triton.cdiv(of.n, config.block_n), config.split_k)
    multiply = PreparedLaunch(
        matmul_skinny, grid, lambda *tensors: (*tensors, *arguments), num_warps=config.num_warps,
        launch_pdl=config.pdl,
    )  # fmt: skip
    reduce = ReduceLaunch(pdl=config.pdl)

    def run(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        if config.swapped:
            a, b = b, a
        if config.split_k == 1:
            multiply(a, b, out)
            return
        parts = torch.empty(
            (config.split_k, *out_shape), dtype=torch.float32, device=out.device)
        multiply(a, b, parts)
        reduce(parts, out.as_strided(out_shape, out_strides))

    return run


def launch(problem, config, gpu, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; the reduction of a split K is a kernel of its own."""
    out = problem.dtype_out if config.split_k == 1 else "fp32"
    kinds = (problem.dtype_a, problem.dtype_b, out)
    pointers = {f"{x}_ptr": f"*{TRITON_TYPES[kind]}" for x, kind in zip("abc", kinds, strict=True)}
    arguments = dict(zip(matmul_skinny.arg_names[3:], _arguments(problem, config), strict=True))
    signature, constants, divisible = specialise(matmul_skinny, arguments, pointers)
    return compile_kernel(
        matmul_skinny, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps, attrs=divisible,
        options={"launch_pdl": config.pdl},
    )  # fmt: skip


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    programs = triton.cdiv(config.as_multiplied(problem).n, config.block_n) * config.split_k
    way = "mma, the short side padded to 16" if config.use_dot else "FMA"
    read = "rows of A" if config.swapped else "columns of B"
    return [f"{programs} programs read {config.block_n} {read} each and multiply by {way}"]

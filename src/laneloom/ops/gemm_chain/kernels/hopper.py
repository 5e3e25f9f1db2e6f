"""Chain of two products on Hopper: P = alpha0 A0 B0 is the register operand of the second product's wgmma.

A warpgroup's wgmma leaves 64 rows of P in its registers, in the layout in which the next wgmma takes its first operand
from registers: P is rounded there and touches no shared memory. The compiler's software pipeline keeps `stages` tiles
of the other operands in flight. Any strides, by masked loads. Plain Triton. Source: PTX ISA, "Asynchronous warpgroup
level matrix instructions", register fragments; docs/gemm-chain.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from ....codegen import CodeObject, compile_kernel
from ....device.prepared import PreparedLaunch, specialise
from ....gpu import Gpu
from ..config import ChainConfig
from ..layouts import runtime_arguments
from ..problem import ChainProblem


@triton.jit
def _load(base, rows, columns, stride_row, stride_column, limit_rows, limit_columns):
    """base[rows, columns], zeros beyond the limits."""
    offsets = rows.to(tl.int64)[:, None] * stride_row + columns.to(tl.int64)[None, :] * stride_column
    return tl.load(base + offsets, mask=(rows < limit_rows)[:, None] & (columns < limit_columns)[None, :], other=0.0)


@triton.jit
def _store(
    acc, alpha, beta, c_base, stride_cm, stride_cn, d_base, stride_dm, stride_dn, rows, columns, M, N1
):  # fmt: skip
    """Store alpha acc + beta C at rows and columns, as far as they exist; C may be D."""
    mask = (rows < M)[:, None] & (columns < N1)[None, :]
    acc = acc * alpha
    m = rows.to(tl.int64)[:, None]
    n = columns.to(tl.int64)[None, :]
    if c_base is not None:
        acc += beta * tl.load(c_base + m * stride_cm + n * stride_cn, mask=mask, other=0.0).to(tl.float32)
    tl.store(d_base + m * stride_dm + n * stride_dn, acc.to(d_base.dtype.element_ty), mask=mask)


@triton.jit
def hopper_chain(
    a0_ptr, b0_ptr, b1_ptr, c1_ptr, out_ptr, alpha0, alpha1, beta1, M, K0, N0, N1, batch_inner,
    stride_ao, stride_ai, stride_am, stride_ak, stride_bo, stride_bi, stride_bk, stride_bn,
    stride_eo, stride_ei, stride_ek, stride_en, stride_co, stride_ci, stride_cm, stride_cn,
    stride_do, stride_di, stride_dm, stride_dn,
    BLOCK_M: tl.constexpr, BLOCK_N0: tl.constexpr, BLOCK_N1: tl.constexpr, BLOCK_K: tl.constexpr,
    KEEP: tl.constexpr, SPLIT: tl.constexpr, ONE_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N1, BLOCK_N1)
    shares = SPLIT if KEEP else tiles_n
    share = tl.program_id(0) % shares
    program = tl.program_id(0) // shares
    batch = program // tiles_m
    outer = (batch // batch_inner).to(tl.int64)
    inner = (batch % batch_inner).to(tl.int64)
    a_base = a0_ptr + outer * stride_ao + inner * stride_ai
    b_base = b0_ptr + outer * stride_bo + inner * stride_bi
    e_base = b1_ptr + outer * stride_eo + inner * stride_ei
    d_base = out_ptr + outer * stride_do + inner * stride_di
    c_base = c1_ptr
    if c1_ptr is not None:
        c_base += outer * stride_co + inner * stride_ci
    rows = program % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tl.arange(0, BLOCK_N0)
    k = tl.arange(0, BLOCK_K)
    dtype = a0_ptr.dtype.element_ty
    if KEEP:
        p = tl.zeros((BLOCK_M, BLOCK_N0), tl.float32)
        for k0 in tl.range(0, K0, BLOCK_K, num_stages=STAGES):
            a = _load(a_base, rows, k0 + k, stride_am, stride_ak, M, K0)  # [BLOCK_M, BLOCK_K]
            b = _load(b_base, k0 + k, j, stride_bk, stride_bn, K0, N0)  # [BLOCK_K, BLOCK_N0]
            p = tl.dot(a, b, p)
        p = (p * alpha0).to(dtype)
        for tile in tl.range(share, tiles_n, SPLIT, num_stages=STAGES):
            columns = tile * BLOCK_N1 + tl.arange(0, BLOCK_N1)
            e = _load(e_base, j, columns, stride_ek, stride_en, N0, N1)  # [BLOCK_N0, BLOCK_N1]
            _store(
                tl.dot(p, e), alpha1, beta1, c_base, stride_cm, stride_cn, d_base, stride_dm, stride_dn, rows, columns,
                M, N1,
            )  # fmt: skip
    else:
        columns = share * BLOCK_N1 + tl.arange(0, BLOCK_N1)
        acc = tl.zeros((BLOCK_M, BLOCK_N1), tl.float32)
        if ONE_K:
            a = _load(a_base, rows, k, stride_am, stride_ak, M, K0)  # [BLOCK_M, BLOCK_K]
            for j0 in tl.range(0, N0, BLOCK_N0, num_stages=STAGES):
                b = _load(b_base, k, j0 + j, stride_bk, stride_bn, K0, N0)  # [BLOCK_K, BLOCK_N0]
                p = (tl.dot(a, b) * alpha0).to(dtype)
                e = _load(e_base, j0 + j, columns, stride_ek, stride_en, N0, N1)  # [BLOCK_N0, BLOCK_N1]
                acc = tl.dot(p, e, acc)
        else:
            for j0 in range(0, N0, BLOCK_N0):
                p = tl.zeros((BLOCK_M, BLOCK_N0), tl.float32)
                for k0 in tl.range(0, K0, BLOCK_K, num_stages=STAGES):
                    a = _load(a_base, rows, k0 + k, stride_am, stride_ak, M, K0)
                    b = _load(b_base, k0 + k, j0 + j, stride_bk, stride_bn, K0, N0)
                    p = tl.dot(a, b, p)
                e = _load(e_base, j0 + j, columns, stride_ek, stride_en, N0, N1)
                acc = tl.dot((p * alpha0).to(dtype), e, acc)
        _store(
            acc, alpha1, beta1, c_base, stride_cm, stride_cn, d_base, stride_dm, stride_dn, rows, columns, M, N1
        )


def _constants(problem: ChainProblem, config: ChainConfig) -> dict[str, Any]:
    return {
        "BLOCK_M": config.block_m,
        "BLOCK_N0": config.block_n0,
        "BLOCK_N1": config.block_n1,
        "BLOCK_K": config.block_k,
        "KEEP": config.keep,
        "SPLIT": config.split,
        "ONE_K": problem.k0 <= config.block_k,
        "STAGES": config.stages,
    }


def prepare(problem: ChainProblem, config: ChainConfig, gpu: Gpu, factors: tuple[float, ...]) -> Callable[..., None]:
    """What runs for CUDA tensors that lie as `problem` says, call after call: a0, b0, b1, c1 or None, out."""
    alpha0, alpha1, beta1 = map(float, factors)
    values = runtime_arguments(problem) | _constants(problem, config)
    rest = tuple(values[name] for name in hopper_chain.arg_names[8:])

    def arguments(a0: Any, b0: Any, b1: Any, *others: Any) -> tuple[Any, ...]:
        c1, out = others if len(others) > 1 else (None, *others)
        return a0, b0, b1, c1, out, alpha0, alpha1, None if c1 is None else beta1, *rest

    grid = (config.programs(problem), 1, 1)
    launch = PreparedLaunch(hopper_chain, grid, arguments, num_warps=config.num_warps)
    return lambda *tensors: launch(*(x for x in tensors if x is not None))


def launch(
    problem: ChainProblem, config: ChainConfig, gpu: Gpu, a0: Any, b0: Any, b1: Any, c1: Any, out: Any,
    alpha0: float, alpha1: float, beta1: float,
) -> None:  # fmt: skip
    """Write alpha1 P b1 + beta1 c1 into out: what Triton takes for pointers, None for no c1."""
    beta = None if c1 is None else float(beta1)
    hopper_chain[(config.programs(problem), 1, 1)](
        a0, b0, b1, c1, out, float(alpha0), float(alpha1), beta, **runtime_arguments(problem),
        **_constants(problem, config), num_warps=config.num_warps, enable_fp_fusion=True,
    )  # fmt: skip


def code_object(problem: ChainProblem, config: ChainConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    pointers = {f"{name}_ptr": f"*{problem.dtype}" for name in ("a0", "b0", "b1", "out")}
    arguments: dict[str, Any] = runtime_arguments(problem) | _constants(problem, config)
    arguments |= {"alpha0": 0.5, "alpha1": 0.5, "beta1": 0.5 if problem.c1 else None, "c1_ptr": None}
    if problem.c1:
        pointers["c1_ptr"] = f"*{problem.dtype_c}"
    types, constants, divisible = specialise(hopper_chain, arguments, pointers)
    return compile_kernel(
        hopper_chain, gpu=gpu, signature=types, constants=constants, num_warps=config.num_warps, attrs=divisible
    )

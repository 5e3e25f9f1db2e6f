"""FP32 product, naive: a lane owns one element of C and reads its row of A and column of B from global memory.

Step K1 of the FP32 ladder (docs/sgemm-ladder.md), the bottom that the others are measured from; for RDNA 3, 3.5 and 4.
16 x 16 lanes are a workgroup. Design: the RDNA 3 SGEMM article by seb-v, kernel 1.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....device.prepared import specialise
from ....gpu import Gpu
from ..config_sgemm import INTEGERS, NaiveConfig, arguments, grid, tiles
from ..problem import MatmulProblem

POINTERS = {"a_ptr": "*fp32", "b_ptr": "*fp32", "c_ptr": "*fp32"}


@gluon.jit(do_not_specialize=INTEGERS)
def sgemm_naive(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm, inner,
    stride_ao, stride_ai, stride_bo, stride_bi, stride_co, stride_ci,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    outer = (gl.program_id(2) // inner).to(gl.int64)
    within = (gl.program_id(2) % inner).to(gl.int64)
    offs_m = gl.program_id(1) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))
    offs_n = gl.program_id(0) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
    # lanes beyond the matrix compute its last row or column again and do not store it
    rows = gl.minimum(offs_m, M - 1).to(gl.int64)
    columns = gl.minimum(offs_n, N - 1)
    a_ptrs = a_ptr + outer * stride_ao + within * stride_ai + rows * stride_am
    b_ptrs = b_ptr + outer * stride_bo + within * stride_bi + columns
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, LAYOUT)
    for _ in range(K):
        a = gl.load(a_ptrs)  # [BLOCK_M]
        b = gl.load(b_ptrs)  # [BLOCK_N]
        acc += a[:, None] * b[None, :]
        a_ptrs += 1
        b_ptrs += stride_bk
    c_ptrs = c_ptr + outer * stride_co + within * stride_ci + rows[:, None] * stride_cm + columns[None, :]
    gl.store(c_ptrs, acc, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


def _constants(config: NaiveConfig) -> dict[str, Any]:
    layout = gl.BlockedLayout([1, 1], [2, 16], [config.num_warps, 1], [1, 0])
    return {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "LAYOUT": layout}


def launch(problem: MatmulProblem, config: NaiveConfig, gpu: Gpu, a: Any, b: Any, c: Any) -> None:
    """Write a b into c: what Triton takes for pointers."""
    sgemm_naive[grid(problem, config)](
        a, b, c, **arguments(problem), **_constants(config), num_warps=config.num_warps, enable_fp_fusion=True
    )


def code_object(problem: MatmulProblem, config: NaiveConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    values = arguments(problem) | _constants(config)
    signature, constants, divisible = specialise(sgemm_naive, values, POINTERS)
    return compile_kernel(
        sgemm_naive, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps, attrs=divisible,
        options={"enable_fp_fusion": True},
    )  # fmt: skip


def facts(problem: MatmulProblem, config: NaiveConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    return [f"{tiles(problem, config)}, operands from global memory at every step of K"]

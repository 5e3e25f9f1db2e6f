"""FP32 product through LDS: a workgroup shares square tiles of A and B, a lane owns one element of C.

Step K2 of the FP32 ladder (docs/sgemm-ladder.md) for RDNA 3, 3.5 and 4. 32 x 32 lanes, 32 steps of K in LDS at a time:
an element of A or B is loaded once per workgroup, not once per lane. Design: the RDNA 3 SGEMM article, kernel 2.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....device.prepared import specialise
from ....gpu import Gpu
from ..config_sgemm import INTEGERS, SquareConfig, arguments, grid, tiles
from ..problem import MatmulProblem

POINTERS = {"a_ptr": "*fp32", "b_ptr": "*fp32", "c_ptr": "*fp32"}


@gluon.jit(do_not_specialize=INTEGERS)
def sgemm_square(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm, inner,
    stride_ao, stride_ai, stride_bo, stride_bi, stride_co, stride_ci,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, LAYOUT: gl.constexpr, SHARED: gl.constexpr,
):  # fmt: skip
    outer = (gl.program_id(2) // inner).to(gl.int64)
    within = (gl.program_id(2) % inner).to(gl.int64)
    offs_m = gl.program_id(1) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))
    offs_n = gl.program_id(0) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
    a_k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, LAYOUT))
    b_k = gl.arange(0, BLOCK_K, gl.SliceLayout(1, LAYOUT))
    # lanes beyond the matrix load its last row or column again; what they compute is not stored
    rows = gl.minimum(offs_m, M - 1).to(gl.int64)
    columns = gl.minimum(offs_n, N - 1)
    a_ptrs = a_ptr + outer * stride_ao + within * stride_ai + rows[:, None] * stride_am + a_k[None, :]
    b_ptrs = b_ptr + outer * stride_bo + within * stride_bi + b_k.to(gl.int64)[:, None] * stride_bk + columns[None, :]
    a_lds = gl.allocate_shared_memory(gl.float32, [BLOCK_M, BLOCK_K], SHARED)
    b_lds = gl.allocate_shared_memory(gl.float32, [BLOCK_K, BLOCK_N], SHARED)
    a_part: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 0)
    b_part: gl.constexpr = gl.DotOperandLayout(1, LAYOUT, 0)
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, LAYOUT)
    for k in range(0, K, BLOCK_K):
        # Triton puts a barrier before the stores (everybody has read the former tiles) and one after them.
        a_lds.store(gl.load(a_ptrs, mask=(a_k < K - k)[None, :], other=0.0))
        b_lds.store(gl.load(b_ptrs, mask=(b_k < K - k)[:, None], other=0.0))
        acc = gl.dot_fma(a_lds.load(a_part), b_lds.load(b_part), acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_bk
    c_ptrs = c_ptr + outer * stride_co + within * stride_ci + rows[:, None] * stride_cm + columns[None, :]
    gl.store(c_ptrs, acc, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


def _constants(config: SquareConfig) -> dict[str, Any]:
    return {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "LAYOUT": gl.BlockedLayout([1, 1], [1, 32], [config.num_warps, 1], [1, 0]),
        "SHARED": gl.SwizzledSharedLayout(1, 1, 1, [1, 0]),
    }


def launch(problem: MatmulProblem, config: SquareConfig, gpu: Gpu, a: Any, b: Any, c: Any) -> None:
    """Write a b into c: what Triton takes for pointers."""
    sgemm_square[grid(problem, config)](
        a, b, c, **arguments(problem), **_constants(config), num_warps=config.num_warps, enable_fp_fusion=True
    )


def code_object(problem: MatmulProblem, config: SquareConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    values = arguments(problem) | _constants(config)
    signature, constants, divisible = specialise(sgemm_square, values, POINTERS)
    return compile_kernel(
        sgemm_square, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps, attrs=divisible,
        options={"enable_fp_fusion": True},
    )  # fmt: skip


def facts(problem: MatmulProblem, config: SquareConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    return [f"{tiles(problem, config)}, {config.block_k} steps of K in LDS at a time"]

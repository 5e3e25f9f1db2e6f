"""One Triton kernel: a program reads GROUP tensors, multiplies them three times by matrices in registers, writes once.

Level 7 of the ladder on AMD's GPUs, and what `plan` takes there where no axis needs padding that costs more than two
passes through memory. Every axis is padded to P, a power of two; a product ends in the layout of its accumulator, from
which the next one's operand is made through LDS. FP64 MFMA 16x16x4 on CDNA, v_fma_f64 on RDNA, which has no FP64 matrix
instruction.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ....gpu import Gpu
from ..config import ChainedConfig
from ..problem import Transform3dProblem


@triton.jit
def _load_matrix(ptr, stride_k, stride_n, K: tl.constexpr, P: tl.constexpr):
    k = tl.arange(0, P)[:, None]
    n = tl.arange(0, P)[None, :]
    return tl.load(ptr + k * stride_k + n * stride_n, mask=(k < K) & (n < K), other=0.0)


@triton.jit
def _contract(x, matrix, GROUP: tl.constexpr, P: tl.constexpr):
    """[GROUP, P, P * P] -> the same: the leading axis is contracted, the new one is appended."""
    rows = tl.reshape(tl.trans(x, (0, 2, 1)), (GROUP * P * P, P))
    product = tl.dot(rows, matrix, input_precision="ieee", out_dtype=x.dtype)
    return tl.reshape(product, (GROUP, P, P * P))


@triton.jit
def chained_kernel(
    x_ptr, matrix_ptr, out_ptr, count, stride_x, stride_out, stride_axis, stride_k, stride_n,
    K: tl.constexpr, P: tl.constexpr, GROUP: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0).to(tl.int64) * GROUP + tl.arange(0, GROUP))[:, None, None]
    lead = tl.arange(0, P)[None, :, None]
    rest = tl.arange(0, P * P)[None, None, :]
    inside = (n < count) & (lead < K) & (rest // P < K) & (rest % P < K)
    offs = lead * (K * K) + rest // P * K + rest % P
    x = tl.load(x_ptr + n * stride_x + offs, mask=inside, other=0.0)  # [GROUP, P, P * P]
    for axis in tl.static_range(3):
        matrix = _load_matrix(matrix_ptr + axis * stride_axis, stride_k, stride_n, K, P)
        x = _contract(x, matrix, GROUP, P)
    out = out_ptr + n * stride_out + offs
    if ACCUMULATE:
        x += tl.load(out, mask=inside, other=0.0)
    tl.store(out, x, mask=inside)


def launch(problem: Transform3dProblem, config: ChainedConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """x, out: torch tensors [N, K, K, K], each tensor dense; factors: [K, K] or [3, K, K], any strides."""
    matrix_strides = (0, *factors.stride()) if problem.same_matrix else factors.stride()
    chained_kernel[(triton.cdiv(problem.count, config.group),)](
        x, factors, out, problem.count, problem.stride_x, problem.stride_out, *matrix_strides,
        K=problem.k, P=config.padded(problem.k), GROUP=config.group, ACCUMULATE=problem.accumulate,
        num_warps=config.num_warps, enable_fp_fusion=True,
    )  # fmt: skip

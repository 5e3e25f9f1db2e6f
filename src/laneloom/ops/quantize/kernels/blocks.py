"""FP32, FP16 or BF16 to 8-bit floats and FP32 scales of blocks of 1 x 128 or 128 x 128, in one launch.

A program reads its blocks once and holds them in registers: largest magnitude, scale, quotients, bytes. Plain Triton,
every GPU. RDNA 3 and CDNA 2 convert to no 8-bit float, CDNA 3 to other ones (FNUZ) than OCP's, so that integers do it;
only Hopper's instruction is used, for E4M3.
Source: OCP 8-bit Floating Point Specification; P. Markstein, "Computation of elementary functions on the IBM RISC
System/6000 processor" (quotients by multiply-adds).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ....codegen import CodeObject, compile_kernel
from ....device.prepared import PreparedLaunch, specialise
from ....gpu import Gpu
from ...matmul.problem import SCALE_BLOCK
from ..problem import TILE_ROWS, QuantizeProblem

THREADS = {1: 64, SCALE_BLOCK: 512}  #: of a program, by rows of a block: 16 or 32 numbers each


@triton.jit
def _quotient(x, scale):
    """x / scale rounded to FP32 for quotients from 2**-17 to 2**16, of which an 8-bit float is made; zeros keep their
    signs, and infinity becomes NaN. Six operations in place of the dozen and a branch of a division.

    After one correction the quotient is within one ulp, so that another by a reciprocal that is rounded correctly
    rounds it correctly (Markstein), if the remainders are exact: x and a small scale are enlarged by 2**64 for that.
    Reciprocal and x are negated, which gives a remainder of +0 the sign that leaves -0 alone.
    """
    factor = tl.where(scale < 2.0**-60, 2.0**64, 1.0)
    divisor = scale * factor
    reciprocal = tl.div_rn(-1.0, divisor)
    negated = x * (0.0 - factor)
    quotient = negated * reciprocal
    quotient = tl.fma(tl.fma(quotient, divisor, negated), reciprocal, quotient)
    return tl.fma(tl.fma(quotient, divisor, negated), reciprocal, quotient)


@triton.jit
def _float8_bits(x, BF8: tl.constexpr):
    """x in E5M2 or E4M3 as bytes, rounded to nearest even; no finite x rounds above the largest."""
    MANTISSA: tl.constexpr = 2 if BF8 else 3
    BIAS: tl.constexpr = 15 if BF8 else 7
    SHIFT: tl.constexpr = 23 - MANTISSA
    #: the least bit of its sum with a subnormal number is worth what that of an 8-bit subnormal number is
    UNIT: tl.constexpr = 2.0 ** (24 - BIAS - MANTISSA)
    UNIT_BITS: tl.constexpr = (127 + 24 - BIAS - MANTISSA) << 23
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    bits &= 0x7FFFFFFF
    normal = (bits + ((1 << (SHIFT - 1)) - 1) + ((bits >> SHIFT) & 1)) >> SHIFT
    normal -= (127 - BIAS) << MANTISSA
    subnormal = (bits.to(tl.float32, bitcast=True) + UNIT).to(tl.uint32, bitcast=True) - UNIT_BITS
    if BF8:
        normal = tl.where(bits > 0x7F800000, 0x7F, tl.minimum(normal, 0x7C))
    else:
        normal = tl.minimum(normal, 0x7F)  # NaN
    return (sign | tl.where(bits < ((128 - BIAS) << 23), subnormal, normal)).to(tl.uint8)


@triton.jit
def quantize_blocks(x_ptr, q_ptr, scale_ptr, blocks_in_all, inner, M, K, stride_xo, stride_xi, stride_xm, stride_xk,
                    ROWS: tl.constexpr, TILE_ROWS: tl.constexpr, BLOCK: tl.constexpr, BF8: tl.constexpr,
                    LARGEST: tl.constexpr, HAS_INSTRUCTION: tl.constexpr):
    """TILE_ROWS blocks of 1 x BLOCK that follow one another in memory's order, or one of ROWS x BLOCK."""
    program = tl.program_id(0)
    blocks = tl.cdiv(K, BLOCK)
    if ROWS == 1:
        number = program * TILE_ROWS + tl.arange(0, TILE_ROWS)
        exists = number < blocks_in_all
        block = number % blocks
        m = (number // blocks) % M
        batch = (number // blocks) // M
    else:
        number = program
        m = (program // blocks) % tl.cdiv(M, ROWS) * ROWS + tl.arange(0, ROWS)
        exists = m < M
        block = program % blocks + tl.zeros((ROWS,), tl.int32)
        batch = program // blocks // tl.cdiv(M, ROWS)
    k = tl.arange(0, BLOCK)
    mask = exists[:, None] & (k[None, :] < (K - block * BLOCK)[:, None])
    first = block.to(tl.int64) * BLOCK
    x_rows = x_ptr + (batch // inner).to(tl.int64) * stride_xo + (batch % inner).to(tl.int64) * stride_xi
    x_rows = x_rows + m.to(tl.int64) * stride_xm + first * stride_xk
    x = tl.load(x_rows[:, None] + k[None, :].to(tl.int64) * stride_xk, mask=mask, other=0.0).to(tl.float32)

    # magnitudes as integers: their order is that of the floats, and what is not finite lies above
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # [TILE_ROWS, BLOCK]
    largest = tl.max(tl.where(bits < 0x7F800000, bits, 0), axis=1)  # [TILE_ROWS]
    if ROWS > 1:
        largest = tl.max(largest, axis=0)
    scale = tl.maximum(tl.div_rn(largest.to(tl.float32, bitcast=True), LARGEST), 2.0**-126)
    scale = tl.where(largest == 0, 1.0, scale)
    if ROWS == 1:
        tl.store(scale_ptr + number, scale, mask=exists)
        quotient = _quotient(x, scale[:, None])
    else:
        tl.store(scale_ptr + number, scale)
        quotient = _quotient(x, scale)
    if BF8:
        quotient = tl.where(bits == 0x7F800000, x, quotient)
    if HAS_INSTRUCTION:
        q = quotient.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        q = _float8_bits(quotient, BF8)
    q_rows = q_ptr + (batch.to(tl.int64) * M + m) * K + first
    tl.store(q_rows[:, None] + k[None, :], q, mask=mask)


def _arguments(problem: QuantizeProblem, gpu: Gpu) -> tuple[Any, ...]:
    """All that follows the pointers."""
    bf8 = problem.dtype_q == "bf8"
    return (
        problem.blocks, problem.batch[1], problem.m, problem.k, *problem.strides, problem.rows,
        TILE_ROWS[problem.rows], SCALE_BLOCK, bf8, 57344.0 if bf8 else 448.0, gpu.vendor == "nvidia" and not bf8,
    )  # fmt: skip


def _warps(problem: QuantizeProblem, gpu: Gpu) -> int:
    return THREADS[problem.rows] // gpu.wave


def launch(problem: QuantizeProblem, gpu: Gpu, x: Any, q: Any, scale: Any) -> None:
    """Quantise what lies as `problem` says; q as bytes."""
    arguments = _arguments(problem, gpu)
    quantize_blocks[(problem.programs,)](
        x, q, scale, *arguments, num_warps=_warps(problem, gpu), enable_fp_fusion=True
    )


def prepare(problem: QuantizeProblem, gpu: Gpu) -> PreparedLaunch:
    """What quantises CUDA tensors that lie as `problem` says, call after call."""
    rest = _arguments(problem, gpu)
    return PreparedLaunch(
        quantize_blocks, (problem.programs,), lambda x, q, scale: (x, q, scale, *rest), num_warps=_warps(problem, gpu)
    )


def code_object(problem: QuantizeProblem, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    pointers = {"x_ptr": f"*{problem.dtype}", "q_ptr": "*u8", "scale_ptr": "*fp32"}
    arguments = dict(zip(quantize_blocks.arg_names[3:], _arguments(problem, gpu), strict=True))
    signature, constants, divisible = specialise(quantize_blocks, arguments, pointers)
    return compile_kernel(
        quantize_blocks, gpu=gpu, signature=signature, constants=constants, num_warps=_warps(problem, gpu),
        attrs=divisible,
    )  # fmt: skip

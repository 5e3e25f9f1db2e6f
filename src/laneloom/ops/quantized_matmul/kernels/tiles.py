"""Weights of few bits against rows of fp16 or bf16: any strides, any sizes, any batch, on every GPU.

Numbers of a tile become x's dtype between load and `tl.dot`, exactly and by bits: no tables. A group's sums start from
zero, then one multiply-add each in FP32 scales and adds them. Plain Triton, which chooses layouts, LDS and order.
Source: Frantar et al., "GPTQ", and Lin et al., "AWQ" (groups of 4-bit integers); OCP Microscaling Formats (MX)
Specification.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from ....codegen import CodeObject, compile_kernel
from ....device.dot_tiles import tile_of_group, tile_of_program
from ....device.prepared import PreparedLaunch, specialise
from ....gpu import Gpu
from ..config import QuantizedConfig
from ..problem import QuantizedProblem


@triton.jit
def _factors(scales, KIND: tl.constexpr):
    """Scales of a dtype in FP32; of "e8m0" and "fp8" they come as bytes."""
    if KIND == "e8m0":  # 2**(x - 127): x is the exponent, but of 0, a subnormal number, and of 255
        bits = scales.to(tl.int32)
        bits = tl.where(bits == 0, 1 << 22, tl.where(bits == 255, 0x7FC00000, bits << 23))
        return bits.to(tl.float32, bitcast=True)
    elif KIND == "fp8":
        numbers = scales.to(tl.float8e4nv, bitcast=True).to(tl.bfloat16).to(tl.float32)
        return tl.where((scales & 0x7F) == 0x7F, float("nan"), numbers)  # Triton makes 480 of NaN
    else:
        return scales.to(tl.float32)


@triton.jit
def _upper_half(x):
    """FP32 that bf16 holds, in bf16: no rounding."""
    return (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _halves(pairs, DTYPE: tl.constexpr):
    """Both halves of 32-bit words as numbers of 16 bits."""
    low = (pairs & 0xFFFF).to(tl.uint16).to(DTYPE, bitcast=True)
    return low, (pairs >> 16).to(tl.uint16).to(DTYPE, bitcast=True)


@triton.jit
def _float8(octets, FP16: tl.constexpr, HAS_FLOAT8: tl.constexpr):
    """E4M3 as fp16 or bf16, NaN as NaN. Triton's own integers are 26 instructions for fp16, and for bf16 make 480 of
    NaN.

    Here exponent and mantissa move to their places, and a product with 2**8 corrects the bias, also of subnormal
    numbers. The sum with the mantissa's last bit carries into the top bit of the exponent for NaN alone, which stays
    one.
    """
    if HAS_FLOAT8:
        return octets.to(tl.float8e4nv, bitcast=True).to(tl.float16 if FP16 else tl.bfloat16)
    else:
        low, high = octets.reshape(octets.shape[0], octets.shape[1] // 2, 2).split()
        words = low.to(tl.uint32) | (high.to(tl.uint32) << 16)  # two at a time
        size = (words & 0x007F007F) << 7
        size |= (size + 0x00800080) & 0x40004000
        low, high = _halves(size | ((words & 0x00800080) << 8), tl.float16)
        numbers = tl.join(low * 256.0, high * 256.0).reshape(octets.shape[0], octets.shape[1])
        return numbers if FP16 else _upper_half(numbers.to(tl.float32))


@triton.jit
def _of_bytes(octets, KIND: tl.constexpr, FP16: tl.constexpr, HAS_FLOAT8: tl.constexpr):
    """Numbers of 8 bits in fp16 or bf16. Of int8 the byte becomes the last bits of 1024 (fp16), or of 2**23 (FP32), its
    top bit turned over, and what that is more is subtracted."""
    if KIND == "fp8":
        return _float8(octets, FP16, HAS_FLOAT8)
    elif FP16:
        return (octets.to(tl.uint16) ^ 0x6480).to(tl.float16, bitcast=True) - 1152.0
    else:
        return _upper_half((octets.to(tl.uint32) ^ 0x4B000080).to(tl.float32, bitcast=True) - 8388736.0)


@triton.jit
def _of_nibbles(octets, zero, KIND: tl.constexpr, FP16: tl.constexpr, FOLD: tl.constexpr):
    """q - zero of both numbers of a byte in fp16 or bf16; zero: FP32, 0 where there is none. FOLD: q / 4 by a scale,
    which comes in place of a zero: a power of two, which bf16 has all products of that are finite.

    fp16: both together, in one word. Of integers they become the last bits of 1024, two's complement's top bit turned
    over, and what that is more is subtracted, with the zero. Of "fp4" bits move to their places, and a product corrects
    the exponent's bias, also of the subnormal number 0.5. bf16: the same in FP32, which GPUs calculate bf16 in.
    """
    word = octets.to(tl.uint32)
    if KIND == "fp4":
        if FP16:
            pairs = word | (word << 12)  # 3 bits of magnitude to 9, the sign to 15
            low, high = _halves(((pairs & 0x00070007) << 9) | ((pairs & 0x00080008) << 12), tl.float16)
            return low * 16384.0, high * 16384.0
        else:
            low = ((word & 8) << 28) | ((word & 7) << 22)
            high = ((word & 0x80) << 24) | ((word & 0x70) << 18)
            low, high = low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
            if FOLD:
                return _upper_half(low * 2.0**124 * zero), _upper_half(high * 2.0**124 * zero)
            else:
                return _upper_half(low * 2.0**126), _upper_half(high * 2.0**126)
    else:
        MIDDLE: tl.constexpr = 8 if KIND == "int4" else 0
        if FP16:
            pairs = ((word | (word << 12)) & 0x000F000F) ^ (0x64006400 | MIDDLE << 16 | MIDDLE)
            low, high = _halves(pairs, tl.float16)
            base = (zero + (1024.0 + MIDDLE)).to(tl.float16)
            return low - base, high - base
        else:
            low = ((word & 15) ^ (0x4B000000 | MIDDLE)).to(tl.float32, bitcast=True)
            high = ((word >> 4) ^ (0x4B000000 | MIDDLE)).to(tl.float32, bitcast=True)
            base = zero + (8388608.0 + MIDDLE)
            return _upper_half(low - base), _upper_half(high - base)


@triton.jit
def _opaque(w):
    """w, of 16 bits, whose origin Triton's NVIDIA passes cannot see.

    Where they see a join of bytes they ask of a K of 16 for 8 neighbours in each lane, which it has not (wrong sums,
    Triton 3.6), and lay bytes along N out as shared memory that cannot be (an error, Triton 3.6 to 3.9).
    """
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [w], dtype=w.dtype, is_pure=False, pack=2)


@triton.jit
def _of_groups(ptrs, stride, offs_k, mask_n, K, GROUP: tl.constexpr):
    """Scales or zeros [BLOCK_N, CHUNKS] of the groups that offs_k lie in; of a row, GROUP = 0, there is one."""
    groups = offs_k // GROUP if GROUP != 0 else offs_k * 0
    ptrs = ptrs[:, None] + groups.to(tl.int64)[None, :] * stride
    return tl.load(ptrs, mask=mask_n[:, None] & (offs_k < K)[None, :], other=0)


@triton.jit
def _of_group(ptrs, stride, k, mask_n, K, GROUP: tl.constexpr, IN_K: tl.constexpr):
    """Scales [BLOCK_N] of the group that k lies in; IN_K: it is less than K."""
    inside = mask_n if IN_K else mask_n & (k < K)
    return tl.load(ptrs + (k // GROUP).to(tl.int64) * stride, mask=inside, other=0)


@triton.jit
def _cut(x):
    """The left and the right half of a tile's columns."""
    return x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1).split()


@triton.jit
def _scaled_dots(x, w, acc, s_ptrs, stride_sg, k, mask_n, K, SCALE: tl.constexpr, GROUP: tl.constexpr):
    """acc + the products of each group of a K-tile that begins at k, by its scale."""
    if x.shape[1] == GROUP:
        scale = _factors(_of_group(s_ptrs, stride_sg, k, mask_n, K, GROUP, False), SCALE)
        acc += tl.dot(x, w.T, out_dtype=tl.float32) * scale[None, :]
    else:
        left, right = _cut(x)
        w_left, w_right = _cut(w)
        acc = _scaled_dots(left, w_left, acc, s_ptrs, stride_sg, k, mask_n, K, SCALE, GROUP)
        acc = _scaled_dots(right, w_right, acc, s_ptrs, stride_sg, k + x.shape[1] // 2, mask_n, K, SCALE, GROUP)
    return acc


@triton.jit
def quantized_tiles(x_ptr, values_ptr, scales_ptr, zeros_ptr, bias_ptr, c_ptr, ends_ptr, M, N, K, inner, spans,
                    stride_xo, stride_xi, stride_xm, stride_xk, stride_qo, stride_qi, stride_qn, stride_qk,
                    stride_so, stride_si, stride_sn, stride_sg, stride_zo, stride_zi, stride_zn, stride_zg,
                    stride_co, stride_ci, stride_cm, stride_cn, stride_bias, stride_bi, stride_part,
                    KIND: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
                    GROUP_M: tl.constexpr, WHOLE_K: tl.constexpr, HAS_FLOAT8: tl.constexpr, NVIDIA: tl.constexpr,
                    ROW_GROUPS: tl.constexpr):
    """One BLOCK_M x BLOCK_N tile of C[outer, inner, m, n], or of one part of K, which has `spans` of SPAN.

    ROW_GROUPS: 0, or of rows in `inner` groups a power of two that is as many or more.
    """
    PACKED: tl.constexpr = KIND == "int4" or KIND == "uint4" or KIND == "fp4"
    PER_BYTE: tl.constexpr = 2 if PACKED else 1
    FP16: tl.constexpr = x_ptr.dtype.element_ty == tl.float16
    part = tl.program_id(1)
    first = part * spans * SPAN
    last = tl.minimum(first + spans * SPAN, K)
    if ROW_GROUPS == 0:
        outer, within, offs_m, offs_n = tile_of_program(M, N, inner, BLOCK_M, BLOCK_N, GROUP_M)
        end_m = M
    else:
        within, end_m, offs_m, offs_n = tile_of_group(ends_ptr, M, N, inner, BLOCK_M, BLOCK_N, ROW_GROUPS)
        outer = within * 0
        last = tl.where(end_m > 0, last, first)  # a program without a tile multiplies nothing
    offs_k = tl.arange(0, BLOCK_K)
    offs_q = tl.arange(0, BLOCK_K // PER_BYTE)
    mask_m = offs_m < end_m
    mask_n = offs_n < N
    x_rows = x_ptr + outer * stride_xo + within * stride_xi + offs_m * stride_xm
    x_ptrs = x_rows[:, None] + (first + offs_k).to(tl.int64)[None, :] * stride_xk
    q_rows = values_ptr + outer * stride_qo + within * stride_qi + offs_n * stride_qn
    q_ptrs = q_rows[:, None] + (first // PER_BYTE + offs_q).to(tl.int64)[None, :] * stride_qk
    s_ptrs = scales_ptr + outer * stride_so + within * stride_si + offs_n * stride_sn
    HAS_ZEROS: tl.constexpr = zeros_ptr is not None
    z_ptrs = s_ptrs
    if HAS_ZEROS:
        z_ptrs = zeros_ptr + outer * stride_zo + within * stride_zi + offs_n * stride_zn
    # What is scaled together of a K-tile: a group, or all of it; of a single row no more than a lane loads at once.
    LONGEST: tl.constexpr = BLOCK_K if GROUP == 0 else min(GROUP, BLOCK_K)
    CHUNK: tl.constexpr = min(LONGEST, 16 * PER_BYTE) if BLOCK_M == 1 else LONGEST
    CHUNKS: tl.constexpr = BLOCK_K // CHUNK
    # Numbers are multiplied by their scales before they are by x, where that is exact.
    FOLD: tl.constexpr = KIND == "fp4" and SCALE == "e8m0" and not FP16 and GROUP != 0 and BLOCK_M != 1
    OWN_SUMS: tl.constexpr = GROUP != 0 and BLOCK_M != 1 and CHUNKS == 1 and not FOLD
    offs_c = tl.arange(0, CHUNKS) * CHUNK
    if BLOCK_M == 1:
        acc = tl.zeros((BLOCK_N, CHUNKS), tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in tl.range(first, last, SPAN, num_stages=STAGES):
        sums = acc
        if OWN_SUMS:
            sums = tl.zeros_like(acc)
            # asked for before what it is for
            scale = _factors(_of_group(s_ptrs, stride_sg, k0, mask_n, K, GROUP, True), SCALE)
        for step in tl.static_range(0, SPAN, BLOCK_K):
            if WHOLE_K:
                x = tl.load(x_ptrs, mask=mask_m[:, None], other=0.0)  # [BLOCK_M, BLOCK_K]
                octets = tl.load(q_ptrs, mask=mask_n[:, None], other=0)  # [BLOCK_N, BLOCK_K / PER_BYTE]
            else:
                left = K - k0 - step
                x = tl.load(x_ptrs, mask=mask_m[:, None] & (offs_k < left)[None, :], other=0.0)
                octets = tl.load(q_ptrs, mask=mask_n[:, None] & (offs_q < left // PER_BYTE)[None, :], other=0)
            octets = octets.to(tl.uint8, bitcast=True)
            if PACKED:
                if HAS_ZEROS:
                    zero = _of_groups(z_ptrs, stride_zg, k0 + step + offs_c, mask_n, K, GROUP).to(tl.float32)
                    octets = octets.reshape(BLOCK_N, CHUNKS, CHUNK // PER_BYTE)
                    low, high = _of_nibbles(octets, zero[:, :, None], KIND, FP16, False)
                elif FOLD:
                    factors = _factors(_of_groups(s_ptrs, stride_sg, k0 + step + offs_c, mask_n, K, GROUP), SCALE)
                    octets = octets.reshape(BLOCK_N, CHUNKS, CHUNK // PER_BYTE)
                    low, high = _of_nibbles(octets, factors[:, :, None], KIND, FP16, True)
                else:
                    low, high = _of_nibbles(octets, tl.zeros((1, 1), tl.float32), KIND, FP16, False)
                w = tl.join(low, high).reshape(BLOCK_N, BLOCK_K)
                if NVIDIA and BLOCK_M != 1:
                    w = _opaque(w)
            else:
                w = _of_bytes(octets, KIND, FP16, HAS_FLOAT8)
            if BLOCK_M == 1:
                products = w.to(tl.float32) * x.to(tl.float32)  # [BLOCK_N, BLOCK_K]
                added = tl.sum(products.reshape(BLOCK_N, CHUNKS, CHUNK), 2)
                if GROUP != 0:
                    added *= _factors(_of_groups(s_ptrs, stride_sg, k0 + offs_c, mask_n, K, GROUP), SCALE)
                sums += added
            elif CHUNKS == 1 or FOLD:
                sums = tl.dot(x, w.T, sums, out_dtype=tl.float32)
            else:
                sums = _scaled_dots(x, w, sums, s_ptrs, stride_sg, k0, mask_n, K, SCALE, GROUP)
            x_ptrs += BLOCK_K * stride_xk
            q_ptrs += BLOCK_K // PER_BYTE * stride_qk
        if OWN_SUMS:
            acc += sums * scale[None, :]
        else:
            acc = sums
    if BLOCK_M == 1:
        acc = tl.sum(acc, 1)[None, :]
    if FOLD:
        acc *= 4
    if GROUP == 0:
        acc *= _factors(tl.load(s_ptrs, mask=mask_n, other=0), SCALE)[None, :]
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + within * stride_bi + offs_n * stride_bias, mask=mask_n, other=0.0)
        acc += bias.to(tl.float32)[None, :]
    c_rows = c_ptr + part.to(tl.int64) * stride_part + outer * stride_co + within * stride_ci + offs_m * stride_cm
    mask = mask_m[:, None] & mask_n[None, :]
    tl.store(c_rows[:, None] + offs_n[None, :] * stride_cn, acc.to(c_ptr.dtype.element_ty), mask=mask)


def converts_float8(gpu: Gpu) -> bool:
    """Whether an instruction makes fp16 and bf16 of OCP's E4M3, which Triton then uses."""
    return gpu.vendor == "nvidia" or gpu.is_cdna5 or gpu.name == "gfx950"


def _arguments(problem: QuantizedProblem, config: QuantizedConfig, gpu: Gpu) -> tuple[Any, ...]:
    """All that follows the pointers."""
    span, parts = config.span(problem), config.parts(problem)
    spans = triton.cdiv(triton.cdiv(problem.k, span), parts)
    zeros = problem.zeros.strides if problem.zeros else (0, 0, 0, 0)
    return (
        problem.m, problem.n, problem.k, problem.batch[1], spans, *problem.x.strides, *problem.values.strides,
        *problem.scales.strides, *zeros, *problem.out.strides, *(problem.bias[1:] if problem.bias else (0, 0)),
        problem.batches * problem.m * problem.n if parts > 1 else 0, problem.dtype_w, problem.dtype_scale,
        problem.group, span, config.block_m, config.block_n, config.block_k, config.stages, config.group_m,
        problem.k % span == 0, converts_float8(gpu), gpu.vendor == "nvidia",
        triton.next_power_of_2(problem.batches) if problem.ragged else 0,
    )  # fmt: skip


def launch(
    problem: QuantizedProblem, config: QuantizedConfig, gpu: Gpu, x: Any, values: Any, scales: Any, zeros: Any,
    bias: Any, out: Any, ends: Any,
) -> None:  # fmt: skip
    """Run `config` on what lies as `problem` says: values, zeros and 8-bit scales as bytes, zeros, bias and ends or
    None. Of several parts, out has FP32 sums [parts, ...], each as `problem.of_sums()` says."""
    quantized_tiles[(config.programs(problem), config.parts(problem))](
        x, values, scales, zeros, bias, out, ends, *_arguments(problem, config, gpu), num_warps=config.num_warps,
        enable_fp_fusion=True,
    )  # fmt: skip


def prepare(problem: QuantizedProblem, config: QuantizedConfig, gpu: Gpu) -> Callable[..., None]:
    """What runs `config` on CUDA tensors that lie as `problem` says, call after call."""
    rest = _arguments(problem, config, gpu)
    given = [problem.zeros is not None, problem.bias is not None, True, problem.ragged]

    def arguments(x: Any, values: Any, scales: Any, *others: Any) -> tuple[Any, ...]:
        terms = iter(others)
        return (x, values, scales, *(next(terms) if there else None for there in given), *rest)

    grid = (config.programs(problem), config.parts(problem))
    run = PreparedLaunch(quantized_tiles, grid, arguments, num_warps=config.num_warps)
    return lambda *tensors: run(*(x for x in tensors if x is not None))


def code_object(problem: QuantizedProblem, config: QuantizedConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    arguments = dict(zip(quantized_tiles.arg_names[7:], _arguments(problem, config, gpu), strict=True))
    signature, constants, divisible = specialise(quantized_tiles, arguments, problem.pointers)
    return compile_kernel(
        quantized_tiles, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps,
        attrs=divisible,
    )  # fmt: skip

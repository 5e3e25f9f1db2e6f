"""Weights of few bits become numbers of 16 bits in registers, a word of 32 bits at a time, and scales FP32. AMD. Gluon.

Bytes are put in their places by `v_perm_b32`, both halves of a word at once; nothing is looked up in memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language import core


@gluon.jit
def _bytes(a, b, SELECT: gl.constexpr):
    """Words whose bytes SELECT picks: 0 to 3 of b's, 4 to 7 of a's, 12 is a zero."""
    select = gl.full(a.shape, SELECT, gl.int32, a.type.layout)
    return _picked(a, b, select)


@core.extern
def _picked(a, b, select, _semantic=None):
    """v_perm_b32, as LLVM knows it: of inline assembly it counts no wait states before a matrix instruction."""
    perm = {(core.dtype("int32"),) * 3: ("llvm.amdgcn.perm", core.dtype("int32"))}
    return core.extern_elementwise("", "", [a, b, select], perm, is_pure=True, _semantic=_semantic)


@gluon.jit
def _constant(like, BITS: gl.constexpr):
    """BITS everywhere, as a signed number."""
    return gl.full(like.shape, BITS - (BITS >> 31 << 32), gl.int32, like.type.layout)


@gluon.jit
def _halves(pairs, DTYPE: gl.constexpr):
    """Both halves of words as numbers of 16 bits."""
    low = (pairs & 0xFFFF).to(gl.uint16).to(DTYPE, bitcast=True)
    return low, ((pairs >> 16) & 0xFFFF).to(gl.uint16).to(DTYPE, bitcast=True)


@gluon.jit
def _upper_halves(low, high):
    """Two of FP32 that bf16 holds, in bf16: no rounding."""
    pairs = _bytes(high.to(gl.int32, bitcast=True), low.to(gl.int32, bitcast=True), 0x07060302)
    return _halves(pairs, gl.bfloat16)


@gluon.jit
def _nibble_of_integers(words, zero, N: gl.constexpr, MIDDLE: gl.constexpr):
    """Number N of a word less its zero in FP32: its bits become those of weight 1 and more of a power of two in FP32,
    which is subtracted."""
    if N > 4:
        words = words >> 12
    AT: gl.constexpr = 4 * (N if N <= 4 else N - 3)
    number = ((words & (15 << AT)) | (127 + 23 - AT << 23)).to(gl.float32, bitcast=True)
    return number - (zero + (2.0 ** (23 - AT) + MIDDLE))


@gluon.jit
def _pair_of_nibbles(words, zero, I: gl.constexpr, KIND: gl.constexpr, DTYPE: gl.constexpr, FOLD: gl.constexpr):
    """Numbers 2 I and 2 I + 1, less their zeros, of words of 8; of "int4" with the top bit of each turned over."""
    if KIND == "fp4":
        return _pair_of_fp4(words, zero, I, DTYPE, FOLD)
    else:
        MIDDLE: gl.constexpr = 8 if KIND == "int4" else 0
        if gl.float16 == DTYPE:
            # both as bits 4 to 7 of 64, whose weights are 1 to 8
            pairs = _bytes(words, words << 4, 0x0C040C00 + (I << 16) + I)
            low, high = _halves((pairs & 0x00F000F0) | 0x54005400, DTYPE)
            base = (zero + (64.0 + MIDDLE)).to(DTYPE)
            return low - base, high - base
        else:
            low = _nibble_of_integers(words, zero, 2 * I, MIDDLE)
            return _upper_halves(low, _nibble_of_integers(words, zero, 2 * I + 1, MIDDLE))


@gluon.jit
def _tables_of_fp4(scale):
    """Of 0, 0.5, 1, 1.5, 2, 3, 4, 6 by a quarter of scale, a power of two, in bf16: upper bytes of the last four and of
    the first, then lower bytes. A product of FP32 each, so that NaN and numbers below 2**-126 are what they are."""
    small_upper, small_lower = _bytes_of_four(scale * 0.0, scale * 0.125, scale * 0.25, scale * 0.375)
    large_upper, large_lower = _bytes_of_four(scale * 0.5, scale * 0.75, scale * 1.0, scale * 1.5)
    return large_upper, small_upper, large_lower, small_lower


@gluon.jit
def _bytes_of_four(a, b, c, d):
    """The upper and the next bytes of four FP32 numbers, a word each."""
    first = _bytes(b.to(gl.int32, bitcast=True), a.to(gl.int32, bitcast=True), 0x07060302)
    second = _bytes(d.to(gl.int32, bitcast=True), c.to(gl.int32, bitcast=True), 0x07060302)
    return _bytes(second, first, 0x07050301), _bytes(second, first, 0x06040200)


@gluon.jit
def _pair_of_fp4(words, scale, I: gl.constexpr, DTYPE: gl.constexpr, FOLD: gl.constexpr):
    """E2M1: bytes of 0, 0.5, 1, 1.5, 2, 3, 4, 6 are picked by 3 bits, of the upper with the sign; of fp16 the lower are
    0. FOLD: a quarter of each by its scale."""
    above = words >> 4
    low = words & 0x07070707
    high = above & 0x07070707
    FP16: gl.constexpr = DTYPE == gl.float16  # noqa: SIM300
    if FOLD:
        large, small, large_lower, small_lower = _tables_of_fp4(scale)
    else:
        large = _constant(words, 0x46444240 if FP16 else 0x40404040)
        small = _constant(words, 0x3E3C3800 if FP16 else 0x3F3F3F00)
        large_lower = _constant(words, 0xC0804000)
        small_lower = _constant(words, 0xC0800000)
    sign: gl.constexpr = -0x7F7F7F80  # 0x80808080
    low_upper = _picked(large, small, low) | ((words << 4) & sign)
    high_upper = _picked(large, small, high) | (words & sign)
    if FP16:
        return _halves(_bytes(high_upper, low_upper, 0x040C000C + (I << 24) + (I << 8)), DTYPE)
    else:
        J: gl.constexpr = I // 2 * 2  # two numbers of each at a time
        even = _bytes(low_upper, _picked(large_lower, small_lower, low), 0x05010400 + J * 0x01010101)
        odd = _bytes(high_upper, _picked(large_lower, small_lower, high), 0x05010400 + J * 0x01010101)
        return _halves(_bytes(odd, even, 0x07060302 if I % 2 else 0x05040100), DTYPE)


@gluon.jit
def _pair_of_bytes(words, I: gl.constexpr, KIND: gl.constexpr, DTYPE: gl.constexpr):
    """Numbers 2 I and 2 I + 1 of words of 4; of "int8" with the top bit of each turned over."""
    if KIND == "fp8":
        # exponent and mantissa to their places; the bias is corrected by a product; NaN alone carries into the top bit
        pairs = _bytes(words, words, 0x010C000C + I * 0x02000200)
        size = (pairs >> 1) & 0x3F803F80
        size = size | ((size + 0x00800080) & 0x40004000)
        low, high = _halves(size | (pairs & -0x7FFF8000), gl.float16)
        low = low * 256.0
        high = high * 256.0
        if gl.float16 == DTYPE:
            return low, high
        else:
            return _upper_halves(low.to(gl.float32), high.to(gl.float32))
    elif gl.float16 == DTYPE:
        pairs = _bytes(_constant(words, 0x64646464), words, 0x04010400 + I * 0x00020002)
        low, high = _halves(pairs, DTYPE)
        return low - 1152.0, high - 1152.0
    else:
        top = _constant(words, 0x4B4B4B4B)
        low = _bytes(top, words, 0x040C0C00 + 2 * I).to(gl.float32, bitcast=True)
        high = _bytes(top, words, 0x040C0C01 + 2 * I).to(gl.float32, bitcast=True)
        return _upper_halves(low - 8388736.0, high - 8388736.0)


@gluon.jit
def unpacked(words, zero, KIND: gl.constexpr, DTYPE: gl.constexpr, FOLD: gl.constexpr):
    """W's numbers [BLOCK_N, K] of words [BLOCK_N, WORDS], less zero [BLOCK_N, 1]. FOLD: "fp4" in bf16, a quarter of
    each by its scale, which comes in place of a zero."""
    if KIND == "int4" or KIND == "int8":
        words = words ^ (-0x77777778 if KIND == "int4" else -0x7F7F7F80)
    PACKED: gl.constexpr = KIND == "int4" or KIND == "uint4" or KIND == "fp4"
    if PACKED:
        a, b = _pair_of_nibbles(words, zero, 0, KIND, DTYPE, FOLD)
        c, d = _pair_of_nibbles(words, zero, 1, KIND, DTYPE, FOLD)
        e, f = _pair_of_nibbles(words, zero, 2, KIND, DTYPE, FOLD)
        g, h = _pair_of_nibbles(words, zero, 3, KIND, DTYPE, FOLD)
        first = gl.join(gl.join(a, b), gl.join(e, f))
        second = gl.join(gl.join(c, d), gl.join(g, h))
        numbers = gl.join(first, second).permute([0, 1, 3, 4, 2])  # [BLOCK_N, WORDS, 2, 2, 2]
        return numbers.reshape([words.shape[0], words.shape[1] * 8])
    else:
        a, b = _pair_of_bytes(words, 0, KIND, DTYPE)
        c, d = _pair_of_bytes(words, 1, KIND, DTYPE)
        numbers = gl.join(gl.join(a, b), gl.join(c, d)).permute([0, 1, 3, 2])  # [BLOCK_N, WORDS, 2, 2]
        return numbers.reshape([words.shape[0], words.shape[1] * 4])


@gluon.jit
def factors_of(scales, KIND: gl.constexpr):
    """Scales of a dtype in FP32; of "e8m0" and "fp8" they come as bytes."""
    if KIND == "e8m0":  # 2**(x - 127): x is the exponent, but of 0, a subnormal number, and of 255
        bits = scales.to(gl.int32)
        bits = gl.where(bits == 0, 1 << 22, gl.where(bits == 255, 0x7FC00000, bits << 23))
        return bits.to(gl.float32, bitcast=True)
    elif KIND == "fp8":
        bits = scales.to(gl.int32)
        size = ((bits & 0x7F) << 20).to(gl.float32, bitcast=True) * 2.0**120
        numbers = gl.where(bits >= 128, -size, size)
        return gl.where((bits & 0x7F) == 0x7F, float("nan"), numbers)
    else:
        return scales.to(gl.float32)

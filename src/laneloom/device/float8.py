"""8-bit floats as 16-bit ones, exactly, for GPUs that multiply none: as fp16 two at a time (RDNA 3; Gluon, AMD only),
and as bf16 (CDNA; for Gluon and for plain Triton).

Source: OCP 8-bit Floating Point Specification (E4M3 has NaN and no infinity; E5M2 is the upper half of an fp16).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def fp16_of_float8(x):
    """x in fp16. E5M2: its bits are the upper byte. E4M3: exponent and mantissa move to their places, and a
    multiplication by 2**8 corrects the bias, also of subnormal numbers; NaN, the only code that the addition carries
    into the top bit of the exponent, stays NaN.
    """
    bytes_ = x.to(gl.uint8, bitcast=True).to(gl.int16)
    if x.dtype == gl.float8e5:
        bits = gl.inline_asm_elementwise(
            "v_lshlrev_b32 $0, 8, $1", "=v,v", [bytes_], dtype=gl.int16, is_pure=True, pack=2
        )
        return bits.to(gl.float16, bitcast=True)
    else:
        # $0 is the result, $1 and $2 temporary, $3 the source
        bits = gl.inline_asm_elementwise(
            "v_lshlrev_b32 $0, 7, $3\n\t"
            "v_lshlrev_b32 $2, 8, $3\n\t"
            "v_and_b32 $0, 0x3f803f80, $0\n\t"
            "v_add_nc_u32 $1, 0x00800080, $0\n\t"
            "v_and_or_b32 $0, $1, 0x40004000, $0\n\t"
            "v_and_or_b32 $0, $2, 0x80008000, $0\n\t"
            "v_mov_b32 $1, 0x5c005c00\n\t"
            "v_pk_mul_f16 $0, $0, $1",
            "=&v,=&v,=&v,v", [bytes_], dtype=(gl.int16, gl.int16, gl.int16), is_pure=True, pack=2,
        )  # fmt: skip
        return bits[0].to(gl.float16, bitcast=True)


@gluon.jit
def bf16_of_float8(x):
    """x in bf16. Triton's conversion makes finite numbers of NaN and infinity: E5M2 goes by way of the fp16 whose upper
    byte it is, of E4M3 NaN is put back.
    """
    bits = x.to(gl.uint8, bitcast=True)
    if x.dtype == gl.float8e5:
        wide = (bits.to(gl.uint16) << 8).to(gl.float16, bitcast=True).to(gl.float32)
        return (wide.to(gl.uint32, bitcast=True) >> 16).to(gl.uint16).to(gl.bfloat16, bitcast=True)
    else:
        return gl.where((bits & 0x7F) == 0x7F, float("nan"), x.to(gl.bfloat16))


@triton.jit
def bf16_of_float8_tile(x):
    """`bf16_of_float8` in plain Triton."""
    bits = x.to(tl.uint8, bitcast=True)
    if x.dtype == tl.float8e5:
        wide = (bits.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
        return (wide.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), x.to(tl.bfloat16))

"""8-bit floats as fp16, exactly, two at a time: RDNA 3 multiplies no 8-bit floats. Gluon, AMD only.

Source: OCP 8-bit Floating Point Specification (E4M3 has NaN and no infinity; E5M2 is the upper half of an fp16).
"""

from __future__ import annotations

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

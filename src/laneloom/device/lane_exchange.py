"""Transposing blocks between lanes in registers, by code that `ops.transpose.layouts.lane_exchange` writes. Gluon."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _run(x, EXCHANGE: gl.constexpr, CONSTRAINTS: gl.constexpr, PACK: gl.constexpr):
    # the second and third result are what the code needs beside the first
    out = gl.inline_asm_elementwise(
        EXCHANGE, CONSTRAINTS, [x], dtype=(x.dtype, x.dtype, x.dtype), is_pure=False, pack=PACK
    )
    return out[0]


@gluon.jit
def _packed(x):
    """Four neighbours of 8 bits along the last axis as one number: LLVM takes no vectors of bytes as asm operands."""
    B: gl.constexpr = x.shape[0]
    R: gl.constexpr = x.shape[1]
    C: gl.constexpr = x.shape[2]
    even, odd = x.to(gl.uint8, bitcast=True).to(gl.int32).reshape([B, R, C // 4, 2, 2]).split()
    first, third = even.split()
    second, fourth = odd.split()
    return first | (second << 8) | (third << 16) | (fourth << 24)


@gluon.jit
def _unpacked(x):
    """The inverse of `_packed`."""
    B: gl.constexpr = x.shape[0]
    R: gl.constexpr = x.shape[1]
    C: gl.constexpr = 4 * x.shape[2]
    even = gl.join(x.to(gl.int8), (x >> 16).to(gl.int8))
    odd = gl.join((x >> 8).to(gl.int8), (x >> 24).to(gl.int8))
    return gl.join(even, odd).reshape([B, R, C])


@gluon.jit
def blocks_exchanged(x, EXCHANGE: gl.constexpr, CONSTRAINTS: gl.constexpr, PACK: gl.constexpr):
    """x [B, R, C] of integers after the exchange; a lane's PACK neighbours along C are a row of its block.

    Where x had element (i, j) of a block, the result has element (j, i): the caller exchanges the axes' names.
    """
    if x.dtype == gl.int64:
        low = _run(x.to(gl.int32), EXCHANGE, CONSTRAINTS, PACK)
        high = _run((x >> 32).to(gl.int32), EXCHANGE, CONSTRAINTS, PACK)
        return (high.to(gl.int64) << 32) | (low.to(gl.int64) & 0xFFFFFFFF)
    elif x.dtype == gl.int8:
        return _unpacked(_run(_packed(x), EXCHANGE, CONSTRAINTS, PACK // 4))
    else:
        return _run(x, EXCHANGE, CONSTRAINTS, PACK)

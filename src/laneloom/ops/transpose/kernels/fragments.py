"""Transpose 16 x 16 fragments in the registers where they lie: what a kernel does between two matrix instructions.

By WMMA: a lane brings a row's neighbours as an operand and gets a column's neighbours back as a result of X times the
identity, without LDS and without a permutation. Bytes go as integers, whose product is exact for every bit pattern:
elements of 2 bytes take two products. By lanes: exchanges between lanes, whose result is an operand again. Here both
stand between a load along X and a store along Y. RDNA 3 and 4. Source: AMD's RDNA 3 and RDNA 4 ISA guides, "Wave
Matrix Multiply Accumulate"; docs/transpose.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import wmma_layout
from ....device.epilogue import pinned
from ....device.lane_exchange import blocks_exchanged
from ....gpu import Gpu
from ..config import FragmentsConfig
from ..layouts import known_divisor, lane_exchange
from ..problem import TransposeProblem

MAX_PROGRAMS = 1 << 24  #: of one launch: a grid of AMD's holds fewer than 2**32 threads

_SIZES = [
    "R", "C", "batch_inner", "stride_xo", "stride_xi", "stride_xr", "stride_xc", "stride_yo", "stride_yi", "stride_yr",
    "stride_yc", "first_program",
]  # fmt: skip


@gluon.jit
def pinned_halves(acc):
    """`epilogue.pinned` for sums of 16 bits, two to a register."""
    bits = acc.to(gl.int16, bitcast=True)
    bits = gl.inline_asm_elementwise(
        "; sums", "=v,=v,=v,=v,0,1,2,3", [bits], dtype=gl.int16, is_pure=False, pack=8
    )
    return bits.to(acc.dtype, bitcast=True)


@gluon.jit
def _times_identity(x, ACC_TYPE: gl.constexpr, ACC: gl.constexpr, K_WIDTH: gl.constexpr, VERSION: gl.constexpr):
    """x [R, 16] as an operand -> x [R, 16] as a result: a lane has a column in place of a row."""
    SECOND: gl.constexpr = gl.DotOperandLayout(1, ACC, K_WIDTH)
    k = gl.arange(0, 16, gl.SliceLayout(1, SECOND))
    n = gl.arange(0, 16, gl.SliceLayout(0, SECOND))
    identity = (k[:, None] == n[None, :]).to(x.dtype)
    zeros = gl.zeros((x.shape[0], 16), ACC_TYPE, ACC)
    if VERSION == 1:
        y = gl.amd.rdna3.wmma(x, identity, zeros)
    else:
        y = gl.amd.rdna4.wmma(x, identity, zeros)
    # LLVM would sink the matrix instruction into the masked store, where lanes are off.
    return pinned_halves(y) if y.dtype == gl.float16 else pinned(y)


@gluon.jit
def _turned(
    x, BY: gl.constexpr, ACC: gl.constexpr, K_WIDTH: gl.constexpr, VERSION: gl.constexpr,
    EXCHANGE: gl.constexpr, CONSTRAINTS: gl.constexpr,
):  # fmt: skip
    """x [R, 16], rows of X in lanes -> x with rows of its transpose in lanes."""
    if BY == "lanes":
        R: gl.constexpr = x.shape[0]
        y = blocks_exchanged(x.reshape([1, R, 16]), EXCHANGE, CONSTRAINTS, K_WIDTH)
        return y.reshape([R // 16, 16, 16]).permute([0, 2, 1]).reshape([R, 16])
    elif BY == "f16":
        x = x.to(gl.float16, bitcast=True)
        return _times_identity(x, gl.float16, ACC, K_WIDTH, VERSION).to(gl.int16, bitcast=True)
    elif BY == "bf16":
        x = x.to(gl.bfloat16, bitcast=True)
        return _times_identity(x, gl.float32, ACC, K_WIDTH, VERSION).to(gl.bfloat16).to(gl.int16, bitcast=True)
    elif x.dtype == gl.int8:
        return _times_identity(x, gl.int32, ACC, K_WIDTH, VERSION).to(gl.int8)
    else:
        low = _times_identity(x.to(gl.int8), gl.int32, ACC, K_WIDTH, VERSION)
        high = _times_identity((x >> 8).to(gl.int8), gl.int32, ACC, K_WIDTH, VERSION)
        return ((low & 0xFF) | (high << 8)).to(gl.int16)


@gluon.jit
def _store(y, y_tile, c0, left_r, left_c, stride_yr, stride_yc, VEC: gl.constexpr):
    """Store y [rows, 16] at column c0 of the tile, as far as it exists."""
    HELD: gl.constexpr = y.type.layout
    r = gl.arange(0, y.shape[0], gl.SliceLayout(1, HELD))
    c = c0 + gl.arange(0, 16, gl.SliceLayout(0, HELD))
    ALIGNMENT: gl.constexpr = VEC * y.dtype.primitive_bitwidth // 8
    offs_r = r.to(gl.int64)
    if VEC == 1:
        offs_r = offs_r * stride_yr
    pointers = y_tile + offs_r[:, None] + (c.to(gl.int64) * stride_yc)[None, :]
    pointers = gl.max_contiguous(gl.multiple_of(pointers, [ALIGNMENT, 1]), [VEC, 1])
    gl.store(pointers, y, mask=(r < left_r)[:, None] & (c < left_c)[None, :])


@gluon.jit(do_not_specialize=["x_ptr", "y_ptr", *_SIZES])
def transpose_fragments(
    x_ptr, y_ptr, R, C, batch_inner,
    stride_xo, stride_xi, stride_xr, stride_xc, stride_yo, stride_yi, stride_yr, stride_yc, first_program,
    BLOCK_R: gl.constexpr, CHUNKS: gl.constexpr, BY: gl.constexpr, X_VEC: gl.constexpr, Y_VEC: gl.constexpr,
    R_VEC: gl.constexpr, C_VEC: gl.constexpr, VERSION: gl.constexpr, K_WIDTH: gl.constexpr, ACC: gl.constexpr,
    EXCHANGE: gl.constexpr, CONSTRAINTS: gl.constexpr,
):  # fmt: skip
    tiles_r = (R - 1) // BLOCK_R + 1
    tiles_c = (C - 1) // (16 * CHUNKS) + 1
    program = gl.program_id(0) + first_program
    c0 = (program % tiles_c).to(gl.int64) * (16 * CHUNKS)
    program = program // tiles_c
    r0 = (program % tiles_r).to(gl.int64) * BLOCK_R
    batch = program // tiles_r
    outer = (batch // batch_inner).to(gl.int64)
    inner = (batch % batch_inner).to(gl.int64)
    # a hint needs an operation of this function that is not folded away
    left_r = gl.multiple_of(gl.minimum(R - r0, BLOCK_R).to(gl.int32), [R_VEC])
    left_c = gl.multiple_of(gl.minimum(C - c0, 16 * CHUNKS).to(gl.int32), [C_VEC])
    x_tile = x_ptr + outer * stride_xo + inner * stride_xi + r0 * stride_xr + c0 * stride_xc
    y_tile = y_ptr + outer * stride_yo + inner * stride_yi + r0 * stride_yr + c0 * stride_yc
    ALIGNMENT: gl.constexpr = X_VEC * x_ptr.dtype.element_ty.primitive_bitwidth // 8
    FIRST: gl.constexpr = gl.DotOperandLayout(0, ACC, K_WIDTH)
    r = gl.arange(0, BLOCK_R, gl.SliceLayout(1, FIRST))
    SPREAD: gl.constexpr = VERSION == 1 and BY != "lanes"
    if SPREAD:
        # Results lie in every second row of a lane: the rows come in an order that makes them neighbours.
        r = r // 16 * 16 + r % 2 * 8 + r % 16 // 2
    rows = x_tile + (r.to(gl.int64) * stride_xr)[:, None]
    for chunk in gl.static_range(CHUNKS):
        c = chunk * 16 + gl.arange(0, 16, gl.SliceLayout(0, FIRST))
        offs_c = c.to(gl.int64)
        if X_VEC == 1:
            offs_c = offs_c * stride_xc
        pointers = gl.max_contiguous(gl.multiple_of(rows + offs_c[None, :], [1, ALIGNMENT]), [1, X_VEC])
        # Zeros beyond the matrix: what a float product meets there must not be NaN.
        x = gl.load(pointers, mask=(r < left_r)[:, None] & (c < left_c)[None, :], other=0)  # [BLOCK_R, 16]
        y = _turned(x, BY, ACC, K_WIDTH, VERSION, EXCHANGE, CONSTRAINTS)
        if SPREAD:
            y = y.reshape([BLOCK_R // 16, 8, 2, 16]).permute([0, 2, 1, 3]).reshape([BLOCK_R, 16])
        _store(y, y_tile, chunk * 16, left_r, left_c, stride_yr, stride_yc, Y_VEC)


@cache
def _constants(problem: TransposeProblem, config: FragmentsConfig, gpu: Gpu) -> dict[str, Any]:
    version = gpu.wmma_version
    # RDNA 3 has 16 neighbours of a row in a lane, twice; RDNA 4 has 8, and the other 8 in the other half wave.
    k_width = 16 if version == 1 else 8
    code, constraints = lane_exchange(problem.element_bytes, k_width * problem.element_bytes, halves=version == 2)
    lanes = config.by == "lanes"
    return {
        "BLOCK_R": config.block_r,
        "CHUNKS": config.chunks,
        "BY": config.by,
        "X_VEC": problem.vector(problem.x),
        "Y_VEC": problem.vector(problem.y),
        "R_VEC": known_divisor(problem.rows, config.block_r),
        "C_VEC": known_divisor(problem.columns, 16 * config.chunks),
        "VERSION": version,
        "K_WIDTH": k_width,
        "ACC": wmma_layout(version, config.num_warps, 1, transposed=False),
        "EXCHANGE": code if lanes else None,
        "CONSTRAINTS": constraints if lanes else None,
    }


def _runtime_arguments(problem: TransposeProblem) -> dict[str, int]:
    values = (problem.rows, problem.columns, problem.batch[1], *problem.x.strides, *problem.y.strides)
    return dict(zip(_SIZES[:-1], values, strict=True))


def launch(problem: TransposeProblem, config: FragmentsConfig, gpu: Gpu, x: Any, y: Any) -> None:
    """Write x's transpose into y: what Triton takes for pointers to integers of the element's size."""
    arguments = _runtime_arguments(problem) | _constants(problem, config, gpu)
    tiles = -(-problem.rows // config.block_r) * -(-problem.columns // (16 * config.chunks))
    count = tiles * problem.batches
    for first in range(0, count, MAX_PROGRAMS):
        grid = (min(count - first, MAX_PROGRAMS), 1, 1)
        transpose_fragments[grid](
            x, y, first_program=first, **arguments, num_warps=config.num_warps, enable_fp_fusion=True
        )


def code_object(problem: TransposeProblem, config: FragmentsConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    element = f"*i{8 * problem.element_bytes}"
    integers = _runtime_arguments(problem) | {"first_program": 0}
    return compile_kernel(
        transpose_fragments,
        gpu=gpu,
        signature={"x_ptr": element, "y_ptr": element}
        | {name: "i32" if value < 1 << 31 else "i64" for name, value in integers.items()},
        constants=_constants(problem, config, gpu),
        num_warps=config.num_warps,
        attrs=(),
    )

"""What becomes of a tile of sums before it is stored: activation(alpha scale_a acc scale_b + beta C + bias), rounded
once. Gluon.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .wmma_tiles import complete, schedule_fence, tile_pointers


@gluon.jit
def activate(x, ACTIVATION: gl.constexpr):
    """ACTIVATION of x, in x's precision: "relu", "gelu" (by erf), "silu", or "none"."""
    if ACTIVATION == "relu":
        # Not a maximum: NaN stays NaN.
        return gl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + gl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "silu":
        return x / (1.0 + gl.exp(-x))
    else:
        return x


@gluon.jit
def pinned(acc):
    """acc, 8 elements at a time through an empty instruction here: LLVM cannot sink the matrix instructions that make
    them below, where masks of stores may have switched lanes off. For the end of a kernel: see `complete`.
    """
    if acc.dtype.primitive_bitwidth == 16:
        bits = acc.to(gl.int16, bitcast=True)
        bits = gl.inline_asm_elementwise("; sum", "=v,0", [bits], dtype=gl.int16, is_pure=False, pack=1)
    else:
        bits = acc if acc.dtype == gl.int32 else acc.to(gl.int32, bitcast=True)
        bits = gl.inline_asm_elementwise(
            "; sums", "=v,=v,=v,=v,=v,=v,=v,=v,0,1,2,3,4,5,6,7", [bits], dtype=gl.int32, is_pure=False, pack=8
        )
    return bits if acc.dtype == gl.int32 else bits.to(acc.dtype, bitcast=True)


@gluon.jit
def written(acc, left):
    """The sums, with the 19 wait states behind them that the longest dependency on them needs; and `left`.

    The hardware does not wait, and LLVM counts wait states along one path to a block only: on another path C was stored
    too early, and its addresses came into registers that the matrix instruction had yet to write. Instructions with an
    effect keep their order and stay in front of the branches.
    """
    acc = gl.inline_asm_elementwise("; sums $0 $1", "=v,0", [acc], dtype=acc.dtype, is_pure=False, pack=1)
    left = gl.inline_asm_elementwise(
        "s_nop 15\n\ts_nop 2 ; sums are written $0 $1", "=s,0", [left], dtype=gl.int32, is_pure=False, pack=1
    )
    return acc, left


@gluon.jit
def above_stores(acc, HOLD: gl.constexpr):
    """acc, made here: LLVM would sink the last matrix instructions into pieces or masked stores. By `pinned`, by
    `complete`, or as it is ("none") where one store through LDS follows, which holds them as well.
    """
    if HOLD == "pinned":
        acc = pinned(acc)
    elif HOLD == "complete":
        complete(acc)
    return acc


@gluon.jit
def _number(x):
    """alpha or beta: an FP32 number, or the bits of an FP64 one, which Triton takes as an integer only."""
    if x.dtype.is_int():
        return x.to(gl.int64).to(gl.float64, bitcast=True)
    else:
        return x


@gluon.jit
def scaled(acc, m0, n0, offs_m, offs_n, mask_m, mask_n, alpha, scale_a_ptr, scale_b_ptr, SCALE_A: gl.constexpr,
           SCALE_B: gl.constexpr):  # fmt: skip
    """alpha scale_a acc scale_b: one factor for the tensor, each row ("row") or each column ("column"), or "none"."""
    if SCALE_A == "row":
        factor = gl.load(scale_a_ptr + m0 + offs_m.to(gl.int64), mask=mask_m)[:, None].to(acc.dtype)
    elif SCALE_A == "tensor":
        factor = gl.load(scale_a_ptr).to(acc.dtype)
    if alpha is not None:
        factor = _number(alpha).to(acc.dtype) if SCALE_A == "none" else factor * _number(alpha).to(acc.dtype)
    if SCALE_B == "tensor":
        number = gl.load(scale_b_ptr).to(acc.dtype)
        factor = number if alpha is None and SCALE_A == "none" else factor * number
    if alpha is not None or SCALE_A != "none" or SCALE_B == "tensor":
        acc = acc * factor
    if SCALE_B == "column":
        acc = acc * gl.load(scale_b_ptr + n0 + offs_n.to(gl.int64), mask=mask_n)[None, :].to(acc.dtype)
    return acc


@gluon.jit
def store_tile(
    acc, m0, n0, rows_m, rows_n, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn, bias_ptr, stride_bias,
    alpha, beta, scale_a_ptr, scale_b_ptr,
    C_CONTIGUOUS: gl.constexpr, C_VEC: gl.constexpr, ADD_CONTIGUOUS: gl.constexpr, ADD_VEC: gl.constexpr,
    SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BIAS_AXIS: gl.constexpr, ACTIVATION: gl.constexpr,
    WIDE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Store activation(alpha scale_a acc scale_b + beta D + bias) to C's tile at (m0, n0): rows_m x rows_n of it exist.

    What is known to divide rows_n, C_VEC and ADD_VEC at most, the caller says by `multiple_of`: a hint on an argument
    is lost.

    acc: [BLOCK_M, BLOCK_N] of sums. alpha, the addend D (any dtype) and the bias (along BIAS_AXIS) are left out where
    None, scales where "none". Everything is FP32 (FP64 for sums in that) until the one rounding to C's dtype. LAYOUT
    gives each lane C_VEC neighbours of a row; None stores from where the sums are. Each element of D is read by the
    lane that writes the same element of C, before it does: D may be C.
    """
    SCALED: gl.constexpr = alpha is not None or SCALE_A != "none" or SCALE_B != "none"
    PLAIN: gl.constexpr = not SCALED and add_ptr is None and bias_ptr is None and ACTIVATION == "none"
    # Through LDS, so that a lane has C_VEC neighbours of a row. It also keeps the matrix instructions above the masks:
    # LLVM sinks them into the masked stores otherwise, where some lanes are off.
    if PLAIN:
        acc = acc.to(c_ptr.dtype.element_ty)
    if LAYOUT is not None:
        acc = gl.convert_layout(acc, LAYOUT)
    HELD: gl.constexpr = acc.type.layout
    offs_m = gl.arange(0, acc.shape[0], gl.SliceLayout(1, HELD))
    offs_n = gl.arange(0, acc.shape[1], gl.SliceLayout(0, HELD))
    mask_m = offs_m < rows_m
    mask_n = offs_n < rows_n
    mask = mask_m[:, None] & mask_n[None, :]
    if WIDE:
        offs_m = offs_m.to(gl.int64)
        offs_n = offs_n.to(gl.int64)
    if not PLAIN:
        if acc.dtype != gl.float64:
            acc = acc.to(gl.float32)
        acc = scaled(
            acc, m0, n0, offs_m, offs_n, mask_m, mask_n, alpha, scale_a_ptr, scale_b_ptr, SCALE_A, SCALE_B
        )  # fmt: skip
        if add_ptr is not None:
            offs_d = offs_n if ADD_CONTIGUOUS else offs_n * stride_dn
            d_tile = add_ptr + m0 * stride_dm + n0 * stride_dn
            d = gl.load(tile_pointers(d_tile, offs_m * stride_dm, offs_d, "k", ADD_VEC, WIDE), mask=mask)
            acc = acc + _number(beta).to(acc.dtype) * d.to(acc.dtype)
        if bias_ptr is not None:
            if BIAS_AXIS == "n":
                bias = gl.load(bias_ptr + n0 * stride_bias + offs_n.to(gl.int64) * stride_bias, mask=mask_n)[None, :]
            else:
                bias = gl.load(bias_ptr + m0 * stride_bias + offs_m.to(gl.int64) * stride_bias, mask=mask_m)[:, None]
            acc = acc + bias.to(acc.dtype)
        acc = activate(acc, ACTIVATION).to(c_ptr.dtype.element_ty)
    if not C_CONTIGUOUS:
        offs_n = offs_n * stride_cn
    c_tile = c_ptr + m0 * stride_cm + n0 * stride_cn
    gl.store(tile_pointers(c_tile, offs_m * stride_cm, offs_n, "k", C_VEC, WIDE), acc, mask=mask)


@gluon.jit
def column_halves(acc):
    """The left and the right half of acc's columns, which every lane has some of."""
    BLOCK_M: gl.constexpr = acc.shape[0]
    HALF: gl.constexpr = acc.shape[1] // 2
    return acc.reshape([BLOCK_M, 2, HALF]).permute([0, 2, 1]).split()


@gluon.jit
def store_tile_in_pieces(
    acc, m0, n0, rows_m, rows_n, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn, bias_ptr, stride_bias,
    alpha, beta, scale_a_ptr, scale_b_ptr,
    C_CONTIGUOUS: gl.constexpr, C_VEC: gl.constexpr, ADD_CONTIGUOUS: gl.constexpr, ADD_VEC: gl.constexpr,
    SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BIAS_AXIS: gl.constexpr, ACTIVATION: gl.constexpr,
    WIDE: gl.constexpr, LAYOUT: gl.constexpr,
    PIECES: gl.constexpr, N_VEC: gl.constexpr,
):  # fmt: skip
    """`store_tile` in 1, 2 or 4 pieces of columns one after another, so that the terms of one are in registers.

    N_VEC divides rows_n.
    """
    gl.static_assert(PIECES == 1 or PIECES == 2 or PIECES == 4)
    WIDTH: gl.constexpr = acc.shape[1] // PIECES
    if PIECES == 1:
        pieces = (acc,)
    elif PIECES == 2:
        pieces = column_halves(acc)
    else:
        left, right = column_halves(acc)
        first, second = column_halves(left)
        third, fourth = column_halves(right)
        pieces = (first, second, third, fourth)
    for p in gl.static_range(PIECES):
        if PIECES > 1:
            # no load of this piece's terms is issued before the piece ahead is stored
            rows_m = schedule_fence(rows_m)
        # a minimum, because a hint needs an operation of this function that is not folded away
        rows = gl.multiple_of(gl.minimum(rows_n - p * WIDTH, WIDTH), [N_VEC])
        store_tile(
            pieces[p], m0, n0 + p * WIDTH, rows_m, rows, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn,
            bias_ptr, stride_bias, alpha, beta, scale_a_ptr, scale_b_ptr, C_CONTIGUOUS, C_VEC, ADD_CONTIGUOUS, ADD_VEC,
            SCALE_A, SCALE_B, BIAS_AXIS, ACTIVATION, WIDE, LAYOUT,
        )  # fmt: skip

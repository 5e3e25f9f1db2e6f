"""What the attention kernels are made of: which blocks a tile visits, its loads, products of tiles in LDS. Gluon.

A query i and a key j are a pair if first <= j - i <= last, with either end open: a band of diagonals. Causal attention
and sliding windows are such bands, and seen from the keys a band is one again: forward and backward share this.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from .float8 import fp16_of_float8
from .wmma_tiles import load_fence, multiply_wmma, schedule_fence, schedule_fence_wave64

MFMA = gl.constexpr(4)  #: VERSION of the kernels: 1, 2, 3 of WMMA, 0 of NVIDIA's mma


@gluon.jit
def block_runs(
    row0, row_last, columns, first, last,
    HAS_FIRST: gl.constexpr, HAS_LAST: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """The blocks of columns that rows row0..row_last meet: begin, whole_begin, whole_end, end.

    Blocks begin.. are cut by the first diagonal, whole_begin.. lie inside the band for every row, whole_end.. are cut
    by the last diagonal or by the end of the columns.
    """
    low = row0 * 0
    whole_low = low
    high = columns
    whole_high = columns
    if HAS_FIRST:
        low = gl.maximum(row0 + first, 0)
        whole_low = gl.maximum(row_last + first, 0)
    if HAS_LAST:
        high = gl.maximum(gl.minimum(row_last + last + 1, columns), 0)
        whole_high = gl.maximum(gl.minimum(row0 + last + 1, columns), 0)
    begin = low // BLOCK
    end = gl.maximum((high + BLOCK - 1) // BLOCK, begin)
    whole_begin = gl.minimum(gl.maximum((whole_low + BLOCK - 1) // BLOCK, begin), end)
    whole_end = gl.maximum(gl.minimum(whole_high // BLOCK, end), whole_begin)
    return begin, whole_begin, whole_end, end


@gluon.jit
def visited_block(step, begin, whole_begin, whole_end, end):
    """The block of the given step: the cut ones first, since a sum has no order, and one loop without masks follows."""
    before = whole_begin - begin
    cut = before + end - whole_end
    step = gl.minimum(step, gl.maximum(end - begin - 1, 0))
    shift = gl.where(step < before, begin, gl.where(step < cut, whole_end - before, whole_begin - cut))
    return gl.where(end > begin, step + shift, 0)


@gluon.jit
def in_band(row, column, columns, first, last, HAS_FIRST: gl.constexpr, HAS_LAST: gl.constexpr):
    """Whether each pair of row and column, which broadcast, is in the band and before the end of the columns."""
    seen = column < columns
    if HAS_FIRST:
        seen = seen & (column - row >= first)
    if HAS_LAST:
        seen = seen & (column - row <= last)
    return seen


@gluon.jit
def packed_rows(first_ptr, sequence):
    """First row and number of rows of a sequence among packed ones; first_ptr: where each begins, and the end."""
    begin = gl.load(first_ptr + sequence)
    return begin.to(gl.int64), gl.load(first_ptr + sequence + 1) - begin


@gluon.jit
def load_rows(
    base, row0, rows, stride, column0,
    ROWS: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Rows row0.. of a matrix [rows, D] from column0, [ROWS, WIDTH]; needs row0 < rows and no mask.

    What lies beyond the matrix reads its last row and its first 8 columns again: the caller gives it no weight.
    """
    r = gl.minimum(gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)), rows - 1 - row0)
    c = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    tile = base + row0.to(gl.int64) * stride
    if D % WIDTH == 0:
        # The other tensor may be wider than this one: beyond its end, its last columns.
        if D > WIDTH:
            tile += gl.minimum(column0, D - WIDTH)
    else:
        c = gl.where(c < D - column0, column0 + c, c % 8)
    BYTES: gl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
    # A 64-bit scalar base and an unsigned 32-bit byte offset per lane: one address register.
    offsets = (r[:, None] * stride + c[None, :]).to(gl.uint32) * BYTES
    pointers = (tile.to(gl.pointer_type(gl.int8), bitcast=True) + offsets).to(base.dtype, bitcast=True)
    return gl.load(gl.max_contiguous(gl.multiple_of(pointers, [1, 8 * BYTES]), [1, 8]))


@gluon.jit
def load_scattered_rows(rows, column0, WIDTH: gl.constexpr, D: gl.constexpr, LAYOUT: gl.constexpr):
    """WIDTH columns from column0 of rows that begin at the pointers `rows`; beyond D as `load_rows`."""
    c = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    if D % WIDTH != 0:
        c = gl.where(c < D - column0, column0 + c, c % 8)
    elif D > WIDTH:
        c += gl.minimum(column0, D - WIDTH)
    BYTES: gl.constexpr = rows.dtype.element_ty.primitive_bitwidth // 8
    return gl.load(gl.max_contiguous(gl.multiple_of(rows[:, None] + c[None, :], [1, 8 * BYTES]), [1, 8]))


@gluon.jit
def multiplied(x, VERSION: gl.constexpr):
    """x as the matrix instructions take it: 8-bit floats as fp16, exactly. AMD only for those."""
    if x.dtype.primitive_bitwidth == 8:
        if VERSION >= 3:
            x = x.to(gl.float16)
        else:
            x = fp16_of_float8(x)
    return x


@gluon.jit
def scale_of(scale_ptr, at):
    """One number, or 1 where there are none."""
    scale = 1.0
    if scale_ptr is not None:
        scale = gl.load(scale_ptr + at)
    return scale


@gluon.jit
def fence_loads(x, VERSION: gl.constexpr):
    """x; the loads above are issued before what is below. Nothing on NVIDIA."""
    if VERSION != 0:
        x = load_fence(x)
    return x


@gluon.jit
def fence_schedule(x, VERSION: gl.constexpr, CDNA: gl.constexpr = False):
    """x; no instruction moves across. Nothing on NVIDIA; with 64 lanes, where it is an instruction, if asked."""
    if VERSION != 0 and VERSION != MFMA:
        x = schedule_fence(x)
    elif VERSION == MFMA and CDNA:
        x = schedule_fence_wave64(x)
    return x


@gluon.jit
def wait_for_sums(sums, x):
    """Both, behind the 11 wait states that a use of sums may need on CDNA 2.

    The hardware does not wait, and LLVM counts wait states along one path to a block only: where a loop is left, sums
    were copied one state too early. Instructions with an effect keep their order.
    """
    sums = gl.inline_asm_elementwise("; sums $0 $1", "=v,0", [sums], dtype=sums.dtype, is_pure=False, pack=1)
    x = gl.inline_asm_elementwise("s_nop 10 ; sums written $0 $1", "=s,0", [x], dtype=gl.int32, is_pure=False, pack=1)
    return sums, x


@gluon.jit
def _tanh(x):
    """tanh, to a relative 2**-20: small ones by their series, where 1 - 2 / (exp(2 x) + 1) would cancel.

    A root is one instruction and its square a reciprocal; AMD's exact division takes ten.
    """
    square = x * x
    near = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    root = gl.rsqrt(gl.exp2(x * 2.8853900817779268) + 1.0)  # 2 log2(e)
    far = 1.0 - 2.0 * root * root
    return gl.where(square < 0.0625, near, far)


@gluon.jit
def capped(s, cap2):
    """Scores in base 2, kept between -cap2 and cap2: cap2 tanh(s / cap2); as they are where cap2 is None."""
    if cap2 is not None:
        s = cap2 * _tanh(s * (1.0 / cap2))
    return s


@gluon.jit
def softmax_step(
    s, total, top, row, column, keys, first, last, HAS_FIRST: gl.constexpr, HAS_LAST: gl.constexpr, CUT: gl.constexpr
):
    """Weights of a block of scores [ROWS, COLUMNS] in base 2, the factor of all sums before, and the new statistics."""
    if CUT:
        seen = in_band(row[:, None], column[None, :], keys, first, last, HAS_FIRST, HAS_LAST)
        s = gl.where(seen, s, float("-inf"))
    new_top = gl.maximum(top, gl.max(s, 1))
    # A row that has seen no key yet has no largest score: 0 keeps -inf - -inf from making NaN.
    shift = gl.where(new_top == float("-inf"), 0.0, new_top)
    p = gl.exp2(s - shift[:, None])
    fade = gl.exp2(top - shift)
    return p, fade, total * fade + gl.sum(p, 1), new_top


@gluon.jit
def matrix_multiply(a, b, acc, VERSION: gl.constexpr):
    """acc + a b, operands in the dot layouts of acc's."""
    if VERSION == 0:
        return mma_v2(a, b, acc)
    elif VERSION == MFMA:
        return gl.amd.cdna3.mfma(a, b, acc)
    else:
        return multiply_wmma(a, b, acc, VERSION)


@gluon.jit
def product_of_rows(
    a_lds, b_lds, ROWS: gl.constexpr, COLUMNS: gl.constexpr, D: gl.constexpr,
    ACC: gl.constexpr, K_WIDTH: gl.constexpr, VERSION: gl.constexpr,
):  # fmt: skip
    """A B^T for A [ROWS, >= D] and B [COLUMNS, >= D] in LDS, D rounded up to steps of STEP; beyond D, A has zeros."""
    return add_product_of_rows(gl.zeros((ROWS, COLUMNS), gl.float32, ACC), a_lds, b_lds, D, ACC, K_WIDTH, VERSION)


@gluon.jit
def add_product_of_rows(
    acc, a_lds, b_lds, D: gl.constexpr, ACC: gl.constexpr, K_WIDTH: gl.constexpr, VERSION: gl.constexpr
):
    """acc + A B^T, as `product_of_rows`."""
    # of MFMA 4 groups of lanes; of CDNA 5's WMMA two, which have K_WIDTH neighbours twice
    STEP: gl.constexpr = 4 * K_WIDTH if VERSION >= 3 else 16
    for step in gl.static_range((D + STEP - 1) // STEP):
        a = a_lds.slice(step * STEP, STEP, 1).load(gl.DotOperandLayout(0, ACC, K_WIDTH))  # [ROWS, STEP]
        b = b_lds.slice(step * STEP, STEP, 1).permute([1, 0])
        acc = matrix_multiply(a, b.load(gl.DotOperandLayout(1, ACC, K_WIDTH)), acc, VERSION)
    return acc


@gluon.jit
def add_product(p, b_lds, acc, ACC: gl.constexpr, K_WIDTH: gl.constexpr, VERSION: gl.constexpr):
    """acc + p B for p [ROWS, COLUMNS] in an accumulator's layout and B [COLUMNS, OUT] in LDS."""
    # MFMA: of the operand a lane takes the 4 neighbours that it has of the accumulator, whatever an instruction's K.
    WIDTH: gl.constexpr = 4 if VERSION == MFMA else K_WIDTH
    a = gl.convert_layout(p, gl.DotOperandLayout(0, ACC, WIDTH))
    return matrix_multiply(a, b_lds.load(gl.DotOperandLayout(1, ACC, WIDTH)), acc, VERSION)

"""Weights of few bits against many rows on RDNA and CDNA: W's words are unpacked in the lanes that multiply them.

A wave has all rows of the tile and columns of its own, so that each number is unpacked once in a workgroup and W needs
no LDS; X goes through it. A lane loads up to 16 bytes of a row of W, which are its share of several matrix
instructions: of K these have what lanes hold, not neighbours, and X is read from LDS in that order. Whole K-tiles of
one group. Source: AMD RDNA 4 and MI300 ISA guides (fragments' layouts); Frantar et al., "GPTQ".
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import cta_barrier, reinterpreted
from ....device.epilogue import pinned, store_tile, written
from ....device.few_bits import factors_of, unpacked
from ....device.prepared import specialise
from ....device.row_groups import place_tile_of_all
from ....device.wmma_tiles import (
    load_fence,
    load_tile,
    multiply_wmma,
    schedule_fence,
    schedule_fence_wave64,
    tile_offsets,
)
from ....gpu import Gpu
from ...matmul.tile_orders import CHIPLETS
from ..config_fragments import FragmentsConfig
from ..layouts_fragments import layouts
from ..problem import DTYPE_BYTES, QuantizedProblem


@gluon.jit
def _as_lanes_have_it(x, LANES: gl.constexpr, EIGHTS: gl.constexpr):
    """x [ROWS, BLOCK_K] with K in the order of fragments: a lane has EIGHTS times 8 neighbours in memory, fragments 8
    of each of LANES lanes. Names change, no data moves."""
    ROWS: gl.constexpr = x.shape[0]
    BLOCK_K: gl.constexpr = x.shape[1]
    if LANES > 1 and EIGHTS > 1:
        blocks = x.reshape([ROWS, BLOCK_K // (LANES * EIGHTS * 8), LANES, EIGHTS, 8])
        x = blocks.permute([0, 1, 3, 2, 4]).reshape([ROWS, BLOCK_K])
    return x


@gluon.jit
def _cut(x):
    """The left and the right half of a tile's columns, of which a lane has both."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute([0, 2, 1]).split()


@gluon.jit
def _parts(x, PARTS: gl.constexpr):
    """x [ROWS, K] in 1, 2 or 4 parts along K."""
    if PARTS == 1:
        return (x, x)
    elif PARTS == 2:
        return _cut(x)
    else:
        left, right = _cut(x)
        a, b = _cut(left)
        c, d = _cut(right)
        return a, b, c, d


@gluon.jit
def _store(x_lds, x, LANES: gl.constexpr, EIGHTS: gl.constexpr, STORE: gl.constexpr, WHOLE: gl.constexpr):
    """A K-tile of X [BLOCK_M, BLOCK_K] to LDS [PARTS, BLOCK_M, DEPTH], all parts at once. WHOLE: the layout of LDS as
    [PARTS * BLOCK_M, DEPTH]."""
    PARTS: gl.constexpr = x_lds.shape[0]
    ROWS: gl.constexpr = x.shape[0]
    DEPTH: gl.constexpr = x.shape[1] // PARTS
    x = x.reshape([ROWS, PARTS, DEPTH]).permute([1, 0, 2]).reshape([PARTS * ROWS, DEPTH])
    whole = reinterpreted(x_lds, [PARTS * ROWS, DEPTH], WHOLE)
    whole.store(gl.convert_layout(_as_lanes_have_it(x, LANES, EIGHTS), STORE))


@gluon.jit
def _product(x_lds, numbers, acc, VERSION: gl.constexpr, LANES: gl.constexpr, EIGHTS: gl.constexpr):
    """acc + X W^T, of X in LDS and W's numbers [BLOCK_N, K] in the lanes that multiply them."""
    K_WIDTH: gl.constexpr = 16 if VERSION == 1 else 8
    w = _as_lanes_have_it(numbers, LANES, EIGHTS).permute([1, 0])
    w = gl.convert_layout(w, gl.DotOperandLayout(1, acc.type.layout, K_WIDTH), assert_trivial=True)  # [K, BLOCK_N]
    x = x_lds.load(gl.DotOperandLayout(0, acc.type.layout, K_WIDTH))  # [BLOCK_M, K]
    return gl.amd.cdna3.mfma(x, w, acc) if VERSION == 0 else multiply_wmma(x, w, acc, VERSION)


@gluon.jit
def _stored(k):
    """k, once this wave's stores to LDS are done: with sums of groups LLVM leaves that out before gfx1151's barrier."""
    return gl.inline_asm_elementwise(
        "s_waitcnt lgkmcnt(0) ; stored $0 $1", "=s,0", [k], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _group_of(k, GROUP: gl.constexpr):
    """The number of k's group."""
    return (k // GROUP if GROUP != 0 else k * 0).to(gl.int64)


@gluon.jit
def _scales_of_parts(ptrs, k, stride, GROUP: gl.constexpr, DEPTH: gl.constexpr):
    """Scales [BLOCK_N] of the groups of a K-tile's parts, of which it has 4 at most; nobody loads what is not used."""
    a = gl.load(ptrs + _group_of(k, GROUP) * stride)
    b = gl.load(ptrs + _group_of(k + DEPTH, GROUP) * stride)
    c = gl.load(ptrs + _group_of(k + 2 * DEPTH, GROUP) * stride)
    return a, b, c, gl.load(ptrs + _group_of(k + 3 * DEPTH, GROUP) * stride)


@gluon.jit
def _opaque(x):
    """x, made here: of scales in fp16 LLVM would make multiply-adds that read these, of which two are no pair."""
    return gl.inline_asm_elementwise("; scale $0 $1", "=v,0", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def quantized_fragments(
    x_ptr, values_ptr, scales_ptr, zeros_ptr, bias_ptr, c_ptr, ends_ptr, M, N, K, inner_products,
    stride_xo, stride_xi, stride_xm, stride_qo, stride_qi, stride_qn, stride_so, stride_si, stride_sn, stride_sg,
    stride_zo, stride_zi, stride_zn, stride_zg, stride_co, stride_ci, stride_cm, stride_cn, stride_bias, stride_bi,
    KIND: gl.constexpr, SCALE: gl.constexpr, GROUP: gl.constexpr, SPAN: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, ORDER: gl.constexpr,
    CHIPLETS: gl.constexpr, BATCHED: gl.constexpr, VERSION: gl.constexpr, PER_WORD: gl.constexpr,
    LANES: gl.constexpr, EIGHTS: gl.constexpr, C_VEC: gl.constexpr, C_CONTIGUOUS: gl.constexpr, SUMS: gl.constexpr,
    X_LOAD: gl.constexpr, X_STORE: gl.constexpr, X_SHARED: gl.constexpr, X_WHOLE: gl.constexpr,
    DEPTH: gl.constexpr, W_LOAD: gl.constexpr, W_PART: gl.constexpr, S_LOAD: gl.constexpr,
    W_VEC: gl.constexpr, C_STORE: gl.constexpr, ENDS: gl.constexpr,
):  # fmt: skip
    """One BLOCK_M x BLOCK_N tile of C[outer, inner, m, n]. Strides of values: in words. GROUP 0: one scale a row.

    ENDS: None, or how a wave holds the ends of rows in groups.
    """
    outer, inner, m0, n0, rows_m, rows_n = place_tile_of_all(
        gl.program_id(0), ends_ptr, M, N, inner_products, BLOCK_M, BLOCK_N, ORDER, GROUP_M, CHIPLETS, BATCHED, ENDS
    )  # fmt: skip
    if ENDS is not None and rows_m <= 0:  # there are fewer tiles of rows in groups
        return
    if bias_ptr is not None:
        bias_ptr += inner * stride_bi
    DTYPE: gl.constexpr = x_ptr.dtype.element_ty
    WORDS: gl.constexpr = BLOCK_K // PER_WORD
    PARTS: gl.constexpr = BLOCK_K // DEPTH
    # Numbers are multiplied by their scales before they are by x, where that is exact.
    FOLD: gl.constexpr = KIND == "fp4" and SCALE == "e8m0" and DTYPE == gl.bfloat16 and GROUP != 0  # noqa: SIM300
    OWN_SUMS: gl.constexpr = GROUP != 0 and not FOLD
    x_tile = x_ptr + outer * stride_xo + inner * stride_xi + m0 * stride_xm
    w_tile = values_ptr.to(gl.pointer_type(gl.int32), bitcast=True) + outer * stride_qo + inner * stride_qi
    w_tile += n0 * stride_qn
    c_ptr += outer * stride_co + inner * stride_ci
    x_r, x_k = tile_offsets(rows_m, stride_xm, 1, BLOCK_M, BLOCK_K, "k", 8, False, X_LOAD)
    w_r, w_k = tile_offsets(rows_n, stride_qn, 1, BLOCK_N, WORDS, "k", W_VEC, False, W_LOAD)
    # columns beyond the matrix have the first one's scales; what they give is never stored
    columns = gl.arange(0, BLOCK_N, gl.SliceLayout(0, SUMS))
    columns = gl.where(columns < rows_n, columns, 0).to(gl.int64)
    s_ptrs = scales_ptr + outer * stride_so + inner * stride_si + (n0 + columns) * stride_sn
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, W_PART)
    w_rows = gl.arange(0, BLOCK_N, OF_ROWS)
    w_rows = gl.where(w_rows < rows_n, w_rows, 0).to(gl.int64)
    zero = gl.full([BLOCK_N], 0.0, gl.float32, OF_ROWS)
    if zeros_ptr is not None:
        z_ptrs = zeros_ptr + outer * stride_zo + inner * stride_zi + (n0 + w_rows) * stride_zn
        zero = gl.load(z_ptrs).to(gl.float32)
    if FOLD:
        f_rows = gl.arange(0, BLOCK_N, gl.SliceLayout(1, S_LOAD))
        f_rows = gl.where(f_rows < rows_n, f_rows, 0).to(gl.int64)
        f_parts = gl.arange(0, PARTS, gl.SliceLayout(0, S_LOAD)) * DEPTH // GROUP
        f_ptrs = scales_ptr + outer * stride_so + inner * stride_si + ((n0 + f_rows) * stride_sn)[:, None]
        f_ptrs += (f_parts * stride_sg)[None, :]
        folded = gl.load(f_ptrs)  # [BLOCK_N, PARTS]
    x_lds = gl.allocate_shared_memory(DTYPE, [PARTS, BLOCK_M, DEPTH], X_SHARED)

    x = load_tile(x_tile, x_r, x_k, "k", 8, False)  # [BLOCK_M, BLOCK_K]
    words = load_tile(w_tile, w_r, w_k, "k", W_VEC, False)  # [BLOCK_N, WORDS]
    _store(x_lds, x, LANES, EIGHTS, X_STORE, X_WHOLE)
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, SUMS)
    nothing = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, SUMS)
    k = gl.to_tensor(0)
    while k < K:
        sums = nothing if OWN_SUMS else acc
        for step in gl.static_range(0, SPAN, BLOCK_K):
            cta_barrier()  # the tile that is read below is stored; it waits for loads too
            following = gl.minimum(k + BLOCK_K, K - BLOCK_K)
            if OWN_SUMS and step == 0:
                scales = _scales_of_parts(s_ptrs, k, stride_sg, GROUP, DEPTH)
            if zeros_ptr is not None:
                next_zero = gl.load(z_ptrs + _group_of(following, GROUP) * stride_zg)
            if FOLD:
                next_folded = gl.load(f_ptrs + _group_of(following, GROUP) * stride_sg)
            x = load_tile(x_tile + following, x_r, x_k, "k", 8, False)
            next_words = load_tile(w_tile + following // PER_WORD, w_r, w_k, "k", W_VEC, False)
            k = load_fence(k + BLOCK_K)  # the loads stay above the matrix instructions
            words_of = _parts(words, PARTS)
            if FOLD:
                folded_of = _parts(folded, PARTS)
            for part in gl.static_range(PARTS):
                if FOLD:
                    zero = gl.convert_layout(folded_of[part].reshape([BLOCK_N]), OF_ROWS, assert_trivial=True)
                    zero = factors_of(zero, SCALE)
                part_words = gl.convert_layout(words_of[part], W_PART, assert_trivial=True)
                numbers = unpacked(part_words, zero[:, None], KIND, DTYPE, FOLD)
                if OWN_SUMS and GROUP < BLOCK_K:
                    sums = _product(x_lds.index(part), numbers, nothing, VERSION, LANES, EIGHTS)
                    acc += sums * _opaque(factors_of(scales[part], SCALE))[None, :]
                else:
                    sums = _product(x_lds.index(part), numbers, sums, VERSION, LANES, EIGHTS)
            k = schedule_fence_wave64(k) if VERSION == 0 else schedule_fence(k)
            # Triton puts a barrier here: every wave has read the tile.
            _store(x_lds, x, LANES, EIGHTS, X_STORE, X_WHOLE)
            if VERSION == 1:
                k = _stored(k)
            words = next_words
            if FOLD:
                folded = next_folded
            if zeros_ptr is not None:
                zero = next_zero.to(gl.float32)
        if not OWN_SUMS:
            acc = sums
        elif GROUP >= BLOCK_K:
            acc += sums * _opaque(factors_of(scales[0], SCALE))[None, :]
    if VERSION == 0:
        acc, k = written(acc, k)
    else:
        acc = pinned(acc)  # or C's dtype is made of sums in the loop
    if FOLD:
        acc *= 4
    if GROUP == 0:
        acc *= factors_of(gl.load(s_ptrs), SCALE)[None, :]
    rows_n = gl.multiple_of(gl.minimum(rows_n, BLOCK_N), [C_VEC])
    store_tile(
        acc, m0, n0, rows_m, rows_n, c_ptr, stride_cm, stride_cn, None, 0, 0, bias_ptr, stride_bias, None, None, None,
        None, C_CONTIGUOUS, C_VEC, False, 1, "none", "none", "n", "none", False, C_STORE,
    )  # fmt: skip


def _constants(problem: QuantizedProblem, config: FragmentsConfig, gpu: Gpu) -> dict[str, Any]:
    contiguous = problem.out.strides[3] == 1
    size = DTYPE_BYTES[problem.dtype_out]
    strides = [s * size for s in problem.out.strides[:3]] + [problem.n * size]
    whole = contiguous and problem.out.alignment == 16 and all(stride % 16 == 0 for stride in strides)
    return layouts(problem, config, gpu) | {
        "KIND": problem.dtype_w, "SCALE": problem.dtype_scale, "GROUP": problem.group, "SPAN": config.span(problem),
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "GROUP_M": config.group_m,
        "ORDER": "grouped" if gpu.wmma_version else "chiplet", "CHIPLETS": CHIPLETS, "BATCHED": problem.batches > 1,
        "VERSION": gpu.wmma_version, "C_VEC": 16 // size if whole else 1, "C_CONTIGUOUS": contiguous,
    }  # fmt: skip


def _integers(problem: QuantizedProblem) -> tuple[int, ...]:
    """What follows the pointers."""
    zeros = problem.zeros.strides if problem.zeros else (0, 0, 0, 0)
    words = [stride // 4 for stride in problem.values.strides[:3]]
    return (
        problem.m, problem.n, problem.k, problem.batch[1], *problem.x.strides[:3], *words, *problem.scales.strides,
        *zeros, *problem.out.strides, *(problem.bias[1:] if problem.bias else (0, 0)),
    )  # fmt: skip


def launch(
    problem: QuantizedProblem, config: FragmentsConfig, gpu: Gpu, x: Any, values: Any, scales: Any, zeros: Any,
    bias: Any, out: Any, ends: Any = None,
) -> None:  # fmt: skip
    """Run `config` on what lies as `problem` says: values, zeros and 8-bit scales as bytes, zeros, bias and ends or
    None."""
    quantized_fragments[(config.programs(problem),)](
        x, values, scales, zeros, bias, out, ends, *_integers(problem), **_constants(problem, config, gpu),
        num_warps=config.num_warps, enable_fp_fusion=True,
    )  # fmt: skip


def code_object(problem: QuantizedProblem, config: FragmentsConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    arguments = dict(zip(quantized_fragments.arg_names[7:], _integers(problem), strict=False))
    arguments |= _constants(problem, config, gpu)
    signature, constants, divisible = specialise(quantized_fragments, arguments, problem.pointers)
    return compile_kernel(
        quantized_fragments, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps,
        attrs=divisible,
    )  # fmt: skip

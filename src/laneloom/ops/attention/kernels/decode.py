"""Attention of few queries over a cache of keys and values, which may lie in pages: split keys, one wave a program.

A program has 16 rows, the queries of all heads that share a head of keys, and one of SPLITS runs of the keys; it leaves
its weighted mean of the values and the base-2 logarithm of its weights' sum, which `attention_combine` puts together in
their order. So the keys and values are read once, by enough programs to fill the memory's queues. Bound by memory.
Source: Dao, Haziza, Massa, Sizov, "Flash-Decoding", 2023; Kwon et al., "PagedAttention", arXiv:2309.06180.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import cta_barrier
from ....device.attention_tiles import (
    add_product,
    add_product_of_rows,
    capped,
    fence_loads,
    fence_schedule,
    load_rows,
    load_scattered_rows,
    softmax_step,
)
from ....gpu import Gpu
from ..arguments import UNIT, Tensors
from ..config import padded
from ..config_decode import DecodeConfig, DecodeProblem
from ..layouts import matrix_constants, rows_layout, rows_shared, turned_layout, turned_shared

_LN2 = gl.constexpr(0.6931471805599453)
_SCALARS = ("queries", "heads", "group", "row_tiles", "left", "stride_table")
_STRIDES = tuple(f"stride_{x}{axis}" for x in ("q", "k", "v") for axis in "bnh")
_FLOATS = ("scale2", "cap2")
_RUNTIME = (*_FLOATS, *_SCALARS, *_STRIDES)
_FP32 = ("sums_ptr", "sums_lse_ptr", "lse_ptr")
_INT32 = ("lengths_ptr", "table_ptr")


@gluon.jit
def _load_block(
    base, block, keys, stride_page, stride_row, table, column0,
    COLUMNS: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, PAGE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A block of keys or values, [COLUMNS, WIDTH], as `load_rows` has them."""
    row0 = block * COLUMNS
    if PAGE == 0:
        return load_rows(base, row0, keys, stride_row, column0, COLUMNS, WIDTH, D, LAYOUT)
    elif PAGE % COLUMNS == 0:
        page = gl.load(table + row0 // PAGE).to(gl.int64)
        first = row0 % PAGE
        rows = first + keys - row0
        return load_rows(base + page * stride_page, first, rows, stride_row, column0, COLUMNS, WIDTH, D, LAYOUT)
    else:
        # Several pages: each row's own. CDNA 5, whose instruction takes more keys than the smallest pages have.
        r = gl.minimum(row0 + gl.arange(0, COLUMNS, gl.SliceLayout(1, LAYOUT)), keys - 1)
        page = gl.load(table + r // PAGE).to(gl.int64)
        return load_scattered_rows(base + (page * stride_page + r % PAGE * stride_row), column0, WIDTH, D, LAYOUT)


@gluon.jit(do_not_specialize=_RUNTIME)
def attention_decode(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, sums_ptr, sums_lse_ptr, lengths_ptr, table_ptr,
    scale2, queries, heads, group, row_tiles, left, stride_table,
    stride_qb, stride_qn, stride_qh, stride_kb, stride_kn, stride_kh, stride_vb, stride_vn, stride_vh, cap2,
    D: gl.constexpr, D_V: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, WIDTH: gl.constexpr,
    OUT: gl.constexpr, PARTS: gl.constexpr, SPLITS: gl.constexpr, PAGE: gl.constexpr, HAS_FIRST: gl.constexpr,
    UNIT: gl.constexpr, VERSION: gl.constexpr, K_WIDTH: gl.constexpr, ACC: gl.constexpr, CHUNK: gl.constexpr,
    Q_LOAD: gl.constexpr, K_LOAD: gl.constexpr, V_LOAD: gl.constexpr, V_STORE: gl.constexpr, OUT_STORE: gl.constexpr,
    ROWS_SHARED: gl.constexpr, TURNED_SHARED: gl.constexpr,
):  # fmt: skip
    # The heads of one position lie side by side: programs that start together read them together.
    kv_heads = heads // group
    program = gl.program_id(0) // kv_heads
    kv_head = (gl.program_id(0) % kv_heads).to(gl.int64)
    split = program % SPLITS
    out0 = program // SPLITS % PARTS * OUT
    row0 = program // (SPLITS * PARTS) % row_tiles * ROWS
    batch = (program // (SPLITS * PARTS) // row_tiles).to(gl.int64)
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    keys = gl.load(lengths_ptr + batch)
    rows = queries * group
    stride_kn *= UNIT
    stride_vn *= UNIT
    k_base = k_ptr + kv_head * stride_kh * UNIT
    v_base = v_ptr + kv_head * stride_vh * UNIT
    if PAGE == 0:
        k_base += batch * stride_kb * UNIT
        v_base += batch * stride_vb * UNIT
        table = lengths_ptr
    else:
        table = table_ptr + batch * stride_table
    q_lds = gl.allocate_shared_memory(dtype, [ROWS, WIDTH], ROWS_SHARED)
    k_lds = gl.allocate_shared_memory(dtype, [COLUMNS, WIDTH], ROWS_SHARED)
    v_lds = gl.allocate_shared_memory(dtype, [COLUMNS, OUT], TURNED_SHARED)

    # Row r is query r // group of head kv_head group + r % group. Rows beyond the last read it again.
    r = gl.minimum(row0 + gl.arange(0, ROWS, gl.SliceLayout(1, Q_LOAD)), rows - 1)
    c = gl.arange(0, WIDTH, gl.SliceLayout(0, Q_LOAD))
    q_base = q_ptr + (batch * stride_qb + kv_head * group * stride_qh) * UNIT
    q_rows = ((r // group) * stride_qn + (r % group) * stride_qh) * UNIT
    if D % WIDTH == 0:
        q = gl.load(q_base + (q_rows[:, None] + c[None, :]))
    else:
        # What K has in the other columns counts for nothing.
        q = gl.load(q_base + (q_rows[:, None] + gl.where(c < D, c, c % 8)[None, :]))
        q = gl.where((c < D)[None, :], q, gl.zeros_like(q))
    q_lds.store(q)

    # Query n stands at key keys - queries + n and sees up to it.
    row = row0 + gl.arange(0, ROWS, gl.SliceLayout(1, ACC))
    at = gl.minimum(row, rows - 1) // group + keys - queries
    begin = keys * 0
    if HAS_FIRST:
        begin = gl.maximum(row0 // group + keys - queries - left, 0) // COLUMNS
    blocks = gl.maximum((keys + COLUMNS - 1) // COLUMNS - begin, 0)
    step = begin + blocks * split // SPLITS
    end = begin + blocks * (split + 1) // SPLITS
    acc = gl.zeros((ROWS, OUT), gl.float32, ACC)
    total = gl.zeros((ROWS,), gl.float32, gl.SliceLayout(1, ACC))
    top = gl.full((ROWS,), float("-inf"), gl.float32, gl.SliceLayout(1, ACC))
    if step < end:
        last_block = end - 1
        k = _load_block(k_base, step, keys, stride_kb * UNIT, stride_kn, table, 0, COLUMNS, WIDTH, D, PAGE, K_LOAD)
        while step < end:
            k_lds.store(k)
            # The keys are complete, and nobody reads the values before. Loads begin after: a barrier waits for all.
            cta_barrier()
            v = _load_block(
                v_base, step, keys, stride_vb * UNIT, stride_vn, table, out0, COLUMNS, OUT, D_V, PAGE, V_LOAD
            )
            ahead = gl.minimum(step + 1, last_block)
            k = _load_block(
                k_base, ahead, keys, stride_kb * UNIT, stride_kn, table, 0, COLUMNS, WIDTH, D, PAGE, K_LOAD
            )
            step = fence_loads(step, VERSION)  # the values and the next keys come while the scores are computed
            s = gl.zeros((ROWS, COLUMNS), gl.float32, ACC)
            for c0 in gl.static_range(0, D, CHUNK):
                if c0 > 0:
                    step = fence_schedule(step, VERSION)  # all of a wide row's operands at once are too many registers
                q_part, k_part = q_lds.slice(c0, CHUNK, 1), k_lds.slice(c0, CHUNK, 1)
                s = add_product_of_rows(s, q_part, k_part, min(D - c0, CHUNK), ACC, K_WIDTH, VERSION)
            s = capped(s * scale2, cap2)
            column = step * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, ACC))
            # The band counts from each row's own key: row `at`, last 0, first -left.
            p, fade, total, top = softmax_step(s, total, top, at, column, keys, -left, keys * 0, HAS_FIRST, True, True)
            step = fence_schedule(step + 1, VERSION)  # the wait for the values stays below
            v_lds.store(gl.convert_layout(v, V_STORE))
            cta_barrier()  # the values are complete
            acc = add_product(p.to(dtype), v_lds, acc * fade[:, None], ACC, K_WIDTH, VERSION)
            step = fence_schedule(step, VERSION)

    # Without keys the sum is 0: zeros, and the logarithm of nothing, -inf.
    acc = acc / gl.where(total == 0.0, 1.0, total)[:, None]
    lse2 = gl.where(total == 0.0, float("-inf"), top + gl.log2(total))
    # Through LDS, so that a lane stores neighbours, and no matrix instruction sinks into the masked stores.
    r = row0 + gl.arange(0, ROWS, gl.SliceLayout(1, OUT_STORE))
    c = out0 + gl.arange(0, OUT, gl.SliceLayout(0, OUT_STORE))
    mask = (r < rows)[:, None] & (c < D_V)[None, :]
    first = batch * queries * heads + kv_head * group
    line = (batch * heads + kv_head * group) * queries
    if SPLITS == 1:
        o = gl.convert_layout(acc.to(out_ptr.dtype.element_ty), OUT_STORE)
        place = first + ((r // group) * heads + r % group)  # [B, N, H]
        gl.store(out_ptr + (place * D_V)[:, None] + c[None, :], o, mask=mask)
        lse_at = line + (row % group) * queries + row // group  # [B, H, N]
        gl.store(lse_ptr + lse_at, lse2 * _LN2, mask=(row < rows) & (out0 == 0))
    else:
        place = (line + (r % group) * queries + r // group) * SPLITS + split  # [B, H, N, SPLITS]
        gl.store(sums_ptr + (place * D_V)[:, None] + c[None, :], gl.convert_layout(acc, OUT_STORE), mask=mask)
        lse_at = (line + (row % group) * queries + row // group) * SPLITS + split
        gl.store(sums_lse_ptr + lse_at, lse2, mask=(row < rows) & (out0 == 0))


@gluon.jit(do_not_specialize=("queries", "heads"))
def attention_combine(
    sums_ptr, sums_lse_ptr, out_ptr, lse_ptr, queries, heads,
    SPLITS: gl.constexpr, STEP: gl.constexpr, D_V: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """One row of one head: the mean of its parts, weighted by their sums of weights, in the order of the parts."""
    row = gl.program_id(0).to(gl.int64)  # of [B, H, N]
    s = gl.arange(0, STEP, gl.SliceLayout(1, LAYOUT))
    c = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    top = gl.full((STEP,), float("-inf"), gl.float32, gl.SliceLayout(1, LAYOUT))
    for first in gl.static_range(0, SPLITS, STEP):
        part = gl.load(sums_lse_ptr + row * SPLITS + first + s, mask=first + s < SPLITS, other=float("-inf"))
        top = gl.maximum(top, part)
    most = gl.max(top, 0)
    shift = gl.where(most == float("-inf"), 0.0, most)
    acc = gl.zeros((STEP, WIDTH), gl.float32, LAYOUT)
    total = gl.zeros((STEP,), gl.float32, gl.SliceLayout(1, LAYOUT))
    for first in gl.static_range(0, SPLITS, STEP):
        there = first + s < SPLITS
        part = gl.load(sums_lse_ptr + row * SPLITS + first + s, mask=there, other=float("-inf"))
        weight = gl.exp2(part - shift)
        at = sums_ptr + ((row * SPLITS + first + s) * D_V)[:, None] + c[None, :]
        values = gl.load(at, mask=there[:, None] & (c < D_V)[None, :], other=0.0)
        acc += weight[:, None] * values
        total += weight
    sum_of_weights = gl.sum(total, 0)
    o = gl.sum(acc, 0) / gl.where(sum_of_weights == 0.0, 1.0, sum_of_weights)
    query = row % queries
    owner = row // queries
    place = (owner // heads * queries + query) * heads + owner % heads  # of [B, N, H]
    gl.store(out_ptr + place * D_V + c, o.to(out_ptr.dtype.element_ty), mask=c < D_V)
    lse = gl.where(sum_of_weights == 0.0, float("-inf"), (most + gl.log2(sum_of_weights)) * _LN2)
    gl.store(lse_ptr + row, lse)


def _constants(problem: DecodeProblem, config: DecodeConfig, gpu: Gpu) -> dict[str, Any]:
    width = padded(problem.d, config.depth)
    return {
        "D": problem.d,
        "D_V": problem.d_v,
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        "WIDTH": width,
        "OUT": config.out,
        "PARTS": config.parts(problem),
        "SPLITS": config.splits,
        "PAGE": problem.page,
        "HAS_FIRST": problem.left is not None,
        "UNIT": UNIT,
        "CHUNK": gpu.matrix_depth if gpu.wmma_version and width > 64 else width,
        "Q_LOAD": rows_layout(config.rows, width, 1, gpu.wave),
        "K_LOAD": rows_layout(config.columns, width, 1, gpu.wave),
        "V_LOAD": turned_layout(config.columns, config.out, 1, gpu.wave, stored=False),
        "V_STORE": turned_layout(config.columns, config.out, 1, gpu.wave, stored=True),
        "OUT_STORE": rows_layout(config.rows, config.out, 1, gpu.wave),
        "ROWS_SHARED": rows_shared(width, gpu),
        "TURNED_SHARED": turned_shared(config.columns, gpu),
        **matrix_constants(gpu, 1, width, config.columns, problem.dtype),
    }


def _combine_constants(problem: DecodeProblem, config: DecodeConfig, gpu: Gpu) -> dict[str, Any]:
    width = padded(problem.d_v)
    lanes = min(gpu.wave, width // 4)
    layout = gl.BlockedLayout([1, 4], [gpu.wave // lanes, lanes], [config.combine_warps, 1], [1, 0])
    return {"SPLITS": config.splits, "STEP": config.combine_step, "D_V": problem.d_v, "WIDTH": width, "LAYOUT": layout}


def launch(problem: DecodeProblem, config: DecodeConfig, gpu: Gpu, tensors: Tensors) -> None:
    """Write out [B, N, H, D_V] and lse [B, H, N]; sums and sums_lse have room for the parts where there are several."""
    attention_decode[(config.programs(problem),)](
        *tensors.pointers("q", "k", "v", "out", "lse", "sums", "sums_lse", "lengths", "table"),
        *problem.decode_scalars(), tensors.table_stride(), *tensors.strides("q", "k", "v"),
        problem.cap2, **_constants(problem, config, gpu), num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    if config.splits > 1:
        attention_combine[(problem.batch * problem.heads * problem.queries,)](
            *tensors.pointers("sums", "sums_lse", "out", "lse"), problem.queries, problem.heads,
            **_combine_constants(problem, config, gpu), num_warps=config.combine_warps, enable_fp_fusion=True,
        )  # fmt: skip


def code_object(problem: DecodeProblem, config: DecodeConfig, gpu: Gpu) -> CodeObject:
    """The machine code of the kernel that reads the cache."""
    absent = [] if config.splits > 1 else ["sums_ptr", "sums_lse_ptr"]
    absent += [] if problem.page else ["table_ptr"]
    absent += [] if problem.softcap else ["cap2"]
    types = {}
    for name in attention_decode.arg_names:
        if name.endswith("_ptr") and name not in absent:
            types[name] = "*fp32" if name in _FP32 else "*i32" if name in _INT32 else f"*{problem.dtype}"
        elif name in _RUNTIME and name not in absent:
            types[name] = "fp32" if name in _FLOATS else "i32"
    return compile_kernel(
        attention_decode,
        gpu=gpu,
        signature=types,
        constants=_constants(problem, config, gpu) | dict.fromkeys(absent),
        num_warps=1,
        attrs=[name for name in types if name.endswith("_ptr")],
    )

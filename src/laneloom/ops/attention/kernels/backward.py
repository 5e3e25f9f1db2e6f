"""Attention backward: one kernel in two roles, which owns rows and visits the columns that they meet. No atomics.

Role "query": rows are queries, the sum is dQ. Role "key": rows are keys, the sums are dK and dV, over all query heads
of the group. In both, with X1, X2 the rows' tensors and Y1, Y2 the columns', P = exp2(scale2 X1 Y1^T - lse2) and
dS = P (X2 Y2^T - delta): dQ or dK = scale dS Y1, and dV = P Y2. Each sum has one owner and one order: the same call
gives the same bits. Derivation: docs/attention.md. Source: Dao, arXiv:2307.08691, algorithm 2.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import cta_barrier
from ....device.attention_tiles import (
    add_product,
    block_runs,
    capped,
    fence_loads,
    fence_schedule,
    in_band,
    load_rows,
    packed_rows,
    product_of_rows,
    visited_block,
    wait_for_sums,
)
from ....gpu import Gpu
from ..arguments import LENGTHS, RUNTIME, UNIT, Tensors, signature
from ..config import AttentionConfig, padded
from ..layouts import line_layout, matrix_constants, rows_layout, rows_shared, turned_layout, turned_shared
from ..problem import AttentionProblem

_LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _load_own(base, row0, rows, stride, ROWS: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, LAYOUT: gl.constexpr):
    """The program's rows, zeros beyond column D: what the columns' tensors have there counts for nothing."""
    x = load_rows(base, row0, rows, stride, 0, ROWS, WIDTH, D, LAYOUT)
    if D % WIDTH != 0:
        x = gl.where((gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT)) < D)[None, :], x, gl.zeros_like(x))
    return x


@gluon.jit
def _store_sum(
    acc, base, row0, rows, stride, out0, OUT: gl.constexpr, ROWS: gl.constexpr, D: gl.constexpr, LAYOUT: gl.constexpr
):
    """Round and store acc [ROWS, OUT] to columns out0.. of a matrix [rows, D]."""
    # Through LDS, so that a lane stores neighbours, and no matrix instruction sinks into the masked stores.
    x = gl.convert_layout(acc.to(base.dtype.element_ty), LAYOUT)
    r = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    c = gl.arange(0, OUT, gl.SliceLayout(0, LAYOUT))
    pointers = base + (row0.to(gl.int64) * stride + out0) + (r[:, None] * stride + c[None, :])
    gl.store(pointers, x, mask=(r < rows - row0)[:, None] & (c < D - out0)[None, :])


@gluon.jit(do_not_specialize=RUNTIME)
def attention_backward(
    q_ptr, k_ptr, v_ptr, g_ptr, out_ptr, lse_ptr, dlse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    first_q_ptr, first_k_ptr, scale2, queries, keys, heads, group, first, last, scale,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_ob, stride_oh, stride_on, stride_dqb, stride_dqh, stride_dqn,
    stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn, stride_lb, stride_lh, batches, cap2,
    ROLE: gl.constexpr, D: gl.constexpr, D_V: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
    WIDTH: gl.constexpr, WIDTH_V: gl.constexpr, OUT: gl.constexpr, PARTS: gl.constexpr,
    HAS_FIRST: gl.constexpr, HAS_LAST: gl.constexpr, PREFETCH: gl.constexpr, BOTTOM_RIGHT: gl.constexpr,
    UNIT: gl.constexpr, VERSION: gl.constexpr, K_WIDTH: gl.constexpr, ACC: gl.constexpr, FENCED: gl.constexpr,
    WAITS: gl.constexpr,
    X1_LOAD: gl.constexpr, X2_LOAD: gl.constexpr, Y1_LOAD: gl.constexpr, Y2_LOAD: gl.constexpr,
    LINE_LOAD: gl.constexpr, TURNED_LOAD: gl.constexpr, TURNED_STORE: gl.constexpr, OUT_STORE: gl.constexpr,
    SHARED: gl.constexpr, SHARED_V: gl.constexpr, TURNED_SHARED: gl.constexpr,
):  # fmt: skip
    BY_QUERY: gl.constexpr = ROLE == "query"
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    rows = queries if BY_QUERY else keys
    columns = keys if BY_QUERY else queries
    owners = heads if BY_QUERY else heads // group
    blocks = (rows + ROWS - 1) // ROWS
    program = gl.program_id(0)
    row0 = (blocks - 1 - program % blocks) * ROWS
    out0 = program // blocks % PARTS * OUT
    owner = (program // (blocks * PARTS)).to(gl.int64)
    batch = owner // owners
    head = owner % owners
    kv_head = head // group if BY_QUERY else head
    # From the first query head of the group: the key role moves on from it.
    q_head = head if BY_QUERY else head * group
    k_base = k_ptr + kv_head * stride_kh * UNIT
    v_base = v_ptr + kv_head * stride_vh * UNIT
    q_base = q_ptr + q_head * stride_qh * UNIT
    g_base = g_ptr + q_head * stride_gh * UNIT
    line = q_head * stride_lh
    q_first = batch * 0
    k_first = batch * 0
    stride_qn *= UNIT
    stride_kn *= UNIT
    stride_vn *= UNIT
    stride_gn *= UNIT
    if first_q_ptr is None:
        k_base += batch * stride_kb * UNIT
        v_base += batch * stride_vb * UNIT
        q_base += batch * stride_qb * UNIT
        g_base += batch * stride_gb * UNIT
        line += batch * stride_lb
    else:
        q_first, queries = packed_rows(first_q_ptr, batch)
        k_first, keys = packed_rows(first_k_ptr, batch)
        batch *= 0
        rows = queries if BY_QUERY else keys
        columns = keys if BY_QUERY else queries
        if row0 >= rows:
            return
        k_base += k_first * stride_kn
        v_base += k_first * stride_vn
        q_base += q_first * stride_qn
        g_base += q_first * stride_gn
        line += q_first
        if BOTTOM_RIGHT:
            first += columns - rows
            last += columns - rows
    stride_y1 = stride_kn if BY_QUERY else stride_qn
    stride_y2 = stride_vn if BY_QUERY else stride_gn

    x1_lds = gl.allocate_shared_memory(dtype, [ROWS, WIDTH], SHARED)
    x2_lds = gl.allocate_shared_memory(dtype, [ROWS, WIDTH_V], SHARED_V)
    OWN: gl.constexpr = gl.SliceLayout(1, ACC)
    OTHER: gl.constexpr = gl.SliceLayout(0, ACC)
    row = row0 + gl.arange(0, ROWS, OWN)
    safe_row = gl.minimum(row, rows - 1)
    if BY_QUERY:
        x1_lds.store(_load_own(q_base, row0, rows, stride_qn, ROWS, WIDTH, D, X1_LOAD))
        g = _load_own(g_base, row0, rows, stride_gn, ROWS, WIDTH_V, D_V, X2_LOAD)
        x2_lds.store(g)
        o_base = out_ptr + (batch * stride_ob + head * stride_oh + q_first * stride_on) * UNIT
        o = load_rows(o_base, row0, rows, stride_on * UNIT, 0, ROWS, WIDTH_V, D_V, X2_LOAD)
        delta = gl.convert_layout(gl.sum(g.to(gl.float32) * o.to(gl.float32), 1), OWN)
        if dlse_ptr is not None:
            delta -= gl.load(dlse_ptr + line + safe_row)
        gl.store(delta_ptr + line + row, delta, mask=(row < rows) & (out0 == 0))
        lse2 = gl.load(lse_ptr + line + safe_row) * _LOG2E
    else:
        x1_lds.store(_load_own(k_base, row0, rows, stride_kn, ROWS, WIDTH, D, X1_LOAD))
        x2_lds.store(_load_own(v_base, row0, rows, stride_vn, ROWS, WIDTH_V, D_V, X2_LOAD))
    last_row = gl.minimum(row0 + ROWS, rows) - 1
    begin, whole_begin, whole_end, end = block_runs(
        row0, last_row, columns, first, last, HAS_FIRST, HAS_LAST, COLUMNS
    )
    cut = end - begin - (whole_end - whole_begin)

    sum1 = gl.zeros((ROWS, OUT), gl.float32, ACC)  # dQ or dK
    sum2 = gl.zeros((ROWS, OUT), gl.float32, ACC)  # dV
    for CUT in gl.static_range(1, -1, -1):
        each = cut if CUT == 1 else end - begin - cut
        left = each if BY_QUERY else each * group
        while left > 0:
            if BY_QUERY:
                member = left.to(gl.int64) * 0
                step = left - 1
            else:
                member = ((left - 1) // each).to(gl.int64)
                step = (left - 1) % each
            if CUT == 0:
                step += cut
            column0 = visited_block(step, begin, whole_begin, whole_end, end) * COLUMNS
            column = column0 + gl.arange(0, COLUMNS, OTHER)
            y1_base = k_base if BY_QUERY else q_base + member * (stride_qh * UNIT)
            y2_base = v_base if BY_QUERY else g_base + member * (stride_gh * UNIT)
            y1 = load_rows(y1_base, column0, columns, stride_y1, 0, COLUMNS, WIDTH, D, Y1_LOAD)
            if PREFETCH:
                y2 = load_rows(y2_base, column0, columns, stride_y2, 0, COLUMNS, WIDTH_V, D_V, Y2_LOAD)
            left = fence_loads(left - 1, VERSION)  # all are under way before the first is waited for
            # Triton's barriers: tiles of one lifetime each, complete before they are read.
            y1_lds = gl.allocate_shared_memory(dtype, [COLUMNS, WIDTH], SHARED, y1)
            s = capped(product_of_rows(x1_lds, y1_lds, ROWS, COLUMNS, D, ACC, K_WIDTH, VERSION) * scale2, cap2)
            left = fence_schedule(left, VERSION, CDNA=FENCED)  # the wait for the second tile stays below
            if not PREFETCH:
                y2 = load_rows(y2_base, column0, columns, stride_y2, 0, COLUMNS, WIDTH_V, D_V, Y2_LOAD)
            y2_lds = gl.allocate_shared_memory(dtype, [COLUMNS, WIDTH_V], SHARED_V, y2)
            # A barrier waits for all loads: the next begin after it.
            cta_barrier()
            # What is summed is needed again with the columns as neighbours; it comes from the cache.
            t1 = load_rows(y1_base, column0, columns, stride_y1, out0, COLUMNS, OUT, D, TURNED_LOAD)
            if not BY_QUERY:
                t2 = load_rows(y2_base, column0, columns, stride_y2, out0, COLUMNS, OUT, D_V, TURNED_LOAD)
                flat = column0 + gl.arange(0, COLUMNS, LINE_LOAD)
                at = line + member * stride_lh + gl.minimum(flat, columns - 1)
                lse2 = gl.load(lse_ptr + at) * _LOG2E
                delta = gl.load(delta_ptr + at)
            left = fence_loads(left, VERSION)
            dp = product_of_rows(x2_lds, y2_lds, ROWS, COLUMNS, D_V, ACC, K_WIDTH, VERSION)
            if BY_QUERY:
                p = gl.exp2(s - lse2[:, None])
            else:
                # A lane loaded one and gets its columns' from LDS.
                p = gl.exp2(s - gl.convert_layout(lse2, OTHER)[None, :])
            if CUT == 1:
                # As the rows see them: the key role's band is turned around by its caller.
                seen = in_band(row[:, None], column[None, :], columns, first, last, HAS_FIRST, HAS_LAST)
                p = gl.where(seen, p, 0.0)
            if BY_QUERY:
                ds = p * (dp - delta[:, None])
            else:
                ds = p * (dp - gl.convert_layout(delta, OTHER)[None, :])
            if cap2 is not None:
                slope = s * (1.0 / cap2)  # tanh, whose derivative is 1 - tanh^2
                ds *= 1.0 - slope * slope
            left = fence_schedule(left, VERSION, CDNA=FENCED)  # the waits for the turned tiles stay below
            t1_lds = gl.allocate_shared_memory(
                dtype, [COLUMNS, OUT], TURNED_SHARED, gl.convert_layout(t1, TURNED_STORE)
            )
            sum1 = add_product(ds.to(dtype), t1_lds, sum1, ACC, K_WIDTH, VERSION)
            if not BY_QUERY:
                t2_lds = gl.allocate_shared_memory(
                    dtype, [COLUMNS, OUT], TURNED_SHARED, gl.convert_layout(t2, TURNED_STORE)
                )
                sum2 = add_product(p.to(dtype), t2_lds, sum2, ACC, K_WIDTH, VERSION)
            left = fence_schedule(left, VERSION)
            if WAITS and BY_QUERY:
                sum1, left = wait_for_sums(sum1, left)
            elif WAITS:
                sum2, left = wait_for_sums(sum2, left)  # behind those of sum1

    sum1 *= scale
    if BY_QUERY:
        dq_base = dq_ptr + (batch * stride_dqb + head * stride_dqh + q_first * stride_dqn) * UNIT
        _store_sum(sum1, dq_base, row0, rows, stride_dqn * UNIT, out0, OUT, ROWS, D, OUT_STORE)
    else:
        dk_base = dk_ptr + (batch * stride_dkb + head * stride_dkh + k_first * stride_dkn) * UNIT
        dv_base = dv_ptr + (batch * stride_dvb + head * stride_dvh + k_first * stride_dvn) * UNIT
        _store_sum(sum1, dk_base, row0, rows, stride_dkn * UNIT, out0, OUT, ROWS, D, OUT_STORE)
        _store_sum(sum2, dv_base, row0, rows, stride_dvn * UNIT, out0, OUT, ROWS, D_V, OUT_STORE)


def _constants(problem: AttentionProblem, config: AttentionConfig, gpu: Gpu) -> dict[str, Any]:
    width, width_v = padded(problem.d, config.depth), padded(problem.d_v, config.depth)
    warps, wave = config.num_warps, gpu.wave
    open_ends = problem.first is not None, problem.last is not None
    by_query = config.role == "query"
    return {
        "ROLE": config.role,
        "D": problem.d,
        "D_V": problem.d_v,
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        "WIDTH": width,
        "WIDTH_V": width_v,
        "OUT": config.out,
        "PARTS": config.parts(problem),
        "HAS_FIRST": open_ends[0 if by_query else 1],
        "HAS_LAST": open_ends[1 if by_query else 0],
        "PREFETCH": config.prefetch,
        "BOTTOM_RIGHT": problem.bottom_right,
        "UNIT": UNIT,
        "LINE_LOAD": line_layout(warps, wave),
        "X1_LOAD": rows_layout(config.rows, width, warps, wave),
        "X2_LOAD": rows_layout(config.rows, width_v, warps, wave),
        "Y1_LOAD": rows_layout(config.columns, width, warps, wave),
        "Y2_LOAD": rows_layout(config.columns, width_v, warps, wave),
        "TURNED_LOAD": turned_layout(config.columns, config.out, warps, wave, stored=False),
        "TURNED_STORE": turned_layout(config.columns, config.out, warps, wave, stored=True),
        "OUT_STORE": rows_layout(config.rows, config.out, warps, wave),
        "SHARED": rows_shared(width, gpu),
        "SHARED_V": rows_shared(width_v, gpu),
        "TURNED_SHARED": turned_shared(config.columns, gpu),
        # Of CDNA; wide tiles on gfx950 are predicted faster without (docs/attention.md).
        "FENCED": gpu.name != "gfx950" or max(width, width_v) <= 128,
        "WAITS": gpu.name == "gfx90a",
        **matrix_constants(gpu, warps, min(width, width_v), config.columns, problem.dtype),
    }


def launch(problem: AttentionProblem, config: AttentionConfig, gpu: Gpu, tensors: Tensors) -> None:
    """Write dq and delta (role "query"), or dk and dv from the delta that it left (role "key"); see `Tensors`."""
    *sizes, first, last = problem.scalars()
    if config.role == "key":
        first, last = -last, -first
    attention_backward[(config.programs(problem),)](
        *tensors.pointers("q", "k", "v", "g", "out", "lse", "dlse", "delta", "dq", "dk", "dv", "first_q", "first_k"),
        *sizes, first, last, problem.scale, *tensors.strides("q", "k", "v", "g", "out", "dq", "dk", "dv"),
        *tensors.lines(), problem.batch, problem.cap2,
        **_constants(problem, config, gpu), num_warps=config.num_warps, enable_fp_fusion=True,
    )  # fmt: skip


def code_object(problem: AttentionProblem, config: AttentionConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs where no gradient of the LSE comes in."""
    types = signature(attention_backward, problem.dtype)
    absent = ["dlse_ptr", *(() if problem.packed else LENGTHS), *(() if problem.softcap else ("cap2",))]
    types = {name: kind for name, kind in types.items() if name not in absent}
    return compile_kernel(
        attention_backward,
        gpu=gpu,
        signature=types,
        constants=_constants(problem, config, gpu) | dict.fromkeys(absent),
        num_warps=config.num_warps,
        attrs=[name for name in types if name.endswith("_ptr")],
    )

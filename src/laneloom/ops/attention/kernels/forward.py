"""Attention forward, one pass over the keys per block of queries with an online softmax in base 2.

A program owns ROWS queries of one head, which lie in LDS, and OUT columns of the output, whose sums are registers. It
visits the blocks of keys that its queries see: those that the mask cuts first, then the whole ones without a mask. The
general schedule: RDNA and CDNA 5 by WMMA, CDNA 1 to 4 by MFMA, NVIDIA by mma. Derivation: docs/attention.md.
Source: Milakov and Gimelshein, arXiv:1805.02867; Dao, arXiv:2307.08691; AMD's ISA guides of RDNA 3 and 4, CDNA 3 and 4.
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
    load_rows,
    multiplied,
    packed_rows,
    product_of_rows,
    scale_of,
    softmax_step,
    visited_block,
)
from ....gpu import Gpu
from ..arguments import LENGTHS, RUNTIME, SCALES, UNIT, Tensors, signature
from ..config import AttentionConfig, padded
from ..layouts import matrix_constants, rows_layout, rows_shared, turned_layout, turned_shared
from ..problem import AttentionProblem

_LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit(do_not_specialize=RUNTIME)
def attention_forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, first_q_ptr, first_k_ptr, scale_q_ptr, scale_k_ptr, scale_v_ptr,
    scale2, queries, keys, heads, group, first, last,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_on, stride_lb, stride_lh, batches, cap2,
    D: gl.constexpr, D_V: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, WIDTH: gl.constexpr,
    OUT: gl.constexpr, PARTS: gl.constexpr, HAS_FIRST: gl.constexpr, HAS_LAST: gl.constexpr, PREFETCH: gl.constexpr,
    BOTTOM_RIGHT: gl.constexpr, UNIT: gl.constexpr, VERSION: gl.constexpr, K_WIDTH: gl.constexpr, ACC: gl.constexpr,
    Q_LOAD: gl.constexpr, K_LOAD: gl.constexpr, V_LOAD: gl.constexpr, V_STORE: gl.constexpr, OUT_STORE: gl.constexpr,
    ROWS_SHARED: gl.constexpr, TURNED_SHARED: gl.constexpr,
):  # fmt: skip
    blocks = (queries + ROWS - 1) // ROWS
    program = gl.program_id(0)
    # Causal attention gives late queries the most keys: they start first.
    query0 = (blocks - 1 - program % blocks) * ROWS
    out0 = program // blocks % PARTS * OUT
    head_of_all = (program // (blocks * PARTS)).to(gl.int64)
    batch = head_of_all // heads
    head = head_of_all % heads
    q_base = q_ptr + head * stride_qh * UNIT
    k_base = k_ptr + head // group * stride_kh * UNIT
    v_base = v_ptr + head // group * stride_vh * UNIT
    out_base = out_ptr + head * stride_oh * UNIT
    lse_base = lse_ptr + head * stride_lh
    stride_qn *= UNIT
    stride_kn *= UNIT
    stride_vn *= UNIT
    stride_on *= UNIT
    if first_q_ptr is None:
        q_base += batch * stride_qb * UNIT
        k_base += batch * stride_kb * UNIT
        v_base += batch * stride_vb * UNIT
        out_base += batch * stride_ob * UNIT
        lse_base += batch * stride_lb
    else:
        q_first, queries = packed_rows(first_q_ptr, batch)
        k_first, keys = packed_rows(first_k_ptr, batch)
        if query0 >= queries:
            return
        # Of a sequence without keys, what is loaded first is some other one's.
        k_first = gl.minimum(k_first, gl.load(first_k_ptr + batches) - 1)
        q_base += q_first * stride_qn
        k_base += k_first * stride_kn
        v_base += k_first * stride_vn
        out_base += q_first * stride_on
        lse_base += q_first
        if BOTTOM_RIGHT:
            first += keys - queries
            last += keys - queries
    rows_of_keys = gl.maximum(keys, 1)
    of_scales = batch * (heads // group) + head // group
    scale2 *= scale_of(scale_q_ptr, of_scales) * scale_of(scale_k_ptr, of_scales)
    # 8-bit floats are multiplied as fp16, exactly, and weights are fp16 then.
    dtype: gl.constexpr = gl.float16 if q_ptr.dtype.element_ty.primitive_bitwidth == 8 else q_ptr.dtype.element_ty
    q_lds = gl.allocate_shared_memory(dtype, [ROWS, WIDTH], ROWS_SHARED)
    k_lds = gl.allocate_shared_memory(dtype, [COLUMNS, WIDTH], ROWS_SHARED)
    v_lds = gl.allocate_shared_memory(dtype, [COLUMNS, OUT], TURNED_SHARED)

    q = multiplied(load_rows(q_base, query0, queries, stride_qn, 0, ROWS, WIDTH, D, Q_LOAD), VERSION)
    if D % WIDTH != 0:
        # What K has in these columns counts for nothing.
        q = gl.where((gl.arange(0, WIDTH, gl.SliceLayout(0, Q_LOAD)) < D)[None, :], q, gl.zeros_like(q))
    q_lds.store(q)
    last_query = gl.minimum(query0 + ROWS, queries) - 1
    begin, whole_begin, whole_end, end = block_runs(
        query0, last_query, keys, first, last, HAS_FIRST, HAS_LAST, COLUMNS
    )
    steps = end - begin
    cut = steps - (whole_end - whole_begin)

    acc = gl.zeros((ROWS, OUT), gl.float32, ACC)
    total = gl.zeros((ROWS,), gl.float32, gl.SliceLayout(1, ACC))
    top = gl.full((ROWS,), float("-inf"), gl.float32, gl.SliceLayout(1, ACC))
    row = query0 + gl.arange(0, ROWS, gl.SliceLayout(1, ACC))
    step = steps * 0
    key0 = visited_block(step, begin, whole_begin, whole_end, end) * COLUMNS
    k = load_rows(k_base, key0, rows_of_keys, stride_kn, 0, COLUMNS, WIDTH, D, K_LOAD)
    for CUT in gl.static_range(1, -1, -1):
        limit = steps
        if CUT == 1:
            limit = cut
        while step < limit:
            k_lds.store(multiplied(k, VERSION))
            # The keys are complete, and nobody reads the values before. A barrier waits for all loads: the next begin
            # after it. Before the stores Triton puts its own.
            cta_barrier()
            v = load_rows(v_base, key0, keys, stride_vn, out0, COLUMNS, OUT, D_V, V_LOAD)
            step = fence_loads(step, VERSION)  # the values come while the scores are computed
            s = capped(product_of_rows(q_lds, k_lds, ROWS, COLUMNS, D, ACC, K_WIDTH, VERSION) * scale2, cap2)
            column = key0 + gl.arange(0, COLUMNS, gl.SliceLayout(0, ACC))
            p, fade, total, top = softmax_step(
                s, total, top, row, column, keys, first, last, HAS_FIRST, HAS_LAST, CUT == 1
            )
            step = fence_schedule(step + 1, VERSION)  # the wait for the values stays below
            v_lds.store(gl.convert_layout(multiplied(v, VERSION), V_STORE))
            cta_barrier()  # the values are complete
            key0 = visited_block(step, begin, whole_begin, whole_end, end) * COLUMNS
            if PREFETCH:
                k = load_rows(k_base, key0, rows_of_keys, stride_kn, 0, COLUMNS, WIDTH, D, K_LOAD)
                step = fence_loads(step, VERSION)  # the next keys come while the values are summed
            acc = add_product(p.to(dtype), v_lds, acc * fade[:, None], ACC, K_WIDTH, VERSION)
            step = fence_schedule(step, VERSION)
            if not PREFETCH:
                k = load_rows(k_base, key0, rows_of_keys, stride_kn, 0, COLUMNS, WIDTH, D, K_LOAD)

    # A query without keys has the sum 0, gives zeros, and the logarithm of nothing, -inf.
    acc = acc * scale_of(scale_v_ptr, of_scales) / gl.where(total == 0.0, 1.0, total)[:, None]
    # Through LDS, so that a lane stores neighbours, and no matrix instruction sinks into the masked stores.
    o = gl.convert_layout(acc.to(out_ptr.dtype.element_ty), OUT_STORE)
    r = gl.arange(0, ROWS, gl.SliceLayout(1, OUT_STORE))
    c = gl.arange(0, OUT, gl.SliceLayout(0, OUT_STORE))
    out = out_base + query0.to(gl.int64) * stride_on + out0
    out += r[:, None] * stride_on + c[None, :]
    gl.store(out, o, mask=(r < queries - query0)[:, None] & (c < D_V - out0)[None, :])
    lse = gl.where(total == 0.0, float("-inf"), (top + gl.log2(total)) * _LN2)
    gl.store(lse_base + row, lse, mask=(row < queries) & (out0 == 0))


def _constants(problem: AttentionProblem, config: AttentionConfig, gpu: Gpu) -> dict[str, Any]:
    width, warps, wave = padded(problem.d, config.depth), config.num_warps, gpu.wave
    return {
        "D": problem.d,
        "D_V": problem.d_v,
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        "WIDTH": width,
        "OUT": config.out,
        "PARTS": config.parts(problem),
        "HAS_FIRST": problem.first is not None,
        "HAS_LAST": problem.last is not None,
        "PREFETCH": config.prefetch,
        "BOTTOM_RIGHT": problem.bottom_right,
        "UNIT": UNIT,
        "Q_LOAD": rows_layout(config.rows, width, warps, wave),
        "K_LOAD": rows_layout(config.columns, width, warps, wave),
        "V_LOAD": turned_layout(config.columns, config.out, warps, wave, stored=False),
        "V_STORE": turned_layout(config.columns, config.out, warps, wave, stored=True),
        "OUT_STORE": rows_layout(config.rows, config.out, warps, wave),
        "ROWS_SHARED": rows_shared(width, gpu),
        "TURNED_SHARED": turned_shared(config.columns, gpu),
        **matrix_constants(gpu, warps, width, config.columns, problem.dtype),
    }


def launch(problem: AttentionProblem, config: AttentionConfig, gpu: Gpu, tensors: Tensors) -> None:
    """Write out and lse; see `Tensors`."""
    attention_forward[(config.programs(problem),)](
        *tensors.pointers("q", "k", "v", "out", "lse", "first_q", "first_k", "scale_q", "scale_k", "scale_v"),
        *problem.scalars(),
        *tensors.strides("q", "k", "v", "out"), *tensors.lines(), problem.batch, problem.cap2,
        **_constants(problem, config, gpu), num_warps=config.num_warps, enable_fp_fusion=True,
    )  # fmt: skip


def code_object(problem: AttentionProblem, config: AttentionConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    types = signature(attention_forward, problem.dtype, problem.out_dtype)
    constants = _constants(problem, config, gpu)
    absent = [*(() if problem.packed else LENGTHS), *(() if problem.dtype == "fp8" else SCALES)]
    absent += [] if problem.softcap else ["cap2"]
    constants |= dict.fromkeys(absent)
    types = {name: kind for name, kind in types.items() if name not in absent}
    return compile_kernel(
        attention_forward,
        gpu=gpu,
        signature=types,
        constants=constants,
        num_warps=config.num_warps,
        attrs=[name for name in types if name.endswith("_ptr")],
    )

"""WMMA block GEMM: a workgroup's tiles of A and B go through LDS while the next ones are on their way.

The general schedule of RDNA 3, 3.5 and 4 for halves, 8-bit and 4-bit operands: any size, any strides, rows or K in
groups, K in parts, or the last round of tiles shared (stream-K). Both tiles lie in LDS with K contiguous, so that
fragments are read 16 bytes at a time; an operand that is contiguous along M or N is transposed on the way. Its knobs
make most presets (docs/presets.md). What was tried, compiled figures: docs/matmul.md. Source of the fragment layouts:
AMD RDNA 3 and RDNA 4 ISA guides, "Wave Matrix Multiply Accumulate".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject
from ....codegen.versions import cta_barrier
from ....device.epilogue import above_stores, store_tile_in_pieces
from ....device.row_groups import k_of_group, place_tile_of_all
from ....device.stream_k import stream_piece
from ....device.wmma_tiles import (
    load_fence,
    load_last_tile,
    load_tile,
    lower_priority,
    marked,
    multiply,
    opaque_halves,
    raise_priority,
    schedule_fence,
    store_to_lds,
    tile_offsets,
    wait_for_memory,
)
from ....gpu import Gpu
from ..config_wmma import WmmaConfig
from ..launch_wmma import RUNTIME_PARTS, compile_tiles, constants, ends_layout, facts, launch_tiles
from ..problem import MatmulProblem

__all__ = ["code_object", "facts", "launch", "wmma_matmul"]


@gluon.jit(do_not_specialize=RUNTIME_PARTS)
def wmma_matmul(
    a_ptr, b_ptr, c_ptr, add_ptr, bias_ptr, alpha, beta, scale_a_ptr, scale_b_ptr, M, N, K,
    stride_ao, stride_ai, stride_am, stride_ak,
    stride_bo, stride_bi, stride_bk, stride_bn,
    stride_co, stride_ci, stride_cm, stride_cn,
    stride_do, stride_di, stride_dm, stride_dn, stride_bias,
    batch_inner, first_program, k_part, stride_part, whole, shared, workers, copies, inverse,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    ORDER: gl.constexpr, GROUP: gl.constexpr, CHIPLETS: gl.constexpr,
    BUFFERS: gl.constexpr, PREFETCH: gl.constexpr, CONTROL: gl.constexpr,
    SPLIT: gl.constexpr, STREAM: gl.constexpr, BATCHED: gl.constexpr, WHOLE_K: gl.constexpr, WIDE: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_CONTIGUOUS: gl.constexpr, ADD_CONTIGUOUS: gl.constexpr,
    A_VEC: gl.constexpr, B_VEC: gl.constexpr, C_VEC: gl.constexpr, ADD_VEC: gl.constexpr, K_VEC: gl.constexpr,
    SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BIAS_AXIS: gl.constexpr, ACTIVATION: gl.constexpr,
    VERSION: gl.constexpr, K_WIDTH: gl.constexpr, INTERLEAVED: gl.constexpr, MARK: gl.constexpr,
    ACC_TYPE: gl.constexpr, SUMS_TYPE: gl.constexpr, ACCUMULATOR: gl.constexpr, A_TYPE: gl.constexpr,
    B_TYPE: gl.constexpr, A_LOAD: gl.constexpr, B_LOAD: gl.constexpr, A_STORE: gl.constexpr, B_STORE: gl.constexpr,
    A_OPAQUE: gl.constexpr, B_OPAQUE: gl.constexpr, A_SHUFFLE: gl.constexpr, B_SHUFFLE: gl.constexpr,
    C_STORE: gl.constexpr, C_PIECES: gl.constexpr, HOLD: gl.constexpr, N_VEC: gl.constexpr, A_SHARED: gl.constexpr,
    B_SHARED: gl.constexpr, ENDS: gl.constexpr, ends_ptr=None,
):  # fmt: skip
    K = marked(K, MARK)
    tile = gl.program_id(0) + first_program
    if STREAM:
        # a piece of a tile that several programs share
        steps_of_tile = (K - 1) // BLOCK_K + 1
        tile, first_step, end_step, slot = stream_piece(tile, steps_of_tile, shared, workers, copies, inverse)
        tile += whole
        k_first = first_step * BLOCK_K
        K = gl.minimum(K, end_step * BLOCK_K) - k_first
        a_ptr += k_first.to(gl.int64) * stride_ak
        b_ptr += k_first.to(gl.int64) * stride_bk
    outer, inner, m0, n0, rows_m, rows_n = place_tile_of_all(
        tile, ends_ptr, M, N, batch_inner, BLOCK_M, BLOCK_N, ORDER, GROUP, CHIPLETS, BATCHED, ENDS
    )  # fmt: skip
    if ENDS is not None and rows_m <= 0:  # there are fewer tiles of rows in groups
        return
    a_ptr += outer * stride_ao + inner * stride_ai
    b_ptr += outer * stride_bo + inner * stride_bi
    if not STREAM:
        c_ptr += outer * stride_co + inner * stride_ci
    if add_ptr is not None:
        add_ptr += outer * stride_do + inner * stride_di
    if ENDS is not None and SCALE_B == "column":  # of each group's
        scale_b_ptr += inner * N
    if SPLIT:
        # this program's part of K, whose sums are a C of their own
        part = gl.program_id(1)
        k_first = part * k_part
        K = gl.minimum(K - k_first, k_part)
        a_ptr += k_first.to(gl.int64) * stride_ak
        b_ptr += k_first.to(gl.int64) * stride_bk
        c_ptr += part.to(gl.int64) * stride_part
    if ends_ptr is not None and ENDS is None:  # K in groups
        k_first, K = k_of_group(ends_ptr, inner, K)
        a_ptr += k_first * stride_ak
        b_ptr += k_first * stride_bk
    a_tile = a_ptr + m0 * stride_am
    b_tile = b_ptr + n0 * stride_bn
    a_r, a_k = tile_offsets(rows_m, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD)
    b_r, b_k = tile_offsets(rows_n, stride_bn, stride_bk, BLOCK_N, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD)
    a_lds = gl.allocate_shared_memory(A_TYPE, [BUFFERS, BLOCK_M, BLOCK_K], A_SHARED)
    b_lds = gl.allocate_shared_memory(B_TYPE, [BUFFERS, BLOCK_N, BLOCK_K], B_SHARED)

    # The last K-tile, which may be ragged, comes first: a sum has no order, and the loop needs no masks.
    steps = (K - 1) // BLOCK_K
    k_last = steps.to(gl.int64) * BLOCK_K
    a = load_last_tile(
        a_tile + k_last * stride_ak, a_r, a_k, K - k_last, WHOLE_K, K_VEC, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD
    )  # fmt: skip
    b = load_last_tile(
        b_tile + k_last * stride_bk, b_r, b_k, K - k_last, WHOLE_K, K_VEC, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD
    )  # fmt: skip
    left = steps
    store_to_lds(a_lds.index(left % BUFFERS), a, A_STORE, A_SHUFFLE, INTERLEAVED)
    store_to_lds(b_lds.index(left % BUFFERS), b, B_STORE, B_SHUFFLE, INTERLEAVED)

    acc = gl.zeros((BLOCK_M, BLOCK_N), ACC_TYPE, ACCUMULATOR)
    a_step = stride_ak.to(gl.int64) * BLOCK_K
    b_step = stride_bk.to(gl.int64) * BLOCK_K
    while left > 0:
        # the tile that is read below is stored, and nobody reads the other buffer any more
        cta_barrier()
        if PREFETCH:
            a = load_tile(a_tile, a_r, a_k, A_MAJOR, A_VEC, WIDE)  # [BLOCK_M, BLOCK_K]
            b = load_tile(b_tile, b_r, b_k, B_MAJOR, B_VEC, WIDE)  # [BLOCK_N, BLOCK_K]
            # the loads stay above the LDS reads, and so above the matrix instructions
            left = load_fence(left)
        if CONTROL == "priority":
            left = raise_priority(left)
        acc = multiply(a_lds.index(left % BUFFERS), b_lds.index(left % BUFFERS), acc, VERSION, K_WIDTH)
        # the matrix instructions stay above the wait for the loads
        left = schedule_fence(left - 1)
        if CONTROL == "priority":
            left = lower_priority(left)
        if not PREFETCH:
            a = load_tile(a_tile, a_r, a_k, A_MAJOR, A_VEC, WIDE)  # [BLOCK_M, BLOCK_K]
            b = load_tile(b_tile, b_r, b_k, B_MAJOR, B_VEC, WIDE)  # [BLOCK_N, BLOCK_K]
        if CONTROL == "waits":
            # the loaded tiles are in registers
            left = wait_for_memory(left, VERSION)
        if A_OPAQUE:
            a = opaque_halves(a)
        if B_OPAQUE:
            b = opaque_halves(b)
        # With one buffer as with two, Triton puts a barrier here: every wave has read the tile before.
        store_to_lds(a_lds.index(left % BUFFERS), a, A_STORE, A_SHUFFLE, INTERLEAVED)
        store_to_lds(b_lds.index(left % BUFFERS), b, B_STORE, B_SHUFFLE, INTERLEAVED)
        a_tile += a_step
        b_tile += b_step
    cta_barrier()  # the last tile is stored
    acc = multiply(a_lds.index(0), b_lds.index(0), acc, VERSION, K_WIDTH)
    acc = above_stores(acc, HOLD)
    if SUMS_TYPE is not None:
        acc = acc.to(SUMS_TYPE, bitcast=True)
    if STREAM:
        # the whole block, for kernels/stream_sums.py
        c_ptr += slot.to(gl.int64) * (BLOCK_M * BLOCK_N)
        m0 *= 0
        n0 *= 0
        rows_m = rows_m * 0 + BLOCK_M
        rows_n = rows_n * 0 + BLOCK_N
        stride_cm = stride_cm * 0 + BLOCK_N
    store_tile_in_pieces(
        acc, m0, n0, rows_m, rows_n, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn, bias_ptr, stride_bias,
        alpha, beta, scale_a_ptr, scale_b_ptr, C_CONTIGUOUS, C_VEC, ADD_CONTIGUOUS, ADD_VEC, SCALE_A, SCALE_B,
        BIAS_AXIS, ACTIVATION, WIDE, C_STORE, C_PIECES, N_VEC,
    )  # fmt: skip


def _constants(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> dict[str, Any]:
    stream = config.stream_k > 0
    return constants(problem, config, gpu) | {
        "SPLIT": config.parts(problem) > 1,
        "STREAM": stream,
        "BATCHED": problem.batches > 1,
        "ENDS": ends_layout(problem, config, gpu),
        "BUFFERS": config.buffers,
        "PREFETCH": config.prefetch,
        "CONTROL": config.control,
        # the sums of a piece are a whole block, whatever C is
        **({"C_CONTIGUOUS": True, "C_VEC": 4, "N_VEC": 4} if stream else {}),
    }


def launch(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu, *pointers: Any, parts: Any = None, ends: Any = None
) -> None:  # fmt: skip
    """As `launch_wmma.launch_tiles`. With stream-K a launch makes the whole tiles, another leaves the pieces of the
    others in `parts`, of the shape that the config says, for kernels/stream_sums.py.
    """
    whole = replace(config, stream_k=0)
    shares = config.shares(problem, gpu) if config.stream_k else None
    chosen = _constants(problem, whole, gpu)
    launch_tiles(wmma_matmul, problem, whole, chosen, gpu, *pointers, count=shares and shares.whole, ends=ends)
    if shares and shares.shared:
        pieces = problem.of_sums()
        chosen, a, b = _constants(pieces, config, gpu), *pointers[:2]
        launch_tiles(wmma_matmul, pieces, config, chosen, gpu, a, b, parts, count=shares.programs)


def code_object(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs; with stream-K, what makes the pieces."""
    if config.stream_k:
        problem = problem.of_sums()
    return compile_tiles(wmma_matmul, problem, config, _constants(problem, config, gpu), gpu)

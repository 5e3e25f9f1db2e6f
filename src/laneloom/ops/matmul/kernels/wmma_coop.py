"""WMMA block GEMM with cooperative loads: half of the waves load A's tiles, the other half B's; all of them multiply.

As kernels/wmma.py but for who loads: a wave has addresses of one operand only, and twice the loads of it. RDNA 3, 3.5
and 4, fp16 and bf16, any size and stride. Source: the idea of wmma_ops' matmul_coop.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject
from ....codegen.versions import cta_barrier
from ....device.epilogue import above_stores, store_tile_in_pieces
from ....device.waves import wave_number
from ....device.wmma_tiles import (
    complete,
    load_fence,
    load_last_tile,
    load_tile,
    marked,
    multiply,
    opaque_halves,
    place_tile,
    schedule_fence,
    store_to_lds,
    tile_offsets,
)
from ....gpu import Gpu
from ..config_wmma import CoopConfig
from ..launch_wmma import RUNTIME, compile_tiles, constants, facts, launch_tiles
from ..problem import MatmulProblem

__all__ = ["code_object", "facts", "launch", "wmma_coop_matmul"]


@gluon.jit(do_not_specialize=RUNTIME)
def wmma_coop_matmul(
    a_ptr, b_ptr, c_ptr, add_ptr, bias_ptr, alpha, beta, scale_a_ptr, scale_b_ptr, M, N, K,
    stride_ao, stride_ai, stride_am, stride_ak,
    stride_bo, stride_bi, stride_bk, stride_bn,
    stride_co, stride_ci, stride_cm, stride_cn,
    stride_do, stride_di, stride_dm, stride_dn, stride_bias,
    batch_inner, first_program,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    ORDER: gl.constexpr, GROUP: gl.constexpr, CHIPLETS: gl.constexpr,
    BATCHED: gl.constexpr, WHOLE_K: gl.constexpr, WIDE: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_CONTIGUOUS: gl.constexpr, ADD_CONTIGUOUS: gl.constexpr,
    A_VEC: gl.constexpr, B_VEC: gl.constexpr, C_VEC: gl.constexpr, ADD_VEC: gl.constexpr, K_VEC: gl.constexpr,
    SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BIAS_AXIS: gl.constexpr, ACTIVATION: gl.constexpr,
    VERSION: gl.constexpr, K_WIDTH: gl.constexpr, INTERLEAVED: gl.constexpr, MARK: gl.constexpr,
    ACC_TYPE: gl.constexpr, SUMS_TYPE: gl.constexpr, ACCUMULATOR: gl.constexpr, A_TYPE: gl.constexpr,
    B_TYPE: gl.constexpr, A_LOAD: gl.constexpr, B_LOAD: gl.constexpr, A_STORE: gl.constexpr, B_STORE: gl.constexpr,
    A_OPAQUE: gl.constexpr, B_OPAQUE: gl.constexpr, A_SHUFFLE: gl.constexpr, B_SHUFFLE: gl.constexpr,
    C_STORE: gl.constexpr, C_PIECES: gl.constexpr, HOLD: gl.constexpr, N_VEC: gl.constexpr, A_SHARED: gl.constexpr,
    B_SHARED: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    K = marked(K, MARK)
    outer, inner, m0, n0, rows_m, rows_n = place_tile(
        gl.program_id(0) + first_program, M, N, batch_inner, BLOCK_M, BLOCK_N, ORDER, GROUP, CHIPLETS, BATCHED
    )  # fmt: skip
    a_ptr += outer * stride_ao + inner * stride_ai
    b_ptr += outer * stride_bo + inner * stride_bi
    c_ptr += outer * stride_co + inner * stride_ci
    if add_ptr is not None:
        add_ptr += outer * stride_do + inner * stride_di
    a_tile = a_ptr + m0 * stride_am
    b_tile = b_ptr + n0 * stride_bn
    a_r, a_k = tile_offsets(rows_m, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD)
    b_r, b_k = tile_offsets(rows_n, stride_bn, stride_bk, BLOCK_N, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD)
    a_lds = gl.allocate_shared_memory(A_TYPE, [2, BLOCK_M, BLOCK_K], A_SHARED)
    b_lds = gl.allocate_shared_memory(B_TYPE, [2, BLOCK_N, BLOCK_K], B_SHARED)
    wave = wave_number(32)

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
    if wave < HALF:
        store_to_lds(a_lds.index(left % 2), a, A_STORE, A_SHUFFLE, INTERLEAVED)
    else:
        store_to_lds(b_lds.index(left % 2), b, B_STORE, B_SHUFFLE, INTERLEAVED)

    acc = gl.zeros((BLOCK_M, BLOCK_N), ACC_TYPE, ACCUMULATOR)
    a_step = stride_ak.to(gl.int64) * BLOCK_K
    b_step = stride_bk.to(gl.int64) * BLOCK_K
    while left > 0:
        # the tile that is read below is stored
        cta_barrier()
        if wave < HALF:
            a = load_tile(a_tile, a_r, a_k, A_MAJOR, A_VEC, WIDE)  # [BLOCK_M, BLOCK_K]
        else:
            b = load_tile(b_tile, b_r, b_k, B_MAJOR, B_VEC, WIDE)  # [BLOCK_N, BLOCK_K]
        # the loads stay above the LDS reads, and so above the matrix instructions
        left = load_fence(left)
        acc = multiply(a_lds.index(left % 2), b_lds.index(left % 2), acc, VERSION, K_WIDTH)
        # the matrix instructions stay above the wait for the loads, and in this block: LLVM sinks them past branches
        complete(acc)
        left = schedule_fence(left - 1)
        # Triton would put this barrier, between reads and stores of one allocation, into each branch.
        cta_barrier()
        if wave < HALF:
            if A_OPAQUE:
                a = opaque_halves(a)
            store_to_lds(a_lds.index(left % 2), a, A_STORE, A_SHUFFLE, INTERLEAVED)
        else:
            if B_OPAQUE:
                b = opaque_halves(b)
            store_to_lds(b_lds.index(left % 2), b, B_STORE, B_SHUFFLE, INTERLEAVED)
        a_tile += a_step
        b_tile += b_step
    cta_barrier()  # the last tile is stored
    acc = multiply(a_lds.index(0), b_lds.index(0), acc, VERSION, K_WIDTH)
    acc = above_stores(acc, HOLD)
    if SUMS_TYPE is not None:
        acc = acc.to(SUMS_TYPE, bitcast=True)
    store_tile_in_pieces(
        acc, m0, n0, rows_m, rows_n, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn, bias_ptr, stride_bias,
        alpha, beta, scale_a_ptr, scale_b_ptr, C_CONTIGUOUS, C_VEC, ADD_CONTIGUOUS, ADD_VEC, SCALE_A, SCALE_B,
        BIAS_AXIS, ACTIVATION, WIDE, C_STORE, C_PIECES, N_VEC,
    )  # fmt: skip


def _constants(problem: MatmulProblem, config: CoopConfig, gpu: Gpu) -> dict[str, Any]:
    return constants(problem, config, gpu) | {"BATCHED": problem.batches > 1, "HALF": config.num_warps // 2}


def launch(problem: MatmulProblem, config: CoopConfig, gpu: Gpu, *pointers: Any) -> None:
    """As `launch_wmma.launch_tiles`."""
    launch_tiles(wmma_coop_matmul, problem, config, _constants(problem, config, gpu), gpu, *pointers)


def code_object(problem: MatmulProblem, config: CoopConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    return compile_tiles(wmma_coop_matmul, problem, config, _constants(problem, config, gpu), gpu)

"""WMMA block GEMM with every access 16 bytes wide: half of the waves bring A's tile, the other half B's, all multiply.

For one operand contiguous along K and the other along its rows, both aligned. A tile of B has 8 x 8 blocks for the
lanes of half the waves, which turn them in registers (a permute a pair of halves) and store 16 bytes along K, where all
waves would have 8 x 4. The loads are the same instructions for both halves: a wave's base address, step and offsets are
its operand's. RDNA 3, 3.5 and 4, 16-bit elements; loop and layouts of LDS as in kernels/wmma.py.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject
from ....codegen.versions import cta_barrier
from ....device.epilogue import above_stores, store_tile_in_pieces
from ....device.waves import wave_number
from ....device.wide_tiles import load_last_vectors, load_vectors, store_vectors, vector_offsets
from ....device.wmma_tiles import (
    complete,
    load_fence,
    marked,
    multiply,
    place_tile,
    schedule_fence,
)
from ....gpu import Gpu
from ..config_wmma import WideConfig
from ..launch_wmma import RUNTIME, compile_tiles, constants, facts, launch_tiles
from ..layouts_wmma import vector_layouts
from ..problem import MatmulProblem

__all__ = ["code_object", "facts", "launch", "wmma_wide_matmul"]


@gluon.jit(do_not_specialize=RUNTIME)
def wmma_wide_matmul(
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
    B_SHARED: gl.constexpr, HALF: gl.constexpr, VECTORS: gl.constexpr,
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
    a_lds = gl.allocate_shared_memory(A_TYPE, [2, BLOCK_M, BLOCK_K], A_SHARED)
    b_lds = gl.allocate_shared_memory(B_TYPE, [2, BLOCK_N, BLOCK_K], B_SHARED)
    first = wave_number(32) < HALF
    a_offs, a_k = vector_offsets(rows_m, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_MAJOR, VECTORS)
    b_offs, b_k = vector_offsets(rows_n, stride_bn, stride_bk, BLOCK_N, BLOCK_K, B_MAJOR, VECTORS)
    a_step = stride_ak.to(gl.int64) * BLOCK_K
    b_step = stride_bk.to(gl.int64) * BLOCK_K
    # a wave's operand
    tile = a_tile
    step = a_step
    along_k = gl.to_tensor(1 if A_MAJOR == "k" else 0)
    if not first:
        tile = b_tile
        step = b_step
        along_k = gl.to_tensor(1 if B_MAJOR == "k" else 0)
    offs = gl.where(first, a_offs, b_offs)  # [VECTORS]

    # The last K-tile, which may be ragged, comes first: a sum has no order, and the loop needs no masks.
    steps = (K - 1) // BLOCK_K
    k_left = K - steps * BLOCK_K
    x = load_last_vectors(
        tile + steps.to(gl.int64) * step, offs, gl.where(first, a_k, b_k), along_k, k_left, WHOLE_K, VECTORS
    )  # fmt: skip
    left = steps
    if first:
        store_vectors(a_lds.index(left % 2), x, A_MAJOR, A_STORE)
    else:
        store_vectors(b_lds.index(left % 2), x, B_MAJOR, B_STORE)

    acc = gl.zeros((BLOCK_M, BLOCK_N), ACC_TYPE, ACCUMULATOR)
    while left > 0:
        # the tile that is read below is stored
        cta_barrier()
        x = load_vectors(tile, offs, VECTORS)  # [VECTORS, 8]
        # the loads stay above the LDS reads, and so above the matrix instructions
        left = load_fence(left)
        acc = multiply(a_lds.index(left % 2), b_lds.index(left % 2), acc, VERSION, K_WIDTH)
        # the matrix instructions stay above the wait for the loads, and in this block: LLVM sinks them past branches
        complete(acc)
        left = schedule_fence(left - 1)
        # Triton would put this barrier, between reads and stores of one allocation, into each branch.
        cta_barrier()
        if first:
            store_vectors(a_lds.index(left % 2), x, A_MAJOR, A_STORE)
        else:
            store_vectors(b_lds.index(left % 2), x, B_MAJOR, B_STORE)
        tile += step
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


def _constants(problem: MatmulProblem, config: WideConfig, gpu: Gpu) -> dict[str, Any]:
    shared = constants(problem, config, gpu)
    vectors, stores = vector_layouts(config.block_m, config)
    return shared | {
        "BATCHED": problem.batches > 1,
        "HALF": config.num_warps // 2,
        "VECTORS": vectors,
        "A_STORE": stores[shared["A_MAJOR"]],
        "B_STORE": stores[shared["B_MAJOR"]],
    }


def launch(problem: MatmulProblem, config: WideConfig, gpu: Gpu, *pointers: Any) -> None:
    """As `launch_wmma.launch_tiles`."""
    launch_tiles(wmma_wide_matmul, problem, config, _constants(problem, config, gpu), gpu, *pointers)


def code_object(problem: MatmulProblem, config: WideConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    return compile_tiles(wmma_wide_matmul, problem, config, _constants(problem, config, gpu), gpu)

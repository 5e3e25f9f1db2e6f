"""WMMA block GEMM with roles: while half of the waves multiply, the other half moves tiles; then they change places.

Each half owns half of C's tile. In the first phase of a K-tile the first half multiplies it; the second stores its
part of the next tile, B, from registers to LDS and starts to load the one after. In the second phase the second half
multiplies and the first does the same for A. So the matrix units of a SIMD that hosts waves of both halves always have
work, and a load has a whole K-tile's time. RDNA 3, 3.5 and 4, fp16 and bf16, any size and stride. Source: the idea of
wmma_ops' matmul_pingpong.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import cta_barrier
from ....device.epilogue import pinned, store_tile_in_pieces
from ....device.tile_order import tile_of
from ....device.waves import wave_number
from ....device.wmma_tiles import (
    complete,
    load_ragged_tile,
    load_tile,
    lower_priority,
    multiply,
    raise_priority,
    tile_offsets,
    tile_pointers,
)
from ....gpu import Gpu
from ..config_wmma import PingpongConfig
from ..layouts_wmma import MAX_PROGRAMS, RUNTIME, constants, facts, programs, runtime_arguments, signature
from ..problem import MatmulProblem

__all__ = ["code_object", "facts", "launch", "wmma_pingpong_matmul"]


@gluon.jit(do_not_specialize=RUNTIME)
def wmma_pingpong_matmul(
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
    VERSION: gl.constexpr, K_WIDTH: gl.constexpr, ACCUMULATOR: gl.constexpr,
    A_LOAD: gl.constexpr, B_LOAD: gl.constexpr, A_STORE: gl.constexpr, B_STORE: gl.constexpr, C_STORE: gl.constexpr,
    C_PIECES: gl.constexpr, N_VEC: gl.constexpr, A_SHARED: gl.constexpr, B_SHARED: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // BLOCK_N + 1
    program = gl.program_id(0) + first_program
    if BATCHED:
        batch = program // (tiles_m * tiles_n)
        program = program % (tiles_m * tiles_n)
        outer = (batch // batch_inner).to(gl.int64)
        inner = (batch % batch_inner).to(gl.int64)
        a_ptr += outer * stride_ao + inner * stride_ai
        b_ptr += outer * stride_bo + inner * stride_bi
        c_ptr += outer * stride_co + inner * stride_ci
        if add_ptr is not None:
            add_ptr += outer * stride_do + inner * stride_di
    tile_m, tile_n = tile_of(program, tiles_m, tiles_n, ORDER, GROUP, CHIPLETS)
    m0 = tile_m.to(gl.int64) * BLOCK_M
    n0 = tile_n.to(gl.int64) * BLOCK_N
    rows_m = gl.minimum(M - m0, BLOCK_M).to(gl.int32)
    rows_n = gl.minimum(N - n0, BLOCK_N).to(gl.int32)
    a_tile = a_ptr + m0 * stride_am
    b_tile = b_ptr + n0 * stride_bn
    a_r, a_k = tile_offsets(rows_m, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD)
    b_r, b_k = tile_offsets(rows_n, stride_bn, stride_bk, BLOCK_N, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD)
    a_lds = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [2, BLOCK_M, BLOCK_K], A_SHARED)
    b_lds = gl.allocate_shared_memory(b_ptr.dtype.element_ty, [2, BLOCK_N, BLOCK_K], B_SHARED)
    wave = wave_number(32)

    # The last K-tile, which may be ragged, comes first: a sum has no order, and the loop needs no masks.
    steps = (K - 1) // BLOCK_K
    k_last = steps.to(gl.int64) * BLOCK_K
    a_last = a_tile + k_last * stride_ak
    b_last = b_tile + k_last * stride_bk
    if WHOLE_K:
        a = gl.load(tile_pointers(a_last, a_r, a_k, A_MAJOR, A_VEC, WIDE))  # [BLOCK_M, BLOCK_K]
        b = gl.load(tile_pointers(b_last, b_r, b_k, B_MAJOR, B_VEC, WIDE))  # [BLOCK_N, BLOCK_K]
    else:
        k_left = gl.multiple_of((K - k_last).to(gl.int32), [K_VEC])
        a = load_ragged_tile(a_last, a_r, a_k, k_left, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD)
        b = load_ragged_tile(b_last, b_r, b_k, k_left, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD)
    a_lds.index(0).store(gl.convert_layout(a, A_STORE))
    b_lds.index(0).store(gl.convert_layout(b, B_STORE))
    if steps > 0:
        a = load_tile(a_tile, a_r, a_k, A_MAJOR, A_VEC, WIDE)  # [BLOCK_M, BLOCK_K]
        b = load_tile(b_tile, b_r, b_k, B_MAJOR, B_VEC, WIDE)  # [BLOCK_N, BLOCK_K]

    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, ACCUMULATOR)
    a_step = stride_ak.to(gl.int64) * BLOCK_K
    b_step = stride_bk.to(gl.int64) * BLOCK_K
    step = gl.to_tensor(0)
    while step < steps:
        # Tile `step` lies in LDS, the one after it in registers. The tile after that is loaded if there is one, else
        # the last one again, which nobody uses.
        more = (step + 2 <= steps).to(gl.int64)
        a_tile += a_step * more
        b_tile += b_step * more
        # tile `step` of both operands is stored; nobody reads the other buffer any more
        cta_barrier()
        if wave < HALF:
            step = raise_priority(step)
            acc = multiply(a_lds.index(step % 2), b_lds.index(step % 2), acc, VERSION, K_WIDTH)
            complete(acc)
            step = lower_priority(step)
        else:
            b_lds.index((step + 1) % 2).store(gl.convert_layout(b, B_STORE))
            b = load_tile(b_tile, b_r, b_k, B_MAJOR, B_VEC, WIDE)
        # the halves change places together
        cta_barrier()
        if wave < HALF:
            a_lds.index((step + 1) % 2).store(gl.convert_layout(a, A_STORE))
            a = load_tile(a_tile, a_r, a_k, A_MAJOR, A_VEC, WIDE)
        else:
            step = raise_priority(step)
            acc = multiply(a_lds.index(step % 2), b_lds.index(step % 2), acc, VERSION, K_WIDTH)
            complete(acc)
            step = lower_priority(step)
        step += 1
    cta_barrier()  # the last tile is stored
    acc = multiply(a_lds.index(step % 2), b_lds.index(step % 2), acc, VERSION, K_WIDTH)
    if C_STORE is None or C_PIECES > 1:
        acc = pinned(acc)
    store_tile_in_pieces(
        acc, m0, n0, rows_m, rows_n, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn, bias_ptr, stride_bias,
        alpha, beta, scale_a_ptr, scale_b_ptr, C_CONTIGUOUS, C_VEC, ADD_CONTIGUOUS, ADD_VEC, SCALE_A, SCALE_B,
        BIAS_AXIS, ACTIVATION, WIDE, C_STORE, C_PIECES, N_VEC,
    )  # fmt: skip


def _constants(problem: MatmulProblem, config: PingpongConfig, gpu: Gpu) -> dict[str, Any]:
    return constants(problem, config, gpu) | {"HALF": config.num_warps // 2}


def launch(
    problem: MatmulProblem, config: PingpongConfig, gpu: Gpu, a: Any, b: Any, c: Any,
    add: Any = None, bias: Any = None, alpha: float | None = None, beta: float | None = None,
    scale_a: Any = None, scale_b: Any = None,
) -> None:  # fmt: skip
    """Write activation(alpha scale_a (a b) scale_b + beta add + bias) into c: what Triton takes for pointers, None for
    no term.
    """
    arguments = runtime_arguments(problem) | _constants(problem, config, gpu)
    count = programs(problem, config)
    for first in range(0, count, MAX_PROGRAMS):
        grid = (min(count - first, MAX_PROGRAMS), 1, 1)
        wmma_pingpong_matmul[grid](
            a, b, c, add, bias, alpha, beta, scale_a, scale_b, first_program=first, **arguments,
            num_warps=config.num_warps, enable_fp_fusion=True,
        )  # fmt: skip


def code_object(problem: MatmulProblem, config: PingpongConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    types, nothing = signature(problem)
    return compile_kernel(
        wmma_pingpong_matmul,
        gpu=gpu,
        signature=types,
        constants=nothing | _constants(problem, config, gpu),
        num_warps=config.num_warps,
        attrs=(),
    )

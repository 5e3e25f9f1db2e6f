"""FP32 and FP64 block GEMM by fused multiply-adds: RDNA has no matrix instructions for either, CDNA 1 none for FP64.

A thread owns a block of sums as 4 x 4 pieces and reads 16 bytes of both operands from LDS for each of them and step of
K; neighbouring multiplications issue in pairs (`v_dual_fmac_f32`). Tiles lie in LDS with their rows contiguous and
padded, so that an operand contiguous along K is turned by its stores. Any size, any strides, every epilogue; RDNA 3,
3.5 and 4, CDNA 1. Source: AMD RDNA 3 ISA guide, "Dual Issue VALU". The ladder to this is docs/sgemm-ladder.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject
from ....codegen.versions import cta_barrier
from ....device.epilogue import store_tile
from ....device.wmma_tiles import (
    load_fence,
    load_last_tile,
    load_tile,
    place_tile,
    schedule_fence,
    schedule_fence_wave64,
    tile_offsets,
)
from ....gpu import Gpu
from ..config_fma import PIECE, FmaConfig
from ..launch_wmma import (
    RUNTIME,
    compile_tiles,
    language_type,
    launch_tiles,
    load_along,
    majors,
    problem_constants,
)
from ..problem import DTYPE_BYTES, MatmulProblem

__all__ = ["code_object", "facts", "fma_matmul", "launch"]


@gluon.jit(do_not_specialize=RUNTIME)
def fma_matmul(
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
    TYPE: gl.constexpr, SUMS: gl.constexpr, A_LOAD: gl.constexpr, B_LOAD: gl.constexpr, A_SHARED: gl.constexpr,
    B_SHARED: gl.constexpr, N_VEC: gl.constexpr, WAVE: gl.constexpr, MARK: gl.constexpr,
):  # fmt: skip
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
    a_lds = gl.allocate_shared_memory(TYPE, [2, BLOCK_M, BLOCK_K], A_SHARED)
    b_lds = gl.allocate_shared_memory(TYPE, [2, BLOCK_N, BLOCK_K], B_SHARED)

    # The last K-tile, which may be ragged, comes first: the loop needs no masks.
    steps = (K - 1) // BLOCK_K
    k_last = steps.to(gl.int64) * BLOCK_K
    a = load_last_tile(
        a_tile + k_last * stride_ak, a_r, a_k, K - k_last, WHOLE_K, K_VEC, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD
    )  # fmt: skip
    b = load_last_tile(
        b_tile + k_last * stride_bk, b_r, b_k, K - k_last, WHOLE_K, K_VEC, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD
    )  # fmt: skip
    left = steps
    a_lds.index(left % 2).store(a)
    b_lds.index(left % 2).store(b)
    acc = gl.zeros((BLOCK_M, BLOCK_N), TYPE, SUMS)
    a_step = stride_ak.to(gl.int64) * BLOCK_K
    b_step = stride_bk.to(gl.int64) * BLOCK_K
    while left > 0:
        # the tile that is read below is stored, and nobody reads the other buffer any more
        cta_barrier()
        a = load_tile(a_tile, a_r, a_k, A_MAJOR, A_VEC, WIDE)  # [BLOCK_M, BLOCK_K]
        b = load_tile(b_tile, b_r, b_k, B_MAJOR, B_VEC, WIDE)  # [BLOCK_N, BLOCK_K]
        # the loads stay above the multiplications
        left = load_fence(left)
        acc = _multiply(a_lds.index(left % 2), b_lds.index(left % 2), acc)
        # the multiplications stay above the wait for the loads
        left = schedule_fence(left - 1) if WAVE == 32 else schedule_fence_wave64(left - 1)
        a_lds.index(left % 2).store(a)
        b_lds.index(left % 2).store(b)
        a_tile += a_step
        b_tile += b_step
    cta_barrier()  # the last tile is stored
    acc = _multiply(a_lds.index(0), b_lds.index(0), acc)
    rows_n = gl.multiple_of(gl.minimum(rows_n, BLOCK_N), [N_VEC])
    store_tile(
        acc, m0, n0, rows_m, rows_n, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn, bias_ptr, stride_bias,
        alpha, beta, scale_a_ptr, scale_b_ptr, C_CONTIGUOUS, C_VEC, ADD_CONTIGUOUS, ADD_VEC, SCALE_A, SCALE_B,
        BIAS_AXIS, ACTIVATION, WIDE, None,
    )  # fmt: skip


@gluon.jit
def _multiply(a_lds, b_lds, acc):
    a = a_lds.load(gl.DotOperandLayout(0, acc.type.layout, 0))  # [BLOCK_M, BLOCK_K]
    b = b_lds.permute([1, 0]).load(gl.DotOperandLayout(1, acc.type.layout, 0))  # [BLOCK_K, BLOCK_N]
    return gl.dot_fma(a, b, acc)


@cache
def _constants(problem: MatmulProblem, config: FmaConfig, gpu: Gpu) -> dict[str, Any]:
    widest = 16 // DTYPE_BYTES[problem.dtype_a]
    a_major, b_major = majors(problem)
    padded: Any = gl.PaddedSharedLayout
    shared = [
        padded.with_identity_for([[rows, widest]], [rows, config.block_k], [0, 1])
        for rows in (config.block_m, config.block_n)
    ]
    piece = PIECE[problem.dtype_a]
    waves_n = 1 << (config.num_warps.bit_length() - 1) // 2
    waves = [config.num_warps // waves_n, waves_n]
    return problem_constants(problem, config) | {
        "BATCHED": problem.batches > 1,
        "TYPE": language_type(problem.dtype_a),
        "SUMS": gl.BlockedLayout([piece, piece], [gpu.wave // 8, 8], waves, [1, 0]),
        "A_LOAD": load_along(config.block_m, config, a_major != "row", widest, gpu.wave),
        "B_LOAD": load_along(config.block_n, config, b_major != "row", widest, gpu.wave),
        "A_SHARED": shared[0],
        "B_SHARED": shared[1],
        "WAVE": gpu.wave,
        "MARK": "",
    }


def launch(problem: MatmulProblem, config: FmaConfig, gpu: Gpu, *pointers: Any) -> None:
    """As `launch_wmma.launch_tiles`."""
    launch_tiles(fma_matmul, problem, config, _constants(problem, config, gpu), gpu, *pointers)


def code_object(problem: MatmulProblem, config: FmaConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    return compile_tiles(fma_matmul, problem, config, _constants(problem, config, gpu), gpu)


def facts(problem: MatmulProblem, config: FmaConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the kernel, as sentences."""
    chosen = _constants(problem, config, gpu)
    size = DTYPE_BYTES[problem.dtype_a]
    lines = [f"{gpu.name} has no matrix instructions for {problem.dtype_a}: fused multiply-adds"]
    for name, vector in (("A", problem.vector_a), ("B", problem.vector_b)):
        way = {"k": "turned by the stores to LDS", "row": "stored to LDS as loaded", "neither": "turned by the stores"}
        lines.append(f"{name}: loads of {vector * size} bytes, {way[chosen[f'{name}_MAJOR']]}")
    if not chosen["WHOLE_K"]:
        lines.append(f"the last K-tile has {problem.k % config.block_k} of {config.block_k} columns and is masked")
    if problem.epilogue:
        lines.append(f"the sums become C before their one rounding: {problem.epilogue.key.replace('+', ', ')}")
    return lines

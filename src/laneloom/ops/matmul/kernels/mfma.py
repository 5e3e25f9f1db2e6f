"""MFMA block GEMM for CDNA: tiles through swizzled LDS, the next one loaded during matrix instructions, waves of 64.

fp16, bf16 and int8 (`v_mfma_*_16x16x16` and wider), fp32 and fp64 (`_16x16x4`), on gfx950 fp8 and bf8, which on
gfx908, gfx90a and gfx942 become bf16: any size, any strides, rows or K in groups, every epilogue.
Emulated and inspected; nobody ran it on a GPU. Source: AMD Instinct MI300 ISA guide, "Matrix Arithmetic Instructions".
"""

from __future__ import annotations

from functools import cache
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject
from ....codegen.versions import cta_barrier
from ....device.epilogue import store_tile, written
from ....device.float8 import bf16_of_float8
from ....device.row_groups import k_of_group, place_tile_of_all
from ....device.wmma_tiles import load_fence, load_last_tile, load_tile, schedule_fence_wave64, tile_offsets
from ....gpu import Gpu
from ..config_mfma import MfmaConfig, format_of, instruction_of, is_upcast, lds_element_bytes
from ..launch_wmma import (
    RUNTIME,
    compile_tiles,
    ends_layout,
    language_type,
    launch_tiles,
    load_along,
    majors,
    problem_constants,
)
from ..layouts_mfma import VECTOR_BYTES, WAVE, reads_vectors, shared_layout, turned_layout
from ..problem import DTYPE_BYTES, MatmulProblem

__all__ = ["code_object", "facts", "launch", "mfma_matmul"]


@gluon.jit(do_not_specialize=RUNTIME)
def mfma_matmul(
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
    TYPE: gl.constexpr, ACC_TYPE: gl.constexpr, SUMS: gl.constexpr, K_WIDTH: gl.constexpr,
    A_LOAD: gl.constexpr, B_LOAD: gl.constexpr, A_STORE: gl.constexpr, B_STORE: gl.constexpr,
    A_SHARED: gl.constexpr, B_SHARED: gl.constexpr, N_VEC: gl.constexpr, MARK: gl.constexpr,
    FORMAT: gl.constexpr, ENDS: gl.constexpr, ends_ptr=None,
):  # fmt: skip
    tile = gl.program_id(0) + first_program
    outer, inner, m0, n0, rows_m, rows_n = place_tile_of_all(
        tile, ends_ptr, M, N, batch_inner, BLOCK_M, BLOCK_N, ORDER, GROUP, CHIPLETS, BATCHED, ENDS
    )  # fmt: skip
    if ENDS is not None and rows_m <= 0:  # there are fewer tiles of rows in groups
        return
    a_ptr += outer * stride_ao + inner * stride_ai
    b_ptr += outer * stride_bo + inner * stride_bi
    c_ptr += outer * stride_co + inner * stride_ci
    if add_ptr is not None:
        add_ptr += outer * stride_do + inner * stride_di
    if ENDS is not None and SCALE_B == "column":  # of each group's
        scale_b_ptr += inner * N
    if ends_ptr is not None and ENDS is None:  # K in groups
        k_first, K = k_of_group(ends_ptr, inner, K)
        a_ptr += k_first * stride_ak
        b_ptr += k_first * stride_bk
    a_tile = a_ptr + m0 * stride_am
    b_tile = b_ptr + n0 * stride_bn
    a_r, a_k = tile_offsets(rows_m, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD)
    b_r, b_k = tile_offsets(rows_n, stride_bn, stride_bk, BLOCK_N, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD)
    a_lds = gl.allocate_shared_memory(TYPE, [BLOCK_M, BLOCK_K], A_SHARED)
    b_lds = gl.allocate_shared_memory(TYPE, [BLOCK_N, BLOCK_K], B_SHARED)

    # The last K-tile, which may be ragged, comes first: the loop needs no masks.
    steps = (K - 1) // BLOCK_K
    k_last = steps.to(gl.int64) * BLOCK_K
    a = load_last_tile(
        a_tile + k_last * stride_ak, a_r, a_k, K - k_last, WHOLE_K, K_VEC, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD
    )  # fmt: skip
    b = load_last_tile(
        b_tile + k_last * stride_bk, b_r, b_k, K - k_last, WHOLE_K, K_VEC, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD
    )  # fmt: skip
    a_lds.store(gl.convert_layout(_multiplied(a, TYPE), A_STORE))
    b_lds.store(gl.convert_layout(_multiplied(b, TYPE), B_STORE))
    acc = gl.zeros((BLOCK_M, BLOCK_N), ACC_TYPE, SUMS)
    a_step = stride_ak.to(gl.int64) * BLOCK_K
    b_step = stride_bk.to(gl.int64) * BLOCK_K
    left = steps
    while left > 0:
        # the tile that is read below is stored
        cta_barrier()
        a = load_tile(a_tile, a_r, a_k, A_MAJOR, A_VEC, WIDE)  # [BLOCK_M, BLOCK_K]
        b = load_tile(b_tile, b_r, b_k, B_MAJOR, B_VEC, WIDE)  # [BLOCK_N, BLOCK_K]
        # the loads stay above the matrix instructions
        left = load_fence(left - 1)
        acc = _multiply(a_lds, b_lds, acc, K_WIDTH, FORMAT)
        left = schedule_fence_wave64(left)
        # Triton puts a barrier here: every wave has read the tile.
        a_lds.store(gl.convert_layout(_multiplied(a, TYPE), A_STORE))
        b_lds.store(gl.convert_layout(_multiplied(b, TYPE), B_STORE))
        a_tile += a_step
        b_tile += b_step
    cta_barrier()  # the last tile is stored
    acc = _multiply(a_lds, b_lds, acc, K_WIDTH, FORMAT)
    acc, left = written(acc, left)
    rows_n = gl.multiple_of(gl.minimum(rows_n, BLOCK_N), [N_VEC])
    store_tile(
        acc, m0, n0, rows_m, rows_n, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn, bias_ptr, stride_bias,
        alpha, beta, scale_a_ptr, scale_b_ptr, C_CONTIGUOUS, C_VEC, ADD_CONTIGUOUS, ADD_VEC, SCALE_A, SCALE_B,
        BIAS_AXIS, ACTIVATION, WIDE, None,
    )  # fmt: skip


@gluon.jit
def _multiplied(x, TYPE: gl.constexpr):
    """x as it is multiplied: 8-bit floats where no instruction takes them, in bf16."""
    WIDENED: gl.constexpr = x.dtype != TYPE and TYPE == gl.bfloat16  # noqa: SIM300
    return bf16_of_float8(x) if WIDENED else x.to(TYPE)


@gluon.jit
def _multiply(a_lds, b_lds, acc, K_WIDTH: gl.constexpr, FORMAT: gl.constexpr):
    a = a_lds.load(gl.DotOperandLayout(0, acc.type.layout, K_WIDTH))  # [BLOCK_M, BLOCK_K]
    b = b_lds.permute([1, 0]).load(gl.DotOperandLayout(1, acc.type.layout, K_WIDTH))  # [BLOCK_K, BLOCK_N]
    if FORMAT == "":
        return gl.amd.cdna3.mfma(a, b, acc)
    else:
        return gl.amd.cdna4.mfma_scaled(a, None, FORMAT, b, None, FORMAT, acc)  # by scales of 1


@cache
def _constants(problem: MatmulProblem, config: MfmaConfig, gpu: Gpu) -> dict[str, Any]:
    size = lds_element_bytes(problem, gpu)
    depth, k_width = instruction_of(problem.dtype_a, gpu)
    if reads_vectors(config, size, gpu):
        k_width = VECTOR_BYTES // size
    loads, stores = zip(*(_on_the_way(problem, config, gpu, operand) for operand in (0, 1)), strict=True)
    wide = {"element_bitwidth": 64} if problem.dtype_a == "fp64" else {}
    layout: Any = gl.amd.AMDMFMALayout
    version = {"gfx908": 1, "gfx90a": 2, "gfx942": 3}.get(gpu.name, 4)
    waves_n = 1 << (config.num_warps.bit_length() - 1) // 2
    return problem_constants(problem, config) | {
        "BATCHED": problem.batches > 1,
        "ENDS": ends_layout(problem, config, gpu),
        "TYPE": gl.bfloat16 if is_upcast(problem, gpu) else language_type(problem.dtype_a),
        "ACC_TYPE": language_type(problem.dtype_acc),
        "SUMS": layout(version, [16, 16, depth], True, [config.num_warps // waves_n, waves_n], **wide),
        "K_WIDTH": k_width,
        "A_LOAD": loads[0],
        "B_LOAD": loads[1],
        "A_STORE": stores[0],
        "B_STORE": stores[1],
        "A_SHARED": shared_layout(config.block_m, config, size, gpu),
        "B_SHARED": shared_layout(config.block_n, config, size, gpu),
        "MARK": "",
        "FORMAT": format_of(problem.dtype_a, gpu),
    }


def _on_the_way(problem: MatmulProblem, config: MfmaConfig, gpu: Gpu, operand: int) -> tuple[Any, Any]:
    """Which lane holds what of a tile of A (0) or B (1): as it is loaded, and as it is stored to LDS."""
    rows, major = (config.block_m, config.block_n)[operand], majors(problem)[operand]
    stored, size = DTYPE_BYTES[problem.dtype_a], lds_element_bytes(problem, gpu)
    if major != "row":
        return (load_along(rows, config, True, VECTOR_BYTES // stored, WAVE),) * 2
    loaded = turned_layout(rows, config, stored, size, gpu)
    return loaded, turned_layout(rows, config, stored, size, gpu, reorder=True)


def launch(problem: MatmulProblem, config: MfmaConfig, gpu: Gpu, *pointers: Any, ends: Any = None) -> None:
    """As `launch_wmma.launch_tiles`."""
    launch_tiles(mfma_matmul, problem, config, _constants(problem, config, gpu), gpu, *pointers, ends=ends)


def code_object(problem: MatmulProblem, config: MfmaConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    return compile_tiles(mfma_matmul, problem, config, _constants(problem, config, gpu), gpu)


def facts(problem: MatmulProblem, config: MfmaConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the kernel, as sentences."""
    size = DTYPE_BYTES[problem.dtype_a]
    lines = [f"emulated and inspected, never run on an {gpu.product}"]
    lines += [f"{name}: loads of {v * size} bytes" for name, v in (("A", problem.vector_a), ("B", problem.vector_b))]
    if problem.k % config.block_k:
        lines.append(f"the last K-tile has {problem.k % config.block_k} of {config.block_k} columns and is masked")
    return lines

"""FP32 product with tiles in registers: 128 x 128 of C per workgroup, 8 x 8 or 16 x 8 of it per lane, in 4 x 4 pieces.

Steps K3, K4 and K5 of the FP32 ladder (docs/sgemm-ladder.md) for RDNA 3, 3.5 and 4: an element from LDS is multiplied 8
or 16 times; PREFETCH loads the next tile during the multiplications; A's columns are padded in LDS. `gl.dot_fma`
becomes dual-issue pairs. Design: the RDNA 3 SGEMM article by seb-v, kernels 3 to 5.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import cta_barrier, cu_mode_options, forgets_waits_of_lds
from ....device.epilogue import pinned
from ....device.prepared import specialise
from ....device.wmma_tiles import load_fence, schedule_fence, tile_pointers, wait_for_memory
from ....gpu import Gpu
from ..config_sgemm import INTEGERS, RegisterTileConfig, arguments, grid, tiles
from ..problem import MatmulProblem

POINTERS = {"a_ptr": "*fp32", "b_ptr": "*fp32", "c_ptr": "*fp32"}
PAD = 4  #: floats after each column of A in LDS


@gluon.jit
def multiply_tile(a_lds, b_lds, acc, left, BLOCK_K: gl.constexpr, SUMS: gl.constexpr):
    """acc + the product of the tiles in LDS, one step of K at a time, so that few fragments are held; and left."""
    a_part: gl.constexpr = gl.DotOperandLayout(0, SUMS, 0)
    b_part: gl.constexpr = gl.DotOperandLayout(1, SUMS, 0)
    for k in gl.static_range(BLOCK_K):
        a = a_lds.slice(k, 1, dim=1).load(a_part)  # [BLOCK_M, 1]
        b = b_lds.slice(k, 1, dim=0).load(b_part)  # [1, BLOCK_N]
        acc = gl.dot_fma(a, b, acc)
        left = schedule_fence(left)  # fragments of a later step are not read before this one is multiplied
    return acc, left


@gluon.jit
def row_halves(sums):
    """The upper and the lower half of the rows, of which every lane has some."""
    HALF: gl.constexpr = sums.shape[0] // 2
    return sums.reshape([2, HALF, sums.shape[1]]).permute([1, 2, 0]).split()


@gluon.jit
def store_rows(sums, c_tile, first, stride_cm, rows_left, columns_left, left, C_VEC: gl.constexpr):
    """Store rows `first` and following of the tile, of which rows_left x columns_left exist; left."""
    HELD: gl.constexpr = sums.type.layout
    offs_m = first + gl.arange(0, sums.shape[0], gl.SliceLayout(1, HELD))
    offs_n = gl.arange(0, sums.shape[1], gl.SliceLayout(0, HELD))
    inside = (offs_m < rows_left)[:, None] & (offs_n < columns_left)[None, :]
    gl.store(tile_pointers(c_tile, offs_m * stride_cm, offs_n, "k", C_VEC, False), sums, mask=inside)
    return schedule_fence(left)  # addresses of the next rows are not computed before


@gluon.jit(do_not_specialize=INTEGERS)
def sgemm_tiles(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm, inner,
    stride_ao, stride_ai, stride_bo, stride_bi, stride_co, stride_ci,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, PREFETCH: gl.constexpr,
    C_VEC: gl.constexpr,
    SUMS: gl.constexpr, A_LOAD: gl.constexpr, B_LOAD: gl.constexpr, A_SHARED: gl.constexpr, B_SHARED: gl.constexpr,
    WAIT: gl.constexpr,
):  # fmt: skip
    outer = (gl.program_id(2) // inner).to(gl.int64)
    within = (gl.program_id(2) % inner).to(gl.int64)
    m0 = gl.program_id(1).to(gl.int64) * BLOCK_M
    n0 = gl.program_id(0).to(gl.int64) * BLOCK_N
    rows_left = gl.minimum(M - m0, BLOCK_M).to(gl.int32)
    columns_left = gl.minimum(N - n0, BLOCK_N).to(gl.int32)
    a_tile = a_ptr + outer * stride_ao + within * stride_ai + m0 * stride_am
    b_tile = b_ptr + outer * stride_bo + within * stride_bi + n0
    # rows and columns beyond the matrix are the last one again; what they give is not stored
    a_m = gl.minimum(gl.arange(0, BLOCK_M, gl.SliceLayout(1, A_LOAD)), rows_left - 1)
    a_k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, A_LOAD))
    b_k = gl.arange(0, BLOCK_K, gl.SliceLayout(1, B_LOAD))
    b_n = gl.minimum(gl.arange(0, BLOCK_N, gl.SliceLayout(0, B_LOAD)), columns_left - 1)
    a_offsets = a_m[:, None] * stride_am + a_k[None, :]
    b_offsets = b_k[:, None] * stride_bk + b_n[None, :]
    a_lds = gl.allocate_shared_memory(gl.float32, [BLOCK_M, BLOCK_K], A_SHARED)
    b_lds = gl.allocate_shared_memory(gl.float32, [BLOCK_K, BLOCK_N], B_SHARED)

    # The ragged tile comes first, so that the loop needs no masks: a sum has no order.
    left = (K - 1) // BLOCK_K
    first = K - left * BLOCK_K
    a_lds.store(gl.load(a_tile + a_offsets, mask=(a_k < first)[None, :], other=0.0))
    b_lds.store(gl.load(b_tile + b_offsets, mask=(b_k < first)[:, None], other=0.0))
    a_tile += first
    b_tile += first.to(gl.int64) * stride_bk
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, SUMS)
    while left > 0:
        cta_barrier()  # the tile is stored
        if PREFETCH:
            a = gl.load(a_tile + a_offsets)  # [BLOCK_M, BLOCK_K]
            b = gl.load(b_tile + b_offsets)  # [BLOCK_K, BLOCK_N]
            left = load_fence(left)  # the loads stay above the multiplications
        acc, left = multiply_tile(a_lds, b_lds, acc, left - 1, BLOCK_K, SUMS)
        if not PREFETCH:
            a = gl.load(a_tile + a_offsets)
            b = gl.load(b_tile + b_offsets)
        # Triton puts a barrier here: every wave has read the tile
        a_lds.store(a)
        b_lds.store(b)
        if WAIT:
            left = wait_for_memory(left, WAIT)  # the stores are done before the barrier, which LLVM alone may forget
        a_tile += BLOCK_K
        b_tile += stride_bk.to(gl.int64) * BLOCK_K
    cta_barrier()  # the last tile is stored
    acc, left = multiply_tile(a_lds, b_lds, acc, left, BLOCK_K, SUMS)
    c_tile = c_ptr + outer * stride_co + within * stride_ci + m0 * stride_cm + n0
    columns_left = gl.multiple_of(columns_left, [C_VEC])
    # Pinned: LLVM would move the last multiplications below the masks of the stores, and hold all fragments till then.
    upper, lower = row_halves(pinned(acc))
    left = store_rows(upper, c_tile, 0, stride_cm, rows_left, columns_left, left, C_VEC)
    store_rows(lower, c_tile, BLOCK_M // 2, stride_cm, rows_left, columns_left, left, C_VEC)


def _constants(problem: MatmulProblem, config: RegisterTileConfig, gpu: Gpu) -> dict[str, Any]:
    m, n, k, waves = config.block_m, config.block_n, config.block_k, config.num_warps
    padded: Any = gl.PaddedSharedLayout
    by_columns = gl.SwizzledSharedLayout(1, 1, 1, [0, 1])
    return {
        "BLOCK_M": m,
        "BLOCK_N": n,
        "BLOCK_K": k,
        "C_VEC": problem.vector_out,
        "PREFETCH": config.prefetch,
        "SUMS": gl.BlockedLayout([4, 4], [8, 4] if waves == 8 else [4, 8], [2, waves // 2], [1, 0]),
        "A_LOAD": gl.BlockedLayout([1, 1], [32 // k, k], [waves, 1], [1, 0]),
        "B_LOAD": gl.BlockedLayout([1, 1], [1, 32], [waves // 4, 4], [1, 0]),
        "A_SHARED": padded.with_identity_for([[m, PAD]], [m, k], [0, 1]) if config.padded else by_columns,
        "B_SHARED": gl.SwizzledSharedLayout(1, 1, 1, [1, 0]),
        "WAIT": gpu.wmma_version if forgets_waits_of_lds() else 0,
    }


def _options(config: RegisterTileConfig) -> dict[str, Any]:
    return {"enable_fp_fusion": True} | (cu_mode_options() if config.cu_mode else {})


def launch(problem: MatmulProblem, config: RegisterTileConfig, gpu: Gpu, a: Any, b: Any, c: Any) -> None:
    """Write a b into c: what Triton takes for pointers."""
    sgemm_tiles[grid(problem, config)](
        a, b, c, **arguments(problem), **_constants(problem, config, gpu), num_warps=config.num_warps,
        **_options(config),
    )


def code_object(problem: MatmulProblem, config: RegisterTileConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    values = arguments(problem) | _constants(problem, config, gpu)
    signature, constants, divisible = specialise(sgemm_tiles, values, POINTERS)
    return compile_kernel(
        sgemm_tiles, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps, attrs=divisible,
        options=_options(config),
    )  # fmt: skip


def facts(problem: MatmulProblem, config: RegisterTileConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    each = config.block_m * config.block_n // (32 * config.num_warps)
    mode = "" if not config.cu_mode or cu_mode_options() else "; this Triton cannot keep it on one compute unit"
    return [f"{tiles(problem, config)}, {each} sums a lane{mode}"]

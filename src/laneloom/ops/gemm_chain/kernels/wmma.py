"""Two products in a row on RDNA and CDNA 5: P = alpha0 A0 B0 goes from accumulators to the second product's operand.

Both products run with exchanged operands (`transposed` accumulators), so that a lane ends up with neighbours of a row
of P: on RDNA 4 and CDNA 5 WMMA wants its first operand so, and nothing moves. On RDNA 3 the two half
waves, which both need whole rows, exchange what they have (`v_permlanex16_b32`). P touches no LDS and no memory; A0, B0
and B1 go through LDS, where all waves share them. Derivation and instruction counts: docs/gemm-chain.md. Source: AMD's
RDNA 3 and RDNA 4 ISA guides, "Wave Matrix Multiply Accumulate".
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import cta_barrier
from ....device.epilogue import pinned
from ....device.wmma_tiles import (
    load_fence,
    load_tile,
    multiply,
    multiply_wmma,
    schedule_fence,
    tile_offsets,
    tile_pointers,
)
from ....gpu import Gpu
from ..config import ChainConfig
from ..layouts import RUNTIME, constants, runtime_arguments, signature
from ..problem import ChainProblem


@gluon.jit
def _load_ragged(
    tile_ptr, offs_r, offs_k, k_left, DEPTH: gl.constexpr, WHOLE: gl.constexpr, K_VEC: gl.constexpr,
    MAJOR: gl.constexpr, VEC: gl.constexpr, WIDE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A [ROWS, DEPTH] tile of which k_left steps of K exist, all of them if WHOLE; the others are zeros.

    K_VEC divides k_left.
    """
    pointers = tile_pointers(tile_ptr, offs_r, offs_k, MAJOR, VEC, WIDE)
    if WHOLE:
        return gl.load(pointers)
    else:
        k_left = gl.multiple_of(gl.minimum(k_left, DEPTH).to(gl.int32), [K_VEC])
        mask = gl.arange(0, DEPTH, gl.SliceLayout(0, LAYOUT)) < k_left
        return gl.load(pointers, mask=mask[None, :], other=0.0)


@gluon.jit
def _first_product(
    a_tile, b_tile, rows_a, rows_b, K, stride_am, stride_ak, stride_bn, stride_bk, a_lds, b_lds, alpha,
    BLOCK_M: gl.constexpr, BLOCK_N0: gl.constexpr, BLOCK_K: gl.constexpr, WHOLE_K: gl.constexpr,
    WHOLE_N0: gl.constexpr, WIDE: gl.constexpr, K_VEC: gl.constexpr,
    A_MAJOR: gl.constexpr, A_VEC: gl.constexpr, A_LOAD: gl.constexpr, A_STORE: gl.constexpr,
    B_MAJOR: gl.constexpr, B_VEC: gl.constexpr, B_LOAD: gl.constexpr, B_STORE: gl.constexpr,
    VERSION: gl.constexpr, K_WIDTH: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """P [BLOCK_M, BLOCK_N0] as the next product's first operand, zeros in columns from rows_b on."""
    a_r, a_k = tile_offsets(rows_a, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD)
    b_r, b_k = tile_offsets(rows_b, stride_bn, stride_bk, BLOCK_N0, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD)
    # The last K-tile, which may be ragged, comes first: a sum has no order, and the loop needs no masks.
    left = (K - 1) // BLOCK_K
    k_last = left.to(gl.int64) * BLOCK_K
    a = _load_ragged(
        a_tile + k_last * stride_ak, a_r, a_k, K - k_last, BLOCK_K, WHOLE_K, K_VEC, A_MAJOR, A_VEC, WIDE, A_LOAD
    )  # [BLOCK_M, BLOCK_K]
    b = _load_ragged(
        b_tile + k_last * stride_bk, b_r, b_k, K - k_last, BLOCK_K, WHOLE_K, K_VEC, B_MAJOR, B_VEC, WIDE, B_LOAD
    )  # [BLOCK_N0, BLOCK_K]
    a_lds.store(gl.convert_layout(a, A_STORE))
    b_lds.store(gl.convert_layout(b, B_STORE))
    acc = gl.zeros((BLOCK_M, BLOCK_N0), gl.float32, ACC)
    a_step = stride_ak.to(gl.int64) * BLOCK_K
    b_step = stride_bk.to(gl.int64) * BLOCK_K
    while left > 0:
        cta_barrier()  # the tile that is read below is stored
        a = load_tile(a_tile, a_r, a_k, A_MAJOR, A_VEC, WIDE)  # [BLOCK_M, BLOCK_K]
        b = load_tile(b_tile, b_r, b_k, B_MAJOR, B_VEC, WIDE)  # [BLOCK_N0, BLOCK_K]
        left = load_fence(left)  # the loads stay above the matrix instructions
        acc = multiply(a_lds, b_lds, acc, VERSION, K_WIDTH)
        left = schedule_fence(left - 1)  # the matrix instructions stay above the wait for the loads
        # Triton puts a barrier here: every wave has read the tile before.
        a_lds.store(gl.convert_layout(a, A_STORE))
        b_lds.store(gl.convert_layout(b, B_STORE))
        a_tile += a_step
        b_tile += b_step
    cta_barrier()  # the last tile is stored
    acc = multiply(a_lds, b_lds, acc, VERSION, K_WIDTH)
    p = (acc * alpha).to(a_lds.dtype)
    if not WHOLE_N0:
        n = gl.arange(0, BLOCK_N0, gl.SliceLayout(0, ACC))
        p = gl.where((n < rows_b)[None, :], p, gl.zeros_like(p))
    return gl.convert_layout(p, gl.DotOperandLayout(0, ACC, K_WIDTH))


@gluon.jit
def _load_second(
    e_tile, rows_e, depth, stride_en, stride_ek, BLOCK_N1: gl.constexpr, BLOCK_N0: gl.constexpr,
    WHOLE_N0: gl.constexpr, WIDE: gl.constexpr, N0_VEC: gl.constexpr,
    E_MAJOR: gl.constexpr, E_VEC: gl.constexpr, E_LOAD: gl.constexpr,
):  # fmt: skip
    """B1's tile with K contiguous, [BLOCK_N1, BLOCK_N0], zeros from row `depth` of B1 on."""
    e_r, e_k = tile_offsets(rows_e, stride_en, stride_ek, BLOCK_N1, BLOCK_N0, E_MAJOR, E_VEC, WIDE, E_LOAD)
    return _load_ragged(e_tile, e_r, e_k, depth, BLOCK_N0, WHOLE_N0, N0_VEC, E_MAJOR, E_VEC, WIDE, E_LOAD)


@gluon.jit
def _second_product(p, e_lds, acc, VERSION: gl.constexpr, K_WIDTH: gl.constexpr):
    """acc + P B1 for B1's tile in LDS, [BLOCK_M, BLOCK_N1]."""
    e = e_lds.permute([1, 0]).load(gl.DotOperandLayout(1, acc.type.layout, K_WIDTH))  # [BLOCK_N0, BLOCK_N1]
    return multiply_wmma(p, e, acc, VERSION)


@gluon.jit
def _store(
    acc, alpha, beta, c_tile, stride_cm, stride_cn, d_tile, stride_dm, stride_dn, rows_m, rows_n,
    VEC: gl.constexpr, C_VEC: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Store alpha acc + beta C at d_tile, of which rows_m x rows_n exist; C may be D.

    VEC and C_VEC, elements of an aligned access, divide rows_n where they are more than 1.
    """
    # LLVM sinks the matrix instructions into the masked stores otherwise, where some lanes are off.
    acc = gl.convert_layout(pinned(acc) * alpha, LAYOUT)
    N_VEC: gl.constexpr = VEC if VEC > C_VEC else C_VEC
    # a hint needs an operation of this function that is not folded away
    rows_n = gl.multiple_of(gl.minimum(rows_n, acc.shape[1]), [N_VEC])
    m = gl.arange(0, acc.shape[0], gl.SliceLayout(1, LAYOUT))
    n = gl.arange(0, acc.shape[1], gl.SliceLayout(0, LAYOUT))
    mask = (m < rows_m)[:, None] & (n < rows_n)[None, :]
    offs_m = m.to(gl.int64)[:, None]
    offs_n = n.to(gl.int64)[None, :]
    if c_tile is not None:
        C_ALIGNMENT: gl.constexpr = C_VEC * c_tile.dtype.element_ty.primitive_bitwidth // 8
        c_offs_n = offs_n if C_VEC > 1 else offs_n * stride_cn
        pointers = gl.multiple_of(c_tile + offs_m * stride_cm + c_offs_n, [1, C_ALIGNMENT])
        c = gl.load(gl.max_contiguous(pointers, [1, C_VEC]), mask=mask, other=0.0)
        acc += beta * c.to(gl.float32)
    if VEC == 1:
        offs_n = offs_n * stride_dn
    ALIGNMENT: gl.constexpr = VEC * d_tile.dtype.element_ty.primitive_bitwidth // 8
    pointers = d_tile + offs_m * stride_dm + offs_n
    pointers = gl.max_contiguous(gl.multiple_of(pointers, [1, ALIGNMENT]), [1, VEC])
    gl.store(pointers, acc.to(d_tile.dtype.element_ty), mask=mask)


@gluon.jit(do_not_specialize=RUNTIME)
def wmma_chain(
    a0_ptr, b0_ptr, b1_ptr, c1_ptr, out_ptr, alpha0, alpha1, beta1, M, K0, N0, N1, batch_inner,
    stride_ao, stride_ai, stride_am, stride_ak, stride_bo, stride_bi, stride_bk, stride_bn,
    stride_eo, stride_ei, stride_ek, stride_en, stride_co, stride_ci, stride_cm, stride_cn,
    stride_do, stride_di, stride_dm, stride_dn,
    BLOCK_M: gl.constexpr, BLOCK_N0: gl.constexpr, BLOCK_N1: gl.constexpr, BLOCK_K: gl.constexpr,
    KEEP: gl.constexpr, SPLIT: gl.constexpr, WHOLE_K: gl.constexpr, WHOLE_N0: gl.constexpr, WIDE: gl.constexpr,
    K_VEC: gl.constexpr, N0_VEC: gl.constexpr, OUT_VEC: gl.constexpr, C_VEC: gl.constexpr,
    A_MAJOR: gl.constexpr, A_VEC: gl.constexpr, A_LOAD: gl.constexpr, A_STORE: gl.constexpr, A_SHARED: gl.constexpr,
    B_MAJOR: gl.constexpr, B_VEC: gl.constexpr, B_LOAD: gl.constexpr, B_STORE: gl.constexpr, B_SHARED: gl.constexpr,
    E_MAJOR: gl.constexpr, E_VEC: gl.constexpr, E_LOAD: gl.constexpr, E_STORE: gl.constexpr, E_SHARED: gl.constexpr,
    VERSION: gl.constexpr, K_WIDTH: gl.constexpr, ACC: gl.constexpr, OUT_STORE: gl.constexpr,
):  # fmt: skip
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N1 - 1) // BLOCK_N1 + 1
    shares = tiles_n
    if KEEP:
        shares = SPLIT
    program = gl.program_id(0)
    share = program % shares
    program = program // shares
    m0 = (program % tiles_m).to(gl.int64) * BLOCK_M
    batch = program // tiles_m
    outer = (batch // batch_inner).to(gl.int64)
    inner = (batch % batch_inner).to(gl.int64)
    a_tile = a0_ptr + outer * stride_ao + inner * stride_ai + m0 * stride_am
    b_base = b0_ptr + outer * stride_bo + inner * stride_bi
    e_base = b1_ptr + outer * stride_eo + inner * stride_ei
    d_base = out_ptr + outer * stride_do + inner * stride_di + m0 * stride_dm
    c_base = c1_ptr
    if c1_ptr is not None:
        c_base += outer * stride_co + inner * stride_ci + m0 * stride_cm
    rows_m = gl.minimum(M - m0, BLOCK_M).to(gl.int32)
    dtype: gl.constexpr = a0_ptr.dtype.element_ty
    a_lds = gl.allocate_shared_memory(dtype, [BLOCK_M, BLOCK_K], A_SHARED)
    b_lds = gl.allocate_shared_memory(dtype, [BLOCK_N0, BLOCK_K], B_SHARED)
    e_lds = gl.allocate_shared_memory(dtype, [BLOCK_N1, BLOCK_N0], E_SHARED)
    if KEEP:
        p = _first_product(
            a_tile, b_base, rows_m, N0, K0, stride_am, stride_ak, stride_bn, stride_bk, a_lds, b_lds, alpha0,
            BLOCK_M, BLOCK_N0, BLOCK_K, WHOLE_K, WHOLE_N0, WIDE, K_VEC, A_MAJOR, A_VEC, A_LOAD, A_STORE,
            B_MAJOR, B_VEC, B_LOAD, B_STORE, VERSION, K_WIDTH, ACC,
        )  # fmt: skip
        for tile in range(share, tiles_n, SPLIT):
            n0 = tile.to(gl.int64) * BLOCK_N1
            rows_n = gl.minimum(N1 - n0, BLOCK_N1).to(gl.int32)
            e = _load_second(
                e_base + n0 * stride_en, rows_n, N0, stride_en, stride_ek, BLOCK_N1, BLOCK_N0, WHOLE_N0, WIDE,
                N0_VEC, E_MAJOR, E_VEC, E_LOAD,
            )  # fmt: skip
            e_lds.store(gl.convert_layout(e, E_STORE))
            cta_barrier()  # B1's tile is stored
            acc = _second_product(p, e_lds, gl.zeros((BLOCK_M, BLOCK_N1), gl.float32, ACC), VERSION, K_WIDTH)
            c_tile = c_base
            if c1_ptr is not None:
                c_tile += n0 * stride_cn
            _store(
                acc, alpha1, beta1, c_tile, stride_cm, stride_cn, d_base + n0 * stride_dn, stride_dm, stride_dn,
                rows_m, rows_n, OUT_VEC, C_VEC, OUT_STORE,
            )  # fmt: skip
    else:
        n0 = share.to(gl.int64) * BLOCK_N1
        rows_n = gl.minimum(N1 - n0, BLOCK_N1).to(gl.int32)
        acc = gl.zeros((BLOCK_M, BLOCK_N1), gl.float32, ACC)
        for j0 in range(0, N0, BLOCK_N0):
            # B1's tile is on its way during the first product.
            e = _load_second(
                e_base + n0 * stride_en + j0.to(gl.int64) * stride_ek, rows_n, N0 - j0, stride_en, stride_ek,
                BLOCK_N1, BLOCK_N0, WHOLE_N0, WIDE, N0_VEC, E_MAJOR, E_VEC, E_LOAD,
            )  # fmt: skip
            p = _first_product(
                a_tile, b_base + j0.to(gl.int64) * stride_bn, rows_m, gl.minimum(N0 - j0, BLOCK_N0), K0,
                stride_am, stride_ak, stride_bn, stride_bk, a_lds, b_lds, alpha0, BLOCK_M, BLOCK_N0, BLOCK_K,
                WHOLE_K, WHOLE_N0, WIDE, K_VEC, A_MAJOR, A_VEC, A_LOAD, A_STORE, B_MAJOR, B_VEC, B_LOAD, B_STORE,
                VERSION, K_WIDTH, ACC,
            )  # fmt: skip
            e_lds.store(gl.convert_layout(e, E_STORE))
            cta_barrier()  # B1's tile is stored
            acc = _second_product(p, e_lds, acc, VERSION, K_WIDTH)
        c_tile = c_base
        if c1_ptr is not None:
            c_tile += n0 * stride_cn
        _store(
            acc, alpha1, beta1, c_tile, stride_cm, stride_cn, d_base + n0 * stride_dn, stride_dm, stride_dn, rows_m,
            rows_n, OUT_VEC, C_VEC, OUT_STORE,
        )  # fmt: skip


def launch(
    problem: ChainProblem, config: ChainConfig, gpu: Gpu, a0: Any, b0: Any, b1: Any, c1: Any, out: Any,
    alpha0: float, alpha1: float, beta1: float,
) -> None:  # fmt: skip
    """Write alpha1 P b1 + beta1 c1 into out: what Triton takes for pointers, None for no c1."""
    beta = None if c1 is None else float(beta1)
    wmma_chain[(config.programs(problem), 1, 1)](
        a0, b0, b1, c1, out, float(alpha0), float(alpha1), beta, **runtime_arguments(problem),
        **constants(problem, config, gpu), num_warps=config.num_warps, enable_fp_fusion=True,
    )  # fmt: skip


def code_object(problem: ChainProblem, config: ChainConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    types, nothing = signature(problem)
    return compile_kernel(
        wmma_chain,
        gpu=gpu,
        signature=types,
        constants=nothing | constants(problem, config, gpu),
        num_warps=config.num_warps,
        attrs=(),
    )

"""8-bit WMMA from memory: each wave loads fragments of A and B itself, 16 bytes a lane for two products. No LDS.

WMMA of 8-bit elements takes 8 bytes of a row from each half wave, K 0..7 and 8..15. Loaded one product at a time that
is 8-byte loads. A sum has no order: let the lower half wave have K 0..15 and the upper one 16..31, give the first
product everybody's first 8 bytes and the second the others, in A and B alike, and one 16-byte load feeds two products.
RDNA 4.
It suits few rows and columns, whose operands no other wave wants. Derivation and counts: docs/doubled-k.md. Source:
AMD's RDNA 4 ISA guide, "Wave Matrix Multiply Accumulate".
"""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import wmma_layout
from ....device.epilogue import pinned
from ....gpu import Gpu
from ..config_direct import DirectConfig
from ..problem import MatmulProblem

_SIZES = [
    "M", "N", "K", "stride_ao", "stride_ai", "stride_am", "stride_bo", "stride_bi", "stride_bn", "stride_co",
    "stride_ci", "stride_cm", "stride_cn", "batch_inner",
]  # fmt: skip
_RUNTIME = ["a_ptr", "b_ptr", "c_ptr", *_SIZES]
_TYPES = {"int8": "i8", "int32": "i32", "fp8": "fp8e4nv", "bf8": "fp8e5"}
_K_WIDTH = 8  #: bytes of a row that WMMA takes from a lane


def _bits(first: int, end: int) -> list[int]:
    """Powers of two from first on, below end."""
    return [1 << bit for bit in range(first.bit_length() - 1, end.bit_length() - 1)]


def load_layout(rows: int, config: DirectConfig, waves: int, along_m: bool) -> gl.DistributedLinearLayout:
    """Which lane loads what of a [rows, block_k] tile: neighbours of row lane % 16, the upper half wave the next ones.

    Waves along this operand's rows have other rows, the others the same ones.
    """
    held = 2 * _K_WIDTH if config.doubled else _K_WIDTH
    registers = [[0, k] for k in _bits(1, held)] + [[0, k] for k in _bits(2 * held, config.block_k)]
    registers += [[row, 0] for row in _bits(16 * waves, rows)]
    lanes = [[row, 0] for row in _bits(1, 16)] + [[0, held]]
    own = [[row, 0] for row in _bits(16, 16 * waves)]
    others = [[0, 0]] * ((config.num_warps // waves).bit_length() - 1)
    # Wave numbers run along N first.
    warps = others + own if along_m else own + others
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [rows, config.block_k])


@gluon.jit
def _load(tile_ptr, row, k, rows, k_left, stride, DOUBLED: gl.constexpr, VEC: gl.constexpr, MASKED: gl.constexpr):
    """A [ROWS, BLOCK_K] tile; rows beyond the matrix read its last one again, K beyond its end is zeros.

    With DOUBLED, in the order of K in which a lane's second 8 bytes belong to the second of two products.
    """
    row = gl.minimum(row, rows - 1)
    pointers = tile_ptr + row.to(gl.int64)[:, None] * stride + k[None, :]
    pointers = gl.max_contiguous(gl.multiple_of(pointers, [1, VEC]), [1, VEC])
    if MASKED:
        x = gl.load(pointers, mask=(k < k_left)[None, :], other=0.0)
    else:
        x = gl.load(pointers)
    if DOUBLED:
        ROWS: gl.constexpr = x.shape[0]
        BLOCK_K: gl.constexpr = x.shape[1]
        # [half wave, product, byte] -> [product, half wave, byte]: names change, no data moves
        x = x.reshape([ROWS, BLOCK_K // 32, 2, 2, 8]).permute([0, 1, 3, 2, 4]).reshape([ROWS, BLOCK_K])
    return x


@gluon.jit
def _multiply(a, b, acc, ACC: gl.constexpr, K_WIDTH: gl.constexpr):
    """acc + A B^T for A [BLOCK_M, BLOCK_K] and B [BLOCK_N, BLOCK_K]."""
    a = gl.convert_layout(a, gl.DotOperandLayout(0, ACC, K_WIDTH), assert_trivial=True)
    b = gl.convert_layout(b.permute([1, 0]), gl.DotOperandLayout(1, ACC, K_WIDTH), assert_trivial=True)
    return gl.amd.rdna4.wmma(a, b, acc)


@gluon.jit(do_not_specialize=_RUNTIME)
def wmma_direct(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ao, stride_ai, stride_am, stride_bo, stride_bi, stride_bn,
    stride_co, stride_ci, stride_cm, stride_cn, batch_inner,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr, DOUBLED: gl.constexpr,
    A_VEC: gl.constexpr, B_VEC: gl.constexpr, C_VEC: gl.constexpr, K_VEC: gl.constexpr, SUM: gl.constexpr,
    A_LOAD: gl.constexpr, B_LOAD: gl.constexpr, ACC: gl.constexpr, K_WIDTH: gl.constexpr,
):  # fmt: skip
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // BLOCK_N + 1
    batch = gl.program_id(0) // (tiles_m * tiles_n)
    program = gl.program_id(0) % (tiles_m * tiles_n)
    # Column by column through bands of GROUP rows of tiles, so that operands stay in the L2.
    first = program // (GROUP * tiles_n) * GROUP
    height = gl.minimum(tiles_m - first, GROUP)
    m0 = (first + program % (GROUP * tiles_n) % height).to(gl.int64) * BLOCK_M
    n0 = (program % (GROUP * tiles_n) // height).to(gl.int64) * BLOCK_N
    outer = (batch // batch_inner).to(gl.int64)
    inner = (batch % batch_inner).to(gl.int64)
    rows_m = gl.minimum(M - m0, BLOCK_M).to(gl.int32)
    # a hint needs an operation of this function that is not folded away
    rows_n = gl.multiple_of(gl.minimum(N - n0, BLOCK_N).to(gl.int32), [C_VEC])
    a_tile = a_ptr + outer * stride_ao + inner * stride_ai + m0 * stride_am
    b_tile = b_ptr + outer * stride_bo + inner * stride_bi + n0 * stride_bn
    a_r = gl.arange(0, BLOCK_M, gl.SliceLayout(1, A_LOAD))
    a_k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, A_LOAD))
    b_r = gl.arange(0, BLOCK_N, gl.SliceLayout(1, B_LOAD))
    b_k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, B_LOAD))
    acc = gl.zeros((BLOCK_M, BLOCK_N), SUM, ACC)
    whole = K // BLOCK_K * BLOCK_K
    for k0 in range(0, whole, BLOCK_K):
        a = _load(a_tile + k0, a_r, a_k, rows_m, BLOCK_K, stride_am, DOUBLED, A_VEC, False)  # [BLOCK_M, BLOCK_K]
        b = _load(b_tile + k0, b_r, b_k, rows_n, BLOCK_K, stride_bn, DOUBLED, B_VEC, False)  # [BLOCK_N, BLOCK_K]
        acc = _multiply(a, b, acc, ACC, K_WIDTH)
    if whole < K:
        k_left = gl.multiple_of(gl.minimum(K - whole, BLOCK_K), [K_VEC])
        a = _load(a_tile + whole, a_r, a_k, rows_m, k_left, stride_am, DOUBLED, A_VEC, True)
        b = _load(b_tile + whole, b_r, b_k, rows_n, k_left, stride_bn, DOUBLED, B_VEC, True)
        acc = _multiply(a, b, acc, ACC, K_WIDTH)
    # LLVM sinks the matrix instructions into the masked stores otherwise, where some lanes are off.
    acc = pinned(acc)
    offs_m = gl.arange(0, BLOCK_M, gl.SliceLayout(1, ACC))
    offs_n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, ACC))
    c_tile = c_ptr + outer * stride_co + inner * stride_ci + m0 * stride_cm + n0 * stride_cn
    columns = offs_n.to(gl.int64)[None, :]
    if C_VEC == 1:
        columns = columns * stride_cn
    ALIGNMENT: gl.constexpr = C_VEC * c_ptr.dtype.element_ty.primitive_bitwidth // 8
    pointers = gl.multiple_of(c_tile + offs_m.to(gl.int64)[:, None] * stride_cm + columns, [1, ALIGNMENT])
    pointers = gl.max_contiguous(pointers, [1, C_VEC])
    gl.store(
        pointers, acc.to(c_ptr.dtype.element_ty), mask=(offs_m < rows_m)[:, None] & (offs_n < rows_n)[None, :]
    )


@cache
def _constants(problem: MatmulProblem, config: DirectConfig) -> dict[str, Any]:
    waves_m = config.num_warps // config.waves_n
    return {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP": config.group_m,
        "DOUBLED": config.doubled,
        "A_VEC": problem.vector_a,
        "B_VEC": problem.vector_b,
        "C_VEC": problem.vector_out,
        "K_VEC": gcd(problem.k, 16),
        "SUM": gl.int32 if problem.dtype_a == "int8" else gl.float32,
        "A_LOAD": load_layout(config.block_m, config, waves_m, along_m=True),
        "B_LOAD": load_layout(config.block_n, config, config.waves_n, along_m=False),
        "ACC": wmma_layout(2, waves_m, config.waves_n, transposed=True),
        "K_WIDTH": _K_WIDTH,
    }


def _runtime_arguments(problem: MatmulProblem) -> dict[str, int]:
    a, b, c = problem.a.strides, problem.b.strides, problem.out.strides
    values = (problem.m, problem.n, problem.k, *a[:3], *b[:2], b[3], *c, problem.batch[1])
    return dict(zip(_SIZES, values, strict=True))


def launch(problem: MatmulProblem, config: DirectConfig, gpu: Gpu, a: Any, b: Any, c: Any) -> None:
    """Write a b into c: what Triton takes for pointers."""
    wmma_direct[(config.programs(problem), 1, 1)](
        a, b, c, **_runtime_arguments(problem), **_constants(problem, config), num_warps=config.num_warps,
        enable_fp_fusion=True,
    )  # fmt: skip


def code_object(problem: MatmulProblem, config: DirectConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    kinds = {"a_ptr": problem.dtype_a, "b_ptr": problem.dtype_b, "c_ptr": problem.dtype_out}
    return compile_kernel(
        wmma_direct,
        gpu=gpu,
        signature={name: f"*{_TYPES.get(kind, kind)}" for name, kind in kinds.items()}
        | {name: "i32" if value < 1 << 31 else "i64" for name, value in _runtime_arguments(problem).items()},
        constants=_constants(problem, config),
        num_warps=config.num_warps,
        attrs=(),
    )


def facts(problem: MatmulProblem, config: DirectConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    lines = [f"A and B come in loads of {config.load_bytes(problem)} bytes, without LDS"]
    if problem.k % config.block_k:
        lines.append(f"the last K-tile has {problem.k % config.block_k} of {config.block_k} columns and is masked")
    return lines

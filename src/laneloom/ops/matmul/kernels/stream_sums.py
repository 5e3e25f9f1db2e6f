"""The last launch of stream-K: tiles of which several programs of kernels/wmma.py made parts are added up and finished.

A tile's parts are added in the order of their K-tiles, so the same call gives the same bits; then the epilogue is
applied, once. A program makes a block of a tile. Every GPU of the WMMA family.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....device.epilogue import store_tile
from ....device.stream_k import stream_parts
from ....device.wmma_tiles import place_tile
from ....gpu import Gpu
from ..config_wmma import WmmaConfig
from ..launch_wmma import problem_constants, runtime_arguments
from ..problem import MatmulProblem

BLOCK_M, BLOCK_N, NUM_WARPS = 32, 64, 4  #: of a program, in a tile that has so many
_POINTERS = ["s_ptr", "c_ptr", "add_ptr", "bias_ptr", "scale_a_ptr", "scale_b_ptr"]
_SIZES = [
    "M", "N", "stride_co", "stride_ci", "stride_cm", "stride_cn", "stride_do", "stride_di", "stride_dm", "stride_dn",
    "stride_bias", "batch_inner",
]  # fmt: skip
RUNTIME = [*_POINTERS, "alpha", "beta", *_SIZES, "steps", "whole", "shared", "workers"]
_CONSTANTS = (
    "BLOCK_M", "BLOCK_N", "ORDER", "GROUP", "CHIPLETS", "WIDE", "C_CONTIGUOUS", "ADD_CONTIGUOUS", "SCALE_A", "SCALE_B",
    "BIAS_AXIS", "ACTIVATION",
)  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def add_stream_sums(
    s_ptr, c_ptr, add_ptr, bias_ptr, alpha, beta, scale_a_ptr, scale_b_ptr, M, N,
    stride_co, stride_ci, stride_cm, stride_cn,
    stride_do, stride_di, stride_dm, stride_dn, stride_bias,
    batch_inner, steps, whole, shared, workers,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ORDER: gl.constexpr, GROUP: gl.constexpr, CHIPLETS: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, C_CONTIGUOUS: gl.constexpr, ADD_CONTIGUOUS: gl.constexpr,
    C_VEC: gl.constexpr, ADD_VEC: gl.constexpr, N_VEC: gl.constexpr,
    SCALE_A: gl.constexpr, SCALE_B: gl.constexpr, BIAS_AXIS: gl.constexpr, ACTIVATION: gl.constexpr,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    BLOCKS_N: gl.constexpr = BLOCK_N // COLUMNS
    BLOCKS: gl.constexpr = BLOCK_M // ROWS * BLOCKS_N
    tile = gl.program_id(0) // BLOCKS
    block_m = gl.program_id(0) % BLOCKS // BLOCKS_N * ROWS
    block_n = gl.program_id(0) % BLOCKS_N * COLUMNS
    slot, other, end = stream_parts(tile, steps, shared, workers)
    outer, inner, m0, n0, rows_m, rows_n = place_tile(
        whole + tile, M, N, batch_inner, BLOCK_M, BLOCK_N, ORDER, GROUP, CHIPLETS, BATCHED
    )  # fmt: skip
    c_ptr += outer * stride_co + inner * stride_ci
    if add_ptr is not None:
        add_ptr += outer * stride_do + inner * stride_di
    offs_m = block_m + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    offs_n = block_n + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    offs = offs_m[:, None] * BLOCK_N + offs_n[None, :]
    acc = gl.load(s_ptr + slot.to(gl.int64) * (BLOCK_M * BLOCK_N) + offs)  # [ROWS, COLUMNS]
    while other < end:
        acc += gl.load(s_ptr + other.to(gl.int64) * (BLOCK_M * BLOCK_N) + offs)
        other += 1
    rows = gl.minimum(rows_m - block_m, ROWS)
    # a minimum, because a hint needs an operation of this function that is not folded away
    columns = gl.multiple_of(gl.minimum(rows_n - block_n, COLUMNS), [N_VEC])
    store_tile(
        acc, m0 + block_m, n0 + block_n, rows, columns, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn,
        bias_ptr, stride_bias, alpha, beta, scale_a_ptr, scale_b_ptr, C_CONTIGUOUS, C_VEC, ADD_CONTIGUOUS, ADD_VEC,
        SCALE_A, SCALE_B, BIAS_AXIS, ACTIVATION, WIDE, None,
    )  # fmt: skip


def constants(problem: MatmulProblem, config: WmmaConfig) -> dict[str, Any]:
    """The kernel's constexprs."""
    chosen = problem_constants(problem, config)
    rows, columns = min(BLOCK_M, config.block_m), min(BLOCK_N, config.block_n)
    return {name: chosen[name] for name in _CONSTANTS} | {
        "BATCHED": problem.batches > 1,
        "C_VEC": min(4, problem.vector_out),
        "ADD_VEC": min(4, problem.vector_addend),
        "N_VEC": min(4, chosen["N_VEC"]),
        "ROWS": rows,
        "COLUMNS": columns,
        "LAYOUT": gl.BlockedLayout([1, 4], [128 // columns, columns // 4], [NUM_WARPS, 1], [1, 0]),
    }


def launch(
    problem: MatmulProblem, config: WmmaConfig, gpu: Gpu, sums: Any, c: Any,
    add: Any = None, bias: Any = None, alpha: float | None = None, beta: float | None = None,
    scale_a: Any = None, scale_b: Any = None,
) -> None:  # fmt: skip
    """Write the tiles of c that several programs share: sums as kernels/wmma.py left them, the rest as there."""
    shares = config.shares(problem, gpu)
    chosen = constants(problem, config)
    sizes = runtime_arguments(problem)
    blocks = config.block_m // chosen["ROWS"] * (config.block_n // chosen["COLUMNS"])
    add_stream_sums[(shares.shared * blocks,)](
        sums, c, add, bias, alpha, beta, scale_a, scale_b, *(sizes[name] for name in _SIZES),
        shares.steps, shares.whole, shares.shared, shares.workers, **chosen, num_warps=NUM_WARPS, enable_fp_fusion=True,
    )  # fmt: skip

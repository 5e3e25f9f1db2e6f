"""C = activation(alpha scale_a S scale_b + beta D + bias) as a launch of its own, on sums S that another launch made,
or on none.

For GPUs whose schedules apply no epilogue, for parts of K that other programs summed, added up here in their order, and
where there is no product at all (K = 0, alpha = 0). It reads S and writes C once, so a schedule that applies the terms
itself is better by that traffic. Every GPU that Gluon compiles for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime import driver

from ....device.epilogue import store_tile

BLOCK_M, BLOCK_N, NUM_WARPS = 32, 64, 4
_STRIDES = [f"stride_{matrix}{axis}" for matrix in "scd" for axis in "oimn"]
_POINTERS = ["s_ptr", "c_ptr", "add_ptr", "bias_ptr", "scale_a_ptr", "scale_b_ptr"]
RUNTIME = [*_POINTERS, "alpha", "beta", "M", "N", "parts", "stride_part", "batch_inner", *_STRIDES, "stride_bias"]


@gluon.jit(do_not_specialize=RUNTIME)
def apply_epilogue(
    s_ptr, c_ptr, add_ptr, bias_ptr, alpha, beta, scale_a_ptr, scale_b_ptr, M, N, parts, stride_part,
    batch_inner,
    stride_so, stride_si, stride_sm, stride_sn,
    stride_co, stride_ci, stride_cm, stride_cn,
    stride_do, stride_di, stride_dm, stride_dn, stride_bias,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, SCALE_A: gl.constexpr, SCALE_B: gl.constexpr,
    BIAS_AXIS: gl.constexpr, ACTIVATION: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // BLOCK_N + 1
    program = gl.program_id(0)
    batch = program // (tiles_m * tiles_n)
    outer = (batch // batch_inner).to(gl.int64)
    inner = (batch % batch_inner).to(gl.int64)
    c_ptr += outer * stride_co + inner * stride_ci
    if add_ptr is not None:
        add_ptr += outer * stride_do + inner * stride_di
    program = program % (tiles_m * tiles_n)
    m0 = (program // tiles_n).to(gl.int64) * BLOCK_M
    n0 = (program % tiles_n).to(gl.int64) * BLOCK_N
    rows_m = gl.minimum(M - m0, BLOCK_M).to(gl.int32)
    rows_n = gl.minimum(N - n0, BLOCK_N).to(gl.int32)
    if s_ptr is not None:
        offs_m = gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))
        offs_n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
        mask = (offs_m < rows_m)[:, None] & (offs_n < rows_n)[None, :]
        s_ptr += outer * stride_so + inner * stride_si + m0 * stride_sm + n0 * stride_sn
        offs = offs_m.to(gl.int64)[:, None] * stride_sm + offs_n.to(gl.int64)[None, :] * stride_sn
        acc = gl.load(s_ptr + offs, mask=mask, other=0)  # [BLOCK_M, BLOCK_N]
        for _ in range(1, parts):
            s_ptr += stride_part
            acc += gl.load(s_ptr + offs, mask=mask, other=0)
    else:
        SUMS: gl.constexpr = gl.float64 if c_ptr.dtype.element_ty == gl.float64 else gl.float32
        acc = gl.zeros((BLOCK_M, BLOCK_N), SUMS, LAYOUT)
    store_tile(
        acc, m0, n0, rows_m, rows_n, c_ptr, stride_cm, stride_cn, add_ptr, stride_dm, stride_dn, bias_ptr, stride_bias,
        alpha, beta, scale_a_ptr, scale_b_ptr, False, 1, False, 1, SCALE_A, SCALE_B, BIAS_AXIS, ACTIVATION, True, None,
    )  # fmt: skip


def constants(
    axis: str, activation: str | None, wave: int, scales: tuple[str | None, str | None] = (None, None)
) -> dict[str, Any]:
    """The kernel's constexprs."""
    layout = gl.BlockedLayout([1, 4], [wave // 16, 16], [NUM_WARPS, 1], [1, 0])
    return {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "SCALE_A": scales[0] or "none",
        "SCALE_B": scales[1] or "none",
        "BIAS_AXIS": axis,
        "ACTIVATION": activation or "none",
        "LAYOUT": layout,
    }


def launch(
    sizes: Sequence[int], strides: Sequence[Sequence[int] | None], parts: tuple[int, int], bias_place: tuple[str, int],
    scales: tuple[str | None, str | None], activation: str | None,
    sums: Any, c: Any, add: Any, bias: Any, alpha: float | int | None, beta: float | int | None, scale_a: Any,
    scale_b: Any,
) -> None:  # fmt: skip
    """Write c. sizes: outer and inner batch, M, N; strides of sums, c and add along these; parts: how many sums are
    to be added up, and from one to the next; bias_place: axis, stride; scales: what each is of, as in Epilogue.
    """
    outer, inner, m, n = sizes
    flat = [step for matrix in strides for step in (matrix or (0, 0, 0, 0))]
    wave = driver.active.get_current_target().warp_size
    axis = "none" if bias is None else bias_place[0]
    grid = (outer * inner * -(-m // BLOCK_M) * -(-n // BLOCK_N), 1, 1)
    apply_epilogue[grid](
        sums, c, add, bias, alpha, beta, scale_a, scale_b, m, n, *parts, inner, *flat, bias_place[1],
        **constants(axis, activation, wave, scales), num_warps=NUM_WARPS, enable_fp_fusion=True,
    )  # fmt: skip

"""Levels 1, 2, 3 and 5 of the ladder on AMD's GPUs: three launches of a pass c[n, i, j] = sum_k a[n, k, i] b[k, j].

The levels differ in where a pass reads from: 1 everything from global memory, one thread per element of c; 2 b from
LDS; 3 one thread per row of c, the whole row in registers; 5 as 3, with a strip of a brought into LDS first. Level 4 is
the schedule `rows` with matrix instructions. `depth`, which is K, comes at run time: the compiler would unroll loops
and spill. There to be compared.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....gpu import Gpu
from ..config_levels import AMD_THREADS, AmdLevelsConfig
from ..problem import Transform3dProblem

_STRIP_COLUMNS = 16


def layouts(config: AmdLevelsConfig, k: int, wave: int) -> dict[str, Any]:
    """The kernel's constants: tile, layout of c, of the strip of a as it is loaded, and of what lies in LDS."""
    columns = triton.next_power_of_2(k)
    warps = AMD_THREADS // wave
    # Columns of one thread: one; the whole row; or as much of it as leaves registers for what is on its way from LDS.
    each = {3: columns, 5: min(columns, _STRIP_COLUMNS)}.get(config.level, 1)
    across = min(columns // each, wave)
    tile = gl.BlockedLayout([1, each], [wave // across, across], [warps, 1], [1, 0])
    return {
        "LEVEL": config.level,
        "ROWS": config.rows(k),
        "COLUMNS": columns,
        "TILE": tile,
        "STRIP": gl.BlockedLayout([1, 1], [1, wave], [1, warps], [1, 0]),
        "IN_LDS": gl.SwizzledSharedLayout(1, 1, 1, [1, 0]),
        "K": k,
    }


@gluon.jit
def level_kernel(
    a_ptr, b_ptr, out_ptr, n_rows, depth,
    K: gl.constexpr, LEVEL: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
    TILE: gl.constexpr, STRIP: gl.constexpr, IN_LDS: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = a_ptr.dtype.element_ty
    first = gl.program_id(0).to(gl.int64) * ROWS
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, TILE))  # (n, i)
    a_row = a_ptr + row // (K * K) * (K * K * K) + row % (K * K)
    j = gl.arange(0, COLUMNS, gl.SliceLayout(0, TILE))
    row_ok = row < n_rows
    if LEVEL >= 2:
        b_lds = gl.allocate_shared_memory(dtype, [COLUMNS, 1, COLUMNS], IN_LDS)
        for k in range(depth):
            b_lds.index(k).store(gl.load(b_ptr + k * K + j, mask=j < K, other=0.0)[None, :])
    if LEVEL == 5:
        s_row = first + gl.arange(0, ROWS, gl.SliceLayout(0, STRIP))
        s_ptr = a_ptr + s_row // (K * K) * (K * K * K) + s_row % (K * K)
        a_lds = gl.allocate_shared_memory(dtype, [COLUMNS, 1, ROWS], IN_LDS)
        for k in range(depth):
            a_lds.index(k).store(gl.load(s_ptr + k * K * K, mask=s_row < n_rows, other=0.0)[None, :])
    acc = gl.zeros([ROWS, COLUMNS], dtype, TILE)
    for k in range(depth):
        if LEVEL == 5:
            a = a_lds.index(k).permute([1, 0]).load(TILE)  # [ROWS, 1]
        else:
            a = gl.load(a_row + k * K * K, mask=row_ok, other=0.0)[:, None]
        if LEVEL == 1:
            b_row = gl.load(b_ptr + k * K + j, mask=j < K, other=0.0)[None, :]
        else:
            b_row = b_lds.index(k).load(TILE)  # [1, COLUMNS]
        acc += a * b_row
    gl.store(out_ptr + row[:, None] * K + j[None, :], acc, mask=row_ok[:, None] & (j < K)[None, :])


def launch(problem: Transform3dProblem, config: AmdLevelsConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """x, out: dense torch tensors [N, K, K, K]; factors: [K, K]."""
    import torch

    constants = layouts(config, problem.k, gpu.wave)
    n_rows = problem.count * problem.k**2
    dense = factors.contiguous()
    first, second = torch.empty_like(x), torch.empty_like(x)
    for source, target in ((x, first), (first, second), (second, out)):
        # The leading axis is contracted, the new one is appended: three turns restore the order.
        level_kernel[(triton.cdiv(n_rows, constants["ROWS"]),)](
            source, dense, target, n_rows, problem.k, num_warps=AMD_THREADS // gpu.wave, enable_fp_fusion=True,
            **constants,
        )  # fmt: skip

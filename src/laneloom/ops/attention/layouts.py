"""Which lane holds what on the way to LDS, how tiles lie in LDS, and the constexprs that the kernels share."""

from __future__ import annotations

from functools import cache
from typing import Any

from triton.experimental.gluon import language as gl

from ...codegen.versions import wmma_layout
from ...gpu import Gpu

VECTOR = 8  #: elements of 16 bytes


def _bits(size: int) -> list[int]:
    return [1 << bit for bit in range(size.bit_length() - 1)]


def rows_layout(rows: int, width: int, num_warps: int) -> gl.BlockedLayout:
    """A lane holds 8 neighbours of a row, neighbouring lanes the next ones."""
    vector = min(VECTOR, max(1, rows * width // (32 * num_warps)))
    lanes = min(32, width // vector)
    return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [num_warps, 1], [1, 0])


def line_layout(num_warps: int) -> gl.BlockedLayout:
    """One number per lane."""
    return gl.BlockedLayout([1], [32], [num_warps], [0])


def turned_layout(rows: int, width: int, num_warps: int, *, stored: bool) -> gl.DistributedLinearLayout:
    """A lane loads 8 neighbours of up to 4 rows; `stored` is the same with the rows' elements as neighbours."""
    held = max(1, rows * width // (32 * num_warps))
    vector = min(VECTOR, held)
    neighbours = min(4, held // vector)
    across = [[0, c] for c in _bits(vector)]
    along = [[r, 0] for r in _bits(neighbours)]
    rest = [[r, 0] for r in _bits(rows) if r >= neighbours] + [[0, c] for c in _bits(width) if c >= vector]
    wave_bits = num_warps.bit_length() - 1
    lanes, rest = rest[:5], rest[5:]
    warps, more = rest[:wave_bits], rest[wave_bits:]
    registers = (along + across if stored else across + along) + more
    fill = [[0, 0]]
    lanes += fill * (5 - len(lanes))
    warps += fill * (wave_bits - len(warps))
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [rows, width])


def shared_layout(contiguous: int, order: tuple[int, int]) -> gl.SwizzledSharedLayout:
    """A tile in LDS whose rows of `contiguous` elements have their 16-byte groups permuted over 128 bytes."""
    groups = max(1, min(8, contiguous // VECTOR))
    return gl.SwizzledSharedLayout(VECTOR, max(1, 64 // contiguous), groups, list(order))


def matrix_version(gpu: Gpu) -> int:
    """1 and 2: WMMA of RDNA 3 and 4; 0: NVIDIA's mma."""
    return {("amd", 11): 1, ("amd", 12): 2}.get((gpu.vendor, gpu.major), 0)


@cache
def matrix_constants(gpu: Gpu, num_warps: int) -> dict[str, Any]:
    """Accumulator layout and operand width of the matrix instruction, all waves along the rows."""
    version = matrix_version(gpu)
    if version == 0:
        accumulator = gl.NVMMADistributedLayout([2, 0], [num_warps, 1], [16, 8])
    else:
        accumulator = wmma_layout(version, num_warps, 1, transposed=True)
    return {"VERSION": version, "ACC": accumulator, "K_WIDTH": {0: 2, 1: 16, 2: 8}[version]}

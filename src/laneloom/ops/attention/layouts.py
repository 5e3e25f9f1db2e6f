"""Which lane holds what on the way to LDS, how tiles lie in LDS, and the constexprs that the kernels share."""

from __future__ import annotations

from functools import cache
from typing import Any

from triton.experimental.gluon import language as gl

from ...codegen.versions import wmma_layout
from ...device.attention_tiles import MFMA
from ...gpu import Gpu
from ...isa.lds_banks import BANK_BYTES, banks_of

VECTOR = 8  #: elements of 16 bytes
_WEIGHTS_OF_MFMA = 4  #: neighbours of a row that a lane has of the accumulator, and so of the weights


def _bits(size: int) -> list[int]:
    return [1 << bit for bit in range(size.bit_length() - 1)]


def rows_layout(rows: int, width: int, num_warps: int, wave: int = 32) -> gl.BlockedLayout:
    """A lane holds 8 neighbours of a row, neighbouring lanes the next ones."""
    vector = min(VECTOR, max(1, rows * width // (wave * num_warps)))
    lanes = min(wave, width // vector)
    return gl.BlockedLayout([1, vector], [wave // lanes, lanes], [num_warps, 1], [1, 0])


def line_layout(num_warps: int, wave: int) -> gl.BlockedLayout:
    """One number per lane."""
    return gl.BlockedLayout([1], [wave], [num_warps], [0])


def turned_layout(
    rows: int, width: int, num_warps: int, wave: int = 32, *, stored: bool
) -> gl.DistributedLinearLayout:
    """A lane loads 8 neighbours of up to 4 rows; `stored` is the same with the rows' elements as neighbours."""
    held = max(1, rows * width // (wave * num_warps))
    # Of 64 lanes each has little: 2 rows at least, so that LDS is written 4 bytes at a time.
    vector = min(VECTOR, held if wave == 32 else max(1, held // 2))
    neighbours = min(4, held // vector)
    across = [[0, c] for c in _bits(vector)]
    along = [[r, 0] for r in _bits(neighbours)]
    rest = [[r, 0] for r in _bits(rows) if r >= neighbours] + [[0, c] for c in _bits(width) if c >= vector]
    lane_bits, wave_bits = wave.bit_length() - 1, num_warps.bit_length() - 1
    lanes, rest = rest[:lane_bits], rest[lane_bits:]
    warps, more = rest[:wave_bits], rest[wave_bits:]
    registers = (along + across if stored else across + along) + more
    fill = [[0, 0]]
    lanes += fill * (lane_bits - len(lanes))
    warps += fill * (wave_bits - len(warps))
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [rows, width])


def shared_layout(
    contiguous: int, order: tuple[int, int], vector: int = VECTOR, span: int = 64
) -> gl.SwizzledSharedLayout:
    """A tile in LDS whose rows of `contiguous` elements have their groups of `vector` permuted over `span` elements."""
    groups = max(1, min(span, contiguous) // vector)
    return gl.SwizzledSharedLayout(vector, max(1, span // contiguous), groups, list(order))


def rows_shared(width: int, gpu: Gpu) -> gl.SwizzledSharedLayout:
    """A tile in LDS whose rows are read for scores: permuted over as many bytes as all banks give in a clock."""
    span = banks_of(gpu).count * BANK_BYTES // 2
    # Of 64 bytes, four rows lie side by side in gfx950's banks; its order of lanes asks for them as 32 banks do.
    return shared_layout(width, (1, 0), span=64 if width == 32 else span)


def turned_shared(columns: int, gpu: Gpu) -> gl.SwizzledSharedLayout:
    """A tile in LDS with the step's columns as neighbours, in groups of what a lane reads: of MFMA's operand 4."""
    return shared_layout(columns, (0, 1), _WEIGHTS_OF_MFMA if matrix_version(gpu) == MFMA.value else VECTOR)


def matrix_version(gpu: Gpu) -> int:
    """1, 2 and 3: WMMA of RDNA 3, RDNA 4 and CDNA 5; MFMA; 0: NVIDIA's mma."""
    return MFMA.value if gpu.matrix_instructions == "mfma" else gpu.wmma_version


@cache
def matrix_constants(gpu: Gpu, num_warps: int, width: int, columns: int, dtype: str) -> dict[str, Any]:
    """Accumulator layout and operand width of the matrix instruction, all waves along the rows.

    width: of the narrowest tile that scores are computed from; columns: of a step; dtype: of the operands.
    """
    version = matrix_version(gpu)
    k_width = {0: 2, 1: 16, 2: 8, 3: 8, 4: 8 if width >= 32 else 4}[version]
    if version == 0:
        accumulator = gl.NVMMADistributedLayout([2, 0], [num_warps, 1], [16, 8])
    elif version == MFMA.value:
        # Transposed: a lane has 4 neighbours of a row, as it has them of the operand that weights become.
        generation = {"gfx908": 1, "gfx90a": 2, "gfx942": 3}.get(gpu.name, 4)
        depth = 32 if generation == 4 and min(width, columns) >= 32 else 16
        if generation == 1 and dtype == "bf16":
            depth = 8
        layout: Any = gl.amd.AMDMFMALayout
        accumulator = layout(generation, [16, 16, depth], True, [num_warps, 1])
    else:
        accumulator = wmma_layout(version, num_warps, 1, transposed=True, instr_shape=(16, 16, gpu.matrix_depth))
    return {"VERSION": version, "ACC": accumulator, "K_WIDTH": k_width}

"""Which lane holds what of the tiles of kernels/fragments.py, and where X lies in LDS."""

from __future__ import annotations

from functools import cache
from typing import Any

from triton.experimental.gluon import language as gl

from ...codegen.versions import wmma_layout
from ...gpu import Gpu
from ..matmul.layouts_mfma import FLIPS
from ..matmul.layouts_wmma import SWIZZLES
from .config_fragments import FragmentsConfig, lane_parts, words_of_lane
from .problem import DTYPE_BYTES, QuantizedProblem

WAVE = {0: 64, 1: 32, 2: 32}  #: by the version of WMMA; 0: MFMA


def _bits(size: int) -> list[int]:
    return [1 << bit for bit in range(size.bit_length() - 1)]


def _linear(bases: list[Any], wave: int, waves: int, shape: list[int]) -> Any:
    """A lane has 8 elements side by side; then come lanes, waves and more registers."""
    lane_bits, wave_bits = wave.bit_length() - 1, waves.bit_length() - 1
    vector, rest = bases[:3], bases[3:]
    rest = rest + [[0, 0]] * (lane_bits + wave_bits - len(rest))
    lanes, warps, more = rest[:lane_bits], rest[lane_bits : lane_bits + wave_bits], rest[lane_bits + wave_bits :]
    return gl.DistributedLinearLayout(vector + more, lanes, warps, [], shape)


@cache
def layouts(problem: QuantizedProblem, config: FragmentsConfig, gpu: Gpu) -> dict[str, Any]:
    """Which lane holds what, and where X lies in LDS."""
    version, block_m, block_n, block_k = gpu.wmma_version, config.block_m, config.block_n, config.block_k
    wave, warps = WAVE[version], config.num_warps
    lanes, words = lane_parts(gpu), words_of_lane(problem, config, gpu)
    depth = config.depth(problem)
    eights = words if problem.is_packed else words // 2
    per_word = 8 if problem.is_packed else 4
    layout: Any = gl.amd.AMDMFMALayout
    if version:
        sums = wmma_layout(version, 1, warps, transposed=False)
    else:
        sums = layout(3 if gpu.name == "gfx942" else 4, [16, 16, 16 if gpu.name == "gfx942" else 32], False, [1, warps])

    def named(k: int) -> int:
        """A step of K in memory by the fragments' name."""
        eight = k // 8 % (lanes * eights)
        turned = eight % eights * lanes + eight // eights
        return k - 8 * eight + 8 * turned if lanes > 1 and eights > 1 else k

    ks, rows = _bits(block_k), _bits(block_m)
    flips = FLIPS[32][2 * depth] if version == 0 else SWIZZLES["swizzled"][2 * depth]
    shared = [[0, named(k)] for k in _bits(depth)]
    for row in rows:
        flipped, k = divmod(row * depth ^ flips.get(row, 0) // 2, depth)
        shared.append([flipped, named(k)])
    whole = shared + [[part * block_m, 0] for part in _bits(block_k // depth)]
    loaded = [[0, k] for k in ks] + [[row, 0] for row in rows]
    stored = [[k // depth * block_m, named(k % depth)] for k in ks] + [[row, 0] for row in rows]
    # of a row of W: a lane's words, those of its neighbours, and those of the next instructions
    of_row = [[0, word] for word in _bits(block_k // per_word)]
    held, across = words.bit_length() - 1, lanes.bit_length() - 1
    lane_rows = [[row, 0] for row in (1, 2, 4, 8)]
    w_lanes = lane_rows + of_row[held : held + across] + [[0, 0]] * (wave.bit_length() - 5 - across)
    waves = [[16 * bit, 0] for bit in _bits(warps)]
    inner, more_rows = of_row[held + across :], [[row, 0] for row in _bits(block_n) if row >= 16 * warps]
    of_part = [basis for basis in inner if basis[1] < depth // per_word]
    of_parts = [[0, part] for part in _bits(block_k // depth)]
    s_lanes = lane_rows + [[0, 0]] * (wave.bit_length() - 5)

    def rows_of_w(registers: list[Any], lanes: list[Any], columns: int) -> Any:
        return gl.DistributedLinearLayout(registers + more_rows, lanes, waves, [], [block_n, columns])

    columns = 16 // DTYPE_BYTES[problem.dtype_out]
    c_lanes = min(wave, block_n // columns)
    ends = 1 << (-(-problem.batches // wave) - 1).bit_length()  # of groups of rows in a lane, the same in every wave
    return {
        "SUMS": sums,
        "X_LOAD": _linear(loaded, wave, warps, [block_m, block_k]),
        "X_STORE": _linear(stored, wave, warps, [block_k // depth * block_m, depth]),
        "X_SHARED": gl.SharedLinearLayout(shared, alignment=16),
        "X_WHOLE": gl.SharedLinearLayout(whole, alignment=16),
        "DEPTH": depth,
        "W_LOAD": rows_of_w(of_row[:held] + inner, w_lanes, block_k // per_word),
        "W_PART": rows_of_w(of_row[:held] + of_part, w_lanes, depth // per_word),
        "S_LOAD": rows_of_w(of_parts, s_lanes, block_k // depth),
        "W_VEC": words,
        "C_STORE": gl.BlockedLayout([1, columns], [wave // c_lanes, c_lanes], [warps, 1], [1, 0]),
        "PER_WORD": per_word,
        "LANES": lanes,
        "EIGHTS": eights,
        "ENDS": gl.BlockedLayout([ends], [wave], [warps], [0]) if problem.ragged else None,
    }

"""Machine code of FP32 by FMA on Hopper: what the loop holds, the instruction cache it fits, its register banks."""

from __future__ import annotations

import re

import pytest
from sass_listing import loops_of

from laneloom.gpu import get_gpu
from laneloom.ops.matmul import execute
from laneloom.ops.matmul.config_stream import STREAM_TILES, StreamConfig
from laneloom.ops.matmul.problem import MatmulProblem

pytest.importorskip("cuda.bindings.nvrtc")
GPU = get_gpu("sm_90a")
CACHE_BYTES = 32 << 10  #: where longer loops became slow on one H200
INSTRUCTION_BYTES = 16


def sass(problem: MatmulProblem, tile: tuple[int, int]) -> list[str]:
    """The loop with the FMAs."""
    config = StreamConfig(
        block_m=tile[0], block_n=tile[1], block_k=STREAM_TILES[tile].block_k, stages=4, copy_a=problem.m % 4 > 0,
        copy_b=problem.n % 4 > 0,
    )  # fmt: skip
    assert config.why_invalid(problem, GPU) is None
    code = execute.code_object(problem, GPU, config)
    assert code.spills == 0
    return next(loop for loop in loops_of(code) if sum("FFMA" in line for line in loop) > 100)


def count_conflicts(loop: list[str]) -> int:
    """Clocks that FMAs wait for a second read of one of the two register banks."""
    conflicts, kept = 0, {}
    for line in loop:
        if not line.startswith("FFMA"):
            continue
        now, read = {}, set()
        for place, source in enumerate(line.split(None, 1)[1].split(",")[1:4]):
            register = re.fullmatch(r"-?\|?R(\d+)(\.reuse)?\|?", source.strip())
            if register is None:
                continue
            if kept.get(place) != register[1]:
                read.add(register[1])
            if register[2]:
                now[place] = register[1]
        odd = sum(int(number) % 2 for number in read)
        conflicts += max(1, odd, len(read) - odd) - 1
        kept = now
    return conflicts


@pytest.mark.parametrize("tile", STREAM_TILES, ids=lambda tile: f"{tile[0]}x{tile[1]}")
@pytest.mark.parametrize("sizes", [(1024, 1024, 1024), (1021, 1023, 1024)], ids=["aligned", "odd"])
def test_the_loop(tile, sizes):
    if tile == (64, 64) and sizes[0] % 4:
        pytest.skip("the same loop as of the other tiles")
    loop = sass(MatmulProblem.contiguous(*sizes, dtype="fp32", layout="tn"), tile)
    rows, columns, k = tile[0] // 2 // 8, tile[1] // 4 // 4, STREAM_TILES[tile].block_k
    fmas = sum(line.startswith("FFMA") for line in loop)
    assert fmas == rows * columns * k
    assert sum(line.startswith("LDS.128") for line in loop) == (rows + columns) // 4 * k
    assert len(loop) * INSTRUCTION_BYTES <= CACHE_BYTES
    assert len(loop) - fmas - (rows + columns) // 4 * k <= 24, "addresses, barriers, the loop"
    if fmas > 32 * k:
        assert count_conflicts(loop) / fmas < 0.15

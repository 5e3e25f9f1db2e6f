"""Machine code of FP32 by FMA on Hopper: what the loop holds, the instruction cache it fits, its register banks."""

from __future__ import annotations

import re

import pytest
from sampled import sampled
from sass_listing import loops_of

from laneloom.codegen import CodeObject
from laneloom.gpu import get_gpu
from laneloom.ops.matmul import execute
from laneloom.ops.matmul.config_stream import STREAM_TILES, Feed, StreamConfig, stream_configs
from laneloom.ops.matmul.problem import MatmulProblem

pytest.importorskip("cuda.bindings.nvrtc")
GPU = get_gpu("sm_90a")
CACHE_BYTES = 32 << 10  #: where longer loops became slow on one H200
INSTRUCTION_BYTES = 16


def sass(problem: MatmulProblem, tile: tuple[int, int, int], *, lanes: bool = False) -> list[list[str]]:
    """The loops; without lanes what TMA cannot read is copied."""
    of = STREAM_TILES[tile]
    config = StreamConfig(
        block_m=tile[0], block_n=tile[1], block_k=of.block_k, num_warps=tile[2], stages=4, lanes_a=lanes,
        lanes_b=lanes, copy_a=not lanes and problem.m % 4 > 0, copy_b=not lanes and problem.n % 4 > 0,
    )  # fmt: skip
    assert config.why_invalid(problem, GPU) is None
    code = execute.code_object(problem, GPU, config)
    assert code.spills == 0
    check_resident(tile, code)
    return loops_of(code)


def check_resident(tile: tuple[int, int, int], code: CodeObject) -> None:
    """As many CTAs as the tile says have registers in an SM."""
    assert STREAM_TILES[tile].resident * 32 * (tile[2] + 4) * code.vgprs <= 65536


def multiplying(loops: list[list[str]]) -> list[str]:
    """The loop with the FMAs."""
    return next(loop for loop in loops if sum("FFMA" in line for line in loop) > 100)


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


def check_loop(loop: list[str], tile: tuple[int, int, int], addresses: int, block_k: int | None = None) -> None:
    of = STREAM_TILES[tile]
    rows, columns, k = tile[0] // of.warps_m // 8, tile[1] * of.warps_m // tile[2] // 4, block_k or of.block_k
    fmas = sum(line.startswith("FFMA") for line in loop)
    assert fmas == rows * columns * k
    assert sum(line.startswith("LDS.128") for line in loop) == (rows + columns) // 4 * k
    assert len(loop) * INSTRUCTION_BYTES <= CACHE_BYTES
    if rows * columns % 64 == 0:  # small tiles wait for other things; twelve columns find no better
        assert len(loop) - fmas - (rows + columns) // 4 * k <= addresses, "addresses, barriers, the loop"
        assert count_conflicts(loop) / fmas < 0.18


@pytest.mark.covering
@pytest.mark.parametrize("tile", sampled(STREAM_TILES, every=3), ids=lambda tile: f"{tile[0]}x{tile[1]}x{tile[2]}")
@pytest.mark.parametrize("sizes", [(1024, 1024, 1024), (1021, 1023, 1024)], ids=["aligned", "odd"])
def test_the_loop(tile, sizes):
    loops = sass(MatmulProblem.contiguous(*sizes, dtype="fp32", layout="tn"), tile)
    check_loop(multiplying(loops), tile, 24)


def test_parts_of_k_have_the_loop_of_whole_tiles():
    problem = MatmulProblem.contiguous(128, 128, 9000, dtype="fp32", layout="tn")
    for tile in ((64, 128, 4), (128, 128, 8)):
        of = STREAM_TILES[tile]
        config = StreamConfig(
            block_m=tile[0], block_n=tile[1], block_k=of.block_k, num_warps=tile[2], stages=4, split=False, split_k=9)
        assert config.why_invalid(problem, GPU) is None
        code = execute.code_object(problem, GPU, config)
        assert code.spills == 0
        check_resident(tile, code)
        check_loop(multiplying(loops_of(code)), tile, 24)


@pytest.mark.covering
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("tile", sampled([tile for tile, of in STREAM_TILES.items() if of.block_k % 8 == 0], every=4),
                         ids=lambda tile: f"{tile[0]}x{tile[1]}x{tile[2]}")  # fmt: skip
def test_lanes_bring_elements_by_one_copy_each(tile, layout):
    """Nothing is turned in registers: what lies along K is spread over the banks by its address."""
    loops = sass(MatmulProblem.contiguous(777, 777, 777, dtype="fp32", layout=layout), tile, lanes=True)
    check_loop(multiplying(loops), tile, 40)
    of = STREAM_TILES[tile]
    copies = sum(tile[:2]) * of.block_k // 128  # of each of 128 lanes, for a slice
    asking = min((loop for loop in loops if any("LDGSTS" in line for line in loop)), key=len)
    assert sum("LDGSTS.E" in line for line in asking) == 2 * copies, "whole slices, and the last one"
    assert not any("STS" in line.split()[:2] or "LDG.E" in line for line in asking)


@pytest.mark.covering
@pytest.mark.parametrize(("layout", "lanes"), [("nn", "a"), ("tt", "b"), ("nt", "ab")])
@pytest.mark.parametrize("tile", sampled(tile for tile in STREAM_TILES if STREAM_TILES[tile].block_k % 8 == 0),
                         ids=lambda tile: f"{tile[0]}x{tile[1]}x{tile[2]}")  # fmt: skip
def test_boxes_along_k_are_turned_or_read_so(tile, layout, lanes):
    """Turned: 16 bytes are read and four words written, unrolled. Either way those that multiply have the loop of what
    lies in rows, and A of small tiles is read by nobody else."""
    problem = MatmulProblem.contiguous(768, 768, 768, dtype="fp32", layout=layout)
    config = next(
        config for config in stream_configs(problem, GPU)
        if (config.block_m, config.block_n, config.num_warps) == tile and not config.cut
        and (config.lanes_a, config.lanes_b) == ("a" in lanes, "b" in lanes)
    )  # fmt: skip
    code = execute.code_object(problem, GPU, config)
    assert code.spills == 0
    check_resident(tile, code)
    loops = loops_of(code)
    check_loop(multiplying(loops), tile, 50 if tile[1] == 192 else 33, config.block_k)
    turned = [tile["ab".index(name)] for name in lanes if config.feed(problem, name) is Feed.TURNED]
    assert turned or (lanes == "a" and config.lane_sums <= 32)
    turning = [loop for loop in loops if any(line.split()[0] == "STS" for line in loop)]
    reads = sum(line.startswith("LDS.128") for line in min(turning, key=len)) if turning else 0
    assert reads == sum(-(-rows // 16 // 3) for rows in turned) * (config.block_k // 8), "by three warps"
    assert not any("LDGSTS" in line for loop in loops for line in loop)


def test_two_ctas_fit_an_sm_where_four_warps_multiply():
    """Those of whole tiles have their registers checked wherever they are compiled; here are some that cut tiles."""
    problem = MatmulProblem.contiguous(777, 777, 777, dtype="fp32")
    every = list(stream_configs(problem, GPU))
    for config in every:
        resident = STREAM_TILES[config.block_m, config.block_n, config.num_warps].resident
        assert resident * (config.shared_bytes(problem) + 1024) <= GPU.lds_bytes + 1024
    for config in sampled([config for config in every if config.split], every=13):
        check_resident((config.block_m, config.block_n, config.num_warps), execute.code_object(problem, GPU, config))

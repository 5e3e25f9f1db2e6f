"""Machine code of `hopper_async`, compiled by NVRTC without a GPU."""

from __future__ import annotations

import pytest
from hopper_compiled import GPU, compile_valid
from sampled import in_turn, sampled
from sass_listing import listing_of, loops_of

from laneloom.ops.matmul.config_async import FP32_TILES, FP64_TILES, HALF_TILES, AsyncConfig
from laneloom.ops.matmul.plan_wide import async_configs
from laneloom.ops.matmul.problem import MatmulProblem

WIDE = {"fp32": 32, "fp64": 16}


def multiplications(code, word):
    """Instructions of the innermost loop that multiplies."""
    return next(loop for loop in loops_of(code) if any(word in line for line in loop))


@pytest.mark.covering
@pytest.mark.parametrize(
    ("dtype", "tile", "layout"),
    [
        (dtype, tile, layout)
        for dtype, tiles in (("fp32", FP32_TILES), ("fp64", FP64_TILES))
        for n, tile in sampled(enumerate(tiles), every=3)
        for layout in in_turn(n, "nn", "tt")
    ],
)
def test_tiles_multiply_from_shared_memory_without_spills(dtype, tile, layout):
    problem = MatmulProblem.contiguous(512, 512, 512, dtype=dtype, layout=layout)
    config = next(c for c in async_configs(problem, GPU) if (c.block_m, c.block_n) == tile) if tile[1] > 16 else (
        AsyncConfig(block_m=tile[0], block_n=tile[1], block_k=WIDE[dtype], stages=3, cluster_k=4))  # fmt: skip
    code = compile_valid(problem, config)
    listing = listing_of(code)
    assert any("LDGSTS.E.BYPASS" in line and ".128" in line for line in listing), "copies of 16 bytes"
    assert not any(line.startswith(("LDL", "STL")) for line in listing)
    loop = multiplications(code, "FFMA" if dtype == "fp32" else "DMMA")
    reads = [line for line in loop if line.startswith("LDS")]
    if dtype == "fp32" and tile[1] > 1:
        assert sum("LDS.128" in line for line in reads) >= sum("FFMA" in line for line in loop) / 16
    if dtype == "fp64":
        assert sum("DMMA.16x8x8" in line for line in loop) >= 1
    assert ".shared::cluster" in code.asm if config.cluster_k > 1 else ".cluster.arrive" not in code.asm
    assert "griddepcontrol.wait" in code.asm


@pytest.mark.parametrize(
    ("tile", "layout", "size"),
    [(tile, *how) for n, tile in sampled(enumerate(HALF_TILES), every=3)
     for how in in_turn(n, ("nn", 512), ("tt", 333))],
)
def test_tiles_of_16_bits(tile, layout, size):
    """Fragments by ldmatrix, transposed where an operand does not lie along K; rows that begin anywhere by pieces of 16
    bytes that cover them and words of each lane, but for short lines, which come element by element."""
    problem = MatmulProblem.contiguous(size, size, size, dtype="bf16", layout=layout)
    config = AsyncConfig(block_m=tile[0], block_n=tile[1], block_k=64, stages=3, cluster_k=2)
    code = compile_valid(problem, config)
    listing = listing_of(code)
    assert not any(line.startswith(("LDL", "STL")) for line in listing)
    assert any("HMMA.16816.F32.BF16" in line for line in listing)
    shifted_a, shifted_b = config.shifted(problem)
    assert (shifted_a, shifted_b) == ((size == 333 and tile[0] > 16), size == 333)
    assert any("LDSM.16.MT88" in line for line in listing) == (size == 512 or not shifted_a)
    assert any("LDSM.16.M88" in line for line in listing) == (size == 512)
    copies = [line for line in listing if "LDGSTS" in line]
    assert copies
    assert all("LDGSTS.E.BYPASS.128" in line or "LDGSTS.E.BYPASS.LTC128B.128" in line for line in copies)
    assert any("STS.U16" in line for line in listing) == (size == 333 and not shifted_a)


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("fp64", 8)])
def test_rows_that_begin_anywhere_are_copied_by_elements(dtype, size):
    problem = MatmulProblem.contiguous(777, 777, 777, dtype=dtype)
    config = AsyncConfig(block_m=64, block_n=32, block_k=WIDE[dtype], stages=4)
    code = compile_valid(problem, config)
    assert "cp.async.ca.shared.global" in code.asm
    copies = [line for line in code.asm.splitlines() if "cp.async.ca" in line]
    assert all(f", {size}, %" in line for line in copies)
    assert len(copies) % ((64 + 32) * WIDE[dtype] // 128) == 0


def test_one_kernel_serves_every_size():
    """Sizes are arguments: products that lie alike share their code."""
    config = AsyncConfig(block_m=64, block_n=64, block_k=32, stages=4)
    one, other = (MatmulProblem.contiguous(n, n, n, dtype="fp32") for n in (512, 1024))
    assert compile_valid(one, config).binary == compile_valid(other, config).binary

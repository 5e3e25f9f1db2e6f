"""Machine code of FP64 by matrix instructions on Hopper: what its loop holds beside them and their reads."""

from __future__ import annotations

import pytest
from hopper_compiled import compile_valid
from sampled import sampled
from sass_listing import loops_of

from laneloom.ops.matmul.config_precise import PRECISE_TILES, PreciseConfig
from laneloom.ops.matmul.problem import MatmulProblem

pytest.importorskip("cuda.bindings.nvrtc")
OTHERS = 36  #: instructions of a slice that neither multiply nor read
#: what stands between DMMAs, which ptxas keeps apart: instructions that do nothing, the newest's as well
BETWEEN = ("NOP", "@!UPT UIADD3 URZ")


def multiplying(sizes: tuple[int, int, int], layout: str, tile: tuple[int, int, int], **knobs: object) -> list[str]:
    m, n, warps = tile
    resident = PRECISE_TILES[tile].resident
    stages = min(6, (227 * 1024 // resident - 1024) // ((m + n) * 128 + 16))
    config = PreciseConfig(
        block_m=m, block_n=n, block_k=16, num_warps=warps, stages=stages, programs=132 * resident, **knobs)  # pyright: ignore
    code = compile_valid(MatmulProblem.contiguous(*sizes, dtype="fp64", layout=layout), config)
    assert code.spills == 0
    return next(loop for loop in loops_of(code) if any("DMMA" in line for line in loop))


@pytest.mark.covering
@pytest.mark.parametrize("tile", sampled(PRECISE_TILES, every=3), ids=lambda tile: f"{tile[0]}x{tile[1]}x{tile[2]}")
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_reads_need_no_addresses(tile, layout):
    """A stage's place is a register of the warp beside the lane's own: nothing is added up for a read."""
    of = PRECISE_TILES[tile]
    rows, columns = tile[0] // of.warps_m // 16, tile[1] * of.warps_m // tile[2] // 8
    for sizes, knobs in (((4096, 4096, 4096), {}), ((640, 640, 5000), {"split_k": 3})):
        loop = multiplying(sizes, layout, tile, **knobs)
        reads = [line for line in loop if line.startswith("LDS")]
        assert sum("DMMA.16x8x16" in line for line in loop) == rows * columns
        assert len(reads) == 4 * (2 * rows + columns)
        assert all("UR" in line for line in reads)
        others = [line for line in loop if not line.startswith(("DMMA", "LDS", *BETWEEN))]
        assert len(others) <= OTHERS, others
        assert not any("SR_CgaCtaId" in line for line in loop)

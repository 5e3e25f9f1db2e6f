"""Machine code of `hopper_rows`, compiled by NVRTC without a GPU."""

from __future__ import annotations

import re

import pytest
from hopper_compiled import GPU, compile_valid

from laneloom.ops.matmul.config_rows import RowsConfig, stream_rows
from laneloom.ops.matmul.problem import MatmulProblem

SMALL = RowsConfig(block_m=8, block_n=64, num_warps=8)


def compiled(config, m=8, n=4096, k=4096, **options):
    return compile_valid(MatmulProblem.contiguous(m, n, k, **{"dtype": "bf16", **options}), config)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(
    ("n", "k", "load", "count"),
    [(4096, 4096, "L1::no_allocate.L2::128B.v4", 8), (4100, 4100, "v2", 16), (4098, 4098, "u32", 32)],
)
def test_operands_are_read_in_the_widest_pieces_behind_the_wait(n, k, load, count, layout, dtype):
    before, after = compiled(SMALL, n=n, k=k, layout=layout, dtype=dtype).asm.split("griddepcontrol.wait;")
    assert "griddepcontrol.launch_dependents" in before
    assert "ld.global" not in before, "nothing is read before the wait"
    whole = after.split("mma.sync")[0]
    assert len(re.findall(rf"ld\.global\.{re.escape(load)}", whole)) >= count
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{'bf16.bf16' if dtype == 'bf16' else 'f16.f16'}.f32" in after


@pytest.mark.covering
@pytest.mark.parametrize("m", [1, 8, 16, 24, 33, 40])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("n", "k"), [(4098, 4098), (14140, 6044)])
def test_what_the_plan_chooses_does_not_spill(m, layout, n, k):
    problem = MatmulProblem.contiguous(m, n, k, dtype="bf16", layout=layout)
    config = stream_rows(problem, GPU)
    assert config is not None
    compile_valid(problem, config)


def test_parts_of_k_meet_in_shared_memory():
    assert "st.shared::cluster" in compiled(SMALL.with_knobs(cluster_k=2)).asm
    assert "cluster" not in compiled(SMALL).asm.split(".visible .entry")[1]
    assert "cvt.rn.bf16" not in compiled(SMALL, dtype_out="fp32").asm


def test_lines_are_asked_for_ahead_where_they_begin_at_16_bytes():
    asked = "cp.async.bulk.prefetch.L2.global"
    assert asked in compiled(SMALL.with_knobs(ahead=64)).asm.split("griddepcontrol.wait;")[0]
    assert asked not in compiled(SMALL.with_knobs(ahead=64), n=4100).asm
    assert asked not in compiled(SMALL).asm

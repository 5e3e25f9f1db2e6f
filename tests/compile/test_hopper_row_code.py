"""Machine code of `hopper_row`, compiled by NVRTC without a GPU."""

from __future__ import annotations

import pytest
from hopper_compiled import compile_valid

from laneloom.ops.matmul.config_row import RowConfig
from laneloom.ops.matmul.problem import MatmulProblem

NARROW = RowConfig(block_n=64, num_warps=16, cluster_k=2, ahead=256)
WIDE = RowConfig(block_n=256, num_warps=8, stages=2, cluster_k=8, ahead=64)


def compiled(config, k=4096, **options):
    return compile_valid(MatmulProblem.contiguous(1, 4096, k, **{"dtype": "bf16", **options}), config)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("k", [4096, 4093])
@pytest.mark.parametrize("config", [NARROW, WIDE], ids=["narrow", "wide"])
def test_all_loads_of_a_unit_are_in_flight_and_nothing_is_read_before_the_wait(config, k, dtype):
    asm = compiled(config, k, dtype=dtype).asm
    before, after = asm.split("griddepcontrol.wait;")
    assert "griddepcontrol.launch_dependents" in before
    assert "cp.async.bulk.prefetch.L2.global" in before
    assert "ld.global" not in before
    assert after.index("fma.rn.f32") > max(
        i for i in range(len(after)) if after.startswith("ld.global.L1::no_allocate.L2::128B.v4", i)
    )
    assert after.count("ld.global.L1::no_allocate.L2::128B.v4") == 8 * config.stages
    assert ("ld.global.v4" in after) == (k % 8 == 0), "a unit of A in one load"
    assert "wgmma" not in asm


@pytest.mark.parametrize(("config", "threads"), [(NARROW, 512), (WIDE, 256)])
def test_two_ctas_fit_an_sm(config, threads):
    assert compiled(config).vgprs * threads * 2 <= 65536


def test_parts_of_k_meet_in_shared_memory():
    assert "st.shared::cluster" in compiled(NARROW).asm
    assert "cluster" not in compiled(NARROW.with_knobs(cluster_k=1)).asm.split(".visible .entry")[1]
    assert "cvt.rn.bf16" not in compiled(NARROW, dtype_out="fp32").asm

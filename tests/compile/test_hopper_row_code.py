"""Machine code of `hopper_row`, compiled by NVRTC without a GPU."""

from __future__ import annotations

import re

import pytest
from hopper_compiled import compile_valid

from laneloom.ops.matmul.config_row import RowConfig
from laneloom.ops.matmul.problem import MatmulProblem

NARROW = RowConfig(block_n=64, num_warps=16, cluster_k=2, ahead=256)
WIDE = RowConfig(block_n=256, num_warps=8, stages=2, cluster_k=8, ahead=64)


def compiled(config, k=4096, **options):
    return compile_valid(MatmulProblem.contiguous(1, 4096, k, **{"dtype": "bf16", **options}), config)


B_LOAD = "ld.global.L1::no_allocate.L2::128B.v4"


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("k", [4096, 4000, 4093])
@pytest.mark.parametrize("config", [NARROW, WIDE], ids=["narrow", "wide"])
def test_all_loads_of_a_whole_turn_are_in_flight_without_a_guard(config, k, dtype):
    before, after = compiled(config, k, dtype=dtype).asm.split("griddepcontrol.wait;")
    assert "griddepcontrol.launch_dependents" in after, "when the kernel ahead has ended, not sooner"
    assert "cp.async.bulk.prefetch.L2.global" in before
    assert "ld.global" not in before, "nothing is read before the wait"
    whole, multiplied = after.split("fma.rn.f32", 1)
    loads = whole[whole.index(B_LOAD) :]
    assert loads.count(B_LOAD) == 8 * config.stages
    assert whole.count("ld.global.v4") == config.stages, "a unit of A in one load"
    assert "bra" not in loads
    assert "@" not in loads
    rows = 8 * config.turn(MatmulProblem.contiguous(1, 4096, k, dtype=dtype)) * config.cluster_k
    assert (B_LOAD in multiplied) == (k % rows != 0), "a short turn where one may come"
    assert "wgmma" not in before + after


@pytest.mark.parametrize(("dtype", "pieces"), [("fp32", 2), ("fp64", 4)])
@pytest.mark.parametrize("config", [NARROW, NARROW.with_knobs(num_warps=8, stages=2)], ids=["one unit", "two units"])
def test_wider_types_have_as_many_loads_in_flight(config, dtype, pieces):
    """pieces: of 16 bytes that 8 elements of A take."""
    after = compiled(config, dtype=dtype).asm.split("griddepcontrol.wait;")[1]
    whole = after.split(f"fma.rn.f{dtype[2:]}", 1)[0]
    assert whole.count(B_LOAD) == 8 * config.stages
    assert whole.count("ld.global.v4") == pieces * config.stages
    assert "@" not in whole[whole.index(B_LOAD) :]


@pytest.mark.parametrize("k", [4000, 4093])
@pytest.mark.parametrize("config", [NARROW, WIDE], ids=["narrow", "wide"])
def test_in_a_short_turn_every_row_of_a_and_of_b_is_guarded(config, k):
    """What is not there is zero in both: an infinity in A times a zero of B would be NaN."""
    short = compiled(config, k).asm.split("griddepcontrol.wait;")[1]
    short = short[short.rindex("fma.rn.f32", 0, short.rindex(B_LOAD)) :]  # behind the whole turns
    for load in (B_LOAD, "ld.global.u16"):
        guarded = re.findall(rf"@%p\d+ bra[^@]*?{re.escape(load)}", short)
        assert len(guarded) == short.count(load) == 8 * config.stages


@pytest.mark.parametrize("k", [4096, 4093])
@pytest.mark.parametrize(("config", "threads"), [(NARROW, 512), (WIDE, 256)])
def test_two_ctas_fit_an_sm(config, threads, k):
    assert compiled(config, k).vgprs * threads * 2 <= 65536


def test_parts_of_k_meet_in_shared_memory():
    assert "st.shared::cluster" in compiled(NARROW).asm
    assert "cluster" not in compiled(NARROW.with_knobs(cluster_k=1)).asm.split(".visible .entry")[1]
    assert "cvt.rn.bf16" not in compiled(NARROW, dtype_out="fp32").asm

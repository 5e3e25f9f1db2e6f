"""What a CTA does before its first load and, of `hopper_cluster`, after its last product, by the machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hopper_compiled import compile_valid
from sass_listing import disassemble

from laneloom.ops.matmul.config_cluster import ClusterConfig
from laneloom.ops.matmul.config_precise import PreciseConfig
from laneloom.ops.matmul.config_registers import RegistersConfig
from laneloom.ops.matmul.config_stream import StreamConfig
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem


@pytest.mark.covering
@pytest.mark.parametrize(
    "knobs", [{}, {"cluster_m": 2}, {"tiles_n": 4, "block_n": 136, "stages": 4}], ids=["alone", "pairs", "uneven"])
def test_a_cta_that_comes_late_loads_at_once(knobs):
    """Between the kernel ahead and the first load stand neither divisions nor what could be computed before."""
    problem = MatmulProblem.contiguous(512, 512, 512, dtype="bf16", layout="nt")
    config = ClusterConfig(**{"block_m": 128, "block_n": 64, "block_k": 64, "stages": 7, "fetched": 2, **knobs})
    sass = disassemble(compile_valid(problem, config))
    assert not re.search(r"MUFU\.RCP|I2F", sass)
    load = sass.index("UTMALDG")
    between = sass[sass.rindex("ACQBULK", 0, load) : load]
    assert len(re.findall(r"/\*[0-9a-f]{4}\*/", between)) < 48
    assert "SYNCS" not in between, "barriers expect their first slices since they were made"


WAIT, LOAD, FETCH, BARRIER = "ACQBULK", "UTMALDG", "UTMAPF", "SYNCS.EXCH"
PRECISE = PreciseConfig(block_m=128, block_n=64, block_k=16, stages=6)
PRECISE_PAIR = PreciseConfig(block_m=32, block_n=32, block_k=16, num_warps=4, stages=6, programs=264)
REGISTERS = RegistersConfig(block_m=128, block_n=64, block_k=32, stages=8, turned=True)
STREAM = StreamConfig(block_m=128, block_n=64, block_k=16, num_warps=4, stages=4)
#: dtype, precision, layout, config, whether it asks the L2 ahead
EARLY = {
    "fp64": ("fp64", "ieee", "nn", PRECISE, True),
    "fp64, shares": ("fp64", "ieee", "nt", PRECISE.with_knobs(split=True), True),
    "fp64, two CTAs": ("fp64", "ieee", "tn", PRECISE_PAIR, False),
    "fp32": ("fp32", "ieee", "tn", STREAM, False),
    "fp32, turned": ("fp32", "ieee", "nn", STREAM.with_knobs(lanes_a=True), False),
    "tf32": ("fp32", "tf32", "nn", REGISTERS, True),
    "3xtf32": ("fp32", "3xtf32", "nn", REGISTERS.with_knobs(block_m=64, block_n=128, stages=6), True),
    "3xtf32, two CTAs, parts of k": (
        "fp32", "3xtf32", "nt", REGISTERS.with_knobs(block_m=16, block_n=64, stages=4, split_k=4), False),
}  # fmt: skip


def check_begins_early(sass: str, *, fetches: bool) -> None:
    """Barriers, what comes first, and what is asked for ahead come before the wait; nothing else of memory does."""
    load = sass.index(LOAD)
    wait = sass.rindex(WAIT, 0, load)
    between = sass[wait:load]
    assert sass.rindex(BARRIER) < sass.index("BAR.SYNC") < sass.index(WAIT)
    # Both tensor maps; who asks the L2 for boxes has them.
    assert sass.count("UTMACCTL.PF", 0, sass.index("BAR.SYNC")) == 2 or (fetches and "UTMACCTL.PF" not in sass)
    assert not re.search(r"MUFU\.RCP|I2F", between), "no division"
    assert len(re.findall(r"/\*[0-9a-f]{4}\*/", between)) < 100
    assert not re.search(r"\b(LDG|STG|LDGSTS|RED|ATOMG)\b", sass[: sass.index(WAIT)])
    assert (FETCH in sass) == fetches
    if fetches:  # a warp that loads nothing, or this one before it waits
        behind = sass[sass.rindex(FETCH) :]
        assert WAIT in behind.split(LOAD)[0]


@pytest.mark.covering
@pytest.mark.parametrize("name", EARLY)
def test_what_needs_no_memory_comes_before_the_wait(name):
    dtype, precision, layout, config, fetches = EARLY[name]
    problem = MatmulProblem.contiguous(1024, 1000, 1024, dtype=dtype, layout=layout, precision=precision)
    check_begins_early(disassemble(compile_valid(problem, config)), fetches=fetches)


@pytest.mark.parametrize(("block_n", "epilogue", "expected"), [
    (64, None, False), (128, None, False), (256, None, True), (64, Epilogue(bias=("n", 1), dtype_bias="bf16"), False),
])  # fmt: skip
def test_registers_are_handed_over_where_a_tile_has_many_sums(block_n, epilogue, expected):
    problem = replace(MatmulProblem.contiguous(512, 512, 512, dtype="bf16", layout="nt"), epilogue=epilogue)
    config = ClusterConfig(block_m=128, block_n=block_n, block_k=64, stages=4, consumers=2)
    assert config.hands_over(problem) == expected
    assert ("setmaxnreg" in compile_valid(problem, config).asm) == expected
    added = replace(problem, epilogue=Epilogue(scaled=True, addend=problem.out, dtype_addend="bf16"))
    assert config.hands_over(added)


@pytest.mark.parametrize(("n", "knobs", "words"), [
    (512, {"consumers": 2}, 4), (512, {"consumers": 2, "cluster_m": 2}, 4),
    (512, {"block_m": 64, "swapped": True}, 4),
])  # fmt: skip
def test_nothing_stands_between_the_last_product_and_c(n, knobs, words):
    """Of a CTA's only tile: sums are packed, staged and stored by addresses that are known. No branch."""
    problem = MatmulProblem.contiguous(512, n, 512, dtype="bf16", layout="nt")
    config = ClusterConfig(**{
        "block_m": 128, "block_n": 64, "block_k": 64, "stages": 4, "consumers": 1, "tma_store": False,
        **knobs})  # fmt: skip
    assert config.one_tile(problem)
    sass = disassemble(compile_valid(problem, config))
    end = sass[sass.rindex("WARPGROUP.DEPBAR.LE gsb0, 0x0") :]
    stored = end[: end.rindex("STG")]
    assert end.count("STG") == words
    assert "BRA" not in stored[stored.index("STSM") :]
    assert len(re.findall(r"/\*[0-9a-f]{4}\*/", stored)) < 40 + 20 * words


def test_another_tile_is_looked_for_while_this_one_is_multiplied():
    """What the test above would say of a CTA with several: there is a way back."""
    problem = MatmulProblem.contiguous(4096, 4096, 512, dtype="bf16", layout="nt")
    config = ClusterConfig(block_m=128, block_n=64, block_k=64, stages=4, consumers=2, tma_store=False)
    assert not config.one_tile(problem)
    sass = disassemble(compile_valid(problem, config))
    end = sass[sass.rindex("WARPGROUP.DEPBAR.LE gsb0, 0x0") :]
    assert "BRA" in end[end.index("STSM") : end.rindex("STG")]

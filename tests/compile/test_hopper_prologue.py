"""What a CTA of `hopper_cluster` does before its first load and after its last product, by the machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hopper_compiled import compile_valid
from sass_listing import disassemble

from laneloom.ops.matmul.config_cluster import ClusterConfig
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

"""Machine code of products of rows in groups: the loop of the plain product, behind the search for the tile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sampled import rarely

from laneloom.codegen.versions import parse_version, triton_version
from laneloom.gpu import get_gpu
from laneloom.isa.analysis import has_spills, hot_loop, loads_are_wide
from laneloom.isa.listing import Kind
from laneloom.ops.matmul.config import plan
from laneloom.ops.matmul.config_mfma import LARGE_TRITON
from laneloom.ops.matmul.execute import code_object
from laneloom.ops.matmul.problem import MatmulProblem

INSTRUCTIONS = {
    "gfx1151": "v_wmma_f32_16x16x16_bf16", "gfx1201": "v_wmma_f32_16x16x16_bf16",
    "gfx942": "v_mfma_f32_16x16x16_bf16", "gfx908": "v_mfma_f32_16x16x8bf16", "gfx950": "v_mfma_f32_16x16x32_bf16",
    "gfx90a": "v_mfma_f32_16x16x16bf16_1k",
}  # fmt: skip
GPUS = ("gfx1151", "gfx1201", "gfx942", "gfx908", *rarely("gfx950", "gfx90a"))


def in_groups(groups: int, layout: str = "nt", size: int = 4096) -> MatmulProblem:
    plain = MatmulProblem.contiguous(size, size, size, dtype="bf16", layout=layout, batch=groups)
    a, out = (replace(x, strides=(0, 0, *x.strides[2:])) for x in (plain.a, plain.out))
    return replace(plain, a=a, out=out, grouped=True)


@pytest.mark.parametrize("gpu", GPUS)
def test_the_loop_is_that_of_the_plain_product(gpu):
    problem, row = in_groups(8), get_gpu(gpu)
    config = plan(problem, row)
    large = 256 if gpu == "gfx950" and parse_version(triton_version()) >= LARGE_TRITON else 128
    assert (config.block_m, config.block_n) == (large, 128)
    code, plain = (code_object(x, row, config) for x in (problem, problem.of_equal_groups()))
    assert not has_spills(code.asm)
    loop, other = hot_loop(code.asm), hot_loop(plain.asm)
    assert loop is not None
    assert other is not None
    assert {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX} == {INSTRUCTIONS[gpu]}
    for kind in (Kind.MATRIX, Kind.GLOBAL_LOAD, Kind.LDS_LOAD, Kind.LDS_STORE):
        assert loop.count(kind) == other.count(kind), kind
    assert loads_are_wide(loop)
    # Where the tile lies is in scalar registers: only the ends are loaded by addresses of each lane's own.
    ways = [", off" in line for line in code.asm.splitlines() if line.strip().startswith("global_")]
    assert ways.count(True) == 2
    assert code.vgprs <= plain.vgprs + 4


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx942", *rarely("gfx908")])
def test_most_groups_fit_into_registers(gpu):
    for size in (64, 4096):  # whose tiles have one or two waves, and more
        assert not has_spills(code_object(in_groups(1024, "tn", size), get_gpu(gpu)).asm)


@pytest.mark.skipif(parse_version(triton_version()) < (3, 9), reason="Triton compiles for it from 3.9 on")
@pytest.mark.parametrize("groups", [8, 1024])
def test_cdna_5(groups):
    code = code_object(in_groups(groups), get_gpu("gfx1250"))
    assert "v_wmma_f32_16x16x32_bf16" in code.asm
    assert not has_spills(code.asm)

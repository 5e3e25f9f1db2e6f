"""Machine code of the attention kernels: matrix instructions, exponentials, loads ahead of them, no spills, LDS."""

from __future__ import annotations

import re

import pytest

from laneloom.codegen import CodeObject
from laneloom.gpu import get_gpu
from laneloom.isa.analysis import hot_loop, loads_are_wide, order
from laneloom.isa.listing import Kind
from laneloom.ops.attention.config import plan
from laneloom.ops.attention.execute import code_object
from laneloom.ops.attention.problem import AttentionProblem

ROLES = ("forward", "query", "key")


def compiled(gpu: str, role: str, d: int, dtype: str = "fp16", last: int | None = 0) -> CodeObject:
    problem = AttentionProblem(2, 4, 2, 512, 512, d, d, dtype, d**-0.5, None, last)
    code = code_object(problem, get_gpu(gpu), role)
    assert code.lds_bytes <= plan(problem, get_gpu(gpu), role).lds_bytes(problem) <= 64 * 1024
    return code


def check_no_spills(code: CodeObject) -> None:
    assert (code.vgpr_spills, code.sgpr_spills, code.scratch_bytes) == (0, 0, 0)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("gpu", "dtype"), [("gfx1100", "fp16"), ("gfx1151", "bf16"), ("gfx1201", "fp16")])
def test_hot_loop(gpu, dtype, role):
    code = compiled(gpu, role, 128, dtype)
    check_no_spills(code)
    loop = hot_loop(code.asm)
    assert loop is not None
    matrix = {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX}
    assert matrix == {f"v_wmma_f32_16x16x16_{'bf16' if dtype == 'bf16' else 'f16'}"}
    rows, columns, d, out = 16, 32, 128, {"forward": 128, "query": 64, "key": 2 * 64}[role]
    products = d * (1 if role == "forward" else 2) + out
    assert loop.count(Kind.MATRIX) == rows * columns * products // 16**3
    exponentials = sum(i.mnemonic.startswith("v_exp_f32") for i in loop.instructions)
    # a weight per pair and lane, and the forward's fading of 16 rows, two lanes to a row
    assert exponentials == rows * columns // 32 + (role == "forward")
    narrow = [i for i in loop.instructions if i.kind is Kind.GLOBAL_LOAD and i.width_bytes < 16]
    assert len(narrow) == (2 if role == "key" else 0), "lse and delta of the columns alone are loaded one by one"
    assert role == "key" or loads_are_wide(loop)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_loads_run_under_the_matrix_instructions(gpu):
    """The values come while the scores are computed, the next keys while the values are summed."""
    loop = hot_loop(compiled(gpu, "forward", 64).asm)
    assert loop is not None
    # No wait and no barrier between the loads and the last matrix instruction, twice.
    products = r"BAR G\d (L\d* W\d* )+"
    assert re.search(products + r"(WAIT\S* |S\d* )+" + products, order(loop) + " "), order(loop)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_no_spills_up_to_256(gpu, role):
    check_no_spills(compiled(gpu, role, 256))


def test_widest_fits():
    """D = 512: the forward has no spills either; of the backward only that it compiles is promised."""
    check_no_spills(compiled("gfx1201", "forward", 512))


@pytest.mark.parametrize("role", ROLES)
def test_hopper_fallback(role):
    code = compiled("sm_90a", role, 64, "bf16")
    assert code.vgpr_spills == 0
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in code.asm
    assert "ex2.approx" in code.asm

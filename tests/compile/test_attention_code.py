"""Machine code of the attention kernels: matrix instructions, exponentials, loads ahead of them, no spills, LDS."""

from __future__ import annotations

import re

import pytest
from sampled import rarely

from laneloom.codegen import CodeObject
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.gpu import get_gpu
from laneloom.isa.analysis import Loop, hot_loop, loads_are_wide, order
from laneloom.isa.listing import Instruction, Kind
from laneloom.ops.attention.config import plan
from laneloom.ops.attention.config_decode import DecodeProblem
from laneloom.ops.attention.execute import code_object
from laneloom.ops.attention.kernels import decode
from laneloom.ops.attention.plan_decode import plan_decode
from laneloom.ops.attention.problem import AttentionProblem

ROLES = ("forward", "query", "key")


def compiled(gpu: str, role: str, d: int, dtype: str = "fp16", last: int | None = 0) -> CodeObject:
    problem = AttentionProblem(2, 4, 2, 512, 512, d, d, dtype, d**-0.5, None, last)
    code = code_object(problem, get_gpu(gpu), role)
    assert code.lds_bytes <= plan(problem, get_gpu(gpu), role).lds_bytes(problem) <= get_gpu(gpu).lds_bytes
    return code


def check_no_spills(code: CodeObject) -> None:
    assert (code.vgpr_spills, code.sgpr_spills, code.scratch_bytes) == (0, 0, 0)


def loop_of(code: CodeObject) -> Loop:
    loop = hot_loop(code.asm)
    assert loop is not None
    return loop


def narrow_loads(loop: Loop) -> list[Instruction]:
    return [i for i in loop.instructions if i.kind is Kind.GLOBAL_LOAD and i.width_bytes < 16]


@pytest.mark.covering
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("gpu", "dtype"), [*rarely(("gfx1100", "fp16")), ("gfx1151", "bf16"), ("gfx1201", "fp16")])
def test_hot_loop(gpu, dtype, role):
    code = compiled(gpu, role, 128, dtype)
    check_no_spills(code)
    loop = loop_of(code)
    matrix = {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX}
    assert matrix == {f"v_wmma_f32_16x16x16_{'bf16' if dtype == 'bf16' else 'f16'}"}
    rows, columns, d, out = 16, 32, 128, {"forward": 128, "query": 64, "key": 2 * 64}[role]
    products = d * (1 if role == "forward" else 2) + out
    assert loop.count(Kind.MATRIX) == rows * columns * products // 16**3
    exponentials = sum(i.mnemonic.startswith("v_exp_f32") for i in loop.instructions)
    # a weight per pair and lane, and the forward's fading of 16 rows, two lanes to a row
    assert exponentials == rows * columns // 32 + (role == "forward")
    assert len(narrow_loads(loop)) == (2 if role == "key" else 0), "lse and delta of the columns alone"
    assert role == "key" or loads_are_wide(loop)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("gpu", "dtype", "depth", "role"),
    [
        ("gfx908", "bf16", 8, "query"), ("gfx90a", "fp16", 16, "key"),
        *(("gfx942", "bf16", 16, role) for role in ROLES), ("gfx950", "fp16", 32, "query"),
        ("gfx950", "fp16", 32, "key"), *rarely(("gfx950", "fp16", 32, "forward")),
        *rarely(("gfx908", "bf16", 8, "forward"), ("gfx908", "bf16", 8, "key")),
        *rarely(("gfx90a", "fp16", 16, "forward"), ("gfx90a", "fp16", 16, "query")),
    ],
)  # fmt: skip
def test_hot_loop_on_cdna(gpu, dtype, depth, role):
    """MFMA only, all of D in one program, and weights that stay in their lanes on the way to the operand."""
    code = compiled(gpu, role, 128, dtype)
    check_no_spills(code)
    loop = loop_of(code)
    matrix = {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX}
    name = ("" if gpu in ("gfx908", "gfx90a") else "_") + dtype.replace("fp", "f")
    assert matrix == {f"v_mfma_f32_16x16x{depth}{name}"}
    rows, columns, d = 16, 32, 128
    tiles = {"forward": 2, "query": 3, "key": 4}[role]
    assert loop.count(Kind.MATRIX) == tiles * rows * columns * d // (16 * 16 * depth)
    exponentials = sum(i.mnemonic.startswith("v_exp_f32") for i in loop.instructions)
    # a weight per pair and lane, and the forward's fading of 16 rows, four lanes to a row
    assert exponentials == rows * columns // 64 + (role == "forward")
    assert len(narrow_loads(loop)) == (2 if role == "key" else 0), "lse and delta of the columns alone"
    stores = [i for i in loop.instructions if i.kind is Kind.LDS_STORE]
    stored = sum(i.width_bytes * (1 + i.mnemonic.startswith("ds_write2")) for i in stores)
    assert stored == tiles * columns * d * 2 // 256 + (2 * 4 if role == "key" else 0), "the tiles, and no weights"


@pytest.mark.skipif(parse_version(triton_version()) < (3, 9), reason="Triton compiles for it from 3.9 on")
@pytest.mark.parametrize("role", ROLES)
def test_hot_loop_on_cdna_5(role):
    """WMMA of the third version only, all of D in one program, and weights that are where the operand wants them."""
    code = compiled("gfx1250", role, 128, "bf16")
    check_no_spills(code)
    loop = loop_of(code)
    assert {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX} == {"v_wmma_f32_16x16x32_bf16"}
    rows, columns, d = 16, 32, 128
    tiles = {"forward": 2, "query": 3, "key": 4}[role]
    assert loop.count(Kind.MATRIX) == tiles * rows * columns * d // (16 * 16 * 32)
    exponentials = sum(i.mnemonic.startswith("v_exp_f32") for i in loop.instructions)
    assert exponentials == rows * columns // 32 + (role == "forward")
    stores = [i for i in loop.instructions if i.kind is Kind.LDS_STORE]
    stored = sum(i.width_bytes * (1 + ("2addr" in i.mnemonic)) for i in stores)
    assert stored == tiles * columns * d * 2 // 128 + (2 * 4 if role == "key" else 0), "the tiles, and no weights"
    moved = [i.mnemonic for i in loop.instructions if "perm" in i.mnemonic or "swap" in i.mnemonic]
    assert moved == ["v_permlanex16_b32"] * (2 if role == "forward" else 0), "a row's maximum and its sum alone"


@pytest.mark.skipif(parse_version(triton_version()) < (3, 9), reason="Triton compiles for it from 3.9 on")
@pytest.mark.parametrize(
    ("role", "d"),
    [
        ("query", 16), ("key", 512),
        *rarely(("forward", 16), ("query", 512), ("key", 16), ("forward", 512)),
    ],
)  # fmt: skip
def test_no_vector_registers_spill_on_cdna_5(role, d):
    code = compiled("gfx1250", role, d)
    assert (code.vgpr_spills, code.scratch_bytes) == (0, 0)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("gpu", "d", "role"),
    [
        ("gfx942", 256, "query"), ("gfx908", 512, "key"),
        *rarely(("gfx950", 512, "forward"), ("gfx942", 256, "key"), ("gfx90a", 256, "key"), ("gfx950", 512, "key")),
        *rarely(("gfx942", 256, "forward"), ("gfx942", 512, "forward")),
    ],
)  # fmt: skip
def test_no_spills_on_cdna(gpu, d, role):
    check_no_spills(compiled(gpu, role, d))


@pytest.mark.parametrize(("gpu", "page"), [("gfx90a", 16), ("gfx942", 16), ("gfx950", 0)])
def test_decode_on_cdna(gpu, page):
    problem = DecodeProblem(16, 32, 8, 1, 8192, 128, 128, "bf16", 128**-0.5, None, page)
    config = plan_decode(problem, get_gpu(gpu))
    code = decode.code_object(problem, config, get_gpu(gpu))
    check_no_spills(code)
    assert code.lds_bytes <= config.lds_bytes(problem) <= get_gpu(gpu).lds_bytes
    loop = loop_of(code)
    assert len(narrow_loads(loop)) <= (2 if page else 0), "the pages of keys and values alone"
    depth = 16 if page else 32
    assert loop.count(Kind.MATRIX) == 2 * 16 * config.columns * 128 // (16 * 16 * depth)


@pytest.mark.covering
@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("gpu", [*rarely("gfx1100"), "gfx1151", "gfx1201"])
def test_decode_on_rdna(gpu, page):
    problem = DecodeProblem(16, 32, 8, 1, 8192, 128, 128, "bf16", 128**-0.5, None, page)
    code = decode.code_object(problem, plan_decode(problem, get_gpu(gpu)), get_gpu(gpu))
    assert (code.vgpr_spills, code.scratch_bytes) == (0, 0)


@pytest.mark.parametrize("role", ["query", *rarely("key")])
@pytest.mark.parametrize(("gpu", "dtype", "products"), [("gfx942", "bf16", 16), *rarely(("gfx950", "fp16", 8))])
def test_first_product_of_the_backward_on_cdna(gpu, dtype, products, role):
    """All of it stands above the wait for the second tile."""
    above = order(loop_of(compiled(gpu, role, 128, dtype))).split(" WAIT S")[0]
    assert sum(map(int, re.findall(r"\bW(\d+)", above.replace("W ", "W1 ") + " "))) == products, above


@pytest.mark.parametrize("gpu", ["gfx1151", *rarely("gfx1201")])
def test_loads_run_under_the_matrix_instructions(gpu):
    """The values come while the scores are computed, the next keys while the values are summed."""
    loop = loop_of(compiled(gpu, "forward", 64))
    # No wait and no barrier between the loads and the last matrix instruction, twice.
    products = r"BAR G\d (L\d* W\d* )+"
    assert re.search(products + r"(WAIT\S* |S\d* )+" + products, order(loop) + " "), order(loop)


@pytest.mark.parametrize(
    ("gpu", "role"),
    [
        ("gfx1151", "query"), ("gfx1201", "key"),  # the forward: test_widest_fits
        *rarely(("gfx1151", "forward"), ("gfx1151", "key"), ("gfx1201", "forward"), ("gfx1201", "query")),
    ],
)  # fmt: skip
def test_no_spills_up_to_256(gpu, role):
    check_no_spills(compiled(gpu, role, 256))


def test_widest_fits():
    """D = 512: the forward has no spills either; of the backward only that it compiles is promised."""
    check_no_spills(compiled("gfx1201", "forward", 512))


@pytest.mark.parametrize("role", ROLES)
def test_hopper_fallback(role):
    """What Hopper's own schedules cannot, here a deterministic backward and a negative scale."""
    problem = AttentionProblem(2, 4, 2, 512, 512, 64, 64, "bf16", -0.1, None, 0)
    code = code_object(problem, get_gpu("sm_90a"), role)
    assert code.vgpr_spills == 0
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in code.asm
    assert "ex2.approx" in code.asm


@pytest.mark.parametrize("role", ["key", *rarely("forward", "query")])
@pytest.mark.parametrize("gpu", ["gfx1201", *rarely("gfx1151", "gfx942")])
def test_capped_scores(gpu, role):
    """tanh by one more exponential a pair, no division, and no vector registers that spill."""
    problem = AttentionProblem(2, 4, 2, 512, 512, 128, 128, "bf16", 0.1, None, 0, softcap=50.0)
    code = code_object(problem, get_gpu(gpu), role)
    assert (code.vgpr_spills, code.scratch_bytes) == (0, 0)
    names = [i.mnemonic for i in loop_of(code).instructions]
    assert not any("div" in name for name in names)
    exponentials = sum(name.startswith("v_exp_f32") for name in names)
    assert exponentials == 2 * 16 * 32 // get_gpu(gpu).wave + (role == "forward")


@pytest.mark.parametrize("role", ["forward", *rarely("query", "key")])
def test_capped_scores_on_hopper(role):
    """By the general schedule."""
    counts = []
    for softcap in (0.0, 50.0):
        problem = AttentionProblem(2, 4, 2, 512, 512, 64, 64, "bf16", -0.1, None, 0, softcap=softcap)
        code = code_object(problem, get_gpu("sm_90a"), role)
        assert code.vgpr_spills == 0
        assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in code.asm
        counts.append(code.asm.count("ex2.approx"))
    pairs = 2 * 64 * 32 // 128  # a lane's, in the loop with a mask and in the one without
    assert counts[1] - counts[0] == pairs

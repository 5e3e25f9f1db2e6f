"""Machine code of the FP32 ladder: pairs, priorities, loads, waits, no scratch, under whichever Triton is there."""

from __future__ import annotations

import re

import pytest
from sampled import rarely

from laneloom.gpu import get_gpu
from laneloom.isa.analysis import has_spills, hot_loop, order
from laneloom.isa.check import check
from laneloom.isa.listing import Kind
from laneloom.isa.occupancy import occupancy
from laneloom.ops.matmul import execute
from laneloom.ops.matmul.config_sgemm import LADDER
from laneloom.ops.matmul.problem import MatmulProblem

WHOLE = MatmulProblem.contiguous(1024, 1024, 1024, dtype="fp32")
RAGGED = MatmulProblem.contiguous(1001, 1003, 999, dtype="fp32")
GPUS = ("gfx1100", *rarely("gfx1151"), "gfx1201")


def compiled(step: str, problem=WHOLE, gpu: str = "gfx1100"):
    return execute.code_object(problem, get_gpu(gpu), LADDER[step])


def loop_of(step: str, problem=WHOLE, gpu: str = "gfx1100"):
    loop = hot_loop(compiled(step, problem, gpu).asm)
    assert loop is not None
    return loop


@pytest.mark.covering
@pytest.mark.parametrize(
    ("problem", "gpu"),
    [(WHOLE, "gfx1100"), *((RAGGED, gpu) for gpu in GPUS)],
    ids=["whole", *(f"ragged-{gpu}" for gpu in GPUS)],
)
@pytest.mark.parametrize("step", [name for name in LADDER if name.startswith("sgemm_k")])
def test_nothing_spills(step, problem, gpu):
    code = compiled(step, problem, gpu)
    assert not has_spills(code.asm)
    assert code.scratch_bytes == 0


def test_k6_multiplies_64_pairs_in_a_k_step_from_the_banks_that_it_says():
    loop = loop_of("sgemm_k6")
    pairs = [i.text for i in loop.instructions if i.kind is Kind.DUAL]
    assert len(pairs) == 64
    assert loop.count(Kind.VALU) == 2  # the two LDS addresses
    for text in pairs:
        found = re.fullmatch(r"v_dual_fmac_f32 v(\d+), v(\d+), v(\d+) :: v_dual_fmac_f32 v(\d+), v(\d+), v(\d+)", text)
        assert found, text
        x, ax, bx, y, ay, by = (int(number) for number in found.groups())
        assert {ax % 4, ay % 4} == {2, 3}
        assert {bx % 4, by % 4} == {0, 1}
        assert x % 2 != y % 2
    products = {tuple(re.findall(r"v\d+", half)[1:]) for text in pairs for half in text.split("::")}
    assert len(products) == 16 * 8  # every element of A with every one of B
    assert len({re.findall(r"v\d+", half)[0] for text in pairs for half in text.split("::")}) == 16 * 8
    assert order(loop) == "L12 F128"


@pytest.mark.parametrize("step", ["sgemm_k7", "sgemm_k8"])
def test_unrolled_k_steps_raise_their_priority(step):
    loop = loop_of(step)
    assert sum(i.kind is Kind.DUAL for i in loop.instructions) == 8 * 64
    wave = [(i.mnemonic, i.operands) for i in loop.instructions if i.kind is Kind.DUAL or i.mnemonic == "s_setprio"]
    assert wave.count(("s_setprio", "1")) == wave.count(("s_setprio", "0")) == 8
    raised = False
    for mnemonic, operands in wave:
        if mnemonic == "s_setprio":
            assert (operands == "1") is not raised
            raised = not raised
        else:
            assert raised


def test_k8_spreads_loads_from_scalar_bases_and_computes_no_address_in_vectors():
    loop = loop_of("sgemm_k8")
    assert loop.count(Kind.VALU) == 0
    loads = [i for i in loop.instructions if i.kind is Kind.GLOBAL_LOAD]
    assert len(loads) == 16
    assert len({i.operands.split(",")[-1].strip() for i in loads}) == 16  # a base each
    assert all(re.search(r"s\[\d+:\d+\]$", i.operands) for i in loads)
    assert order(loop).startswith("G4 L12 F128 G4 L12 F128 G4 L12 F128 G4 L12 F128 L12")
    before = loop_of("sgemm_k7")
    assert before.count(Kind.VALU) == 32
    assert order(before).startswith("G16 L12")


@pytest.mark.parametrize("step", ["sgemm_k3", "sgemm_k4", "sgemm_k5"])
def test_dot_fma_becomes_pairs(step):
    loop = loop_of(step)
    fmas = 128 * 128 * 8 // (32 * (4 if step == "sgemm_k5" else 8))
    assert sum(i.fmas for i in loop.instructions) == fmas
    assert 2 * loop.count(Kind.DUAL) >= 0.95 * fmas


@pytest.mark.parametrize("step", ["sgemm_k4", "sgemm_k5"])
def test_the_prefetch_is_in_flight_during_the_multiplications(step):
    events = order(loop_of(step))
    assert events.index("G") < events.index("F") < events.index("WAIT")
    assert loop_of("sgemm_k3") is not None
    assert order(loop_of("sgemm_k3")).index("F") < order(loop_of("sgemm_k3")).index("G")


@pytest.mark.covering
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("step", ["sgemm_k6", "sgemm_k7", "sgemm_k8"])
def test_eight_waves_fit_a_simd_and_all_pairs_are_legal(step, gpu):
    for problem in (WHOLE, RAGGED):
        code = compiled(step, problem, gpu)
        assert not code.workgroup_processor_mode
        assert code.vgprs <= 192
        assert occupancy_of(code) == 8
        (report,) = check(code.asm, gpu, num_warps=code.num_warps)
        unwanted = {"illegal-pair", "pair-bank-conflict", "pair-reads-old-value", "lds-conflict", "spill"}
        assert not unwanted & set(report.counts), report.counts


def occupancy_of(code) -> float:
    fits = code.gpu.waves_per_simd(code.vgprs)
    return occupancy(
        code.gpu, by_registers=fits, lds_bytes=code.lds_bytes, num_warps=code.num_warps,
        workgroup_processor_mode=code.workgroup_processor_mode,
    ).waves_per_simd  # fmt: skip


@pytest.mark.parametrize("number", [1, 3, 7])
def test_steps_on_hopper_compile_without_spills(number):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cuda")
    config = LADDER[f"sgemm_h{number}"]
    code = execute.code_object(WHOLE, get_gpu("sm_90a"), config)
    assert code.spills == 0
    assert code.vgprs <= 65536 // (32 * config.num_warps)
    fmas = len(re.findall(r"fma\.rn\.f32", code.asm))
    assert fmas >= {1: 1, 3: 8 * 64, 7: 16 * 128}[number]
    assert ("cp.async" in code.asm) == (number == 7)

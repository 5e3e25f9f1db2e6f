"""Machine code of the MFMA schedule: the intended instruction and no spills."""

from __future__ import annotations

import re

import pytest
from sampled import in_turn, sampled

from laneloom.codegen.versions import parse_version
from laneloom.gpu import get_gpu
from laneloom.isa.analysis import has_spills, hot_loop, matrix_overlap
from laneloom.isa.check_code import read_code
from laneloom.isa.check_memory import lds_clocks
from laneloom.isa.listing import Kind
from laneloom.ops.matmul.api import explain
from laneloom.ops.matmul.execute import code_object
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem

INSTRUCTIONS = {
    ("gfx942", "fp16"): "v_mfma_f32_16x16x16_f16", ("gfx942", "bf16"): "v_mfma_f32_16x16x16_bf16",
    ("gfx942", "int8"): "v_mfma_i32_16x16x32_i8", ("gfx942", "fp32"): "v_mfma_f32_16x16x4_f32",
    ("gfx942", "fp64"): "v_mfma_f64_16x16x4_f64",
    ("gfx90a", "fp16"): "v_mfma_f32_16x16x16f16", ("gfx90a", "bf16"): "v_mfma_f32_16x16x16bf16_1k",
    ("gfx90a", "int8"): "v_mfma_i32_16x16x16i8", ("gfx90a", "fp32"): "v_mfma_f32_16x16x4f32",
    ("gfx90a", "fp64"): "v_mfma_f64_16x16x4f64",
    ("gfx908", "fp16"): "v_mfma_f32_16x16x16f16", ("gfx908", "bf16"): "v_mfma_f32_16x16x8bf16",
    ("gfx908", "int8"): "v_mfma_i32_16x16x16i8", ("gfx908", "fp8"): "v_mfma_f32_16x16x8bf16",
    ("gfx90a", "fp8"): "v_mfma_f32_16x16x16bf16_1k",
    ("gfx950", "bf16"): "v_mfma_f32_16x16x32_bf16", ("gfx950", "int8"): "v_mfma_i32_16x16x64_i8",
    ("gfx950", "fp8"): "v_mfma_scale_f32_16x16x128_f8f6f4",
}  # fmt: skip
CASES = [(*case, layout) for n, case in sampled(enumerate(INSTRUCTIONS)) for layout in in_turn(n // 2, "nn", "nt")]
#: LLVM puts what is done to loaded bytes in front of most matrix instructions.
CONVERTED_EARLY = {("gfx90a", "fp8", "nn")}


@pytest.mark.each_dtype
@pytest.mark.parametrize(("gpu", "dtype", "layout"), CASES)
def test_the_intended_instruction(gpu, dtype, layout):
    problem = MatmulProblem.contiguous(4096, 4096, 4096, dtype=dtype, layout=layout)
    code = code_object(problem, get_gpu(gpu))
    loop = hot_loop(code.asm)
    assert loop is not None
    assert code.vgpr_spills == code.scratch_bytes == 0
    if (gpu, dtype) == ("gfx90a", "fp8") and parse_version(code.triton_version) < (3, 9):
        assert code.sgpr_spills <= 6, "3.6's LLVM keeps some numbers in lanes of a VGPR, in front of the loop"
        assert not [i for i in loop.instructions if i.mnemonic.startswith(("v_writelane", "v_readlane"))]
    else:
        assert not has_spills(code.asm)
    assert {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX} == {INSTRUCTIONS[gpu, dtype]}
    assert loop.count(Kind.MATRIX) * 2 == len(re.findall(r"^\s+v_mfma", code.asm, re.MULTILINE))  # and the last K-tile
    assert {i.width_bytes for i in loop.instructions if i.kind is Kind.GLOBAL_LOAD} == {16}
    # Loads begin before the matrix instructions and are waited for after the first of them; 3.6's LLVM waits earlier.
    early = parse_version(code.triton_version) < (3, 9) or (gpu, dtype, layout) in CONVERTED_EARLY
    assert matrix_overlap(loop) > (0 if early else 0.3)


@pytest.mark.covering
@pytest.mark.parametrize(("gpu", "dtype", "layout"), [case for case in CASES if case[0] != "gfx90a"])
def test_every_lds_access_of_the_hot_loop_is_without_conflicts(gpu, dtype, layout):
    problem = MatmulProblem.contiguous(4096, 4096, 4096, dtype=dtype, layout=layout)
    (code,) = read_code(code_object(problem, get_gpu(gpu)).asm)
    loop = hot_loop(code.text)
    assert loop is not None
    lines = {i.line for i in loop.instructions}
    derived = [clocks for step, clocks in lds_clocks(code) if step.ins.line in lines]
    assert derived
    assert all(clocks and not extra for clocks, extra in derived), derived


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942"])
def test_ragged_sizes_and_terms(gpu):
    terms = Epilogue(scaled=True, bias=("n", 1), dtype_bias="fp32", activation="gelu", scale_a="row", scale_b="column")
    for problem in in_turn(
        gpu == "gfx942", MatmulProblem.contiguous(511, 509, 503, dtype="bf16", batch=3),
        MatmulProblem.contiguous(4096, 4096, 4096, dtype="int8", dtype_out="bf16", epilogue=terms, layout="nt"),
    ):  # fmt: skip
        assert not has_spills(code_object(problem, get_gpu(gpu)).asm)


@pytest.mark.parametrize(
    ("n", "dtype", "gpu"),
    [(n, dtype, gpu) for n, dtype in enumerate(("fp16", "bf16", "int8", "fp32", "fp64", "fp8"))
     for gpu in in_turn(n, "gfx942", "gfx950")],
)  # fmt: skip
def test_no_wait_state_is_missing(n, dtype, gpu):
    """conftest.py's check, of every dtype, layout, size, epilogue: LLVM alone left some out, of FP64, FP32 and fp8."""
    if (gpu, dtype) == ("gfx942", "fp8"):
        pytest.skip("gfx942's 8-bit floats are others")
    terms = Epilogue(scaled=True, bias=("n", 1), dtype_bias="fp32", activation="gelu")
    for layout in in_turn(n // 2 % 2, "tn", "tt", "nn", "nt"):  # what test_the_intended_instruction leaves out
        code = code_object(MatmulProblem.contiguous(4096, 4096, 4096, dtype=dtype, layout=layout), get_gpu(gpu))
        assert "; sums are written" in code.asm
    for problem in in_turn(
        n // 2, MatmulProblem.contiguous(17, 33, 65, dtype=dtype),
        MatmulProblem.contiguous(511, 509, 503, dtype=dtype, batch=3, layout="tn"),
    ):  # fmt: skip
        code_object(problem, get_gpu(gpu))
    if dtype in ("fp16", "bf16", "fp32"):
        code_object(MatmulProblem.contiguous(511, 512, 503, dtype=dtype, epilogue=terms), get_gpu(gpu))


def test_it_says_that_nobody_ran_it():
    text = str(explain(MatmulProblem.contiguous(64, 64, 64), gpu="gfx942"))
    assert "mfma:" in text
    assert "emulated and inspected, never run on an Instinct MI300X" in text

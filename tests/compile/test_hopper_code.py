"""Machine code of the Hopper schedules, compiled without a GPU: wgmma, TMA, no spills, shared memory that fits."""

from __future__ import annotations

import re

import pytest
from sampled import rarely

from laneloom.codegen import compile_kernel
from laneloom.device.split_k import reduce_splits
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import plan_with_reasons
from laneloom.ops.matmul.config_hopper import HopperConfig, PlainConfig, SkinnyConfig
from laneloom.ops.matmul.execute import code_object
from laneloom.ops.matmul.problem import MatmulProblem

GPU = get_gpu("sm_90a")
BIG = HopperConfig(block_m=128, block_n=256, block_k=64, stages=4)


def compiled(problem, config):
    code = code_object(problem, GPU, config)
    assert code.spills == 0
    assert code.lds_bytes <= GPU.lds_bytes
    assert "griddepcontrol.wait" in code.asm
    assert "griddepcontrol.launch_dependents" in code.asm
    return code


@pytest.mark.covering
@pytest.mark.parametrize("layout", ["nn", "tt", *rarely("nt", "tn")])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_both_majors_of_both_operands_go_to_wgmma(layout, dtype):
    kind = {"bf16": "bf16", "fp16": "f16"}[dtype]
    code = compiled(MatmulProblem.contiguous(512, 512, 512, dtype=dtype, layout=layout), BIG)
    instructions = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+)", code.asm)
    assert set(instructions) == {f"m64n256k16.f32.{kind}.{kind}"}
    assert len(instructions) == 2 * 64 // 16, "four for each of two consumers"
    assert "cp.async.bulk.tensor.2d.shared" in code.asm, "TMA loads"
    assert "cp.async.bulk.tensor.2d.global" in code.asm, "TMA stores"
    assert "setmaxnreg" in code.asm


@pytest.mark.parametrize(
    ("dtype", "out", "config", "instruction"),
    [
        ("fp8", "bf16", HopperConfig(block_m=128, block_n=256, block_k=128, stages=4), "m64n256k32.f32.e4m3.e4m3"),
        ("int8", "int32", HopperConfig(block_m=256, block_n=128, block_k=128, stages=4, pieces=4),
         "m64n128k32.s32.s8.s8"),
    ],
)  # fmt: skip
def test_8_bit_types_go_to_wgmma(dtype, out, config, instruction):
    problem = MatmulProblem.contiguous(512, 512, 512, dtype=dtype, dtype_out=out, layout="nt")
    assert f"wgmma.mma_async.sync.aligned.{instruction}" in compiled(problem, config).asm


def test_a_pitch_that_tma_cannot_take_is_stored_through_pointers():
    config = HopperConfig(
        block_m=256, block_n=128, block_k=64, stages=4, pieces=4, tma_store=False, repack_a=True, repack_b=True)
    code = compiled(MatmulProblem.contiguous(1023, 1025, 1027, dtype="bf16"), config)
    assert "cp.async.bulk.tensor.2d.global" not in code.asm
    assert "st.global" in code.asm


def test_parts_of_a_split_k_are_stored_by_tma_in_fp32():
    config = HopperConfig(block_m=128, block_n=128, block_k=64, stages=6, split_k=4)
    code = compiled(MatmulProblem.contiguous(128, 512, 4096, dtype="bf16"), config)
    assert "cp.async.bulk.tensor.2d.global" in code.asm
    assert "cvt.rn.bf16" not in code.asm, "nothing is rounded before the sum"


@pytest.mark.parametrize("columns", ["odd", "whole lines"])
def test_parts_come_in_pieces_of_16_bytes_whatever_the_columns(columns):
    """Their rows stand one behind the other, so N and their pitch need divide nothing."""
    divisible = {"parts_ptr", "c_ptr", "elements", "stride_part"}
    if columns != "odd":
        divisible |= {"N", "pitch", "stride_cm"}
    sizes = ("elements", "N", "pitch", "stride_part", "stride_pm", "stride_cm")
    code = compile_kernel(
        reduce_splits, gpu=GPU, signature={"parts_ptr": "*fp32", "c_ptr": "*bf16"} | dict.fromkeys(sizes, "i32"),
        constants={"stride_pn": 1, "stride_cn": 1, "SPLITS": 3, "CHUNK": 1, "BLOCK": 512, "IN_LINE": True,
                   "DENSE": False},
        attrs=divisible, options={"launch_pdl": True},
    )  # fmt: skip
    assert set(re.findall(r"ld\.global\S*", code.asm)) == {"ld.global.v4.b32"}
    assert set(re.findall(r"st\.global\S*", code.asm)) == {"st.global.b16" if columns == "odd" else "st.global.v2.b32"}


@pytest.mark.parametrize("dense", [False, True])
def test_many_parts_are_asked_for_by_neighbours(dense):
    """A warp's lanes have 16 neighbours of two parts, whose sums one exchange of lanes adds: with the 32 parts of an
    element in its lanes it would take five for each element, and no two lanes would read the same line."""
    sizes = ("elements", "N", "pitch", "stride_part", "stride_pm", "stride_cm")
    code = compile_kernel(
        reduce_splits, gpu=GPU, signature={"parts_ptr": "*fp64", "c_ptr": "*fp64"} | dict.fromkeys(sizes, "i32"),
        constants={"stride_pn": 1, "stride_cn": 1, "SPLITS": 32, "CHUNK": 32, "BLOCK": 16, "IN_LINE": True,
                   "DENSE": dense},
        attrs={"parts_ptr", "c_ptr"}, options={"launch_pdl": True}, num_warps=2,
    )  # fmt: skip
    assert code.asm.count("ld.global") == 8
    assert code.asm.count("shfl.sync") <= 8


@pytest.mark.parametrize("in_line", [False, True])
@pytest.mark.parametrize("chunk", [1, 32])
def test_parts_of_a_single_element_are_added_up(chunk, in_line):
    """All sizes and strides are 1 then, which Triton makes constants."""
    strides = ("stride_part", "stride_pm", "stride_pn", "stride_cm", "stride_cn")
    ones = dict.fromkeys(("elements", "N", "pitch", *strides), 1)
    code = compile_kernel(
        reduce_splits, gpu=GPU, signature={"parts_ptr": "*i32", "c_ptr": "*i32"},
        constants=ones | {"SPLITS": 3 if chunk == 1 else 20, "CHUNK": chunk, "BLOCK": 256, "IN_LINE": in_line,
                          "DENSE": False},
        attrs={"parts_ptr", "c_ptr"}, options={"launch_pdl": True},
    )  # fmt: skip
    assert "ld.global" in code.asm


def test_the_streaming_schedule_keeps_copies_in_flight():
    code = compiled(
        MatmulProblem.contiguous(16, 4096, 4096, dtype="bf16", layout="nt"),
        SkinnyConfig(block_n=64, block_k=128, stages=4),
    )
    assert code.asm.count("cp.async.cg.shared.global") >= 3
    assert "mma.sync" in code.asm


def test_one_row_is_multiplied_by_fma():
    config = SkinnyConfig(block_n=4, block_k=2048, stages=2, use_dot=False)
    code = compiled(MatmulProblem.contiguous(1, 4096, 4096, dtype="bf16", layout="nt"), config)
    assert "mma" not in code.asm
    assert "fma.rn" in code.asm


def test_any_strides_compile():
    config = PlainConfig(block_m=32, block_n=32, block_k=128, num_warps=4, stages=2)
    compiled(MatmulProblem.contiguous(127, 129, 131, dtype="fp16", layout="tn"), config)


@pytest.mark.parametrize(
    ("sizes", "layout"),
    [
        ((256, 256, 256), "nn"), ((4095, 4097, 4099), "nt"), ((304, 304, 30000), "nn"), ((16, 6144, 4096), "nn"),
        ((65536, 64, 64), "nn"),
        *rarely(((512, 512, 64), "nt"), ((2049, 2047, 2050), "nn"), ((128, 128, 16384), "nt")),
    ],
)  # fmt: skip
def test_what_the_plan_chooses_compiles(sizes, layout):
    problem = MatmulProblem.contiguous(*sizes, dtype="bf16", layout=layout)
    config = plan_with_reasons(problem, GPU).config
    if config.schedule != "hopper":  # CUDA C++
        pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cuda")
    code = compiled(problem, config)
    assert "wgmma" in code.asm

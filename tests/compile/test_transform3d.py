"""The transform's kernels compile for every GPU, to the instructions that they are written for, without spills."""

from __future__ import annotations

import pytest

from laneloom.codegen import compile_kernel
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.gpu import get_gpu
from laneloom.ops.transform3d import RowsConfig, Transform3dProblem, plan
from laneloom.ops.transform3d.config_levels import LevelsConfig
from laneloom.ops.transform3d.kernels import rows

HOPPER = get_gpu("sm_90a")


def compile_rows(gpu, k, dtype="fp64", dot=False):
    config = RowsConfig(dot=dot)
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "out_ptr"), f"*{dtype}")
    strides = [f"stride_{name}" for name in ("an", "ak", "ai", "bk", "bj", "on", "oi", "oj")]
    sizes = dict.fromkeys(("n_rows", "rows_each", "n_columns", "depth", *strides), "i64")
    constants = rows.tile(config, k) | {"ACCUMULATE": False}
    return compile_kernel(rows.rows_kernel, gpu=gpu, signature=pointers | sizes, constants=constants, attrs=())


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1151", "gfx1201", "gfx942"])
@pytest.mark.parametrize("k", [6, 16])
def test_rows_kernel_uses_fp64_fma(gpu, k):
    code = compile_rows(gpu, k)
    assert "v_fma_f64" in code.asm or "v_fmac_f64" in code.asm
    assert code.spills == 0


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942"])
def test_rows_kernel_in_float32(gpu):
    assert compile_rows(gpu, 10, "fp32").spills == 0


def test_rows_kernel_uses_fp64_mfma_where_triton_can():
    problem = Transform3dProblem(16, 64)
    gpu = get_gpu("gfx942")
    if parse_version(triton_version()) < (3, 9):
        assert "3.9 can" in RowsConfig(dot=True).why_invalid(problem, gpu)
        assert plan(problem, gpu) == RowsConfig()
    else:
        assert plan(problem, gpu) == RowsConfig(dot=True)
        assert "v_mfma_f64_16x16x4_f64" in compile_rows("gfx942", 16, dot=True).asm


def needs_nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cuda")
    from laneloom.codegen.nvrtc import nvrtc_version
    from laneloom.errors import UnsupportedError

    try:
        nvrtc_version()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("k", [6, 8, 10, 12, 16, 20, 24, 32])
def test_fused_kernel_uses_matrix_instructions_and_does_not_spill(k):
    needs_nvrtc()
    from laneloom.ops.transform3d.kernels.fused import compile_fused

    problem = Transform3dProblem(k, 100_000)
    code = compile_fused(problem, plan(problem, HOPPER), HOPPER)
    assert code.kernel == "transform3d_fused"
    assert code.spills == 0
    assert code.scratch_bytes == 0
    full_tiles = "mma.sync.aligned.m16n8k4.row.col.f64" in code.asm
    assert full_tiles == (k > 8)
    assert ("mma.sync.aligned.m8n8k4.row.col.f64" in code.asm) == (-(-k // 8) % 2 == 1)
    assert "cp.async.bulk" in code.asm
    assert "st.global.v2.f64" in code.asm
    # A step of four for every four values of K: nothing is padded to 16 or 32.
    steps = -(-k // 4)
    products = code.asm.count("mma.sync")
    tiles = -(-k // 8)
    per_pass = steps * -(-tiles // 2)
    unroll = plan(problem, HOPPER).unroll
    assert products <= per_pass * (2 * tiles + 2 * unroll)


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
@pytest.mark.parametrize("k", [1, 7, 13, 22, 30, 33])
def test_fused_kernel_compiles_for_other_k_with_all_options(k, dtype):
    needs_nvrtc()
    from laneloom.ops.transform3d.kernels.fused import compile_fused

    problem = Transform3dProblem(k, 1000, dtype, same_matrix=False, accumulate=True, alignment=4)
    code = compile_fused(problem, plan(problem, HOPPER), HOPPER)
    assert code.lds_bytes <= HOPPER.lds_bytes
    assert "cp.async.bulk" not in code.asm


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_levels_compile(level):
    needs_nvrtc()
    from laneloom.ops.transform3d.kernels.levels import compile_level

    code = compile_level(12, LevelsConfig(level=level), HOPPER)
    assert ("m16n8k4" in code.asm) == (level == 4)
    assert ("fma.rn.f64" in code.asm) == (level < 4)


def test_nvrtc_reports_errors_and_refuses_amd():
    needs_nvrtc()
    from laneloom.codegen.nvrtc import compile_cuda
    from laneloom.errors import CompileError, UnsupportedError

    with pytest.raises(CompileError, match=r"wrong\.cu.*identifier"):
        compile_cuda("extern \"C\" __global__ void f() { missing(); }", HOPPER, constants={}, num_warps=1, lds_bytes=0,
                     name="wrong.cu")  # fmt: skip
    with pytest.raises(UnsupportedError, match="NVIDIA's GPUs only"):
        compile_cuda("", "gfx1151", constants={}, num_warps=1, lds_bytes=0)

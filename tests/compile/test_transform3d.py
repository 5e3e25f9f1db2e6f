"""The transform's kernels compile for every GPU, to the instructions that they are written for, without spills."""

from __future__ import annotations

import re

import pytest
from sampled import rarely, sampled

from laneloom.codegen import compile_kernel
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.gpu import get_gpu
from laneloom.ops.transform3d import ChainedConfig, RowsConfig, Transform3dProblem, plan
from laneloom.ops.transform3d.config import candidates
from laneloom.ops.transform3d.config_levels import AMD_THREADS, AmdLevelsConfig, LevelsConfig
from laneloom.ops.transform3d.kernels import chained, levels_amd, rows

HOPPER = get_gpu("sm_90a")
BULK_COPY = "cp.async.bulk.shared"


def compile_rows(gpu, k, dtype="fp64", dot=False):
    config = RowsConfig(dot=dot)
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "out_ptr"), f"*{dtype}")
    strides = [f"stride_{name}" for name in ("an", "ak", "ai", "bk", "bj", "on", "oi", "oj")]
    sizes = dict.fromkeys(("n_rows", "rows_each", "n_columns", "depth", *strides), "i64")
    constants = rows.tile(config, k) | {"ACCUMULATE": False}
    return compile_kernel(rows.rows_kernel, gpu=gpu, signature=pointers | sizes, constants=constants, attrs=())


@pytest.mark.covering
@pytest.mark.parametrize("gpu", [*rarely("gfx1100"), "gfx1151", "gfx1201", "gfx90a", "gfx942", *rarely("gfx950")])
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
        assert plan(problem, gpu) == AmdLevelsConfig(level=3)
    else:
        assert plan(problem, gpu) == ChainedConfig.for_order(16)
        assert plan(Transform3dProblem(17, 64), gpu) == RowsConfig(dot=True)
        for gpu in ("gfx942", "gfx950"):
            assert "v_mfma_f64_16x16x4_f64" in compile_rows(gpu, 16, dot=True).asm


def compile_level_amd(gpu, k, level):
    config = AmdLevelsConfig(level=level)
    if config.why_invalid(Transform3dProblem(k, 64), gpu):
        return None
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "out_ptr"), "*fp64")
    return compile_kernel(
        levels_amd.level_kernel, gpu=gpu, signature=pointers | dict.fromkeys(("n_rows", "depth"), "i32"),
        constants=levels_amd.layouts(config, k, gpu.wave), num_warps=AMD_THREADS // gpu.wave, attrs=(),
    )  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("k", [6, 20, 32])
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx90a", "gfx942", *rarely("gfx950")])
def test_amd_levels_put_what_they_say_where_they_say(gpu, k):
    gpu = get_gpu(gpu)
    codes = {level: compile_level_amd(gpu, k, level) for level in (1, 2, 3, 5)}
    for level, code in codes.items():
        assert code.vgpr_spills == code.scratch_bytes == 0, level
        assert code.sgpr_spills == 0 or (gpu.name, level) == ("gfx90a", 3), level  # to lanes of a register
        assert "v_fma_f64" in code.asm or "v_fmac_f64" in code.asm
        assert code.lds_bytes == AmdLevelsConfig(level=level).shared_bytes(k)
        assert ("ds_load" in code.asm or "ds_read" in code.asm) == (level != 1)


def compile_chained(gpu, k):
    config = ChainedConfig.for_order(k)
    constants = {"K": k, "P": config.padded(k), "GROUP": config.group, "ACCUMULATE": False}
    pointers = dict.fromkeys(("x_ptr", "matrix_ptr", "out_ptr"), "*fp64")
    sizes = dict.fromkeys(("count", "stride_x", "stride_out", "stride_axis", "stride_k", "stride_n"), "i32")
    return compile_kernel(
        chained.chained_kernel, gpu=gpu, signature=pointers | sizes, constants=constants,
        num_warps=config.num_warps, attrs=(),
    )  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("k", [4, 8, 16])
@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1201", "gfx908"])
def test_chained_kernel_on_rdna_and_cdna_1_uses_fp64_fma_and_does_not_spill(gpu, k):
    code = compile_chained(gpu, k)
    assert code.spills == 0
    assert "v_fma_f64" in code.asm or "v_fmac_f64" in code.asm
    assert "mfma" not in code.asm


@pytest.mark.parametrize(("gpu", "k"), [("gfx942", 10), ("gfx942", 12), ("gfx942", 16), ("gfx950", 16), ("gfx90a", 12)])
def test_chained_kernel_on_cdna_is_mfma_alone(gpu, k):
    if parse_version(triton_version()) < (3, 9):
        assert "3.9 can" in ChainedConfig().why_invalid(Transform3dProblem(k, 64), get_gpu(gpu))
        return
    code = compile_chained(gpu, k)
    assert code.spills == 0
    # Three products of [256, 16] and [16, 16] by 8 waves: 16 x 16 tiles, four steps of the contraction each.
    assert len(re.findall("v_mfma_f64_16x16x4_?f64", code.asm)) == 3 * (256 // 16) * (16 // 4) // 8
    assert "v_fma_f64" not in code.asm


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
    from laneloom.ops.transform3d.hopper import compile_on_hopper

    problem = Transform3dProblem(k, 100_000)
    code = compile_on_hopper(problem, plan(problem, HOPPER), HOPPER)
    assert code.kernel == "transform3d_fused"
    assert code.spills == 0
    assert code.scratch_bytes == 0
    full_tiles = "mma.sync.aligned.m16n8k4.row.col.f64" in code.asm
    assert full_tiles == (k > 8)
    assert ("mma.sync.aligned.m8n8k4.row.col.f64" in code.asm) == (-(-k // 8) % 2 == 1)
    assert BULK_COPY in code.asm
    assert "st.global.v2.f64" in code.asm
    # A step of four for every four values of K: nothing is padded to 16 or 32.
    steps = -(-k // 4)
    products = code.asm.count("mma.sync")
    tiles = -(-k // 8)
    per_pass = steps * -(-tiles // 2)
    unroll = plan(problem, HOPPER).unroll
    assert products <= per_pass * (2 * tiles + 2 * unroll)


@pytest.mark.parametrize("k", [6, 10, 16, 20, 24])
def test_fused_kernel_takes_complex_tensors_as_they_lie(k):
    needs_nvrtc()
    from laneloom.ops.transform3d.hopper import compile_on_hopper

    problem = Transform3dProblem(k, 100_000, "complex128")
    code = compile_on_hopper(problem, plan(problem, HOPPER), HOPPER)
    assert code.spills == 0
    assert BULK_COPY in code.asm
    # Real and imaginary part at once; from another CTA's shared memory at K = 20 and 24, through a generic address.
    assert ("ld.shared.v2.f64" if k <= 16 else "ld.v2.f64") in code.asm
    assert "st.global.v2.f64" in code.asm


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "complex64"])
@pytest.mark.parametrize("k", [1, 7, 13, 22, 30, 33])
def test_fused_kernel_compiles_for_other_k_with_all_options(k, dtype):
    needs_nvrtc()
    from laneloom.ops.transform3d.hopper import compile_on_hopper

    alignment = 8 if dtype == "complex64" else 4
    problem = Transform3dProblem(k, 1000, dtype, same_matrix=False, accumulate=True, alignment=alignment)
    fused = (config for config, _ in candidates(problem, HOPPER) if config.schedule == "fused")
    config = next(config for config in fused if config.why_invalid(problem, HOPPER) is None)
    code = compile_on_hopper(problem, config, HOPPER)
    assert code.lds_bytes <= HOPPER.lds_bytes
    assert BULK_COPY not in code.asm


@pytest.mark.covering
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "complex128", "complex64"])
@pytest.mark.parametrize("k", [1, 5, 7, 8, 13, 14, 18, 20, 24, 26, 30])
def test_flat_kernel_uses_matrix_instructions_and_does_not_spill(k, dtype, few):
    needs_nvrtc()
    from laneloom.ops.transform3d.hopper import compile_on_hopper
    from laneloom.ops.transform3d.plan_hopper import flat_config

    for same, accumulate in ((True, False), (False, True)):
        problem = Transform3dProblem(k, 1000 if few else 100_000, dtype, same, accumulate)
        config = flat_config(problem, HOPPER)
        if config is None or (k > 24 and not same):
            assert config is not None or (k >= 24 and dtype == "complex128") or (k, dtype) == (30, "fp64")
            continue
        code = compile_on_hopper(problem, config, HOPPER)
        assert code.spills == 0
        assert code.scratch_bytes == 0
        assert (BULK_COPY in code.asm) == config.bulk
        # Three passes of every tile of 8 columns, in steps of 8 and a last one of 4 where that is enough.
        tiles, eights, fours = -(-k // 8), k // 8 + (k % 8 > 4), int(1 <= k % 8 <= 4)
        assert code.asm.count("mma.sync.aligned.m16n8k8.row.col.f64") == 3 * tiles * eights
        assert code.asm.count("mma.sync.aligned.m16n8k4.row.col.f64") == 3 * tiles * fours
        pairs = "v2.f64" if dtype in ("fp64", "complex128") else "v2.f32"
        assert (f"ld.shared.{pairs}" in code.asm) == (k % 2 == 0 or dtype.startswith("complex"))
        assert (f"st.global.{pairs}" in code.asm) == (
            (config.bulk and k % 2 == 0) or dtype.startswith("complex")
        )


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "complex128", "complex64"])
@pytest.mark.parametrize("k", sampled(range(1, 33), every=5))
def test_what_the_plan_takes_compiles(k, dtype):
    """ptxas refuses FP64's matrix instructions in fewer than 64 registers, which many CTAs of an SM would leave."""
    needs_nvrtc()
    from laneloom.ops.transform3d.hopper import TEXTS, compile_on_hopper

    chosen = {}
    for count in (1, 100, 300, 700, 2048, 8192, 1_000_000):
        problem = Transform3dProblem(k, count, dtype)
        chosen[plan(problem, HOPPER)] = problem
    for config, problem in chosen.items():
        if config.schedule in TEXTS:
            assert compile_on_hopper(problem, config, HOPPER).lds_bytes <= HOPPER.lds_bytes


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "complex64"])
@pytest.mark.parametrize("k", [1, 2, 6, 7, 9, 10, 11, 12, 15, 18])
def test_fma_kernel_pads_nothing_and_does_not_spill(k, dtype, few):
    needs_nvrtc()
    from laneloom.codegen.nvrtc import nvrtc_version
    from laneloom.ops.transform3d.config_fma import fma_config
    from laneloom.ops.transform3d.hopper import compile_on_hopper

    for same, accumulate in ((True, False), (False, True)):
        problem = Transform3dProblem(k, 1000 if few else 100_000, dtype, same, accumulate)
        config = fma_config(problem, HOPPER)
        assert config is not None
        code = compile_on_hopper(problem, config, HOPPER)
        if k == 11 and not same and nvrtc_version() == "13.0":  # whose ptxas keeps a few of 3 x 121 elements in memory
            assert code.spills <= 16
        else:
            assert code.spills == 0
            assert code.scratch_bytes == 0
        assert BULK_COPY in code.asm
        assert len(re.findall(r"\bfma\.rn\.f32\b", code.asm)) == 3 * 2 * k * k // config.lanes
        words = re.findall(r"st\.global\.(\S+)", code.asm)
        assert set(words) == {"f64" if k % 2 == 0 or dtype == "complex64" else "f32"}


@pytest.mark.parametrize("schedule", ["flat", "fma"])
def test_tensors_that_lie_at_odd_distances_are_stored_one_by_one(schedule):
    needs_nvrtc()
    from laneloom.ops.transform3d.config_fma import fma_config
    from laneloom.ops.transform3d.hopper import compile_on_hopper
    from laneloom.ops.transform3d.plan_hopper import flat_config

    for stride, pairs in ((None, True), (513, False)):
        problem = Transform3dProblem({"flat": 8, "fma": 6}[schedule], 100_000, "fp32", stride_out=stride)
        config = {"flat": flat_config, "fma": fma_config}[schedule](problem, HOPPER)
        assert config.bulk
        words = set(re.findall(r"st\.global\.(\S+)", compile_on_hopper(problem, config, HOPPER).asm))
        assert (words == {"f32"}) != pairs


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

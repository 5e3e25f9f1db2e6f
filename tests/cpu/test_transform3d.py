"""The transform without a GPU: reference, problem, plan, configs, refusals, the seed's output lines."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.compat import transformbench
from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.gpu import GPUS, get_gpu
from laneloom.ops.transform3d import (
    ChainedConfig,
    FusedConfig,
    MatmulsConfig,
    RowsConfig,
    Transform3dProblem,
    execute,
    ladder,
    parse_config,
    plan,
    reference,
)
from laneloom.ops.transform3d.config import plan_with_reasons
from laneloom.ops.transform3d.config_flat import FlatConfig, comes_first
from laneloom.ops.transform3d.config_fma import FmaConfig, fma_config
from laneloom.ops.transform3d.config_levels import AmdLevelsConfig, CublasdxConfig, KroneckerConfig, LevelsConfig
from laneloom.ops.transform3d.plan_hopper import flat_config

HOPPER = get_gpu("sm_90a")
LADDER = Path(__file__).parents[2] / "results/h200/transform3d-ladder.jsonl"


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_reference_is_the_sum_that_it_states(k):
    x, t = random(2, 3, k, k, k), random(3, k, k, seed=1)
    assert np.allclose(reference.transform(x, t), np.einsum("...abc,ai,bj,ck->...ijk", x, *t))
    assert np.allclose(reference.transform(x, t[0]), np.einsum("...abc,ai,bj,ck->...ijk", x, t[0], t[0], t[0]))
    turned = reference.transform(x, t, transpose=True)
    assert np.allclose(turned, np.einsum("...abc,ia,jb,kc->...ijk", x, *t))
    assert np.allclose(reference.transform(1j * x, t), 1j * reference.transform(x, t))
    assert np.allclose(reference.transform(x, 1j * t), -1j * reference.transform(x, t))


def test_bound_holds_for_the_reference_itself_and_is_not_slack():
    x, t = random(20, 16, 16, 16), random(16, 16, seed=1)
    exact = reference.transform(x, t)
    single = np.float32(np.float32(x) @ np.eye(16, dtype=np.float32))
    for _ in range(3):
        single = np.moveaxis(single, -3, -1) @ np.float32(t)
    rounded_inputs = reference.transform(np.float32(x), np.float32(t))
    share = reference.worst_share(single, np.float32(x), np.float32(t), dtype="fp32")
    assert 1e-3 < share < 1
    assert np.abs(rounded_inputs - exact).max() < 1e-3


@pytest.mark.parametrize("wrong", ["nan", "one element", "axes"])
def test_worst_share_notices_errors(wrong):
    x, t = random(4, 6, 6, 6), random(6, 6, seed=1)
    got = reference.transform(x, t)
    assert reference.worst_share(got, x, t) <= 1
    if wrong == "nan":
        got[1, 2, 3, 4] = np.nan
    elif wrong == "one element":
        got[1, 2, 3, 4] *= 1 + 1e-12
    else:
        got = got.swapaxes(-1, -2)
    assert reference.worst_share(got, x, t) > 4


def test_problem_counts_work_and_traffic():
    problem = Transform3dProblem(16, 2048)
    assert problem.flops == 2048 * 6 * 16**4
    assert problem.bytes == 2048 * 16**3 * 16
    assert Transform3dProblem(16, 2048, accumulate=True).bytes == 2048 * 16**3 * 24
    assert Transform3dProblem(16, 1, stride_x=5) == Transform3dProblem(16, 1)
    assert problem.vector_aligned
    assert not Transform3dProblem(15, 2).vector_aligned
    assert not Transform3dProblem(16, 2, alignment=8).vector_aligned
    assert not Transform3dProblem(16, 2, stride_x=4097).vector_aligned


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "complex128", "complex64"])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
def test_every_k_has_a_valid_plan_on_every_gpu(dtype, same, accumulate):
    for gpu in GPUS.values():
        for k in range(1, 65):
            for count in (0, 1, 77, 2048, 5000, 10**6):
                problem = Transform3dProblem(k, count, dtype, same, accumulate)
                config = plan(problem, gpu)
                assert config.why_invalid(problem, gpu) is None
                assert parse_config(config.text) == config


FMA_ORDERS = (*range(1, 8), *range(9, 13), 15, 18)


@pytest.mark.parametrize("k", [*range(1, 31), 32])
@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_hopper_runs_one_kernel(k, dtype):
    for problem in (Transform3dProblem(k, 100, dtype), Transform3dProblem(k, 100, dtype, alignment=8)):
        config = plan(problem, HOPPER)
        assert isinstance(config, FusedConfig | FlatConfig | FmaConfig)
        assert config.bulk or not problem.vector_aligned
        assert problem.alignment == 16 or not config.bulk
        in_fp64 = "flat" if comes_first(problem) else "fused"
        assert config.schedule == ("fma" if dtype == "fp32" and k in FMA_ORDERS else in_fp64)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "complex128", "complex64"])
def test_one_arithmetic_for_every_batch_and_place(dtype):
    for k, same in itertools.product(range(1, 65), (True, False)):
        plans = [
            plan(Transform3dProblem(k, count, dtype, same, stride_x=stride, alignment=alignment), HOPPER)
            for count in (1, 20, 60, 2048, 100_000)
            for stride in (None, k**3 + 3)
            for alignment in ((16,) if dtype == "complex128" else (16, 8))
        ]
        assert len({"flat" if getattr(each, "as_flat", False) else each.schedule for each in plans}) == 1, k


def test_flat_copies_odd_orders_in_whole_groups():
    config = flat_config(Transform3dProblem(7, 100_000, "fp32"), HOPPER)
    assert config is not None
    assert (config.bulk, config.group % 4) == (True, 0), "four tensors of 1,372 bytes are whole 16 bytes"
    apart = flat_config(Transform3dProblem(7, 100_000, "fp32", stride_x=344), HOPPER)
    assert apart is not None
    assert not apart.bulk
    assert flat_config(Transform3dProblem(40, 100, "fp32"), HOPPER) is None


@pytest.mark.parametrize("dtype", ["fp32", "complex64"])
def test_fma_fits_whatever_lies_how(dtype):
    for k, same, count in itertools.product(FMA_ORDERS, (True, False), (1, 2048, 100_000)):
        for stride, alignment in ((None, 16), (k**3 + 1, 16), (None, 8)):
            problem = Transform3dProblem(k, count, dtype, same, stride_x=stride, alignment=alignment)
            config = fma_config(problem, HOPPER)
            assert config is not None
            assert config.bulk == (alignment == 16 and (stride is None or count == 1))
            assert k % config.lanes == 0, "nothing is padded"
    assert all(fma_config(Transform3dProblem(k, 100, dtype), HOPPER) is None for k in {*range(1, 65)} - {*FMA_ORDERS})
    assert fma_config(Transform3dProblem(10, 100, "fp64"), HOPPER) is None
    for config, k, why in (
        (FmaConfig(warps=4, lanes=8), 7, "lanes must be 1 to K=7 and at most 32, got 8"),
        (FmaConfig(warps=4, lanes=33), 40, "lanes must be 1 to K=40 and at most 32, got 33"),
        (FmaConfig(warps=4), 13, "a lane's columns of the matrix are in registers, up to 144 elements, got 169"),
        (FmaConfig(warps=33), 6, "group must be at least 1, warps 1 to 32"),
        (FmaConfig(warps=4, group=5), 7, "bulk copies need tensors of whole 16 bytes"),
        (FmaConfig(warps=4, group=400), 10, "1 CTAs per SM leave"),
    ):
        assert config.why_invalid(Transform3dProblem(k, 1000, dtype), HOPPER).startswith(why)


def test_plan_says_why():
    chosen = plan_with_reasons(Transform3dProblem(49, 100), HOPPER)
    assert chosen.config == MatmulsConfig()
    assert "three batched products" in chosen.reason
    chosen = plan_with_reasons(Transform3dProblem(31, 100), HOPPER)
    assert "plain loads" in chosen.reason
    assert "even K" in chosen.passed_over[0][1]


def test_plan_on_amd_weighs_padding_against_passes():
    def schedule(gpu, k, **more):
        return plan(Transform3dProblem(k, 100, **more), get_gpu(gpu)).schedule

    assert schedule("gfx1151", 8) == schedule("gfx1201", 16) == "chained"
    assert schedule("gfx1151", 10) == schedule("gfx1201", 20) == "levels_amd"
    assert schedule("gfx1151", 8, dtype="complex128") == "rows"
    assert schedule("gfx1151", 10, dtype="fp32") == schedule("gfx1151", 10, accumulate=True) == "rows"
    assert schedule("gfx942", 20) in ("rows", "levels_amd")


@pytest.mark.parametrize("dtype", ["fp32", "complex64"])
@pytest.mark.parametrize("gpu", ["gfx908", "gfx942"])
def test_fp32_on_cdna_is_multiplied_by_the_matrix_unit_and_called_fp32(gpu, dtype):
    chosen = plan_with_reasons(Transform3dProblem(20, 100, dtype), get_gpu(gpu))
    assert chosen.config == RowsConfig(dot=True)
    assert "FP32 products" in chosen.reason
    assert not any("FP64" in why for _, why in chosen.passed_over)
    assert "no matrix instruction of FP64" in RowsConfig(dot=True).why_invalid(
        Transform3dProblem(20, 100, "complex128"), get_gpu("gfx908")
    )


@pytest.mark.parametrize(
    ("config", "problem", "why"),
    [
        (FusedConfig(warps=4), Transform3dProblem(5, 2), "even K"),
        (FusedConfig(warps=4), Transform3dProblem(32, 2), "need"),
        (FusedConfig(warps=4, cluster=5), Transform3dProblem(8, 2), "each has some"),
        (FusedConfig(warps=33), Transform3dProblem(8, 2), "at most 32 warps"),
        (FusedConfig(warps=0), Transform3dProblem(8, 2), "at least 1"),
        (RowsConfig(rows=48), Transform3dProblem(8, 2), "power of two"),
        (RowsConfig(rows=65536), Transform3dProblem(8, 2), "up to 4096"),
        (RowsConfig(), Transform3dProblem(65, 2), "ends at K=64"),
        (LevelsConfig(level=5), Transform3dProblem(8, 2), "level must be"),
        (LevelsConfig(level=3), Transform3dProblem(8, 2, "fp32"), "dense fp64"),
        (LevelsConfig(level=3, threads=100), Transform3dProblem(8, 2), "multiple of 32"),
        (CublasdxConfig(), Transform3dProblem(32, 2), "shared memory"),
        (FusedConfig(warps=4), Transform3dProblem(8, 2, "complex128", complex_matrix=True), "real matrix"),
        (FusedConfig(warps=4), Transform3dProblem(8, 2, "complex128", alignment=8), "multiple of its element"),
        (AmdLevelsConfig(level=3), Transform3dProblem(8, 2), "schedule levels"),
        (ChainedConfig(), Transform3dProblem(8, 2), "schedule fused"),
        (FlatConfig(warps=4, group=2), Transform3dProblem(5, 8, "fp32"), "side by side and of whole 16 bytes"),
        (FlatConfig(warps=4, group=4), Transform3dProblem(5, 8, "fp32", stride_x=128), "whole 16 bytes"),
        (FlatConfig(warps=4), Transform3dProblem(32, 2), "need"),
        (FlatConfig(warps=4), Transform3dProblem(33, 2, "fp32"), "ends at K=32"),
        (FlatConfig(warps=33), Transform3dProblem(8, 2), "warps 1 to 32"),
        (FlatConfig(warps=4), Transform3dProblem(8, 2, "complex128", complex_matrix=True), "real matrix"),
        (FlatConfig(warps=4), Transform3dProblem(8, 2, "complex128", alignment=8), "multiple of its element"),
        (KroneckerConfig(), Transform3dProblem(12, 2), "24 MB"),
    ],
)
def test_configs_say_what_they_cannot_do(config, problem, why):
    assert why in config.why_invalid(problem, HOPPER)
    with pytest.raises(InvalidConfigError, match="cannot do transform3d/"):
        execute.checked_config(problem, HOPPER, config)


@pytest.mark.parametrize(
    "config", [FusedConfig(warps=4), FlatConfig(warps=4), CublasdxConfig(), LevelsConfig(level=1), MatmulsConfig()]
)
def test_nvidia_schedules_are_refused_elsewhere(config):
    assert "gfx1151" in config.why_invalid(Transform3dProblem(8, 2), get_gpu("gfx1151"))


@pytest.mark.parametrize(
    ("config", "problem", "why"),
    [
        (AmdLevelsConfig(level=4), Transform3dProblem(8, 2), "level must be 1, 2, 3 or 5"),
        (AmdLevelsConfig(level=5), Transform3dProblem(33, 2), "98304 bytes of LDS of 65536"),
        (AmdLevelsConfig(level=1), Transform3dProblem(65, 2), "ends at K=64"),
        (AmdLevelsConfig(level=1), Transform3dProblem(8, 2, same_matrix=False), "one matrix for all axes"),
        (ChainedConfig(), Transform3dProblem(17, 2), "padded to 32, take 262144 bytes of 65536"),
        (ChainedConfig(group=3), Transform3dProblem(8, 2), "power of two"),
        (ChainedConfig(), Transform3dProblem(8, 2, "complex64"), "rows takes complex ones"),
        (KroneckerConfig(), Transform3dProblem(16, 2), "134 MB"),
    ],
)
def test_amd_configs_say_what_they_cannot_do(config, problem, why):
    assert why in config.why_invalid(problem, get_gpu("gfx1151"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast:", "unknown schedule 'fast'"),
        ("fused:speed=1", "unknown knob 'speed'"),
        ("fused:warps=many", "must be of type int"),
        ("fused:warps=4,bulk=yes", "must be of type bool"),
        ("fused:group=2", "config: fused needs its knob warps, such as fused:warps=4"),
    ],
)
def test_bad_config_texts(text, message):
    with pytest.raises(ArgumentError, match=message):
        parse_config(text)


def test_operands_that_do_not_fit():
    torch = pytest.importorskip("torch")
    from laneloom.ops.transform3d import transform3d

    x, t = torch.zeros(2, 4, 4, 4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    for wrong, message in (
        ((x[0, 0], t), r"coeffs: expected shape \[\.\.\., K, K, K\]"),
        ((x[..., :3], t), "coeffs: expected shape"),
        ((x, t[:3]), r"matrix: expected shape \[4, 4\] or \[3, 4, 4\], got \(3, 4\)"),
        ((x, t.float()), r"matrix: expected dtype torch\.float64"),
        ((x, t.numpy()), "matrix: expected a torch tensor, as coeffs is, got ndarray"),
        ((x, t.to(torch.complex128)), r"matrix: expected dtype torch\.float64"),
    ):
        with pytest.raises(ArgumentError, match=message):
            transform3d(*wrong)
    with pytest.raises(UnsupportedError, match=r"coeffs: expected dtype torch\.float64, float32"):
        transform3d(x.half(), t.half())
    with pytest.raises(ArgumentError, match="accumulate: expected out"):
        transform3d(x, t, accumulate=True)
    with pytest.raises(ArgumentError, match="out: expected none where gradients"):
        transform3d(x.requires_grad_(), t, out=torch.zeros_like(x))


def test_shapes_are_traced_without_running():
    torch = pytest.importorskip("torch")
    from laneloom.ops.transform3d import transform3d

    x, t = torch.empty(2, 3, 6, 6, 6, device="meta"), torch.empty(6, 6, device="meta")
    assert transform3d(x, t).shape == x.shape


def test_output_line_is_the_seeds():
    line = transformbench.Line("L3-regblk", 2048, 512, 16, 100, 128, 2048, 12345.0, 403.0)
    assert str(line) == (
        "Transform;level=L3-regblk;nfuncs=2048;nblocks=512;K=16;tasks=100;threads={128,1,1};smem=2048;"
        "Time(us)=12345;GFlop=403.0;Gflop/s=32644.8"
    )
    assert line.as_json()["gflops"] == pytest.approx(32644.8, rel=1e-5)


def test_validation_lines():
    good = transformbench.Validation(4, 16, "3", 2.84e-14, 3.11e-14)
    assert str(good) == "K=4  nfuncs=16 level=3  max_abs_err=2.84e-14  max_rel_err=3.11e-14  PASS"
    assert str(transformbench.Validation(10, 16, "3", 0.0, 0.0)).startswith("K=10 nfuncs=16 level=3  max_abs_err=")
    bad = transformbench.Validation(4, 16, "3", math.inf, math.inf)
    assert not bad.passed
    assert str(bad).endswith("FAIL")
    assert not transformbench.Validation(12, 16, "6", 0.0, 0.0, refused="too large").passed


def test_levels_choose_their_schedules():
    problem = Transform3dProblem(10, 64)
    schedules = {level: ladder.level_config(level, problem, HOPPER).schedule for level in ladder.LEVELS}
    assert schedules == {
        "1": "levels", "2": "levels", "3": "levels", "4": "levels", "5": "cublasdx", "6": "kronecker", "7": "fused",
        "fused": "fused",
    }  # fmt: skip
    with pytest.raises(ArgumentError, match="level: expected one of"):
        ladder.level_config("8", problem, HOPPER)
    assert {
        level: ladder.level_config(level, problem, get_gpu("gfx942")).schedule for level in "1235"
    } == dict.fromkeys("1235", "levels_amd")
    assert ladder.level_name("5", get_gpu("gfx942")) == "L5-strips"
    with pytest.raises(InvalidConfigError, match="24 MB"):
        ladder.level_config("6", Transform3dProblem(12, 64), HOPPER)


def test_page_shows_the_records():
    pytest.importorskip("torch")
    from laneloom.bench.records import load
    from laneloom.bench.transform3d import page_tables, summary

    root = Path(__file__).parents[2]
    page = (root / "docs/transform3d.md").read_text(encoding="utf-8")
    files = [root / "results/h200" / name for name in ("transform3d.jsonl", "transform3d-ladder.jsonl")]
    other = root / "results/h100/transform3d.jsonl"
    for name, table in page_tables(*files, other).items():
        assert table in page, name
    assert summary(load(files[0])) in (root / "README.md").read_text(encoding="utf-8")
    records = [record for file in (*files, other) for record in load(file)]
    assert all(record.error <= record.error_budget for record in records if record.error is not None)


def test_ladder_shows_records_with_refusals(tmp_path):
    pytest.importorskip("torch")
    result = CliRunner().invoke(app, ["ladder", "transform3d", "-K", "16", "--json", "--records", str(LADDER)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["label"] == "recorded"
    rungs = {rung["level"]: rung for rung in found["rungs"]}
    assert set(rungs) == {"three torch matmuls", *ladder.LEVELS.values()}
    assert "134 MB" in rungs["L6-kron"]["refused"]
    ours = rungs["fused"]
    assert ours["tflops"] == pytest.approx(6 * 16**4 * 2048 / ours["time_us"] / 1e6)
    assert ours["footprint_bytes"] == (2 * 2048 * 16**3 + 256) * 8
    assert rungs["L3-regblk"]["footprint_bytes"] == (2 * 2048 * 16**3 + 256 + 512 * 16**3) * 8
    missing = CliRunner().invoke(app, ["ladder", "transform3d", "-K", "5", "--records", str(LADDER)])
    assert "no records of 2048 tensors and K in [5]" in missing.output


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_ladder_draws(tmp_path, suffix):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    target = tmp_path / f"ladder{suffix}"
    result = CliRunner().invoke(app, ["ladder", "transform3d", "--records", str(LADDER), "--plot", str(target)])
    if suffix == ".pdf":
        assert not target.exists()
        assert "ends in .svg or .png" in result.output
    else:
        assert "three torch matmuls" in result.output
        assert target.stat().st_size > 10_000

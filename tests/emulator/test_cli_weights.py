"""The commands that take a weight of few bits: emulate, isa, predict and explain with --weight."""

from __future__ import annotations

import json

import pytest
from sampled import sampled
from typer.testing import CliRunner

from laneloom.cli import app, weights
from laneloom.verify import Verdict


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "120"})


def shown(*arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("weight", "group", "gpu"), [
    ("int4", 128, "gfx1151"), ("uint4", 128, "gfx1201"), ("fp4", 32, "gfx942"), ("int8", 0, "gfx1100"),
    ("fp8", 0, "gfx90a"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", sampled(("fp16", "bf16"), every=2))
def test_every_weight_is_run_and_judged(weight, group, gpu, dtype):
    """Ragged in every direction, hazards searched for."""
    options = ("--gpu", gpu, "--shape", "5,37,202", "--weight", weight, "--dtype", dtype, "--strict")
    found = shown("emulate", "matmul", *options)
    assert (found["ok"], found["weight"], found["group"], found["hazards"]) == (True, weight, group, 0)
    assert 0 < found["error"] <= found["budget"]
    assert found["instructions"] > 0


def test_a_wrong_result_is_told(monkeypatch):
    from laneloom.ops.quantized_matmul import reference

    monkeypatch.setattr(reference, "judge", lambda *_, **__: Verdict(False, 2.0, 1.0, (0, 1)))
    result = run("emulate", "matmul", "--shape", "1,16,32", "--weight", "int8")
    assert result.exit_code == 1
    assert "wrong: C[0, 1] is off by 2" in " ".join(result.output.split())


def test_a_profile():
    result = run("emulate", "matmul", "--shape", "16,32,128", "--weight", "int4", "--group", "32", "--profile")
    assert result.exit_code == 0
    assert "a scale for 32 k" in result.output
    assert "v_wmma_f32_16x16x16_f16" in result.output


def test_isa():
    found = shown("isa", "matmul", "--gpu", "gfx1201", "--shape", "64,128,256", "--weight", "fp8", "--no-listing")
    assert (found["weight"], found["group"], found["layout"]) == ("fp8", 0, "nt")
    assert found["config"].startswith("tiles:block_m=32")
    result = run("isa", "matmul", "--shape", "16,128,256", "--weight", "int4", "--no-listing")
    assert "quantized_matmul 16 x 128 x 256, fp16 by int4 with a scale for 128 k" in " ".join(result.output.split())
    result = run("explain", "matmul", "--shape", "16,128,256", "--weight", "int4", "--out-dtype", "fp32")
    assert "fp16 by int4 with a scale for 128 k to fp32, on gfx1151" in " ".join(result.output.split())


def test_explain():
    int4 = ("--shape", "16,4096,4096", "--weight", "int4", "--dtype", "bf16")
    found = shown("explain", "matmul", "--gpu", "sm_90a", *int4)
    assert found["schedule"] == "hopper_weights"
    assert found["reason"] == "the shortest estimate of a model of Hopper"
    found = shown("explain", "matmul", "--gpu", "gfx942", "--shape", "1,256,4096", "--weight", "fp4", "--group", "16")
    assert (found["schedule"], found["group"], found["patched"]) == ("tiles", 16, {})
    assert found["facts"] == ["8 parts of K, added up by a second launch"]
    found = shown("explain", "matmul", "--gpu", "gfx1201", "--shape", "512,4096,4096", "--weight", "int4")
    assert (found["schedule"], found["reason"][:9]) == ("fragments", "many rows")


def test_predict():
    """What reads a quarter of the bytes is predicted faster, by the planned config or another."""
    asked = ("predict", "matmul", "--shape", "1,2048,2048")
    whole, narrow = shown(*asked, "--layout", "nt"), shown(*asked, "--weight", "int4")
    assert narrow["predicted_us"] < whole["predicted_us"]
    other = shown(*asked, "--weight", "int4", "--config", narrow["config"].replace("block_n=16", "block_n=32"))
    assert "block_n=32" in other["config"]
    assert run("predict", "matmul", "--shape", "1,64,64", "--weight", "uint4", "--out-dtype", "fp32").exit_code == 0


REFUSED = {
    ("emulate", "--weight", "int3"): "--weight: expected int4, uint4, fp4, int8 or fp8, got 'int3'",
    ("emulate", "--weight", "int4", "--group", "24"): "--group: expected 0 or a power of two from 16 on, got 24",
    ("explain", "--weight", "int4", "--layout", "nt"): "--weight: the weight lies as [N, K]",
    ("predict", "--group", "32"): "--group belongs to --weight",
    ("predict", "--weight", "int4", "--shape", "1,64,63"): "--shape: expected an even K, as int4 comes in pairs",
    ("isa", "--weight", "int4", "--dtype", "fp8"): "--dtype: expected fp16 or bf16, got 'fp8'",
    ("isa", "--weight", "int4", "--shape", "0,5,6"): "has nothing to multiply, so no kernel runs",
    ("predict", "--weight", "int4", "--shape", "0,5,6"): "has nothing to multiply, so no kernel runs",
    ("emulate", "--weight", "fp8", "--shape", "99999,99999,99999"): "in FP64 takes",
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words):
    command, *options = words
    result = CliRunner().invoke(app, [command, "matmul", *options], env={"COLUMNS": "200"})
    told = result.output + str(result.exception)
    assert result.exit_code != 0
    assert REFUSED[words] in " ".join(told.split())


def test_attention_has_no_weight():
    for options in (("--weight", "int4"), ("--group", "32")):
        result = CliRunner().invoke(app, ["isa", "attention", *options])
        assert f"{options[0]} belongs to matmul" in result.output + str(result.exception)


def test_the_usual_is_what_weights_can_be():
    from laneloom.ops.quantized_matmul.weight import DTYPES

    assert tuple(weights.USUAL) == DTYPES

"""`laneloom explain` of attention and the transform: each kernel, what was refused and why, what `patched` does."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from laneloom.cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "100"})


def explained(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr.strip().removeprefix("laneloom: ")


def test_attention_on_hopper_names_every_kernel_and_what_was_refused():
    shown = explained("attention", "--gpu", "sm_90a", "--shape", "4,16,4096,128", "--dtype", "bf16")
    assert [(kernel["role"], kernel["schedule"]) for kernel in shown["kernels"]] == [
        ("forward", "hopper_forward"), ("backward", "hopper_backward"), ("decode", "hopper_decode_ranges"),
    ]  # fmt: skip
    forward = shown["kernels"][0]
    assert forward["config"].startswith("hopper_forward:columns=")
    assert str(forward["knobs"]["columns"]) in forward["config"]
    assert all(entry["why"] and entry["config"] != forward["config"] for entry in forward["passed_over"])
    assert (shown["shape"], shown["dtype"], shown["causal"]) == ([4, 16, 4096, 128], "bf16", False)
    if find_spec("torch"):
        assert shown["patched"]["forward"]["routed"]
        assert "x, measured" in shown["patched"]["with gradients"]["reason"]


def test_attention_starts_without_torch_where_nothing_was_measured():
    code = """
import sys
from laneloom.cli import app
app(["explain", "attention", "--gpu", "gfx1151"], standalone_mode=False)
print("torch" in sys.modules)
"""
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.splitlines()[-1] == "False"


def test_attention_under_a_mask_has_no_decode():
    shown = explained("attention", "--gpu", "gfx1151", "--causal")
    assert [kernel["role"] for kernel in shown["kernels"]] == ["forward", "query", "key"]
    assert shown["shape"] == [1, 8, 1024, 64]
    assert shown["patched"] == {}, "nothing was measured there"


def test_transform_says_why():
    shown = explained("transform3d", "--gpu", "sm_90a", "--shape", "10,131072", "--dtype", "fp32")
    (kernel,) = shown["kernels"]
    assert kernel["schedule"] == "fma"
    assert "FP32 multiply-adds" in kernel["reason"]
    assert explained("transform3d", "--gpu", "gfx90a")["dtype"] == "fp64"


def test_tables_say_the_same():
    shown = " ".join(run("transform3d", "--gpu", "sm_90a", "--shape", "31,100", "--dtype", "complex64").stdout.split())
    assert "transform3d of 100 tensors, K = 31, complex64, on sm_90a" in shown
    assert "Transform fused group=1 cluster=8" in shown
    assert "refused bulk copies need an even K" in shown
    shown = " ".join(run("attention", "--gpu", "gfx942", "--shape", "1,8,1024,512").stdout.split())
    assert "Query backward rows=16" in shown
    assert "a workgroup of gfx942 has 65536: forward rows=64 columns=32 num_warps=4" in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["transform3d", "--causal"], "--causal belongs to attention"),
        (["matmul", "--causal"], "--causal belongs to attention"),
        (["attention", "--layout", "nt"], "--layout belongs to matmul"),
        (["attention", "--out-dtype", ""], "--out-dtype belongs to matmul"),
        (["transform3d", "--weight", "int4"], "--weight belongs to matmul"),
        (["transform3d", "--group", "0"], "--group belongs to matmul"),
        (["attention", "--dtype", "fp8"], "--dtype: expected fp16 or bf16, got 'fp8'"),
        (["transform3d", "--dtype", ""], "--dtype: expected fp64, fp32, complex128 or complex64, got ''"),
        (["transform3d", "--shape", "10"], "--shape: expected 2 positive integers K,COUNT, got '10'"),
        (["attention", "--shape", "1,8,0,64"], "--shape: expected 4 positive integers B,H,N,D, got '1,8,0,64'"),
        (["transfrom"], "unknown operation 'transfrom'; the nearest is transform3d"),
        (["zzz"], "unknown operation 'zzz'; the known ones are: matmul, attention, transform3d"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(arguments, expected):
    assert refusal(*arguments) == expected


def test_attention_that_no_schedule_can_do():
    message = refusal("attention", "--gpu", "gfx1151", "--shape", "1,8,64,7")
    assert message.startswith("no attention schedule can do ")
    assert message.endswith(" on gfx1151: D must be a multiple of 8 from 16 to 512, got 7")

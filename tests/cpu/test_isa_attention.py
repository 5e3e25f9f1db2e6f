"""`laneloom isa attention`: the kernels that attention runs, by name, and what is refused."""

import json

import pytest
from typer.testing import CliRunner

from laneloom.cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["isa", *arguments])


@pytest.mark.parametrize(
    ("gpu", "kernel", "symbol"),
    [
        ("gfx1151", (), "attention_forward"), ("gfx1201", ("--kernel", "query"), "attention_backward"),
        ("gfx942", ("--kernel", "key", "--causal"), "attention_backward"),
        ("gfx1100", ("--kernel", "decode", "--shape", "2,4,512,64"), "attention_decode"),
    ],
)  # fmt: skip
def test_kernels(gpu, kernel, symbol):
    result = run("attention", "--gpu", gpu, "--dtype", "bf16", "--json", *kernel)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["kernel"], found["gpu"], found["dtype"]) == (symbol, gpu, "bf16")
    assert found["role"] == (kernel[1] if kernel else "forward")
    assert found["hot_loop"]["mix"]["kinds"]["matrix"] > 0


def test_words_and_the_check():
    shown = run("attention", "--gpu", "gfx1151", "--no-listing", "--causal").output
    assert "attention 1 x 8 x 1024 x 64, fp16, causal, forward" in shown
    assert "attention_forward for gfx1151" in run("attention", "--gpu", "gfx1151", "--check").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("attention", "--kernel", "backward"), "expected forward, query, key or decode"),
        (("attention", "--kernel", "decode", "--causal"), "--causal"),
        (("attention", "--shape", "1,2,3"), "B,H,N,D"), (("attention", "--dtype", "fp32"), "fp16 or bf16"),
        (("attention", "--shape", ""), "B,H,N,D"), (("attention", "--kernel", ""), "forward, query"),
        (("attention", "--layout", "nt"), "--layout belongs to matmul"), (("matmul", "--causal"), "to attention"),
        (("attention", "--shape", "1,8,64,12"), "multiple of 8"), (("atention",), "attention"),
    ],
)  # fmt: skip
def test_refusals(arguments, words):
    result = run(*arguments)
    assert result.exit_code != 0
    assert words in result.output

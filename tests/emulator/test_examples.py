"""The examples run as they are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1151", "gfx1201"])
def test_wmma_hello_world(gpu, capsys):
    module = runpy.run_path(str(EXAMPLES / "wmma_hello_world.py"))
    c = module["main"](gpu)
    assert (c == 16).all()
    assert f"{gpu}: hello, every element is 16" in capsys.readouterr().out


def test_experts_are_trained(capsys):
    module = runpy.run_path(str(EXAMPLES / "train_experts.py"))
    losses = module["main"](["--emulate", "gfx1151"])
    assert losses[-1] < 0.85 * losses[0]
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(losses)


def test_what_an_example_cannot_run_is_one_sentence(capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, words, said in (
        ("wmma_hello_world.py", ["gfx942"], "argument gpu: invalid choice: 'gfx942' (choose from "),
        ("train_experts.py", [], "torch finds no GPU here: --emulate gfx1151 runs this without one"),
    ):
        monkeypatch.setattr("sys.argv", [name, *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert ended.value.code == 2
        assert f"{name}: error: {said}" in capsys.readouterr().err

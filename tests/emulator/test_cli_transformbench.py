"""`laneloom transformbench`: the seed's flags, its validation lines and their exit status."""

import re

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

import laneloom
from laneloom.cli import app
from laneloom.compat import transformbench
from laneloom.errors import ArgumentError

LINE = re.compile(r"K=(\d+) +nfuncs=5 level=3  max_abs_err=\S+  max_rel_err=\S+  PASS")


def run(*arguments):
    return CliRunner().invoke(app, ["transformbench", *arguments])


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_validate_prints_the_seeds_lines(gpu):
    result = run("validate", "--gpu", gpu, "-l", "3", "-N", "5")
    assert result.exit_code == 0, result.output
    assert [int(LINE.fullmatch(line)[1]) for line in result.stdout.splitlines()] == [4, 6, 8, 10]


def test_validate_fails_when_the_kernel_is_wrong(monkeypatch):
    monkeypatch.setattr(transformbench.reference, "transform", lambda x, matrix: x)
    result = run("validate", "--gpu", "gfx1151", "-l", "3", "-K", "4")
    assert result.exit_code == 1
    assert result.stdout.rstrip().endswith("FAIL")


def test_a_level_that_cannot_run_says_why_and_fails():
    result = run("validate", "--gpu", "gfx1151", "-l", "7", "-K", "20")
    assert result.exit_code == 2
    assert "REFUSED" in result.stdout


def test_a_wrong_result_counts_more_than_a_refusal(monkeypatch):
    lines = [transformbench.Validation(k, 2, "3", 1.0, 1.0, why) for k, why in ((4, "no"), (6, None), (8, "no"))]
    monkeypatch.setattr(transformbench, "validate", lambda *_: lines)
    assert run("validate", "--gpu", "gfx1151").exit_code == 1


def test_timing_needs_a_gpu():
    result = run("-K", "8")
    assert result.exit_code == 2


def test_unknown_level():
    result = run("validate", "--gpu", "gfx1151", "-l", "9", "-K", "4")
    assert result.exit_code == 2
    assert "level: expected one of" in result.output


@pytest.mark.parametrize(("name", "size"), [("K", "0"), ("N", "-1"), ("N", "0")])
def test_sizes_below_one_are_refused(name, size):
    result = run("validate", "--gpu", "gfx1151", f"-{name}", size)
    assert result.exit_code == 2
    assert f"{name}: expected at least 1, got {size}" in result.output


def test_levels_may_be_numbers_as_the_seeds_are():
    with laneloom.emulated("gfx1151"):
        (found,) = transformbench.validate(3, k=4, nfuncs=2)
    assert str(found).startswith("K=4  nfuncs=2 level=3 ")
    assert found.passed


@pytest.mark.parametrize(("size", "expected"), [(4.0, "a whole number"), ("4", "a whole number"), (0, "at least 1")])
def test_sizes_are_whole(size, expected):
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError, match=f"K: expected {expected}, got {size!r}"):
        list(transformbench.validate(k=size))
    with pytest.raises(ArgumentError, match=f"K: expected {expected}, got {size!r}"):
        list(transformbench.run(size))

"""What commands show where a terminal is narrow, and what they say once in place of many times."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from importlib import import_module
from io import StringIO

import pytest
from rich.table import Table

from laneloom.bench import html_report
from laneloom.cli import app
from laneloom.cli.explain import knobs_in, refused_by_reason
from laneloom.cli.terminal import fit, least_width, working
from laneloom.errors import ArgumentError
from laneloom.gpu import get_gpu
from laneloom.isa.words import counted
from laneloom.ops.matmul.api import explain
from laneloom.ops.matmul.problem import MatmulProblem

predict, profile = (import_module(f"laneloom.cli.{name}") for name in ("predict", "profile"))


def table(rows: int = 3) -> Table:
    made = Table(box=None)
    for heading in ("preset", "error", "VGPRs", "bound", "empty"):
        made.add_column(heading, no_wrap=True)
    for row in range(rows):
        made.add_row(f"preset{row}", "7.8e-03", str(80 + row), "memory 55%", "")
    return made


def headings(of: Table) -> list[object]:
    return [column.header for column in of.columns]


def test_a_table_with_room_keeps_what_is_the_same_in_all_rows():
    wide = table()
    assert fit(wide, 200) == []
    assert headings(wide) == ["preset", "error", "VGPRs", "bound", "empty"]


def test_a_narrow_terminal_is_told_once_what_is_the_same_in_all_rows():
    narrow = table()
    assert fit(narrow, 16) == ["error 7.8e-03", "bound memory 55%"]
    assert headings(narrow) == ["preset", "VGPRs"]
    assert least_width(narrow) <= 16


def test_no_more_is_taken_out_than_the_room_asks_for():
    wide = table()
    some = table()
    assert fit(some, least_width(wide) - 1) == ["error 7.8e-03"]
    assert headings(some) == ["preset", "VGPRs", "bound", "empty"]


def test_one_row_keeps_its_columns():
    one = table(rows=1)
    assert fit(one, 10) == []
    assert len(one.columns) == 5


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "line"), [(Terminal, "\rPredicting a large\x1b[K"), (StringIO, "")])
def test_long_work_shows_on_a_terminal_alone(monkeypatch, stream, line):
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "19")
    with suppress(KeyError), working("Predicting a large product"):
        assert shown.getvalue() == line
        raise KeyError
    assert shown.getvalue() == (line and line + "\r\x1b[K")


@pytest.mark.parametrize("words", [("predict", "matmul"), ("profile", "matmul", "--gpu", "gfx1151"), ("report",)])
def test_long_work_says_what_it_is(monkeypatch, tmp_path, words):
    def stop(*_: object, **__: object) -> None:
        raise ArgumentError("stopped")

    for module, name in ((predict, "_predict"), (profile, "_predict"), (html_report, "report_page")):
        monkeypatch.setattr(module, name, stop)
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.chdir(tmp_path)
    results = () if words != ("report",) else ("--results", str(tmp_path))
    assert app([*words, *results], standalone_mode=False) == 2
    assert re.match("\r(Predicting|Reading) ", shown.getvalue())


def test_counts_of_one():
    assert [counted(n, "wave") for n in (0, 1, 1.0, 0.25, 1024)] == [
        "0 waves", "1 wave", "1 wave", "0.25 waves", "1,024 waves",
    ]  # fmt: skip


def test_refused_configs_stand_under_their_reason_by_what_is_other_in_them():
    problem = MatmulProblem.contiguous(4096, 4096, 4097, dtype="fp16")
    explanation = explain(problem, gpu=get_gpu("gfx1100"))
    found = refused_by_reason(explanation.config.text, explanation.passed_over)
    assert sum(map(len, found.values())) == len(explanation.passed_over) > len(found) > 1
    assert all("stores=" not in config for configs in found.values() for config in configs), "as the chosen one has it"
    chosen = knobs_in(explanation.config.text)
    for text, why in explanation.passed_over:
        other = {name: value for name, value in knobs_in(text).items() if chosen.get(name) != value}
        assert any(all(f"{n}={v}" in config for n, v in other.items()) for config in found[why])

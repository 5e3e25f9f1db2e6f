"""The emulator's own benchmark: records, table, refusal of wrong results."""

from __future__ import annotations

import dataclasses
import sys

import pytest

pytest.importorskip("torch")

from laneloom.bench import emulator as bench
from laneloom.bench.records import load


@pytest.fixture
def small(monkeypatch):
    """Every kind of case at sizes that take no time."""
    prepared = {"matmul": lambda: bench._matmul(32), "softmax": lambda: bench._softmax(64)}
    prepared["attention"] = lambda: bench._attention(1, 64, 32)
    kinds = {case.name.split()[0]: case for case in bench.CASES}
    cases = [dataclasses.replace(case, prepare=prepared[kind]) for kind, case in kinds.items()]
    monkeypatch.setattr(bench, "CASES", tuple(cases))
    return cases


def test_records_and_page(small, tmp_path, monkeypatch, capsys):
    out, page = tmp_path / "cpu" / "emulator.jsonl", tmp_path / "page.md"
    page.write_text("before\n<!-- speed -->\nold\n<!-- end of speed -->\nafter\n")
    command = ["bench", "--out", str(out), "--page", str(page), "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", command)
    bench.main()
    records = load(out)
    assert [record.problem["strict"] for record in records] == [False, True] * len(small)
    assert all(0 < record.error < record.error_budget and record.median_us > 0 for record in records)
    assert all(record.config["instructions"] > 100 and record.config["rounds"] == 2 for record in records)
    assert "core" in records[0].environment.gpu
    text = page.read_text()
    assert text.startswith("before\n<!-- speed -->\n| kernel |")
    assert "old" not in text
    for case in small:
        assert f"| {case.name} | {case.gpu} |" in text
    monkeypatch.setattr(sys, "argv", [*command, "--no-run"])
    bench.main()
    assert page.read_text() == text
    assert len(load(out)) == len(records)
    assert "| kernel |" in capsys.readouterr().out


def test_a_wrong_result_has_no_time(small):
    def wrong():
        call, _ = bench._matmul(32)
        return call, lambda: float("nan")

    case = dataclasses.replace(small[0], prepare=wrong)
    with pytest.raises(RuntimeError, match="is wrong by nan"):
        bench.measure(case, bench.read_processor(), 1)

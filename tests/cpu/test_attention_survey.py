"""The survey of models' attentions: its cases, and what the pages say of its record."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from laneloom.bench import attention_models as survey

ROOT = Path(__file__).parents[2]
RECORD, OTHER = (ROOT / "results" / gpu / "attention_models.csv" for gpu in ("h200", "h100"))


@pytest.mark.parametrize("record", [RECORD, OTHER])
def test_cases_are_those_of_the_record(record):
    rows = survey.read(record)
    drawn = [case for seed in survey.SEEDS for case in survey.random_cases(seed)]
    decodes = [case for seed in survey.SEEDS for case in survey.random_decodes(seed)]
    for direction, cases in (("forward", drawn), ("backward", drawn), ("decode", decodes)):
        assert [row.case for row in rows if row.direction == direction] == cases
    assert all(row.error <= row.budget for row in rows)
    assert all(row.queries == row.keys for row in rows if row.causal)
    assert len({(case.heads, case.d) for case in drawn}) > 20
    assert {case.queries == case.keys for case in drawn} == {True, False}


def test_ratios_are_to_the_faster_backend():
    common = {"direction": "forward", "dtype": "bf16", "batch": 1, "heads": 2, "kv_heads": 1, "queries": 5, "keys": 5,
              "d": 64, "causal": 0, "error": 0.0, "budget": 1.0, "config": "hopper_forward:parts=1"}  # fmt: skip
    rows = [survey.Row(us=2.0, cudnn_us=cudnn, flash_us=flash, **common) for cudnn, flash in ((4, 6), (0, 1), (8, 2))]
    assert [row.ratio for row in rows] == [2.0, 0.5, 1.0]


def test_pages_say_what_was_measured():
    rows = survey.read(RECORD)
    said, slow = survey.summarise(rows), Counter(row.direction for row in rows if row.ratio < survey.SLOW)
    for direction in survey.DIRECTIONS:
        assert f"{direction} " in said
        assert f"{slow[direction]} under" in said
    command = "run bench.attention_models --render with --readme README.md and --other"
    page = (ROOT / "docs" / "attention.md").read_text()
    assert said in (ROOT / "README.md").read_text(), command
    assert survey.render(rows) in page, command
    assert survey.summarise(survey.read(OTHER)) in page, command


def test_a_file_may_have_one_direction():
    rows = [row for row in survey.read(RECORD) if row.direction == "decode"]
    said = survey.summarise(rows)
    assert said.startswith(f"{len(rows)} random attentions")
    assert "forward" not in said + survey.render(rows)

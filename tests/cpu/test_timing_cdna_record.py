"""The record of CDNA's timing model: what docs/timing-model.md claims follows from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from laneloom.bench.timing_cdna import cases, summary, table
from laneloom.timing import machine_of
from laneloom.timing.cdna import L2_PEAK

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def record():
    lines = (ROOT / "results" / "predicted" / "timing_cdna.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(lines[-1])


def test_half_of_each_table_is_held_out():
    chosen = cases()
    for source in "XRZ":
        fitted = [c.fitted for c in chosen if c.source == source]
        assert sum(fitted) * 2 == len(fitted)
    assert len({(c.source, c.name) for c in chosen}) == len(chosen) == 14


def test_the_record_is_of_todays_cases_and_parameters(record):
    assert record["label"] == "predicted"
    for case, row in zip(cases(), record["rows"], strict=True):
        assert (row["name"], row["fitted"], row["published_tflops"]) == (case.name, case.fitted, case.published_tflops)
        assert row["ratio"] == pytest.approx(row["predicted_tflops"] / case.published_tflops)
        assert tuple(row["tile"]) in {(t.m, t.n, t.k) for t in case.tiles}
    for gpu, values in record["parameters"].items():
        assert values["l2_share"] == pytest.approx(machine_of(gpu).l2_bytes_per_clock / L2_PEAK)


def test_the_page_shows_the_record(record):
    assert record["summary"] == summary(record["rows"])
    page = (ROOT / "docs" / "timing-model.md").read_text(encoding="utf-8")
    assert table(record["rows"], record["summary"]) in page

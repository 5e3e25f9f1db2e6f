"""The timing model's record: what docs/timing-model.md claims follows from it, and the ladder stands in its order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from laneloom.bench.timing_model import append_record, cases, errors, rows_of, summary, table
from laneloom.timing import machine_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def record():
    lines = (ROOT / "results" / "predicted" / "timing.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(lines[-1])


def test_half_of_each_table_is_held_out():
    chosen = cases()
    for source in ("S", "W"):
        fitted = [c.fitted for c in chosen if c.source == source]
        assert sum(fitted) * 2 == len(fitted)
    assert len({(c.config, c.shape) for c in chosen}) == len(chosen) == 24


def test_the_record_is_of_todays_cases_and_parameters(record):
    assert record["label"] == "predicted"
    for case, row in zip(cases(), record["rows"], strict=True):
        assert (row["name"], row["fitted"], row["published_us"]) == (case.name, case.fitted, case.published_us)
        assert row["ratio"] == pytest.approx(row["predicted_us"] / case.published_us)
    for gpu, values in record["parameters"].items():
        machine = machine_of(gpu)
        assert values == {"clock_ghz": machine.clock_ghz, "lds_pace": machine.lds_pace}


def test_the_summary_is_what_the_rows_say(record):
    assert record["summary"] == summary(record["rows"])
    assert record["summary"]["ladder_in_order"]
    held = [abs(r["ratio"] - 1) for r in record["rows"] if not r["fitted"]]
    assert record["summary"]["held_out"]["worst_error"] == max(held)


def test_the_page_shows_the_record(record):
    page = (ROOT / "docs" / "timing-model.md").read_text(encoding="utf-8")
    assert table(record["rows"], record["summary"]) in page


@pytest.mark.parametrize("name", ["timing", "timing_cdna"])
def test_a_record_is_added_as_the_last_one_was(name, tmp_path):
    last = json.loads((ROOT / "results" / "predicted" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    path = tmp_path / "new" / "records.jsonl"
    for _ in range(2):
        append_record(path, last["kind"], last["parameters"], last["summary"], last["rows"])
    first, second = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    assert list(first) == list(second) == list(last)
    same = ("schema", "kind", "label", "parameters", "summary", "rows")
    assert [first[key] for key in same] == [second[key] for key in same] == [last[key] for key in same]


def test_errors():
    assert errors([1.1, 0.8, 1.0]) == (pytest.approx(0.1), pytest.approx(0.2))


def test_rows_hold_what_is_predicted():
    class Sampled:
        config = "some config"

        def evaluate(self, machine):
            return type("P", (), {"time_us": 2 * machine.launch_us, "limiter": "nothing"})()

    case = cases()[0]
    (row,) = rows_of([(case, Sampled())], {case.gpu: machine_of(case.gpu)})  # pyright: ignore[reportArgumentType]
    assert row["predicted_us"] == 2 * machine_of(case.gpu).launch_us
    assert row["fitted"] is True

"""Suites, records and reports: what needs no GPU of the benchmarks."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from laneloom.bench import matmul as matmul_bench
from laneloom.bench import records, report
from laneloom.bench.html_report import gather
from laneloom.bench.suites import SUITES, load_suite, quick_cases
from laneloom.bench.timing import METHOD_SINGLE, METHOD_SUSTAINED, Timing
from laneloom.errors import ArgumentError
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import plan

ENVIRONMENT = records.Environment("a GPU", "1.2", "2.11", "3.6.0", "0123456789ab", False)


def record(m=64, ratio=1.25, *, candidate="laneloom", method=METHOD_SUSTAINED, time="2026-11-20T00:00:00+00:00"):
    problem = {"m": m, "n": m, "k": m, "layout": "nn", "dtype": "bf16", "dtype_out": "bf16", "group": "square"}
    return records.Record(
        op="matmul", problem=problem, candidate=candidate, config={"text": "hopper:block_m=64,block_n=32,block_k=16"},
        method=method, median_us=2.0, iqr_us=0.1, ratio_to_reference=ratio, noisy=False, reference="torch.matmul",
        flops=4_000_000, bytes=2_000_000, kernel_hash="abc", environment=ENVIRONMENT, error=1e-3, error_budget=4e-3,
        time=time,
    )  # fmt: skip


def test_suites_are_lists_of_sizes():
    for name in SUITES:
        for cases in load_suite(name).values():
            assert cases
            assert all(isinstance(size, int) for case in cases for size in case)
            assert {quick_cases(cases)[0], quick_cases(cases)[-1]} == {cases[0], cases[-1]}
            assert len(quick_cases(cases)) == min(3, len(cases))
    with pytest.raises(ArgumentError, match="unknown suite"):
        load_suite("nothing")


def test_ratio_is_taken_round_by_round():
    timing = Timing.from_samples([1.0, 2.0, 4.0], [2.0, 2.0, 4.0])
    assert (timing.median_us, timing.ratio_to_reference, timing.noisy) == (2.0, 1.0, True)
    assert not Timing.from_samples([1.0, 1.01, 1.0], [1.0, 1.0, 1.0]).noisy
    assert Timing.from_samples([3.0], [3.0]).iqr_us == 0


def test_records_survive_the_file(tmp_path):
    path = tmp_path / "gpu" / "matmul.jsonl"
    assert records.load(path) == []
    written = [record(64), record(128)]
    for one in written:
        records.append(path, one)
    assert records.load(path) == written
    assert written[0].tflops == pytest.approx(2.0)
    assert written[0].gbs == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("line", "word"), [("{", "no benchmark record"), ('{"schema_version": 99}', "schema 99"), ("[]", "no benchmark")]
)
def test_a_damaged_record_is_named_by_its_line(tmp_path, line, word):
    path = tmp_path / "matmul.jsonl"
    records.append(path, record())
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ArgumentError, match=word) as caught:
        records.load(path)
    assert ":2" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema_version": ...}, "it has no schema_version"), ({"flops": ...}, "it has no flops"),
        ({"environment": ...}, "it has no environment"), ({"environment": 5}, "environment is 5"),
        ({"environment": {"gpu": "x"}}, "it has no driver"), ({"config": 5}, "config is 5"),
        ({"median_us": None}, "median_us is None"), ({"median_us": 0}, "median_us is 0"),
        ({"median_us": float("nan")}, "median_us is nan"), ({"more": 1}, "it has more, which records have not"),
    ],
)  # fmt: skip
def test_a_line_that_lacks_what_records_have(tmp_path, change, why):
    path = tmp_path / "matmul.jsonl"
    records.append(path, record())
    fields = json.loads(path.read_text()) | change
    with path.open("a") as file:
        file.write("\n" + json.dumps({name: value for name, value in fields.items() if value is not ...}))
    with pytest.raises(ArgumentError) as caught:
        records.load(path)
    assert str(caught.value) == f"{path}:3 is no benchmark record: {why}"


def test_a_report_of_a_file_whose_records_lost_their_schema(tmp_path):
    path = tmp_path / "gpu.jsonl"
    path.write_text('{"median_us": 3.0}\n')
    with pytest.raises(ArgumentError, match=r"gpu\.jsonl:1 is no benchmark record: it has no op"):
        gather(tmp_path)


def test_a_figure_that_is_not_a_number_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        records.append(tmp_path / "matmul.jsonl", record(ratio=float("nan")))


def test_a_record_is_stale_once_its_kernel_changes(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("one")
    fresh = records.Record(**{**vars(record()), "kernel_hash": records.hash_sources([source])})
    assert not fresh.is_stale([source])
    source.write_text("two")
    assert fresh.is_stale([source])
    assert not records.Record(**{**vars(record()), "kernel_hash": ""}).is_stale([source])


def test_a_record_stays_fresh_where_sources_gave_the_same_machine_code(tmp_path, monkeypatch):
    """From change to change, each of which was compared with the one before it."""
    source = tmp_path / "kernel.cu"
    source.write_text("// three")
    now = records.hash_sources([source])
    changes = {"one": "two", "two": now, "other": "two'", now: "one"}
    noted: dict[str, dict[str, object]] = {before: {"after": after} for before, after in changes.items()}
    noted["two"]["but"] = ["tile:8"]
    monkeypatch.setattr(records, "_same_code", lambda: noted)

    def stale(kernel_hash, config):
        return records.Record(**{**vars(record()), "kernel_hash": kernel_hash, "config": config}).is_stale([source])

    assert not stale("one", {"text": "tile:4"})
    assert not stale("one", None)
    assert stale("one", {"text": "tile:8"}), "its code was another one"
    assert stale("other", {"text": "tile:4"})


def test_products_that_the_plan_takes_otherwise_are_measured_again():
    cases = list(matmul_bench.replanned_cases([record(64), record(64), record(128)]))
    assert [(case.group, case.layout, case.dtype, case.problem.m) for case in cases] == [
        ("square", "nn", "bf16", 64), ("square", "nn", "bf16", 128)]  # fmt: skip
    text = plan(cases[0].problem, get_gpu("sm_90a")).text
    as_planned = records.Record(**{**vars(record()), "config": {"text": text}})
    assert not list(matmul_bench.replanned_cases([as_planned]))
    assert not list(matmul_bench.replanned_cases([record(), as_planned]))
    assert len(list(matmul_bench.replanned_cases([as_planned, record()]))) == 1
    of_the_host = records.Record(**{**vars(record()), "problem": {**record().problem, "group": "host"}})
    assert not list(matmul_bench.replanned_cases([of_the_host]))


def test_the_table_has_the_newest_of_each_problem():
    rows = [record(64, 1.1), record(64, 1.5, time="2026-11-21T00:00:00+00:00"), record(128, 0.9),
            record(64, 1.2, method=METHOD_SINGLE), record(64, candidate="torch.matmul")]  # fmt: skip
    table = report.render_matmul_table(rows)
    assert table.count("\n") == 5
    assert table.startswith("Measured on 2026-11-20, 2026-11-21 at commit 0123456789ab.")
    assert "| 64 x 64 x 64 | NN | bf16 | 2.00 | 2 | 1000 | 1.500 | 1.200 | 0.25 | 64x32x16 |" in table
    assert "1.100" not in table
    assert "0.900 | 128 x 128 x 128 nn" in report.summarise(rows)
    assert report.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_stale_figures_are_marked():
    def is_old(one: records.Record) -> bool:
        return one.problem["m"] == 64

    assert report.render_matmul_table([record(64), record(128)], is_old).count("(stale)") == 1
    assert "Stale: kernels or plans have changed since." in report.render_matmul_table([record(64)], is_old)
    assert "tale" not in report.render_matmul_table([record(128)], is_old)
    assert report.summarise([record(128), record(64)], is_old).endswith("measured: 1 of 2 in bf16.")
    assert "changed" not in report.summarise([record(128)], is_old)


def test_a_page_is_filled_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- end of table -->\nafter\n")
    report.fill_page(page, {"table": "new"})
    report.fill_page(page, {"table": "newer"})
    assert page.read_text() == "before\n<!-- table -->\nnewer\n<!-- end of table -->\nafter\n"
    with pytest.raises(KeyError, match="no place"):
        report.fill_page(page, {"other": "x"})


def test_squares_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [record(m, candidate=candidate, method=method)
            for m in (64, 128) for candidate in ("laneloom", "torch.matmul")
            for method in (METHOD_SUSTAINED, METHOD_SINGLE)]  # fmt: skip
    report.plot_squares(rows, tmp_path / "squares.svg")
    report.plot_squares(rows, tmp_path / "again.svg")
    assert (tmp_path / "squares.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert "<svg" in (tmp_path / "squares.svg").read_text()


def test_the_committed_records_can_be_read():
    from pathlib import Path

    paths = [Path(__file__).parents[2] / "results" / gpu / "matmul.jsonl" for gpu in ("h200", "h100")]
    loaded = [one for path in paths for one in records.load(path)]
    assert len({one.environment.gpu for one in loaded}) == 2
    for one in loaded:
        json.dumps(vars(one)["problem"])
        assert one.error is None or one.error_budget is None or one.error <= one.error_budget

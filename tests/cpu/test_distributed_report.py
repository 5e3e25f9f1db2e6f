"""The tables of several GPUs: what is in them follows from records."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from laneloom.bench import distributed_report as report
from laneloom.bench.distributed import METHODS
from laneloom.bench.records import Environment, Record, load

ROOT = Path(__file__).parents[2]
HERE = Environment("NVIDIA H200", "1", "2.11", "3.6", "abc", False)


def record(name, us, *, captured, m=8, op="all_gather_matmul"):
    return Record(
        op=op, problem={"m": m, "n": 4, "k": 2, "ranks": 2, "dtype": "bf16"}, candidate=name, config=None,
        method=METHODS[captured], median_us=us, iqr_us=0.0, ratio_to_reference=1.0, noisy=False, reference=name,
        flops=1, bytes=1, kernel_hash="", environment=HERE,
    )  # fmt: skip


def test_a_row():
    times = {"torch: all_gather, matmul": 150, "torch: fused_all_gather_matmul": 140, "laneloom": 120,
             "computed alone": 100, "moved alone": 40}  # fmt: skip
    records = [record(name, us, captured=True) for name, us in times.items()]
    records += [record(name, 2 * us, captured=False) for name, us in times.items() if "fused" not in name]
    records.insert(0, record("laneloom", 1, captured=True))  # older
    line = report.render(records, "all_gather_matmul").splitlines()[-1]
    assert line == (
        "| 8 x 4 x 2 | 2 | 150 / 300 | 140 / - | 120 / 240 | - / - | 100 / 200 | 40 / 80 | 50% | 1.17 / 1.25 |"
    )


def test_the_page_has_the_newest_records():
    records = load(ROOT / "results" / "h200" / "distributed.jsonl")
    page = (ROOT / "docs" / "several-gpus.md").read_text(encoding="utf-8")
    for op in ("all_gather_matmul", "matmul_reduce_scatter", "ring_attention"):
        assert report.render(records, op) in page
    assert report.render_transform(records) in page

"""`laneloom ladder sgemm`: rows of the emulated steps, rows of records, refusals."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from laneloom.bench.records import Environment, Record, append
from laneloom.cli import app

KEYS = {
    "step", "technique", "vgprs", "lds_bytes", "dual_issue_pairs", "lds_bank_conflicts", "error", "budget",
    "predicted_us", "measured_us", "published_us",
}  # fmt: skip


def run(*arguments: str):
    return CliRunner().invoke(app, ["ladder", "sgemm", *arguments])


def test_rows_of_emulated_steps():
    result = run("--gpu", "gfx1100", "--step", "k3", "--step", "K6".lower(), "--no-predict", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    k3, k6 = found["rows"]
    assert set(k6) >= KEYS
    assert (k6["step"], k6["dual_issue_pairs"], k6["lds_bank_conflicts"], k6["lds_bytes"]) == ("K6", 64, 0, 8320)
    assert k6["published_us"] == pytest.approx(3636.8)
    assert k6["predicted_us"] is k6["measured_us"] is None
    assert k3["lds_bank_conflicts"] > 0
    assert all(0 < row["error"] <= row["budget"] for row in found["rows"])
    assert found["label"] == "predicted"


def test_published_times_are_of_one_gpu_and_size():
    rows = json.loads(run("--gpu", "gfx1151", "--step", "k8", "--no-predict", "--json").stdout)["rows"]
    assert rows[0]["published_us"] is None


def test_a_prediction_of_a_small_product():
    result = run("--gpu", "gfx1100", "--step", "k8", "--size", "256")
    assert result.exit_code == 0, result.output
    assert "K8" in result.stdout
    assert "predicted" in result.stdout


def records(path, *candidates: tuple[str, float]) -> None:
    for name, time_us in candidates:
        append(path, Record(
            op="sgemm_ladder", problem={"m": 512, "n": 512, "k": 512}, candidate=name,
            config={"text": "", "vgprs": 32, "lds_bytes": 0}, method="", median_us=time_us, iqr_us=0.0,
            ratio_to_reference=10 / time_us, noisy=False, reference="torch.matmul", flops=2 * 512**3, bytes=0,
            kernel_hash="", environment=Environment("an H200", "", "", "", "", False), error=1e-7, error_budget=2e-7,
        ))  # fmt: skip


def test_rows_of_records(tmp_path):
    path = tmp_path / "ladder.jsonl"
    records(path, ("sgemm_h1", 90.0), ("torch.matmul", 10.0), ("sgemm_h1", 80.0), ("planned", 9.0))
    result = run("--gpu", "h200", "--size", "512", "--records", str(path), "--json")
    found = json.loads(result.stdout)
    assert [(row["step"], row["measured_us"]) for row in found["rows"]] == [
        ("cuBLAS", 10.0), ("H1", 80.0), ("planned", 9.0),
    ]  # fmt: skip
    assert set(found["rows"][1]) >= KEYS
    assert found["product"] == "an H200"
    assert found["rows"][1]["x_vendor"] == pytest.approx(10 / 80)
    assert "H1" in run("--gpu", "h200", "--size", "512", "--records", str(path)).stdout


def test_the_checkout_has_records_of_every_step():
    rows = json.loads(run("--gpu", "h200", "--json").stdout)["rows"]
    assert [row["step"] for row in rows] == ["cuBLAS", *(f"H{n}" for n in range(1, 8)), "planned"]
    assert all(row["error"] <= row["budget"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--gpu", "gfx942"), "RDNA"),
        (("--gpu", "gfx1100", "--step", "k9"), "k8"),
        (("--gpu", "h200", "--size", "77"), "77"),
        (("--gpu", "h200", "--records", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--gpu", "h200", "--plot", "ladder.txt"), ".svg"),
    ],
)
def test_refusals(arguments, what):
    result = run(*arguments)
    assert result.exit_code == 2
    assert what in result.output


def test_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "ladder.svg"
    assert run("--gpu", "h200", "--plot", str(path)).exit_code == 0
    assert path.read_text().count("<path") > 10

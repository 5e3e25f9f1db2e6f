"""`laneloom emulate`: --profile, --html, --strict, --coverage."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from laneloom.cli import app, product
from laneloom.errors import HazardError


def run(*arguments: str, columns: int = 100):
    return CliRunner().invoke(app, ["emulate", *arguments], catch_exceptions=False, env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_profile_as_json(gpu):
    result = run("matmul", "--json", "--profile", "--gpu", gpu, "--shape", "128,128,128")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    (launch,) = shown["profile"]
    assert shown["lds_bank_conflicts"] == launch["lds"]["conflict_clocks"] == 0
    assert launch["executed"] == shown["instructions"] == sum(launch["kinds"].values())
    assert launch["executed"] == sum(row.get("executed", 0) for row in launch["instructions"])
    assert launch["matrix_flops"] == 2 * 128**3
    memory = launch["global"]
    assert memory["floor_bytes"] == memory["footprint_bytes"] == 3 * 128 * 128 * 2
    assert memory["requested_bytes"] >= memory["floor_bytes"]
    assert launch["intensity"] >= 2 * 128**3 / memory["floor_bytes"]
    assert 0 < launch["hot_loop"]["executed_share"] < 1
    assert sum(line["executed"] for line in launch["source_lines"]) == launch["executed"]
    assert launch["source_lines"][0]["source"].endswith(tuple(f"py:{n}" for n in range(1000)))


def test_a_listing_in_a_pipe_is_cut_where_asked_to():
    whole, narrow = (
        CliRunner().invoke(app, ["emulate", "matmul", "--profile", "--shape", "64,64,64"], env={"COLUMNS": columns})
        for columns in (None, "60")
    )
    assert "in 640 lines of 128 bytes, 50% of their bytes wanted; 24.0 KiB of different lines\n" in whole.stdout
    assert max(map(len, narrow.stdout.splitlines())) == 60


def test_profile_as_text():
    result = run("matmul", "--profile", "--shape", "100,100,100")
    assert result.exit_code == 0
    for words in ("Hot loop", "no bank conflicts", "FLOP per byte", "vector lanes idle", "memory: line", "LDS: line"):
        assert words in result.stdout
    listing = [line for line in result.stdout.splitlines() if "┃" in line]
    assert any(re.search(r"^\s*\d+\s+[\d,]+\s+[\d.]+ clk\s+┃ ds_load_b", line) for line in listing)
    assert any(re.search(r"lines\s+┃ global_load_b", line) for line in listing)
    assert any("v_wmma" in line for line in listing)


def test_page_stands_alone(tmp_path):
    path = tmp_path / "pages" / "profile.html"
    result = run("matmul", "--html", str(path), "--shape", "64,64,64")
    assert result.exit_code == 0
    page = path.read_text()
    assert page.startswith("<!doctype html>")
    assert not re.search(r"https?://|<script|<link|src=|url\(", page)
    assert "wmma_matmul" in page
    rows = re.findall(r'<tr id="L(\d+)" class="([^"]*)">', page)
    assert len(rows) > 100
    assert any("hot" in classes for _, classes in rows)
    for line in re.findall(r'href="#L(\d+)"', page):
        assert line in {number for number, _ in rows}
    assert page.count("<tr") == page.count("</tr>")


def test_page_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    result = run("matmul", "--html", str(tmp_path / "file" / "page.html"))
    assert result.exit_code == 2
    assert "--html: cannot write" in result.stderr


def test_empty_product_with_profile(tmp_path):
    result = run("matmul", "--json", "--html", str(tmp_path / "page.html"), "--shape", "0,5,5")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["lds_bank_conflicts"] is None
    assert "no kernel ran" in (tmp_path / "page.html").read_text()


def test_strict_and_order_of_waves():
    for seed in ("0", "7"):
        shown = json.loads(run("matmul", "--json", "--strict", "--seed", seed, "--shape", "64,80,96").stdout)
        assert (shown["ok"], shown["hazards"]) == (True, 0)
    assert "none found" in run("matmul", "--strict", "--shape", "64,80,96").stdout


def test_a_hazard_ends_with_1(monkeypatch):
    def stop(*_, **__):
        raise HazardError("k: v3 is read before a wait", "wait")

    monkeypatch.setattr(product, "run_product", stop)
    result = run("matmul", "--json", "--strict")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert (shown["ok"], shown["hazards"], shown["hazard"]) == (False, 1, "k: v3 is read before a wait")
    result = run("matmul", "--strict")
    assert result.exit_code == 1
    assert "v3 is read before a wait" in result.stderr


def test_an_operation_has_to_be_named():
    result = run()
    assert result.exit_code == 2
    assert "--coverage" in result.stderr

"""`laneloom compare`: the rows of presets, as a table and as JSON."""

from __future__ import annotations

import json

import pytest
from sampled import rarely
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.cli.compare import checked_product, chosen_presets
from laneloom.cli.product import parse_product
from laneloom.ops.matmul.presets import PRESETS


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "160"})


def rows(*presets: str, gpu: str = "gfx1151", shape: str = "256,128,128", more: tuple[str, ...] = ()) -> dict:
    asked = [word for name in presets for word in ("--preset", name)]
    result = run("compare", "matmul", "--gpu", gpu, "--shape", shape, *asked, *more, "--json")
    assert result.exit_code == 0, result.stdout
    return {row["preset"]: row for row in json.loads(result.stdout)["rows"]}


def test_rows_say_what_distinguishes_presets():
    got = rows("planned", "standard", "noPrefetch", "opt", "pingpong", more=("--out-dtype", "fp32"))
    for row in got.values():
        assert row["refused"] is None
        assert row["right"]
        assert row["error"] <= row["budget"]
        assert row["spills"] == 0
        assert 0 < row["matrix_share"] < 1
        assert row["bound"] in ("matrix", "LDS", "issue", "memory")
        assert 0 < row["bound_share"] <= 1
    assert got["standard"]["prefetch_overlap"] == 1
    assert got["noPrefetch"]["prefetch_overlap"] == 0
    assert got["pingpong"]["prefetch_overlap"] is None
    assert got["planned"]["lds_bank_conflicts"] == got["opt"]["lds_bank_conflicts"] == 0
    assert got["standard"]["lds_bank_conflicts"] > 0  # its halves of B, stored one by one
    assert got["opt"]["wide_share"] == 1 > got["standard"]["wide_share"]
    assert got["standard"]["occupancy"] > got["opt"]["occupancy"]


def test_a_product_of_one_k_tile_has_no_loop():
    row = rows("standard", shape="64,64,16")["standard"]
    assert row["right"]
    assert row["matrix_share"] is None
    assert row["bound"] is None


def test_refused_presets_say_why():
    row = rows("standard", shape="64,64,64", more=("--dtype", "bf16"))["standard"]
    assert row["right"]
    result = run("compare", "matmul", "--gpu", "gfx942")
    assert result.exit_code == 2
    assert "--gpu: the presets need WMMA instructions, gfx942 has none" in result.stderr
    result = run("compare", "matmul", "--preset", "fastest")
    assert result.exit_code == 2
    assert "--preset: expected one of planned, standard" in result.stderr
    row = rows("opt", "standard", shape="64,64,64", more=("--out-dtype", "fp64"))["opt"]
    assert "out_dtype: expected fp32, fp16 or bf16, got fp64" in row["refused"]


def test_table():
    text = run("compare", "matmul", "--gpu", "gfx1201", "--shape", "128,128,64", "--preset", "kunroll").stdout
    assert "checked by emulation at 128 x 128 x 64" in text
    assert "kunroll" in text
    assert "predicted" in text


def test_large_products_are_checked_on_ragged_smaller_ones():
    product = parse_product("matmul", "gfx1151", "4097,1024,100000", "fp16")
    assert checked_product(product).shape == (513, 1024, 512 + 100000 % 256)


@pytest.mark.parametrize("asked", [None, ["opt", "planned"]])
def test_presets_by_name(asked):
    assert chosen_presets(asked) == (asked or ["planned", *PRESETS])


@pytest.mark.parametrize("dtype", ["int4", "fp32", *rarely("uint8", "bf8")])
def test_every_dtype(dtype):
    row = rows("planned", shape="96,72,640", more=("--dtype", dtype))["planned"]
    assert row["right"]
    assert row["spills"] == 0
    assert row["config"].startswith("fma:" if dtype == "fp32" else "wmma:")
    assert (row["budget"] == 0) == (dtype in ("uint8", "int4"))
    assert 0 < row["matrix_share"] < 1

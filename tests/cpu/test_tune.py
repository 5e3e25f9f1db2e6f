"""Tuned tables: nothing can break them, and what plan makes of them."""

from __future__ import annotations

import json
import logging
import os
import pickle

import pytest
from tuned_entries import FASTER, GPU, PROBLEM, entry, put
from typer.testing import CliRunner

from laneloom.gpu import get_gpu
from laneloom.ops.matmul import tuned
from laneloom.ops.matmul.config import MatmulConfig, plan, plan_with_reasons
from laneloom.ops.matmul.problem import MatmulProblem


def test_plan_takes_the_entry_of_the_product(cache):
    before = plan_with_reasons(PROBLEM, GPU)
    assert before.source == "cost model"
    put(entry())
    after = plan_with_reasons(PROBLEM, GPU)
    assert (after.source, after.config) == ("tuned, exact", MatmulConfig.parse(FASTER))
    assert after.config != before.config
    assert plan(PROBLEM, GPU) == after.config
    assert plan_with_reasons(PROBLEM, GPU, use_tables=False).config == before.config
    assert plan_with_reasons(PROBLEM, get_gpu("gfx1100")).source == "cost model"


def test_tables_can_be_left_out(cache, monkeypatch):
    put(entry())
    monkeypatch.setenv("LANELOOM_TUNED", "0")
    assert plan_with_reasons(PROBLEM, GPU).source == "cost model"


@pytest.mark.parametrize(
    ("problem", "source"),
    [
        (MatmulProblem.contiguous(216, 256, 160), "tuned, nearest"),
        (MatmulProblem.contiguous(200, 200, 400), "cost model"),  # a doubling away
        (MatmulProblem.contiguous(201, 200, 201), "cost model"),  # loads of one element
        (MatmulProblem.contiguous(200, 200, 200, dtype="bf16"), "cost model"),
        (MatmulProblem.contiguous(200, 200, 200, layout="tn"), "cost model"),
        (MatmulProblem.contiguous(200, 200, 200, dtype_out="fp32"), "cost model"),
        (MatmulProblem.contiguous(200, 200, 200, batch=8), "cost model"),
    ],
    ids=lambda value: getattr(value, "key", value),
)
def test_an_entry_speaks_for_what_is_near(cache, problem, source):
    put(entry())
    assert plan_with_reasons(problem, GPU).source == source


def test_on_hopper_an_entry_speaks_for_its_own_product_alone(cache):
    hopper, own = get_gpu("sm_90a"), MatmulProblem.contiguous(1000, 2000, 3000)
    near = MatmulProblem.contiguous(1008, 2000, 3000)
    planned = plan_with_reasons(near, hopper)
    put(entry(own, "hopper:block_m=128,block_n=128,block_k=64,stages=4,consumers=2,pieces=4"), hopper)
    assert plan_with_reasons(own, hopper).source == "tuned, exact"
    assert plan_with_reasons(near, hopper) == planned


def test_a_neighbour_without_a_gain_is_silent(cache):
    near = MatmulProblem.contiguous(208, 200, 200)
    put(entry(gain=1.01))
    assert plan_with_reasons(near, GPU).source == "cost model"
    put(entry(gain=1.05, objective="predicted"))
    assert plan_with_reasons(near, GPU).source == "cost model"
    put(entry(gain=1.05))
    assert plan_with_reasons(near, GPU).source == "tuned, nearest"


def test_measured_comes_before_predicted(cache):
    other = FASTER.replace("block_k=64", "block_k=32")
    put(entry(objective="predicted"))
    table = tuned.table_path(GPU.name)
    table.parent.mkdir()
    table.write_text(tuned.render_table([entry(config=other)], GPU.name))
    tuned.forget()
    found = tuned.find(PROBLEM, GPU)
    assert found.entry.origin == "package"
    assert found.config == MatmulConfig.parse(other)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


def _fields(**changed):
    table = {"schema_version": 1, "op": "matmul", "gpu": GPU.name, "entries": [entry().to_dict() | changed]}
    return json.dumps(table).encode()


HOSTILE = {
    "empty": b"", "garbage": bytes(range(256)), "pickle": pickle.dumps(Bomb()), "truncated": _fields()[:-40],
    "list": b"[]", "number": b"1e999", "deep": b"[" * 60000, "huge": b" " * (1 << 17) + _fields(),
    "schema": _fields().replace(b'"schema_version": 1', b'"schema_version": 2'),
    "another GPU": _fields().replace(b"gfx1151", b"gfx1100"),
    "extra field": _fields(command="rm"), "times of text": _fields(time_us="fast"), "no time": _fields(time_us=None),
    "infinite": _fields().replace(b'"time_us": 10.0', b'"time_us": 1e999'), "negative": _fields(time_us=-1),
    "sizes": _fields(sizes=[1, 2, 3]), "sizes of text": _fields(sizes=["1", 2, 3, 4]), "zero": _fields(sizes=[0] * 4),
    "objective": _fields(objective="guessed"), "config of a number": _fields(config=7),
    "time of torch": _fields(torch_us=-1), "long config": _fields(config="wmma:" + "x" * 5000),
    "provenance": _fields(provenance=[1]),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_file_is_reported_in_one_line_and_written_anew(cache, name, caplog, monkeypatch):
    monkeypatch.chdir(cache)
    path = put(entry())
    path.write_bytes(HOSTILE[name])
    tuned.forget()
    with caplog.at_level(logging.WARNING, "laneloom"):
        assert plan_with_reasons(PROBLEM, GPU).source == "cost model"
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert path.name in caplog.text
    assert not (cache / "exploded").exists()
    put(entry())
    assert plan_with_reasons(PROBLEM, GPU).source == "tuned, exact"


@pytest.mark.parametrize(
    "config",
    [
        "nothing:block_m=1", "wmma", "wmma:block_m=32", "os:system", "wmma:block_m=__import__", "../../x:block_m=1",
        FASTER.replace("num_warps=1", "num_warps=0"), FASTER.replace("block_m=32", "block_m=" + "9" * 400),
        FASTER.replace("block_n=32", "block_n=256"), "hopper_plain:block_m=16,block_n=16,block_k=16,num_warps=4",
        FASTER + ",order=nowhere", FASTER + ",waves_n=0", FASTER + ",lds=1",
    ],
)  # fmt: skip
def test_a_config_that_cannot_run_is_passed_over(cache, config, caplog):
    put(entry(config=config))
    with caplog.at_level(logging.WARNING, "laneloom"):
        assert plan_with_reasons(PROBLEM, GPU).source == "cost model"
    assert "passed over" in caplog.text


def test_a_missing_and_an_unreadable_cache_do_no_harm(cache):
    folder = tuned.cache_folder(GPU.name)
    folder.mkdir(parents=True)
    (folder / "folder.json").mkdir()
    (folder / "nowhere.json").symlink_to("nothing")
    os.mkfifo(folder / "pipe.json")
    tuned.forget()
    assert plan_with_reasons(PROBLEM, GPU).source == "cost model"


def test_explain_names_who_chose(cache):
    from laneloom.cli import app

    def ask(shape):
        words = ["explain", "matmul", "--gpu", "gfx1151", "--shape", shape]
        shown = CliRunner().invoke(app, [*words, "--json"])
        assert CliRunner().invoke(app, words).exit_code == 0
        return json.loads(shown.stdout)

    put(entry())
    assert ask("200,200,200")["source"] == "tuned, exact"
    assert ask("208,200,200")["source"] == "tuned, nearest"
    assert PROBLEM.key in ask("208,200,200")["reason"]
    assert ask("4096,4096,4096")["source"] == "cost model"


def test_what_was_written_before_torch_was_timed_is_read(cache):
    path = put(entry())
    path.write_bytes(_fields().replace(b'"torch_us": null, ', b""))
    assert b"torch_us" not in path.read_bytes()
    tuned.forget()
    assert plan_with_reasons(PROBLEM, GPU).source == "tuned, exact"


def test_explain_says_what_patched_makes_of_the_users_table(cache):
    pytest.importorskip("torch")
    from laneloom.cli import app

    def ask(shape):
        words = ["explain", "matmul", "--gpu", "gfx1151", "--shape", shape]
        assert CliRunner().invoke(app, words).exit_code == 0
        return json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["patched"]

    put(entry())
    assert ask("200,200,200") == {}  # nothing was timed beside torch
    put(entry(gain=2.0, torch_us=15.0))
    reason = "1.500 x, measured 1x200x200x200 fp16 nn: 1.500 x, tuned on this machine 2026-11-20"
    assert ask("200,200,200") == {name: {"routed": True, "reason": reason} for name in ("eager", "captured")}
    near = ask("208,200,200")["eager"]  # there the cost model's choice counts
    assert not near["routed"]
    assert "0.750 x" in near["reason"]
    assert "nothing measured near" in ask("2000,200,200")["eager"]["reason"]


def test_the_packages_tables_are_in_order():
    from pathlib import Path

    paths = list((Path(tuned.__file__).parent / "tables").glob("*.json"))
    if not paths:
        pytest.skip("the package ships no table")
    for path in paths:
        gpu = get_gpu(path.stem)
        rows = tuned.parse_table(path.read_text(), gpu.name, "package")
        assert rows
        for row in rows:
            assert row.gain >= 1.01
            assert {"gpu", "triton", "commit", "date", "method", "trials"} <= set(row.provenance)
            _, layout, dtypes, *_ = row.key.split("/")
            dtype, _, dtype_out = dtypes.split("_")
            of = MatmulProblem.contiguous(*row.sizes[1:], dtype=dtype, dtype_out=dtype_out, layout=layout)
            assert of.key == row.key
            found = plan_with_reasons(of, get_gpu("h100") if row.is_of("H100") else gpu)
            assert (found.config.text, found.source) == (MatmulConfig.parse(row.config).text, "tuned, exact")

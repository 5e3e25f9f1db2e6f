"""Tuning: tables that nothing can break, what plan makes of them, studies that survive being killed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import pickle

import pytest
from typer.testing import CliRunner

from laneloom.errors import LaneloomError
from laneloom.gpu import get_gpu
from laneloom.ops.matmul import tuned
from laneloom.ops.matmul.config import MatmulConfig, plan, plan_with_reasons
from laneloom.ops.matmul.problem import MatmulProblem

GPU = get_gpu("gfx1151")
PROBLEM = MatmulProblem.contiguous(200, 200, 200)
FASTER = "wmma:block_m=32,block_n=32,block_k=64,num_warps=1,waves_n=1"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty user's cache, and no tables of the package."""
    monkeypatch.setenv("LANELOOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned, "table_path", lambda name: tmp_path / "package" / f"{name}.json")
    tuned.forget()
    yield tmp_path
    tuned.forget()


def entry(
    problem=PROBLEM, config=FASTER, *, gain=2.0, objective="measured", origin="cache", time_us=10.0, torch_us=None
):
    return tuned.TunedEntry(
        problem.key, tuned.kind_of(problem), tuned.sizes_of(problem), config, time_us, time_us * gain, objective,
        {"date": "2026-11-20"}, torch_us, origin,
    )  # fmt: skip


def put(one, gpu=GPU):
    path = tuned.cache_path(one.key, gpu.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tuned.render_table([one], gpu.name))
    tuned.forget()
    return path


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

    for path in (Path(tuned.__file__).parent / "tables").glob("*.json"):
        gpu = get_gpu(path.stem)
        rows = tuned.parse_table(path.read_text(), gpu.name, "package")
        assert rows
        for row in rows:
            assert row.time_us <= row.model_us
            assert {"gpu", "triton", "commit", "date", "method", "trials"} <= set(row.provenance)
            MatmulConfig.parse(row.config)


class Scripted:
    """Times by a formula, in place of a GPU."""

    objective, method = "measured", "a formula"

    def __init__(self, wrong=""):
        self.where, self.tried, self.wrong = {"gpu": "none"}, [], wrong

    def evaluate(self, configs, best_us):
        from laneloom.tune.outcome import Outcome

        for config in configs:
            self.tried.append(config.text)
            if self.wrong and self.wrong in config.text:
                yield Outcome(config, None, "wrong: scripted")
            else:
                yield Outcome(config, time_of(config))

    def confirm(self, configs, model):
        from laneloom.tune.outcome import Confirmed

        return Confirmed(configs[0], time_of(configs[0]), time_of(model))

    def close(self):
        pass


def time_of(config):
    return 1 + abs(config.block_m - 64) / 64 + abs(config.block_n - 64) / 64 + (config.order != "snake")


def study(evaluator, trials, **how):
    pytest.importorskip("optuna")
    from laneloom.tune import study as module

    module.kernel_hash = lambda: "0"  # so that a source which is edited meanwhile begins no new study
    return module.run_study(PROBLEM, GPU, evaluator, trials=trials, quick=True, **how)


def test_the_last_steps_of_the_ladder_are_tried_where_a_plan_takes_none():
    from laneloom.tune.space import starting_points

    def steps(gpu, **kinds):
        problem = MatmulProblem.contiguous(1000, 1000, 1000, **kinds)
        return [c.step for c in starting_points(problem, get_gpu(gpu), quick=True) if c.schedule.startswith("sgemm")]

    assert steps("gfx1100", dtype="fp32") == ["k5", "k6", "k7", "k8"]
    assert steps("gfx1100", dtype="fp32", layout="nt") == steps("gfx1151", dtype="fp16") == []
    assert steps("sm_90a", dtype="fp32") == []


@pytest.mark.parametrize(
    ("gpu", "kinds", "schedules"),
    [
        ("gfx1151", {"dtype": "fp16"}, {"wmma", "wmma_coop", "wmma_pingpong"}),
        ("gfx1201", {"dtype": "fp8", "layout": "nt"}, {"wmma", "wmma_direct"}),
        ("gfx1100", {"dtype": "fp32"}, {"fma"}),
        ("gfx942", {"dtype": "bf16"}, {"mfma"}),
        ("sm_90a", {"dtype": "bf16"}, {"hopper", "hopper_cluster", "hopper_plain"}),
        ("sm_90a", {"dtype": "fp32", "precision": "3xtf32"}, {"hopper_cluster"}),
        ("sm_90a", {"dtype": "fp64"}, {"hopper_precise", "hopper_plain"}),
        ("sm_90a", {"dtype": "fp32"}, {"hopper_stream"}),
    ],
)
def test_a_space_has_room_and_the_starting_points(gpu, kinds, schedules):
    from laneloom.tune.space import make_config, search_space, starting_points

    row, problem = get_gpu(gpu), MatmulProblem.contiguous(1000, 1000, 1000, **kinds)
    starts = starting_points(problem, row)
    space = search_space(problem, row, starts, draws=1500)
    assert schedules <= set(space)
    assert search_space(problem, row, starts, draws=1500) == space
    for config in starts:
        assert all(getattr(config, name) in values for name, values in space[config.schedule].items())
    rooms = [sum(len(values) > 1 for values in space[name].values()) for name in schedules]
    assert min(rooms) >= 3
    for name, knobs in space.items():
        config = make_config(name, {knob: values[-1] for knob, values in knobs.items()})
        assert MatmulConfig.parse(config.text) == config


def test_a_study_finds_the_minimum_and_goes_on(cache):
    first = Scripted()
    found = study(first, 20)
    assert len(set(first.tried)) == len(first.tried) == found.tried == 20
    assert first.tried[0] == found.model.text == plan_with_reasons(PROBLEM, GPU, use_tables=False).config.text
    assert all(MatmulConfig.parse(text).why_invalid(PROBLEM, GPU) is None for text in first.tried)
    assert found.time_us == min(time_of(MatmulConfig.parse(text)) for text in first.tried) < found.model_us
    second = Scripted()
    study(second, 24)
    assert len(second.tried) == 4
    assert not set(second.tried) & set(first.tried)
    third = Scripted()
    assert study(third, 24).tried == 24
    assert third.tried == []


def test_a_wrong_config_never_wins_and_is_told(cache):
    found = study(Scripted(wrong="block_m=64"), 16)
    assert found.config.block_m != 64
    assert found.wrong
    assert all("wrong: scripted" in line for line in found.wrong)


def test_the_models_own_choice_has_to_be_right(cache):
    with pytest.raises(LaneloomError, match="own choice"):
        study(Scripted(wrong="wmma"), 3)


@pytest.mark.parametrize("damage", [b'{"op_code": 4, "wor', b"\xff\xfe\n{}\n", b"{}\n", b'{"op_code": 99}\n', b"[]\n"])
def test_a_damaged_journal_is_mended(cache, damage, caplog):
    first = Scripted()
    journal = study(first, 5).journal
    with journal.open("ab") as file:
        file.write(damage)
    with caplog.at_level(logging.WARNING, "laneloom"):
        second = Scripted()
        assert study(second, 7).tried == 7
    torn = not damage.endswith(b"\n")
    assert len([r for r in caplog.records if "journal" in r.getMessage()]) == (0 if torn else 1)
    assert len(second.tried) in ((2,) if torn or (b"op" not in damage and damage != b"{}\n") else (2, 7))


class Dies(Scripted):
    """Ends its process while the ninth config is tried."""

    def evaluate(self, configs, best_us):
        for outcome in super().evaluate(configs, best_us):
            if len(self.tried) == 9:
                os.kill(os.getpid(), 9)
            yield outcome


def test_a_killed_study_loses_the_running_trial_at_most(cache):
    pytest.importorskip("optuna")
    child = multiprocessing.get_context("fork").Process(target=study, args=(Dies(), 14))
    child.start()
    child.join()
    assert child.exitcode == -9
    after = Scripted()
    assert study(after, 14).tried == 14
    assert len(after.tried) == 6  # 8 were told before


class DiesAtOnce(Scripted):
    """Ends its process while the first of many proposals is tried."""

    def evaluate(self, configs, best_us):
        os.kill(os.getpid(), 9)


@pytest.mark.parametrize("trials", [5, 14])
def test_a_study_killed_in_its_first_batch_tries_the_starting_points_again(cache, trials):
    pytest.importorskip("optuna")
    child = multiprocessing.get_context("fork").Process(target=study, args=(DiesAtOnce(), 14), kwargs={"together": 8})
    child.start()
    child.join()
    assert child.exitcode == -9
    after, fresh = Scripted(), Scripted()
    found = study(after, trials, together=8)
    assert found.model.text in after.tried
    assert found.tried == len(set(after.tried)) == len(after.tried)
    found.journal.unlink()
    study(fresh, trials, together=8)
    assert after.tried[:5] == fresh.tried[:5]


def test_two_processes_do_not_share_a_study(cache):
    from laneloom.tune.study import _locked

    journal = study(Scripted(), 3).journal
    with _locked(journal.with_suffix(".lock")), pytest.raises(LaneloomError, match="another process"):
        study(Scripted(), 5)


def _write_often(path, text):
    from laneloom.tune.tables import write_atomically

    for _ in range(60):
        write_atomically(path, text)


def test_writers_and_readers_together(cache):
    """Two processes write one entry over and over while this one reads: always a whole one."""
    pytest.importorskip("optuna")
    path = put(entry())
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write_often, args=(path, path.read_text())) for _ in range(2)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers) or reads == 0:
        assert len(tuned.parse_table(path.read_text(), GPU.name, "cache")) == 1
        reads += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_shipping_replaces_the_same_product(cache):
    pytest.importorskip("optuna")
    from laneloom.tune.tables import ship

    other = MatmulProblem.contiguous(64, 64, 64)
    for one in (entry(), entry(other), entry(time_us=5.0), entry(objective="predicted")):
        path = ship(one, GPU)
    rows = tuned.parse_table(path.read_text(), GPU.name, "package")
    assert [(row.key, row.objective, row.time_us) for row in rows] == sorted(
        [(PROBLEM.key, "measured", 5.0), (PROBLEM.key, "predicted", 10.0), (other.key, "measured", 10.0)]
    )
    path.write_text("{")
    with pytest.raises(LaneloomError, match="damaged"):
        ship(entry(), GPU)
    assert path.read_text() == "{"


def test_the_command_tunes_by_prediction(cache):
    pytest.importorskip("optuna")
    from laneloom.cli import app

    words = ["tune", "matmul", "--gpu", "gfx1151", "--shape", "48,40,64", "--trials", "2", "--quick", "--jobs", "1"]
    shown = CliRunner().invoke(app, [*words, "--json"])
    assert shown.exit_code == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert told["objective"] == "predicted"
    assert told["time_us"] <= told["model_us"]
    assert told["wrong"] == []
    problem = MatmulProblem.contiguous(48, 40, 64)
    assert plan_with_reasons(problem, GPU).source == "tuned, exact"
    assert plan_with_reasons(problem, GPU).config.text == told["config"]


def test_what_workers_are_sent_can_be_sent():
    from laneloom.tune.predicted import try_named

    arguments = pickle.loads(pickle.dumps((PROBLEM, GPU.name, FASTER)))
    outcome = try_named(*arguments)
    assert outcome.finished
    assert pickle.loads(pickle.dumps(outcome)) == outcome


def test_verification_sees_a_wrong_result(monkeypatch):
    pytest.importorskip("optuna")
    from laneloom.ops.matmul import execute
    from laneloom.tune.predicted import why_wrong

    config, whole = MatmulConfig.parse(FASTER), execute.multiply_into
    assert why_wrong(PROBLEM, GPU, config) is None

    def off_by_a_little(a, b, out, *rest, **how):
        whole(a, b, out, *rest, **how)
        out[-1, -1] *= 1.01

    monkeypatch.setattr(execute, "multiply_into", off_by_a_little)
    assert why_wrong(PROBLEM, GPU, config).startswith("wrong: C[39, 39]")

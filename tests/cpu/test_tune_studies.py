"""Studies of the tuner: they survive being killed, never let a wrong config win, and share nothing by accident."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import pickle

import pytest
from tuned_entries import FASTER, GPU, PROBLEM, entry, put
from typer.testing import CliRunner

from laneloom.errors import LaneloomError
from laneloom.gpu import get_gpu
from laneloom.ops.matmul import tuned
from laneloom.ops.matmul.config import MatmulConfig, plan_with_reasons
from laneloom.ops.matmul.problem import MatmulProblem


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
    from laneloom.tune.space import make_config, search_space, starting_points, value_of

    row, problem = get_gpu(gpu), MatmulProblem.contiguous(1000, 1000, 1000, **kinds)
    starts = starting_points(problem, row)
    space = search_space(problem, row, starts, draws=1500)
    assert schedules <= set(space)
    assert search_space(problem, row, starts, draws=1500) == space
    for config in starts:
        assert all(value_of(config, name) in values for name, values in space[config.schedule].items())
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
    assert len(tuned.parse_table(ship(entry(gpu="another"), GPU).read_text(), GPU.name, "package")) == 4
    ship(entry(gain=1.0, gpu="another"), GPU)
    ship(entry(other, gain=1.005), GPU)  # noise: the cost model decides again
    rows = tuned.parse_table(path.read_text(), GPU.name, "package")
    assert [row.key for row in rows] == [PROBLEM.key, PROBLEM.key]
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


def test_the_command_tunes_several_products(cache):
    pytest.importorskip("optuna")
    from laneloom.cli import app

    words = ["tune", "matmul", "--gpu", "gfx1151", "--trials", "1", "--quick", "--jobs", "1", "--json"]
    shown = CliRunner().invoke(app, [*words, "--shape", "16,16,32", "--shape", "32,16,16", "--layout", "nn,nt"])
    assert shown.exit_code == 0, shown.stderr
    found = [(*entry["sizes"][1:], entry["key"].split("/")[1]) for entry in json.loads(shown.stdout)]
    assert found == [(16, 16, 32, "nn"), (16, 16, 32, "nt"), (32, 16, 16, "nn"), (32, 16, 16, "nt")]


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

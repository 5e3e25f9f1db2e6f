"""The tuner on a real GPU: every config right before it is timed, the cost model's own among what is timed whole."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("optuna")
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.gpu import get_gpu
from laneloom.ops.matmul import tuned
from laneloom.ops.matmul.config import MatmulConfig, plan_with_reasons
from laneloom.ops.matmul.problem import MatmulProblem
from laneloom.ops.target import active_gpu
from laneloom.tune.measured import MeasuredEvaluator
from laneloom.tune.workers import Workers


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LANELOOM_CACHE_DIR", str(tmp_path))
    tuned.forget()
    yield
    monkeypatch.undo()
    tuned.forget()


def test_the_command_tunes_several_products_and_plan_takes_what_it_found(own_cache):
    words = ["tune", "matmul", "--shape", "256,512,1024", "--dtype", "bf16", "--layout", "nn,nt"]
    shown = CliRunner().invoke(app, [*words, "--quick", "--trials", "4", "--jobs", "2", "--json"])
    assert shown.exit_code == 0, shown.output
    for entry, layout in zip(json.loads(shown.stdout), ("nn", "nt"), strict=True):
        assert entry["wrong"] == []
        assert 0 < entry["time_us"] <= entry["model_us"]
        problem = MatmulProblem.contiguous(256, 512, 1024, dtype="bf16", layout=layout)
        found = plan_with_reasons(problem, active_gpu())
        assert (found.source, found.config.text) == ("tuned, exact", entry["config"])


def test_the_models_choice_is_timed_whole_however_slow():
    """Its time is what gains are counted from; another config that is as slow is given up after a look."""
    gpu = active_gpu()
    if gpu.matrix_instructions != "wgmma":
        pytest.skip("the configs are Hopper's")
    problem = MatmulProblem.contiguous(1024, 1024, 1024, dtype="bf16")
    slow = MatmulConfig.parse("hopper:block_m=64,block_n=64,block_k=64,stages=2,consumers=1")
    fast = plan_with_reasons(problem, get_gpu("sm_90a"), use_tables=False).config
    workers = Workers(2)
    try:
        evaluator = MeasuredEvaluator(problem, gpu, workers=workers, quick=True)
        usual = {o.config.text: o for o in evaluator.evaluate([slow, fast], None)}
        assert usual[fast.text].finished
        assert "x the best" in (usual[slow.text].why or "")
        evaluator = MeasuredEvaluator(problem, gpu, workers=workers, quick=True)
        evaluator._model = slow
        assert all(outcome.finished for outcome in evaluator.evaluate([slow, fast], None))
    finally:
        workers.close()

"""What the tuner proposes on Hopper: configs that run, the plan's own first, and all that the plan can choose."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
from sampled import sampled

pytest.importorskip("torch")

from laneloom.bench.suites import load_suite
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import plan_with_reasons
from laneloom.ops.matmul.config_cluster import ClusterConfig
from laneloom.ops.matmul.model_hopper import clusters_at_once
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem
from laneloom.tune import space

GPU = get_gpu("sm_90a")


class Chooser:
    """In place of an Optuna trial: any value, or those that it is given."""

    def __init__(self, seed=0, **given):
        self.random, self.given = random.Random(seed), given

    def suggest_categorical(self, name, choices):
        return self.given[name] if name in self.given else self.random.choice(choices)


def problem(m, n, k, **kinds):
    return MatmulProblem.contiguous(m, n, k, **{"dtype": "bf16", **kinds})


PROBLEMS = [
    problem(4096, 4096, 4096), problem(1000, 1000, 1000), problem(512, 512, 512, layout="tn"), problem(40, 72, 520),
    problem(16, 4096, 4096, layout="nt"), problem(1024, 1024, 4096, layout="nt"), problem(1001, 999, 1003),
    problem(4096, 4096, 4096, dtype="fp8", dtype_out="bf16"),
    problem(512, 512, 2048, dtype="fp8", precision="promoted"),
    problem(2048, 2048, 2048, dtype="int8", dtype_out="int32", layout="nt"),
    problem(4096, 4096, 4096, dtype="fp32", precision="3xtf32"), problem(256, 512, 512, batch=8),
    problem(2048, 2048, 2048, epilogue=Epilogue(activation="gelu")),
]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("of", PROBLEMS, ids=lambda of: of.key)
@pytest.mark.parametrize("quick", [False, True])
def test_what_is_proposed_of_clusters_is_valid_and_of_others_refused_with_a_sentence(of, quick):
    starts = space.starting_points(of, GPU, quick=quick)
    found = space.search_space(of, GPU, starts, quick=quick, draws=400)
    for schedule in found:
        given = Chooser(schedule=schedule)
        configs = [space.propose(given, found, of, GPU, starts) for _ in range(60)]
        refused = [why for config in configs if (why := config.why_invalid(of, GPU)) is not None]
        assert all(why.startswith(f"{schedule}: ") and len(why.split()) > 3 for why in refused)
        if schedule in space.SETTLED:
            assert not refused
            assert len({config.text for config in configs}) > 40
        if schedule == "hopper_cluster":
            assert all(config.programs == clusters_at_once(config.peers, GPU) * config.peers for config in configs)
    assert "hopper_cluster" in found


def test_knobs_that_are_refused_fall_back_alone():
    """The rest of a proposal stays as it was proposed."""
    of = PROBLEMS[0]
    knobs = space._hopper_cluster(of, GPU)
    proposed = {name: values[-1] for name, values in knobs.items()} | {
        "swapped": False, "line": 0, "block_m,consumers": (128, 2), "block_n": 192,
        "cluster_m,cluster_n,cluster_k,programs": (2, 1, 1, 132), "split,hold_back,own_tiles": (True, 1, False),
        "stages": 14, "panels": 2, "tiles_n": 0,
    }  # fmt: skip
    wanted = space.make_config("hopper_cluster", proposed)
    # A split takes two strips, and 14 stages are too many.
    assert "split" in (wanted.with_knobs(stages=4).why_invalid(of, GPU) or "")
    settled = space._settle(wanted, knobs, of, GPU, [])
    room = GPU.lds_bytes // settled.stage_bytes(of)
    changed = {f.name for f in fields(wanted) if getattr(wanted, f.name) != getattr(settled, f.name)}
    assert changed == {"split", "hold_back", "stages"}
    assert (settled.split, settled.hold_back) == (False, 2)
    assert settled.stages in (room, room - 1)
    assert settled.with_knobs(stages=settled.stages + 1).why_invalid(of, GPU) is not None


SUITE = [(sizes, layout) for group in load_suite("gemm").values() for sizes in group for layout in ("nn", "nt")]


def test_the_plans_own_config_is_the_first_trial_of_every_product_of_the_suite():
    clusters = 0
    products = sampled(SUITE, every=3)
    for sizes, layout in products:
        of = problem(*sizes, layout=layout)
        starts = space.starting_points(of, GPU)
        planned = plan_with_reasons(of, GPU, use_tables=False).config
        assert starts[0] == planned
        found = space.search_space(of, GPU, starts[:1], draws=1)
        assert space.propose(Chooser(**space.params_of(planned, found)), found, of, GPU, starts) == planned
        if isinstance(planned, ClusterConfig):
            clusters += 1
            knobs = space._hopper_cluster(of, GPU)
            assert all(space.value_of(planned, name) in values for name, values in knobs.items())
            searched = {name for names in knobs for name in names.split(",")}
            left = {f.name: f for f in fields(planned) if f.name not in searched}
            assert all(getattr(planned, name) == f.default for name, f in left.items()), "a knob that is not searched"
    assert clusters > len(products) // 3


class Scripted:
    """Times by a formula that likes what the plan does not take, in place of a GPU."""

    objective, method, where = "measured", "a formula", {"gpu": "none"}

    def __init__(self):
        self.tried = []

    @staticmethod
    def time_of(config):
        return 2.0 - (config.schedule == "hopper_cluster") * (0.5 + getattr(config, "fetched", 0) / 100)

    def evaluate(self, configs, best_us):
        from laneloom.tune.outcome import Outcome

        for config in configs:
            self.tried.append(config)
            yield Outcome(config, self.time_of(config))

    def confirm(self, configs, model):
        from laneloom.tune.outcome import Confirmed

        return Confirmed(configs[0], self.time_of(configs[0]), self.time_of(model))


def test_a_study_begins_at_the_plan_and_finds_what_another_knob_gains(cache, monkeypatch):
    pytest.importorskip("optuna")
    from laneloom.tune import study

    monkeypatch.setattr(study, "kernel_hash", lambda: "0")
    of, evaluator = PROBLEMS[0], Scripted()
    result = study.run_study(of, GPU, evaluator, trials=40)
    assert evaluator.tried[0] == plan_with_reasons(of, GPU, use_tables=False).config == result.model
    assert all(config.why_invalid(of, GPU) is None for config in evaluator.tried)
    assert result.config.fetched > result.model.fetched == 2
    assert len({(c.split, c.hold_back) for c in evaluator.tried if isinstance(c, ClusterConfig)}) > 2

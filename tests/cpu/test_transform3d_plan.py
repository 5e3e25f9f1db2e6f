"""What the plan of the transform takes on Hopper, held against the configs that were measured."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from laneloom.gpu import get_gpu
from laneloom.ops.transform3d import FusedConfig, Transform3dProblem, parse_config, plan
from laneloom.ops.transform3d.config_flat import FlatConfig
from laneloom.ops.transform3d.model_hopper import estimate_us
from laneloom.ops.transform3d.plan_hopper import _OF_LARGE, _OF_LARGE_ORDERS, _OF_MANY, LARGE, MANY

pytest.importorskip("torch")
from laneloom.bench.transform3d_configs import SLOWEST, Row, read

HOPPER = get_gpu("sm_90a")
RESULTS = Path(__file__).parents[2] / "results/h200"


def rows_of_batches(name: str) -> dict[Transform3dProblem, list[Row]]:
    found = defaultdict(list)
    for row in read(RESULTS / name):
        found[row.problem].append(row)
    return found


@pytest.fixture(scope="module")
def batches() -> dict[Transform3dProblem, list[Row]]:
    """Without those of few tensors, which clusters hold: their configs are in a file of their own."""
    every = rows_of_batches("transform3d_configs.csv")
    return {p: rows for p, rows in every.items() if getattr(plan(p, HOPPER), "cluster", 1) == 1}


def regret(problem: Transform3dProblem, rows: list[Row]) -> float:
    """By how much what the plan takes is slower than the fastest; a config that was left out of the file as so slow."""
    times = {parse_config(row.config): row.us / row.copy_us for row in rows}  # two runs, on two GPUs of a kind
    return times.get(plan(problem, HOPPER), SLOWEST * min(times.values())) / min(times.values()) - 1


@pytest.mark.parametrize(
    ("schedule", "least", "average", "many"), [("fused", 80, 0.03, 0.1), ("flat", 250, 0.02, 0.06)])
def test_the_plan_is_near_the_fastest(batches, schedule, least, average, many):
    regrets = [regret(p, rows) for p, rows in batches.items() if plan(p, HOPPER).schedule == schedule]
    assert len(regrets) > least
    assert mean(regrets) < average
    assert max(regrets) < 0.4
    assert mean(each > 0.1 for each in regrets) < many


def test_what_many_tensors_have_was_measured(batches):
    def is_large(problem: Transform3dProblem) -> bool:
        return problem.bytes >= LARGE

    def is_many(problem: Transform3dProblem) -> bool:
        return problem.count >= MANY and not is_large(problem)

    for table, of in ((_OF_MANY, is_many), (_OF_LARGE, is_large)):
        for dtype, orders in table.items():
            for k, knobs in orders.items():
                alike = [p for p in batches if (p.dtype, p.k) == (dtype, k) and of(p)]
                measured = [parse_config(row.config) for p in alike for row in batches[p]]
                assert not alike or knobs in {(c.group, c.warps, c.ctas_per_sm) for c in measured}, (dtype, k)  # pyright: ignore
                for problem in alike:
                    config = plan(problem, HOPPER)
                    assert (config.group, config.warps, config.ctas_per_sm) == knobs, problem.key  # pyright: ignore


def test_few_tensors_have_ctas_of_their_own():
    """Where an SM has room for all of them at once."""
    for k, dtype in ((6, "fp64"), (10, "complex128"), (16, "complex64")):
        assert plan(Transform3dProblem(k, 100, dtype), HOPPER).group == 1  # pyright: ignore
    assert plan(Transform3dProblem(6, 100_000, "fp64"), HOPPER).group > 1  # pyright: ignore


def test_the_estimate_grows_with_the_batch():
    batches = [Transform3dProblem(10, count, "fp64") for count in (1, 3000, 30000, 300000)]
    for config in (FusedConfig(group=2, warps=4, ctas_per_sm=4), FlatConfig(group=2, warps=4, ctas_per_sm=4)):
        times = [estimate_us(problem, config, HOPPER) for problem in batches]
        assert times == sorted(times)
        assert times[3] > 8 * times[2] > 40


def test_few_tensors_are_held_by_clusters():
    for count, cluster in ((1, 7), (15, 7), (16, 4), (30, 4), (31, 2), (66, 2)):
        assert plan(Transform3dProblem(27, count), HOPPER).cluster == cluster, count  # pyright: ignore
    assert plan(Transform3dProblem(20, 66), HOPPER).cluster == 2  # pyright: ignore
    assert plan(Transform3dProblem(20, 67), HOPPER).cluster == 1  # pyright: ignore
    for k, dtype, as_flat in ((21, "fp64", True), (20, "fp64", False), (20, "fp32", True), (32, "fp32", False)):
        config = plan(Transform3dProblem(k, 3, dtype), HOPPER)
        assert isinstance(config, FusedConfig)
        assert (config.cluster, config.as_flat) == (8 if k == 32 else 7, as_flat)
    assert plan(Transform3dProblem(12, 1), HOPPER).cluster == 1  # pyright: ignore


def test_few_tensors_have_clusters_that_were_among_the_fastest():
    every = {p: rows for p, rows in rows_of_batches("transform3d_few.csv").items() if p.k < 40}
    regrets = [regret(p, rows) for p, rows in every.items() if getattr(plan(p, HOPPER), "cluster", 1) > 1]
    assert len(regrets) > 140
    assert mean(regrets) < 0.02
    assert max(regrets) < 0.25


def test_large_orders_are_held_by_clusters_that_were_among_the_fastest():
    every = rows_of_batches("transform3d_large.csv")
    regrets = {problem: regret(problem, rows) for problem, rows in every.items()}
    assert len(regrets) == 76
    assert mean(regrets.values()) < 0.005
    assert max(regrets.values()) < 0.04
    for dtype, orders in _OF_LARGE_ORDERS.items():
        for k, (cluster, warps, ctas, unroll) in orders.items():
            alignment = 16 if dtype == "complex128" else 8
            for problem in (Transform3dProblem(k, 67, dtype), Transform3dProblem(k, 5000, dtype, alignment=alignment)):
                config = plan(problem, HOPPER)
                assert isinstance(config, FusedConfig), problem.key
                found = config.cluster, config.warps, config.ctas_per_sm, config.unroll
                assert found == (cluster, warps, ctas, unroll), problem.key

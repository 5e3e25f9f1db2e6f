"""Which config attention over a cache takes on Hopper, held against what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, mean

import pytest

pytest.importorskip("torch")

from laneloom.bench.attention import Case, decode_problem
from laneloom.bench.decode_tiles import Row, cases_of, config_of, iterate_configs, read
from laneloom.gpu import get_gpu
from laneloom.ops.attention.config_decode import DecodeProblem
from laneloom.ops.attention.plan_decode import clusters_at_once, estimate_us, hopper_configs, plan_decode

GPU = get_gpu("sm_90a")
MEASURED = Path(__file__).parents[2] / "results" / "h200" / "decode_tiles.csv"
#: problems of every kind: one sequence, many, few heads, wide ones, heads that share a row of memory
PROBLEMS = [
    DecodeProblem(batch, heads, kv_heads, 1, keys, d, d, "bf16", adjacent=True)
    for batch in (1, 3, 16, 128)
    for heads, kv_heads, d in ((32, 8, 128), (12, 12, 64), (8, 1, 256), (16, 16, 80), (40, 40, 40))
    for keys in (1, 50, 1000, 65536)
]


def by_case() -> dict[Case, list[Row]]:
    found: dict[Case, list[Row]] = {}
    for row in read(MEASURED):
        found.setdefault(row.case, []).append(row)
    return found


def resident_of(problem: DecodeProblem, row: Row) -> int:
    """Programs of a processor that the plan counts on."""
    config = config_of(row.config)
    pairs = hopper_configs(problem, GPU, [(config.cluster, config.clusters)])
    return next(n for n, other in pairs if replace(other, early=config.early) == config)


def test_the_plan_takes_what_was_measured_to_be_fast():
    regrets, ratios, cases = [], [], by_case()
    for case, rows in cases.items():
        text = plan_decode(decode_problem(case), GPU).text
        (taken,) = (row for row in rows if row.config == text)
        regrets.append(taken.us / min(row.us for row in rows) - 1)
        ratios.append(taken.torch_us / taken.us)
    assert list(cases) == cases_of([5, 6, 7])
    assert mean(regrets) < 0.015
    assert max(regrets) < 0.25
    assert geometric_mean(ratios) > 1.18
    assert sum(ratio < 0.97 for ratio in ratios) < 0.06 * len(ratios)


def test_estimates_are_near_what_was_measured():
    checked = 0
    for case, rows in list(by_case().items())[::3]:
        near = 1.2 * min(row.us for row in rows)
        for row in rows:
            if row.us <= near and config_of(row.config).cluster <= 8:
                problem = decode_problem(case)
                estimate = estimate_us(problem, config_of(row.config), resident_of(problem, row), GPU)
                assert 0.6 * row.us < estimate < 1.5 * row.us, row
                checked += 1
    assert checked > 300


@pytest.mark.parametrize("gpu", [GPU, get_gpu("h100")])
def test_programs_share_a_processor_only_where_there_are_not_enough(gpu):
    shared = 0
    for problem in PROBLEMS:
        for resident, config in hopper_configs(problem, gpu):
            assert config.why_invalid(problem, gpu) is None
            assert config.alone == (resident == 1)
            assert 2 * config.lds_bytes(problem) > gpu.lds_bytes or not config.alone
            programs, places = config.programs(problem), config.cluster * clusters_at_once(config.cluster, gpu)
            if resident > 1:
                shared += 1
                assert resident * config.lds_bytes(problem) <= gpu.lds_bytes
                assert programs > places or 2 * programs > places
    assert shared


def test_rings_hold_what_memory_wants_on_the_way():
    """Fewer programs have longer rings: 12 MB in all, as far as there is room."""
    one, many = (DecodeProblem(batch, 32, 8, 1, 8192, 128, 128, "bf16") for batch in (8, 16))
    rings = {p.batch: [c for n, c in hopper_configs(p, GPU, [(1, 1)]) if n == 1] for p in (one, many)}
    assert [(c.stages, c.programs(p)) for p in (one, many) for c in rings[p.batch]] == [(6, 64), (3, 128)]


def test_large_clusters_are_for_short_caches():
    for problem in PROBLEMS:
        sizes = {config.cluster for _, config in hopper_configs(problem, GPU)}
        assert problem.cache_bytes < 30e6 or max(sizes) <= 8


def test_no_sequence_is_a_plan_too():
    for problem in PROBLEMS[::7]:
        assert plan_decode(replace(problem, batch=0), GPU).schedule == "hopper_decode"
        assert plan_decode(replace(problem, keys=0), GPU).schedule == "hopper_decode"


def test_configs_are_read_back():
    for row in read(MEASURED)[::50]:
        assert config_of(row.config).text == row.config
    measured = list(iterate_configs(PROBLEMS[0], GPU))
    assert measured == [config_of(config.text) for config in measured]

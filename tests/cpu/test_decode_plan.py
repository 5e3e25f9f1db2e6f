"""Which config attention over a cache takes on Hopper, held against what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, mean

import pytest

pytest.importorskip("torch")

from laneloom.bench.attention import Case, decode_problem
from laneloom.bench.decode_tiles import (
    Row,
    cases_of,
    config_of,
    iterate_configs,
    lengths_of,
    planned,
    read,
    spreads_of,
    summarise,
)
from laneloom.gpu import get_gpu
from laneloom.ops.attention.config_decode import DecodeProblem, HopperRangesConfig
from laneloom.ops.attention.model_decode import EVEN, RAGGED, SKEWED, clusters_at_once, estimate_us, mean_share
from laneloom.ops.attention.plan_decode import hopper_configs, plan_decode, ranges_configs

GPU = get_gpu("sm_90a")
MEASURED = Path(__file__).parents[2] / "results" / "h200" / "decode_tiles.csv"
#: problems of every kind: one sequence, many, few heads, wide ones, heads that share a row of memory
PROBLEMS = [
    DecodeProblem(batch, heads, kv_heads, 1, keys, d, d, "bf16", adjacent=True)
    for batch in (1, 3, 16, 128)
    for heads, kv_heads, d in ((32, 8, 128), (12, 12, 64), (8, 1, 256), (16, 16, 80), (40, 40, 40))
    for keys in (1, 50, 1000, 65536)
]


def by_case(spread: int) -> dict[Case, list[Row]]:
    found: dict[Case, list[Row]] = {}
    for row in read(MEASURED):
        if row.spread == spread:
            found.setdefault(row.case, []).append(row)
    return found


def resident_of(problem: DecodeProblem, row: Row) -> int:
    """Programs of a processor that the plan counts on."""
    config = config_of(row.config)
    if isinstance(config, HopperRangesConfig):
        return next(n for n, other in ranges_configs(problem, GPU) if other == config)
    pairs = hopper_configs(problem, GPU, [(config.cluster, config.clusters)])
    return next(n for n, other in pairs if replace(other, early=config.early) == config)


@pytest.mark.parametrize(
    ("spread", "behind", "most", "ratio", "slow"),
    [(EVEN, 0.024, 0.26, 1.25, 0.05), (RAGGED, 0.02, 0.18, 3.4, 0), (SKEWED, 0.031, 0.31, 4.2, 0)],
)
def test_the_plan_takes_what_was_measured_to_be_fast(spread, behind, most, ratio, slow):
    cases, taken = by_case(spread), planned(read(MEASURED), GPU, spread)
    assert [row.case for row in taken] == list(cases)
    assert list(cases) == [case for case in cases_of([5, 6, 7]) if spread in spreads_of(case.batch)]
    regrets = [row.us / min(other.us for other in cases[row.case]) - 1 for row in taken]
    assert mean(regrets) < behind
    assert max(regrets) < most
    assert geometric_mean(row.torch_us / row.us for row in taken) > ratio
    assert sum(row.torch_us < 0.97 * row.us for row in taken) <= slow * len(taken)


def test_programs_that_divide_all_keys_win_where_lengths_differ():
    """And not everywhere, nor nowhere: both schedules are needed."""
    def mean_of(schedules):
        best = []
        for spread in (EVEN, RAGGED, SKEWED):
            for rows in by_case(spread).values():
                least = min(row.us for row in rows)
                of = [row.us for row in rows if row.config.partition(":")[0] in schedules]
                best.append(min(of, default=1.25 * least) / least)
        return mean(best)

    assert mean_of(["hopper_decode"]) > 1.01
    assert mean_of(["hopper_decode_ranges"]) > 1.05
    taken = {row.config.partition(":")[0] for row in planned(read(MEASURED), GPU, SKEWED)}
    assert taken == {"hopper_decode", "hopper_decode_ranges"}


@pytest.mark.parametrize("spread", [EVEN, RAGGED, SKEWED])
def test_estimates_are_near_what_was_measured(spread):
    checked = 0
    for case, rows in list(by_case(spread).items())[::6]:
        near = 1.2 * min(row.us for row in rows)
        for row in rows:
            if row.us <= near and getattr(config_of(row.config), "cluster", 1) <= 8:
                problem = decode_problem(case)
                estimate = estimate_us(problem, config_of(row.config), resident_of(problem, row), GPU, spread)
                assert 0.6 * row.us < estimate < 1.6 * row.us, row
                checked += 1
    assert checked > 100


def test_lengths_differ_as_their_spread_says():
    for spread in (EVEN, RAGGED, SKEWED):
        lengths = lengths_of(40, 8192, spread)
        assert max(lengths) == 8192
        assert mean(lengths) / 8192 == pytest.approx(mean_share(40, spread), rel=1e-3)
    assert len(set(lengths_of(40, 8192, EVEN))) == 1


def test_the_table_of_lengths():
    head, _, *lines = summarise(read(MEASURED), GPU).splitlines()
    assert len(lines) == 3
    assert all(line.count("|") == head.count("|") for line in lines)


def test_ranges_leave_even_lengths_uncut():
    """As many programs as heads, or a whole number of times as many or as few, are among what is estimated; and rows
    that share a line with their neighbours are not."""
    for problem in PROBLEMS:
        found = [config for _, config in ranges_configs(problem, GPU)]
        for resident, config in ranges_configs(problem, GPU):
            assert config.why_invalid(problem, GPU) is None
            assert resident * (config.lds_bytes(problem) + 1024) <= GPU.lds_bytes
            assert config.alone == (resident == 1)
            assert config.abreast * problem.d * 2 % 128 == 0 or config.abreast == problem.kv_heads
        if found:
            assert any(c.ranges % c.units(problem) == 0 or c.units(problem) / c.ranges > 1 for c in found)
    assert not list(ranges_configs(PROBLEMS[0], replace(GPU, compute_units=10**6))), "fewer tiles than programs"


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
        assert plan_decode(replace(problem, batch=0), GPU).schedule.startswith("hopper_decode")
        assert plan_decode(replace(problem, keys=0), GPU).schedule.startswith("hopper_decode")


def test_a_window_is_planned_for_as_the_keys_that_it_has():
    for problem in PROBLEMS:
        near = replace(problem, left=999, queries=1)
        assert plan_decode(near, GPU) == plan_decode(replace(near, keys=min(problem.keys, 1000)), GPU)
    wide = DecodeProblem(1, 32, 8, 1, 131072, 128, 128, "bf16", left=127)
    assert plan_decode(wide, get_gpu("gfx1151")).splits == 128 // 4 // 16


def test_configs_are_read_back():
    for row in read(MEASURED)[::50]:
        assert config_of(row.config).text == row.config
    measured = list(iterate_configs(PROBLEMS[0], GPU))
    assert measured == [config_of(config.text) for config in measured]

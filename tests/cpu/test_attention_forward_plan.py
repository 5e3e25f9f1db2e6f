"""Which config the forward of attention takes on Hopper, held against what was measured."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean, mean

import pytest

pytest.importorskip("torch")

from laneloom.bench.attention import Case
from laneloom.bench.attention_tiles import Row, cases_of, config_of, problem_of, read
from laneloom.gpu import get_gpu
from laneloom.ops.attention.config import plan
from laneloom.ops.attention.config_hopper import HopperForwardConfig
from laneloom.ops.attention.plan_forward import estimate_us, forward_configs, steps_of
from laneloom.ops.attention.problem import AttentionProblem

GPU = get_gpu("sm_90a")
RESULTS = Path(__file__).parents[2] / "results"
#: the file, its cases, the most that the plan is behind the fastest on average, the least mean over cuDNN, the least
MEASURED = [
    ("h200/attention_tiles.csv", cases_of([]), 0.015, 1.22, 0.93),
    ("h100/attention_tiles.csv", cases_of([11, 12]), 0.015, 1.27, 0.85),
    ("h100/attention_few.csv", cases_of([], few=True), 0.05, 1.9, 0.75),
]


def by_case(name: str) -> dict[Case, list[Row]]:
    found: dict[Case, list[Row]] = {}
    for row in read(RESULTS / name):
        found.setdefault(row.case, []).append(row)
    return found


@pytest.mark.parametrize(("name", "cases", "behind", "over_cudnn", "least"), MEASURED)
def test_the_plan_takes_what_was_measured_to_be_fast(name, cases, behind, over_cudnn, least):
    regrets, ratios = [], []
    for case, rows in by_case(name).items():
        text = plan(problem_of(case), GPU).text
        if text.endswith("parts=1") or "few" in name:  # the other files are of whole keys
            (taken,) = (row for row in rows if row.config == text)
            regrets.append(taken.us / min(row.us for row in rows) - 1)
            ratios.append(taken.cudnn_us / taken.us)
    assert set(by_case(name)) == set(cases)
    assert len(ratios) >= len(cases) - 1
    assert mean(regrets) < behind
    assert max(regrets) < 0.15
    assert geometric_mean(ratios) > over_cudnn
    assert min(ratios) > least


def test_parts_pay_where_tiles_are_few():
    fastest = [min(rows, key=lambda row: row.us) for rows in by_case("h100/attention_few.csv").values()]
    apart = [row for row in fastest if not row.config.endswith("parts=1")]
    assert len(apart) > len(fastest) / 2
    assert geometric_mean(row.cudnn_us / row.us for row in apart) > 2.5


@pytest.mark.parametrize("name", [name for name, *_ in MEASURED])
def test_the_estimates_are_near_what_was_measured(name):
    for rows in by_case(name).values():
        near = 1.3 * min(row.us for row in rows)
        for row in rows:
            estimate = estimate_us(problem_of(row.case), config_of(row.config))
            assert row.us > near or 0.5 * row.us < estimate < 1.75 * row.us, row


def test_configs_are_read_back():
    for row in read(RESULTS / "h200/attention_tiles.csv")[::50]:
        assert config_of(row.config).text == row.config


@pytest.mark.parametrize(
    ("queries", "keys", "first", "last", "rows", "steps"),
    [
        (197, 197, None, None, 128, [2, 2]), (256, 256, None, 0, 64, [1, 1, 2, 2]),
        (200, 300, -70, 30, 64, [1, 2, 2, 2]), (128, 64, 100, None, 64, [0, 0]), (1, 5, None, None, 64, [1]),
    ],
)  # fmt: skip
def test_steps_are_blocks_of_keys_that_a_tile_sees(queries, keys, first, last, rows, steps):
    problem = AttentionProblem(1, 1, 1, queries, keys, 64, 64, "bf16", 0.1, first, last)
    config = HopperForwardConfig(columns=128, consumers=rows // 64)
    assert steps_of(problem, config).tolist() == steps


@pytest.mark.parametrize("sizes", [(1, 1), (5, 3), (64, 40), (1000, 47), (17, 100000), (1 << 29, 1 << 29)])
@pytest.mark.parametrize("d", [16, 64, 72, 128, 136, 256])
def test_every_length_has_a_config(sizes, d):
    for first, last in ((None, None), (None, 0), (-5, 3)):
        problem = AttentionProblem(2, 4, 2, *sizes, d, d, "fp16", 0.1, first, last)
        assert list(forward_configs(problem))
        assert plan(problem, GPU).schedule == "hopper_forward"


def test_a_sample_of_the_tiles_stands_for_all_of_a_long_sequence():
    problem = AttentionProblem(1, 1, 1, 1 << 20, 1 << 20, 64, 64, "bf16", 0.1, None, 0)
    config = HopperForwardConfig(columns=128, consumers=2)
    steps = steps_of(problem, config)
    assert len(steps) <= 1024
    assert steps.max() == (1 << 20) // 128
    assert abs(steps.mean() / ((1 << 20) / 256) - 1) < 0.01

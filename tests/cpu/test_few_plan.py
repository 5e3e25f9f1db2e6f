"""Few rows or columns on Hopper, against what was measured: results/h200/tiles_decode.csv and tiles_short.csv."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, mean

import pytest

pytest.importorskip("torch")

from laneloom.bench.matmul_wide import planned, read
from laneloom.bench.wide_products import decode_products
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import MatmulConfig, plan
from laneloom.ops.matmul.plan_few import CLUSTERS, TILE_ROWS, few_configs, is_few
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem

GPU = get_gpu("sm_90a")
MEASURED = Path(__file__).parents[2] / "results" / "h200" / "tiles_decode.csv"


def problem(m, n, k, **options):
    return MatmulProblem.contiguous(m, n, k, **{"dtype": "bf16", **options})


def test_the_plan_is_near_the_fastest_and_ahead_of_torch():
    found = planned(MEASURED)
    assert len(found) == len(list(decode_products()))
    assert mean(row.us / min(other.us for other in every) - 1 for row, every in found) < 0.025
    ratios = [row.torch_us / row.us for row, _ in found]
    assert geometric_mean(ratios) > 1.39
    assert min(ratios) > 0.97


@pytest.mark.parametrize("schedule", ["hopper", "hopper_async"])
def test_other_schedules_are_seldom_ahead(schedule):
    """What streamed few rows before is not what these are left to."""
    of = {}
    for row in read(MEASURED):
        of.setdefault(row.problem_key, []).append(row)
    ahead = [
        key for key, rows in of.items()
        if min(rows, key=lambda row: row.us).config.startswith(f"{schedule}:")
    ]  # fmt: skip
    assert len(ahead) < 0.06 * len(of)


def test_every_cluster_and_tile_is_taken_by_some():
    chosen = [MatmulConfig.parse(row.config) for row, _ in planned(MEASURED)]
    clusters = [(c.cluster_m, c.cluster_k) for c in chosen if c.schedule == "hopper_cluster"]
    assert len(set(clusters)) >= len(CLUSTERS) - 3
    assert {c.block_m for c in chosen if c.schedule == "hopper_cluster"} == set(TILE_ROWS)


@pytest.mark.parametrize(
    ("of", "few"),
    [
        (problem(16, 4096, 4096), True), (problem(4096, 16, 4096), True), (problem(32, 256, 2048, dtype="fp16"), True),
        (problem(16, 4096, 4096, dtype_out="fp32"), True), (problem(5, 1000, 4104, layout="nt"), True),
        (problem(16, 4096, 4096, epilogue=Epilogue(scaled=True, bias=("n", 1))), True),
        (problem(33, 4096, 4096), False), (problem(16, 248, 65536), False), (problem(16, 512, 512), False),
        (problem(16, 4096, 4096, dtype="fp8", dtype_out="bf16"), False), (problem(16, 4096, 4096, batch=2), False),
        (problem(16, 4096, 4096, dtype="fp8", dtype_b="bf8", dtype_out="fp16", layout="nt"), True),
        (problem(16, 4096, 4096, dtype="int8", dtype_out="int32", layout="nt"), False),
        (problem(16, 4097, 4096), False), (problem(5, 4096, 4096, layout="tn"), False),
    ],
)  # fmt: skip
def test_what_is_few(of, few):
    assert is_few(of) == few
    if few:
        config, time_us = next(few_configs(of, GPU))
        assert config.why_invalid(of, GPU) is None
        assert plan(of, GPU) == config
        assert 1 < time_us < 30


def test_times_follow_the_memory_and_the_sms():
    """Half of the memory's rate takes nearly twice as long; what a third of the SMs reads alone is no faster."""
    of = problem(16, 28672, 8192, layout="nt")
    fast = next(few_configs(of, GPU))[1]
    slow = next(few_configs(of, replace(GPU, bandwidth_gbs=GPU.bandwidth_gbs / 2)))[1]
    assert 1.7 < slow / fast < 2.0
    assert next(few_configs(of, replace(GPU, compute_units=44)))[1] > fast


def test_parts_that_do_not_divide_the_columns_leave_some_without_any():
    chosen = next(few_configs(problem(16, 5120, 5120, layout="nt"), GPU))[0]
    for columns, parts, finishers in ((8, 5, 1), (16, 3, 2), (24, 3, 3), (32, 6, 4), (40, 6, 5), (64, 7, 4)):
        config = chosen.with_knobs(block_n=columns, cluster_k=parts)
        assert (config.finishers, config.finished) == (finishers, columns // finishers)

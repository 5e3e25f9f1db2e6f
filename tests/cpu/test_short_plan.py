"""Up to 128 rows or columns of 8 and 16 bits on Hopper, and more of few tiles, against what was measured:
results/h200/tiles_short.csv, tiles_small.csv and tiles_gradients.csv."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, mean

import pytest

pytest.importorskip("torch")

from laneloom.bench.matmul_wide import planned, read
from laneloom.bench.wide_products import short_products, small_products
from laneloom.bench.wide_report import render_decode, summarise
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import MatmulConfig, plan
from laneloom.ops.matmul.fit_cluster import fitted
from laneloom.ops.matmul.plan_cluster import best_cluster
from laneloom.ops.matmul.plan_few import is_few
from laneloom.ops.matmul.plan_short import ALL_ROWS, CLUSTERS, in_order, is_short, short_configs, short_us
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem

GPU = get_gpu("sm_90a")
MEASURED, SMALL, GRADIENTS = (
    Path(__file__).parents[2] / "results" / "h200" / f"tiles_{name}.csv" for name in ("short", "small", "gradients")
)


def problem(m, n, k, **options):
    return MatmulProblem.contiguous(m, n, k, **{"dtype": "bf16", "dtype_out": "bf16", **options})


@pytest.mark.parametrize(("dtype", "ratio", "behind", "slow"), [("bf16", 1.21, 0.026, 2), ("fp8", 1.43, 0.027, 1)])
def test_the_plan_is_near_the_fastest_and_ahead_of_torch(dtype, ratio, behind, slow):
    found = planned(MEASURED, [dtype])
    assert len(found) >= sum(kind == dtype for kind, _ in short_products()) - 2
    assert mean(row.us / min(other.us for other in every) - 1 for row, every in found) < behind
    ratios = [row.torch_us / row.us for row, _ in found]
    assert geometric_mean(ratios) > ratio
    assert sum(one < 0.97 for one in ratios) <= slow


def test_estimates_are_near_the_times():
    """Of the configs that the plan may take and that are at most a fifth slower than the fastest."""
    found = []
    for row, every in planned(MEASURED):
        for other in every:
            config = MatmulConfig.parse(other.config)
            likely = config.schedule == "hopper_cluster" and config.split_k == 1 and is_short(row.problem, GPU)
            if likely and other.us < 1.2 * row.us:
                found.append(short_us(row.problem, config, GPU) / other.us - 1)
    assert len(found) > 1500
    assert abs(mean(found)) < 0.03
    assert mean(abs(one) for one in found) < 0.06


def test_other_schedules_are_seldom_ahead():
    of = {}
    for row in read(MEASURED):
        of.setdefault(row.problem, []).append(row)
    ahead = [key for key, rows in of.items()
             if not min(rows, key=lambda row: row.us).config.startswith("hopper_cluster:")]  # fmt: skip
    assert len(ahead) < 0.06 * len(of)


def test_nearly_every_cluster_is_taken_by_some():
    chosen = [MatmulConfig.parse(row.config) for row, _ in planned(MEASURED)]
    clusters = {(c.cluster_m, c.cluster_n, c.cluster_k) for c in chosen if c.schedule == "hopper_cluster"}
    assert len(clusters) >= len(CLUSTERS) - 8


@pytest.mark.parametrize(
    ("of", "short"),
    [
        (problem(33, 4096, 4096), True), (problem(128, 4096, 4096, layout="tt"), True),
        (problem(4096, 72, 4096, dtype="fp16", dtype_out="fp32"), True), (problem(129, 4096, 4096), True),
        (problem(512, 4096, 1000), True), (problem(513, 4096, 1000), False), (problem(304, 304, 2048), True),
        (problem(200, 200, 8192), False),
        (problem(32, 4096, 4096), False), (problem(128, 248, 8192), False), (problem(64, 4096, 128), False),
        (problem(64, 4096, 4096, dtype="fp8", layout="nt"), True), (problem(64, 4096, 4096, dtype="fp8"), False),
        (problem(64, 4096, 4096, dtype="int8", dtype_out="int32", layout="nt"), False),
        (problem(64, 4096, 4096, batch=2), False), (problem(64, 4097, 4096, layout="nt"), False),
        (problem(64, 4096, 4096, epilogue=Epilogue(scaled=True, bias=("n", 1))), True),
        (problem(64, 4096, 4096, dtype="fp8", layout="nt", precision="promoted"), False),
    ],
)  # fmt: skip
def test_what_is_short(of, short):
    assert is_short(of, GPU) == short
    assert not is_short(of, get_gpu("h100")) or min(of.m, of.n) <= 128  # more of few tiles were fitted on an H200
    if short:
        found = list(short_configs(of, GPU))
        assert found
        assert not is_few(of)
        assert all(config.why_invalid(of, GPU) is None for config, _ in found)
        assert best_cluster(of, GPU)[0] == found[0][0]
        assert plan(of, GPU).schedule == "hopper_cluster"
        for config, time_us in found:
            assert short_us(of, config, GPU) == pytest.approx(time_us)


def test_few_tiles_and_a_short_k():
    found = planned(SMALL)
    assert len(found) >= 0.6 * len(list(small_products()))
    short_k = [x for x in found if x[0].k * (1 if x[0].dtype == "fp8" else 2) <= 128]
    for of, behind, ratio in ((short_k, 0.04, 1.3), ([x for x in found if x not in short_k], 0.03, 1.28)):
        assert mean(row.us / min(other.us for other in every) - 1 for row, every in of) < behind
        assert geometric_mean(row.torch_us / row.us for row, _ in of) > ratio
    assert sum(row.torch_us / row.us < 0.97 for row, _ in found) <= 1
    page = (MEASURED.parents[2] / "docs" / "hopper-gemm-products.md").read_text(encoding="utf-8")
    assert render_decode(found) in page
    assert summarise(found) in (MEASURED.parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("of", "knobs", "order"),
    [
        (problem(1024, 1024, 4096), {"cluster_m": 2}, 1), (problem(1024, 1024, 4096), {"cluster_n": 2}, ALL_ROWS),
        (problem(1024, 512, 4096), {}, 1), (problem(512, 1024, 4096), {}, ALL_ROWS),
        (problem(512, 1024, 4096), {"swapped": True}, 1), (problem(128, 4096, 4096), {"cluster_m": 2}, 8),
        (problem(1024, 2048, 4096), {"cluster_m": 2}, 8),
    ],
)  # fmt: skip
def test_neighbours_share_what_their_clusters_do_not(of, knobs, order):
    config = short_config(of).with_knobs(block_m=64, block_n=128, consumers=1, **knobs)
    assert in_order(fitted(config, of, GPU), of).group_m == order


def short_config(of):
    best = next(short_configs(of, GPU))[0]
    return best.with_knobs(cluster_m=1, cluster_n=1, cluster_k=1, swapped=False, stages=4, group_m=8)


def test_times_follow_the_memory_and_the_sms():
    """Half of the memory's rate takes nearly twice as long; what a third of the SMs reads alone is no faster."""
    of = problem(64, 28672, 8192, layout="nt")
    fast = next(short_configs(of, GPU))[1]
    assert 1.6 < next(short_configs(of, replace(GPU, bandwidth_gbs=GPU.bandwidth_gbs / 2)))[1] / fast < 2.0
    assert next(short_configs(of, replace(GPU, compute_units=44)))[1] > fast


def test_rows_that_are_not_there_and_sectors_in_halves_cost():
    """128 rows of which 56 are not there, tiles of 88 columns of 16 bits whose sectors their neighbours write too."""
    of = problem(72, 5120, 5120, layout="nt")
    chosen = next(short_configs(of, GPU))[0]
    upright = chosen.with_knobs(swapped=False, cluster_m=1, cluster_n=1, cluster_k=1, block_n=80)
    small, large = (upright.with_knobs(block_m=rows, consumers=rows // 64) for rows in (64, 128))
    whole = replace(of, m=128, a=problem(128, 5120, 5120, layout="nt").a)
    assert short_us(of, large, GPU) > short_us(whole, large, GPU)
    assert short_us(of, small, GPU) < short_us(of, large, GPU)
    halves, words = ([short_us(p, small.with_knobs(block_n=columns), GPU) for columns in (80, 88)]
                     for p in (of, replace(of, dtype_out="fp32")))  # fmt: skip
    assert halves[1] - halves[0] > words[1] - words[0] + 0.1


def test_columns_that_begin_inside_of_sectors_cost():
    """Tiles of 104 columns of 16 bits begin at odd multiples of 16 bytes, those of 112 at sectors: which matters where
    columns are neighbours in memory."""
    upright = short_config(problem(1280, 1280, 16384, layout="nt")).with_knobs(block_m=128, consumers=2, stages=6)
    odd, even = ([short_us(problem(1280, 1280, 16384, layout=layout), upright.with_knobs(block_n=n), GPU)
                  for layout in ("nn", "tn", "nt")] for n in (104, 112))  # fmt: skip
    more = [one / other for one, other in zip(odd, even, strict=True)]
    assert more[0] == more[1] > more[2] + 0.2


@pytest.mark.parametrize(("layout", "products", "behind"), [("nn", 28, 0.04), ("tn", 51, 0.055)])
def test_gradients_of_layers(layout, products, behind):
    """dX = dY W is NN, dW = dY^T X TN: which the constants of loads inside of sectors are fitted to."""
    found = [(row, every) for row, every in planned(GRADIENTS) if row.layout == layout]
    assert len(found) == products
    assert mean(row.us / min(other.us for other in every) - 1 for row, every in found) < behind
    assert geometric_mean(row.torch_us / row.us for row, _ in found) > 1.1

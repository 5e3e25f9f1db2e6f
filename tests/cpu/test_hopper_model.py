"""The model that ranks Hopper's tiles, held against what was measured: pure, no GPU."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import pytest

pytest.importorskip("torch")

from laneloom.bench.matmul_tiles import Row, describe, iterate_configs, read, write
from laneloom.gpu import get_gpu
from laneloom.ops.matmul import model_hopper, plan_cluster, plan_hopper
from laneloom.ops.matmul.config_cluster import ClusterConfig
from laneloom.ops.matmul.problem import MatmulProblem

GPU = get_gpu("sm_90a")
SETUP_US = 0.5  #: that each launch of hopper_cluster took longer when the file was made; docs/hopper-gemm.md, "Tried"
RESULTS = Path(__file__).parents[2] / "results" / "h200"


def measured(name):
    """The rows of a file but those of more clusters of 4 or 8 than fit: the last of them began when the others had
    ended. Such launches are not planned any more."""

    def fits(row):
        m, n = (row.n, row.m) if row.swapped else (row.m, row.n)
        sharers, peers = row.cluster_m * row.cluster_n, row.cluster_m * row.cluster_n * row.cluster_k
        tiles = -(-m // (row.block_m * row.cluster_m)) * -(-n // (row.block_n * row.cluster_n))
        return peers < 4 or tiles * sharers * row.cluster_k <= model_hopper.SMS_IN_CLUSTERS[peers]

    return [row for row in read(RESULTS / name) if fits(row)]


ROWS = [
    replace(row, us=row.us - SETUP_US) if row.schedule == "hopper_cluster" else row for row in measured("tiles.csv")
]
#: of rows that break sectors, some by tiles of rows of one class
BROKEN_ROWS = measured("tiles_in_classes.csv")
#: of kernels that write C while they multiply, as those before do not
LONG_ROWS = measured("tiles_overlapped.csv")
#: with tiles of two widths among them, and of products that a survey of linear layers showed to be slow
UNEVEN_ROWS, SURVEY_ROWS = measured("tiles_uneven.csv"), measured("tiles_survey.csv")
LAYER_ROWS = measured("tiles_layers.csv")  #: of 48 to 384 rows, whose weights come from memory
TILES = {(tile.m, tile.n): tile for tile in plan_hopper.TILES}
#: of sizes that nobody chose, and of few rows, by what is ranked by the model
RANDOM_ROWS, FEW_ROWS = (
    [row for row in measured(name) if row.schedule == "hopper_cluster" or (row.block_m, row.block_n) in TILES]
    for name in ("tiles_random.csv", "tiles_few.csv")
)


def estimate(row, overlapped=False):
    problem = MatmulProblem.contiguous(row.m, row.n, row.k, dtype="bf16", layout=row.layout)
    if row.schedule == "hopper_cluster":
        config = ClusterConfig(
            block_m=row.block_m, block_n=row.block_n, block_k=64, stages=4, consumers=plan_cluster.ROWS[row.block_m],
            cluster_m=row.cluster_m, cluster_n=row.cluster_n, cluster_k=row.cluster_k, swapped=bool(row.swapped),
            line=row.line, tiles_n=row.tiles_n,
        )  # fmt: skip
        if overlapped:
            config = config.with_knobs(tma_store=config.stores_by_tma(problem)).overlapped(problem)
        return plan_cluster.estimate_us(problem, config, GPU)
    copies = {"repack_a": "A" in row.repacked, "repack_b": "B" in row.repacked}
    return plan_hopper.estimate_us(problem, TILES[row.block_m, row.block_n], row.split_k, GPU, **copies)


def products(of):
    """The rows of each product of each run."""
    found = defaultdict(list)
    for row in of:
        found[row.m, row.n, row.k, row.layout, row.torch_us].append(row)
    return list(found.values())


def regrets():
    """Of each product, by how much what the model prefers of the measured configs is slower than the fastest."""
    of = products(ROWS)
    assert len(of) == 178
    return [min(rows, key=estimate).us / min(row.us for row in rows) - 1 for rows in of]


def test_what_the_model_prefers_is_near_the_fastest_measured():
    found = regrets()
    assert mean(found) < 0.0171
    assert sum(regret > 0.05 for regret in found) <= 14


def test_classes_of_rows_are_taken_where_they_are_faster():
    """Of what the plan chooses from: in classes no tiles narrower than LEAST_COLUMNS, nor of WIDE_TILE elements."""
    of = products(BROKEN_ROWS)
    assert len(of) == 48
    fastest = [min(row.us for row in rows) for rows in of]
    planned = [
        [
            row for row in rows if row.line == 0
            or (row.block_n >= plan_cluster.LEAST_COLUMNS and row.block_m * row.block_n != model_hopper.WIDE_TILE)
        ]
        for rows in of
    ]  # fmt: skip
    chosen = [min(rows, key=lambda row: estimate(row, overlapped=True)).us for rows in planned]
    found = [us / least - 1 for us, least in zip(chosen, fastest, strict=True)]
    assert mean(found) < 0.0235
    without = [min(row.us for row in rows if row.line == 0) / us - 1 for rows, us in zip(of, fastest, strict=True)]
    assert mean(without) > 0.03, "else there is nothing to gain"


def test_what_the_next_tile_hides_is_counted():
    of = products(LONG_ROWS)
    assert len(of) == 22
    found = [
        min(rows, key=lambda row: estimate(row, overlapped=True)).us / min(row.us for row in rows) - 1 for rows in of
    ]
    assert mean(found) < 0.01
    without = [min(rows, key=estimate).us / min(row.us for row in rows) - 1 for rows in of]
    assert mean(without) > mean(found)


@pytest.mark.parametrize(
    ("rows", "count", "bound"),
    [
        (UNEVEN_ROWS, 50, 0.0225), (SURVEY_ROWS, 28, 0.026), (RANDOM_ROWS, 116, 0.042), (FEW_ROWS, 76, 0.027),
        (LAYER_ROWS, 48, 0.02),
    ],
)
def test_of_later_runs_as_well(rows, count, bound):
    """Of `UNEVEN_ROWS` the order of candidates alone made up to 5%: more of them than rounds."""
    of = products(rows)
    assert len(of) == count
    found = [
        min(rows, key=lambda row: estimate(row, overlapped=True)).us / min(row.us for row in rows) - 1 for rows in of
    ]
    assert mean(found) < bound


def test_pairs_share_what_asks_the_l2_for_less():
    """Of large products, each config alone with torch.matmul in its rounds."""
    found = defaultdict(list)
    for row in measured("tiles_pairs.csv"):
        found[row.m, row.n, row.k, row.layout].append(row)
    assert len(found) == 7
    for rows in found.values():
        best = max(row.torch_us / row.us for row in rows)
        chosen = min(rows, key=lambda row: estimate(row, overlapped=True))
        assert chosen.torch_us / chosen.us > 0.985 * best


def test_rows_that_are_not_there_are_counted(monkeypatch):
    def mean_regret():
        return mean(
            min(rows, key=lambda row: estimate(row, overlapped=True)).us / min(row.us for row in rows)
            for rows in products(SURVEY_ROWS)
        )

    usual = mean_regret()
    monkeypatch.setattr(model_hopper, "MISSING_FACTOR", 1.0)
    assert mean_regret() > usual


def test_the_estimates_are_times():
    ratios = [row.us / estimate(row) for row in ROWS]
    assert 0.9 < median(ratios) < 1.4, "long products run below the boost clock"


@pytest.mark.parametrize(
    ("constant", "value"),
    [("ROW_CLOCKS", 0.5), ("BROKEN_FACTOR", 1.0), ("MEMORY_BYTES_PER_US", 1e9), ("MMA_BYTES_PER_CLOCK", 1e9)],
)
def test_every_term_is_needed(monkeypatch, constant, value):
    usual = mean(regrets())
    for module in (model_hopper, plan_cluster, plan_hopper):
        if hasattr(module, constant):
            monkeypatch.setattr(module, constant, value)
    assert mean(regrets()) > usual


def test_rows_are_written_and_read(tmp_path):
    problem = MatmulProblem.contiguous(1000, 1000, 1000, dtype="bf16", layout="nt")
    configs = list(iterate_configs(problem, GPU, 3))
    assert {config.schedule for config in configs} == {"hopper", "hopper_cluster"}
    rows = [Row(1000, 1000, 1000, "nt", 8.0, *describe(config), 7.5) for config in configs]
    write(tmp_path / "tiles.csv", rows)
    assert read(tmp_path / "tiles.csv") == rows

"""Which config one row against B along N takes, and what `hopper_row` refuses: pure, no GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import MatmulConfig, plan
from laneloom.ops.matmul.config_row import CLUSTERS, RowConfig, stream_row
from laneloom.ops.matmul.execute import schedule_of
from laneloom.ops.matmul.problem import MatmulProblem

GPU = get_gpu("sm_90a")
NARROW = RowConfig(block_n=64, num_warps=16, cluster_k=2, ahead=256)


def problem(n, k, **options):
    return MatmulProblem.contiguous(options.pop("m", 1), n, k, **{"dtype": "bf16", **options})


@pytest.mark.parametrize(
    ("n", "k", "columns", "parts"),
    [
        (4096, 4096, 64, 2), (5120, 5120, 64, 1), (6144, 4096, 256, 8), (8192, 1024, 64, 1), (14336, 4096, 256, 4),
        (28672, 4096, 256, 4), (3072, 3072, 128, 8),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_the_columns_and_the_parts_fill_the_sms(layout, n, k, columns, parts):
    of = problem(n, k, layout=layout)
    config = plan(of, GPU)
    assert (config.schedule, config.block_n, config.cluster_k) == ("hopper_row", columns, parts)
    assert config.ahead * columns * 2 == 32768
    assert MatmulConfig.parse(config.text) == config
    assert f"{-(-n // columns) * parts} CTAs" in schedule_of(config).facts(of, config, GPU)[0]


@pytest.mark.parametrize(("n", "stages"), [(3072, 2), (5120, 1), (6144, 2)])
@pytest.mark.parametrize("k", [4096, 3072, 3000, 1032, 1025])
def test_the_units_in_flight_follow_from_the_columns_alone(n, k, stages):
    """Also where K ends within a turn, or within a unit."""
    config = plan(problem(n, k), GPU)
    assert (config.schedule, config.stages) == ("hopper_row", stages)


def test_every_width_from_the_least_has_a_config():
    for n in range(3072, 40000, 8):
        config = stream_row(problem(n, 4096, dtype="fp16"), GPU)
        assert config is not None
        assert config.cluster_k in CLUSTERS
        assert config.ctas(problem(n, 4096)) >= 64


@pytest.mark.parametrize(
    ("dtype", "n", "k", "columns", "parts"),
    [
        ("fp32", 4096, 4096, 32, 1), ("fp32", 1024, 1024, 32, 2), ("fp32", 256, 16384, 32, 8),
        ("fp32", 20000, 500, 32, 1),
        ("fp64", 4096, 4096, 16, 1), ("fp64", 512, 4096, 16, 4), ("fp64", 64, 4096, 16, 8), ("fp64", 1000, 256, 16, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("swapped", [False, True])
def test_lines_of_fp32_and_fp64_are_shared_where_sms_are_left(dtype, n, k, columns, parts, swapped):
    """One row, B along N; or one column, A along M."""
    of = problem(n, k, dtype=dtype)
    of = of.transposed() if swapped else of
    config = plan(of, GPU)
    assert (config.schedule, config.block_n, config.cluster_k) == ("hopper_row", columns, parts)
    assert config.swapped == swapped
    assert config.ahead * 128 == 32768
    assert ("rows of A" if swapped else "columns of B") in schedule_of(config).facts(of, config, GPU)[0]


def test_a_column_of_16_bits_takes_lines_as_well():
    config = plan(problem(1, 4096, m=4096, layout="tn"), GPU)
    assert (config.schedule, config.swapped, config.block_n, config.cluster_k) == ("hopper_row", True, 64, 2)


@pytest.mark.parametrize("of", [
    problem(4097, 4096, dtype="fp32"), problem(32, 4096, dtype="fp64"), problem(4096, 200, dtype="fp32"),
    problem(4096, 4096, dtype="fp32", layout="nt"), problem(4096, 4096, dtype="fp32", batch=3),
])  # fmt: skip
def test_other_rows_of_fp32_and_fp64_do_not(of):
    assert stream_row(of, GPU) is None
    assert plan(of, GPU).schedule != "hopper_row"


@pytest.mark.parametrize(
    "of",
    [
        problem(1024, 4096), problem(4096, 512), problem(4096, 4096, layout="nt"), problem(4096, 4096, m=2),
        problem(4100, 4096), problem(4097, 4096), problem(4096, 4096, dtype="fp8"),
    ],
)  # fmt: skip
def test_other_products_run_as_before(of):
    assert stream_row(of, GPU) is None


@pytest.mark.parametrize(
    ("config", "of", "word"),
    [
        (NARROW, problem(4096, 4096, m=2), "one row"),
        (NARROW, problem(4096, 4096, layout="nt"), "rows of 64 columns"),
        (NARROW, problem(4100, 4096), "whole pieces of 16 bytes"),
        (NARROW, problem(56, 4096), "64 columns or more"),
        (NARROW, problem(4096, 4096, dtype="fp8"), "bf16 or fp16"),
        (NARROW, problem(4096, 4096, dtype="fp32", dtype_out="bf16"), "fp32 by fp32 in bf16"),
        (NARROW.with_knobs(block_n=96), problem(4096, 4096), "64 to 512 bytes of columns"),
        (NARROW.with_knobs(block_n=256), problem(4096, 4096, dtype="fp32"), "64 to 512 bytes of columns"),
        (NARROW.with_knobs(swapped=True), problem(4096, 4096), "one row"),
        (NARROW.with_knobs(cluster_k=3), problem(4096, 4096), "clusters of 1 to 8"),
        (NARROW.with_knobs(block_n=256, num_warps=4), problem(4096, 4096), "a thread for each column"),
        (NARROW.with_knobs(num_warps=32), problem(4096, 4096), "512 at most"),
        (NARROW, problem(1 << 31, 8), "of at most"),
        (NARROW.with_knobs(stages=3), problem(4096, 4096), "1 or 2 units"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_the_reason(config, of, word):
    assert word in (config.why_invalid(of, GPU) or "")


def test_nothing_here_is_for_amd():
    gpu = get_gpu("gfx1151")
    assert gpu.name in (NARROW.why_invalid(problem(4096, 4096), gpu) or "")

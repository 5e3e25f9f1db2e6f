"""Which config few rows or columns take in lines that TMA cannot read, and what `hopper_rows` refuses: pure, no GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import MatmulConfig, plan
from laneloom.ops.matmul.config_rows import RowsConfig, pieces_of, stream_rows
from laneloom.ops.matmul.execute import schedule_of
from laneloom.ops.matmul.problem import MatmulProblem, Matrix

GPU = get_gpu("sm_90a")
SMALL = RowsConfig(block_m=16, block_n=128, num_warps=8, across=2, cluster_k=2)


def problem(m, n, k, **options):
    return MatmulProblem.contiguous(m, n, k, **{"dtype": "bf16", **options})


@pytest.mark.parametrize(
    ("of", "facts"),
    [
        (problem(8, 4098, 4096), {"num_warps": 8, "stages": 2, "cluster_k": 2}),
        (problem(16, 11006, 4096), {"num_warps": 4, "stages": 2, "cluster_k": 2}),
        (problem(8, 14142, 2050, layout="nt"), {"num_warps": 8, "cluster_k": 1}),
        (problem(24, 5122, 5122, layout="nt"), {"num_warps": 4, "cluster_k": 4}),
        (problem(48, 14140, 6044, layout="nt"), {"stages": 1, "cluster_k": 1}),
        (problem(33, 2002, 8112, dtype="fp16"), {"block_m": 40, "num_warps": 4, "stages": 2, "cluster_k": 4}),
        (problem(14142, 8, 2050), {"swapped": True, "num_warps": 8, "cluster_k": 1}),
        (problem(8, 4096, 4096, layout="nt"), {"num_warps": 16, "stages": 1, "cluster_k": 2, "ahead": 256}),
        (problem(1, 4096, 14336, layout="nt"), {"num_warps": 16, "cluster_k": 2}),
        (problem(4096, 2, 4096, layout="nn"), {"swapped": True, "num_warps": 16}),
    ],
)  # fmt: skip
def test_lines_that_tma_cannot_read_stream_where_they_lie(of, facts):
    config = stream_rows(of, GPU)
    assert isinstance(config, RowsConfig)
    long, vector = (of.n, of.vector_b) if of.n >= of.m else (of.m, of.vector_a)
    # Few of them that come 4 bytes at a time are hopper_async's.
    assert (plan(of, GPU) == config) == (vector >= 4 or long * of.k >= 1 << 25)
    assert {name: getattr(config, name) for name in facts} == facts
    assert MatmulConfig.parse(config.text) == config
    assert f"{config.ctas(of)} CTAs, past whose mma" in schedule_of(config).facts(of, config, GPU)[0]


@pytest.mark.parametrize(
    "of",
    [
        problem(8, 4097, 4096), problem(8, 4096, 4099, layout="nt"), problem(8, 4096, 4096), problem(65, 4098, 4096),
        problem(8, 4098, 200), problem(8, 500, 4098, layout="nt"), problem(48, 2238, 2030),
        problem(16, 4096, 4096, layout="nt"), problem(8, 6144, 4096, layout="nt"), problem(8, 4098, 4096, dtype="fp32"),
        problem(8, 4098, 4096, batch=2),
    ],
)  # fmt: skip
def test_other_products_run_as_others_do(of):
    assert stream_rows(of, GPU) is None


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 16, 17, 31, 40, 41, 64])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_size_that_is_taken_has_a_valid_config(rows, layout):
    taken = 0
    for n in range(514, 30000, 874):
        for k in (258, 2050, 8190):
            for of in (problem(rows, n, k, layout=layout), problem(n, rows, k, layout=layout)):
                config = stream_rows(of, GPU)
                if config is not None:
                    taken += 1
                    assert config.why_invalid(of, GPU) is None
    assert taken > 50


@pytest.mark.parametrize(
    ("matrix", "columns", "count"),
    [
        (Matrix((0, 0, 4096, 1)), 4096, 8), (Matrix((0, 0, 4104, 1)), 4100, 4), (Matrix((0, 0, 4100, 1)), 4100, 4),
        (Matrix((0, 0, 4098, 1)), 4098, 2), (Matrix((0, 0, 4097, 1)), 4097, 0), (Matrix((0, 0, 1, 4100)), 0, 4),
        (Matrix((0, 0, 4096, 1), alignment=4), 4096, 2), (Matrix((0, 0, 4096, 1), alignment=2), 4096, 0),
        (Matrix((0, 0, 8192, 2)), 4096, 0),
    ],
)  # fmt: skip
def test_pieces_begin_where_lines_do(matrix, columns, count):
    assert pieces_of(matrix, columns) == count


@pytest.mark.parametrize(
    ("config", "of", "word"),
    [
        (SMALL, problem(17, 4096, 4096), "at most 16 rows"),
        (SMALL.with_knobs(swapped=True), problem(4096, 17, 4096), "at most 16 columns"),
        (SMALL.with_knobs(cluster_k=8), problem(8, 4096, 4096, batch=1 << 24), "CTAs"),
        (SMALL, problem(8, 4096, 4096, dtype="fp32"), "bf16 or fp16"),
        (SMALL, problem(8, 4097, 4096), "pieces of 4 bytes"),
        (SMALL, problem(8, 126, 4096), "128 columns or more"),
        (SMALL.with_knobs(block_m=12), problem(8, 4096, 4096), "rows in eights"),
        (SMALL.with_knobs(block_n=192), problem(8, 4096, 4096), "times 64 columns"),
        (SMALL.with_knobs(across=3), problem(8, 4096, 4096), "times 64 columns"),
        (SMALL.with_knobs(cluster_k=3), problem(8, 4096, 4096), "clusters of 1 to 8"),
        (SMALL.with_knobs(stages=5), problem(8, 4096, 4096), "1 to 4 units"),
        (SMALL.with_knobs(block_m=64, block_n=512, across=2), problem(8, 4096, 4096), "bytes each"),
        (SMALL.with_knobs(stages=4, resident=2), problem(8, 4096, 4096), "registers"),
        (SMALL, problem(8, 1 << 31, 8), "of at most"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_the_reason(config, of, word):
    assert word in (config.why_invalid(of, GPU) or "")


def test_nothing_here_is_for_amd():
    gpu = get_gpu("gfx1151")
    assert gpu.name in (SMALL.why_invalid(problem(8, 4096, 4096), gpu) or "")

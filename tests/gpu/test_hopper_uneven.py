"""hopper_cluster with tiles of two widths, so that their number fills all SMs, against FP64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from judged_products import DTYPES, GPU, ROUNDING, assert_right, error_of_torch, norm_error, operand, run_twice  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.matmul.config_cluster import ClusterConfig  # noqa: E402
from laneloom.ops.matmul.execute import schedule_of  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

#: with five tiles of 256 columns or eight less, and so on: the sizes along which they differ are those of SIZES
TILES = {
    "held back": ClusterConfig(block_m=128, block_n=256, block_k=64, stages=4, tiles_n=5, hold_back=2, programs=3),
    "in pairs": ClusterConfig(
        block_m=256, block_n=128, block_k=64, stages=4, cluster_m=2, tiles_n=10, split=True, hold_back=1, programs=4),
    "one strip": ClusterConfig(block_m=192, block_n=192, block_k=64, stages=4, consumers=3, tiles_n=7, programs=5),
    "masked stores": ClusterConfig(
        block_m=128, block_n=208, block_k=64, stages=4, tiles_n=6, hold_back=2, tma_store=False, programs=3),
    "a panel less": ClusterConfig(block_m=64, block_n=72, block_k=64, stages=6, consumers=1, tiles_n=19, programs=7),
    "one program a tile": ClusterConfig(block_m=128, block_n=256, block_k=64, stages=4, tiles_n=5),
}  # fmt: skip
SIZES = [1240, 1248, 1256, 1250, 1279, 1280]


def shaped(config, uneven):
    """The config for a size that its tiles can cover, if there is one."""
    width = config.block_n
    return config if config.tiles_n * (width - 8) <= uneven <= config.tiles_n * width else None


@pytest.mark.parametrize("uneven", SIZES)
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("name", TILES)
def test_rows_in_uneven_tiles(name, layout, uneven):
    if (config := shaped(TILES[name], uneven)) is None:
        pytest.skip("no such tiles")
    problem = MatmulProblem.contiguous(uneven, 776, 264, dtype="bf16", layout=layout)
    a = operand(uneven, 264, torch.bfloat16, "n", seed=1)
    b = operand(264, 776, torch.bfloat16, layout[1], seed=2)
    out = run_twice(problem, config.with_knobs(swapped=True), a, b)
    assert_right(out, a, b)
    even = config.with_knobs(swapped=True, tiles_n=0)
    assert torch.equal(out, run_twice(problem, even, a, b)), "a tile's width makes no bit"


@pytest.mark.parametrize("uneven", SIZES)
@pytest.mark.parametrize(("layout", "dtype", "dtype_out"), [
    ("nt", "bf16", "bf16"), ("tt", "fp16", "fp16"), ("nt", "bf16", "fp32"), ("nt", "fp8", "bf16"),
])  # fmt: skip
@pytest.mark.parametrize("name", TILES)
def test_columns_in_uneven_tiles(name, layout, dtype, dtype_out, uneven):
    k = 272
    problem = MatmulProblem.contiguous(776, uneven, k, dtype=dtype, dtype_out=dtype_out, layout=layout)
    config = shaped(TILES[name], uneven)
    if config is not None:
        config = config.with_knobs(block_k=128 if dtype == "fp8" else 64)
        config = config.with_knobs(tma_store=config.tma_store and config.stores_by_tma(problem))
        if dtype_out == "fp32":
            config = config.with_knobs(hold_back=0)
    if config is None or config.why_invalid(problem, GPU):
        pytest.skip("no such tiles")
    a = operand(776, k, DTYPES[dtype], layout[0], seed=1)
    b = operand(k, uneven, DTYPES[dtype], layout[1], seed=2)
    assert_right(run_twice(problem, config, a, b), a, b)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32", "3xbf16"])
def test_pieces_in_uneven_tiles(precision):
    problem = MatmulProblem.contiguous(520, 504, 264, dtype="fp32", precision=precision, layout="nn")
    pieces, promote = {"tf32": (1, 0), "3xtf32": (2, 1), "3xbf16": (3, 1)}[precision]
    config = ClusterConfig(
        block_m=128, block_n=128, block_k=64 if precision == "3xbf16" else 32, stages=2, pieces=pieces, promote=promote,
        copy_a=True, copy_b=True, tiles_n=4, programs=3,
    )  # fmt: skip
    a, b = operand(520, 264, torch.float32, seed=1), operand(264, 504, torch.float32, seed=2)
    assert_right(run_twice(problem, config, a, b), a, b, precision if precision == "tf32" else "ieee")


@pytest.mark.parametrize("batch", [2, 5])
def test_wide_tiles_of_all_products_come_first(batch):
    a = torch.stack([operand(1000, 136, torch.bfloat16, seed=i) for i in range(batch)])
    b = torch.stack([operand(136, 328, torch.bfloat16, seed=9 + i) for i in range(batch)])
    out = torch.full((batch, 1000, 328), float("nan"), dtype=torch.bfloat16, device="cuda")
    problem = MatmulProblem.contiguous(1000, 328, 136, dtype="bf16", batch=batch)
    config = ClusterConfig(
        block_m=128, block_n=256, block_k=64, stages=4, hold_back=2, swapped=True, tiles_n=4, programs=5)  # fmt: skip
    assert config.why_invalid(problem, GPU) is None
    schedule_of(config).launch(problem, config, GPU, a, b, out)
    for x, y, z in zip(a, b, out, strict=True):
        assert_right(z, x, y)


@pytest.mark.parametrize(("m", "n"), [(4096, 4096), (2048, 4096)])
def test_terms_of_uneven_tiles(m, n):
    a = operand(m, 1024, torch.bfloat16, seed=1)
    b = operand(1024, n, torch.bfloat16, "t", seed=2)
    bias, rows = torch.randn(n, device="cuda"), torch.rand(m, device="cuda")
    out = laneloom.gemm(a, b, bias=bias, scale_a=rows, activation="silu")
    x = (a.double() @ b.double()) * rows.double()[:, None] + bias.double()
    assert norm_error(out, torch.nn.functional.silu(x)) <= (
        2 * error_of_torch(1024, a.dtype, "ieee") + 2.0**-9 + ROUNDING[out.dtype]
    )
    assert torch.equal(out, laneloom.gemm(a, b, bias=bias, scale_a=rows, activation="silu"))

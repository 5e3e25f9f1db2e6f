"""Where C ends inside a tile, or inside 16 bytes, against FP64: TMA writes whole pieces of 16 bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from judged_products import DTYPES, GPU, LAYOUTS, assert_right, operand  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.matmul.config_cluster import ClusterConfig  # noqa: E402
from laneloom.ops.matmul.execute import schedule_of  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

CLUSTERS = {
    "alone": ClusterConfig(block_m=128, block_n=128, block_k=64, stages=4),
    "one consumer": ClusterConfig(block_m=64, block_n=96, block_k=64, stages=4, consumers=1),
    "two strips": ClusterConfig(block_m=256, block_n=128, block_k=64, stages=4, split=True, hold_back=1, programs=5),
    "in pairs": ClusterConfig(block_m=128, block_n=256, block_k=64, stages=4, cluster_m=2, hold_back=2, programs=4),
    "parts of K": ClusterConfig(block_m=128, block_n=128, block_k=64, stages=4, cluster_k=2),
}  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), [
    (56, 3754, 5151), (256, 517, 12123), (304, 300, 30000), (264, 1030, 4096), (104, 33, 8192), (64, 731, 1655),
    (112, 218, 6416), (640, 790, 10429), (416, 71, 3842),
])  # fmt: skip
def test_parts_of_k_of_odd_numbers_of_columns(m, n, k):
    a, b = operand(m, k, torch.bfloat16), operand(k, n, torch.bfloat16, "t", seed=1)
    assert_right(laneloom.matmul(a, b), a, b)


@pytest.mark.parametrize("n", [265, 390, 776, 1001])
@pytest.mark.parametrize("dtype_out", ["bf16", "fp32"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", CLUSTERS)
def test_rows_of_c_that_do_not_fill_their_pitch(name, swapped, layout, dtype_out, n):
    m, k, pitch = 408, 520, 1024
    a, b = operand(m, k, torch.bfloat16, layout[0]), operand(k, pitch, torch.bfloat16, layout[1], seed=1)[:, :n]
    buffer = torch.full((m, pitch), float("nan"), dtype=DTYPES[dtype_out], device="cuda")
    out = buffer[:, :n]
    whole = MatmulProblem.contiguous(m, pitch, k, dtype="bf16", dtype_out=dtype_out, layout=layout)
    problem = replace(whole, n=n)
    config = CLUSTERS[name].with_knobs(swapped=swapped)
    config = config.with_knobs(tma_store=config.stores_by_tma(problem))
    if why := config.why_invalid(problem, GPU):
        pytest.skip(why)
    schedule_of(config).launch(problem, config, GPU, a, b, out)
    assert_right(out, a, b)
    assert buffer[:, n:].isnan().all(), "written behind C's rows"


@pytest.mark.parametrize(("m", "n"), [(1, 314), (1, 52), (1, 548), (3, 1001), (130, 71), (2000, 300), (300, 2001)])
@pytest.mark.parametrize("k", [128, 2048])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
def test_nothing_is_written_beside_out(m, n, k, dtype):
    a, b = operand(m, k, DTYPES[dtype]), operand(k, n, DTYPES[dtype], "t", seed=1)
    # A sum of FP32 products in one order: probabilistic bound of Higham and Mary, sqrt(K) units.
    sums = k**0.5 * 2.0**-24 if dtype == "fp32" else None
    for pitch in (n + 1, n + 8, n + 24 - n % 16):
        buffer = torch.full((m, pitch), float("nan"), dtype=a.dtype, device="cuda")
        assert_right(laneloom.matmul(a, b, out=buffer[:, :n]), a, b, sums=sums)
        assert buffer[:, n:].isnan().all()
    buffer = torch.full((m * n + 64,), float("nan"), dtype=a.dtype, device="cuda")
    assert_right(laneloom.matmul(a, b, out=buffer[: m * n].view(m, n)), a, b, sums=sums)
    assert buffer[m * n :].isnan().all()


@pytest.mark.parametrize("precision", ["tf32", "3xtf32", "3xbf16"])
@pytest.mark.parametrize("pad", [1, 3])
def test_batches_of_rows_that_begin_anywhere(pad, precision):
    """Operands that are copied go product by product, and each row of C begins where the batch's stride says."""
    for m, n, k, turned in ((1, 64, 224, False), (632, 1, 64, True), (1, 1536, 371, False), (528, 1, 25, True)):
        a, b = (torch.randn(3, *shape, 2, device="cuda")[..., 0] for shape in ((m, k), (k, n)))
        buffer = torch.full((3, *((n, m + pad) if turned else (m, n + pad))), float("nan"), device="cuda")
        out = buffer[..., :m].mT if turned else buffer[..., :n]
        laneloom.matmul(a, b, out=out, precision=precision)
        for got, x, y in zip(out, a, b, strict=True):
            assert_right(got, x, y, "tf32" if precision == "tf32" else "ieee", sums=2.0**-18)
        assert buffer[..., -pad:].isnan().all()

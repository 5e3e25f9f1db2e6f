"""`hopper_rows` on a real GPU, against FP64: rows of every number, lines of B that begin anywhere, ragged K."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from judged_products import DTYPES, assert_right, operand, run_twice  # noqa: E402

from laneloom.ops.matmul.api import matmul  # noqa: E402
from laneloom.ops.matmul.config_rows import RowsConfig  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

ALONE = RowsConfig(block_m=8, block_n=64, num_warps=8)
CASES = {
    "whole pieces": ((8, 1032, 1024), ALONE),
    "pieces of 4 elements": ((5, 1028, 1028), ALONE),
    "pieces of 2 elements": ((7, 1030, 1030), ALONE),
    "fewer rows than a block": ((3, 200, 2048), ALONE.with_knobs(block_m=16)),
    "parts of K without a unit": ((16, 256, 38), RowsConfig(block_m=16, block_n=64, num_warps=4, cluster_k=8)),
    "a ragged unit": ((12, 520, 1000), RowsConfig(block_m=16, block_n=128, num_warps=8, stages=1, cluster_k=4)),
    "a ragged unit, warps across": ((24, 578, 1526), RowsConfig(block_m=24, block_n=256, num_warps=8, across=4)),
    "all warps across": ((32, 640, 514), RowsConfig(block_m=32, block_n=512, num_warps=8, across=8, cluster_k=2)),
    "more than 32 rows": ((61, 1030, 2050), RowsConfig(block_m=64, block_n=256, num_warps=4, across=4, stages=1)),
    "asked for ahead": ((16, 4096, 4096), RowsConfig(block_m=16, block_n=128, num_warps=4, stages=1, ahead=128)),
    "three in flight": ((8, 264, 4104), RowsConfig(block_m=8, block_n=64, num_warps=4, stages=3, resident=2)),
    "one warp": ((1, 72, 264), RowsConfig(block_m=8, block_n=64, num_warps=1)),
    "columns by fours": ((8, 1028, 96), RowsConfig(block_m=8, block_n=256, num_warps=2, across=1, stages=1)),
}  # fmt: skip


@pytest.mark.parametrize("dtype_out", [None, "fp32"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_few_rows_or_columns_are_right(name, swapped, layout, dtype, dtype_out):
    (m, n, k), config = CASES[name]
    if swapped:
        m, n, config = n, m, config.with_knobs(swapped=True)
    problem = MatmulProblem.contiguous(m, n, k, dtype=dtype, dtype_out=dtype_out or dtype, layout=layout)
    a, b = operand(m, k, DTYPES[dtype], layout[0], 1), operand(k, n, DTYPES[dtype], layout[1], 2)
    assert_right(run_twice(problem, config, a, b), a, b)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("k", [1024, 1000, 998, 1030])
@pytest.mark.parametrize("where", [0, -1])
def test_an_infinity_meets_no_zero_that_is_not_there(layout, k, where):
    """An infinite element of A makes infinities: what is behind the end of K is zero in A as well."""
    a, b = operand(8, k, torch.bfloat16, seed=1), operand(k, 512, torch.bfloat16, layout[1], 2)
    a[:, where] = float("inf")
    out = matmul(a, b, config=RowsConfig(block_m=8, block_n=64, num_warps=4, stages=2, cluster_k=2))
    assert torch.equal(out, torch.where(b[where] > 0, float("inf"), float("-inf")).to(torch.bfloat16).expand(8, -1))


def test_slices_of_wider_buffers():
    """Operands and the product at pitches of their own, which begin at 4 and at 8 bytes."""
    a = operand(9, 1040, torch.bfloat16, seed=1)[:, 4:1032]
    b = operand(1100, 700, torch.bfloat16, seed=2)[2:1030, 2:682]
    out = torch.full((9, 800), float("nan"), dtype=torch.bfloat16, device="cuda")
    config = RowsConfig(block_m=16, block_n=128, num_warps=8, across=2, cluster_k=2)
    matmul(a, b, out=out[:, 60:740], config=config)
    assert_right(out[:, 60:740], a, b)
    assert out[:, :60].isnan().all()
    assert out[:, 740:].isnan().all()


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("rows", [1, 3, 8, 17, 40])
def test_batches(rows, layout):
    """Whole and ragged, of every alignment; one that repeats; two axes with steps of their own."""
    for count, n, k, in ((300, 64, 64), (5, 200, 1000), (48, 100, 514), (3, 1030, 2048)):
        a = torch.stack([operand(rows, k, torch.bfloat16, layout[0], i) for i in range(count)])
        b = torch.stack([operand(k, n, torch.bfloat16, layout[1], i + count) for i in range(count)])
        for x, y in ((a, b), (a, b[:1].expand(count, -1, -1)), (b.mT, a.mT)):
            assert_right(matmul(x, y), x, y)
    x, y = a.expand(4, *a.shape), torch.stack([b, b, b]).transpose(0, 1)[:, :1].expand(count, 4, k, n).transpose(0, 1)
    assert_right(matmul(x, y), x, y)


def test_one_product_after_another():
    """Programmatic dependent launch: each launch reads the rows that the one ahead wrote."""
    rotation = torch.linalg.qr(torch.randn(512, 512, device="cuda", dtype=torch.float64))[0]
    rotation = rotation.to(torch.bfloat16).contiguous()
    config = RowsConfig(block_m=8, block_n=64, num_warps=8, cluster_k=2, ahead=256)
    x, y = operand(8, 512, torch.bfloat16), torch.empty(8, 512, dtype=torch.bfloat16, device="cuda")
    expected = x.clone()
    for _ in range(50):
        expected = matmul(expected, rotation, config=config)
        torch.cuda.synchronize()
    for _ in range(25):
        matmul(x, rotation, out=y, config=config)
        matmul(y, rotation, out=x, config=config)
    assert torch.equal(x, expected)

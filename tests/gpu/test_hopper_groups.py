"""`grouped_matmul` on a real Hopper GPU, against FP64: rows and K in groups, gradients, operands that lie anyhow."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from judged_products import DTYPES, assert_right, operand  # noqa: E402

import laneloom  # noqa: E402
from laneloom.errors import ArgumentError  # noqa: E402
from laneloom.verify import UNIT_ROUNDOFF  # noqa: E402

GROUPS = {
    "even": [256] * 4, "ragged": [1, 0, 300, 64, 17, 0, 511, 128], "one": [700], "empty": [0, 0, 5, 0],
    "many": [7 * i % 41 for i in range(64)],
}  # fmt: skip


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize("name", GROUPS)
def test_groups(name, dtype, layout):
    if dtype == "fp8" and layout == "nn":
        pytest.skip("8-bit operands are taken along K")
    sizes, n, k = GROUPS[name], 328 if dtype != "fp8" else 336, 208
    rows = sum(sizes)
    a = operand(rows + 9, k, DTYPES[dtype], seed=1)
    b = torch.stack([operand(k, n, DTYPES[dtype], layout[1], seed=s) for s in range(len(sizes))])
    if layout == "nt":
        b = torch.stack([x.mT.contiguous() for x in b]).mT
    ends = torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)
    for out_dtype in (torch.float32, torch.bfloat16):
        out = torch.full((rows + 9, n), float("nan"), dtype=out_dtype, device="cuda")
        assert laneloom.grouped_matmul(a, b, ends, out=out) is out
        again = laneloom.grouped_matmul(a, b, ends, out_dtype=out_dtype)
        assert torch.equal(again[:rows], out[:rows])
        assert out[rows:].isnan().all(), "rows behind the last group"
        first = 0
        for group, size in enumerate(sizes):
            if size:
                rows_of = slice(first, first + size)
                assert_right(out[rows_of], a[rows_of], b[group], sums=2.0**-9 if dtype == "fp8" else 2.0**-18)
            first += size


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("name", GROUPS)
def test_scales_of_rows_and_columns(name, dtype):
    """C[m, n] is multiplied by scale_a[m] scale_b[g, n], of any strides."""
    sizes, n, k = GROUPS[name], 336, 208
    rows = sum(sizes)
    a = operand(rows, k, DTYPES[dtype], seed=1)
    b = torch.stack([operand(n, k, DTYPES[dtype], seed=s) for s in range(len(sizes))]).mT
    generator = torch.Generator("cuda").manual_seed(3)
    scale_a = torch.rand(rows, device="cuda", generator=generator) + 0.5
    scale_b = torch.rand(n, len(sizes), device="cuda", generator=generator).add_(0.5).t()
    ends = torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)
    for out_dtype in (torch.float32, torch.bfloat16):
        out = laneloom.grouped_matmul(a, b, ends, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype)
        bare = laneloom.grouped_matmul(a, b, ends, out_dtype=torch.float32).double()
        first = 0
        for group, size in enumerate(sizes):
            part = slice(first, first + size)
            truth = bare[part] * scale_a[part, None].double() * scale_b[group].double()
            rounding = UNIT_ROUNDOFF["bf16"] if out_dtype == torch.bfloat16 else 0.0
            assert ((out[part].double() - truth).abs() <= (rounding + 2.0**-22) * truth.abs()).all()
            first += size
    with pytest.raises(ArgumentError, match="scale_b: expected"):
        laneloom.grouped_matmul(a, b, ends, scale_a=scale_a, scale_b=scale_b[:, 1:])


@pytest.mark.parametrize("layout", ["tn", "nt", "nn", "tt"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize("name", GROUPS)
def test_k_in_groups(name, dtype, layout):
    """What is behind a group's end is of the next one, and NaN behind the last."""
    if dtype == "fp8" and layout != "nt":
        pytest.skip("8-bit operands are taken along K")
    sizes, m, n = GROUPS[name], 136, 328 if dtype != "fp8" else 336
    rows = sum(sizes)
    k = -(-rows // 16) * 16 + 16
    a, b = operand(m, k, DTYPES[dtype], layout[0], seed=1), operand(k, n, DTYPES[dtype], layout[1], seed=2)
    a[:, rows:], b[rows:] = float("nan"), float("nan")
    ends = torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)
    for out_dtype in (torch.float32, torch.bfloat16):
        out = torch.full((len(sizes), m, n), float("nan"), dtype=out_dtype, device="cuda")
        assert laneloom.grouped_matmul(a, b, ends, out=out) is out
        assert torch.equal(laneloom.grouped_matmul(a, b, ends, out_dtype=out_dtype), out)
        first = 0
        for group, size in enumerate(sizes):
            part = slice(first, first + size)
            if size:
                assert_right(out[group], a[:, part], b[part], sums=2.0**-9 if dtype == "fp8" else 2.0**-18)
            else:
                assert (out[group] == 0).all()
            first += size


@pytest.mark.parametrize("of_k", [False, True])
def test_groups_of_operands_that_lie_anyhow(of_k):
    """Those that the copy engine cannot read, or that groups of rows cut between 16 bytes, are copied first."""
    k, n = 200, 104
    ends = torch.tensor([13, 13, 170], dtype=torch.int32, device="cuda")
    plain = operand(k, 180, torch.bfloat16, seed=1) if of_k else operand(180, k, torch.bfloat16, seed=1)
    second = operand(180, n, torch.bfloat16, seed=2) if of_k else torch.randn(3, k, n, device="cuda").bfloat16()

    def anyhow(x):
        wide = x.new_zeros(*x.shape[:-1], x.shape[-1] + 3)
        wide[..., 1:-2] = x
        return x, x.mT.contiguous().mT, wide[..., 1:-2], torch.stack([x, x], -1)[..., 0]

    for a in anyhow(plain):
        for b in anyhow(second):
            got = laneloom.grouped_matmul(a, b, ends)
            for group, part in ((0, slice(0, 13)), (2, slice(13, 170))):
                x, y = (a[:, part], b[part]) if of_k else (a[part], b[group])
                assert_right(got[group] if of_k else got[part], x, y)


@pytest.mark.parametrize("n", [200, 100])
def test_gradients_of_groups(n):
    """Of any n: the copy engine reads rows at multiples of 16 bytes, gradients of others are copied."""
    a = operand(500, 136, torch.bfloat16, seed=1).requires_grad_()
    b = torch.randn(3, n, 136, device="cuda").bfloat16().requires_grad_()
    ends = torch.tensor([70, 70, 411], dtype=torch.int32, device="cuda")
    out = laneloom.grouped_matmul(a, b.mT, ends)
    grad = torch.full_like(out, float("nan"))
    grad[:411].normal_()
    out.backward(grad)
    assert a.grad is not None
    assert b.grad is not None
    assert (a.grad[411:] == 0).all()
    assert (b.grad[1] == 0).all()
    for group, part in ((0, slice(0, 70)), (2, slice(70, 411))):
        assert_right(a.grad[part], grad[part], b[group].detach())
        assert_right(b.grad[group], grad[part].mT, a[part].detach())
    summed = laneloom.grouped_matmul(a, b.mT, ends)[:411].sum()
    assert all(x.isfinite().all() for x in torch.autograd.grad(summed, (a, b)))


def test_groups_that_change_between_replays():
    a, b = operand(512, 128, torch.bfloat16, seed=1), operand(256, 256, torch.bfloat16, seed=2).view(2, 128, 256)
    ends = torch.tensor([100, 512], dtype=torch.int32, device="cuda")
    out = laneloom.grouped_matmul(a, b, ends)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        laneloom.grouped_matmul(a, b, ends, out=out)
    ends[0] = 313
    graph.replay()
    assert_right(out[:313], a[:313], b[0])
    assert_right(out[313:], a[313:], b[1])


def test_groups_that_do_not_fit_are_refused():
    a, b = operand(64, 64, torch.bfloat16), operand(64, 64, torch.bfloat16)[None]
    ends = torch.tensor([64], dtype=torch.int32, device="cuda")
    with pytest.raises(ArgumentError, match="ends: expected 1"):
        laneloom.grouped_matmul(a, b, ends.long())
    with pytest.raises(ArgumentError, match=r"b: expected \[G, 64, N\]"):
        laneloom.grouped_matmul(a, b[:, :63], ends)

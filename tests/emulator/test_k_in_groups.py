"""`grouped_matmul` of K in groups, and its gradients, which are such products. Strict mode, groups against FP64."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from random_groups import DTYPES, judge  # noqa: E402
from sampled import rarely, sampled  # noqa: E402
from test_grouped import CDNA_5, NAN, WMMA, compiled, draw  # noqa: E402

import laneloom  # noqa: E402
from laneloom.errors import ArgumentError, UnsupportedError  # noqa: E402
from laneloom.ops.matmul import grouped  # noqa: E402

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

GPUS = ("gfx1151", *rarely("gfx1100"), "gfx1201", "gfx942", *rarely("gfx90a"), CDNA_5)


def check(out, a, b, ends, flushes=False):
    """Every group's product, of ends that lie within K."""
    for group, (first, end) in enumerate(pairwise((0, *ends))):
        if end > first:
            verdict = judge(out[group], a[:, first:end], b[first:end], flushes)
            assert verdict.ok, (group, verdict)
        else:
            assert (out[group] == 0).all(), (group, "has no k")


def multiply(gpu, a, b, ends, out):
    with laneloom.emulated(gpu, strict=True) as emulation:
        assert laneloom.grouped_matmul(a, b, torch.tensor(ends, dtype=torch.int32), out=out) is out
    assert len(emulation.launches) == 1
    check(out, a, b, ends, flushes=gpu == "gfx90a")


#: k of each group, K beyond them, M, N
CASES = {
    "ragged": ((37, 0, 90, 3), 5, 72, 50), "empty ones": ((0, 0, 65, 0), 1, 33, 40), "one": ((70,), 0, 20, 64),
    "whole tiles": ((64, 128), 64, 64, 64), "many": ((1, 0, 2) * 30, 7, 20, 24), "none": ((0, 0), 40, 17, 19),
    "an element": ((1,), 0, 1, 1),
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("gpu", GPUS)
def test_groups_of_k(gpu, case):
    """As the gradient of a layer has it: A is the transpose of what lies along its columns. NaN is behind the last."""
    of_k, more, m, n = CASES[case]
    ends = list(accumulate(of_k))
    a, b = draw(ends[-1] + more, m).mT, draw(ends[-1] + more, n)
    a[:, ends[-1] :], b[ends[-1] :] = NAN, NAN
    multiply(gpu, a, b, ends, torch.full((len(ends), m, n), NAN).bfloat16())


@pytest.mark.covering
@pytest.mark.parametrize("layout", ["nn", "nt", "tt", "xx"])
@pytest.mark.parametrize("gpu", GPUS)
def test_strides(gpu, layout):
    """Groups begin at any element of rows along K, between the pieces of 16 bytes that loads take."""
    m, n, k, ends = 50, 40, 120, [33, 34, 34, 115]
    if layout == "xx":
        a, b = draw(m, 2 * k + 1)[:, 1::2], draw(k, 3 * n)[..., ::3]
    else:
        a = draw(m, k) if layout[0] == "n" else draw(k, m + 3)[:, 1:-2].mT
        b = draw(n, k).mT if layout[1] == "t" else draw(k, n)
    wide = torch.full((4, m + 2, n + 3), NAN)
    multiply(gpu, a, b, ends, wide[:, 1:-1, 2:-1])
    wide[:, 1:-1, 2:-1] = NAN
    assert wide.isnan().all(), "written beside out"


PAIRS = {  # fp64 is what differences are in
    "gfx1151": ("fp16 fp16", "fp8 bf8", "int8 uint8"),
    "gfx1201": ("fp16 fp16", *rarely("int8 int8", "bf8 fp8")),
    "gfx942": ("int8 int8", "fp32 fp32", *rarely("fp64 fp64", "fp8 fp8")), "gfx908": ("fp16 fp16",),
    "gfx1250": ("fp16 fp16", *rarely("fp8 bf8", "int8 int8", "fp64 fp64")),
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "dtypes"), compiled(PAIRS))
def test_dtypes(gpu, dtypes):
    first, second = (DTYPES[name] for name in dtypes.split())
    a, b, ends = draw(60, 40, dtype=first), draw(40, 50, dtype=second), torch.tensor([25, 25, 40], dtype=torch.int32)
    with laneloom.emulated(gpu, strict=True):
        check(laneloom.grouped_matmul(a, b, ends), a, b, ends.tolist())


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942", CDNA_5])
def test_ends_that_are_no_ends(gpu, monkeypatch):
    """Ends that decrease, are negative or far past K: reads stay in A and B, groups that end before they begin are
    empty."""
    monkeypatch.setattr(grouped, "check_ends_rise", lambda ends: None)  # as on a GPU, whose are not looked at
    # on CDNA 3, which test_dtypes multiplies other dtypes on, BF16
    dtype = torch.bfloat16 if gpu == "gfx942" else torch.float16
    a, b = draw(60, 70, dtype=dtype), draw(70, 50, dtype=dtype)
    for ends in ([50, -7, 2**31 - 1, 10, 60], [-(2**31), 3, -1, 3, 2**31 - 1]):
        with laneloom.emulated(gpu, strict=True):
            out = laneloom.grouped_matmul(a, b, torch.tensor(ends, dtype=torch.int32))
        inside = [min(max(end, 0), 70) for end in ends]
        for group, (first, end) in enumerate(pairwise((0, *inside))):
            check(out[group : group + 1], a[:, first:end], b[first:end], [max(end - first, 0)])


def test_nothing():
    ends = torch.tensor([0, 0], dtype=torch.int32)
    with laneloom.emulated("gfx1151") as emulation:
        assert laneloom.grouped_matmul(draw(4, 8), draw(8, 5), ends[:0]).shape == (0, 4, 5)
        assert laneloom.grouped_matmul(draw(0, 8), draw(8, 5), ends).shape == (2, 0, 5)
        assert (laneloom.grouped_matmul(draw(4, 0), draw(0, 5), ends) == 0).all()
    assert not emulation.launches


def test_arrays():
    a, b, ends = draw(30, 40, dtype=torch.float16), draw(40, 24, dtype=torch.float16), torch.tensor([11, 37]).int()
    with laneloom.emulated("gfx1151", strict=True):
        expected = laneloom.grouped_matmul(a, b, ends, out_dtype=torch.float32).numpy()
        got = laneloom.grouped_matmul(a.numpy(), b.numpy(), ends.numpy(), out_dtype=np.float32)
        nothing = laneloom.grouped_matmul(a.numpy()[:, :0], b.numpy()[:0], ends.numpy())
    np.testing.assert_array_equal(got, expected)
    assert (nothing == 0).all()


OPERANDS = {"a": draw(8, 16), "b": draw(16, 8), "ends": torch.tensor([3, 16]).int()}
REFUSED = {
    "scales": ({"scale_a": torch.ones(8, 1), "scale_b": torch.ones(1, 8)}, UnsupportedError, "^scale_a: expected none"),
    "parts of K": ({"config": WMMA.with_knobs(split_k=2)}, UnsupportedError, "^split_k: rows or K in groups are"),
    "64 bits": ({"ends": torch.tensor([3, 16])}, ArgumentError, "^ends: expected a contiguous list of int32, got"),
    "two axes": ({"ends": torch.tensor([[3], [16]]).int()}, ArgumentError, "^ends: expected a contiguous list of"),
    "another K": ({"b": draw(15, 8)}, ArgumentError, r"^b: expected \[G, 16, N\] or \[16, N\] for a of \[M, K\]"),
    "out": ({"out": draw(8, 8)}, ArgumentError, r"^out: expected \[2, 8, 8\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    changes, error, words = REFUSED[case]
    with laneloom.emulated("gfx1151") as emulation, pytest.raises(error, match=words):
        laneloom.grouped_matmul(**OPERANDS | changes)
    assert not emulation.launches


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["gfx1151", *rarely("gfx1201"), "gfx942", CDNA_5])
def test_gradients_of_rows_in_groups(gpu):
    """Beside FP64; rows of no group get zeros, whatever the gradient there."""
    a, b, ends = draw(90, 40).requires_grad_(), draw(3, 24, 40).requires_grad_(), [20, 20, 77]
    with laneloom.emulated(gpu, strict=True) as emulation:
        out = laneloom.grouped_matmul(a, b.mT, torch.tensor(ends, dtype=torch.int32))
        grad = torch.full_like(out, NAN)
        grad[:77] = draw(77, 24)
        out.backward(grad)
    assert len(emulation.launches) == 4  # C, dA, its rows of no group, dB
    for group, (first, end) in enumerate(pairwise((0, *ends))):
        if end > first:
            assert judge(a.grad[first:end], grad[first:end], b.detach()[group]).ok
    assert (a.grad[77:] == 0).all()
    check(b.grad, grad.mT, a.detach(), ends)


@pytest.mark.parametrize("of_k", [False, True])
def test_gradients_by_differences(of_k):
    """First and second derivatives in FP64, of rows and of K in groups."""
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    a = torch.randn((5, 10) if of_k else (10, 5), dtype=torch.float64, requires_grad=True)
    b = torch.randn((10, 4) if of_k else (3, 5, 4), dtype=torch.float64, requires_grad=True)

    def product(a, b):  # of what is written
        out = laneloom.grouped_matmul(a, b, ends)
        return out if of_k else out[:8]

    with laneloom.emulated("gfx942"):
        assert torch.autograd.gradcheck(product, (a, b), fast_mode=True)
        assert torch.autograd.gradgradcheck(product, (a, b), fast_mode=True)


@pytest.mark.parametrize("gpu", sampled(["gfx1151", "gfx942"]))
@pytest.mark.parametrize("of_k", [False, True])
def test_gradients_of_what_lies_anywhere(gpu, of_k):
    """A gradient that repeats one element, and one of another dtype than the operands'."""
    a, b = draw(30, 40).requires_grad_(), (draw(40, 24) if of_k else draw(2, 40, 24)).requires_grad_()
    ends = torch.tensor([7, 30], dtype=torch.int32)
    with laneloom.emulated(gpu, strict=True):
        got = torch.autograd.grad(laneloom.grouped_matmul(a, b, ends, out_dtype=torch.float32).sum(), (a, b))
    x, y = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    parts = [x[:, :7] @ y[:7], x[:, 7:30] @ y[7:30]] if of_k else [x[:7] @ y[0], x[7:] @ y[1]]
    for ours, truth in zip(got, torch.autograd.grad(sum(part.sum() for part in parts), (x, y)), strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.double(), truth, rtol=2.0**-8, atol=40 * 2.0**-24 * 8)


def test_one_operand_alone():
    a, b, ends = draw(30, 40), draw(2, 40, 24).requires_grad_(), torch.tensor([7, 30], dtype=torch.int32)
    with laneloom.emulated("gfx1151") as emulation:
        laneloom.grouped_matmul(a, b, ends, out_dtype=torch.float32).sum().backward()
    assert [x.kernel for x in emulation.launches] == ["wmma_matmul"] * 2
    assert a.grad is None


def test_no_gradients_of_what_has_none():
    a, b, ends = draw(8, 16).requires_grad_(), draw(2, 16, 8), torch.tensor([3, 8], dtype=torch.int32)
    words = "^out: expected none where gradients are recorded"
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError, match=words):
        laneloom.grouped_matmul(a, b, ends, out=draw(8, 8))


@pytest.mark.parametrize("sizes", [(0, 4, 5), (7, 4, 0), (0, 4, 0)])
@pytest.mark.parametrize("of_k", [False, True])
def test_gradients_where_nothing_is_multiplied(of_k, sizes):
    """C without rows or without columns: one of its gradients is a product of rows in groups without any K."""
    m, k, n = sizes
    a, b = (torch.ones(x).half().requires_grad_() for x in (((m, k), (k, n)) if of_k else ((m, k), (2, k, n))))
    ends = torch.tensor([1, 4] if of_k else [min(m, 2), min(m, 5)], dtype=torch.int32)
    with laneloom.emulated("gfx1151"):
        laneloom.grouped_matmul(a, b, ends).sum().backward()
    for x in (a, b):
        assert x.grad.shape == x.shape
        assert not x.grad.any()


def test_gradients_of_experts_without_outputs():
    x, ends = torch.ones(6, 32).half().requires_grad_(), torch.tensor([2, 6], dtype=torch.int32)
    weight = laneloom.quantize_weight(torch.ones(2, 0, 32), "int4", group=16)
    with laneloom.emulated("gfx1151"):
        laneloom.quantized_matmul(x, weight, ends=ends).sum().backward()
    assert not x.grad.any()

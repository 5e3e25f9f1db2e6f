"""Calls past PyTorch's dispatcher give the operators' bits, with gradients and without."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from watching import Watching  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.matmul import torch_gemm, torch_op  # noqa: E402


def tensor(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


def terms(m, n, which):
    """Keyword arguments of `gemm`."""
    every = {
        "bias": {"bias": tensor(n, seed=1)},
        "activation": {"bias": tensor(n, seed=1), "activation": "gelu"},
        "addend": {"c": tensor(m, n, seed=2), "beta": 0.5, "alpha": 1.5},
        "broadcast": {"c": tensor(n, dtype=torch.float32, seed=3), "beta": -2.0},
        "scales": {"scale_a": tensor(m, dtype=torch.float32), "scale_b": tensor(1, dtype=torch.float32, seed=4)},
        "unused": {"c": torch.full((n,), float("nan"), device="cuda", dtype=torch.bfloat16), "beta": 0.0},
        "fp32": {"bias": tensor(n, seed=1), "out_dtype": torch.float32},
        "nothing": {},
    }
    return every[which]


def by_operator(
    a, b, c=None, *, alpha=1.0, beta=0.0, bias=None, activation=None, out_dtype=None, scale_a=None, scale_b=None
):
    c = None if beta == 0 else c
    return torch.ops.laneloom.gemm(a, b, c, bias, alpha, beta, activation, out_dtype, None, scale_a, scale_b)


@pytest.mark.parametrize("sizes", [(256, 384, 128), (16, 4096, 2048), (129, 65, 77)])
@pytest.mark.parametrize(
    "which", ["bias", "activation", "addend", "broadcast", "scales", "unused", "fp32", "nothing"])
def test_gemm(which, sizes):
    m, n, k = sizes
    torch_gemm._warm.clear()
    torch_gemm.gemm_operator._calls.clear()
    for seed in (10, 20, 30):  # the second and third call find what the first prepared
        a, b = tensor(m, k, seed=seed), tensor(k, n, seed=seed + 1)
        given = terms(m, n, which)
        assert torch.equal(laneloom.gemm(a, b, **given), by_operator(a, b, **given))
    assert len(torch_gemm._warm) == 1
    # Other numbers by the same launch.
    if "alpha" in given:
        given |= {"alpha": -3.0, "beta": 0.25}
        assert torch.equal(laneloom.gemm(a, b, **given), by_operator(a, b, **given))
        assert len(torch_gemm._warm) == 1


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_gradients_of_gemm(activation):
    operands = tensor(64, 128), tensor(128, 64), tensor(64, 64), tensor(64)
    grad = tensor(64, 64)
    results = []
    for context in (nullcontext(), nullcontext(), Watching()):
        a, b, c, bias = (x.clone().requires_grad_() for x in operands)
        with context:
            out = laneloom.gemm(a, b, c, beta=0.5, bias=bias, activation=activation)
            out.backward(grad)
        results.append((out.detach(), a.grad, b.grad, c.grad, bias.grad))
    for cold, warm, operator in zip(*results, strict=True):
        assert torch.equal(cold, operator)
        assert torch.equal(warm, operator)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("of_a", "of_b"), [
    ((3, 40, 64), (64, 96)), ((2, 3, 40, 64), (64, 96)), ((3, 40, 64), (3, 64, 96)), ((5, 1, 64), (64, 96)),
    ((2, 1, 8, 64), (3, 64, 96)), ((40, 64), (3, 64, 96)), ((2, 3, 2, 8, 40), (2, 1, 2, 40, 24)),
])  # fmt: skip
@pytest.mark.parametrize("terms", [{}, {"alpha": 0.5}, {"bias": True}, {"addend": True}, {"scale": True}])
def test_batches(of_a, of_b, turned, terms):
    """Products and gradients beside FP64: a rounding to bf16 each, 2**-9, and a second one of sums over a batch."""
    terms = dict(terms)
    shape = torch.broadcast_shapes(of_a[:-2], of_b[:-2])
    for seed in (10, 20):  # the second call finds what the first prepared
        grad = tensor(*shape, of_a[-2], of_b[-1], seed=seed + 2)
        b = tensor(*of_b[:-2], of_b[-1], of_b[-2], seed=seed + 1).mT if turned else tensor(*of_b, seed=seed + 1)
        leaves = [tensor(*of_a, seed=seed).requires_grad_(), b.requires_grad_()]
        wide = [x.detach().double().requires_grad_() for x in leaves]
        given, alpha = {}, terms.get("alpha", 1.0)
        exact = alpha * (wide[0] @ wide[1])
        if "alpha" in terms:
            given["alpha"] = alpha
        if "bias" in terms:
            given["bias"] = tensor(of_b[-1], seed=seed + 3)
            exact = exact + given["bias"].double()
        if "addend" in terms:
            given |= {"c": tensor(of_a[-2], of_b[-1], seed=seed + 4), "beta": 2.0}
            exact = exact + 2 * given["c"].double()
        if "scale" in terms:
            given["scale_b"] = tensor(1, dtype=torch.float32, seed=seed + 5)
            exact = exact * given["scale_b"].double()
        out = laneloom.gemm(*leaves, **given)
        out.backward(grad)
        exact.backward(grad.double())
        for got, wanted in zip((out, *(x.grad for x in leaves)), (exact, *(x.grad for x in wide)), strict=True):
            assert got.shape == wanted.shape
            assert (got.double() - wanted).norm() <= 2 * 2.0**-9 * wanted.norm()


#: how the incoming gradient lies
INCOMING = {
    "dense": lambda grad: grad,
    "one row": lambda grad: grad[:1].expand_as(grad),
    "transposed": lambda grad: grad.mT.contiguous().mT,
    "shifted": lambda grad: grad.new_empty(grad.numel() + 1)[1:].view_as(grad).copy_(grad),
}


@pytest.mark.parametrize("incoming", INCOMING)
@pytest.mark.parametrize("which", ["matmul", "fp32", "alpha", "relu", "gelu", "silu", "scales"])
def test_gradients_of_what_comes_in(which, incoming):
    """However it lies, and after gradients that lay otherwise: gradients of prepared steps have the operators' bits."""
    call = {
        "matmul": laneloom.matmul,
        "fp32": lambda a, b: laneloom.matmul(a, b, out_dtype=torch.float32),
        "alpha": lambda a, b: laneloom.gemm(a, b, alpha=0.5),
        "scales": lambda a, b: laneloom.gemm(a, b, scale_a=tensor(96, dtype=torch.float32), activation="silu"),
    }.get(which, lambda a, b: laneloom.gemm(a, b, activation=which))
    operands = tensor(96, 128).requires_grad_(), tensor(128, 64).requires_grad_()

    def gradients(lay):
        out = call(*operands)
        return torch.autograd.grad(out, operands, lay(tensor(96, 64, dtype=out.dtype, seed=5)))

    with Watching():
        expected = gradients(INCOMING[incoming])
    for lay in (*INCOMING.values(), INCOMING[incoming]):
        gradients(lay)
    for got, truth in zip(gradients(INCOMING[incoming]), expected, strict=True):
        assert torch.equal(got, truth)


@pytest.mark.parametrize("recorded", [False, True])
def test_patched_products_have_the_functions_bits(recorded):
    a, w, bias = tensor(96, 128), tensor(64, 128, seed=1), tensor(64, seed=2)
    for x in (a, w, bias):
        x.requires_grad_(recorded)
    pairs = (
        (lambda: a @ w.mT, lambda: laneloom.matmul(a, w.mT)),
        (lambda: F.linear(a, w), lambda: laneloom.matmul(a, w.mT)),
        (lambda: F.linear(a, w, bias), lambda: laneloom.gemm(a, w.mT, bias=bias)),
    )
    for theirs, ours in pairs:
        expected = ours()
        with laneloom.patched(always=True) as p:
            for _ in range(3):
                got = theirs()
                assert torch.equal(got, expected)
                assert got.requires_grad == recorded
        (entry,) = p.report().entries
        assert (entry.routed, entry.calls) == (True, 3)


def test_the_operator_finds_what_the_function_prepared():
    a, b = tensor(96, 128).requires_grad_(), tensor(128, 64).requires_grad_()
    expected, prepared = laneloom.matmul(a, b), len(torch_op._warm)
    for call in (torch.ops.laneloom.matmul, torch.ops.laneloom.matmul.default):
        out = call(a, b)
        assert torch.equal(out, expected)
        assert type(out.grad_fn).__name__ == type(expected.grad_fn).__name__
    assert len(torch_op._warm) == prepared


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(256, 384, 128), (16, 2048, 1024), (129, 65, 77)])
def test_gradients_of_matmul(sizes, dtype, transposed):
    m, n, k = sizes
    a, grad = tensor(m, k, dtype=dtype), tensor(m, n, dtype=dtype)
    b = tensor(*((n, k) if transposed else (k, n)), dtype=dtype)
    results = []
    for context in (nullcontext(), nullcontext(), Watching()):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        with context:
            out = laneloom.matmul(x, y.mT if transposed else y)
            out.backward(grad)
        results.append((out.detach(), x.grad, y.grad))
    for cold, warm, operator in zip(*results, strict=True):
        assert torch.equal(cold, operator)
        assert torch.equal(warm, operator)


def test_second_derivatives_and_a_gradient_without_memory_of_its_own():
    a, b = (torch.randn(6, 6, device="cuda", dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(laneloom.matmul, (a, b))
    laneloom.matmul(a, b).sum().backward()  # the incoming gradient has strides of 0
    assert torch.allclose(a.grad, torch.ones_like(a) @ b.detach().mT)


def test_one_gradient_and_a_parameter():
    a, weight = tensor(64, 128), torch.nn.Parameter(tensor(128, 96))
    out = laneloom.matmul(a, weight)
    assert type(out) is torch.Tensor
    out.backward(torch.ones_like(out))
    assert weight.grad.shape == weight.shape


def test_a_result_in_memory_of_the_callers():
    """It counts as written, and may be an operand."""
    a, b = tensor(64, 64, seed=1), tensor(64, 64, seed=2)
    expected, out = laneloom.matmul(a, b), torch.empty_like(a)
    for _ in range(2):
        before = out._version
        assert laneloom.matmul(a, b, out=out) is out
        assert out._version > before
        assert torch.equal(out, expected)
        over = a.clone()
        laneloom.matmul(over, b, out=over)
        assert torch.equal(over, expected)

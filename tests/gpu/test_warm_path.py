"""Calls past PyTorch's dispatcher give the operators' bits, with gradients and without."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.ops.matmul import torch_gemm  # noqa: E402


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
    for call in (laneloom.gemm, torch.ops.laneloom.gemm):
        a, b, c, bias = (x.clone().requires_grad_() for x in operands)
        out = call(a, b, c, beta=0.5, bias=bias, activation=activation)
        out.backward(grad)
        results.append((out.detach(), a.grad, b.grad, c.grad, bias.grad))
    for warm, operator in zip(*results, strict=True):
        assert torch.equal(warm, operator)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(256, 384, 128), (16, 2048, 1024), (129, 65, 77)])
def test_gradients_of_matmul(sizes, dtype, transposed):
    m, n, k = sizes
    a, grad = tensor(m, k, dtype=dtype), tensor(m, n, dtype=dtype)
    b = tensor(*((n, k) if transposed else (k, n)), dtype=dtype)
    results = []
    for call in (laneloom.matmul, torch.ops.laneloom.matmul):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        out = call(x, y.mT if transposed else y)
        out.backward(grad)
        results.append((out.detach(), x.grad, y.grad))
    for warm, operator in zip(*results, strict=True):
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

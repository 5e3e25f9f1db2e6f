"""Gradients of gemm's terms where its operands are too coarse for gradients of their own."""

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.errors import UnsupportedError  # noqa: E402

FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("blocks", [False, True])
def test_bias_and_c_of_8_bit_operands(blocks, activation):
    torch.manual_seed(0)
    a, b = torch.randn(5, 150).to(FP8), torch.randn(150, 9).to(FP8)
    scales = (torch.rand(5, 2) + 0.5, torch.rand(2, 1) + 0.5) if blocks else (torch.rand(5) + 0.5, None)
    bias, c = (torch.randn(*shape, requires_grad=True) for shape in ((9,), (5, 9)))
    grad = torch.randn(5, 9)
    with laneloom.emulated("gfx1201"):
        out = laneloom.gemm(a, b, c, beta=0.5, bias=bias, activation=activation, scale_a=scales[0], scale_b=scales[1])
        got = torch.autograd.grad(out, (bias, c), grad)
    wide = [x.repeat_interleave(128, axis).narrow(axis, 0, 150) for x, axis in zip(scales, (1, 0), strict=True)
            ] if blocks else [scales[0][:, None], torch.ones(())]  # fmt: skip
    z = (a.double() * wide[0].double()) @ (b.double() * wide[1].double()) + 0.5 * c + bias
    truth = {None: lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[activation](z)
    for x, y in zip(got, torch.autograd.grad(truth, (bias, c), grad.double()), strict=True):
        # 150 products of about 1 in FP32 before the slope, some twenty roundings of FP32 after it
        torch.testing.assert_close(x.double(), y.double(), rtol=2**-17, atol=2**-17)


def test_of_the_operands_themselves_they_are_refused():
    a, b = torch.randn(5, 20).to(FP8).requires_grad_(), torch.randn(20, 9).to(FP8)
    with laneloom.emulated("gfx1201"):
        out = laneloom.gemm(a, b, bias=torch.randn(9, requires_grad=True))
        with pytest.raises(UnsupportedError, match="without gradients"):
            out.sum().backward()


def test_the_gradient_of_relu_where_its_result_is_no_number():
    """It goes on, as torch's does: a NaN in activations is not hidden from a check of gradients."""
    a, b, bias = torch.tensor([[float("nan")], [2.0], [-2.0]]), torch.ones(1, 1), torch.zeros(1, requires_grad=True)
    grad = torch.tensor([[3.0], [5.0], [7.0]])
    with laneloom.emulated("gfx1201"):
        (got,) = torch.autograd.grad(laneloom.gemm(a, b, bias=bias, activation="relu"), bias, grad)
    (expected,) = torch.autograd.grad(torch.relu(a @ b + bias), bias, grad)
    assert torch.equal(got, expected)
    assert got.tolist() == [8.0]

"""What gradients keep of operands: what torch keeps, so that the rest may change before the backward, and is freed."""

from __future__ import annotations

import itertools
import weakref

import pytest
from sampled import in_turn

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops import warm  # noqa: E402

HALF, BF16 = torch.float16, torch.bfloat16
ENDS = torch.tensor([4, 4, 9], dtype=torch.int32)
FEW = laneloom.QuantizedLinear.from_linear(torch.nn.Linear(32, 16).half())


def random(*shape, seed=0, dtype=HALF):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def few(x, bias):
    return laneloom.quantized_matmul(x, FEW.quantized, bias=bias)


def theirs(x, bias):
    return F.linear(x, FEW.quantized.dequantize(HALF), bias)


def relu(x, w, bias):
    return laneloom.gemm(x, w.mT, bias=bias, activation="relu")


#: torch's function, laneloom's where it is another, and the operands
FUNCTIONS = {
    "mm": (torch.mm, torch.mm, (random(9, 16), random(16, 16, seed=1))),
    "of a batch": (torch.matmul, torch.matmul, (random(2, 9, 16), random(16, 16, seed=1).mT)),
    "linear": (F.linear, F.linear, (random(2, 9, 16), random(16, 16, seed=1), random(16, seed=2))),
    "addmm": (torch.addmm, torch.addmm, (random(9, 16, seed=2), random(9, 16), random(16, 16, seed=1))),
    "relu": (lambda *x: F.linear(*x).relu(), relu, (random(9, 16), random(16, 16, seed=1), random(16, seed=2))),
    "grouped": (
        lambda x, w: F.grouped_mm(x, w, offs=ENDS), lambda x, w: F.grouped_mm(x, w, offs=ENDS),
        (random(9, 16, dtype=BF16), random(3, 16, 16, seed=1, dtype=BF16)),
    ),
    "grouped, turned": (
        lambda x, w: F.grouped_mm(x, w.mT, offs=ENDS), lambda x, w: F.grouped_mm(x, w.mT, offs=ENDS),
        (random(9, 16, dtype=BF16), random(3, 16, 16, seed=1, dtype=BF16)),
    ),
    "few bits": (theirs, few, (random(2, 9, 32), random(16, seed=2))),
}  # fmt: skip
CASES = [
    (name, wanted, changed)
    for name, (_, _, operands) in FUNCTIONS.items()
    for wanted in itertools.product((False, True), repeat=len(operands))
    for changed in range(len(operands))
    if any(wanted)
]


def outcome(function, operands, wanted, changed):
    """The gradients where an operand changes behind the forward, or that autograd refuses it."""
    leaves = [x.clone().requires_grad_(asked) for x, asked in zip(operands, wanted, strict=True)]
    held = [x.clone() for x in leaves]
    out = function(*held)
    with torch.no_grad():
        held[changed].add_(1)
    try:
        asked = [x for x in leaves if x.requires_grad]
        return torch.autograd.grad(out, asked, random(*out.shape, seed=7, dtype=out.dtype))
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return None


@pytest.mark.parametrize(("name", "wanted", "changed"), in_turn(24, *CASES))
def test_what_no_gradient_needs_may_change(name, wanted, changed, monkeypatch):
    torch_s, ours, operands = FUNCTIONS[name]
    expected = outcome(torch_s, operands, wanted, changed)
    with laneloom.emulated("gfx1151"), laneloom.patched(always=True):
        cold = outcome(ours, operands, wanted, changed)
        monkeypatch.setattr(torch.Tensor, "get_device", lambda x: 0, raising=False)  # as on a GPU: calls are kept
        monkeypatch.setattr(warm, "current_device", lambda: 0)
        for got in (cold, outcome(ours, operands, wanted, changed), outcome(ours, operands, wanted, changed)):
            assert (got is None) == (expected is None)
            for x, y in zip(got or (), expected or (), strict=True):
                assert (x.shape, x.dtype) == (y.shape, y.dtype)
                assert (x - y).float().norm() <= 2**-6 * y.float().norm()


@pytest.mark.parametrize("name", ["mm", "linear", "few bits"])
def test_what_no_gradient_needs_is_freed(name):
    """The input of a layer whose weight is frozen, as under an adapter."""
    _, ours, (x, *others) = FUNCTIONS[name]
    x = x.clone().requires_grad_() * 1
    gone = weakref.ref(x)
    with laneloom.emulated("gfx1151"), laneloom.patched(always=True):
        out = ours(x, *others)
        del x
        assert gone() is None
        out.float().sum().backward()


def test_a_bias_made_in_inference_mode():
    with torch.inference_mode():
        bias = random(16, seed=2)
    x, w = random(9, 16).requires_grad_(), random(16, 16, seed=1)
    with laneloom.emulated("gfx1151"), laneloom.patched(always=True):
        F.linear(x, w, bias).float().sum().backward()
    assert torch.equal(x.grad, torch.ones(9, 16, dtype=HALF) @ w)

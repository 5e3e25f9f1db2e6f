"""Calls that `patched` leaves to torch are found again by less than what a kernel depends on: by all that decides."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import laneloom  # noqa: E402
from laneloom.pytorch import patch, routing  # noqa: E402

X, W, BIAS = torch.ones(2, 9, 16).half(), torch.ones(16, 16).half(), torch.ones(16).half()
Q, MASK = torch.ones(1, 2, 9, 16).half(), torch.ones(9, 9, dtype=torch.bool)
GRADIENTS = Q.detach().requires_grad_()


@pytest.fixture
def decided(monkeypatch):
    """The calls that were decided anew, all for torch; keys as tensors of a GPU have them."""
    calls = []

    def decide(request, device_type, **options):
        calls.append(request.text)
        return routing.Decision(False, "torch is faster")

    monkeypatch.setattr(patch, "decide", decide)
    monkeypatch.setattr(patch, "key_of", lambda args: (torch.is_grad_enabled(), *map(_key, args)))
    monkeypatch.setattr(patch, "_memories", {})
    return calls


def _key(x):
    return (x.shape, x.stride(), x.dtype, x.requires_grad) if isinstance(x, torch.Tensor) else x


ALIKE = {
    "linear": lambda: F.linear(X, W, BIAS),
    "matmul": lambda: X @ W,
    "mm": lambda: torch.mm(X[0], W),
    "attention": lambda: F.scaled_dot_product_attention(Q, Q, Q, is_causal=True),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_call_is_decided_once_and_counted(decided, name):
    expected = ALIKE[name]()
    with laneloom.patched() as p:
        for _ in range(4):
            assert torch.equal(ALIKE[name](), expected)
    with laneloom.patched() as again:
        for _ in range(3):
            ALIKE[name]()
    assert len(decided) == 1
    for context, calls in ((p, 4), (again, 3)):
        (entry,) = context.report().entries
        assert (entry.calls, entry.routed, entry.reason) == (calls, False, "torch is faster")


OTHERS = {
    "without a bias": lambda: F.linear(X, W),
    "another shape": lambda: F.linear(X[:1], W, BIAS),
    "another layout": lambda: F.linear(X, W.mT, BIAS),
    "rows apart": lambda: F.linear(X.repeat(1, 2, 1)[:, ::2], W, BIAS),
    "another dtype": lambda: F.linear(X.bfloat16(), W.bfloat16(), BIAS.bfloat16()),
    "gradients of x": lambda: F.linear(X.clone().requires_grad_(), W, BIAS),
    "gradients of the weight": lambda: F.linear(X, W.clone().requires_grad_(), BIAS),
    "another function": lambda: torch.matmul(X, W),
    "attention that is not causal": lambda: F.scaled_dot_product_attention(Q, Q, Q),
    "attention of other keys": lambda: F.scaled_dot_product_attention(Q, Q[:, :, :5], Q[:, :, :5], is_causal=True),
    "attention with gradients": lambda: F.scaled_dot_product_attention(Q, Q, GRADIENTS, is_causal=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_call_is_decided_by_itself(decided, name):
    with laneloom.patched():
        for call in (ALIKE["linear"], ALIKE["attention"]):
            call(), call()
        assert len(decided) == 2
        OTHERS[name]()
    assert len(decided) == 3


def test_a_parameter_is_found_by_which_it_is(decided, monkeypatch):
    monkeypatch.setattr(patch, "MOST_CALLS", 3)  # calls are counted in between
    weight, other = (torch.nn.Parameter(torch.ones(16, 16).half()) for _ in "ab")
    with laneloom.patched() as p:
        for _ in range(10):
            F.linear(X, weight, BIAS)
        assert len(decided) == 1
        F.linear(X, other, BIAS)
        assert len(decided) == 1  # by all that a kernel depends on
        for _ in range(3):  # each may lie where the last one did
            weight = torch.nn.Parameter(torch.ones(16, 16).half().mT)
            F.linear(X, weight, BIAS), F.linear(X, weight, BIAS)
        assert len(decided) == 2
        with torch.no_grad():
            F.linear(X, weight, BIAS), F.linear(X, weight, BIAS)
        assert len(decided) == 3
        weight.requires_grad_(False)
        F.linear(X, weight, BIAS), F.linear(X[:1], weight, BIAS)
    assert len(decided) == 5
    assert p.report().kept == 21


def test_autocast_and_masks_are_seen(decided):
    with laneloom.patched() as p:
        F.linear(X, W), F.linear(X, W)
        with torch.autocast("cpu", torch.bfloat16):
            assert F.linear(X, W).dtype == torch.bfloat16
        F.scaled_dot_product_attention(Q, Q, Q), F.scaled_dot_product_attention(Q, Q, Q, attn_mask=MASK)
    assert len(decided) == 3
    assert {entry.reason for entry in p.report().entries} == {"torch is faster", "attn_mask"}


def test_fp32_follows_torchs_setting(decided):
    x, before = X.float(), torch.get_float32_matmul_precision()
    with laneloom.patched():
        torch.matmul(x, x.mT), torch.matmul(x, x.mT)
        try:
            torch.set_float32_matmul_precision("high")
            torch.matmul(x, x.mT)
        finally:
            torch.set_float32_matmul_precision(before)
    assert len(decided) == 2


def test_an_inner_context_decides(decided):
    with laneloom.patched() as outer, laneloom.patched() as inner:
        F.linear(X, W), F.linear(X, W)
    assert (inner.report().kept, outer.report().kept) == (2, 0)

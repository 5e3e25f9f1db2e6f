"""FP32 products that torch may run in TF32: `patched` leaves them to torch, whose FP32 they were measured against."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.pytorch import patch, routing  # noqa: E402


@pytest.fixture
def tf32():
    """Sets whether torch's FP32 products may run in TF32."""
    before = torch.backends.cuda.matmul.fp32_precision
    yield lambda allowed: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32" if allowed else "ieee")
    torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_that_torch_may_run_in_tf32_stay_its_own(monkeypatch, tf32, dtype):
    monkeypatch.setattr(routing, "active_gpu", lambda: get_gpu("sm_90a"))
    monkeypatch.setattr(routing, "expected_device_type", lambda: "cuda")
    of = torch.empty(2048, 2048, dtype=dtype, device="meta")
    request = routing.product_request("mm", of, of, None)
    for allowed in (False, True, False):
        tf32(allowed)
        kept = allowed and dtype == torch.float32
        decision = routing.decide(request, "cuda", always=False)
        assert ("in TF32" in decision.reason) is kept, decision
        assert decision.routed is (dtype == torch.float32 and not kept), decision  # bf16 is too near
        assert routing.decide(request, "cuda", always=True).routed


@pytest.mark.parametrize("setting", ["fp32_precision", "allow_tf32", "set_float32_matmul_precision"])
def test_every_setting_of_torch_counts(tf32, setting):
    if setting == "fp32_precision":
        tf32(True)
    elif setting == "allow_tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
    else:
        torch.set_float32_matmul_precision("high")
    try:
        assert routing.allows_tf32()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not routing.allows_tf32()


def test_a_decision_is_made_again_when_tf32_is_allowed(monkeypatch, tf32):
    asked = []
    monkeypatch.setattr(patch, "decide", lambda *args, **options: asked.append(args) or routing.Decision(False, "no"))
    a = torch.ones(4, 4)
    with laneloom.patched() as p:
        for allowed, times in ((False, 1), (False, 1), (True, 2), (False, 2)):
            tf32(allowed)
            a @ a
            assert len(asked) == times
    assert p.report().entries[0].calls == 4

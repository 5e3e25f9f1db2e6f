"""The FP32 ladder on a real Hopper GPU: every step against FP64, at sizes and pitches that are nobody's multiples."""

from __future__ import annotations

import pytest

import laneloom
from laneloom.errors import InvalidConfigError
from laneloom.ops.matmul import reference
from laneloom.ops.matmul.config_sgemm import LADDER, HopperStepConfig

torch = pytest.importorskip("torch")
STEPS = [name for name in LADDER if name.startswith("sgemm_h")]


pytestmark = pytest.mark.usefixtures("hopper")


def judge(a, b, c) -> None:
    verdict = reference.judge(*(x.double().cpu().numpy() for x in (c, a, b)), "fp32")
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (67, 131, 37), (129, 257, 17), (128, 256, 64), (300, 520, 15), (5, 1000, 128)]
)
@pytest.mark.parametrize("step", STEPS)
def test_any_size(step, m, n, k):
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    out = torch.full((m, n), float("nan"), device="cuda")
    laneloom.matmul(a, b, out=out, config=step)
    judge(a, b, out)


@pytest.mark.parametrize("step", STEPS)
def test_pitches_and_batches(step):
    a, b = torch.randn(3, 140, 90, device="cuda")[:, :, 3:80], torch.randn(80, 311, device="cuda")[:77, 5:300]
    judge(a, b.expand(3, 77, 295), laneloom.matmul(a, b, config=step))


def test_refusals():
    a, b = torch.randn(8, 16, device="cuda"), torch.randn(16, 8, device="cuda")
    with pytest.raises(InvalidConfigError, match="row-major"):
        laneloom.matmul(a.mT.contiguous().mT, b, config="sgemm_h7")
    with pytest.raises(InvalidConfigError, match="1 to 7"):
        laneloom.matmul(a, b, config=HopperStepConfig(number=8))

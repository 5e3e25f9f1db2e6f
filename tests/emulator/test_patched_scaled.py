"""`laneloom.patched` around torch's products of 8-bit floats with scales."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import laneloom  # noqa: E402
from laneloom.pytorch import routing  # noqa: E402


@pytest.fixture
def gfx1201():
    with laneloom.emulated("gfx1201") as emulator:
        yield emulator


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def entry(p):
    (found,) = p.report().entries
    return found


FP8 = torch.float8_e4m3fn
A8, B8, BIAS8 = random(9, 32).to(FP8), random(16, 32, seed=1).to(FP8).t(), random(16, seed=2).bfloat16()
ONE, OF_ROWS, OF_COLUMNS = torch.full((1, 1), 1.5), random(9, 1, seed=3).float(), random(1, 16, seed=4).float()
ROUTED = {
    "scaled": lambda: torch._scaled_mm(A8, B8, ONE, ONE / 2, out_dtype=torch.bfloat16, use_fast_accum=True),
    "scaled_bias": lambda: torch._scaled_mm(A8, B8, ONE, ONE[:, 0], BIAS8, out_dtype=torch.float32),
    "scaled_rows": lambda: torch._scaled_mm(A8, B8, scale_a=OF_ROWS, scale_b=OF_COLUMNS, out_dtype=torch.bfloat16),
    "scaled_recipes": lambda: F.scaled_mm(
        A8, B8, OF_ROWS, F.ScalingType.RowWise, OF_COLUMNS, F.ScalingType.RowWise, bias=BIAS8),
    "scaled_recipe": lambda: F.scaled_mm(A8, B8, ONE, F.ScalingType.TensorWise, ONE, F.ScalingType.TensorWise),
}


@pytest.mark.parametrize("name", ROUTED)
def test_routed(gfx1201, name):
    expected = ROUTED[name]()
    with laneloom.patched(always=True) as p:
        got = ROUTED[name]()
    assert (entry(p).function, entry(p).routed, entry(p).calls) == ("scaled_mm", True, 1)
    assert gfx1201.launches
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected)


KEPT = {
    "scaled_dtype": (lambda: torch._scaled_mm(A8, B8, ONE, ONE).float(), "out_dtype None"),
    "scaled_out": (
        lambda: torch._scaled_mm(A8, B8, ONE, ONE, out_dtype=torch.half, out=torch.empty(9, 16).half()), "out="),
    "scaled_gradients": (
        lambda: torch._scaled_mm(
            A8, B8, ONE, ONE, BIAS8.clone().requires_grad_(), out_dtype=torch.bfloat16).detach(), "gradients"),
    "scaled_wide": (lambda: torch._scaled_mm(A8, B8, *[ONE.double()] * 2, out_dtype=torch.half), "neither FP32 nor"),
    "scaled_recipe": (
        lambda: F.scaled_mm(A8, B8, OF_ROWS, F.ScalingType.BlockWise1x128, ONE, F.ScalingType.BlockWise128x128),
        "neither FP32 nor"),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(gfx1201, name):
    """Also what torch refuses then."""
    call, reason = KEPT[name]
    try:
        expected = call()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        expected = error
    with laneloom.patched(always=True) as p:
        if isinstance(expected, Exception):
            with pytest.raises(type(expected)):
                call()
        else:
            torch.testing.assert_close(call(), expected)
    assert not entry(p).routed
    assert reason in entry(p).reason
    assert not gfx1201.launches


GROUPED8 = torch.stack([random(16, 32, seed=i).to(FP8) for i in (5, 6)]).mT
SCALED_GROUPS = {
    "scaled_grouped_mm": lambda: torch._scaled_grouped_mm(
        A8, GROUPED8, OF_ROWS[:, 0], OF_GROUPS, ENDS2, out_dtype=torch.bfloat16, use_fast_accum=True),
    "recipes": lambda: F.scaled_grouped_mm(
        A8, GROUPED8, OF_ROWS[:, 0], F.ScalingType.RowWise, OF_GROUPS, F.ScalingType.RowWise, offs=ENDS2),
}  # fmt: skip
OF_GROUPS, ENDS2 = random(2, 16, seed=7).float(), torch.tensor([4, 9]).int()


@pytest.mark.parametrize("name", SCALED_GROUPS)
def test_scaled_groups(gfx1201, name):
    """Of which torch has none on a CPU."""
    with laneloom.patched(always=True) as p:
        got = SCALED_GROUPS[name]()
    assert (entry(p).function, entry(p).routed) == ("scaled_grouped_mm", True)
    for group, (first, end) in enumerate(((0, 4), (4, 9))):
        wanted = A8[first:end].double() @ GROUPED8[group].double() * OF_ROWS[first:end] * OF_GROUPS[group]
        torch.testing.assert_close(got[first:end], wanted.bfloat16())


def test_scaled_groups_that_torch_keeps(gfx1201):
    scales = OF_ROWS[:, 0], OF_GROUPS
    for of_both, more, why in ((scales, {"bias": BIAS8}, "a bias"), ((ONE, ONE), {}, "scales of tensors in groups")):
        with laneloom.patched(always=True) as p, pytest.raises(NotImplementedError):
            torch._scaled_grouped_mm(A8, GROUPED8, *of_both, offs=ENDS2, out_dtype=torch.bfloat16, **more)
        assert entry(p).reason == why


def test_sums_of_8_bit_floats_are_promoted_unless_they_may_be_fast():
    """Which of the two a call is weighed as."""
    for fast, words in ((True, "fp8 rows"), (False, "fp8 rows promoted")):
        request = routing.scaled_request(A8, B8, None, "rows", fast, False)
        assert request.parts == (routing.Part("scaled_mm", (words,), (9, 16, 32)),)
    assert "shape or dtype" in routing.scaled_request(A8, B8, BIAS8[:5], "rows", True, False)

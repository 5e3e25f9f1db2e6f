"""The merge of attention over parts of the keys, against FP64, in every order of its waves."""

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.pytorch.merge import merge_parts  # noqa: E402

U16, U32 = 2.0**-11, 2.0**-24


@pytest.mark.covering
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx942", "gfx90a"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("d", [16, 128])  # with 128 there are fewer rows than lanes: waves load the same sums
def test_merged_rows(d, in_place, gpu, seed):
    generator = torch.Generator().manual_seed(d)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    rows_all, first, rows = 45, 4, 41
    old, part = random(1, 2, rows_all, d).half(), random(1, 2, rows, d).half()
    lse, sums = 3 * random(1, 2, rows_all).float(), 3 * random(1, 2, rows).float()
    lse[0, 0, 5] = sums[0, 0, 1] = sums[0, 1, 7] = -torch.inf  # the first row has seen no key at all
    both = torch.logaddexp(lse[:, :, first:].double(), sums.double())
    weights = [torch.nan_to_num((x.double() - both).exp())[..., None] for x in (lse[:, :, first:], sums)]
    expected = weights[0] * old[:, :, first:].double() + weights[1] * part.double()
    size = weights[0] * old[:, :, first:].double().abs() + weights[1] * part.double().abs()
    old = old.float() if in_place else old
    given, before, out = old.clone(), lse.clone(), old if in_place else old.clone()
    with laneloom.emulated(gpu, strict=True, seed=seed):
        merge_parts(old, lse, part, sums, out, first)
    assert bool(((out[:, :, first:].double() - expected).abs() <= (U16 + 64 * U32) * size + 2.0**-24).all())
    assert torch.equal(out[:, :, :first], given[:, :, :first])
    assert torch.equal(lse[:, :, :first], before[:, :, :first])
    torch.testing.assert_close(lse[:, :, first:].double(), both, rtol=1e-6, atol=1e-6)

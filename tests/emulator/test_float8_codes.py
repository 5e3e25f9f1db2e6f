"""Every code of the 8-bit floats as an operand, NaN and infinity too, on GPUs that multiply them and on such that widen
them first."""

from __future__ import annotations

import pytest
from sampled import rarely

import laneloom

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("poisoned_allocations")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx942", "gfx90a", *rarely("gfx950", "gfx908", "gfx1100")])
def test_every_code(gpu, dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    a, b = (torch.zeros(shape).to(dtype) for shape in ((256, 16), (16, 16)))
    a[:, 3], b[3] = codes, 1.0
    # A product with 1 may be off in the last place on RDNA 3, and one with 0 takes a unit from it.
    with laneloom.emulated(gpu, strict=True, sums="exact"):
        products = [
            laneloom.matmul(a, b),
            laneloom.matmul(b.mT, a.mT).mT,
            laneloom.gemm(a, b, scale_a=torch.ones(256, 1), scale_b=torch.ones(1, 16)),
        ]
    for c in products:
        torch.testing.assert_close(c, codes.float()[:, None].expand(256, 16), rtol=0, atol=0, equal_nan=True)

"""The launch that adds up parts of K: by its arguments every element of C is the sum of its own parts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from laneloom.device import split_k  # noqa: E402
from laneloom.device.split_k import ReduceLaunch  # noqa: E402


class Simulated:
    """What `reduce_splits` does with its arguments, of which this launch was told."""

    def __init__(self, kernel, grid, arguments, **_):
        self.grid, self.arguments = grid, arguments

    def __call__(self, parts, out):
        _, _, elements, columns, pitch, part, pm, pn, cm, cn, splits, _, block, line, dense = self.arguments(parts, out)
        offsets = torch.arange(min(self.grid[0] * block, elements))
        m, n = offsets // pitch, offsets % pitch
        from_ = offsets if line else m * pm + n * pn
        to, there = (offsets, n >= 0) if dense else (m * cm + n * cn, n < columns)
        sums = sum(parts.as_strided((parts.numel(),), (1,))[s * part + from_] for s in range(splits))
        out.as_strided((int(to[there].max()) + 1,), (1,))[to[there]] = sums[there]


@pytest.mark.parametrize("splits", [2, 5, 20])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (1, 300), (300, 1), (1, 1), (64, 8)])
@pytest.mark.parametrize("lies", ["rows", "columns", "part of rows"])
@pytest.mark.parametrize("turned", [False, True])
def test_every_element_is_the_sum_of_its_parts(monkeypatch, splits, padding, rows, columns, lies, turned):
    monkeypatch.setattr(split_k, "PreparedLaunch", Simulated)
    parts = torch.randn(splits, columns, rows).mT if turned else torch.randn(splits, rows, columns + padding)
    strides = {"rows": (columns, 1), "columns": (1, rows), "part of rows": (columns + 5, 1)}[lies]
    # Strides of axes of one element are 0 in a problem.
    strides = tuple(0 if extent == 1 else stride for extent, stride in zip((rows, columns), strides, strict=True))
    out = torch.full((rows * (columns + 5),), float("nan")).as_strided((rows, columns), strides)
    ReduceLaunch(pdl=True)(parts, out)
    torch.testing.assert_close(out, parts[..., :columns].sum(0))

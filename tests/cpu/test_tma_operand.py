"""What a schedule in CUDA C++ reads of its two operands: themselves, or copies, which one launch makes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from laneloom.device.pieces import placing  # noqa: E402
from laneloom.device.prepared import PreparedLaunch  # noqa: E402
from laneloom.ops.matmul.tma_operand import TmaOperand  # noqa: E402

M, N, K = 40, 24, 70


def operand(rows, copied):
    return TmaOperand(
        (0, 0, K, 1), "tf32", rows, K, (1, 1), along_k=True, box=(32, 8), swizzle=128, copied=copied, pieces=2
    )


@pytest.mark.parametrize("copied_b", [False, True])
@pytest.mark.parametrize("copied_a", [False, True])
def test_one_launch_makes_all_copies(copied_a, copied_b, monkeypatch):
    launches = []
    monkeypatch.setattr(PreparedLaunch, "__call__", lambda self, *tensors: launches.append((self._grid, tensors)))
    place = placing(operand(M, copied_a).copy, operand(N, copied_b).copy, pdl=True)
    sources = torch.empty(M, K), torch.empty(N, K)
    read = place(*sources)
    assert len(launches) == int(copied_a or copied_b)
    pairs = []
    for copied, rows, source, found in zip((copied_a, copied_b), (M, N), sources, read, strict=True):
        if copied:
            assert found.shape == (2, rows, 96), "pieces, rows, whole lines"
            pairs.append((source, found))
        else:
            assert found is source
    for grid, tensors in launches:
        assert grid == (copied_a * M // 8 + copied_b * N // 8, 1, 1), "blocks of 8 rows and 128 columns"
        assert [id(x) for x in tensors] == [id(x) for pair in (pairs * 2)[:2] for x in pair]

"""What a schedule on Hopper reads of its two operands: themselves, or copies, which one launch makes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from laneloom.device.pieces import placing  # noqa: E402
from laneloom.device.prepared import PreparedLaunch  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.matmul.config import plan  # noqa: E402
from laneloom.ops.matmul.execute import schedule_of  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402
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


@pytest.mark.parametrize(("dtype", "kept"), [("bf16", True), ("fp8", False)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_copies_of_16_bits_keep_their_axis_others_go_along_k(layout, dtype, kept):
    odd = MatmulProblem.contiguous(1001, 1003, 1005, dtype=dtype, layout=layout)
    gpu = get_gpu("h200")
    config = plan(odd, gpu)
    assert config.copy_a
    assert config.copy_b
    assert config.along_k(odd, "a") == (layout[0] == "n" or not kept)
    assert config.along_k(odd, "b") == (layout[1] == "t" or not kept)
    said = f"A is copied first: contiguous along {'K' if config.along_k(odd, 'a') else 'M'}"
    assert any(line.startswith(said) for line in schedule_of(config).facts(odd, config, gpu))

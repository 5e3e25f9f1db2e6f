"""FP32 in pieces for Hopper's tensor cores: the kernel that cuts them runs in the emulator of another GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.device.pieces import BLOCK_K, BLOCK_ROWS, cut_into_pieces  # noqa: E402

ROWS, K = 70, 100


def pieces_of(x, kind, count):
    """[count, ROWS, K] from a poisoned buffer with a wider pitch."""
    pitch = 128
    copy = torch.full((count, ROWS, pitch), float("nan"), dtype=torch.bfloat16 if kind == "bf16" else torch.float32)
    blocks = -(-ROWS // BLOCK_ROWS) * -(-K // BLOCK_K)
    with laneloom.emulated("gfx1151", strict=True):
        cut_into_pieces[(blocks,)](
            x, copy, ROWS, K, *x.stride(), pitch, ROWS * pitch, count, kind, x.stride(0) == 1, BLOCK_ROWS, BLOCK_K,
            False)  # fmt: skip
    assert copy[:, :, K:].isnan().all(), "written past K"
    return copy[:, :, :K]


@pytest.mark.parametrize(
    ("kind", "count", "left"), [("tf32", 2, 2.0**-22), ("bf16", 3, 2.0**-24), ("tf32", 1, 2.0**-11)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_pieces_add_up_to_the_operand(kind, count, left, transposed):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(K, ROWS, generator=generator).mT if transposed else torch.randn(ROWS, K, generator=generator)
    x = x * torch.exp2(torch.randint(-80, 80, x.shape, generator=generator).float())
    pieces = pieces_of(x, kind, count)
    assert ((pieces.double().sum(0) - x.double()).abs() <= left * x.double().abs()).all()
    if kind == "tf32":
        assert (pieces.contiguous().view(torch.int32) & 0x1FFF == 0).all(), "wgmma would cut off more bits"


def test_what_is_not_finite_stays_so_and_the_largest_does_not_overflow():
    x = torch.zeros(ROWS, K)
    x[0, :4] = torch.tensor([float("inf"), float("-inf"), float("nan"), 3.4028235e38])
    for kind, count in (("tf32", 2), ("bf16", 3)):
        total = pieces_of(x, kind, count).double().sum(0)[0, :4]
        assert torch.equal(total[:2], x[0, :2].double())
        assert total[2].isnan()
        assert (total[3] - x[0, 3].double()).abs() <= 2.0**-20 * x[0, 3].double()

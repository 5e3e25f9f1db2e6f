"""Copies for Hopper's products, whole and in pieces: the kernel that makes them runs in the emulator of another GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.device.pieces import NUM_WARPS, MatrixCopy, PiecesLaunch, cut_into_pieces  # noqa: E402

IN_PIECES = [("tf32", 2, 2.0**-22), ("bf16", 3, 2.0**-24), ("tf32", 1, 2.0**-11)]  #: and the share of x that is left
DTYPES = {
    "uint8": torch.uint8, "fp8": torch.float8_e4m3fn, "fp16": torch.float16, "bf16": torch.bfloat16,
    "tf32": torch.float32, "fp32": torch.float32, "fp64": torch.float64,
}  # fmt: skip


def lying(x, order):
    """The values of x [rows, K]: "k" contiguous along K, "r" along the rows' axis, both with a pitch of multiples of 4;
    "n" along neither; "s" along K, from an address that 16 does not divide."""
    rows, k = x.shape
    if order == "k":
        return torch.empty(rows, -(-k // 4) * 4 + 4, dtype=x.dtype)[:, :k].copy_(x)
    if order == "r":
        return torch.empty(k, -(-rows // 4) * 4 + 4, dtype=x.dtype)[:, :rows].mT.copy_(x)
    if order == "n":
        return torch.empty(rows, k, 3, dtype=x.dtype)[..., 1].copy_(x)
    return torch.empty(rows * k + 1, dtype=x.dtype)[1:].view(rows, k).copy_(x)


def copies_of(dtype, pieces, *sources):
    """[pieces, rows, K] of each source, by one launch, in memory that was poisoned."""
    described = [MatrixCopy(dtype, pieces, *x.shape, x.stride()) for x in sources]
    launch = PiecesLaunch(*described, pdl=False)
    copies = []
    for copy in described:
        line_bytes = copy.pitch * DTYPES[dtype].itemsize
        assert line_bytes % 128 == 0
        room = torch.full((pieces, copy.rows, line_bytes), 0xFF, dtype=torch.uint8)
        copies.append(room.view(DTYPES[dtype]))
    with laneloom.emulated("gfx1151", strict=True):
        tensors = (sources[0], copies[0], sources[-1], copies[-1])
        cut_into_pieces[launch.grid](*launch.arguments(*tensors), num_warps=NUM_WARPS)
    return [copy[..., : x.shape[1]] for copy, x in zip(copies, sources, strict=True)]


def assert_pieces_add_up(kind, count, left, sources):
    for x, pieces in zip(sources, copies_of(kind, count, *sources), strict=True):
        assert ((pieces.double().sum(0) - x.double()).abs() <= left * x.double().abs()).all()
        if kind == "tf32":
            assert (pieces.contiguous().view(torch.int32) & 0x1FFF == 0).all(), "wgmma would cut off more bits"


def numbers(rows, k, order):
    """Normal ones times powers of two."""
    generator = torch.Generator().manual_seed(rows + k)
    x = torch.randn(rows, k, generator=generator)
    return lying(x * torch.exp2(torch.randint(-80, 80, x.shape, generator=generator).float()), order)


@pytest.mark.parametrize(("kind", "count", "left"), IN_PIECES)
@pytest.mark.parametrize("orders", ["kr", "rk", "kk", "rr"])
def test_pieces_add_up_to_both_operands(kind, count, left, orders):
    assert_pieces_add_up(kind, count, left, [numbers(70, 100, orders[0]), numbers(33, 68, orders[1])])


@pytest.mark.parametrize(("kind", "count", "left"), IN_PIECES)
@pytest.mark.parametrize("order", "kr")
def test_pieces_add_up_to_a_single_operand(kind, count, left, order):
    assert_pieces_add_up(kind, count, left, [numbers(129, 66, order)])


@pytest.mark.parametrize("orders", ["kr", "nk", "ss", "rn"])
@pytest.mark.parametrize("sizes", [((1, 129), (65, 1)), ((64, 128), (3, 31)), ((7, 260), (131, 5))])
def test_any_sizes_and_strides(sizes, orders):
    sources = [numbers(*size, order) for size, order in zip(sizes, orders, strict=True)]
    assert_pieces_add_up("tf32", 2, 2.0**-22, sources)


@pytest.mark.parametrize("orders", ["kr", "rs", "nk"])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "tf32"])
def test_whole_elements_of_every_size_keep_their_bits(dtype, orders):
    generator = torch.Generator().manual_seed(1)
    sources = []
    for (rows, k), order in zip([(68, 132), (9, 130)], orders, strict=True):
        words = torch.randint(0, 256, (rows, k * DTYPES[dtype].itemsize), generator=generator, dtype=torch.uint8)
        sources.append(lying(words.view(DTYPES[dtype]), order))
    for x, copy in zip(sources, copies_of(dtype, 1, *sources), strict=True):
        assert torch.equal(copy[0].contiguous().view(torch.uint8), x.contiguous().view(torch.uint8))


@pytest.mark.parametrize("order", "kr")
@pytest.mark.parametrize(("kind", "count"), [("tf32", 2), ("bf16", 3)])
def test_what_is_not_finite_stays_so_and_the_largest_does_not_overflow(kind, count, order):
    inf, largest = float("inf"), 3.4028235e38
    x = torch.zeros(5, 8)
    x[1, :5] = torch.tensor([inf, -inf, largest, -largest, float("nan")])
    x.view(torch.int32)[1, 5] = 0x7FFFFFFF  # the NaN that NVIDIA's arithmetic makes
    for pieces in copies_of(kind, count, lying(x, order), lying(x, order)):
        assert torch.equal(pieces[0, 1, :2].float(), x[1, :2])
        assert pieces[0, 1, 4:6].isnan().all()
        assert (pieces[1:, 1, [0, 1, 4, 5]].nan_to_num() == 0).all()
        largest_too = pieces[:, 1, 2:4].double().sum(0)
        assert ((largest_too - x[1, 2:4].double()).abs() <= 2.0**-20 * largest).all()

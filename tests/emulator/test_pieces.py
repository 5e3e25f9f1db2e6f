"""Copies for Hopper's products, whole and in pieces: the kernel that makes them runs in the emulator of another GPU."""

from __future__ import annotations

from functools import partial

import pytest
from sampled import sampled

torch = pytest.importorskip("torch")

from pieced import IN_PIECES, assert_adds_up, assert_extremes_survive, lying, numbers  # noqa: E402

import laneloom  # noqa: E402
from laneloom.device.pieces import MatrixCopy, PiecesLaunch, cut_into_pieces  # noqa: E402

DTYPES = {
    "uint8": torch.uint8, "fp8": torch.float8_e4m3fn, "fp16": torch.float16, "bf16": torch.bfloat16,
    "tf32": torch.float32, "fp32": torch.float32, "fp64": torch.float64,
}  # fmt: skip


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
        cut_into_pieces[launch.grid](*launch.arguments(*tensors), num_warps=launch.num_warps)
    return [copy[..., : x.shape[1]] for copy, x in zip(copies, sources, strict=True)]


def assert_pieces_add_up(kind, count, left, sources):
    for x, pieces in zip(sources, copies_of(kind, count, *sources), strict=True):
        assert_adds_up(pieces, x, kind, left)


@pytest.mark.covering
@pytest.mark.parametrize(("kind", "count", "left"), IN_PIECES)
@pytest.mark.parametrize("orders", ["kr", "rk", "kk", "rr"])
def test_pieces_add_up_to_both_operands(kind, count, left, orders):
    assert_pieces_add_up(kind, count, left, [numbers(70, 100, orders[0], "cpu"), numbers(33, 68, orders[1], "cpu")])


@pytest.mark.covering
@pytest.mark.parametrize(("kind", "count", "left"), IN_PIECES)
@pytest.mark.parametrize("order", "kr")
def test_pieces_add_up_to_a_single_operand(kind, count, left, order):
    assert_pieces_add_up(kind, count, left, [numbers(129, 66, order, "cpu")])


@pytest.mark.covering
@pytest.mark.parametrize("orders", ["kr", "nk", "ss", "rn"])
@pytest.mark.parametrize("sizes", [((1, 129), (65, 1)), ((64, 128), (3, 31)), ((7, 260), (131, 5))])
def test_any_sizes_and_strides(sizes, orders):
    sources = [numbers(*size, order, "cpu") for size, order in zip(sizes, orders, strict=True)]
    assert_pieces_add_up("tf32", 2, 2.0**-22, sources)


@pytest.mark.covering
@pytest.mark.parametrize("orders", ["kr", "rs", "nk"])
@pytest.mark.parametrize("dtype", sampled(dtype for dtype in DTYPES if dtype != "tf32"))
def test_whole_elements_of_every_size_keep_their_bits(dtype, orders):
    generator = torch.Generator().manual_seed(1)
    sources = []
    for (rows, k), order in zip([(68, 132), (9, 130)], orders, strict=True):
        words = torch.randint(0, 256, (rows, k * DTYPES[dtype].itemsize), generator=generator, dtype=torch.uint8)
        sources.append(lying(words.view(DTYPES[dtype]), order))
    for x, copy in zip(sources, copies_of(dtype, 1, *sources), strict=True):
        assert torch.equal(copy[0].contiguous().view(torch.uint8), x.contiguous().view(torch.uint8))


@pytest.mark.covering
@pytest.mark.parametrize(
    "lies", [((3, 2, 70, 40), (0, 1, 2, 3)), ((2, 3, 40, 70), (1, 0, 3, 2)), ((5, 1, 9, 130), (0, 1, 3, 2))]
)
@pytest.mark.parametrize("dtype", sampled(["uint8", "fp16", "fp64"]))
def test_batches_by_one_launch(lies, dtype):
    """Of two operands, the second a single matrix: [products, rows, K] of what is a batch, inner axis fastest."""
    shape, axes = lies
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(0, 256, (*shape[:-1], shape[-1] * DTYPES[dtype].itemsize), generator=generator)
    batch = words.to(torch.uint8).view(DTYPES[dtype]).permute(axes)
    alone = batch[1, 0].clone()
    described = [
        MatrixCopy(dtype, 1, *x.shape[-2:], x.stride()[-2:], tuple(x.shape[:-2]), x.stride()[:-2])
        if x.ndim == 4 else MatrixCopy(dtype, 1, *x.shape, x.stride()) for x in (batch, alone)
    ]  # fmt: skip
    launch = PiecesLaunch(*described, pdl=False)
    copies = [torch.empty(c.products, c.rows, c.pitch, dtype=DTYPES[dtype]) for c in described]
    with laneloom.emulated("gfx1151", strict=True):
        cut_into_pieces[launch.grid](*launch.arguments(batch, copies[0], alone, copies[1]), num_warps=launch.num_warps)
    found = copies[0].view(*batch.shape[:3], -1)[..., : batch.shape[-1]]
    for x, copy in ((batch, found), (alone, copies[1][0, :, : alone.shape[1]])):
        assert torch.equal(copy.contiguous().view(torch.uint8), x.contiguous().view(torch.uint8))


def test_pieces_of_a_batch_add_up():
    """Product by product, each with its pieces one behind the other."""
    batch = torch.stack([numbers(70, 40, "k", "cpu") * (i + 1) for i in range(6)]).view(2, 3, 70, 40)
    alone = numbers(20, 40, "r", "cpu")
    described = [
        MatrixCopy("bf16", 3, 70, 40, (40, 1), (2, 3), batch.stride()[:2]),
        MatrixCopy("bf16", 3, 20, 40, alone.stride()),
    ]
    launch = PiecesLaunch(*described, pdl=False)
    copies = [torch.empty(3 * c.products, c.rows, c.pitch, dtype=torch.bfloat16) for c in described]
    with laneloom.emulated("gfx1151", strict=True):
        cut_into_pieces[launch.grid](*launch.arguments(batch, copies[0], alone, copies[1]), num_warps=launch.num_warps)
    for x, pieces in zip(batch.flatten(0, 1), copies[0].view(6, 3, 70, -1)[..., :40], strict=True):
        assert_adds_up(pieces, x, "bf16", 2.0**-24)
    assert_adds_up(copies[1][..., :40], alone, "bf16", 2.0**-24)


@pytest.mark.parametrize("order", "kr")
@pytest.mark.parametrize(("kind", "count"), [("tf32", 2), ("bf16", 3)])
def test_what_is_not_finite_stays_so_and_the_largest_does_not_overflow(kind, count, order):
    assert_extremes_survive(partial(copies_of, kind, count), order, "cpu")

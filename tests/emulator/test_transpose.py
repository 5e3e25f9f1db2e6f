"""laneloom.transpose on emulated GPUs: every element size, stride and schedule, every bit of the output."""

from __future__ import annotations

import time

import numpy as np
import pytest
from sampled import rarely

import laneloom
from laneloom import verify
from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.ops.transpose import execute
from laneloom.ops.transpose.config import FragmentsConfig, TilesConfig

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

LANES = TilesConfig(block_r=32, block_c=32, num_warps=2, through="lanes")
GPUS = ("gfx1151", "gfx1201")


@pytest.fixture
def gfx1151():
    with laneloom.emulated("gfx1151", strict=True) as emulation:
        yield emulation


def bits(*shape: int, size: int = 2) -> torch.Tensor:
    """Random bits: as floats they hold NaN, infinities, -0 and subnormal numbers."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    limits = torch.iinfo(kind)
    return torch.randint(limits.min, limits.max, shape, dtype=kind)


def check(x: torch.Tensor, config=None) -> torch.Tensor:
    y = laneloom.transpose(x, config=config)
    assert y.shape == x.mT.shape
    assert y.dtype is x.dtype
    assert y.is_contiguous()
    assert torch.equal(y, x.mT)
    return y


@pytest.mark.parametrize("shape", [
    (0, 5), (5, 0), (0, 0), (1, 1), (1, 37), (37, 1), (3, 5), (67, 131), (257, 8), (3000, 5),
])  # fmt: skip
def test_shapes(gfx1151, shape):
    check(bits(*shape))
    assert [record.kernel for record in gfx1151.launches] == (["transpose_tiles"] if 0 not in shape else [])


@pytest.mark.covering
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("config", [None, LANES], ids=["plan", "lanes"])
def test_element_sizes_and_tile_edges(gpu, config, size):
    with laneloom.emulated(gpu, strict=True):
        check(bits(64, 96, size=size), config)  # whole tiles
        check(bits(2, 33, 31, size=size), config)  # one more and one less, unaligned rows


@pytest.mark.covering
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("by", "dtype"), [
    ("iu8", torch.int8), ("iu8", torch.int16), ("f16", torch.float16), ("bf16", torch.bfloat16), ("lanes", torch.int8),
    ("lanes", torch.int16),
])  # fmt: skip
def test_fragments(gpu, by, dtype):
    config = FragmentsConfig(block_r=32, chunks=2, num_warps=2, by=by)
    with laneloom.emulated(gpu, strict=True) as emulation:
        for shape in (*rarely((32, 32)), (2, 40, 24), (33, 65)):
            x = bits(*shape, size=dtype.itemsize) if by in ("iu8", "lanes") else torch.randn(shape).to(dtype)
            check(x, config)
        assert {record.kernel for record in emulation.launches} == {"transpose_fragments"}


@pytest.mark.parametrize("config", ["tiles:through=lanes", "fragments", "fragments:by=lanes"])
def test_configs_of_the_page_take_no_minutes(config):
    """The assembly of a block's exchange has 16 operands and more; to find it in the listing took minutes."""
    began = time.process_time()
    with laneloom.emulated("gfx1151"):
        check(bits(2, 20, 33, size=2), config)
    assert time.process_time() - began < 30


def test_identity_by_one_float_product_is_for_finite_numbers():
    """What the page says of it: infinity reaches its 16 x 16 block, -0 arrives as 0; the bytes do not care."""
    x = torch.ones(16, 16, dtype=torch.float16)
    x[3, 5], x[4, 6] = torch.inf, -0.0
    with laneloom.emulated("gfx1201"):
        config = FragmentsConfig(block_r=16, chunks=1, num_warps=1, by="f16")
        assert laneloom.transpose(x, config=config).isnan().any()
        x[3, 5] = 1
        assert not laneloom.transpose(x, config=config)[6, 4].signbit()
        x[3, 5] = torch.inf
        exact = laneloom.transpose(x, config=FragmentsConfig(block_r=16, chunks=1, num_warps=1))
    assert torch.equal(exact.view(torch.int16), x.view(torch.int16).mT)


def test_gfx1100():
    with laneloom.emulated("gfx1100", strict=True):
        check(bits(70, 50))
        check(bits(32, 32), LANES)


def test_dtypes(gfx1151):
    for dtype in (torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.float64, torch.complex64, torch.uint16):
        x = bits(9, 20, size=dtype.itemsize).view(dtype) if dtype is not torch.bool else bits(9, 20) > 0
        y = laneloom.transpose(x)
        assert y.dtype is dtype
        same = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        assert torch.equal(y.view(same), x.view(same).mT)


def test_strides(gfx1151):
    cases = [
        bits(40, 60)[::2, ::3],  # apart along both axes
        bits(33, 40).mT,  # the transpose is a copy
        bits(30, 48)[:, 3:43],  # rows that no 16-byte load can take
        bits(1, 40).expand(33, 40), bits(40, 1).expand(40, 17), bits(50).unfold(0, 9, 1),
        bits(3, 2, 20, 24).transpose(0, 1), bits(20, 3, 24, 2).movedim(-1, 0), bits(4, 20, 24)[::2],
    ]  # fmt: skip
    for x in cases:
        check(x)


@pytest.mark.parametrize("shape", [(0, 3, 4), (300, 3, 5), (70, 8, 8), (2, 3, 2, 5, 9, 7)])
def test_batches(gfx1151, shape):
    check(bits(*shape))


def test_batch_axes_of_many_strides(gfx1151):
    x = bits(2, 3, 2, 2, 6, 9)[:, ::2].permute(3, 1, 0, 2, 4, 5)
    check(x)
    assert len(gfx1151.launches) > 1, "one launch has two batch strides"


def test_out(gfx1151):
    x = bits(40, 24)
    room = torch.full((24, 80), 77, dtype=torch.int16)
    out = room[:, ::2]
    assert laneloom.transpose(x, out=out) is out
    assert torch.equal(out, x.mT)
    assert (room[:, 1::2] == 77).all()
    square = bits(40, 40)
    want = square.mT.clone()
    laneloom.transpose(square, out=square)
    assert torch.equal(square, want)


def test_nothing_beyond_the_output_is_written(gfx1151):
    for shape in ((67, 45), (5, 7)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
        out = verify.Guarded(shape[::-1], "fp16")
        execute.transpose_into(x.view(np.int16), out.array.view(np.int16), gfx1151.gpu, None)
        assert (out.array == x.T).all()
        assert out.untouched_outside()


def test_strict_orders_give_the_same(gfx1151):
    x = bits(70, 90)
    with laneloom.emulated("gfx1151", strict=True, seed=7):
        check(x)


def test_arrays(gfx1151):
    x = np.random.default_rng(0).standard_normal((3, 20, 33))
    assert (laneloom.transpose(x) == x.swapaxes(1, 2)).all()
    assert (laneloom.transpose(x[:, ::-1]) == x[:, ::-1].swapaxes(1, 2)).all()
    out = np.zeros((3, 33, 20))
    assert laneloom.transpose(x, out=out) is out
    assert (out == x.swapaxes(1, 2)).all()


def test_gradients_and_views(gfx1151):
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(laneloom.transpose, (x,))
    assert torch.autograd.gradgradcheck(laneloom.transpose, (x,))
    z = torch.randn(4, 6, dtype=torch.complex64)
    assert torch.equal(laneloom.transpose(z.conj()), z.mH)
    assert torch.equal(laneloom.transpose(z.conj().imag), -z.imag.mT)


def test_operator(gfx1151):
    x = torch.randn(6, 9, requires_grad=True)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")  # the others: test_torch_operators.py
    torch.library.opcheck(torch.ops.laneloom.transpose.default, (x, None), test_utils=tests)
    into = (x.detach(), torch.empty(9, 6), None)
    torch.library.opcheck(torch.ops.laneloom.transpose_out.default, into, test_utils=tests)


BAD = {
    "x: expected at least 2 axes": (ArgumentError, lambda x: ((x[0],), {})),
    "x: expected a torch tensor or a numpy": (ArgumentError, lambda x: (([1],), {})),
    "x: expected a dtype of 1, 2, 4 or 8": (UnsupportedError, lambda x: ((x.to(torch.complex128),), {})),
    "out: expected shape": (ArgumentError, lambda x: ((x,), {"out": x})),
    "out: expected strides": (ArgumentError, lambda x: ((x,), {"out": x[0, :1].expand(6, 4)})),
    "config: unknown knob": (ArgumentError, lambda x: ((x,), {"config": "tiles:size=3"})),
    "config: expected a schedule": (ArgumentError, lambda x: ((x,), {"config": "magic"})),
    "fragments have elements of 1 or 2": (InvalidConfigError, lambda x: ((x,), {"config": "fragments"})),
    "powers of two": (InvalidConfigError, lambda x: ((x,), {"config": "tiles:block_r=3"})),
}


@pytest.mark.parametrize("message", list(BAD))
def test_refusals(gfx1151, message):
    kind, call = BAD[message]
    arguments, words = call(torch.randn(4, 6))
    with pytest.raises(kind, match=message):
        laneloom.transpose(*arguments, **words)

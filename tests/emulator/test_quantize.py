"""laneloom.quantize_blocks on emulated GPUs in strict mode: every bit is what torch makes of x / scale on the CPU."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sampled import rarely

import laneloom
from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.ops.quantize import problem

torch = pytest.importorskip("torch")

from quantised_blocks import BF8, FP8, check, expected, hard_numbers, ties  # noqa: E402

pytestmark = pytest.mark.usefixtures("poisoned_allocations")


@pytest.fixture
def gfx1151():
    with laneloom.emulated("gfx1151", strict=True) as emulation:
        yield emulation


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gpu", [*rarely("gfx1100"), "gfx1151", "gfx1201", "gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("dtype_q", [FP8, BF8], ids=str)
@pytest.mark.parametrize("rows", [1, 128])
def test_every_bit(gpu, rows, dtype, dtype_q):
    with laneloom.emulated(gpu, strict=True) as emulation:
        check(hard_numbers(dtype, dtype_q), rows, dtype_q)
    assert [launch.kernel for launch in emulation.launches] == ["quantize_blocks"]


@pytest.mark.parametrize("dtype", [FP8, BF8], ids=str)
def test_ties_of_fp32(gfx1151, dtype):
    """Whole blocks, which are read 16 bytes at once; scales of 1 leave the conversion alone."""
    _, scale = check(ties(dtype), dtype=dtype)
    assert (scale == 1).all()


def test_what_is_not_finite(gfx1151):
    """Written down, not computed: it spoils no other element and no scale."""
    x = torch.tensor([[448.0, torch.inf, -torch.inf, torch.nan, -0.0, 3.0]])
    for rows in (1, 128):
        q, scale = laneloom.quantize_blocks(x, rows)
        assert scale.tolist() == [[1.0]]
        assert q.float().isnan().tolist() == [[False, True, True, True, False, False]]
        assert q.view(torch.uint8)[0, [0, 4, 5]].tolist() == [0x7E, 0x80, 0x44]
    x[0, 0] = 57344.0
    q, scale = laneloom.quantize_blocks(x, dtype=BF8)
    assert scale.tolist() == [[1.0]]
    assert q.view(torch.uint8)[0, [0, 1, 2, 4, 5]].tolist() == [0x7B, 0x7C, 0xFC, 0x80, 0x42]
    assert q.float().isnan().sum() == 1


def test_scales_of_nothing_and_of_very_little(gfx1151):
    x = torch.zeros(4, 130)
    x[1, 5], x[2, 5], x[3] = 2.0**-149, -(2.0**-118), torch.nan
    q, scale = laneloom.quantize_blocks(x)
    assert scale.tolist() == [[1.0, 1.0], [2.0**-126, 1.0], [2.0**-126, 1.0], [1.0, 1.0]]
    assert q[:3].float().nonzero().tolist() == [[2, 5]]  # 2**-23 of row 1 rounds to 0
    assert q[2, 5].float() == -256


@pytest.mark.parametrize("rows", [1, 128])
def test_ragged_rows_and_strides(gfx1151, rows):
    x = torch.randn(2, 1, 132, 131)
    check(x.mT[1, 0, 1:, 3:], rows)  # contiguous along M, unaligned; 130 x 129
    check(x[:, :, ::64, 1:].expand(2, 2, 3, 130), rows)


def test_axes_that_do_not_merge_are_copied(gfx1151):
    x = torch.randn(2, 2, 2, 2, 10)[..., ::3].permute(2, 0, 3, 1, 4)
    check(x)
    assert len(gfx1151.launches) == 1


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (0, 3, 4)])
def test_nothing(gfx1151, shape):
    for rows in (1, 128):
        check(torch.ones(shape), rows)
    assert not gfx1151.launches


def test_the_product_of_quantised_matrices(gfx1151):
    """Blocks whose scales are powers of two and whose numbers are exact: so is the product."""
    x, weight = (torch.randint(-8, 9, (n, 200)).float() for n in (5, 131))
    x[:, ::128] = 448
    x[2:] *= 2.0**-3
    x[:, 128:] *= 2.0**5
    weight[::128, ::128] = 448
    weight[128:] *= 2.0**4
    q, scale = laneloom.quantize_blocks(x)
    w, scale_w = laneloom.quantize_blocks(weight, rows=128)
    assert (scale.shape, scale_w.shape) == ((5, 2), (2, 2))
    with laneloom.emulated("gfx1151", sums="exact"):
        got = laneloom.gemm(q, w.mT, scale_a=scale, scale_b=scale_w.mT)
    assert torch.equal(got.double(), x.double() @ weight.double().mT)


def test_arrays(gfx1151):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = torch.randn(3, 140)
    cut = x.view(3, 2, 2, 35).transpose(0, 2)
    for array, tensor in (
        (x.numpy(), x), (x.numpy()[::-1], x.flip(0)), (x.numpy().astype(">f4"), x), (x.half().numpy(), x.half()),
        (x.numpy().astype(ml_dtypes.bfloat16), x.bfloat16()), (cut.numpy(), cut),
    ):  # fmt: skip
        tensor = torch.as_tensor(tensor)
        q, scale = laneloom.quantize_blocks(array)
        wanted, wanted_scale = expected(tensor)
        assert q.dtype == ml_dtypes.float8_e4m3fn
        assert np.array_equal(q.view(np.uint8), wanted.view(torch.uint8).numpy())
        assert np.array_equal(scale, wanted_scale.numpy())
    q, _ = laneloom.quantize_blocks(x.numpy(), dtype=ml_dtypes.float8_e5m2)
    assert np.array_equal(q.view(np.uint8), expected(x, dtype=BF8)[0].view(torch.uint8).numpy())
    with pytest.raises(UnsupportedError, match=r"^dtype: expected float8_e4m3fn or float8_e5m2 of ml_dtypes, got"):
        laneloom.quantize_blocks(x.numpy(), dtype=np.float16)


def test_refusals(gfx1151, monkeypatch):
    x = torch.ones(2, 3)
    for rows in (0, 64, True, 1.0, "1", None):
        with pytest.raises(ArgumentError, match=r"^rows: expected 1 or 128"):
            laneloom.quantize_blocks(x, rows)
    with pytest.raises(ArgumentError, match=r"^x: expected a torch tensor or a numpy array, got list"):
        laneloom.quantize_blocks([[1.0]])
    for given in (torch.ones(3), np.ones(3, np.float32)):
        with pytest.raises(ArgumentError, match=r"^x: expected at least 2 axes \[\.\.\., M, K\], got shape \(3,\)"):
            laneloom.quantize_blocks(given)
    for given in (x.double(), x.int(), x.to(FP8), np.ones((2, 3))):
        with pytest.raises(UnsupportedError, match=r"^x: expected dtype .*float32.*, got"):
            laneloom.quantize_blocks(given)
    for dtype in ("fp8", np.float32):
        with pytest.raises(ArgumentError, match=r"^dtype: expected torch\.float8_e4m3fn or torch\.float8_e5m2, got"):
            laneloom.quantize_blocks(x, dtype=dtype)
    with pytest.raises(UnsupportedError, match=r"^dtype: .* got torch\.float16"):
        laneloom.quantize_blocks(x, dtype=torch.float16)
    with pytest.raises(UnsupportedError, match=r"^x: expected an array without a mask"):
        laneloom.quantize_blocks(np.ma.masked_array(np.ones((2, 3), np.float32)))
    with pytest.raises(UnsupportedError, match=r"^x: expected a strided tensor"):
        laneloom.quantize_blocks(x.to_sparse())
    with pytest.raises(UnsupportedError, match=r"^x: expected at most 1073741824 rows and columns and 16777216 blocks"):
        problem.problem_of((1 << 29, 1 << 20), (1 << 20, 1), 128, "fp32", "fp8")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UnsupportedError, match=r"^x: expected a torch tensor, or the package ml_dtypes"):
        laneloom.quantize_blocks(np.ones((2, 3), np.float32))


def test_gradients_are_refused(gfx1151):
    """When they are asked for: a parameter may be quantised."""
    x = torch.ones(2, 3, requires_grad=True)
    q, scale = laneloom.quantize_blocks(x)
    for result in (q.float(), scale):
        with pytest.raises(UnsupportedError, match=r"^quantize_blocks has no gradients: quantise x\.detach\(\)"):
            result.sum().backward(retain_graph=True)
    assert not laneloom.quantize_blocks(x.detach())[1].requires_grad


def test_one_graph_for_all_sizes_and_one_launch_for_what_vmap_batches(gfx1151):
    compiled = torch.compile(laneloom.quantize_blocks, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (3, 4):
        x = torch.randn(n, 130)
        q, scale = compiled(x)
        wanted, wanted_scale = expected(x)
        assert torch.equal(q.view(torch.uint8), wanted.view(torch.uint8))
        assert torch.equal(scale, wanted_scale)
    before, x = len(gfx1151.launches), torch.randn(3, 130, 2)
    q, scale = torch.vmap(laneloom.quantize_blocks, 2)(x)
    assert len(gfx1151.launches) == before + 1
    wanted, wanted_scale = expected(x.movedim(2, 0))
    assert torch.equal(q.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(scale, wanted_scale)


def test_shards(gfx1151):
    """Rows with scales of their own may lie on several ranks, blocks of 128 rows may not be cut."""
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    from torch.distributed.tensor import Replicate, Shard

    from laneloom.ops import sharding

    def rules(rows):
        return [placed[:3] for placed in sharding._quantize(torch.empty(2, 3, 4), rows, None)]

    whole, batch, row = (([x, x], [x, None, None]) for x in (Replicate(), Shard(0), Shard(1)))
    assert rules(1) == [whole, batch, row]
    assert rules(128) == [whole, batch]

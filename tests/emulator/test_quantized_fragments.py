"""Schedule "fragments" of laneloom.quantized_matmul on emulated GPUs in strict mode: every dtype, group and edge."""

from __future__ import annotations

import pytest
from sampled import rarely

import laneloom
from laneloom import QuantizedWeight

torch = pytest.importorskip("torch")
from random_weights import judge_groups  # noqa: E402
from test_quantized_matmul import HALVES, UNITS_OF_A_ROW, check, weight_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

GPUS = ("gfx1151", "gfx1201", "gfx942", *rarely("gfx1100", "gfx950"))
#: dtype of the weight, of its scales, zeros, group, block_k
KINDS = {
    "int4": ("int4", "fp16", False, 128, 64), "int4, one scale": ("int4", "fp32", False, None, 128),
    "int4, small groups": ("int4", "bf16", False, 32, 128), "int4, long K-tiles": ("int4", "fp16", False, 256, 128),
    "uint4": ("uint4", "fp16", True, 64, 64), "fp4": ("fp4", "e8m0", False, 32, 128),
    "fp4, K-tiles of a group": ("fp4", "e8m0", False, 64, 64), "fp4, by fp8": ("fp4", "fp8", False, 32, 32),
    "int8": ("int8", "fp32", False, None, 64), "int8, groups": ("int8", "fp16", False, 32, 64),
    "fp8": ("fp8", "bf16", False, None, 128), "fp8, groups": ("fp8", "e8m0", False, 128, 64),
}  # fmt: skip


def config(block_k: int = 64, block_m: int = 32, block_n: int = 64) -> str:
    return f"fragments:block_m={block_m},block_n={block_n},block_k={block_k},num_warps=4"


@pytest.mark.covering
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products(name, kind, dtype):
    """Rows and columns behind the last tile's, three K-tiles or more of one or several groups."""
    torch.manual_seed(3)
    dtype_w, scale, zeros, group, block_k = KINDS[kind]
    weight = weight_of(dtype_w, 70, 512, group, scale=scale, zeros=zeros)
    x = torch.randn(37, 512).to(dtype)
    with laneloom.emulated(name, strict=True, seed=3) as emulation:
        got = laneloom.quantized_matmul(x, weight, config=config(block_k))
    check(got, x, weight)
    assert emulation.launches[0].kernel == "quantized_fragments"


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kind", ["int4", "fp4", "int8", "fp8"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.covering
def test_every_code(name, kind, dtype):
    """The identity gives every number back, NaN too; on RDNA 3 to the last places."""
    codes = torch.arange(256, dtype=torch.uint8).reshape(4, 64).repeat(4, 1)
    codes = codes[:, :32] if kind in ("int4", "fp4") else codes
    codes = torch.cat([codes, codes.flip(1)]) if kind in ("int4", "fp4") else codes
    values = codes.contiguous().view(torch.int8) if kind == "int8" else codes.contiguous()
    weight = QuantizedWeight(values, torch.ones(values.shape[0], 1), kind)
    eye = torch.eye(64).to(dtype)
    with laneloom.emulated(name, strict=True):
        got = laneloom.quantized_matmul(eye, weight, out_dtype=torch.float32, config=config(32))
    expected = weight.dequantize().T
    assert torch.equal(got.isnan(), expected.isnan().any(0).expand_as(got)), "0 x NaN is NaN"
    kept = ~got.isnan()
    assert ((got - expected)[kept].abs() <= 4 * UNITS_OF_A_ROW * expected[kept].abs()).all()


@pytest.mark.parametrize("name", GPUS)
def test_planned(name):
    """Of 2400 columns and 400 rows, by the plan; a batch whose weight is one, strided rows, bias."""
    torch.manual_seed(5)
    n = 2400 if name == "gfx942" else 1100
    weight, bias = weight_of("int4", n, 256, 128, scale="fp16"), torch.randn(n)
    x = torch.randn(2, 200, 264).half()[..., :256]
    with laneloom.emulated(name, strict=True) as emulation:
        got = laneloom.quantized_matmul(x, weight, bias=bias)
    check(got, x, weight, bias)
    assert emulation.launches[0].kernel == "quantized_fragments"


#: M, and where each group's rows end: none, one, several tiles; past the last row; of none; of more than a wave's lanes
ENDS = ((100, (0, 5, 5, 6, 60, 90)), (40, (33, 70)), (9, (0, 0)), (20, tuple(min(i // 5, 19) for i in range(101))))


@pytest.mark.covering
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kind", ["int4", *rarely("int4, small groups", "uint4", "int8"), "fp4", "fp8"])
def test_rows_in_groups(name, kind):
    """A weight and a bias each; rows that are in no group stay as they are."""
    torch.manual_seed(8)
    dtype_w, scale, zeros, group, block_k = KINDS[kind]
    for m, ends in ENDS:
        weight = weight_of(dtype_w, 70, 512, group, len(ends), scale=scale, zeros=zeros)
        bias = torch.randn(70, len(ends)).T
        x, out = torch.randn(m, 512).bfloat16(), torch.full((m, 70), torch.nan).bfloat16()
        numbers = torch.tensor(ends, dtype=torch.int32)
        with laneloom.emulated(name, strict=True, seed=3) as emulation:
            laneloom.quantized_matmul(x, weight, ends=numbers, bias=bias, out=out, config=config(block_k))
        last = judge_groups(out, x, weight, ends, bias)
        assert out[last:].isnan().all()
        assert [launch.kernel for launch in emulation.launches] == ["quantized_fragments"]


@pytest.mark.parametrize("name", GPUS)
def test_planned_of_rows_in_groups(name):
    """C stored 16 bytes at a time from any row on."""
    torch.manual_seed(9)
    n, ends = 3648 if name == "gfx942" else 1104, (0, 101, 102, 190)
    weight, x = weight_of("int4", n, 256, 128, 4, scale="fp16"), torch.randn(200, 256).half()
    out = torch.full((200, n), torch.nan).half()
    with laneloom.emulated(name, strict=True) as emulation:
        laneloom.quantized_matmul(x, weight, ends=torch.tensor(ends, dtype=torch.int32), out=out)
    assert judge_groups(out, x, weight, ends) == 190
    assert out[190:].isnan().all()
    assert emulation.launches[0].kernel == "quantized_fragments"


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_weights_of_a_batch_and_strided_results(dtype):
    """An own weight of each product, C's columns two apart, stored one by one."""
    torch.manual_seed(6)
    weight, x = weight_of("int8", 66, 128, None, 3), torch.randn(3, 20, 128).to(dtype)
    out = torch.full((3, 20, 132), torch.nan).to(dtype)
    with laneloom.emulated("gfx1201", strict=True):
        laneloom.quantized_matmul(x, weight, out=out[..., ::2], config=config())
    check(out[..., ::2], x, weight)
    assert out[..., 1::2].isnan().all()


@pytest.mark.parametrize("name", GPUS)
def test_powers_of_two_of_any_size(name):
    """MXFP4's scales are multiplied in bf16: NaN stays NaN, the largest and small ones are what they are."""
    torch.manual_seed(7)
    scales = torch.randint(120, 130, (64, 4), dtype=torch.uint8)
    scales[1], scales[2], scales[3, 2] = 254, 24, 255
    weight = QuantizedWeight(torch.randint(0, 256, (64, 64), dtype=torch.uint8), scales, "fp4", 32)
    x = torch.randn(16, 128).bfloat16()
    x[3, 64:96] = 0
    x /= 64
    with laneloom.emulated(name, strict=True):
        got = laneloom.quantized_matmul(x, weight, out_dtype=torch.float32, config=config())
    assert got.isnan().any(0).nonzero().tolist() == [[3]]
    assert got[:, 3].isnan().all()
    kept = [i for i in range(64) if i != 3]
    weight = QuantizedWeight(weight.values[kept], scales[kept], "fp4", 32)
    check(got[:, kept], x, weight)


def test_scales_of_8_bits():
    """All of E4M3, NaN where it is used."""
    scales = torch.arange(256, dtype=torch.uint8).reshape(128, 2).view(torch.float8_e4m3fn)
    weight = QuantizedWeight(torch.randint(0, 256, (128, 32), dtype=torch.uint8), scales, "fp4", 32)
    x = torch.randn(8, 64).half()
    with laneloom.emulated("gfx1201", strict=True):
        got = laneloom.quantized_matmul(x, weight, out_dtype=torch.float32, config=config())
    nan = scales.float().isnan().any(1)
    assert torch.equal(got.isnan(), nan.expand_as(got))
    check(got[:, ~nan], x, QuantizedWeight(weight.values[~nan], scales.view(torch.uint8)[~nan].view(scales.dtype),
                                           "fp4", 32))  # fmt: skip

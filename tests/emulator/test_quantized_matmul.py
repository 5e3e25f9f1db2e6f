"""laneloom.quantized_matmul on emulated GPUs in strict mode: every dtype of weights and scales, every kind of call."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import in_turn, rarely

import laneloom
from laneloom import QuantizedWeight, verify
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.gpu import get_gpu

torch = pytest.importorskip("torch")
from random_weights import NAMES, judge  # noqa: E402

import laneloom.pytorch  # noqa: E402  registers the operators

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

NEWER = ("gfx1250",) if parse_version(triton_version()) >= (3, 9) else ()  #: which older Tritons do not know
GPUS = ("gfx1151", "gfx1201", "gfx90a", "gfx942", "gfx950", *NEWER, *rarely("gfx1100", "gfx908"))
FLUSHING = ("gfx90a",)  #: whose matrix instructions take 16-bit denormals for zeros
HALVES = (torch.float16, torch.bfloat16)
#: What RDNA 3 may lose of a number in 16 steps of two zeros: a unit each, and the rounding.
UNITS_OF_A_ROW = 16 * (2 * 2.0**-26 + 2.0**-24)
TILE = "tiles:block_m=16,block_n=16,block_k=32,num_warps=1,stages=1"


def weight_of(
    dtype: str, n: int, k: int, group: int | None = 32, *batch: int, scale: str = "fp32", zeros: bool = False
) -> QuantizedWeight:
    """Random codes, all of them, but for NaN, and scales around 1."""
    if dtype in ("int4", "uint4", "fp4"):
        values = torch.randint(0, 256, (*batch, n, k // 2), dtype=torch.uint8)
    elif dtype == "int8":
        values = torch.randint(-128, 128, (*batch, n, k), dtype=torch.int8)
    else:
        values = torch.randint(0, 256, (*batch, n, k), dtype=torch.uint8)
        values = values.where(values & 0x7F != 0x7F, 0).view(torch.float8_e4m3fn)
    shape = (*batch, n, 1 if group is None else -(-k // group))
    return QuantizedWeight(values, scales_of(scale, *shape), dtype, group,
                           torch.randint(0, 256, shape, dtype=torch.uint8) if zeros else None)  # fmt: skip


def scales_of(kind: str, *shape: int) -> torch.Tensor:
    if kind == "e8m0":
        return torch.randint(120, 130, shape, dtype=torch.uint8)
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
    return ((torch.rand(shape) + 0.5) * (torch.randint(0, 2, shape) * 2 - 1)).to(dtypes[kind])


def check(got: torch.Tensor, x: torch.Tensor, weight: QuantizedWeight, bias=None, flushed=None) -> None:
    verdict = judge(got, x, weight, bias, flushed)
    assert verdict.ok, verdict


@pytest.fixture
def gfx1151():
    torch.manual_seed(5)
    with laneloom.emulated("gfx1151", strict=True, seed=7) as emulation:
        yield emulation


#: dtype of the weight, of its scales, zeros, group
KINDS = {
    "int4": ("int4", "fp16", False, 32), "uint4 with zeros": ("uint4", "bf16", True, 64),
    "uint4": ("uint4", "fp32", False, None), "fp4": ("fp4", "e8m0", False, 32), "nvfp4": ("fp4", "fp8", False, 16),
    "int8": ("int8", "fp32", False, None), "fp8": ("fp8", "bf16", False, 128),
}  # fmt: skip
#: M, N, K, split_k of a tile with matrix instructions
SIZES = ((19, 37, 200), (5, 50, 130), (1, 21, 330), (3, 1, 2))


@pytest.mark.covering
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products(name, kind, dtype, size):
    """By the plan, ragged in every direction, K of no whole groups."""
    torch.manual_seed(3)
    (m, n, k), (dtype_w, scale, zeros, group) = size, KINDS[kind]
    weight, x = weight_of(dtype_w, n, k, group, scale=scale, zeros=zeros), torch.randn(m, k).to(dtype)
    with laneloom.emulated(name, strict=True, seed=3) as emulation:
        got = laneloom.quantized_matmul(x, weight)
    assert got.dtype == dtype
    check(got, x, weight, flushed=NAMES[dtype] if name in FLUSHING else None)
    assert emulation.launches[0].kernel == "quantized_tiles"


@pytest.mark.parametrize(("name", "kind", "dtype"), [
    *(("gfx1151", kind, dtype) for kind in ("int4", "fp4", "int8", "fp8") for dtype in HALVES),
    *((name, "fp8", dtype) for name in ("gfx950", *NEWER) for dtype in HALVES),
    *(("gfx90a", "fp8", dtype) for dtype in in_turn(0, *HALVES)),  # as gfx1151, of bits
    *(("gfx942", "fp8", dtype) for dtype in in_turn(1, *HALVES)),
    *rarely(*(("gfx1151", "uint4", dtype) for dtype in HALVES)),  # as int4 but for a constant; test_every_zero has it
    *rarely(*((name, kind, dtype) for kind in ("int4", "fp4", "int8") for name in GPUS[1:] for dtype in HALVES)),
    *rarely(*((name, "fp8", dtype) for name in ("gfx1100", "gfx1201", "gfx908") for dtype in HALVES)),
], ids=str)  # fmt: skip
def test_every_code(name, kind, dtype):
    """The identity gives every number back, all 16 or 256 of them, NaN too, whatever a GPU converts with; on RDNA 3 to
    the last places, since it takes a unit, an eighth of the last place, for each zero of the other sign."""
    codes = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    values = codes.view(torch.int8) if kind == "int8" else codes
    weight = QuantizedWeight(values, torch.ones(16, 1), kind)
    eye = torch.eye(weight.shape[1]).to(dtype)
    with laneloom.emulated(name, strict=True):
        got = laneloom.quantized_matmul(eye, weight, out_dtype=torch.float32, config=TILE)
    expected = weight.dequantize().T
    assert torch.equal(got.isnan(), expected.isnan().any(0).expand_as(got)), "0 x NaN is NaN"
    kept = ~got.isnan()
    if get_gpu(name).products_of_step == 2:
        assert ((got - expected)[kept].abs() <= UNITS_OF_A_ROW * expected[kept].abs()).all()
    else:
        assert torch.equal(got[kept], expected[kept])


def test_every_zero(gfx1151):
    """0 to 255, though 4 bits have no more than 15."""
    weight = QuantizedWeight(
        torch.randint(0, 256, (256, 8), dtype=torch.uint8), torch.ones(256, 1), "uint4", None,
        torch.arange(256, dtype=torch.uint8)[:, None])  # fmt: skip
    for dtype in HALVES:
        got = laneloom.quantized_matmul(torch.eye(16).to(dtype), weight, out_dtype=torch.float32)
        want = weight.dequantize().T
        assert ((got - want).abs() <= UNITS_OF_A_ROW * want.abs()).all()


def test_scales_that_are_not_numbers_show_where_they_are_used(gfx1151):
    weight = weight_of("fp4", 20, 64, 32, scale="e8m0")
    e4m3 = torch.ones(20, 2).to(torch.float8_e4m3fn)
    weight.scales[3, 1], e4m3[3, 1] = 255, torch.nan
    x = torch.randn(2, 64).half()
    for given in (weight, QuantizedWeight(weight.values, e4m3, "fp4", 32)):
        got = laneloom.quantized_matmul(x, given, config=TILE)
        check(got, x, given)
        assert got.isnan().any(0).nonzero().tolist() == [[3]]
    for value in (torch.nan, torch.inf):
        scales = torch.ones(20, 2)
        scales[7, 0] = value
        got = laneloom.quantized_matmul(x, QuantizedWeight(weight.values, scales, "fp4", 32), config=TILE)
        assert (~got.isfinite()).any(0).nonzero().tolist() == [[7]]


def test_subnormal_scales(gfx1151):
    """All of E8M0's range, in FP32 results."""
    ones, scales = torch.full((255, 8), 0x22, dtype=torch.uint8), torch.arange(255, dtype=torch.uint8)[:, None]
    weight = QuantizedWeight(ones, scales, "fp4")
    got = laneloom.quantized_matmul(torch.eye(16).half()[:1], weight, out_dtype=torch.float32)
    assert torch.equal(got[0], weight.dequantize()[:, 0])


def test_any_strides(gfx1151):
    """Every operand transposed or sliced; a group's scale for every row."""
    x = torch.randn(200, 40).half()[::2, 1::8].T  # [5, 100]
    values = torch.randint(0, 256, (150, 30), dtype=torch.uint8)[::3].T  # [30, 50]
    scales = torch.rand(4, 30).T
    zeros = torch.randint(0, 16, (1, 4), dtype=torch.uint8).expand(30, 4)
    weight = QuantizedWeight(values, scales, "uint4", 32, zeros)
    bias, out = torch.randn(60)[::2].half(), torch.full((30, 10), torch.nan).bfloat16()[:, ::2].T
    assert laneloom.quantized_matmul(x, weight, bias=bias, out=out, config=TILE) is out
    check(out, x, weight, bias)


def test_out_lies_between_guards_and_may_be_x(gfx1151):
    x, weight = torch.randn(17, 34).half(), weight_of("int8", 34, 34)
    for config in (TILE, TILE + ",split_k=2"):
        guarded = verify.Guarded((17, 34), "fp16", (41, 1))
        out = torch.from_numpy(guarded.array)
        laneloom.quantized_matmul(x, weight, out=out, config=config)
        check(out, x, weight)
        assert guarded.untouched_outside()
    expected = out.clone()
    laneloom.quantized_matmul(x, weight, out=x, config=config)
    assert torch.equal(x, expected)


def test_batches(gfx1151):
    """x's own becomes rows, the weight's broadcasts; of three strides the first axis goes one by one."""
    x, weight = torch.randn(3, 5, 64).half(), weight_of("int4", 16, 64)
    check(laneloom.quantized_matmul(x, weight, config=TILE), x, weight)
    assert len(gfx1151.launches) == 1
    assert laneloom.quantized_matmul(x[0, 0], weight, config=TILE).shape == (16,)
    experts = weight_of("int4", 16, 64, 32, 2, 1)
    check(laneloom.quantized_matmul(x, experts, config=TILE), x, experts)
    assert len(gfx1151.launches) == 3
    x = torch.randn(2, 1, 2, 5, 64).half().transpose(0, 2)
    experts = weight_of("uint4", 16, 64, 32, 1, 2, 2, zeros=True)
    got = laneloom.quantized_matmul(x, experts, bias=torch.ones(16), config=TILE)
    check(got, x, experts, torch.ones(16))


@pytest.mark.parametrize("shape", [(0, 8, 6), (3, 0, 6), (3, 8, 0), (0, 0, 0)])
def test_empty(gfx1151, shape):
    m, n, k = shape
    for dtype, group in (("int4", 32), ("int8", None)):
        weight, bias = weight_of(dtype, n, k, group), torch.randn(n)
        for given in (None, bias):
            got = laneloom.quantized_matmul(torch.ones(m, k).half(), weight, bias=given)
            assert torch.equal(got, (torch.zeros(n) if given is None else given).half().expand(m, n))
    assert len(gfx1151.launches) == 0


@pytest.mark.parametrize("split_k", [1, 3, 64])
def test_parts_of_k_with_a_bias(gfx1151, split_k):
    """More parts than K has groups are as many; the second launch adds them in order."""
    x, weight, bias = torch.randn(4, 330).bfloat16(), weight_of("int4", 20, 330), torch.randn(20).half()
    got = [
        laneloom.quantized_matmul(x, weight, bias=bias, config=f"{TILE},split_k={split_k}") for _ in range(2)
    ]
    check(got[0], x, weight, bias)
    assert torch.equal(*got)
    kernels = ["quantized_tiles", "apply_epilogue"][: 1 + (split_k > 1)]
    assert [launch.kernel for launch in gfx1151.launches] == kernels * 2


def test_large_groups_have_several_sums(gfx1151):
    """8 K-tiles are scaled at once; also of a single row, which has no matrix instruction."""
    weight = weight_of("int4", 16, 700, 512)
    for m, tile in ((2, "block_m=16,block_n=16,block_k=16"), (1, "block_m=1,block_n=16,block_k=32")):
        x = torch.randn(m, 700).half()
        check(laneloom.quantized_matmul(x, weight, config=f"tiles:{tile},num_warps=1,stages=1"), x, weight)


@pytest.mark.parametrize("name", ["gfx1201", *rarely("gfx942")])
def test_small_groups_with_zeros(name):
    """A K-tile has several groups, the last one fewer than it could; each row's zeros are its own."""
    torch.manual_seed(1)
    for group, m in ((16, 20), (32, 1), *rarely((16, 1), (16, 3), (32, 3), (32, 20))):
        weight, x = weight_of("uint4", 33, 220, group, scale="bf16", zeros=True), torch.randn(m, 220).bfloat16()
        with laneloom.emulated(name, strict=True):
            check(laneloom.quantized_matmul(x, weight), x, weight)


def test_arrays(gfx1151):
    """numpy's: big-endian scales, turned values, uint8 for what numpy has no dtypes of."""
    weight = weight_of("fp8", 20, 40)
    bits, scales = weight.values.view(torch.uint8).numpy()[::-1], weight.scales.numpy()[::-1].astype(">f4")
    taken = QuantizedWeight(bits, scales, "fp8", 32)
    x, bias = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float16), np.ones(20, np.float32)
    got = laneloom.quantized_matmul(x, taken, bias=bias, out_dtype=np.float32, config=TILE)
    check(torch.from_numpy(got), torch.from_numpy(x), taken, torch.from_numpy(bias))
    out = np.empty((20, 3), np.float16).T
    assert laneloom.quantized_matmul(x, taken, out=out, config=TILE) is out
    check(torch.from_numpy(out), torch.from_numpy(x), taken)
    assert laneloom.quantized_matmul(x[0], taken, config=TILE).shape == (20,)
    with pytest.raises(ArgumentError, match=r"^out: expected shape \(3, 20\) and float32, got \(3, 20\) and >f4"):
        laneloom.quantized_matmul(x, taken, out=np.empty((3, 20), ">f4"))


def test_gradients(gfx1151):
    """dX is dC W in x's dtype, summed over what was broadcast; second derivatives are products again."""
    weight = weight_of("uint4", 24, 64, 32, 2, scale="fp16", zeros=True)
    x = torch.randn(4, 64).half().requires_grad_()
    bias = torch.randn(24, requires_grad=True)
    c = laneloom.quantized_matmul(x, weight, bias=bias)
    grad = torch.randn(2, 4, 24).half()
    got = torch.autograd.grad(c, (x, bias), grad)
    w = weight.dequantize(torch.float16)
    expected = torch.einsum("bmn,bnk->mk", grad.double(), w.double())
    assert (got[0].double() - expected).norm() / expected.norm() < 2**-10
    torch.testing.assert_close(got[1], grad.float().sum((0, 1)))
    assert weight.scales.grad is None


def test_a_layer_trains_beside_its_weight(gfx1151):
    """QLoRA: gradients of what lies before and beside; autocast lowers x alone."""
    weight, adapter = weight_of("int4", 16, 32), torch.randn(16, 32, requires_grad=True)
    x = torch.randn(4, 32)
    with torch.autocast("cpu", torch.bfloat16):
        c = laneloom.quantized_matmul(x, weight) + laneloom.matmul(x, adapter.mT)
    assert c.dtype == torch.bfloat16
    c.sum().backward()
    assert adapter.grad is not None


def test_torch_compile_and_vmap(gfx1151):
    weight, x = weight_of("int4", 16, 64), torch.randn(3, 5, 64).half()
    compiled = torch.compile(lambda x: laneloom.quantized_matmul(x, weight), fullgraph=True, backend="aot_eager")
    expected = laneloom.quantized_matmul(x, weight)
    assert torch.equal(compiled(x), expected)
    torch._dynamo.reset()
    before = len(gfx1151.launches)
    got = torch.vmap(lambda x: laneloom.quantized_matmul(x, weight), 1, 1)(x)
    torch.testing.assert_close(got, expected)
    experts = weight_of("int4", 16, 64, 32, 3)

    def product(x, values, scales):
        return laneloom.quantized_matmul(x, QuantizedWeight(values, scales, "int4", 32))

    torch.testing.assert_close(torch.vmap(product)(x, experts.values, experts.scales),
                               laneloom.quantized_matmul(x, experts))  # fmt: skip
    assert len(gfx1151.launches) - before <= 2 * 3


X = torch.ones(3, 64).half()
REFUSALS = [
    (ArgumentError, r"weight: expected a laneloom\.QuantizedWeight, got Tensor", lambda w: (X, w.values), {}),
    (ArgumentError, "x: expected a torch tensor as the others are, got ndarray", lambda w: (X.numpy(), w), {}),
    (ArgumentError, r"weight: expected K = 62, as many as x has columns, got shape \(16, 64\)",
     lambda w: (X[:, :62], w), {}),
    (ArgumentError, "x: expected at least 1 axis, got a scalar", lambda w: (X[0, 0], w), {}),
    (UnsupportedError, "x: expected dtype fp16 or bf16, got fp32", lambda w: (X.float(), w), {}),
    (UnsupportedError, "out_dtype: expected fp32, fp16 or bf16, got int32", lambda w: (X, w),
     {"out_dtype": torch.int32}),
    (ArgumentError, "out_dtype: expected a torch dtype, got 'fp16'", lambda w: (X, w), {"out_dtype": "fp16"}),
    (ArgumentError, r"bias: expected shape \(16,\), one for each column, got \(3,\)", lambda w: (X, w),
     {"bias": torch.ones(3)}),
    (UnsupportedError, "bias: expected dtype fp32, fp16 or bf16, got fp64", lambda w: (X, w),
     {"bias": torch.ones(16).double()}),
    (ArgumentError, r"out: expected shape \(3, 16\), got \(3, 17\)", lambda w: (X, w), {"out": torch.ones(3, 17)}),
    (ArgumentError, "out: expected dtype torch.float16, got torch.float32", lambda w: (X, w),
     {"out": torch.ones(3, 16), "out_dtype": torch.float16}),
    (InvalidConfigError, "block_k of at most 8 groups of 32, got 512", lambda w: (X, w),
     {"config": "tiles:block_m=16,block_n=16,block_k=512"}),
    (ArgumentError, "config: expected a schedule of tiles, .*, got 'dot'", lambda w: (X, w), {"config": "dot:"}),
    (ArgumentError, r"weight: expected batch axes that broadcast with x's \(2,\), got \(3,\)",
     lambda w: (X.expand(2, 3, 64), weight_of("int4", 16, 64, 32, 3)), {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "operands", "given"), REFUSALS)
def test_refusals(gfx1151, kind, message, operands, given):
    with pytest.raises(kind, match=f"^.*{message}"):
        laneloom.quantized_matmul(*operands(weight_of("int4", 16, 64)), **given)


def test_a_weight_has_no_gradients(gfx1151):
    weight = weight_of("int4", 16, 64)
    weight.scales.requires_grad_()
    with pytest.raises(UnsupportedError, match=r"^weight: expected one without gradients; use \.detach\(\)"):
        laneloom.quantized_matmul(X, weight)


@pytest.mark.covering
@pytest.mark.parametrize("gpu", ["gfx1151", *rarely("gfx1201"), "gfx942"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_largest_and_smallest_powers_of_two(gpu, dtype):
    """Where a number times its scale has no place in x's dtype, or in FP32, though their sum with x has."""
    torch.manual_seed(3)
    for codes, size in (((252, 255), 2.0**-12), ((0, 3), 2.0**8)):
        values = torch.randint(0, 256, (40, 48), dtype=torch.uint8)
        weight = QuantizedWeight(values, torch.randint(*codes, (40, 3), dtype=torch.uint8), "fp4", 32)
        for m in (1, 20):
            x = (torch.randn(m, 96) * size).to(dtype)
            with laneloom.emulated(gpu, strict=True, sums="exact"):  # WMMA of RDNA 3 takes denormals of bf16 for zeros
                check(laneloom.quantized_matmul(x, weight, out_dtype=torch.float32), x, weight)

"""Every dtype of the matrix instructions in strict emulation: integers exact, the others under derived budgets."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import rarely, sampled

import laneloom
from laneloom import verify
from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.ops.matmul import reference
from laneloom.ops.matmul.config_wmma import WmmaConfig

torch = pytest.importorskip("torch")

GPUS = ("gfx1151", "gfx1201")  # RDNA 3 and 3.5 have the same matrix instructions
FP8, BF8 = torch.float8_e4m3fn, torch.float8_e5m2
INTEGERS = (torch.int8, torch.uint8)
PAIRS = [(a, b) for a in INTEGERS for b in INTEGERS]
#: sizes and layout, for each pair of dtypes
CASES = [
    [((33, 31, 65), "nn"), ((64, 32, 64), "tt")], [((17, 40, 16), "nt")], [((32, 33, 130), "tn")],
    [((48, 32, 96), "nn")],
]  # fmt: skip


@pytest.fixture(params=GPUS)
def gpu(request):
    torch.manual_seed(3)
    with laneloom.emulated(request.param, strict=True) as emulation:
        yield emulation


def integers(*shape: int, dtype=torch.int8) -> torch.Tensor:
    low = torch.iinfo(dtype)
    return torch.randint(low.min, low.max + 1, shape, dtype=dtype)


def floats(*shape: int, dtype=torch.float16) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def turned(x: torch.Tensor, turn: bool) -> torch.Tensor:
    """x, stored the other way round if `turn`."""
    return x.mT.contiguous().mT if turn else x


def check(a, b, got, accumulator: str = "fp32", cuts: tuple[str, int] | None = None) -> None:
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "int32",
             torch.float64: "fp64"}  # fmt: skip
    a, b = (x.double() if x.is_floating_point() else x for x in (a, b))
    stored = got if got.dtype == torch.int32 else got.double()
    verdict = reference.judge(stored.numpy(), a.numpy(), b.numpy(), names[got.dtype], accumulator, cuts=cuts)
    assert verdict.ok, verdict


@pytest.mark.covering
@pytest.mark.parametrize(("dtype_a", "dtype_b"), PAIRS, ids=str)
def test_int8(gpu, dtype_a, dtype_b):
    for (m, n, k), layout in CASES[PAIRS.index((dtype_a, dtype_b))]:
        a = turned(integers(m, k, dtype=dtype_a), layout[0] == "t")
        b = turned(integers(k, n, dtype=dtype_b), layout[1] == "t")
        got = laneloom.matmul(a, b)
        assert got.dtype == torch.int32
        check(a, b, got)
    assert {record.kernel for record in gpu.launches} == {"wmma_matmul"}


@pytest.mark.covering
@pytest.mark.parametrize("signs", [(True, True), (True, False), (False, True), (False, False)])
def test_int4(gpu, signs):
    for m, n, k in ((33, 31, 67),) if signs[0] else ((32, 48, 160),):
        a, b = (torch.randint(-8 * s, 16 - 8 * s, shape) for s, shape in zip(signs, ((m, k), (k, n)), strict=True))
        packed = laneloom.Int4.pack(a, -1, signs[0]), laneloom.Int4.pack(b, -2, signs[1])
        check(a, b, laneloom.matmul(*packed))


@pytest.fixture
def gfx1151():
    with laneloom.emulated("gfx1151", strict=True) as emulation:
        yield emulation


@pytest.mark.covering
@pytest.mark.parametrize("dtype_a", [FP8, BF8], ids=str)
@pytest.mark.parametrize("dtype_b", [FP8, BF8], ids=str)
def test_float8(gpu, dtype_a, dtype_b):
    for (m, n, k), layout in (((33, 31, 65), "nn"),) if dtype_a == dtype_b else (((32, 32, 64), "nt"),):
        a = turned(floats(m, k, dtype=dtype_a), layout[0] == "t")
        b = turned(floats(k, n, dtype=dtype_b), layout[1] == "t")
        got = laneloom.matmul(a, b, out_dtype=torch.bfloat16 if layout == "nt" else None)
        check(a, b, got)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [FP8, BF8], ids=str)
def test_every_code_of_a_float8(gpu, dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)[:, None]
    with laneloom.emulated(gpu.gpu, strict=True, sums="exact"):  # RDNA 3's product with 1 may be off in the last place
        got = laneloom.matmul(codes, torch.ones(1, 1).to(dtype))
    assert torch.equal(torch.nan_to_num(got, nan=1e30), torch.nan_to_num(codes.float(), nan=1e30))
    assert torch.equal(got.isnan(), codes.float().isnan())


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_in_halves(gpu, dtype):
    name = "fp16" if dtype == torch.float16 else "bf16"
    for (m, n, k), layout in (((33, 31, 65), "nn"), *rarely(((5, 70, 40), "tn"))):
        a, b = turned(floats(m, k, dtype=dtype), layout[0] == "t"), turned(floats(k, n, dtype=dtype), layout[1] == "t")
        check(a, b, laneloom.matmul(a, b, acc_dtype=dtype), name, reference.cuts_of(gpu.gpu, name))
    a, b = floats(40, 64, dtype=dtype) * 32, floats(64, 40, dtype=dtype) * 32
    exact = a.double() @ b.double()
    halves, singles = (laneloom.matmul(a, b, acc_dtype=acc, out_dtype=torch.float32) for acc in (name, None))
    # what it costs shows: 16-bit sums are not FP32 sums that were rounded
    assert (halves - exact).abs().max() > (singles.to(dtype) - exact).abs().max()


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (128, 64)])
def test_sums_in_halves_of_several_tiles_a_wave(gfx1151, rows, columns):
    """Waves of 1 x 1 and 4 x 2 tiles, of which RDNA 3 has two in one register; small integers, which are exact but for
    up to three units of 2**-24 (of products up to 4) or 2**-26 (of sums up to 160) in each of 20 steps."""
    off = 20 * 3 * 160 * 2.0**-26
    config = WmmaConfig(block_m=rows, block_n=columns, block_k=32)
    a, b = (torch.randint(-2, 3, shape).half() for shape in ((rows + 24, 40), (40, columns + 24)))
    want = a.float() @ b.float()
    got = laneloom.matmul(a, b, acc_dtype="fp16", config=config).float()
    assert (got - want).abs().max() <= off
    assert torch.equal(got.round(), want)
    c = torch.ones_like(want).half()
    got = laneloom.gemm(a, b, c, beta=2, alpha=-1, activation="relu", acc_dtype="fp16", config=config)
    assert (got.float() - (2 - want).relu()).abs().max() <= off


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_dequantised(gpu, kind):
    m, n, k = 37, 50, 70
    scale_a, scale_b = torch.rand(m) + 0.5, torch.rand(n) + 0.5
    bias = floats(n, dtype=torch.float32)
    if kind == "fp8":
        a, b = floats(m, k, dtype=FP8), floats(k, n, dtype=BF8)
        values, operands = (a.double(), b.double()), (a, b)
    else:
        values = operands = (integers(m, k), integers(k, n, dtype=torch.uint8))
    accumulator = "fp32" if kind == "fp8" else "int32"
    for scales, dtype, name in sampled((
        ((scale_a, scale_b), torch.float32, "fp32"), ((scale_a[:1], scale_b[None]), torch.bfloat16, "bf16"),
        ((scale_a[:, None], 0.125), torch.float16, "fp16"),
    ), first=kind == "fp8"):  # fmt: skip
        terms = {"bias": bias, "alpha": 2.0**-6, "activation": "silu"}
        got = laneloom.gemm(*operands, scale_a=scales[0], scale_b=scales[1], out_dtype=dtype, **terms)
        known = [np.array([s]) if isinstance(s, float) else s.reshape(-1).numpy() for s in scales]
        verdict = reference.judge_gemm(
            got.double().numpy(), *(v.numpy() for v in values), name, bias=bias.numpy(), alpha=2.0**-6,
            activation="silu", scale_a=known[0], scale_b=known[1], accumulator=accumulator,
        )  # fmt: skip
        assert verdict.ok, verdict
    assert all(record.kernel == "wmma_matmul" for record in gpu.launches)


@pytest.mark.turning("gpu")
def test_promoted_sums_are_what_they_are_anyhow(gpu):
    a, b = floats(20, 300, dtype=FP8), floats(300, 24, dtype=FP8)
    usual = laneloom.matmul(a, b)
    assert torch.equal(laneloom.matmul(a, b, precision="promoted"), usual)
    assert torch.equal(laneloom.gemm(a, b, precision="promoted"), usual)


@pytest.mark.turning("gpu")
def test_scales_turn_with_the_product(gpu):
    """A result that is contiguous along M is the transpose's product; batches share the scales."""
    a, b, scale_a, scale_b = floats(3, 20, 16), floats(16, 24), torch.rand(20) + 1, torch.rand(24) + 1
    out = torch.full((3, 24, 20), torch.nan).mT
    laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b, out=out)
    for one, c in zip(a, out, strict=True):
        verdict = reference.judge_gemm(
            c.double().numpy(), one.numpy(), b.numpy(), "fp32", scale_a=scale_a.numpy(), scale_b=scale_b.numpy()
        )
        assert verdict.ok, verdict


@pytest.mark.parametrize("name", ["pingpong", *rarely("quad", "coop", "xor_optimized")])
def test_presets_take_8_bit_operands(name):
    torch.manual_seed(4)
    with laneloom.emulated("gfx1201" if name in ("quad", "pingpong") else "gfx1151", strict=True):
        a, b = integers(129, 70, dtype=torch.uint8), integers(70, 67)
        check(a, b, laneloom.matmul(a, b, config=name))
        x, y = floats(65, 40, dtype=FP8), floats(40, 67, dtype=FP8)
        check(x, y, laneloom.matmul(x, y, config=name))


def test_numpy_and_guard_bands(gfx1151):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (37, 50)).astype(np.int8), rng.integers(0, 256, (50, 21)).astype(np.uint8)
    out = verify.Guarded((37, 21), "int32", (30, 1))
    laneloom.matmul(a, b, out=out.array)
    assert out.untouched_outside()
    assert reference.judge(out.array, a, b, "int32").ok
    packed = laneloom.Int4.pack(a >> 4, -1), laneloom.Int4.pack(b >> 4, -2, signed=False)
    assert (laneloom.matmul(*packed) == (a >> 4).astype(int) @ (b >> 4)).all()
    assert (packed[0].unpack(-1) == a >> 4).all()


def test_explain_says_what_became_of_the_dtypes():
    a, b = torch.zeros(512, 512, dtype=FP8), torch.zeros(512, 512, dtype=FP8)
    text = str(laneloom.explain(a, b, gpu="gfx1151"))
    assert "matmul/nn/fp8_fp8_fp32/" in text
    assert "gfx1151 has no 8-bit floats: A and B become fp16 between load and LDS, exactly" in text
    assert "become fp16" not in str(laneloom.explain(a, b, gpu="gfx1201"))
    text = str(laneloom.explain(a.half(), b.half(), acc_dtype="fp16", gpu="gfx1201"))
    assert "_acc_fp16/" in text
    assert "products are summed in fp16" in text


REFUSALS = [
    (ArgumentError, "b: expected a's dtype int8, got fp16", lambda: laneloom.matmul(integers(3, 4), floats(4, 5))),
    (ArgumentError, "b: expected a laneloom.Int4 as the other operand is, got Tensor",
     lambda: laneloom.matmul(laneloom.Int4(integers(3, 4)), integers(4, 5))),
    (ArgumentError, "packed: expected a tensor or an array of int8 or uint8, got float16",
     lambda: laneloom.Int4(floats(3, 4))),
    (ArgumentError, "values: expected -8 to 7, got 0 to 8", lambda: laneloom.Int4.pack(torch.tensor([[0, 8]]), -1)),
    (ArgumentError, "values: expected a tensor or an array of integers, got list",
     lambda: laneloom.Int4.pack([[1]], -1)),
    (ArgumentError, "values: expected a tensor or an array of integers, got float32",
     lambda: laneloom.Int4.pack(torch.ones(2, 2), -1)),
    (ArgumentError, "axis: expected one of values' 2 axes, got 5",
     lambda: laneloom.Int4.pack(np.ones((2, 2), np.int64), 5)),
    (ArgumentError, "acc_dtype: expected fp32 or fp16 for operands of fp16, got bf16",
     lambda: laneloom.matmul(floats(3, 4), floats(4, 5), acc_dtype=torch.bfloat16)),
    (ArgumentError, "precision: 'tf32' is for fp32 operands, a's dtype is int8",
     lambda: laneloom.matmul(integers(3, 4), integers(4, 5), precision="tf32")),
    (ArgumentError, "precision: 'promoted' is for fp8 or bf8 operands, a's dtype is fp16",
     lambda: laneloom.matmul(floats(3, 4), floats(4, 5), precision="promoted")),
    (UnsupportedError, "out_dtype: expected fp32, fp16 or bf16, got int32",
     lambda: laneloom.gemm(integers(3, 4), integers(4, 5), alpha=2, out_dtype=torch.int32)),
    (UnsupportedError, "scale_a: expected a number or dtype fp32, got fp16",
     lambda: laneloom.gemm(integers(3, 4), integers(4, 5), scale_a=floats(3))),
    (ArgumentError, r"scale_b: expected a number, one element, one for each column in shape \(5,\), or .*, got \(4,\)",
     lambda: laneloom.gemm(integers(3, 4), integers(4, 5), scale_b=torch.ones(4))),
    (InvalidConfigError, "transpose: 'shuffle' takes 16-bit elements, got int8",
     lambda: laneloom.matmul(integers(3, 4), integers(4, 5), config="opt")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), REFUSALS, ids=[message[:40] for _, message, _ in REFUSALS])
def test_refusals(gfx1151, kind, message, call):
    with pytest.raises(kind, match=message):
        call()
    assert gfx1151.launches == []


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_multiply_adds(gpu, dtype):
    """FP32 and FP64: ragged and whole tiles, every layout, every term, FP64 held to FP64."""
    name = "fp32" if dtype == torch.float32 else "fp64"
    for (m, n, k), layout in (((33, 31, 17), "nn"), *rarely(((1, 1, 1), "nn")), ((66, 34, 9), "tt")):
        a, b = turned(floats(m, k, dtype=dtype), layout[0] == "t"), turned(floats(k, n, dtype=dtype), layout[1] == "t")
        check(a, b, laneloom.matmul(a, b), name)
    c, bias, scale_a, scale_b = floats(m, n, dtype=dtype), floats(n, dtype=dtype), torch.rand(m), torch.rand(n)
    terms = {"alpha": 1.1, "beta": -0.3, "activation": "gelu"}
    got = laneloom.gemm(a, b, c, bias=bias, scale_a=scale_a, scale_b=scale_b, **terms)
    arrays = {"c": c, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    verdict = reference.judge_gemm(
        got.numpy(), a.numpy(), b.numpy(), name, accumulator=name, **terms, **{k: v.numpy() for k, v in arrays.items()}
    )
    assert verdict.ok, verdict
    assert {record.kernel for record in gpu.launches} == {"fma_matmul"}


def test_terms_of_fp64_without_a_product(gfx1151):
    c = floats(3, 5, dtype=torch.float64)
    got = laneloom.gemm(floats(3, 0, dtype=torch.float64), floats(0, 5, dtype=torch.float64), c, beta=1 / 3)
    assert torch.equal(got, c * (1 / 3))


@pytest.mark.parametrize("dtype", [torch.float64, *rarely(torch.float32)], ids=str)
def test_gradients_of_long_floats(gfx1151, dtype):
    a, b = (floats(5, 7, dtype=dtype).requires_grad_(), floats(7, 4, dtype=dtype).requires_grad_())
    got = laneloom.gemm(a, b, alpha=0.5, activation="silu")
    mine = torch.autograd.grad(got.sum(), (a, b))
    true = torch.autograd.grad(torch.nn.functional.silu(0.5 * (a.double() @ b.double())).sum(), (a, b))
    for x, y in zip(mine, true, strict=True):
        torch.testing.assert_close(x, y)

"""laneloom.matmul on emulated GPUs: every shape, stride and dtype, the full output against FP64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampled import EVERYTHING, in_turn

import laneloom
from laneloom import verify
from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.gpu import get_gpu
from laneloom.ops.matmul import execute, reference
from laneloom.ops.matmul.config_wmma import WmmaConfig

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.usefixtures("poisoned_allocations"), pytest.mark.turning("gpu")]

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
SMALL = WmmaConfig(block_m=64, block_n=64, block_k=32)
TINY = WmmaConfig(block_m=16, block_n=32, block_k=32, num_warps=1, waves_n=1)  #: compiles fastest, turns nothing


@pytest.fixture(params=["gfx1151", "gfx1201"])
def gpu(request):
    with laneloom.emulated(request.param) as emulation:
        yield emulation


@pytest.fixture
def gfx1151():
    with laneloom.emulated("gfx1151") as emulation:
        yield emulation


def random(*shape: int, dtype=torch.float16) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def check(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """c is a @ b under the derived budget, every element."""
    assert c.shape == torch.matmul(a.float(), b.float()).shape
    # numpy multiplies 1-D operands as torch does
    verdict = reference.judge(c.double().numpy(), a.double().numpy(), b.double().numpy(), NAMES[c.dtype])
    assert verdict.ok, verdict


SHAPES = [
    (0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0), (1, 1, 1), (3, 5, 7), (67, 131, 37),
    (63, 63, 31), (64, 64, 32), (65, 65, 33), (1, 300, 64), (300, 1, 72), (4, 256, 129), (3000, 8, 16),
]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_shapes(gpu, shape):
    m, n, k = shape
    a, b = random(m, k), random(k, n)
    check(a, b, laneloom.matmul(a, b))
    assert [record.kernel for record in gpu.launches] == (["wmma_matmul"] if m and n and k else [])


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(63, 65, 31), (64, 64, 64), (65, 63, 97)])
def test_around_the_tile(gpu, shape):
    m, n, k = shape
    a, b = random(m, k), random(n, k).T
    check(a, b, laneloom.matmul(a, b, config=SMALL))


@pytest.mark.covering
@pytest.mark.parametrize(
    ("layout", "lds"),
    [*((layout, "swizzled") for layout in ("nn", "nt", "tn", "tt")), ("nn", "padded"), ("tn", "padded")],
)
def test_majors(gpu, layout, lds):
    a = random(256, 128) if layout[0] == "n" else random(128, 256).T
    b = random(128, 128) if layout[1] == "n" else random(128, 128).T
    config = (WmmaConfig(block_m=128, block_n=128, block_k=32) if EVERYTHING else SMALL).with_knobs(lds=lds)
    check(a, b, laneloom.matmul(a, b, config=config))
    explanation = laneloom.explain(a, b, config=config)
    assert explanation.problem.layout == layout


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("gfx1151", WmmaConfig(block_m=64, block_n=32, block_k=16, num_warps=2, waves_n=1)),
        ("gfx1201", WmmaConfig(block_m=32, block_n=128, block_k=64, num_warps=4, waves_n=4, group_m=1)),
        ("gfx1151", WmmaConfig(block_m=128, block_n=64, block_k=64, num_warps=8, waves_n=2, lds="padded")),
        ("gfx1201", WmmaConfig(block_m=32, block_n=64, block_k=16, num_warps=2, lds="padded")),
    ],
    ids=["16-deep", "64-deep", "eight-waves", "padded-16-deep"],
)
def test_configs(name, config):
    pairs = (random(200, 136), random(136, 104)), (random(136, 200).T, random(104, 136).T)
    with laneloom.emulated(name):
        for a, b in in_turn((config.block_k == 64) + (config.lds == "padded"), *pairs):
            check(a, b, laneloom.matmul(a, b, config=config))


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(gpu, dtype, out_dtype):
    a, b = random(72, 40, dtype=dtype), random(40, 56, dtype=dtype)
    c = laneloom.matmul(a, b, out_dtype=out_dtype)
    assert c.dtype is out_dtype
    check(a, b, c)


def test_gfx1100():
    with laneloom.emulated("gfx1100"):
        a, b = random(130, 50), random(50, 70)
        check(a, b, laneloom.matmul(a, b))


def test_strides(gfx1151):
    cases = [
        (random(40, 60)[::2, ::3], random(20, 50)[:, 1::2]),  # apart along both axes
        (random(30, 48)[:, 3:43], random(41, 24)[1:]),  # offset, so that 16-byte loads are not aligned
        (random(1, 40).expand(33, 40), random(40, 1).expand(40, 17)),  # rows and columns that repeat
        (random(50).unfold(0, 9, 1), random(9, 8)),  # overlapping rows
        (random(2, 30, 16)[1].T, random(30, 8, 2)[..., 0]),
    ]
    for a, b in cases:
        check(a, b, laneloom.matmul(a, b, config=TINY))


def test_batches(gfx1151):
    cases = [
        ((3, 20, 24), (3, 24, 40)),
        ((3, 20, 24), (24, 40)),  # a batch becomes rows
        ((20, 24), (3, 24, 40)),
        ((2, 1, 20, 24), (3, 24, 40)),
        ((2, 1, 2, 1, 8, 8), (3, 1, 4, 8, 8)),  # more strides than the kernel takes
        ((0, 4, 5), (5, 6)),
        ((8,), (8,)), ((8,), (8, 16)), ((16, 8), (8,)), ((2, 9, 8), (8,)), ((8,), (2, 8, 16)),
    ]  # fmt: skip
    for shape_a, shape_b in cases:
        a, b = random(*shape_a), random(*shape_b)
        check(a, b, laneloom.matmul(a, b, config=TINY))
    transposed = random(4, 3, 16, 8).permute(1, 0, 3, 2)
    b = random(16, 8)
    check(transposed, b, laneloom.matmul(transposed, b, config=TINY))


def test_out(gfx1151):
    a, b = random(24, 40), random(40, 16)
    outs = [
        torch.full((24, 16), torch.nan, dtype=torch.float32),
        torch.full((16, 24), torch.nan, dtype=torch.float16).T,
        torch.full((50, 40), torch.nan, dtype=torch.float16)[1:49:2, 3:35:2],
        torch.full((2, 24, 16), torch.nan, dtype=torch.bfloat16)[1],
    ]
    for out in outs:
        assert laneloom.matmul(a, b, out=out, out_dtype=out.dtype) is out
        check(a, b, out)
    vector = torch.full((24,), torch.nan, dtype=torch.float16)
    check(a, b[:, 0], laneloom.matmul(a, b[:, 0], out=vector, config=TINY))


def test_out_touches_nothing_else(gfx1151):
    a, b = (np.random.default_rng(0).standard_normal(s).astype(np.float16) for s in ((37, 21), (21, 29)))
    for strides in (None, (40, 1), (1, 50), (90, 3)):
        guarded = verify.Guarded((37, 29), "fp16", strides)
        laneloom.matmul(a, b, out=guarded.array)
        assert guarded.untouched_outside()
        assert reference.judge(guarded.array, a, b, "fp16").ok


def test_out_may_overlap_an_operand(gfx1151):
    a = random(40, 40)
    before = a.clone()
    laneloom.matmul(a, a.T, out=a, config=TINY)
    check(before, before.T, a)


def test_nothing_leaks_from_beyond_the_operands(gpu):
    """NaN and infinity around, in the padding of, and after the views that are multiplied."""
    store = torch.full((80, 80), torch.nan, dtype=torch.float16)
    store[:40] = torch.inf
    store[3:40, 5:38] = random(37, 33)
    other = torch.full((64, 64), torch.nan, dtype=torch.float16)
    other[1:34, 2:31] = random(33, 29)
    a, b = store[3:40, 5:38], other[1:34, 2:31]
    c = laneloom.matmul(a, b)
    assert torch.isfinite(c).all()
    check(a, b, c)
    check(b.T, a.T, laneloom.matmul(b.T, a.T))


def test_special_values(gfx1151):
    a, b = random(16, 16), random(16, 16)
    a[3, 4], b[5, 6], b[4, 7] = torch.nan, torch.inf, -torch.inf
    check(a, b, laneloom.matmul(a, b))
    large = torch.full((16, 16), 1000.0, dtype=torch.float16)
    assert torch.isinf(laneloom.matmul(large, large)).all()
    check(large, large, laneloom.matmul(large, large, out_dtype=torch.float32))


def test_identity_and_repetition(gfx1151):
    a = random(50, 40)
    assert torch.equal(laneloom.matmul(a, torch.eye(40, dtype=torch.float16), config=TINY), a)
    b = random(40, 24)
    assert torch.equal(laneloom.matmul(a, b, config=TINY), laneloom.matmul(a, b, config=TINY))


def test_a_batch_gives_the_bits_of_its_parts(gfx1151):
    a, b = random(3, 40, 48), random(3, 48, 24)
    whole = laneloom.matmul(a, b, config=TINY)
    for i in range(3):
        assert torch.equal(whole[i], laneloom.matmul(a[i], b[i], config=TINY))


def test_offsets_past_32_bits_inside_a_tile(gfx1151):
    """Rows 2**26 elements apart: a sparse file of zeros behind them, of which only the rows are touched."""
    pitch, rows, k = 1 << 26, 33, 40
    store = torch.from_numpy(np.zeros(rows * pitch, np.float16))  # untouched pages take no memory
    a = store.as_strided((rows, k), (pitch, 1))
    a.copy_(random(rows, k))
    b = random(k, 24)
    assert "offsets inside a tile need 64 bits" in laneloom.explain(a, b).facts
    check(a, b, laneloom.matmul(a, b))
    tall = store.as_strided((k, rows), (1, pitch))
    b = random(rows, 8)
    check(tall, b, laneloom.matmul(tall, b))


@given(
    sizes=st.tuples(*[st.integers(1, 70)] * 3),
    transposed=st.tuples(st.booleans(), st.booleans()),
    step=st.sampled_from([1, 2]),
    offset=st.integers(0, 8),
    bf16=st.booleans(),
)
@settings(max_examples=5 if EVERYTHING else 3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_size_and_stride(sizes, transposed, step, offset, bf16):
    m, n, k = sizes
    dtype = torch.bfloat16 if bf16 else torch.float16

    def operand(rows: int, columns: int, flip: bool) -> torch.Tensor:
        if flip:
            rows, columns = columns, rows
        view = random(rows, columns * step + offset, dtype=dtype)[:, offset::step][:, :columns]
        return view.T if flip else view

    a, b = operand(m, k, transposed[0]), operand(k, n, transposed[1])
    with laneloom.emulated("gfx1201"):
        check(a, b, laneloom.matmul(a, b))


def gradients_agree(a: torch.Tensor, b: torch.Tensor, out_dtype=None) -> None:
    a, b = a.requires_grad_(), b.requires_grad_()
    c = laneloom.matmul(a, b, out_dtype=out_dtype)
    grad = random(*c.shape, dtype=c.dtype)
    grad_a, grad_b = torch.autograd.grad(c, (a, b), grad)
    a64, b64 = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    half = grad.to(a.dtype)
    true_a, true_b = torch.autograd.grad(torch.matmul(a64, b64), (a64, b64), half.double())
    a16, b16 = a.detach().float().requires_grad_(), b.detach().float().requires_grad_()
    same = torch.autograd.grad(torch.matmul(a16, b16), (a16, b16), half.float())
    sizes = torch.autograd.grad(torch.matmul(a64.abs(), b64.abs()), (a64, b64), half.double().abs())
    for got, true, fp32, size in zip((grad_a, grad_b), (true_a, true_b), same, sizes, strict=True):
        assert got.dtype == a.dtype
        assert got.shape == true.shape
        values = (x.detach().double().numpy() for x in (got, true, fp32, size.abs()))
        assert verify.judge(*values, NAMES[got.dtype]).ok


def test_gradients(gfx1151):
    gradients_agree(random(16, 24), random(24, 16))
    gradients_agree(random(16, 24), random(24, 16), torch.float32)
    gradients_agree(random(2, 1, 16, 24), random(3, 24, 8))
    gradients_agree(random(24), random(24, 8))
    if EVERYTHING:
        gradients_agree(random(16, 24), random(24, 40))
        gradients_agree(random(16, 24), random(24, 40), torch.float32)
        gradients_agree(random(16, 24, dtype=torch.bfloat16), random(24, 40, dtype=torch.bfloat16), torch.float32)
        gradients_agree(random(3, 16, 24), random(24, 8))
        gradients_agree(random(24), random(24))


def test_second_derivatives(gfx1151):
    """sum((A B)^2) is quadratic in A: its Hessian applied to V is 2 V B B^T."""
    a, b, v = random(6, 8).requires_grad_(), random(8, 8), random(6, 8)
    c = laneloom.matmul(a, b, out_dtype=torch.float32)
    (grad,) = torch.autograd.grad((c * c).sum(), a, create_graph=True)
    (hessian_v,) = torch.autograd.grad(grad, a, v)
    expected = 2 * v.double() @ b.double() @ b.double().T
    assert torch.allclose(hessian_v.double(), expected, rtol=2e-2, atol=2e-2)


def test_torch_operator(gfx1151):
    a, b = random(8, 16), random(2, 16, 8)
    operator = torch.ops.laneloom.matmul.default
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")  # the others: test_torch_operators.py
    torch.library.opcheck(operator, (a, b), test_utils=tests)
    with_config = (a.requires_grad_(), b.requires_grad_(), torch.float32, TINY.text)
    torch.library.opcheck(operator, with_config, test_utils=tests)
    out = torch.zeros(6, 4, dtype=torch.float16)
    torch.library.opcheck(torch.ops.laneloom.matmul_out.default, (random(6, 5), random(5, 4), out), test_utils=tests)


def test_torch_compile(gfx1151):
    def function(a, b):
        return laneloom.matmul(a, b, config=TINY).relu() + laneloom.matmul(b[:, 0], b)

    a, b = random(9, 9), random(9, 9)
    expected = function(a, b)
    assert torch.equal(torch.compile(function, fullgraph=True, backend="aot_eager")(a, b), expected)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(function, fullgraph=True, backend="eager", dynamic=True)(a, b), expected)


def test_numpy(gpu):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((2, 40, 24), (24, 16)))
    cases = [
        (a, b), (a[0, ::-1], b[:, ::-1]), (a.astype(">f2"), b), (a[0].T.copy().T, b.T.copy().T), (a[0, 0], b[:, 0]),
        (np.zeros((3, 0), np.float16), np.zeros((0, 4), np.float16)), (a[:0], b),
    ]  # fmt: skip
    for x, y in cases:
        c = laneloom.matmul(x, y, config=TINY)
        assert c.dtype == np.float16
        assert np.shape(c) == np.shape(np.matmul(x.astype(float), y.astype(float)))
        assert reference.judge(np.asarray(c), x, y, "fp16").ok
    out = np.full((2, 16, 40), np.nan, np.float32)
    view = out.swapaxes(-1, -2)[:, ::-1]
    assert laneloom.matmul(a, b, out=view, out_dtype=np.float32) is view
    assert reference.judge(view, a, b, "fp32").ok


def test_bf16_arrays_at_the_level_below(gfx1151):
    """numpy has no bf16; `multiply_into` takes its bits, which is what the command line uses."""
    rng = np.random.default_rng(2)
    a, b = (verify.encode(rng.standard_normal(s), "bf16") for s in ((40, 24), (24, 16)))
    out = verify.Guarded((40, 16), "bf16")
    execute.multiply_into(a, b, out.array, ("bf16",) * 3, get_gpu("gfx1151"), None)
    values = (verify.decode(x, "bf16") for x in (out.array, a, b))
    assert reference.judge(*values, "bf16").ok
    assert out.untouched_outside()


REFUSALS = [
    (ArgumentError, r"b: expected 4 rows", lambda: laneloom.matmul(random(3, 4), random(5, 6))),
    (ArgumentError, r"b: expected batch axes that broadcast",
     lambda: laneloom.matmul(random(2, 3, 4), random(3, 4, 6))),
    (ArgumentError, r"b: expected a's dtype fp16, got bf16",
     lambda: laneloom.matmul(random(3, 4), random(4, 6).bfloat16())),
    (ArgumentError, r"a: expected a torch tensor as the others are, got list",
     lambda: laneloom.matmul([1.0], random(1))),
    (ArgumentError, r"a: expected a torch tensor or a numpy array, got list", lambda: laneloom.matmul([1.0], [2.0])),
    (ArgumentError, r"b: expected at least 1 axis", lambda: laneloom.matmul(random(3), torch.tensor(1.0).half())),
    (UnsupportedError, r"precision: gfx1151 multiplies fp32 in FP32 only, got 'tf32'",
     lambda: laneloom.matmul(random(3, 4).float(), random(4, 6).float(), precision="tf32")),
    (UnsupportedError, "a: expected dtype float16, bfloat16, float32, float64, int8, uint8, float8_e4m3fn, "
     "float8_e5m2, got torch.complex64",
     lambda: laneloom.matmul(random(3, 4).cfloat(), random(4, 6).cfloat())),
    (UnsupportedError, r"out_dtype: expected fp32, fp16 or bf16, got fp64",
     lambda: laneloom.matmul(random(3, 4), random(4, 6), out_dtype=torch.float64)),
    (ArgumentError, r"out_dtype: expected a torch dtype, got 'fp32'",
     lambda: laneloom.matmul(random(3, 4), random(4, 6), out_dtype="fp32")),
    (ArgumentError, r"out: expected shape \[3, 6\] and torch.float16, got \[3, 5\]",
     lambda: laneloom.matmul(random(3, 4), random(4, 6), out=random(3, 5))),
    (ArgumentError, r"out: expected shape \[3, 6\] and torch.float32, got \[3, 6\] and torch.float16",
     lambda: laneloom.matmul(random(3, 4), random(4, 6), out=random(3, 6), out_dtype=torch.float32)),
    (ArgumentError, r"out: expected strides under which no elements overlap",
     lambda: laneloom.matmul(random(3, 4), random(4, 6), out=random(1, 6).expand(3, 6))),
    (ArgumentError, r"out: expected none where gradients are recorded",
     lambda: laneloom.matmul(random(3, 4).requires_grad_(), random(4, 6), out=random(3, 6))),
    (InvalidConfigError, r"block_m: expected a power of two, got 24",
     lambda: laneloom.matmul(random(3, 4), random(4, 6), config=WmmaConfig(block_m=24, block_n=64, block_k=32))),
    (UnsupportedError, r"a: expected a strided tensor",
     lambda: laneloom.matmul(random(3, 4).to_sparse(), random(4, 6))),
    (UnsupportedError, r"a: expected dtype fp64, .* or uint4, got int32",
     lambda: laneloom.matmul(np.zeros((3, 4), np.int32), np.zeros((4, 6), np.int32))),
    (UnsupportedError, r"a: expected an array without a mask",
     lambda: laneloom.matmul(np.ma.zeros((3, 4), np.float16), np.zeros((4, 6), np.float16))),
    (ArgumentError, r"out: expected shape \(3, 6\) and float16",
     lambda: laneloom.matmul(*(np.zeros(s, np.float16) for s in ((3, 4), (4, 6))), out=np.zeros((6, 3), np.float16))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), REFUSALS, ids=[message[:40] for _, message, _ in REFUSALS])
def test_refusals(gfx1151, kind, message, call):
    with pytest.raises(kind, match=message):
        call()
    assert gfx1151.launches == []


def test_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UnsupportedError, match=r"there is no GPU that Triton can use here: put the call inside"):
        laneloom.matmul(random(3, 4), random(4, 6))

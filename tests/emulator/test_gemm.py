"""laneloom.gemm on emulated GPUs in strict mode: every term, aliasing, gradients; the full output against FP64."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import in_turn, rarely, sampled

import laneloom
from laneloom import verify
from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.gpu import get_gpu
from laneloom.ops import warm
from laneloom.ops.matmul import execute, reference
from laneloom.ops.matmul.config_wmma import WmmaConfig

torch = pytest.importorskip("torch")
import laneloom.pytorch  # noqa: E402  registers the operators

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
SMALL = WmmaConfig(block_m=64, block_n=64, block_k=32)
TINY = WmmaConfig(block_m=16, block_n=32, block_k=32, num_warps=1, waves_n=1)  #: whose code compiles fastest
ACTIVATIONS = (None, "relu", "gelu", "silu")


@pytest.fixture
def gfx1151():
    with laneloom.emulated("gfx1151", strict=True, seed=7) as emulation:
        yield emulation


def random(*shape: int, dtype=torch.float16) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def check(got: torch.Tensor, a, b, *, c=None, bias=None, **numbers) -> None:
    arrays = [None if x is None else x.detach().double().numpy() for x in (got, a, b, c, bias)]
    verdict = reference.judge_gemm(*arrays[:3], NAMES[got.dtype], c=arrays[3], bias=arrays[4], **numbers)
    assert verdict.ok, verdict


@pytest.mark.covering
@pytest.mark.parametrize(
    ("gpu", "activation"),
    [("gfx1100", "gelu"), *((gpu, activation) for gpu in ("gfx1151", "gfx1201") for activation in ACTIVATIONS)],
)
def test_all_terms(gpu, activation):
    a, b, c, bias = random(67, 40), random(40, 72), random(67, 72, dtype=torch.float32), random(72)
    numbers = {"alpha": 1.5, "beta": -0.5, "activation": activation}
    with laneloom.emulated(gpu, strict=True, seed=3) as emulation:
        got = laneloom.gemm(a, b, c, bias=bias, **numbers)
    check(got, a, b, c=c, bias=bias, **numbers)
    assert [record.kernel for record in emulation.launches] == ["wmma_matmul"]


@pytest.mark.parametrize("config", [SMALL, WmmaConfig(block_m=128, block_n=128, block_k=32)], ids=["64", "128"])
def test_pieces_of_the_epilogue(gfx1151, config):
    """A tile is stored in as many pieces as keep its terms in registers; ragged in both directions."""
    dtypes = (torch.float16, torch.float32), (torch.float32, torch.bfloat16)
    for out_dtype, add_dtype in in_turn(config is SMALL, *dtypes):
        a, b, c, bias = random(130, 40), random(40, 136), random(130, 136, dtype=add_dtype), random(136)
        got = laneloom.gemm(a, b, c, beta=2, bias=bias, activation="silu", out_dtype=out_dtype, config=config)
        check(got, a, b, c=c, beta=2, bias=bias, activation="silu")


def test_each_term_alone(gfx1151):
    a, b, c, bias = random(40, 16), random(16, 48), random(40, 48), random(48, dtype=torch.bfloat16)
    check(laneloom.gemm(a, b, config=TINY), a, b)
    check(laneloom.gemm(a, b, alpha=-2.5, config=TINY), a, b, alpha=-2.5)
    check(laneloom.gemm(a, b, c, beta=1, config=TINY), a, b, c=c, beta=1)
    check(laneloom.gemm(a, b, bias=bias, config=TINY), a, b, bias=bias)
    check(laneloom.gemm(a, b, activation="relu", config=TINY), a, b, activation="relu")
    check(laneloom.gemm(a, b, beta=3.0, config=TINY), a, b)  # C is 0 where there is none


def test_beta_zero_never_reads_c(gfx1151):
    a, b = random(40, 16), random(16, 48)
    poison = torch.full((40, 48), torch.nan, dtype=torch.float16)
    got = laneloom.gemm(a, b, poison, beta=0, config=TINY)
    assert torch.equal(got, laneloom.gemm(a, b, config=TINY))
    assert laneloom.gemm(a, b, poison, beta=0, out=poison, config=TINY) is poison
    check(poison, a, b)


def test_alpha_zero_never_reads_the_operands(gfx1151):
    a, b = torch.full((20, 24), torch.nan, dtype=torch.float16), random(24, 33)
    c, bias = random(20, 33), random(33)
    check(laneloom.gemm(a, b, c, alpha=0, beta=2, bias=bias), a, b, alpha=0, c=c, beta=2, bias=bias)
    assert torch.equal(laneloom.gemm(a, b, alpha=0), torch.zeros(20, 33, dtype=torch.float16))
    assert [record.kernel for record in gfx1151.launches] == ["apply_epilogue"]


def test_empty_sums_and_outputs(gfx1151):
    c, bias = random(3, 5), random(5)
    a, b = random(3, 0), random(0, 5)
    got = laneloom.gemm(a, b, c, beta=2, bias=bias, activation="gelu")
    check(got, a, b, c=c, beta=2, bias=bias, activation="gelu")
    assert laneloom.gemm(random(0, 4), random(4, 5), random(0, 5), beta=1).shape == (0, 5)


def test_in_place(gfx1151):
    a, b = random(70, 40), random(40, 50)
    for make in (
        lambda: random(70, 50, dtype=torch.float32),
        lambda: random(50, 70).T,  # contiguous along M
        lambda: random(140, 150)[::2, 1::3],
    ):
        c = make()
        before = c.clone()
        assert laneloom.gemm(a, b, c, alpha=1.5, beta=0.3, out=c) is c
        check(c, a, b, alpha=1.5, beta=0.3, c=before)


def test_other_overlaps_are_copied(gfx1151):
    store = random(41, 40)
    c, out, before = store[:40], store[1:], store.clone()  # one row apart
    a, b = random(40, 16), random(16, 40)
    laneloom.gemm(a, b, c, beta=1, out=out, config=TINY)
    check(out, a, b, c=before[:40], beta=1)
    square = random(32, 32)
    before = square.clone()
    laneloom.gemm(square, square, square.T, beta=1, out=square)
    check(square, before, before, c=before.T, beta=1)
    bias = random(1, 8)
    before = bias.clone()
    a, b = random(1, 8), random(8, 8)
    laneloom.gemm(a, b, bias=bias[0], out=bias)
    check(bias, a, b, bias=before[0])


def test_batches_and_broadcast_terms(gfx1151):
    bias = random(24)
    for shape_a, shape_b, shape_c in (
        ((3, 20, 16), (3, 16, 24), (3, 20, 24)),
        ((3, 20, 16), (16, 24), (20, 24)),  # a batch that would be rows, were C not the same for each
        *rarely(((3, 20, 16), (16, 24), (3, 20, 24))),
        ((2, 1, 20, 16), (3, 16, 24), (3, 1, 24)),
        ((2, 1, 2, 1, 8, 8), (3, 1, 4, 8, 24), (2, 3, 2, 4, 8, 24)),
        *rarely(((20, 16), (16, 24), ())),
    ):
        a, b, c = random(*shape_a), random(*shape_b), random(*shape_c)
        check(laneloom.gemm(a, b, c, beta=0.5, bias=bias, config=TINY), a, b, c=c, beta=0.5, bias=bias)
    a, b = random(3, 20, 16), random(16, 24)
    out = torch.full((3, 24, 20), torch.nan, dtype=torch.float32).mT
    laneloom.gemm(a, b, bias=bias, out=out)  # C^T: the bias turns to rows, which a batch may not become
    check(out, a, b, bias=bias)


def test_out_touches_nothing_else(gfx1151):
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(s).astype(np.float16) for s in ((37, 21), (21, 29), (37, 29)))
    for strides in ((1, 50), (90, 3), *rarely(None, (40, 1))):
        guarded = verify.Guarded((37, 29), "fp16", strides)
        laneloom.gemm(a, b, c, beta=1, activation="relu", out=guarded.array, config=TINY)
        assert guarded.untouched_outside()
        assert reference.judge_gemm(guarded.array, a, b, "fp16", c=c, beta=1, activation="relu").ok


def test_numpy(gfx1151):
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(s).astype(np.float16) for s in ((2, 40, 24), (24, 16), (40, 16)))
    bias = rng.standard_normal(16)[::-1].astype(np.float32)
    numbers = {"alpha": 0.5, "beta": 2, "activation": "gelu"}
    got = laneloom.gemm(a, b, c[::-1], bias=bias, out_dtype=np.float32, config=TINY, **numbers)
    assert reference.judge_gemm(got, a, b, "fp32", c=c[::-1], bias=bias, **numbers).ok
    out = np.asfortranarray(c)
    assert laneloom.gemm(a[0], b, out, beta=1, out=out, config=TINY) is out
    assert reference.judge_gemm(out, a[0], b, "fp16", c=c, beta=1).ok


def test_a_schedule_without_epilogue_has_it_done_by_a_launch_of_its_own(gfx1151, monkeypatch):
    monkeypatch.setattr(execute, "fuses_epilogue", lambda *_: False)
    a, b, c, bias = random(2, 40, 24), random(24, 33), random(40, 33), random(33)
    numbers = {"alpha": 2, "beta": 1, "activation": "silu"}
    check(laneloom.gemm(a, b, c, bias=bias, **numbers), a, b, c=c, bias=bias, **numbers)
    assert [record.kernel for record in gfx1151.launches] == ["wmma_matmul", "apply_epilogue"]


@pytest.mark.parametrize("activation", sampled(ACTIVATIONS))
def test_gradients(gfx1151, activation):
    """Gradients of every operand against FP64; the incoming one enters the products rounded to fp16."""
    leaves = [random(16, 24), random(2, 24, 20), random(16, 1, dtype=torch.float32), random(20, dtype=torch.float32)]
    mine = [x.clone().requires_grad_() for x in leaves]
    true = [x.double().requires_grad_() for x in leaves]
    numbers = {"alpha": 0.5, "beta": 2.0}
    got = laneloom.gemm(*mine[:3], bias=mine[3], activation=activation, out_dtype=torch.float32, **numbers)
    z = 0.5 * true[0] @ true[1] + 2.0 * true[2] + true[3]
    functions = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}
    expected = functions.get(activation, torch.positive)(z)
    grad = random(2, 16, 20, dtype=torch.float32)
    for a, b in zip(torch.autograd.grad(got, mine, grad), torch.autograd.grad(expected, true, grad.double()),
                    strict=True):  # fmt: skip
        assert a.shape == b.shape
        assert torch.allclose(a.double(), b, rtol=4e-3, atol=4e-3 * b.abs().max().item())


def test_second_derivatives(gfx1151):
    a, b, v = random(6, 5).requires_grad_(), random(5, 4), random(6, 5)
    c = laneloom.gemm(a, b, alpha=2, activation="silu", out_dtype=torch.float32)
    (grad,) = torch.autograd.grad(c.sum(), a, create_graph=True)
    (got,) = torch.autograd.grad(grad, a, v)
    a64 = a.detach().double().requires_grad_()
    (grad,) = torch.autograd.grad(
        torch.nn.functional.silu(2 * a64 @ b.double()).sum(), a64, create_graph=True)  # fmt: skip
    (expected,) = torch.autograd.grad(grad, a64, v.double())
    assert torch.allclose(got.double(), expected, rtol=3e-2, atol=3e-2)


def test_torch_operator(gfx1151):
    a, b, c, bias = (random(*s).requires_grad_() for s in ((6, 5), (5, 4), (6, 4), (4,)))
    operator = torch.ops.laneloom.gemm.default
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")  # the others: test_torch_operators.py
    arguments = (a, b, c, bias, 2.0, 0.5, "gelu", torch.float32, TINY.text)
    torch.library.opcheck(operator, arguments, test_utils=tests)
    out = torch.zeros(6, 4, dtype=torch.float16)
    a, b, c, bias = (x.detach() for x in (a, b, c, bias))
    arguments = (a, b, out, c, bias, 1.0, 0.5, "relu")
    torch.library.opcheck(torch.ops.laneloom.gemm_out.default, arguments, test_utils=tests)


def test_torch_compile(gfx1151):
    def function(a, b, c):
        return laneloom.gemm(a, b, c, beta=1.0, activation="relu", config="kunroll") + 1

    a, b, c = random(9, 9), random(9, 9), random(9, 9)
    expected = function(a, b, c)
    assert torch.equal(torch.compile(function, fullgraph=True, backend="aot_eager")(a, b, c), expected)
    torch._dynamo.reset()


def test_explain_says_where_the_terms_are_applied():
    terms = execute.Terms(alpha=2.0, activation="relu")
    a, b, out = (np.zeros(s, np.float16) for s in ((64, 32), (32, 64), (64, 64)))
    problem = execute.problem_of(a, b, out, ("fp16",) * 3, terms)
    assert problem is not None
    text = str(laneloom.explain(problem, gpu=get_gpu("gfx1151")))
    assert "the sums become C in FP32 before their one rounding: alpha, relu" in text
    assert problem.key.endswith("/alpha+relu")


REFUSALS = [
    (ArgumentError, r"activation: expected None, 'relu', 'gelu', 'silu', got 'tanh'",
     lambda: laneloom.gemm(random(3, 4), random(4, 6), activation="tanh")),
    (ArgumentError, r"alpha: expected a real number, got '2'",
     lambda: laneloom.gemm(random(3, 4), random(4, 6), alpha="2")),  # pyright: ignore[reportArgumentType]
    (ArgumentError, r"a: expected at least 2 axes, got shape \(4,\)", lambda: laneloom.gemm(random(4), random(4, 6))),
    (ArgumentError, r"c: expected a shape that broadcasts to \(3, 6\), got \(3, 5\)",
     lambda: laneloom.gemm(random(3, 4), random(4, 6), random(3, 5), beta=1)),
    (ArgumentError, r"c: expected a shape that broadcasts to \(1, 6\), got \(3, 6\)",
     lambda: laneloom.gemm(random(1, 4), random(4, 6), random(3, 6), beta=1)),
    (ArgumentError, r"bias: expected shape \(6,\), one for each column, got \(3,\)",
     lambda: laneloom.gemm(random(3, 4), random(4, 6), bias=random(3))),
    (UnsupportedError, r"c: expected dtype fp32, fp16 or bf16, got fp64",
     lambda: laneloom.gemm(random(3, 4), random(4, 6), random(3, 6).double(), beta=1)),
    (ArgumentError, r"out: expected shape \(3, 6\), got \(3, 5\)",
     lambda: laneloom.gemm(random(3, 4), random(4, 6), out=random(3, 5))),
    (ArgumentError, r"out: expected dtype torch.float32, got torch.float16",
     lambda: laneloom.gemm(random(3, 4), random(4, 6), out=random(3, 6), out_dtype=torch.float32)),
    (ArgumentError, r"out: expected none where gradients are recorded",
     lambda: laneloom.gemm(random(3, 4), random(4, 6).requires_grad_(), out=random(3, 6))),
    (ArgumentError, r"config: expected one of standard, .*, got 'fastest'",
     lambda: laneloom.gemm(random(3, 4), random(4, 6), config="fastest")),
    (ArgumentError, r"c: expected a torch tensor as the others are, got ndarray",
     lambda: laneloom.gemm(random(3, 4), random(4, 6), np.zeros((3, 6)), beta=1)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), REFUSALS, ids=[message[:40] for _, message, _ in REFUSALS])
def test_refusals(gfx1151, kind, message, call):
    with pytest.raises(kind, match=message):
        call()
    assert gfx1151.launches == []


def test_a_torch_for_cuda_without_a_gpu(gfx1151, monkeypatch):
    """Such a torch raises where the current device is asked for; tensors of the CPU never ask."""

    def current_device() -> int:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(warm, "current_device", current_device)
    a, b = random(40, 16), random(16, 48)
    check(laneloom.gemm(a, b, config=TINY), a, b)
    assert torch.equal(laneloom.matmul(a, b, config=TINY), laneloom.gemm(a, b, config=TINY))


@pytest.mark.parametrize("name", ["gfx1250", "gfx1201"])
@pytest.mark.parametrize("terms", [{"alpha": 0.0}, {"bias": True}, {"activation": "relu"}])
def test_what_is_made_of_sums_goes_into_floats(name, terms):
    """Where no schedule is asked (alpha = 0), and where the terms are a launch of their own (CDNA 5), too."""
    terms = terms | ({"bias": torch.ones(3)} if "bias" in terms else {})
    for dtype in (torch.int8, torch.float16):
        a, b = torch.ones(4, 5).to(dtype), torch.ones(5, 3).to(dtype)
        with laneloom.emulated(name), pytest.raises(UnsupportedError, match="out_dtype: expected fp32, fp16 or bf16"):
            laneloom.gemm(a, b, out_dtype=torch.int32, **terms)

"""Every operator of torch.ops.laneloom keeps what PyTorch promises: one table over all of them.

An operator that is not in the table fails the first test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sampled import EVERYTHING

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import laneloom  # noqa: E402
import laneloom.pytorch  # noqa: E402
from laneloom.errors import ArgumentError, UnsupportedError  # noqa: E402

HALF, WIDE = torch.float16, torch.float64


def random(*shape, seed=0, dtype=HALF):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


@dataclass(frozen=True)
class Case:
    """One operator: what it is called with, and what it promises."""

    arguments: Callable[[int], tuple[Any, ...]]  #: of a size that may vary between calls of one compiled graph
    differentiable: tuple[int, ...] = ()  #: positions of the arguments that gradients reach
    batched: tuple[tuple[int, ...], ...] = ()  #: sets of positions that vmap may batch together
    autocast: tuple[int, ...] = ()  #: positions of the arguments that autocast lowers
    writes: bool = False  #: whether it writes into an argument and returns nothing


def gemm_terms(n):
    return (random(n, 16), random(16, 16, seed=1), random(16, seed=2), random(16, seed=3), 0.5, 0.25, "silu")


def attention(n):
    return tuple(random(2, 2, n, 16, seed=i) for i in range(3))


def attention_backward(n):
    q, k, v = attention(n)
    out, lse = torch.ops.laneloom.flash_attention(q, k, v)
    grad_lse = None if EVERYTHING else random(*lse.shape, seed=5, dtype=torch.float32)  # flash_attention's kernels
    return (random(*out.shape, seed=4), grad_lse, q, k, v, out, lse)


def weight_of_bytes(n):
    """x, values, scales, zeros and bias, dtype, group. At most 16 rows, whose kernel compiles three times as fast."""
    values, zeros = (torch.arange(size, dtype=torch.uint8).reshape(16, -1) for size in (16 * 32, 16 * 2))
    scales = random(16, 2, seed=1).abs()
    return (random(2, n // 3, 64), values, scales, zeros % 16, random(16, seed=3), "uint4", 32)


CASES = {
    "matmul": Case(
        lambda n: (random(2, n, 16), random(16, 16, seed=1), torch.float32), (0, 1), ((0,), (1,), (0, 1)), (0, 1)
    ),
    "matmul_out": Case(lambda n: (random(n, 16), random(16, 16, seed=1), torch.zeros(n, 16, dtype=HALF)), writes=True),
    "gemm": Case(gemm_terms, (0, 1, 2, 3), ((0,), (1, 2), (3,), (0, 3)), (0, 1)),
    "gemm_out": Case(
        lambda n: (random(n, 16), random(16, 16, seed=1), torch.zeros(n, 16, dtype=HALF), None, None, 2.0), writes=True
    ),
    "grouped_matmul": Case(
        lambda n: (random(n, 16), random(3, 16, 24, seed=1), torch.tensor([4, 4, n], dtype=torch.int32)),
        (0, 1), ((0,), (1,), (0, 1)), (0, 1),
    ),
    "grouped_matmul_out": Case(
        lambda n: (random(n, 16), random(3, 16, 24, seed=1), torch.tensor([4, 4, n], dtype=torch.int32),
                   torch.zeros(n, 24, dtype=HALF)),
        writes=True,
    ),
    "gemm_chain": Case(
        lambda n: (random(n, 16), *(random(16, 16, seed=i) for i in (1, 2)), random(16, seed=3), 0.5, 1.0, 0.25),
        (0, 1, 2, 3), ((0,), (1, 2), (3,)), (0, 1, 2),
    ),
    "gemm_chain_out": Case(
        lambda n: (random(n, 16), *(random(16, 16, seed=i) for i in (1, 2)), torch.zeros(n, 16, dtype=HALF)),
        writes=True,
    ),
    "flash_attention": Case(attention, (0, 1, 2), ((0, 1, 2), (0,)), (0, 1, 2)),
    "flash_attention_backward": Case(attention_backward, batched=((0,),)),
    "attention_decode": Case(
        lambda n: (random(2, 1, 4, 16), *(random(2, 32, 2, 16, seed=i) for i in (1, 2)),
                   torch.tensor([n, 20], dtype=torch.int32)),
        batched=((0,), (1, 2)), autocast=(0, 1, 2),
    ),
    "quantize_blocks": Case(lambda n: (random(2, n, 130),), batched=((0,),)),
    "quantized_matmul": Case(weight_of_bytes, (0, 4), ((0,), (2,), (0, 2), (4,)), (0,)),
    "quantized_matmul_out": Case(
        lambda n: (*weight_of_bytes(n)[:5], torch.zeros(2, n // 3, 16, dtype=HALF), *weight_of_bytes(n)[5:]),
        writes=True,
    ),
    "transform3d": Case(
        lambda n: (random(n, 3, 3, 3, dtype=WIDE), random(3, 3, seed=1, dtype=WIDE)), (0, 1), ((0,), (0, 1))
    ),
    "transform3d_out": Case(
        lambda n: (random(n, 3, 3, 3, dtype=WIDE), random(3, 3, seed=1, dtype=WIDE), torch.zeros(n, 3, 3, 3).double()),
        writes=True,
    ),
    "transpose": Case(lambda n: (random(2, n, 16),), (0,), ((0,),)),
    "transpose_out": Case(lambda n: (random(2, n, 16), torch.zeros(2, 16, n, dtype=HALF)), writes=True),
}
#: operators that no emulated GPU runs, tests/gpu has their checks, or whose operands torch does not compare
ELSEWHERE = {"flash_attention_float8"}
NAMES = list(CASES)
RETURNING = [name for name in NAMES if not CASES[name].writes]
DIFFERENTIABLE = [name for name in NAMES if CASES[name].differentiable]


@pytest.fixture(autouse=True)
def gfx1151():
    torch._dynamo.reset()
    with laneloom.emulated("gfx1151") as emulation:
        yield emulation


def operator(name):
    return getattr(torch.ops.laneloom, name)


def prepared(name, n=9):
    """The arguments of the case, with gradients where it has them."""
    case = CASES[name]
    return tuple(
        x.requires_grad_() if i in case.differentiable else x for i, x in enumerate(case.arguments(n))
    )


def first(result):
    return result[0] if isinstance(result, tuple) else result


def test_every_operator_is_in_the_table():
    names = {name.removeprefix("laneloom::") for name in torch._C._dispatch_get_all_op_names()
             if name.startswith("laneloom::") and not name.startswith("laneloom::test_")}  # other tests define those
    assert names == set(CASES) | ELSEWHERE


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    """Schema, gradients where they are registered, fake shapes and strides, tracing with symbols for sizes."""
    torch.library.opcheck(operator(name).default, prepared(name))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@torch._dynamo.config.patch(specialize_float=True)  # numbers come from the table here, not from the code
def test_one_graph_for_all_sizes(name):
    """fullgraph, gradients included; another size neither compiles again nor changes the values."""
    counter = CompileCounterWithBackend("aot_eager")
    options = [x for x in prepared(name) if not isinstance(x, torch.Tensor)]
    compiled = torch.compile(lambda *x: operator(name)(*x, *options), fullgraph=True, dynamic=True, backend=counter)
    for n in (9, 14):
        ours, theirs = ([x for x in prepared(name, n) if isinstance(x, torch.Tensor)] for _ in range(2))
        got, expected = first(compiled(*ours)), first(operator(name)(*theirs, *options))
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()
        for result in (got, expected):
            result.backward(random(*result.shape, seed=7, dtype=result.dtype))
        for position in CASES[name].differentiable:
            assert torch.equal(ours[position].grad, theirs[position].grad)
    assert counter.frame_count == 1


BATCHED = [(name, positions) for name in NAMES for positions in CASES[name].batched]


def label(x):
    return x if isinstance(x, str) else "_".join(map(str, x))


@pytest.mark.covering
@pytest.mark.parametrize(("name", "positions"), BATCHED, ids=label)
def test_vmap(name, positions, recwarn):
    """The values of a call for each element, whatever axis is batched, in few launches."""
    arguments = CASES[name].arguments(9)
    stacked = tuple(
        torch.stack([x, x.flip(0), x * 0.5], dim=-1) if i in positions else x for i, x in enumerate(arguments)
    )
    axes = tuple(-1 if i in positions else None for i in range(len(arguments)))
    got = torch.vmap(operator(name), axes)(*stacked)
    single = [
        operator(name)(*(x[..., i].clone() if at in positions else x for at, x in enumerate(stacked))) for i in range(3)
    ]
    for part, expected in zip(*((got,), (single,)) if not isinstance(got, tuple) else (got, zip(*single, strict=True)),
                              strict=True):  # fmt: skip
        torch.testing.assert_close(part, torch.stack(list(expected)))
    assert not [w for w in recwarn if "performance drop" in str(w.message)]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_several_gradients_at_once(name):
    """`is_grads_batched`, as torch.autograd.functional's `vectorize=True`, batches the backward in another way."""
    arguments = prepared(name)
    result = first(operator(name)(*arguments))
    inputs = [arguments[i] for i in CASES[name].differentiable]
    grads = random(3, *result.shape, seed=7, dtype=result.dtype)
    single = [torch.autograd.grad(result, inputs, grad, retain_graph=True) for grad in grads]
    got = torch.autograd.grad(result, inputs, grads, is_grads_batched=True)
    assert all(torch.equal(x, torch.stack(y)) for x, y in zip(got, zip(*single, strict=True), strict=True))


def test_gradients_lie_as_their_operands():
    """`linear`'s weight is a transpose: autograd would copy a gradient that is none, and steals one that lies alike."""
    weight, x, ends = random(24, 16), random(9, 16, seed=1), torch.tensor([4, 9], dtype=torch.int32)
    calls = {
        (24, 16): [
            lambda w: laneloom.matmul(x, w.mT), lambda w: laneloom.matmul(random(2, 9, 16), w.mT),
            lambda w: laneloom.gemm(x, w.mT, activation="silu"), lambda w: laneloom.matmul(w.mT, random(24, 8)),
            lambda w: laneloom.gemm_chain(x, w.mT, random(24, 16)),
            lambda w: laneloom.gemm_chain(x, random(16, 16), w.mT),
        ],
        (2, 24, 16): [lambda w: laneloom.grouped_matmul(x, w.mT, ends), lambda w: laneloom.matmul(x, w.mT)],
    }  # fmt: skip
    for shape, functions in calls.items():
        for call in functions:
            leaf = weight.expand(shape).clone().requires_grad_()
            turned = leaf.detach().mT.contiguous().mT.requires_grad_()
            (got,), (expected,) = (torch.autograd.grad(call(w).float().square().sum(), w) for w in (leaf, turned))
            assert got.stride() == leaf.stride()
            assert expected.stride() == turned.stride()
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].batched and CASES[name].differentiable])
def test_gradients_through_vmap(name):
    """torch.func: grad of vmap, one more transform around the rule for batches."""
    public = getattr(laneloom, name)
    x, *rest = CASES[name].arguments(9)
    if name == "quantized_matmul":
        rest = [laneloom.QuantizedWeight(rest[0], rest[1], "uint4", 32, rest[2])]
    rest = [] if name == "transpose" else rest[: 1 + (name in ("gemm_chain", "flash_attention", "grouped_matmul"))]
    samples = torch.stack([x, x * 0.5])

    def loss(x):
        return public(x, *rest).double().square().sum()

    def whole(samples):
        return torch.vmap(lambda x: public(x, *rest))(samples).double().square().sum()

    got = torch.func.grad(whole)(samples)
    torch.testing.assert_close(got, torch.stack([torch.func.grad(loss)(x) for x in samples]))


def test_vmap_over_nothing():
    """What a batch of none gives has the shape of one element's result."""
    cubes, eye, q = random(0, 5, 2, 2, 2, dtype=WIDE), torch.eye(2, dtype=WIDE), random(1, 0, 2, 3, 16)
    assert torch.vmap(lambda x: laneloom.transform3d(x, eye))(cubes).shape == cubes.shape
    assert torch.vmap(laneloom.transform3d, (None, 0))(cubes[:, 0], cubes[:, 0, 0]).shape == (0, 0, 2, 2, 2)
    _, lse = torch.vmap(lambda q: laneloom.flash_attention(q, q, q, return_lse=True), 1)(q)
    assert lse.shape == (0, 1, 2, 3)
    a, b = random(3, 4), random(4, 2)
    rows = torch.vmap(lambda scale: laneloom.gemm(a, b, scale_a=scale))(torch.ones(0, 3))
    assert rows.shape == (0, 3, 2)


def test_vmap_of_a_bias_beside_batches():
    """The batched axis of a bias stands before the products' own batch axes, also where both have one length."""
    a, b, bias = random(2, 3, 4, 5), random(5, 6, seed=1), random(3, 6, seed=2)
    got = torch.vmap(lambda bias: laneloom.gemm(a, b, bias=bias))(bias)
    torch.testing.assert_close(got, torch.stack([laneloom.gemm(a, b, bias=x) for x in bias]))


def test_decoding_compiles():
    """It is an operator only where something looks; then it has the same values."""
    arguments = CASES["attention_decode"].arguments(9)
    q, k, v, lengths = arguments
    expected, _ = torch.ops.laneloom.attention_decode(*arguments)
    compiled = torch.compile(laneloom.attention_decode, fullgraph=True, dynamic=True, backend="aot_eager")
    for function in (laneloom.attention_decode, compiled):
        assert torch.equal(function(q, k, v, cache_lengths=lengths), expected)


@pytest.mark.parametrize("name", ["matmul", "gemm", "transform3d", "transpose"])
def test_gradients_of_each_sample(name):
    """torch.func: vmap of grad through the public function."""
    case, public = CASES[name], getattr(laneloom, name)
    x, *rest = case.arguments(9)
    rest = [] if name == "transpose" else rest[:1]
    samples = torch.stack([x, x * 0.5])

    def loss(x):
        return public(x, *rest).square().sum()

    got = torch.vmap(torch.func.grad(loss))(samples)
    for sample, gradient in zip(samples, got, strict=True):
        leaf = sample.clone().requires_grad_()
        loss(leaf).backward()
        torch.testing.assert_close(gradient, leaf.grad)


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].writes])
def test_out_is_refused_inside_vmap(name):
    x, *rest = CASES[name].arguments(9)
    with pytest.raises(UnsupportedError, match=r"inside torch\.vmap"):
        torch.vmap(lambda x: operator(name)(x, *rest))(torch.stack([x, x]))


@pytest.mark.parametrize("name", [name for name in RETURNING if name != "flash_attention_backward"])
def test_autocast(name):
    """Products lower fp32 operands to autocast's dtype, each call to the one in force; the others stay as they are."""
    case, arguments = CASES[name], CASES[name].arguments(9)
    wide = tuple(x.float() if i in case.autocast else x for i, x in enumerate(arguments))
    expected = operator(name)(*arguments)
    with torch.autocast("cpu", HALF):
        got = operator(name)(*wide)
        if case.autocast:
            mixed = tuple(arguments[i] if i == 0 else x for i, x in enumerate(wide))
            torch.testing.assert_close(operator(name)(*mixed), got, rtol=0, atol=0)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def test_autocast_gradients_return_to_fp32():
    a, b = (random(n, 16, seed=n, dtype=torch.float32).requires_grad_() for n in (9, 16))
    with torch.autocast("cpu", torch.bfloat16):
        c = laneloom.matmul(a, b)
        assert c.dtype == torch.bfloat16
        # whoever says how to multiply fp32 gets that; RDNA has no such schedule
        with pytest.raises(UnsupportedError, match="3xbf16"):
            laneloom.matmul(a, b, precision="3xbf16")
    c.sum().backward()
    assert a.grad.dtype == b.grad.dtype == torch.float32
    expected = torch.ones(9, 16, dtype=torch.bfloat16) @ b.detach().bfloat16().mT
    torch.testing.assert_close(a.grad, expected.float())


def test_gradcheck_in_fp64():
    x, t = (random(*shape, seed=i, dtype=WIDE).requires_grad_() for i, shape in enumerate([(2, 2, 2, 2), (3, 2, 2)]))
    assert torch.autograd.gradcheck(laneloom.transform3d, (x, t), fast_mode=True)
    assert torch.autograd.gradgradcheck(laneloom.transform3d, (x, t), fast_mode=True)
    a, b, c = (random(*shape, seed=i, dtype=WIDE).requires_grad_() for i, shape in enumerate([(2, 3, 4), (4, 5), (5,)]))
    assert torch.autograd.gradcheck(laneloom.matmul, (a, b), fast_mode=True)

    def product(a, b, c, bias):
        alpha = 0.5 if EVERYTHING else 1.0  # which gradients of products alone have too; 0.5: test_gemm.py
        return laneloom.gemm(a, b, c, alpha=alpha, beta=2.0, bias=bias, activation="silu")

    assert torch.autograd.gradcheck(product, (a, b, c, c.detach().clone().requires_grad_()), fast_mode=True)


def test_groups_compile():
    """Traced without a look at where they end: one graph, the same bits."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b = torch.empty(7, 16, dtype=HALF), torch.empty(3, 16, 24, dtype=HALF)
        ends = torch.empty(3, dtype=torch.int32)
        out = torch.ops.laneloom.grouped_matmul(a, b, ends)
        assert (out.shape, out.dtype, out.is_contiguous()) == ((7, 24), HALF, True)
        assert torch.ops.laneloom.grouped_matmul(a, b, ends, torch.float32).dtype == torch.float32
        with pytest.raises(ArgumentError, match="expected"):
            torch.ops.laneloom.grouped_matmul(a, b.mT, ends)
    compiled = torch.compile(laneloom.grouped_matmul, fullgraph=True, backend="eager")
    for ends in ([2, 5, 7], [0, 7, 7]):
        operands = random(7, 16), random(3, 16, 24), torch.tensor(ends, dtype=torch.int32)
        assert torch.equal(compiled(*operands), laneloom.grouped_matmul(*operands))


@pytest.mark.parametrize("shapes", [((0, 4), (3, 4, 2)), ((3, 4, 2), (2, 0)), ((0, 4), (0, 4, 2)), ((2, 5, 0), (0, 3))])
def test_gradients_of_nothing_summed_over_a_batch(shapes):
    a, b = (torch.ones(shape, dtype=HALF, requires_grad=True) for shape in shapes)
    expected = torch.autograd.grad((a @ b).sum(), (a, b))
    with laneloom.emulated("gfx1151"):
        got = torch.autograd.grad(laneloom.matmul(a, b).sum(), (a, b))
    torch.testing.assert_close(got, expected)

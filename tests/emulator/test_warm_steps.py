"""Calls met before, as on a GPU: gradients of prepared steps, operators through the dispatcher, `patched` products.

CPU tensors say that they are on the current GPU, so that they have keys; the emulator runs what the keys find.
"""

from __future__ import annotations

import pytest
from sampled import in_turn

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from watching import Watching  # noqa: E402

import laneloom  # noqa: E402
import laneloom.pytorch  # noqa: E402
from laneloom.errors import UnsupportedError  # noqa: E402
from laneloom.ops import warm  # noqa: E402
from laneloom.ops.attention import torch_op as torch_attention  # noqa: E402
from laneloom.ops.gemm_chain import torch_op as torch_chain  # noqa: E402
from laneloom.ops.matmul import torch_gemm, torch_op  # noqa: E402
from laneloom.ops.operators import Operator  # noqa: E402
from laneloom.ops.warm import WarmCalls  # noqa: E402
from laneloom.pytorch import patch  # noqa: E402

HALF = torch.float16
MODULES = (torch_attention, torch_chain, torch_op, torch_gemm)


def random(*shape, seed=0, dtype=HALF):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "get_device", lambda x: 0, raising=False)
    monkeypatch.setattr(warm, "current_device", lambda: 0)
    with laneloom.emulated("gfx1151") as emulation:
        forget()
        yield emulation
        forget()


def forget():
    for x in (x for module in MODULES for x in vars(module).values()):
        if isinstance(x, Operator):
            x._calls.clear()
        elif isinstance(x, WarmCalls):
            x._runs.clear()
    patch._memories.clear()


def gradients(function, operands, lay, **keep):
    leaves = [x.clone().requires_grad_() for x in operands]
    out = function(*leaves)
    return torch.autograd.grad(out, leaves, lay(random(*out.shape, seed=7, dtype=out.dtype)), **keep)


#: how the incoming gradient lies
INCOMING = {
    "dense": lambda grad: grad,
    "one row": lambda grad: grad[..., :1, :].expand_as(grad),
    "transposed": lambda grad: grad.mT.contiguous().mT,
    "shifted": lambda grad: torch.empty(grad.numel() + 1, dtype=grad.dtype)[1:].view(grad.shape).copy_(grad),
}


def pair():
    """As the operands of test_torch_operators.py, whose kernels are the same."""
    return random(9, 16), random(16, 16, seed=1)


def heads(n):
    return tuple(random(1, 2, n, 16, seed=i) for i in range(3))


def attend_packed(q, k, v):
    starts = torch.tensor([0, 3, 9], dtype=torch.int32)
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    return laneloom.flash_attention(q, k, v, cu_seqlens_q=starts, max_seqlen_q=6)


#: function -> its operands, and the module that makes its gradients
FUNCTIONS = {
    "attention": (laneloom.flash_attention, heads(9), torch_attention),
    "causal": (lambda q, k, v: laneloom.flash_attention(q, k, v, causal=True), heads(9), torch_attention),
    "LSE": (lambda q, k, v: laneloom.flash_attention(q, k, v, return_lse=True)[1], heads(9), torch_attention),
    "packed": (attend_packed, heads(9), torch_attention),
    "chain": (laneloom.gemm_chain, (*pair(), random(16, 16, seed=2)), torch_chain),
    "chain of a batch": (laneloom.gemm_chain, (random(2, 9, 16), pair()[1], random(2, 16, 16, seed=2)), torch_chain),
    "chain with an addend": (
        lambda a, b, c, d: laneloom.gemm_chain(a, b, c, d, alpha0=0.5, alpha1=2.0, beta1=0.25),
        (*pair(), random(16, 16, seed=2), random(16, seed=3)), torch_chain,
    ),
    "one of a chain": (lambda b: laneloom.gemm_chain(pair()[0], pair()[1], b), (random(16, 16),), torch_chain),
    "matmul": (laneloom.matmul, pair(), torch_op),
    "fp32": (lambda a, b: laneloom.matmul(a, b, out_dtype=torch.float32), pair(), torch_op),
    "one of two": (lambda b: laneloom.matmul(random(9, 16), b), pair()[1:], torch_op),
    "batch": (laneloom.matmul, (random(2, 9, 16), pair()[1]), torch_op),
    "broadcast": (laneloom.matmul, (random(2, 1, 9, 16), random(3, 16, 16, seed=1)), torch_op),
    "alpha": (lambda a, b: laneloom.gemm(a, b, alpha=0.5), pair(), torch_gemm),
    "alpha, two batches": (
        lambda a, b: laneloom.gemm(a, b, alpha=0.5), (random(2, 9, 16), random(2, 16, 16, seed=1)), torch_gemm),
    "linear of a batch": (
        lambda x, w, bias: laneloom.gemm(x, w.mT, bias=bias), (random(2, 9, 16), pair()[1], random(16, seed=2)),
        torch_gemm,
    ),
    "relu": (lambda a, b: laneloom.gemm(a, b, activation="relu"), pair(), torch_gemm),
    "gelu": (lambda a, b: laneloom.gemm(a, b, activation="gelu"), pair(), torch_gemm),
    "silu": (lambda a, b: laneloom.gemm(a, b, activation="silu"), pair(), torch_gemm),
    "every term": (
        lambda a, b, c, bias: laneloom.gemm(a, b, c, beta=0.5, alpha=2.0, bias=bias, activation="gelu"),
        (*pair(), random(16, seed=2), random(16, seed=3)), torch_gemm,
    ),
    "scales": (
        lambda a, b: laneloom.gemm(a, b, scale_a=random(9, seed=4, dtype=torch.float32), activation="silu"),
        pair(), torch_gemm,
    ),
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize(
    ("name", "incoming"),
    [
        (name, incoming)
        for n, name in enumerate(FUNCTIONS)
        for incoming in ("dense", *in_turn(n, *(how for how in INCOMING if how != "dense")))
    ],
)
def test_prepared_steps_have_the_bits_of_the_operators(emulated, name, incoming):
    function, operands, module = FUNCTIONS[name]
    with Watching():
        expected = gradients(function, operands, INCOMING[incoming])
    table = module._warm_backward if module is torch_attention else module._differentiate
    assert module is torch_attention or not table._runs
    table._runs.clear()
    for _ in range(2):
        for got, truth in zip(gradients(function, operands, INCOMING[incoming]), expected, strict=True):
            assert torch.equal(got, truth)
        assert len(table._runs) == 1


def test_numbers_come_with_each_call(emulated):
    for alpha, beta in ((0.5, 0.25), (-2.0, 3.0)):
        function = lambda a, b, c: laneloom.gemm(a, b, c, alpha=alpha, beta=beta, activation="silu")  # noqa: B023, E731
        operands = (*pair(), random(16, seed=2))
        with Watching():
            expected = gradients(function, operands, INCOMING["dense"])
        for got, truth in zip(gradients(function, operands, INCOMING["dense"]), expected, strict=True):
            assert torch.equal(got, truth)
    assert len(torch_gemm._differentiate._runs) == 1


def test_second_derivatives_are_recorded(emulated):
    a, b = (random(3, 3, seed=i, dtype=torch.float64).requires_grad_() for i in range(2))
    laneloom.matmul(a, b).sum().backward()
    assert torch_op._differentiate._runs
    assert torch.autograd.gradgradcheck(laneloom.matmul, (a, b), fast_mode=True)


def test_operators_through_the_dispatcher_find_what_functions_prepared(emulated):
    a, b = (x.requires_grad_() for x in pair())
    expected = laneloom.matmul(a, b)
    for call in (torch.ops.laneloom.matmul, torch.ops.laneloom.matmul.default):
        out = call(a, b)
        assert torch.equal(out, expected)
        assert type(out.grad_fn).__name__ == type(expected.grad_fn).__name__
    assert len(torch_op.matmul_operator._calls) == len(torch_op._warm) == 1


#: products by torch's functions, what laneloom runs for them
PRODUCTS = {
    "matmul": lambda a, w, bias: torch.matmul(a, w.mT),
    "at": lambda a, w, bias: a @ w.mT,
    "method": lambda a, w, bias: a.mm(w.mT),
    "bmm": lambda a, w, bias: torch.bmm(a[None], w.mT[None]),
    "linear": lambda a, w, bias: F.linear(a, w),
    "linear_bias": lambda a, w, bias: F.linear(a, w, bias),
}


def call_three_times(call, operands, expected, recorded):
    for _ in range(3):
        got = call(*operands)
        assert got.requires_grad == recorded
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
def test_patched_products_met_before(emulated, name, recorded):
    call = PRODUCTS[name]
    operands = [x.requires_grad_(recorded) for x in (random(9, 16), random(16, 16, seed=1), random(16, seed=2))]
    expected = call(*operands)
    with laneloom.patched(always=True) as p:
        call_three_times(call, operands, expected, recorded)
    (entry,) = p.report().entries
    assert (entry.routed, entry.calls, len(p._memory.met)) == (True, 3, 1)
    assert len(emulated.launches) == 3


def test_patched_attention_goes_backward_past_the_dispatcher(emulated):
    expected = gradients(lambda q, k, v: laneloom.flash_attention(q, k, v, causal=True), heads(9), INCOMING["dense"])
    forget()
    with laneloom.patched(always=True) as p:
        for _ in range(2):
            got = gradients(
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), heads(9), INCOMING["dense"])
            assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))
    assert p.report().routed == 2
    assert len(torch_attention.attention_backward_operator._calls) == 1


#: attentions by torch's function: how, and how many heads of keys
ATTENTIONS = {
    "plain": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), 2),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5), 2),
    "shared": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None, 0.0, enable_gqa=True), 1),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_patched_attention_met_before(emulated, name, recorded):
    call, shared = ATTENTIONS[name]
    q, k, v = heads(9)
    operands = [x.clone().requires_grad_(recorded) for x in (q, k[:, :shared], v[:, :shared])]
    expected = call(*operands)
    with laneloom.patched(always=True) as p:
        call_three_times(call, operands, expected, recorded)
        torch.use_deterministic_algorithms(True)
        try:
            call(*operands)
        finally:
            torch.use_deterministic_algorithms(False)
        F.scaled_dot_product_attention(*operands, torch.ones(9, 9, dtype=torch.bool), enable_gqa=True)
    assert [(e.routed, e.calls) for e in p.report().entries] == [(True, 4), (False, 1)]
    assert len(p._memory.met) == 1
    assert len(emulated.launches) == 4


def test_second_derivatives_of_attention_met_before(emulated):
    def second(x):
        (first,) = torch.autograd.grad(F.scaled_dot_product_attention(x, x, x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    x = heads(9)[0].requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):  # torch's fast attention has no second derivative
        expected = second(x.detach().double().requires_grad_()).half()
    with laneloom.patched(always=True) as p:
        for _ in range(2):
            torch.testing.assert_close(second(x), expected, atol=2e-2, rtol=2e-2)
    assert p.report().routed == 2


def test_patched_is_not_asked_about_what_operators_look_at(emulated, monkeypatch):
    q, k, v = (x.requires_grad_() for x in heads(9))
    seen, ask = [], patch.Patched.__torch_function__
    monkeypatch.setattr(patch.Patched, "__torch_function__", lambda *args: (seen.append(args[1]), ask(*args))[1])
    with laneloom.patched(always=True):
        for _ in range(2):
            seen.clear()
            out = F.scaled_dot_product_attention(q, k, v)
            out.backward(out)
            with torch.no_grad():
                torch_op.matmul_operator(q, k.mT, None, None, None, None, None)
    assert torch.Tensor.data_ptr not in seen
    assert F.scaled_dot_product_attention in seen


def test_patched_keeps_what_it_kept_before(emulated):
    vector = random(16)
    with laneloom.patched(always=True) as p:
        for _ in range(3):
            torch.matmul(random(9, 16), vector)
    (entry,) = p.report().entries
    assert (entry.routed, entry.reason, entry.calls, len(p._memory.met)) == (False, "a vector", 3, 1)
    assert not emulated.launches


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("call", [laneloom.matmul, torch.ops.laneloom.matmul, lambda a, b: laneloom.transpose(a)])
def test_a_tangent_is_refused_not_lost(emulated, call, recorded):
    a, b = pair()
    call(a, b)
    with forward_ad.dual_level():
        call(a, b)
        with pytest.raises(UnsupportedError, match="no forward-mode derivative"):
            call(forward_ad.make_dual(a.clone().requires_grad_(recorded), torch.ones_like(a)), b)
    with pytest.raises(UnsupportedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: call(x, b), (a,), (torch.ones_like(a),))


def test_a_tangent_inside_another_transform_is_refused(emulated):
    a, b = pair()
    with pytest.raises(UnsupportedError, match=r"^matmul: no forward-mode derivative"):
        torch.func.hessian(lambda x: laneloom.matmul(x, b).square().sum())(a)


def test_patched_asks_again_where_something_looks(emulated):
    """Autocast, forward-mode derivatives and an inner context decide anew about a product that was met before."""
    a, b = pair()
    with laneloom.patched(always=True) as outer:
        torch.matmul(a, b)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.matmul(a, b).dtype == torch.bfloat16
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(a, torch.ones_like(a))
            tangent = forward_ad.unpack_dual(torch.matmul(dual, b)).tangent
        with laneloom.patched() as inner:
            torch.matmul(a, b)
    torch.testing.assert_close(tangent, torch.ones_like(a) @ b)
    assert [(e.routed, e.calls) for e in inner.report().entries] == [(False, 1)]
    found = {(e.problem, e.reason): e.calls for e in outer.report().entries}
    kept = ("9x16 16x16", "forward-mode derivatives")
    assert found == {("9x16x16 fp16 nn", "always"): 1, ("9x16x16 bf16 nn", "always"): 1, kept: 1}

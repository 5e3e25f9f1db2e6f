"""laneloom.patched while gradients are computed: what checkpoints compute again, and backward formulas of Python."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.attention import execute  # noqa: E402
from laneloom.ops.operators import is_watched  # noqa: E402
from laneloom.pytorch import measurements, routing  # noqa: E402

X = torch.arange(5 * 16, dtype=torch.float16).reshape(5, 16) % 7 - 3
W = torch.arange(16 * 16, dtype=torch.float16).reshape(16, 16) % 5 - 2


@pytest.fixture(autouse=True)
def gfx1201():
    with laneloom.emulated("gfx1201") as emulation:
        yield emulation


def layer(x, w):
    return F.gelu(F.linear(x, w)) @ w


def by_method(loss, leaves):
    loss.backward()
    return [x.grad for x in leaves]


def by_function(loss, leaves):
    torch.autograd.backward([loss])
    return [x.grad for x in leaves]


def by_grad(loss, leaves):
    return torch.autograd.grad(loss, leaves)


def gradients_of(function, backward):
    leaves = [t.clone().requires_grad_() for t in (X, W)]
    return backward(function(*leaves).float().square().sum() / 1e4, leaves)


@pytest.mark.parametrize("backward", [by_method, by_function, by_grad])
def test_a_checkpoint_computes_again_what_it_computed(backward):
    def kept(x, w):
        return checkpoint(layer, x, w, use_reentrant=False)

    expected = gradients_of(kept, backward)
    with laneloom.patched(always=True) as p:
        got = gradients_of(kept, backward)
    assert (p.report().routed, p.report().kept) == (4, 0)  # two products, twice
    torch.testing.assert_close(got, type(got)(expected), rtol=4e-3, atol=4e-3)


def test_a_reentrant_checkpoint_computes_again_where_it_computed():
    def kept(x, w):
        return checkpoint(layer, x, w, use_reentrant=True)

    with laneloom.patched(always=True) as p:
        gradients_of(kept, by_method)
    assert (p.report().routed, p.report().kept) == (4, 0)


class Product(torch.autograd.Function):
    """X W with a backward formula of its own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.mT, x.mT @ grad


def test_backward_formulas_of_python_are_routed():
    expected = gradients_of(Product.apply, by_method)
    with laneloom.patched(always=True) as p:
        got = gradients_of(Product.apply, by_method)
    assert p.report().routed == 3
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3)


def test_the_inner_context_decides_in_the_backward_too():
    with laneloom.patched(always=True) as outer, laneloom.patched() as inner:
        gradients_of(Product.apply, by_method)
    assert (inner.report().kept, inner.report().routed) == (3, 0)
    assert not outer.report().entries


def test_in_a_thread_that_autograd_gives_its_modes():
    """Backward of a GPU's tensors runs in a thread of autograd's, which has torch's modes and no Python of ours."""
    outer, inner = laneloom.patched(always=True), laneloom.patched()

    def elsewhere(*modes):
        for mode in modes:
            TorchFunctionMode.__enter__(mode)
        try:
            X @ W
        finally:
            for mode in modes:
                TorchFunctionMode.__exit__(mode, None, None, None)

    for modes in ((outer,), (outer, inner)):
        thread = threading.Thread(target=elsewhere, args=modes)
        thread.start()
        thread.join()
    assert (outer.report().routed, outer.report().kept) == (1, 0)
    assert (inner.report().routed, inner.report().kept) == (0, 1)


def test_the_operators_of_a_backward_go_past_the_dispatcher():
    """Which takes tens of microseconds for each."""
    watched = []

    class Asking(Product):
        @staticmethod
        def backward(ctx, grad):
            watched.append((is_watched(), torch._C._len_torch_function_stack()))
            return ctx.saved_tensors

    with laneloom.patched(always=True):
        gradients_of(Asking.apply, by_method)
    with TorchFunctionMode():
        assert is_watched()
    assert watched == [(False, 1)]


def test_a_second_derivative_of_attention_by_every_way_in():
    q = torch.linspace(-1, 1, 2 * 5 * 16).reshape(1, 2, 5, 16).half().requires_grad_()

    def penalty(backward):
        loss = F.scaled_dot_product_attention(q, q, q).float().square().sum()
        if backward is torch.autograd.grad:
            (gradient,) = torch.autograd.grad(loss, q, create_graph=True)
        else:
            backward(loss, inputs=[q], create_graph=True)
            gradient, q.grad = q.grad, None
        return torch.autograd.grad(gradient.float().square().sum(), q)[0]

    with laneloom.patched(always=True) as p:
        results = [penalty(b) for b in (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)]
    assert p.report().routed == 3
    assert torch.isfinite(results[0]).all()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def attended(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.4, enable_gqa=True).float().square().sum()


def penalty_of(wanted):
    """The second derivative where `wanted` of q, k and v have gradients and the others do not."""

    def run(q, k, v):
        leaves = [x.clone().requires_grad_(name in wanted) for name, x in zip("qkv", (q, k, v), strict=True)]
        those = [x for x in leaves if x.requires_grad]
        first = torch.autograd.grad(attended(*leaves), those, create_graph=True)
        return torch.autograd.grad(sum(x.float().square().sum() for x in first), those)

    return run


def under_autocast(q, k, v):
    with torch.autocast("cpu", torch.float16):
        return penalty_of("q")(q, k, v)


#: derivatives for which torch records what laneloom's backward computes, of q [3, B, H, N, D] or of q, k, v
RECORDED = {
    "of q": penalty_of("q"),
    "of k and v": penalty_of("kv"),
    "under autocast": under_autocast,
    "func.grad": torch.func.grad(attended),
    "func.vjp": lambda q, k, v: torch.func.vjp(attended, q, k, v)[1](torch.tensor(1.0)),
    "func.jacrev": lambda q, k, v: torch.func.jacrev(
        lambda k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True)[0, 0, 1, :2])(k),
    "second": torch.func.grad(lambda q, k, v: torch.func.grad(attended)(q, k, v).float().square().sum()),
    "per sample": lambda q, k, v: torch.func.vmap(torch.func.grad(attended, argnums=(0, 1)), in_dims=(0, None, None))(
        torch.stack([q, 2 * q]), k, v),
}  # fmt: skip


@pytest.mark.parametrize("how", RECORDED)
def test_derivatives_of_attention_that_torch_records(how):
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, heads, 5, 16, generator=generator).half() for heads in (4, 2, 2))
    with sdpa_kernel(SDPBackend.MATH):  # torch's fast attention has no second derivative
        expected = RECORDED[how](q, k, v)
    with laneloom.patched(always=True) as p:
        found = RECORDED[how](q, k, v)
    assert p.report().routed == 1
    one = isinstance(found, torch.Tensor)
    for got, truth in zip([found] if one else found, [expected] if one else expected, strict=True):
        assert (got - truth).float().norm() < 2e-3 * truth.float().norm()


@pytest.mark.parametrize("attend", ["patched", "compiled", "own"])
@pytest.mark.parametrize(("on", "warns"), [(True, False), (True, True), (False, False)])
def test_deterministic_algorithms_are_asked_for(attend, on, warns, monkeypatch):
    """torch's switch reaches attention's backward, which on Hopper adds by atomics otherwise."""
    q = torch.linspace(-1, 1, 2 * 5 * 16).reshape(1, 2, 5, 16).half().requires_grad_()
    seen, prepare = [], execute.prepare_backward
    monkeypatch.setattr(execute, "prepare_backward", lambda *args, **how: seen.append(how) or prepare(*args, **how))
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(on, warn_only=warns)
    function = laneloom.flash_attention if attend == "own" else F.scaled_dot_product_attention
    if attend == "compiled":
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    try:
        with laneloom.patched(always=True):
            function(q, q, q).float().sum().backward()
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    assert seen == [{"deterministic": on and not warns}]


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, laneloom.flash_attention])
def test_deterministic_algorithms_may_be_asked_for_after_the_forward(attend, monkeypatch):
    q = torch.linspace(-1, 1, 2 * 5 * 16).reshape(1, 2, 5, 16).half().requires_grad_()
    seen, prepare = [], execute.prepare_backward
    monkeypatch.setattr(execute, "prepare_backward", lambda *args, **how: seen.append(how) or prepare(*args, **how))
    with laneloom.patched(always=True):
        loss = attend(q, q, q).float().sum()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        loss.backward()
    finally:
        torch.use_deterministic_algorithms(before)
    assert seen == [{"deterministic": True}]


def test_gradients_by_deterministic_algorithms_were_not_measured():
    q = torch.linspace(-1, 1, 2 * 5 * 16).reshape(1, 2, 5, 16).half()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with laneloom.patched() as p:
            F.scaled_dot_product_attention(q, q, q)
            F.scaled_dot_product_attention(q.requires_grad_(), q, q)
    finally:
        torch.use_deterministic_algorithms(before)
    assert ["deterministic" in entry.reason for entry in p.report().entries] == [False, True]


def test_the_host_of_both_directions_is_weighed(monkeypatch):
    """Three products of 10 us, 15 by torch: the host starts one in 9, and all of them in 40 or in 50."""
    sizes = {"nt": (1, 5, 16, 16), "nn": (1, 5, 16, 16), "tn": (1, 16, 16, 5)}
    rows = tuple(measurements.Measurement("matmul", f"fp16 {kind}", of, 15.0, 1.5) for kind, of in sizes.items())
    for host in (40.0, 50.0):
        table = measurements.Table(rows, {"matmul": (8.0, 9.0), "matmul with gradients": (30.0, host)})
        monkeypatch.setattr(routing, "table_of", lambda name, table=table: table)
        for captured in (False, True):
            with laneloom.patched(captured=captured) as p:
                F.linear(X.clone().requires_grad_(), W.clone().requires_grad_())
            assert [e.routed for e in p.report().entries] == [captured or host < 45]
            leaves = X.clone().requires_grad_(), W.clone().requires_grad_()
            request = routing.product_request("linear", *leaves, None)
            assert routing.decide(request, "cpu", always=False, traced=True).routed  # three calls in a graph: 27 us
            with laneloom.patched(captured=captured) as p:
                F.linear(X, W)
            assert [e.routed for e in p.report().entries] == [True]
    for host, routed in ((14.0, True), (20.0, False)):  # of a forward in layers, where it takes longer than in a loop
        table = measurements.Table(rows, {"matmul": (8.0, 9.0), "matmul in layers": (13.0, host)})
        monkeypatch.setattr(routing, "table_of", lambda name, table=table: table)
        with laneloom.patched() as p:
            F.linear(X, W)
        assert [e.routed for e in p.report().entries] == [routed]
        request = routing.product_request("linear", X, W, None)
        assert routing.decide(request, "cpu", always=False, traced=True).routed

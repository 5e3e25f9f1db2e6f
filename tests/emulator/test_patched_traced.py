"""laneloom.patched in graphs: torch.export, make_fx, and contexts that are entered in code that is compiled."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import laneloom  # noqa: E402

X, W = torch.ones(3, 4, dtype=torch.float16), torch.ones(4, 5, dtype=torch.float16)
OURS = ["laneloom.matmul"]


@pytest.fixture(autouse=True)
def gfx1201():
    torch._dynamo.reset()
    with laneloom.emulated("gfx1201") as emulation:
        yield emulation


def called(graph):
    return [str(node.target) for node in graph.nodes if "laneloom" in str(node.target)]


def compiled(function, into):
    def backend(module, inputs):
        into.append(called(module.graph))
        return module.forward

    return torch.compile(function, backend=backend, fullgraph=True)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    model = nn.Linear(4, 5).half()
    rows = torch.export.Dim("rows", min=2)
    with laneloom.patched(always=True) as p:
        program = torch.export.export(model, (X,), dynamic_shapes=({0: rows},), strict=strict)
    assert called(program.graph) == ["laneloom.gemm.default"]
    (entry,) = p.report().entries
    assert (entry.problem, entry.routed, entry.calls) == ("3x5x4 fp16 nt", True, 0)
    longer = torch.cat([X, X])
    torch.testing.assert_close(program.module()(longer), model(longer))


def test_make_fx_with_symbolic_sizes():
    with laneloom.patched(always=True):
        traced = make_fx(lambda x, w: x @ w, tracing_mode="symbolic")(X, W)
    assert called(traced.graph) == ["laneloom.matmul.default"]


def test_entered_in_compiled_code():
    context = laneloom.patched(always=True)

    def made_here(x, w):
        with laneloom.patched(always=True):
            return x @ w

    def made_outside(x, w):
        with context:
            return x @ w

    graphs = []
    for function in (made_here, made_outside, context(torch.matmul)):
        torch.testing.assert_close(compiled(function, graphs)(X, W), X @ W)
    assert graphs == [OURS] * 3


def test_the_inner_context_decides_in_compiled_code():
    def nested(x, w):
        with laneloom.patched(always=True):
            with laneloom.patched():  # nothing is measured on this GPU
                left = x @ w
            return left, x @ w

    graphs = []
    compiled(nested, graphs)(X, W)
    assert graphs == [OURS]
    for outer in (False, True):
        with laneloom.patched(always=outer), laneloom.patched(always=not outer):
            compiled(torch.matmul, graphs)(X, W)
        torch._dynamo.reset()
    assert graphs == [OURS, OURS, []]


def test_other_options_compile_again():
    graphs = []
    product = compiled(lambda x, w: x @ w, graphs)
    for always in (True, True, False):
        with laneloom.patched(always=always):
            product(X, W)
    assert graphs == [OURS, []]


def test_options_of_attention_that_depend_on_sizes():
    """Of which torch itself makes no graph: it stops, or breaks it, at a bool that is a symbol."""

    def attend(q):
        return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=q.shape[2] > 4)

    with laneloom.patched(always=True):
        attend_compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="eager")
        for n in (7, 6, 4, 3):
            q = torch.randn(1, 2, n, 16, dtype=torch.float16)
            torch.testing.assert_close(attend_compiled(q), attend(q))

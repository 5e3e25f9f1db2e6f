"""Calls met before: their keys, and the way past torch's dispatcher. Tensors of the CPU stand for those of a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from laneloom.errors import ArgumentError  # noqa: E402
from laneloom.ops import warm  # noqa: E402
from laneloom.ops.operators import Composed, complete, mark_written  # noqa: E402
from laneloom.ops.warm import WarmCalls, key_of  # noqa: E402


class OnGpu(torch.Tensor):
    """A tensor that says it is on the first GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def get_device(self):
        return 0


def tensor(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype).as_subclass(OnGpu)


@pytest.fixture
def gpu(monkeypatch):
    """Tensors of class OnGpu are plain ones, and the first GPU is the current one."""
    monkeypatch.setattr(warm, "PLAIN_TENSORS", frozenset((OnGpu,)))
    monkeypatch.setattr(warm, "current_device", lambda: 0)


def test_what_a_key_holds(gpu):
    x = tensor(6, 4)
    assert key_of((x, None, 1.5, "relu")) == key_of((tensor(6, 4), None, 1.5, "relu"))
    shifted, turned = (y.as_subclass(OnGpu) for y in (torch.ones(25)[1:].view(6, 4), torch.ones(4, 6).mT))
    others = (
        (tensor(4, 6), None, 1.5, "relu"), (turned, None, 1.5, "relu"), (shifted, None, 1.5, "relu"),
        (tensor(6, 4, dtype=torch.float64), None, 1.5, "relu"), (tensor(6, 4).requires_grad_(), None, 1.5, "relu"),
        (x, x, 1.5, "relu"), (x, None, 2.5, "relu"), (x, None, 1.5, None), (x, None, 1.5),
    )  # fmt: skip
    keys = {key_of((x, None, 1.5, "relu")), *map(key_of, others)}
    assert len(keys) == 1 + len(others)
    assert None not in keys
    with torch.no_grad():
        assert key_of((x, None, 1.5, "relu")) not in keys


def test_what_has_no_key(gpu, monkeypatch):
    x, z = tensor(6, 4), tensor(6, 4, dtype=torch.complex64)
    assert key_of((x, torch.ones(3))) is None  # a class that is not plain here
    assert key_of((z,)) is not None
    conjugate, negative = (y.as_subclass(OnGpu) for y in (z.conj(), z.conj().imag))
    assert conjugate.is_conj()
    assert negative.is_neg()
    assert key_of((conjugate,)) is key_of((x, conjugate)) is key_of((negative,)) is key_of((x, negative)) is None
    assert key_of((x, [1])) is key_of((x, object())) is None
    zeros = torch._efficientzerotensor((6, 4)).as_subclass(OnGpu)
    assert key_of((zeros,)) is key_of((x, zeros)) is None
    assert key_of((tensor(0, 4),)) is not None, "nothing to read"
    escaped = []
    torch.func.grad(lambda a: (escaped.append(a), a.sum())[1])(torch.ones(3))
    assert key_of((x, escaped[0])) is None
    monkeypatch.setattr(warm, "current_device", lambda: 1)
    assert key_of((x,)) is None


def test_tensors_of_the_cpu_never_ask_for_the_current_device(monkeypatch):
    def current_device() -> int:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(warm, "current_device", current_device)
    assert key_of((torch.ones(3),)) is None


def test_a_table_starts_afresh(gpu, monkeypatch):
    monkeypatch.setattr(warm, "MOST_CALLS", 3)
    calls = WarmCalls(lambda x, n: lambda x, n: n)
    assert [calls(tensor(2), n) for n in range(5)] == list(range(5))
    assert len(calls) == 2


prepared = []


def _prepare(x, factor):
    prepared.append(factor)
    return lambda x, _: (x * factor).as_subclass(OnGpu)


def _remember(ctx, inputs, output):
    ctx.factor = inputs[1]


def _gradients(ctx, grad):
    return grad * ctx.factor if ctx.needs_input_grad[0] else None, None


def _write(x, out):
    out.copy_(x)
    mark_written(out)


def _operator(name, body, schema, writes=(), **rules):
    definition = torch.library.custom_op(f"laneloom::{name}", body, mutates_args=writes, schema=schema)
    definition.register_fake(lambda x, *_: torch.empty_like(x))
    return complete(definition, batched=lambda *_: (None, None), **rules)


_calls = WarmCalls(_prepare)
scaled = _operator(
    "test_scaled", lambda x, factor=1.0: _calls(x, factor), "(Tensor x, float factor=1.) -> Tensor",
    remember=_remember, gradients=_gradients, warm=_calls,
)  # fmt: skip
copied = _operator("test_copied_out", _write, "(Tensor x, Tensor(a!) out) -> ()", writes=("out",))


@pytest.fixture
def fresh(gpu):
    prepared.clear()
    _calls.clear()
    scaled._calls.clear()
    copied._calls.clear()


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """The operators that reach torch's dispatcher."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_the_second_call_prepares_nothing(fresh):
    for _ in range(3):
        assert torch.equal(scaled(tensor(3), 2.0), 2 * tensor(3))
    assert prepared == [2.0]
    assert torch.equal(scaled(tensor(3), 3.0), 3 * tensor(3))
    assert prepared == [2.0, 3.0]


def test_gradients_by_what_was_prepared(fresh):
    for _ in range(2):
        x = tensor(3).requires_grad_()
        scaled(x, 2.0).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0))
        with torch.no_grad():
            assert not scaled(x, 2.0).requires_grad
    assert len(prepared) == 2  # with gradients and without


def test_who_looks_sees_the_operator(fresh):
    scaled(tensor(3), 2.0)
    with Seen() as seen:
        scaled(torch.ones(3), 2.0)
        scaled(tensor(3), 2.0)
    assert [name for name in seen.names if "test_scaled" in name] == ["test_scaled.default"] * 2
    assert torch.equal(torch.func.grad(lambda x: scaled(x, 2.0).sum())(torch.ones(3)), torch.full((3,), 2.0))


def test_through_the_dispatcher(fresh):
    """What was prepared is found in front of torch's rule for gradients; defaults are filled in."""
    operator = torch.ops.laneloom.test_scaled
    for _ in range(2):
        assert torch.equal(operator(tensor(3), 2.0), 2 * tensor(3))
        x = tensor(3).requires_grad_()
        operator(x, 2.0).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert prepared == [2.0, 2.0]  # without gradients and with
    assert torch.equal(operator(tensor(3)), tensor(3))
    assert torch.equal(scaled(tensor(3), 1.0), tensor(3))
    assert prepared == [2.0, 2.0, 1.0]


def test_through_the_dispatcher_where_something_looks(fresh):
    with Seen() as seen:
        x = tensor(3).requires_grad_()
        torch.ops.laneloom.test_scaled(x, 2.0).sum().backward()
    assert "test_scaled.default" in seen.names
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert not scaled._calls


def _make_tripled(prepared, x):
    step = scaled.prepared(x, 3.0) if prepared else lambda x, _: scaled(x, 3.0)
    made.append(prepared)
    return lambda x: step(x, 3.0)


made = []


def test_a_formula_of_operators(fresh):
    """Prepared once, unless its own gradients are recorded or something looks."""
    tripled = Composed(_make_tripled)
    x = tensor(3).requires_grad_()
    made.clear()
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(tripled(x), torch.full((3,), 3.0))
        assert made == [True]
        with Seen() as seen:
            assert torch.equal(tripled(x), torch.full((3,), 3.0))
        assert "test_scaled.default" in seen.names
    tripled(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))
    assert made == [True, False, False]


def test_a_result_in_memory_of_the_callers(fresh):
    x, out = tensor(3), torch.zeros(3).as_subclass(OnGpu)
    before = out._version
    copied(x, out)
    assert torch.equal(out, x)
    assert out._version > before
    with pytest.raises(ArgumentError, match="out: expected none where gradients are recorded"):
        copied(x.requires_grad_(), out)
    with pytest.raises(ArgumentError, match="out: expected none where gradients are recorded"):
        copied(torch.ones(3, requires_grad=True), torch.zeros(3))

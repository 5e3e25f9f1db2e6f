"""Grouped products: what a call refuses, and what its launch is given, call after call, on the CPU's tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from matmul_products import cut  # noqa: E402

import laneloom  # noqa: E402
from laneloom.device.pieces import PiecesLaunch  # noqa: E402
from laneloom.errors import ArgumentError, UnsupportedError  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops import warm  # noqa: E402
from laneloom.ops.matmul import grouped, torch_grouped  # noqa: E402
from laneloom.ops.matmul.kernels import hopper_cluster  # noqa: E402


def operands(seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    found = {
        "a": torch.randn(96, 64, generator=generator).bfloat16(),
        "b": torch.randn(3, 64, 32, generator=generator).bfloat16(),
        "ends": torch.tensor([10, 10 + seed, 96], dtype=torch.int32),
    }
    return found | changes


def forget():
    torch_grouped._warm.clear()
    torch_grouped.grouped_operator._calls.clear()


@pytest.fixture
def launches(monkeypatch):
    """Hopper, whose kernels are the operations' meaning; what was prepared and what was launched."""
    found = {"prepared": [], "launched": []}

    def prepare(problem, config, gpu):
        assert config.grouped == problem.grouped != problem.k_grouped == config.k_grouped
        assert config.why_invalid(problem, gpu) is None
        found["prepared"].append(problem)

        def launch(a, b, out, *terms):
            *absent, ends = terms
            assert absent == [None] * 6
            found["launched"].append((a.data_ptr(), b.data_ptr(), ends.data_ptr(), out.data_ptr()))
            for x, matrix in ((a, problem.a), (b, problem.b)):  # as the problem says
                assert x.stride()[-2:] == matrix.strides[2:]
                assert x.data_ptr() % 16 == 0
            first = 0
            for group, end in enumerate(ends.tolist()):
                if problem.grouped:
                    out[first:end] = (a[first:end].double() @ b[group].double()).to(out.dtype)
                else:
                    out[group] = (a[:, first:end].double() @ b[first:end].double()).to(out.dtype)
                first = end

        return launch

    monkeypatch.setattr(hopper_cluster, "prepare", prepare)
    monkeypatch.setattr(PiecesLaunch, "__call__", lambda self, *sources: list(map(cut, self._copies, sources)))
    monkeypatch.setattr("laneloom.device.prepared.prepared_on", lambda prepare, *rest: prepare(*rest[:3]))
    monkeypatch.setattr(grouped, "active_gpu", lambda: get_gpu("sm_90a"))
    monkeypatch.setattr(grouped, "gpu_for_tensor", lambda name, x: get_gpu("sm_90a"))
    monkeypatch.setattr(torch.Tensor, "get_device", lambda x: 0, raising=False)
    monkeypatch.setattr(warm, "current_device", lambda: 0)
    forget()
    yield found
    forget()


def meaning(a, b, ends):
    groups = torch.bucketize(torch.arange(a.shape[0]), ends, right=True)
    return torch.einsum("mk,mkn->mn", a.double(), b.double()[groups])


@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_a_call_met_before_is_launched_with_its_own_operands(launches, out_dtype):
    for seed in (1, 2, 3):
        given = operands(seed)
        out = laneloom.grouped_matmul(*given.values(), out_dtype=out_dtype)
        assert out.dtype == (out_dtype or torch.bfloat16)
        assert torch.equal(out, meaning(**given).to(out.dtype))
        assert launches["launched"][-1] == (*(x.data_ptr() for x in given.values()), out.data_ptr())
    assert (len(launches["prepared"]), len(launches["launched"])) == (1, 3)


def test_a_result_that_is_given(launches):
    given, out = operands(4), torch.full((96, 32), float("nan"), dtype=torch.float16)
    assert laneloom.grouped_matmul(**given, out=out) is out
    assert torch.equal(out, meaning(**given).half())
    assert laneloom.grouped_matmul(**given, out=out, out_dtype=torch.float16) is out
    empty = laneloom.grouped_matmul(**operands(a=torch.empty(0, 64).bfloat16()))
    assert empty.shape == (0, 32)


def anyhow(x):
    """Ways to lie: as it is, the transpose, pitches of no 16 bytes, between 16 bytes, one row for all, every other."""
    wide = x.new_zeros(*x.shape[:-1], x.shape[-1] + 3)
    wide[..., 1:-2] = x
    yield x
    yield x.mT.contiguous().mT
    yield wide[..., 1:-2]
    yield x[..., :1, :].expand(*x.shape)
    yield torch.stack([x, x], -1)[..., 0]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("of_k", [False, True])
def test_operands_that_lie_anyhow(launches, of_k, kind):
    """Those that the copy engine cannot read, or that groups of rows cut between 16 bytes, are copied first."""
    given = operands(3)
    if of_k:
        given = {"a": given["a"].mT.contiguous(), "b": given["a"][:, :24].contiguous(), "ends": given["ends"]}
    a, b = given["a"].to(kind), given["b"].to(kind)
    for x in anyhow(a):
        for y in anyhow(b):
            first, parts = 0, []
            for group, end in enumerate(given["ends"].tolist()):
                part = slice(first, end)
                parts.append(x[:, part].double() @ y[part].double() if of_k else x[part].double() @ y[group].double())
                first = end
            truth = torch.stack(parts) if of_k else torch.cat(parts)
            got = laneloom.grouped_matmul(x, y, given["ends"], out_dtype=torch.float32)
            assert torch.equal(got, truth.float())
    problems = launches["prepared"]
    assert {p.a.major for p in problems} == ({"n", "t"} if of_k and kind == torch.bfloat16 else {"n"})
    assert {p.b.major for p in problems} == ({"n", "t"} if kind == torch.bfloat16 else {"t"})


REFUSED = {
    "numbers": ({"ends": [10, 20, 96]}, ArgumentError, "ends: expected a torch tensor, got list"),
    "a word": ({"out_dtype": "fp32"}, ArgumentError, "out_dtype: expected a torch dtype, got 'fp32'"),
    "rows of matrices": ({"b": torch.zeros(3, 32, 32).bfloat16()}, ArgumentError, r"b: expected \[G, 64, N\]"),
    "a number": ({"a": torch.tensor(1.0).bfloat16()}, ArgumentError, r"b: expected \[G, K, N\] or \[K, N\] for"),
    "64-bit ends": ({"ends": torch.tensor([10, 20, 96])}, ArgumentError, "ends: expected 3 contiguous int32"),
    "gradients": (
        {"a": torch.zeros(96, 64).bfloat16().requires_grad_(), "out": torch.empty(96, 32).bfloat16()}, ArgumentError,
        "out: expected none where gradients are recorded"),
    "int32": ({"out_dtype": torch.int32}, UnsupportedError, "out_dtype: expected"),
    "a result of another shape": ({"out": torch.empty(95, 32).bfloat16()}, ArgumentError, r"expected \[96, 32\]"),
    "a result of another dtype": (
        {"out": torch.empty(96, 32).half(), "out_dtype": torch.float32}, ArgumentError, "of torch.float32 on cpu, got"),
    "one element for all": (
        {"out": torch.empty(1, 1).bfloat16().expand(96, 32)}, ArgumentError, "under which no elements overlap"),
    "no columns": (
        {"a": torch.empty(96, 0).bfloat16(), "b": torch.empty(3, 0, 32).bfloat16()}, ArgumentError,
        "at least one column"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(launches, case):
    changes, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        laneloom.grouped_matmul(**operands(), **changes) if not changes.keys() & operands().keys() else (
            laneloom.grouped_matmul(**operands(**changes)))
    assert not launches["launched"]


def test_a_result_that_shares_memory(launches):
    given = operands()
    with pytest.raises(ArgumentError, match="memory of its own"):
        laneloom.grouped_matmul(**given, out=given["a"][:, :32])

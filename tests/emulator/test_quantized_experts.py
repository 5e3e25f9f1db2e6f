"""laneloom.quantized_matmul of rows in groups on emulated GPUs, in strict mode."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import rarely, without

import laneloom
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.errors import ArgumentError, InvalidConfigError

torch = pytest.importorskip("torch")
from random_weights import judge_groups  # noqa: E402
from test_quantized_matmul import KINDS, weight_of  # noqa: E402

import laneloom.pytorch  # noqa: E402  registers the operators

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

NEWER = ("gfx1250",) if parse_version(triton_version()) >= (3, 9) else ()  #: which older Tritons do not know
GPUS = ("gfx1151", "gfx1201", "gfx942", *NEWER, *rarely("gfx1100", "gfx90a", "gfx908", "gfx950"))
#: rows of all groups, and where each one's end: empty ones, tiles that two share, ends past the last row, rows in none
ENDS = ((19, (0, 5, 5, 17)), (40, (3, 30, 60, 70)), (3, (1, 1, 2, 3)), (70, (70,)), (5, (0, 0, 0)))


def numbers(ends) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


@pytest.fixture
def gfx1151():
    torch.manual_seed(5)
    with laneloom.emulated("gfx1151", strict=True, seed=7) as emulation:
        yield emulation


@pytest.mark.covering
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kind", [*list(KINDS)[:5:2], *rarely(*list(KINDS)[1::2], "fp8")])
def test_groups(name, kind):
    """By the plan; rows that are in no group stay as they are."""
    torch.manual_seed(3)
    dtype_w, scale, zeros, group = KINDS[kind]
    for m, ends in without(ENDS, *(ENDS[3:4] if name in ("gfx1201", "gfx1250") else ())):  # of the largest tile
        weight = weight_of(dtype_w, 37, 200, group, len(ends), scale=scale, zeros=zeros)
        bias = torch.randn(len(ends), 37)
        x, out = torch.randn(m, 200).bfloat16(), torch.full((m, 37), torch.nan)
        with laneloom.emulated(name, strict=True, seed=3) as emulation:
            assert laneloom.quantized_matmul(x, weight, ends=numbers(ends), bias=bias, out=out) is out
        last = judge_groups(out, x, weight, ends, bias)
        assert out[last:].isnan().all()
        assert [launch.kernel for launch in emulation.launches] == ["quantized_tiles"]


def test_many_groups_of_a_row(gfx1151):
    """The plan takes one row at a time where groups have few."""
    ends = sorted(np.random.default_rng(1).integers(0, 30, 129).tolist())
    weight, x = weight_of("int4", 20, 64, 32, 129), torch.randn(30, 64).half()
    got = laneloom.quantized_matmul(x, weight, ends=numbers(ends))
    judge_groups(got, x, weight, ends)


@pytest.mark.parametrize("tile", ["block_m=1,block_n=16", "block_m=16,block_n=16", "block_m=32,block_n=32"])
def test_any_tile_and_any_strides(gfx1151, tile):
    x = torch.randn(64, 100).half()[:, ::2].T  # [50, 64]
    whole = weight_of("uint4", 21, 64, 32, 6, zeros=True)
    weight = laneloom.QuantizedWeight(
        whole.values[::2], whole.scales[::2], "uint4", 32, whole.zeros[1:2].expand(3, -1, -1))  # fmt: skip
    bias, out = torch.randn(21, 3).half().T, torch.full((21, 50), torch.nan).bfloat16().T
    ends = (17, 18, 49)
    laneloom.quantized_matmul(
        x, weight, ends=numbers(ends), bias=bias, out=out, config=f"tiles:{tile},block_k=32,num_warps=1,stages=1")
    assert judge_groups(out, x, weight, ends, bias) == 49
    assert out[49:].isnan().all()


def test_a_result_that_is_an_operand(gfx1151):
    """Rows in no group stay, though the result is made elsewhere."""
    weight, x = weight_of("int8", 64, 64, None, 2), torch.randn(9, 64).half()
    before = x.clone()
    laneloom.quantized_matmul(x, weight, ends=numbers((2, 7)), out=x)
    judge_groups(x, before, weight, (2, 7))
    assert torch.equal(x[7:], before[7:])


def test_arrays(gfx1151):
    weight = weight_of("fp4", 20, 64, 32, 3, scale="e8m0")
    taken = laneloom.QuantizedWeight(weight.values.numpy(), weight.scales.numpy(), "fp4", 32)
    x, bias = np.random.default_rng(1).standard_normal((9, 64)).astype(np.float16), np.ones((3, 20), np.float32)
    ends = np.array([4, 0, 4, 0, 8, 0], np.int32)[::2]
    out = np.full((9, 20), np.nan, np.float32)
    assert laneloom.quantized_matmul(x, taken, ends=ends, bias=bias, out=out) is out
    last = judge_groups(torch.from_numpy(out), torch.from_numpy(x), weight, ends.tolist(), torch.from_numpy(bias))
    assert last == 8
    assert np.isnan(out[8:]).all()


def test_torch_compile_and_vmap(gfx1151):
    weight, x = weight_of("int4", 16, 64, 32, 3), torch.randn(9, 64).half()

    def product(x, ends):
        return laneloom.quantized_matmul(x, weight, ends=ends)

    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
    for ends in ((1, 4, 9), (0, 9, 9)):
        expected = product(x, numbers(ends))
        assert torch.equal(compiled(x, numbers(ends)), expected)
        judge_groups(expected, x, weight, ends)
    torch._dynamo.reset()
    both = torch.stack([x, 2 * x])
    got = torch.vmap(product, (0, None))(both, numbers((1, 4, 9)))
    assert torch.equal(got[1], product(2 * x, numbers((1, 4, 9))))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(gfx1151, compiled):
    """dX and dbias of each group beside FP64; rows of no group get zeros, whatever the gradient there."""
    weight, ends = weight_of("uint4", 24, 64, 32, 3, zeros=True), (1, 1, 7)
    x = torch.randn(9, 64).half().requires_grad_()
    bias = torch.randn(3, 24).half().requires_grad_()
    grad = torch.full((9, 24), torch.nan).half()
    grad[:7] = torch.randn(7, 24)

    def product(x, bias):
        return laneloom.quantized_matmul(x, weight, ends=numbers(ends), bias=bias)

    call = torch.compile(product, fullgraph=True, backend="aot_eager") if compiled else product
    call(x, bias).backward(grad)
    torch._dynamo.reset()
    wide, d = weight.dequantize(torch.float16).double(), grad.double()
    for group, rows in ((0, slice(0, 1)), (1, slice(1, 1)), (2, slice(1, 7))):
        sums = d[rows].abs() @ wide[group].abs()
        assert ((x.grad[rows].double() - d[rows] @ wide[group]).abs() <= 2.0**-11 * (sums + 1)).all()
        assert ((bias.grad[group].double() - d[rows].sum(0)).abs() <= 2.0**-11 * (d[rows].abs().sum(0) + 1)).all()
    assert (x.grad[7:] == 0).all()


X, ENDS_OF_TWO = torch.ones(3, 64).half(), numbers((1, 3))
REFUSALS = [
    (ArgumentError, r"ends: expected x \[M, K\] and a weight \[G, N, K\] beside it, got \(3, 64\), \(16, 64\)", X,
     lambda: weight_of("int4", 16, 64), {}),
    (ArgumentError, r"ends: expected 3 numbers of int32, a group's each, got int32 of \(2,\)", X,
     lambda: weight_of("int4", 16, 64, 32, 3), {}),
    (ArgumentError, r"ends: expected 2 numbers of int32, a group's each, got int64 of \(2,\)", X, None,
     {"ends": ENDS_OF_TWO.long()}),
    (ArgumentError, "ends: expected a torch tensor as the others are, got list", X, None, {"ends": [1, 3]}),
    (ArgumentError, r"ends: expected contiguous numbers, got stride \(2,\)", X, None,
     {"ends": torch.zeros(4, dtype=torch.int32)[::2]}),
    (ArgumentError, r"bias: expected shape \(2, 16\), one for each column of each group, got \(16,\)", X, None,
     {"bias": torch.ones(16)}),
    (ArgumentError, "x: expected at least one column of rows in groups", X[:, :0],
     lambda: weight_of("int8", 16, 0, None, 2), {}),
    (InvalidConfigError, "no parts of K of rows in groups, got 2", X, None,
     {"config": "tiles:block_m=16,block_n=16,block_k=32,split_k=2"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "x", "weight", "given"), REFUSALS)
def test_refusals(gfx1151, kind, message, x, weight, given):
    weight = weight_of("int4", 16, 64, 32, 2) if weight is None else weight()
    with pytest.raises(kind, match=f"^.*{message}"):
        laneloom.quantized_matmul(x, weight, **{"ends": ENDS_OF_TWO} | given)


def test_no_rows_and_no_columns(gfx1151):
    for m, n in ((0, 16), (3, 0)):
        got = laneloom.quantized_matmul(X[:1].expand(m, 64), weight_of("int4", n, 64, 32, 2), ends=numbers((0, m)))
        assert got.shape == (m, n)
    assert not gfx1151.launches

"""laneloom.gemm_chain on emulated GPUs: shapes, strides, batches, scalars, gradients, the full output against FP64.

Most operands share few shapes, strides and options, because a kernel is compiled for each.
"""

from __future__ import annotations

import numpy as np
import pytest
from sampled import rarely

import laneloom
from laneloom import verify
from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.ops.gemm_chain import execute, reference
from laneloom.ops.gemm_chain.config import ChainConfig

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.usefixtures("poisoned_allocations"), pytest.mark.turning("gpu")]

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
BLOCKS = ChainConfig(schedule="wmma", block_m=32, block_n0=32, block_n1=32, block_k=32, num_warps=2)


@pytest.fixture(params=["gfx1151", "gfx1201", "gfx1250"])
def gpu(request):
    with laneloom.emulated(request.param, strict=True) as emulation:
        yield emulation


@pytest.fixture
def gfx1201():
    with laneloom.emulated("gfx1201") as emulation:
        yield emulation


def operands(m, k0, n0, n1, batch=(), dtype=torch.float16):
    return tuple(torch.randn(*batch, *shape).to(dtype) for shape in ((m, k0), (k0, n0), (n0, n1)))


def exact(x):
    return None if x is None else x.detach().double().numpy()


def check(a0, b0, b1, c1=None, **words):
    config = words.pop("config", None)
    d1 = laneloom.gemm_chain(a0, b0, b1, c1, **words, config=config)
    assert d1.dtype is a0.dtype
    truth = reference.chain(*map(exact, (a0, b0, b1, c1)), **words, dtype=NAMES[a0.dtype])
    assert d1.shape == truth.d1.shape
    share = reference.worst_share(exact(d1), truth)
    assert share <= 1, f"error is {share:.2f} of the budget"
    return d1


@pytest.mark.turning("gpu", 2)
@pytest.mark.covering
@pytest.mark.parametrize("sizes", [
    (1, 1, 1, 1), (3, 5, 7, 2), (67, 37, 45, 70), (65, 33, 31, 129), (1, 300, 64, 1),
    *rarely((64, 32, 64, 64), (3000, 8, 16, 8)),
])  # fmt: skip
def test_shapes_that_keep_p(gpu, sizes):
    check(*operands(*sizes))
    assert [record.kernel for record in gpu.launches] == ["wmma_chain"]


@pytest.mark.turning("gpu", 2)
@pytest.mark.covering
@pytest.mark.parametrize("sizes", [(33, 70, 97, 31), (64, 32, 64, 64), (31, 16, 33, 40)])
def test_shapes_block_by_block(gpu, sizes):
    """P's columns come in blocks; D1's columns are shared by programs, which compute P again."""
    check(*operands(*sizes), config=BLOCKS)
    assert {record.kernel for record in gpu.launches} == {"wmma_chain"}


def test_wide_chains_are_two_products(gfx1201):
    check(*operands(20, 24, 130, 140))
    assert [record.kernel for record in gfx1201.launches] == ["wmma_matmul", "wmma_matmul"]
    check(*operands(20, 24, 130, 120))
    assert gfx1201.launches[-1].kernel == "wmma_chain"


def test_blocks_have_as_many_steps_as_an_instruction():
    narrow = ChainConfig(schedule="wmma", block_m=16, block_n0=16, block_n1=16, block_k=32, num_warps=1)
    a0, b0, b1 = operands(16, 16, 16, 16)
    with laneloom.emulated("gfx1250"), pytest.raises(InvalidConfigError, match="32 steps at once"):
        laneloom.gemm_chain(a0, b0, b1, config=narrow)
    with laneloom.emulated("gfx1201"):
        check(a0, b0, b1, config=narrow)


def test_wide_chains_on_cdna_5():
    with laneloom.emulated("gfx1250", strict=True) as emulation:
        check(*operands(20, 24, 130, 140))
    assert [record.kernel for record in emulation.launches] == ["matmul_dot", "matmul_dot"]


def test_terms(gpu):
    a0, b0, b1 = operands(40, 24, 20, 48, dtype=torch.bfloat16)
    for c1 in (torch.randn(40, 48), torch.randn(48).bfloat16()):
        check(a0, b0, b1, c1, alpha0=0.5, alpha1=-1.25, beta1=0.75)


def test_gfx1100():
    with laneloom.emulated("gfx1100", strict=True):
        check(*operands(40, 24, 20, 48))


def test_nothing_to_sum(gfx1201):
    c1 = torch.randn(5, 9)
    for sizes in ((5, 0, 4, 9), (5, 4, 0, 9)):
        assert not laneloom.gemm_chain(*operands(*sizes)).any()
        assert torch.equal(laneloom.gemm_chain(*operands(*sizes), c1, beta1=2), (2 * c1).half())
    for sizes in ((0, 4, 4, 9), (5, 4, 4, 0)):
        a0, b0, b1 = operands(*sizes)
        assert laneloom.gemm_chain(a0, b0, b1).shape == (sizes[0], sizes[3])
    a0, b0, b1 = operands(5, 4, 4, 9)
    a0[0, 0] = torch.nan
    assert not laneloom.gemm_chain(a0, b0, b1, alpha0=0).any()
    c1[0, 0] = torch.nan
    assert not gfx1201.launches
    assert laneloom.gemm_chain(b0, b0, b1, c1[:4], beta1=0).isfinite().all()


def test_split_and_order_give_the_same_bits(gpu):
    """Who computes a column, with or without P's whole row, changes no bit of it here: each sum has one order."""
    a0, b0, b1 = operands(40, 48, 32, 100)
    kept = ChainConfig(schedule="wmma", block_m=32, block_n0=32, block_n1=32, block_k=32, num_warps=2, keep=True)
    want = check(a0, b0, b1, config=kept)
    for config in (BLOCKS, ChainConfig(**{**vars(kept), "split": 3})):
        assert torch.equal(laneloom.gemm_chain(a0, b0, b1, config=config), want)


def test_strides(gfx1201):
    m, k0, n0, n1 = 40, 24, 32, 48
    a0, b0, b1 = operands(m, k0, n0, n1)
    want = check(a0, b0, b1)
    for turned in ((0, 1, 2), *rarely((0,), (1,), (2,))):
        views = [x.mT.contiguous().mT if i in turned else x for i, x in enumerate((a0, b0, b1))]
        assert torch.equal(laneloom.gemm_chain(*views), want)
    apart = [torch.nn.functional.pad(x, (1, 2))[:, 1:-2] for x in (a0, b0, b1)]
    assert torch.equal(laneloom.gemm_chain(*apart), want)
    spread = [x.repeat_interleave(2, 1)[:, ::2] for x in (a0, b0, b1)]
    assert torch.equal(laneloom.gemm_chain(*spread), want)
    check(a0[:, :1].expand(m, k0), b0, b1)


def test_batches(gfx1201):
    shapes = ((9, 16), (16, 8), (8, 24))
    cases = (
        ((3,), (3,), (3,)), ((3,), (), ()), ((), (3,), ()), ((2, 1), (3,), (2, 3)), ((2, 2, 2), (2, 1, 2), (2,)),
    )  # fmt: skip
    for batches in cases:
        check(*(torch.randn(*batch, *shape).half() for batch, shape in zip(batches, shapes, strict=True)))
    before = len(gfx1201.launches)
    check(torch.randn(4, 9, 16).half(), *operands(9, 16, 8, 24)[1:])
    assert len(gfx1201.launches) == before + 1
    assert gfx1201.launches[-1].grid[0] == 1, "a batch that B0 and B1 do not have becomes rows"


def test_out(gfx1201):
    a0, b0, b1 = operands(40, 24, 20, 40)
    want = laneloom.gemm_chain(a0, b0, b1, b1.new_ones(40, 40), beta1=0.5)
    out = torch.ones(40, 40).half()
    assert laneloom.gemm_chain(a0, b0, b1, out, beta1=0.5, out=out) is out
    assert torch.equal(out, want)
    room = torch.full((40, 80), torch.nan).half()
    laneloom.gemm_chain(a0, b0, b1, b1.new_ones(40, 40), beta1=0.5, out=room[:, ::2])
    assert torch.equal(room[:, ::2], want)
    assert room[:, 1::2].isnan().all()
    wide = operands(40, 48, 20, 48)  # D1 has A0's shape
    expected = laneloom.gemm_chain(*wide)
    laneloom.gemm_chain(*wide, out=wide[0])
    assert torch.equal(wide[0], expected)


def test_nothing_beyond_the_output_is_written(gpu):
    a0, b0, b1 = operands(33, 20, 17, 45)
    out = verify.Guarded((33, 45), "fp16")
    arrays = [x.numpy() for x in (a0, b0, b1)]
    execute.chain_into(*arrays, None, out.array, ("fp16", ""), execute.Factors(), gpu.gpu, None)
    assert np.isfinite(out.array).all()
    assert out.untouched_outside()


def test_infinities_and_nan_stay_in_their_row(gpu):
    a0, b0, b1 = operands(33, 20, 17, 45)
    clean = laneloom.gemm_chain(a0, b0, b1)
    a0[7, 19], a0[9, 0] = torch.inf, torch.nan
    dirty = laneloom.gemm_chain(a0, b0, b1)
    rows = [i for i in range(33) if i not in (7, 9)]
    assert torch.equal(dirty[rows], clean[rows])
    assert not dirty[[7, 9]].isfinite().any()


def test_p_is_rounded_after_alpha0(gfx1201):
    """A0 B0 is beyond fp16 here; alpha0 brings it back before the rounding."""
    a0, b0, b1 = (torch.full(shape, 300.0).half() for shape in ((16, 16), (16, 16), (16, 16)))
    assert laneloom.gemm_chain(a0, b0, b1, alpha0=2.0**-14, alpha1=2.0**-6).isfinite().all()
    assert laneloom.gemm_chain(a0, b0, b1, alpha1=2.0**-20).isinf().all()


def test_arrays(gfx1201):
    tensors = operands(40, 24, 20, 48)
    arrays = [x.numpy() for x in tensors]
    want = laneloom.gemm_chain(*tensors).numpy()
    assert (laneloom.gemm_chain(*arrays) == want).all()
    out = np.zeros((40, 48), np.float16)
    assert laneloom.gemm_chain(*arrays, out=out) is out
    assert (out == want).all()
    assert (laneloom.gemm_chain(arrays[0][::-1], *arrays[1:]) == want[::-1]).all()


def test_gradients(gfx1201):
    leaves = [torch.randn(*s).half().requires_grad_() for s in ((2, 9, 16), (16, 8), (2, 8, 24), (24,))]
    d1 = laneloom.gemm_chain(*leaves, alpha0=0.5, alpha1=2.0, beta1=0.5)
    g = torch.randn(d1.shape).half()
    got = torch.autograd.grad(d1, leaves, g)
    a0, b0, b1, c1 = (x.detach().double().requires_grad_() for x in leaves)
    truth = torch.autograd.grad(2.0 * (0.5 * (a0 @ b0)) @ b1 + 0.5 * c1, (a0, b0, b1, c1), g.double())
    for mine, want in zip(got, truth, strict=True):
        # two roundings to fp16 on the way, of values that the largest one bounds
        assert (mine.double() - want).abs().max() <= 8 * 2.0**-11 * want.abs().max()


def test_second_derivatives_exist(gfx1201):
    a0, b0, b1 = (x.requires_grad_() for x in operands(8, 8, 8, 8))
    g, h = torch.randn(2, 8, 8).half()
    (da0,) = torch.autograd.grad(laneloom.gemm_chain(a0, b0, b1), a0, g, create_graph=True)
    da0.backward(h)
    assert b0.grad.isfinite().all()
    assert b0.grad.any()


def test_operator(gfx1201):
    a0, b0, b1 = (x.requires_grad_() for x in operands(16, 16, 16, 16))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (a0, b0, b1, None, 1.0, 1.0, 0.0, None)
    torch.library.opcheck(torch.ops.laneloom.gemm_chain.default, arguments, test_utils=tests)
    batched = torch.vmap(laneloom.gemm_chain, in_dims=(0, None, None))(a0.detach()[None], b0.detach(), b1.detach())
    assert torch.equal(batched[0], laneloom.gemm_chain(a0, b0, b1))


BAD = {
    "a0: expected at least 2 axes": (ArgumentError, lambda a, b, e: ((a[0], b, e), {})),
    "b0: expected 24 rows": (ArgumentError, lambda a, b, e: ((a, e, e), {})),
    "b1: expected 20 rows": (ArgumentError, lambda a, b, e: ((a, b, b), {})),
    "b1: expected batch axes": (ArgumentError, lambda a, b, e: ((a.expand(2, 9, 24), b, e.expand(3, 20, 8)), {})),
    "c1: expected a shape": (ArgumentError, lambda a, b, e: ((a, b, e, e), {"beta1": 1})),
    "b1: expected a0's dtype": (ArgumentError, lambda a, b, e: ((a, b, e.bfloat16()), {})),
    "a0: expected dtype": (UnsupportedError, lambda a, b, e: ((a.float(), b, e), {})),
    "b0: expected a torch tensor": (ArgumentError, lambda a, b, e: ((a, b.numpy(), e), {})),
    "alpha0: expected a finite": (ArgumentError, lambda a, b, e: ((a, b, e), {"alpha0": float("nan")})),
    "out: expected shape": (ArgumentError, lambda a, b, e: ((a, b, e), {"out": a})),
    "config: unknown knob": (ArgumentError, lambda a, b, e: ((a, b, e), {"config": "wmma:rows=3"})),
    "keep holds all of N0": (InvalidConfigError, lambda a, b, e: ((a, b, e), {"config": "wmma:block_n0=16,keep=True"})),
    "multiplies by wgmma": (InvalidConfigError, lambda a, b, e: ((a, b, e), {"config": "hopper"})),
}


@pytest.mark.parametrize("message", list(BAD))
def test_refusals(gfx1201, message):
    kind, call = BAD[message]
    arguments, words = call(*operands(9, 24, 20, 8))
    with pytest.raises(kind, match=message):
        laneloom.gemm_chain(*arguments, **words)

"""laneloom.transpose and laneloom.gemm_chain on a real GPU: every bit, and the full output against FP64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.gemm_chain import execute, reference  # noqa: E402
from laneloom.ops.gemm_chain.config import ChainConfig, plan  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.version.cuda is None, reason="needs an NVIDIA GPU"),
]

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(*shape: int, size: int = 2) -> torch.Tensor:
    kind = BITS[size]
    return torch.randint(torch.iinfo(kind).min, torch.iinfo(kind).max, shape, dtype=kind, device="cuda")


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_transpose(size):
    for shape in ((0, 3), (1, 1), (1, 999), (67, 131), (128, 128), (3, 257, 129), (3000, 3, 5), (2, 3, 40, 24)):
        x = bits(*shape, size=size)
        assert torch.equal(laneloom.transpose(x), x.mT), shape
    x = bits(4, 70, 90, size=size)
    for view in (x[:, ::2, ::3], x.mT, x[..., 3:43], x.transpose(0, 1), x[:1].expand(5, 70, 90), x[::2, 1:]):
        assert torch.equal(laneloom.transpose(view), view.mT)
    room = torch.full((90, 140), 7, dtype=x.dtype, device="cuda")
    laneloom.transpose(x[0], out=room[:, ::2])
    assert torch.equal(room[:, ::2], x[0].mT)
    assert bool((room[:, 1::2] == 7).all())


def test_transpose_beyond_32_bit_offsets():
    x = bits(3, (1 << 31) // 3 + 1000, size=1)
    y = laneloom.transpose(x)
    assert torch.equal(y[-100:], x[:, -100:].mT)
    assert torch.equal(y[:100], x[:, :100].mT)


def operands(m, k0, n0, n1, dtype, batch=()):
    shapes = ((m, k0), (k0, n0), (n0, n1))
    return tuple(torch.randn(*batch, *shape, device="cuda").to(dtype) for shape in shapes)


def share(got, a0, b0, b1, c1=None, **scalars):
    exact = [None if x is None else x.double().cpu().numpy() for x in (a0, b0, b1, c1)]
    name = "fp16" if a0.dtype is torch.float16 else "bf16"
    return reference.worst_share(got.double().cpu().numpy(), reference.chain(*exact, dtype=name, **scalars))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("sizes", "config"),
    [
        ((9000, 64, 64, 80), None), ((9001, 48, 112, 32), None), ((9000, 128, 320, 112), None),
        ((304, 96, 240, 256), ChainConfig(schedule="hopper", block_m=128, block_n1=128, block_k=64, num_warps=8)),
        ((130, 512, 64, 300), None), ((67, 37, 45, 70), None), ((40, 70, 300, 290), None),
    ],
)  # fmt: skip
def test_chain(dtype, sizes, config):
    a0, b0, b1 = operands(*sizes, dtype)
    c1 = torch.randn(sizes[3], device="cuda")
    scalars = {"alpha0": sizes[1] ** -0.5, "alpha1": -1.25, "beta1": 0.75}
    for views in ((a0, b0, b1), tuple(x.mT.contiguous().mT for x in (a0, b0, b1))):
        got = laneloom.gemm_chain(*views, c1, **scalars, config=config)
        assert share(got, a0, b0, b1, c1, **scalars) <= 1
        assert torch.equal(got, laneloom.gemm_chain(*views, c1, **scalars, config=config)), "the same bits twice"


def test_what_ran_was_fused():
    a0, b0, b1 = operands(20000, 64, 64, 64, torch.bfloat16)
    out = torch.empty(20000, 64, dtype=torch.bfloat16, device="cuda")
    problem = execute.problem_of(a0, b0, b1, None, out, "bf16", "")
    assert plan(problem, get_gpu("sm_90a")).schedule == "hopper"
    assert share(laneloom.gemm_chain(a0, b0, b1, out=out), a0, b0, b1) <= 1


def test_chain_batches_and_gradients():
    leaves = [torch.randn(*s, device="cuda").half().requires_grad_() for s in ((3, 3000, 64), (64, 48), (3, 48, 32))]
    d1 = laneloom.gemm_chain(*leaves, alpha0=0.125, alpha1=0.5)
    assert share(d1.detach(), *(x.detach() for x in leaves), alpha0=0.125, alpha1=0.5) <= 1
    g = torch.randn_like(d1)
    got = torch.autograd.grad(d1, leaves, g)
    a0, b0, b1 = (x.detach().double().requires_grad_() for x in leaves)
    truth = torch.autograd.grad(0.0625 * (a0 @ b0) @ b1, (a0, b0, b1), g.double())
    for mine, want in zip(got, truth, strict=True):
        assert (mine.double() - want).abs().max() <= 8 * 2.0**-11 * want.abs().max()

"""laneloom.compat.wmma_ops: the seed's module, its README's calls, and what it got wrong."""

from __future__ import annotations

import inspect
import re

import pytest

import laneloom
from laneloom.errors import ArgumentError
from laneloom.ops.matmul import reference
from laneloom.ops.matmul.presets import PRESETS

torch = pytest.importorskip("torch")
wmma_ops = pytest.importorskip("laneloom.compat.wmma_ops")

NAMES = (
    "matmul matmul_adaptive matmul_tiled matmul_kunroll matmul_noPrefetch matmul_highOcc matmul_quad matmul_native "
    "matmul_zerocopy matmul_asmOpt matmul_hilbert matmul_swizzled matmul_xor_optimized matmul_coop matmul_pingpong "
    "matmul_opt gemm gemm_adaptive gemm_inplace flash_attention"
).split()


@pytest.fixture(autouse=True)
def gfx1151():
    torch.manual_seed(0)
    with laneloom.emulated("gfx1151", strict=True, seed=2) as emulation:
        yield emulation


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def check(got, A, B, **terms) -> None:
    assert got.dtype == torch.float32
    c = terms.pop("C", None)
    arrays = (x.double().numpy() for x in (got, A, B))
    verdict = reference.judge_gemm(*arrays, "fp32", c=None if c is None else c.double().numpy(), **terms)
    assert verdict.ok, verdict


def test_every_name_is_there_with_its_arguments():
    assert [n for n in dir(wmma_ops) if re.match(r"(matmul|gemm|flash)", n)] == sorted(NAMES)
    assert list(inspect.signature(wmma_ops.gemm).parameters) == ["A", "B", "alpha", "beta", "C"]
    assert list(inspect.signature(wmma_ops.gemm_inplace).parameters) == ["A", "B", "C", "alpha", "beta"]
    signature = inspect.signature(wmma_ops.flash_attention)
    assert [p.default for p in signature.parameters.values()][3:] == [False, -1.0]


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("matmul") and n != "matmul_tiled"])
def test_each_function_runs_the_preset_of_its_name(name, monkeypatch):
    asked = []
    monkeypatch.setattr(wmma_ops, "_any_matmul", lambda *_, **more: asked.append(more))
    getattr(wmma_ops, name)(half(8, 8), half(8, 8))
    preset = name.removeprefix("matmul_").replace("matmul", "standard")
    assert asked == [{"out_dtype": torch.float32, "config": preset}]
    assert preset in PRESETS


def test_products_of_any_size():
    """N % 8, K % 8 and K % 16 == 8, where wmma_ops gave wrong columns, lost the tail or multiplied stale tiles."""
    for m, n, k in ((33, 31, 13), (64, 40, 24), (1, 1, 1)):
        A, B = half(m, k), half(k, n)
        check(wmma_ops.matmul(A, B), A, B)
    A, B = half(40, 33).T, half(64, 80)[:, ::2].T
    check(wmma_ops.matmul_tiled(A, B, 0), A, B)


def test_gemm():
    A, B, C = half(33, 17), half(17, 41), torch.randn(33, 41)
    check(wmma_ops.gemm(A, B, alpha=2.0, beta=0.5, C=C), A, B, alpha=2.0, beta=0.5, C=C)
    check(wmma_ops.gemm(A, B, 2.0, 0.5), A, B, alpha=2.0)  # no C: it counts as 0
    check(wmma_ops.gemm(A, B, C=C * torch.nan), A, B)
    check(wmma_ops.gemm_adaptive(A, B, beta=1.0, C=C), A, B, beta=1.0, C=C)


def test_gemm_in_place_of_a_c_that_is_not_contiguous():
    A, B, store = half(33, 17), half(17, 41), torch.randn(41, 66)
    C = store.T[::2]
    before = C.clone()
    assert wmma_ops.gemm_inplace(A, B, C, alpha=1.5, beta=0.3) is C
    check(C, A, B, alpha=1.5, beta=0.3, C=before)


def test_gradients():
    A, B = half(9, 7).requires_grad_(), half(7, 5).requires_grad_()
    grads = torch.autograd.grad(wmma_ops.matmul_kunroll(A, B).sum(), (A, B))
    assert torch.allclose(grads[0].float(), B.detach().float().sum(1).expand(9, 7), atol=1e-2)


def test_refusals():
    for message, call in (
        (r"A: expected a torch.float16 tensor \[M, K\], got \[2, 2\], torch.float32",
         lambda: wmma_ops.matmul(torch.zeros(2, 2), half(2, 2))),
        (r"B: expected a torch.float16 tensor \[K, N\], got \[1, 2, 2\]",
         lambda: wmma_ops.matmul(half(2, 2), half(1, 2, 2))),
        (r"config: expected 0, 1, 2 or 3, got 4", lambda: wmma_ops.matmul_tiled(half(2, 2), half(2, 2), 4)),
        (r"config: expected 0, 1, 2 or 3, got 1.0", lambda: wmma_ops.matmul_tiled(half(2, 2), half(2, 2), 1.0)),
        (r"C: expected a torch.float32 tensor, got torch.float16",
         lambda: wmma_ops.gemm(half(2, 2), half(2, 2), beta=1.0, C=half(2, 2))),
        (r"C: expected a tensor \[2, 3\], which is written, got NoneType",
         lambda: wmma_ops.gemm_inplace(half(2, 2), half(2, 3), None)),
        (r"C: expected a tensor \[2, 3\], which is written, got \[3\]",
         lambda: wmma_ops.gemm_inplace(half(2, 2), half(2, 3), torch.zeros(3))),
        (r"scale: expected a number, of which a negative one means 1 / sqrt\(D\), got None",
         lambda: wmma_ops.flash_attention(*half(3, 1, 1, 4, 16), scale=None)),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            call()


def test_flash_attention():
    """A negative scale is 1 / sqrt(D), and causal counts from the top left."""
    Q, K, V = half(1, 2, 20, 16), half(1, 2, 40, 16), half(1, 2, 40, 16)
    for causal, scale in ((False, -1.0), (True, -1.0), (True, 0.5)):
        got = wmma_ops.flash_attention(Q, K, V, causal, scale)
        options = {"causal": "top_left" if causal else False, "scale": 16**-0.5 if scale < 0 else scale}
        assert torch.equal(got, laneloom.flash_attention(Q, K, V, **options))

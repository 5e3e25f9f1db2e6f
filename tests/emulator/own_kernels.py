"""A small call of every RDNA kernel of laneloom's: what the mutation test and the orders of waves work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import laneloom


@dataclass(frozen=True)
class Case:
    """One kernel in one situation."""

    files: tuple[str, ...]  #: of ops/, the kernels that the call launches
    make: Callable[..., Callable[[], tuple[torch.Tensor, ...]]]  #: (seed, more loop iterations) -> the call
    launch: int = -1  #: which of the call's launches is the one in question
    caught: Counter = field(default_factory=Counter)  #: at least so many deletions of each kind must be caught
    step: int = 1  #: of so many mutants one is run, unless all are asked for


def _half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def _matmul(m: int, n: int, k: int, layout: str = "nn", config: str | None = None):
    def make(seed=0, more=0):
        torch.manual_seed(seed)
        b = _half(n, k + more).T if layout == "nt" else _half(k + more, n)
        a = _half(m, k + more)
        return lambda: (laneloom.matmul(a, b, config=config),)

    return make


def _gemm(k: int, activation: str):
    def make(seed=0, more=0):
        torch.manual_seed(seed)
        a, b, c, bias = _half(50, k + more if k else 0), _half(k + more if k else 0, 37), _half(50, 37), _half(37)
        return lambda: (laneloom.gemm(a, b, c, alpha=0.5, beta=-2, bias=bias, activation=activation),)

    return make


def _attention(backward: bool):
    def make(seed=0, more=0):
        torch.manual_seed(seed)
        q, k, v = (_half(1, 2, n, d).requires_grad_(backward) for n, d in ((40, 24), (50 + more, 24), (50 + more, 16)))
        gradient = _half(1, 2, 40, 16)

        def call():
            out = laneloom.flash_attention(q, k, v, causal=True)
            return torch.autograd.grad(out, (q, k, v), gradient) if backward else (out,)

        return call

    return make


_gradients = _attention(True)


def _transform3d(seed=0, more=0):
    torch.manual_seed(seed)
    x, matrix = torch.randn(3 + more, 5, 5, 5, dtype=torch.float64), torch.randn(5, 5, dtype=torch.float64)
    return lambda: (laneloom.transform3d(x, matrix),)


CASES = {
    # four waves, several K-tiles, no masks
    "matmul": Case(("matmul/wmma",), _matmul(256, 512, 96, "nt"), caught=Counter(wait=3, barrier=1)),
    # masks in every load and store
    "matmul, ragged": Case(("matmul/wmma",), _matmul(70, 37, 45), caught=Counter(wait=3, mask=1), step=7),
    "coop": Case(("matmul/wmma_coop",), _matmul(200, 150, 96, config="coop"), caught=Counter(wait=2), step=20),
    "pingpong": Case(
        ("matmul/wmma_pingpong",), _matmul(200, 150, 96, config="pingpong"), caught=Counter(wait=2, barrier=1), step=20
    ),
    "gemm": Case(("matmul/wmma",), _gemm(45, "gelu"), caught=Counter(wait=2, mask=1), step=15),
    "gemm without K": Case(("matmul/epilogue",), _gemm(0, "silu"), caught=Counter(wait=1, mask=1), step=2),
    "attention": Case(("attention/forward",), _attention(False), caught=Counter(wait=2), step=12),
    "attention, query's gradient": Case(("attention/backward",), _gradients, 1, Counter(wait=2), step=16),
    "attention, key's gradient": Case(("attention/backward",), _gradients, 2, Counter(wait=2), step=16),
    "transform3d": Case(("transform3d/rows",), _transform3d, caught=Counter(wait=3, mask=1), step=2),
}

"""Calls of transform3d, gemm_chain and transpose that nobody chose, each beside the same in FP64 (random_calls.py)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from random_calls import GUARD, NAMES, lying

import laneloom
from laneloom.verify import SMALLEST, UNIT_ROUNDOFF


def guarded(generator: random.Random, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    """Somewhere for a result to go, and what lies behind each of its rows."""
    wide = torch.full((*shape[:-1], shape[-1] + generator.choice((0, 1, 3, 8))), GUARD, device=device).to(dtype)
    return wide[..., : shape[-1]], wide[..., shape[-1] :]


@dataclass
class Transform:
    """A call of `transform3d`."""

    seed: int
    largest: int  #: K

    def check(self, device: str) -> None:
        """Make the call and hold it against FP64: each of three sums of K terms has sqrt(K) + 4 units."""
        g = random.Random(self.seed)
        torch.manual_seed(self.seed)
        k, batch = g.randint(1, self.largest), g.choice(((), (1,), (3,), (2, 2), (0,), (17,)))
        dtype = g.choice((torch.float64, torch.float64, torch.float32, torch.complex128, torch.complex64))
        real = {torch.complex128: torch.float64, torch.complex64: torch.float32}.get(dtype, dtype)
        x = lying(g, (*batch, k, k, k), dtype, device)
        matrix = lying(g, g.choice(((k, k), (3, k, k))), g.choice((real, dtype)), device)
        turned, adds = g.random() < 0.3, g.random() < 0.3
        out, beside = guarded(g, tuple(x.shape), dtype, device)
        out.copy_(torch.ones_like(x))
        wide = torch.complex128 if dtype.is_complex else torch.float64
        each = [matrix] * 3 if matrix.dim() == 2 else list(matrix)
        steps = [(step.mT if turned else step).to(wide) for step in each]
        truth = torch.einsum("...abc,ad,be,cf->...def", x.to(wide), *steps) + adds
        magnitude = torch.einsum("...abc,ad,be,cf->...def", x.to(wide).abs(), *(step.abs() for step in steps)) + adds
        laneloom.transform3d(x, matrix, out=out, transpose=turned, accumulate=adds)
        unit = UNIT_ROUNDOFF[NAMES[real]] * (4 if dtype.is_complex else 1)
        assert ((out.to(wide) - truth).abs() <= 3 * (k**0.5 + 5) * unit * magnitude).all(), (self, k, batch, dtype)
        assert (beside.abs() == -GUARD).all(), (self, "written beside out")


@dataclass
class Chain:
    """A call of `gemm_chain`."""

    seed: int
    most: int  #: size

    def check(self, device: str, *, lost: float) -> None:
        """Make the call and hold it against FP64. lost: of a sum's magnitude, by each 16 of its terms."""
        g = random.Random(self.seed)
        torch.manual_seed(self.seed)
        m, k0, n0, n1 = (g.choice((1, 7, 16, 33, 64, self.most, g.randint(1, self.most))) for _ in range(4))
        dtype, batch = g.choice((torch.float16, torch.bfloat16)), g.choice(((), (), (2,)))
        a0 = lying(g, (*batch, m, k0), dtype, device)
        b0, b1 = lying(g, (k0, n0), dtype, device), lying(g, (n0, n1), dtype, device)
        alpha0 = 2.0 ** -(k0.bit_length() // 2)
        out, beside = guarded(g, (*batch, m, n1), dtype, device)
        laneloom.gemm_chain(a0, b0, b1, alpha0=alpha0, out=out)
        p, unit = alpha0 * (a0.double() @ b0.double()), UNIT_ROUNDOFF[NAMES[dtype]]
        smallest = SMALLEST[NAMES[dtype]]
        truth, columns = p @ b1.double(), b1.double().abs()
        error_of_p = (k0 / 16 + k0**0.5 + 4) * lost * alpha0 * (a0.double().abs() @ b0.double().abs())
        error_of_p = error_of_p + unit * p.abs() + smallest
        room = error_of_p @ columns + (n0 / 16 + n0**0.5 + 4) * lost * (p.abs() @ columns)
        room = room + unit * (truth.abs() + room) + smallest
        assert ((out.double() - truth).abs() <= room).all(), (self, m, k0, n0, n1, dtype, batch)
        assert (beside.double() == GUARD).all(), (self, "written beside out")


@dataclass
class Transpose:
    """A call of `transpose`, which is exact."""

    seed: int
    most: int  #: size

    def check(self, device: str) -> None:
        """Make the call and compare every element."""
        g = random.Random(self.seed)
        torch.manual_seed(self.seed)
        rows, columns = (g.choice((1, 3, 16, 17, 64, self.most, g.randint(1, self.most))) for _ in range(2))
        dtype = g.choice((torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8))
        x = lying(g, (*g.choice(((), (2,), (3, 1))), rows, columns), dtype, device)
        out, beside = guarded(g, (*x.shape[:-2], columns, rows), dtype, device)
        before = beside.clone()
        laneloom.transpose(x, out=out)
        assert torch.equal(out, x.mT), (self, x.shape, x.stride(), dtype)
        assert torch.equal(beside, before), (self, "written beside out")

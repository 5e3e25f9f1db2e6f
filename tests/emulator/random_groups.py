"""Calls of `grouped_matmul` that nobody chose, each group beside the same in FP64; see random_calls.py."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from random_calls import DTYPES, GUARD, NAMES, lying, sizes

import laneloom
from laneloom.ops.matmul import reference
from laneloom.ops.target import active_gpu
from laneloom.verify import Verdict

Cuts = tuple[str, int] | None


def judge(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, flushes: bool = False, cuts: Cuts = None) -> Verdict:
    """A group's rows beside FP64. flushes: the GPU takes denormals of 16-bit operands for zeros. cuts: `cuts_of` it."""
    kind, stored = NAMES[a.dtype], NAMES[got.dtype]
    integers = not a.dtype.is_floating_point
    c, x, y = (t.long().numpy() if not t.dtype.is_floating_point else t.double().numpy() for t in (got, a, b))
    sums = "int32" if integers else "fp64" if kind == "fp64" else "fp32"
    zeros = kind if flushes and kind in ("fp16", "bf16") else None
    return reference.judge(c, x, y, stored, sums, zeros, cuts)


def check_groups(
    out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, ends: list[int], guard: float, *, flushes: bool = False,
    cuts: Cuts = None,
) -> None:  # fmt: skip
    """Every group's rows are its product, the rows behind the last hold `guard` as before."""
    for group, (first, end) in enumerate(pairwise(min(end, len(a)) for end in (0, *ends))):
        if end > first:
            verdict = judge(out[first:end], a[first:end], b[group], flushes, cuts)
            assert verdict.ok, (group, verdict)
    behind = out[min((0, *ends)[-1], len(a)) :].double()
    assert (behind.isnan() if guard != guard else behind == guard).all(), "written behind the last group"


@dataclass
class Groups:
    """A call of `grouped_matmul`."""

    seed: int
    most: float  #: logarithm of the largest size
    kinds: tuple[str, ...]

    def __post_init__(self) -> None:
        g = self.generator = random.Random(self.seed)
        self.n, self.k = sizes(g, (0, self.most), (0, self.most + 1))
        self.kind, largest = g.choice(self.kinds), round(2 ** g.uniform(0, self.most - 1))
        self.rows = [g.choice((0, 1, g.randint(0, largest))) for _ in range(g.choice((1, 2, 5, 9, 40)))]
        self.ends = list(accumulate(self.rows))
        self.m = max(self.ends[-1] + g.choice((0, 0, 1, 50, -3)), 0)
        self.out, self.pad = g.choice(("n", "n", "t")), g.choice((0, 1, 3, 8, 24))
        eight_bits, integers = DTYPES[self.kind].itemsize == 1, not DTYPES[self.kind].is_floating_point
        self.out_dtype = torch.int32 if integers else torch.float32 if eight_bits else DTYPES[self.kind]

    def __str__(self) -> str:
        return str({name: value for name, value in vars(self).items() if name != "generator"})

    def check(self, device: str, *, flushes: bool = False) -> None:
        """Make the call and hold it against FP64. flushes: as `judge`."""
        torch.manual_seed(self.seed)
        g, dtype, cuts = self.generator, DTYPES[self.kind], reference.cuts_of(active_gpu(), self.kind)
        if g.random() < 0.4:
            self.check_of_k(device, flushes, cuts)
            return
        a = lying(g, (self.m, self.k), dtype, device)
        b = lying(g, (len(self.ends), self.k, self.n), dtype, device)
        rows, columns = (self.m, self.n) if self.out == "n" else (self.n, self.m)
        buffer = torch.full((rows, columns + self.pad), GUARD, device=device).to(self.out_dtype)
        out = buffer[:, :columns] if self.out == "n" else buffer[:, :columns].mT
        ends = torch.tensor(self.ends, dtype=torch.int32, device=device)
        assert laneloom.grouped_matmul(a, b, ends, out=out) is out
        check_groups(out.cpu(), a.cpu(), b.cpu(), self.ends, GUARD, flushes=flushes, cuts=cuts)
        assert (buffer[:, columns:].double() == GUARD).all(), (str(self), "written beside out")

    def check_of_k(self, device: str, flushes: bool, cuts: Cuts) -> None:
        """The same groups along K, of as many rows as the others have columns."""
        g, dtype, rows = self.generator, DTYPES[self.kind], self.k
        a, b = lying(g, (rows, self.m), dtype, device), lying(g, (self.m, self.n), dtype, device)
        buffer = torch.full((len(self.ends), rows, self.n + self.pad), GUARD, device=device).to(self.out_dtype)
        out, ends = buffer[..., : self.n], torch.tensor(self.ends, dtype=torch.int32, device=device)
        assert laneloom.grouped_matmul(a, b, ends, out=out) is out
        for group, (first, end) in enumerate(pairwise(min(end, self.m) for end in (0, *self.ends))):
            if end > first:
                verdict = judge(out[group].cpu(), a[:, first:end].cpu(), b[first:end].cpu(), flushes, cuts)
                assert verdict.ok, (str(self), group, verdict)
            else:
                assert (out[group] == 0).all(), (str(self), group)
        assert (buffer[..., self.n :].double() == GUARD).all(), (str(self), "written beside out")

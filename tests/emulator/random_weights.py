"""Calls of `quantized_matmul` that nobody chose, each beside the same in FP64; see random_calls.py."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from random_calls import GUARD, NAMES, lying, sizes

import laneloom
from laneloom.ops.quantized_matmul import reference
from laneloom.verify import Verdict

PACKED = ("int4", "uint4", "fp4")
SCALES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def judge(got: torch.Tensor, x: torch.Tensor, weight: laneloom.QuantizedWeight, bias=None, flushed=None) -> Verdict:
    """A product on any device beside FP64; flushed: x's dtype, where the GPU takes its denormals for zeros. On CUDA the
    tensor cores cut off at each step."""
    values, scales, zeros = (
        t.cpu() if isinstance(t, torch.Tensor) else t for t in (weight.values, weight.scales, weight.zeros)
    )
    on_host = laneloom.QuantizedWeight(values, scales, weight.dtype, weight.group, zeros)
    c, a, term = (None if t is None else t.double().cpu().numpy() for t in (got, x, bias))
    lost = 2.0**-23 if got.device.type == "cuda" else 0.0
    return reference.judge(c, a, on_host, NAMES[got.dtype], term, flushed, lost)


def judge_groups(got, x, weight: laneloom.QuantizedWeight, ends, bias=None, flushed=None) -> int:
    """Each group's rows beside its weight; the row behind the last."""
    first = 0
    for group, end in enumerate(min(end, len(x)) for end in ends):
        parts = (weight.values, weight.scales, weight.zeros, bias)
        values, scales, zeros, term = (None if part is None else part[group] for part in parts)
        own = laneloom.QuantizedWeight(values, scales, weight.dtype, weight.group, zeros)
        verdict = judge(got[first:end], x[first:end], own, term, flushed)
        assert verdict.ok, (group, first, end, verdict)
        first = end
    return first


@dataclass
class Weights:
    """A call of `quantized_matmul`."""

    seed: int
    most: float  #: logarithm of the largest size

    def __post_init__(self) -> None:
        g = self.generator = random.Random(self.seed)
        self.m, self.n, self.k = sizes(g, (0, self.most - 1), (0, self.most), (0, self.most + 1))
        self.dtype = g.choice((torch.float16, torch.bfloat16))
        self.kind = g.choice(("int4", "uint4", "fp4", "int8", "fp8"))
        self.scale = g.choice((*SCALES, "e8m0"))
        self.group = g.choice((None, 16, 32, 32, 64, 128, 128, 256))
        self.zeros = self.kind == "uint4" and g.random() < 0.7
        self.batch = g.choice(((), (), (), (2,), (3, 1)))
        self.own = g.random() < 0.5  #: whether each of the batch has a weight of its own
        self.out_dtype = g.choice((None, torch.float32, torch.float16, torch.bfloat16))
        self.bias, self.out, self.pad = g.random() < 0.4, g.choice((None, "n", "t")), g.choice((0, 1, 8))
        self.dense = g.random() < 0.5  #: whether all lies densely, in rows that every kernel reads
        if self.dense:
            self.k += -self.k % 32
        elif self.kind in PACKED:
            self.k += self.k % 2

    def _lying(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
        x = lying(self.generator, shape, dtype, device)
        return x.contiguous() if self.dense else x

    def __str__(self) -> str:
        return str({name: value for name, value in vars(self).items() if name != "generator"})

    def _weight(self, device: str) -> laneloom.QuantizedWeight:
        batch = self.batch if self.own else ()
        values = self._lying((*batch, self.n, self.k // 2 if self.kind in PACKED else self.k), torch.uint8, device)
        if self.kind == "fp8":
            values.masked_fill_(values & 0x7F == 0x7F, 0)  # no NaN
            values = values.view(torch.float8_e4m3fn)
        values = values.view(torch.int8) if self.kind == "int8" else values
        shape = (*batch, self.n, -(-self.k // self.group) if self.group else 1)
        if self.scale == "e8m0":
            scales = self._lying(shape, torch.uint8, device).remainder_(9).add_(122)
        else:
            scales = self._lying(shape, torch.float32, device).to(SCALES[self.scale])
        zeros = self._lying(shape, torch.uint8, device) if self.zeros else None
        return laneloom.QuantizedWeight(values, scales, self.kind, self.group, zeros)

    def check(self, device: str, *, flushes: bool = False) -> None:
        """Make the call and hold it against FP64. flushes: the GPU takes denormals of 16-bit products for zeros."""
        torch.manual_seed(self.seed)
        weight = self._weight(device)
        x = self._lying((*self.batch, self.m, self.k), self.dtype, device)
        bias = torch.randn(self.n, device=device).to(self.dtype) if self.bias else None
        kind = self.out_dtype or self.dtype
        buffer = out = None
        if self.out:
            rows, columns = (self.m, self.n) if self.out == "n" else (self.n, self.m)
            buffer = torch.full((*self.batch, rows, columns + self.pad), GUARD, device=device).to(kind)
            out = buffer[..., :columns] if self.out == "n" else buffer[..., :columns].mT
        got = laneloom.quantized_matmul(x, weight, bias=bias, out=out, out_dtype=kind)
        verdict = judge(got, x, weight, bias, NAMES[self.dtype] if flushes else None)
        assert verdict.ok, (str(self), verdict)
        if buffer is not None:
            assert (buffer[..., columns:].double() == GUARD).all(), (str(self), "written beside out")


@dataclass
class Experts(Weights):
    """A call whose rows are in groups, some of them empty; rows may be in none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        g = self.generator
        self.batch, self.own = (g.choice((1, 2, 3, 8, 40)),), True
        self.m, self.k = 2 * self.m, max(self.k, 2)
        self.ends = sorted(g.randint(0, self.m + 2) for _ in range(self.batch[0]))

    def check(self, device: str, *, flushes: bool = False) -> None:
        """See Weights."""
        torch.manual_seed(self.seed)
        weight = self._weight(device)
        x = self._lying((self.m, self.k), self.dtype, device)
        bias = self._lying((*self.batch, self.n), self.dtype, device) if self.bias else None
        rows, columns = (self.n, self.m) if self.out == "t" else (self.m, self.n)
        buffer = torch.full((rows, columns + self.pad), GUARD, device=device).to(self.out_dtype or self.dtype)
        out = buffer[:, :columns].mT if self.out == "t" else buffer[:, :columns]
        ends = torch.tensor(self.ends, dtype=torch.int32, device=device)
        laneloom.quantized_matmul(x, weight, ends=ends, bias=bias, out=out)
        last = judge_groups(out, x, weight, self.ends, bias, NAMES[self.dtype] if flushes else None)
        beside = out[last:].double(), buffer[:, columns:].double()
        assert all((x == GUARD).all() for x in beside), (str(self), "written beside the groups")
        if self.out is None:
            got = laneloom.quantized_matmul(x, weight, ends=ends, bias=bias, out_dtype=out.dtype)
            assert torch.equal(got[:last], out[:last]), (str(self), "not the same bits")

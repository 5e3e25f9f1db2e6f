"""Calls of `quantized_matmul` that nobody chose, each beside the same in FP64; see random_calls.py."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from random_calls import GUARD, NAMES, lying, sizes

import laneloom
from laneloom.ops.quantized_matmul import reference

PACKED = ("int4", "uint4", "fp4")
SCALES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def _lying_bytes(generator: random.Random, shape: tuple[int, ...], device: str) -> torch.Tensor:
    return lying(generator, shape, torch.uint8, device)


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
        if self.kind in PACKED:
            self.k += self.k % 2

    def __str__(self) -> str:
        return str({name: value for name, value in vars(self).items() if name != "generator"})

    def _weight(self, device: str) -> laneloom.QuantizedWeight:
        g, batch = self.generator, self.batch if self.own else ()
        values = _lying_bytes(g, (*batch, self.n, self.k // 2 if self.kind in PACKED else self.k), device)
        if self.kind == "fp8":
            values.masked_fill_(values & 0x7F == 0x7F, 0)  # no NaN
            values = values.view(torch.float8_e4m3fn)
        values = values.view(torch.int8) if self.kind == "int8" else values
        shape = (*batch, self.n, -(-self.k // self.group) if self.group else 1)
        if self.scale == "e8m0":
            scales = _lying_bytes(g, shape, device).remainder_(9).add_(122)
        else:
            scales = lying(g, shape, torch.float32, device).to(SCALES[self.scale])
        zeros = _lying_bytes(g, shape, device) if self.zeros else None
        return laneloom.QuantizedWeight(values, scales, self.kind, self.group, zeros)

    def check(self, device: str, *, flushes: bool = False) -> None:
        """Make the call and hold it against FP64. flushes: the GPU takes denormals of 16-bit products for zeros."""
        torch.manual_seed(self.seed)
        weight = self._weight(device)
        x = lying(self.generator, (*self.batch, self.m, self.k), self.dtype, device)
        bias = torch.randn(self.n, device=device).to(self.dtype) if self.bias else None
        kind = self.out_dtype or self.dtype
        buffer = out = None
        if self.out:
            rows, columns = (self.m, self.n) if self.out == "n" else (self.n, self.m)
            buffer = torch.full((*self.batch, rows, columns + self.pad), GUARD, device=device).to(kind)
            out = buffer[..., :columns] if self.out == "n" else buffer[..., :columns].mT
        got = laneloom.quantized_matmul(x, weight, bias=bias, out=out, out_dtype=kind)
        zeros = None if weight.zeros is None else weight.zeros.cpu()
        on_host = laneloom.QuantizedWeight(
            weight.values.cpu(), weight.scales.cpu(), weight.dtype, weight.group, zeros
        )  # fmt: skip
        bias_values = None if bias is None else bias.double().cpu().numpy()
        flushed = NAMES[self.dtype] if flushes else None
        verdict = reference.judge(
            got.double().cpu().numpy(), x.double().cpu().numpy(), on_host, NAMES[kind], bias_values, flushed
        )
        assert verdict.ok, (str(self), verdict)
        if buffer is not None:
            assert (buffer[..., columns:].double() == GUARD).all(), (str(self), "written beside out")

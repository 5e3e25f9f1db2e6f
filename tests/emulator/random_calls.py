"""Calls that nobody chose, each beside the same in FP64: sizes, strides, dtypes and options drawn from a seed.

Shared by the emulated and the GPU's tier. Budgets are bounds: of a sum of K terms sqrt(K) + 4 units of FP32 (Higham and
Mary), of wgmma's one lost unit for each 32 bytes of K, which it adds up at once; then one rounding of the result.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

import laneloom
from laneloom.bench.products import PRECISION_ERROR
from laneloom.verify import SMALLEST, UNIT_ROUNDOFF

TORCH = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64, "int8": torch.int8,
    "uint8": torch.uint8, "fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2, "int32": torch.int32,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in TORCH.items()}
GUARD = -77  #: what the elements beside a result hold
STEEPEST = 1.13  #: slope of GELU, SILU and ReLU
ACTIVATION_ERROR = 1e-5  #: relative: GELU of 16-bit results is a polynomial
ACTIVATIONS = {"gelu": torch.nn.functional.gelu, "relu": torch.relu, "silu": torch.nn.functional.silu}


def lying(generator: random.Random, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Random numbers that lie somehow: dense, with a wider pitch, behind an offset, or transposed."""
    turned = len(shape) > 1 and generator.random() < 0.4
    stored = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    before, behind = generator.choice((0, 0, 1, 4, 8)), generator.choice((0, 0, 1, 3, 8, 24))
    wide = (*stored[:-1], stored[-1] + before + behind)
    if dtype in (torch.int8, torch.uint8):
        low, high = (-128, 128) if dtype == torch.int8 else (0, 256)
        x = torch.randint(low, high, wide, dtype=dtype, device=device)
    elif dtype.is_complex:
        x = torch.randn(wide, dtype=dtype, device=device)
    else:
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        x = torch.randn(wide, dtype=exact, device=device).to(dtype)
    x = x[..., before : before + stored[-1]]
    return x.mT if turned else x


def sizes(generator: random.Random, *ranges: tuple[int, float]) -> list[int]:
    """A size for each range of logarithms to base 2: as it comes, or a multiple of 8 or of 64."""
    found = []
    for least, most in ranges:
        step = generator.choice((1, 1, 8, 64))
        found.append(max(round(2 ** generator.uniform(least, most) / step), 1) * step)
    return found


@dataclass
class Product:
    """A call of `matmul`, or of `gemm` with terms."""

    seed: int
    most: float  #: logarithm of the largest size
    kinds: tuple[str, ...]
    choices: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        g = self.generator = random.Random(self.seed)
        m, n, k = sizes(g, (0, self.most), (0, self.most), (0, self.most + 1))
        kind = g.choice(self.kinds)
        precision = g.choice((None, "tf32", "3xtf32", "3xbf16")) if kind == "fp32" and self.most > 9 else None
        self.choices = {
            "m": m, "n": n, "k": k, "kind": kind, "batch": g.choice(((), (), (), (1,), (3,))),
            "shared": g.random() < 0.5, "activation": g.choice((None, None, *ACTIVATIONS)),
            "bias": g.random() < 0.3, "beta": g.random() < 0.25, "scale": g.random() < 0.2,
            "out": g.choice((None, "n", "n", "t")), "pad": g.choice((0, 1, 3, 8, 24)), "precision": precision,
        }  # fmt: skip

    def check(self, device: str, *, tensor_cores: bool) -> None:
        """Make the call and hold it against FP64. tensor_cores: Hopper's, with sums of their own."""
        c, g = self.choices, self.generator
        torch.manual_seed(self.seed)
        m, n, k, kind, batch = c["m"], c["n"], c["k"], c["kind"], c["batch"]
        a = lying(g, (*batch, m, k), TORCH[kind], device)
        b = lying(g, (k, n) if c["shared"] else (*batch, k, n), TORCH[kind], device)
        truth, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        terms = bool(c["activation"] or c["bias"] or c["beta"] or c["scale"])
        eight_bits = a.element_size() == 1
        integers = eight_bits and not a.dtype.is_floating_point
        dtype = torch.int32 if integers and not terms else torch.float32 if eight_bits else a.dtype
        options: dict[str, Any] = {"precision": c["precision"]} if c["precision"] else {}
        if dtype != a.dtype:
            options["out_dtype"] = dtype
        if c["scale"]:
            options["scale_a"] = 0.5
            truth, magnitude = truth / 2, magnitude / 2
        if c["bias"]:
            options["bias"] = torch.randn(n, device=device).to(dtype)
            truth, magnitude = truth + options["bias"].double(), magnitude + options["bias"].double().abs()
        if c["beta"]:
            options |= {"c": torch.randn(truth.shape, device=device).to(dtype), "beta": 0.5}
            truth, magnitude = truth + options["c"].double() / 2, magnitude + options["c"].double().abs() / 2
        if c["activation"]:
            options["activation"] = c["activation"]
            truth = ACTIVATIONS[c["activation"]](truth)
        buffer = None
        if c["out"]:
            rows, columns = (m, n) if c["out"] == "n" else (n, m)
            buffer = torch.full((*batch, rows, columns + c["pad"]), GUARD, device=device).to(dtype)
            options["out"] = buffer[..., :columns] if c["out"] == "n" else buffer[..., :columns].mT
        got = (laneloom.gemm if terms else laneloom.matmul)(a, b, **options)
        if integers and not terms:
            assert torch.equal(got.double(), truth), self
        else:
            unit = 2.0**-53 if kind == "fp64" else 2.0**-24
            sums = (k**0.5 + 4) * unit
            if tensor_cores and kind not in ("fp32", "fp64") and not integers:
                lost = 2.0**-13 if eight_bits else 2.0**-23  # of a step's largest
                sums = max(sums, (k * a.element_size() / 32 + 4) * lost)
            if c["precision"]:
                sums += PRECISION_ERROR[c["precision"]]
            name = NAMES[dtype]
            budget = STEEPEST * sums * magnitude
            if c["activation"] and kind != "fp64":
                budget = budget + ACTIVATION_ERROR * truth.abs()
            budget = budget + (UNIT_ROUNDOFF[name] * (truth.abs() + budget)).clamp_min(SMALLEST[name] / 2)
            error = (got.double() - truth).abs()
            assert (error <= budget).all(), (self, (error / budget).max().item())
        if buffer is not None:
            assert (buffer[..., columns:].double() == GUARD).all(), (self, "written beside out")


@dataclass
class Attention:
    """A call of `flash_attention`, with gradients perhaps."""

    seed: int
    longest: int  #: sequence

    def __post_init__(self) -> None:
        g = self.generator = random.Random(self.seed)
        heads = g.choice((1, 1, 2, 3))
        self.shape = g.choice((1, 1, 2)), heads * g.choice((1, 1, 2, 4)), heads
        self.queries, self.keys = g.randint(1, self.longest), g.randint(1, self.longest)
        self.d = g.choice((16, 24, 40, 64, 72, 96, 128))
        self.d_v = g.choice((self.d, self.d, 16, 64, 88))
        self.dtype = g.choice((torch.float16, torch.bfloat16))
        self.causal = g.choice((False, True, "top_left"))
        self.window = g.choice((None, None, (3, None), (10, 0), (None, 5), (20, 7)))
        self.gradients = g.random() < 0.4

    def __str__(self) -> str:
        return str({name: value for name, value in vars(self).items() if name != "generator"})

    def check(self, device: str) -> None:
        """Make the call and hold O, LSE and the gradients against FP64."""
        g, (batch, heads, kv_heads) = self.generator, self.shape
        torch.manual_seed(self.seed)
        shapes = ((heads, self.queries, self.d), (kv_heads, self.keys, self.d), (kv_heads, self.keys, self.d_v))
        q, k, v = (lying(g, (batch, *shape), self.dtype, device).requires_grad_(self.gradients) for shape in shapes)
        out, lse = laneloom.flash_attention(q, k, v, causal=self.causal, window=self.window, return_lse=True)
        wide = [x.detach().double().requires_grad_(self.gradients) for x in (q, k, v)]
        each_k, each_v = (x.repeat_interleave(heads // kv_heads, 1) for x in wide[1:])
        i, j = torch.arange(self.queries, device=device)[:, None], torch.arange(self.keys, device=device)
        at = i + (0 if self.causal == "top_left" else self.keys - self.queries)
        left, right = self.window or (None, None)
        seen = torch.ones(self.queries, self.keys, dtype=torch.bool, device=device)
        for limit in (j <= at if self.causal else None, None if left is None else j >= at - left,
                      None if right is None else j <= at + right):  # fmt: skip
            seen = seen if limit is None else seen & limit
        scores = (wide[0] @ each_k.mT * self.d**-0.5).masked_fill(~seen, -torch.inf)
        true_lse = scores.logsumexp(-1)
        weights = torch.where(seen, torch.exp(scores - true_lse.nan_to_num(neginf=0.0)[..., None]), 0.0)
        truth = weights @ each_v
        unit = UNIT_ROUNDOFF[NAMES[self.dtype]]
        # P is rounded once before it is multiplied, and O once; scores and exp have an error of some units of FP32.
        budget = (3 * unit + 2.0**-14) * (weights @ each_v.abs()) + SMALLEST[NAMES[self.dtype]]
        assert ((out.double() - truth).abs() <= budget).all(), str(self)
        finite = torch.isfinite(true_lse)
        assert (lse.isneginf() == ~finite).all(), str(self)
        assert ((lse.double() - true_lse).abs()[finite] <= 2.0**-12 * (1 + true_lse.abs()[finite])).all(), str(self)
        if self.gradients:
            slope = torch.randn_like(truth).to(self.dtype)
            found = torch.autograd.grad(out, (q, k, v), slope)
            true = torch.autograd.grad(truth, wide, slope.double())
            for name, x, y, bound in zip("qkv", found, true, self.bounds(wide, weights, truth, slope), strict=True):
                room = (4 * unit + 2.0**-14) * bound + unit * y.abs() + SMALLEST[NAMES[self.dtype]]
                assert ((x.double() - y).abs() <= room).all(), (str(self), name)

    def bounds(self, wide: list[torch.Tensor], weights: torch.Tensor, truth: torch.Tensor, slope: torch.Tensor) -> Any:
        """Of the gradients, sums of the magnitudes of all that is added: P, dS and O are rounded on the way."""
        q, k, v = (x.detach().abs() for x in wide)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        weights, slope = weights.detach(), slope.double().abs()
        of_scores = weights * (slope @ v.mT + (slope * truth.detach().abs()).sum(-1, keepdim=True)) * self.d**-0.5

        def of_group(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(1, (-1, group)).sum(2)

        return of_scores @ k, of_group(of_scores.mT @ q), of_group(weights.mT @ slope)

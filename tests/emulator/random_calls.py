"""Calls that nobody chose, each beside the same in FP64: sizes, strides, dtypes and options drawn from a seed.

Shared by the emulated and the GPU's tier. Budgets are bounds: of a sum of K terms sqrt(K) + 4 units of FP32 (Higham and
Mary), of wgmma's one lost unit for each 32 bytes of K, which it adds up at once; then one rounding of the result.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import laneloom
from laneloom.bench.products import DTYPES, PRECISION_ERROR
from laneloom.ops.attention import reference
from laneloom.verify import SMALLEST, UNIT_ROUNDOFF, lost_to_zeros

NAMES = {dtype: name for name, dtype in DTYPES.items()}
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

    def check(self, device: str, *, tensor_cores: bool, flushes: bool = False) -> None:
        """Make the call and hold it against FP64. tensor_cores: Hopper's, with sums of their own. flushes: the GPU
        takes denormals of 16-bit products for zeros.
        """
        c, g = self.choices, self.generator
        torch.manual_seed(self.seed)
        m, n, k, kind, batch = c["m"], c["n"], c["k"], c["kind"], c["batch"]
        a = lying(g, (*batch, m, k), DTYPES[kind], device)
        b = lying(g, (k, n) if c["shared"] else (*batch, k, n), DTYPES[kind], device)
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
            if flushes and kind in ("fp16", "bf16"):
                budget = budget + STEEPEST * torch.from_numpy(lost_to_zeros(*(_array(x) for x in (a, b)), kind))
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
        self.softcap = g.choice((0.0, 0.0, 0.0, 0.0, 0.5, 50.0))

    def __str__(self) -> str:
        return str({name: value for name, value in vars(self).items() if name != "generator"})

    def check(self, device: str) -> None:
        """Make the call and hold O, LSE and the gradients against FP64."""
        g, (batch, heads, kv_heads) = self.generator, self.shape
        torch.manual_seed(self.seed)
        shapes = ((heads, self.queries, self.d), (kv_heads, self.keys, self.d), (kv_heads, self.keys, self.d_v))
        q, k, v = (lying(g, (batch, *shape), self.dtype, device).requires_grad_(self.gradients) for shape in shapes)
        options = {"causal": self.causal, "window": self.window, "softcap": self.softcap}
        out, lse = laneloom.flash_attention(q, k, v, **options, return_lse=True)
        slope = torch.randn_like(out).detach()
        word = {False: "none", True: "bottom_right"}.get(self.causal, self.causal)
        left, right = self.window or (None, None)
        exact_q, exact_k, exact_v, exact_slope = (x.detach().double().cpu().numpy() for x in (q, k, v, slope))

        def attended(values: np.ndarray, grad: np.ndarray | None = None) -> reference.Truth:
            return reference.attention(
                exact_q, exact_k, values, causal=word, left=left, right=right, softcap=self.softcap, grad=grad)

        truth = attended(exact_v, exact_slope)
        # The weights are what a matrix of ones on the diagonal gives.
        weights = attended(np.broadcast_to(np.eye(self.keys), (batch, kv_heads, self.keys, self.keys))).out
        name = NAMES[self.dtype]
        unit, least = UNIT_ROUNDOFF[name], SMALLEST[name]
        bounds = magnitudes(weights, exact_q, exact_k, exact_v, truth.out, exact_slope, self.softcap)
        # P is rounded once before it is multiplied, and O once; scores and exp have an error of some units of FP32.
        assert (off(out, truth.out) <= (3 * unit + 2.0**-14) * bounds[0] + least).all(), str(self)
        finite = np.isfinite(truth.lse)
        assert (np.isneginf(lse.detach().cpu().numpy()) == ~finite).all(), str(self)
        assert (off(lse, truth.lse)[finite] <= 2.0**-12 * (1 + abs(truth.lse[finite]))).all(), str(self)
        if self.gradients:
            found = torch.autograd.grad(out, (q, k, v), slope)
            for which, x, y, bound in zip("qkv", found, truth[2:], bounds[1:], strict=True):
                room = (4 * unit + 2.0**-14) * bound + unit * abs(y) + least
                assert (off(x, y) <= room).all(), (str(self), which)


def _array(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().cpu().numpy()


def off(x: torch.Tensor, truth: np.ndarray) -> np.ndarray:
    """How far a result is from the truth."""
    with np.errstate(invalid="ignore"):  # of two infinities
        return abs(x.detach().double().cpu().numpy() - truth)


def magnitudes(
    weights: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, slope: np.ndarray,
    softcap: float,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Of O and of the gradients of Q, K and V, the magnitudes of all that is added up: P, dS and O are rounded on the
    way."""
    heads, group, scale = k.shape[1], q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    # A cap flattens the scores' slopes, 1 - tanh^2, which have an error of their own.
    scores = scale * (q @ k.repeat(group, 1).swapaxes(2, 3))
    flattened = 2.0**-18 + np.cosh(scores / softcap) ** -2 if softcap else 1.0
    q, k, v, out, slope = (abs(x) for x in (q, k.repeat(group, 1), v.repeat(group, 1), out, slope))
    of_scores = flattened * scale * weights * (slope @ v.swapaxes(2, 3) + (slope * out).sum(-1, keepdims=True))
    of_keys, of_values = (x.swapaxes(2, 3) @ y for x, y in ((of_scores, q), (weights, slope)))
    of_group = (x.reshape(len(x), heads, group, *x.shape[2:]).sum(2) for x in (of_keys, of_values))
    return weights @ v, of_scores @ k, *of_group

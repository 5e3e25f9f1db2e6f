"""`quantized_matmul` of rows in groups on one Hopper GPU: `python -m laneloom.bench.quantized_experts --out FILE`.

Layers of mixtures of experts whose weights have 4 bits, beside torch's grouped_mm of the same weights in bf16. Every
token chooses its experts at random, all alike likely. In one interleaved run, captured in graphs; each launch has
choices of its own. Every result of ours is checked against FP64 before it is timed. With `--page` it fills a page's
table from the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..errors import LaneloomError
from ..ops.quantized_matmul.api import quantized_matmul
from ..ops.quantized_matmul.problem import QuantizedProblem
from ..ops.quantized_matmul.weight import QuantizedWeight
from .quantized_weights import BF16_ROUNDING, KERNEL_SOURCES, KINDS, keep, make_weight, page, star
from .records import Record, read_environment
from .report import OURS, by_candidate, geometric_mean, measure_or_fill, measured_on
from .timing import Timing, interleave

OP = "quantized experts"
GROUPED = "torch grouped_mm, bf16"
CHOICES = 16  #: of experts, that launches take in turn


class Layer(NamedTuple):
    """A model's: `groups` experts [N, K], of which a token chooses `top`."""

    model: str
    groups: int
    top: int
    n: int
    k: int
    dtype: str


LAYERS = (
    Layer("gpt-oss-120b", 128, 4, 5760, 2880, "fp4"), Layer("gpt-oss-120b", 128, 4, 2880, 2880, "fp4"),
    Layer("Qwen3-30B-A3B", 128, 8, 1536, 2048, "int4"), Layer("Qwen3-30B-A3B", 128, 8, 2048, 768, "int4"),
    Layer("Mixtral 8x7B", 8, 2, 28672, 4096, "int4"), Layer("Mixtral 8x7B", 8, 2, 4096, 14336, "int4"),
)  # fmt: skip
TOKENS = (1, 4, 16, 64, 256, 1024)


def shape_of(layer: Layer, tokens: int) -> QuantizedProblem:
    """A row for each expert that a token chooses."""
    scale, group = KINDS[layer.dtype]
    return QuantizedProblem.contiguous(
        tokens * layer.top, layer.n, layer.k, dtype="bf16", dtype_w=layer.dtype, dtype_scale=scale, group=group,
        batch=layer.groups, ragged=True,
    )  # fmt: skip


def choose(layer: Layer, tokens: int, seed: int) -> torch.Tensor:
    """Where each expert's rows end."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(tokens, layer.groups, generator=generator).topk(layer.top).indices
    counts = torch.bincount(chosen.flatten(), minlength=layer.groups)
    return counts.cumsum(0).int().cuda()


def first_group(ends: torch.Tensor) -> tuple[int, int]:
    """The first group that has rows, and where they end: no group before it ends above 0."""
    group = int((ends == 0).sum())
    return group, int(ends[group])


def chosen_experts(ends: Sequence[torch.Tensor]) -> float:
    """Experts that have a row, on the mean."""
    return sum(int((x.diff(prepend=torch.zeros_like(x[:1])) > 0).sum()) for x in ends) / len(ends)


def bytes_of(layer: Layer, tokens: int, ends: Sequence[torch.Tensor]) -> int:
    """Device memory traffic of a launch on average: the chosen experts once, rows and results once."""
    shape = shape_of(layer, tokens)
    of_expert = replace(shape.typical, m=0, batch=(1, 1)).bytes
    return int(chosen_experts(ends) * of_expert + 2 * shape.m * (layer.k + layer.n))


def error_of_parts(
    parts: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
) -> tuple[float, float]:  # fmt: skip
    """|| C - truth || / || truth || over all parts (C, A, B of one product each, B perhaps wider than A), and its
    budget: twice that of FP32 products of the same numbers, and a rounding of the result."""
    size, wrong, in_fp32 = 0.0, 0.0, 0.0
    for got, a, b in parts:
        truth = a.double() @ b.double()
        size += truth.square().sum().item()
        wrong += (got.double() - truth).square().sum().item()
        in_fp32 += ((a.float() @ b.float()).double() - truth).square().sum().item()
    return (wrong / size) ** 0.5, 2 * (in_fp32 / size) ** 0.5 + BF16_ROUNDING


def _error(got: torch.Tensor, x: torch.Tensor, weight: QuantizedWeight, ends: torch.Tensor) -> tuple[float, float]:
    """`error_of_parts`, of the groups that have rows."""

    def parts() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for group, (first, end) in enumerate(pairwise((0, *ends.tolist()))):
            if first != end:
                own = QuantizedWeight(weight.values[group], weight.scales[group], weight.dtype, weight.group)
                yield got[first:end], x[first:end], own.dequantize(torch.float32).T

    return error_of_parts(parts())


def measure(
    layer: Layer, tokens: int, weight: QuantizedWeight, plain: torch.Tensor, rounds: int
) -> tuple[dict[str, Timing], float, float, int]:  # fmt: skip
    """Timings by candidate, error and its budget, bytes. Raises LaneloomError for an error beyond its budget."""
    ends = [choose(layer, tokens, seed) for seed in range(CHOICES)]
    x = torch.randn(tokens * layer.top, layer.k, device="cuda", dtype=torch.bfloat16)
    error, budget = _error(quantized_matmul(x, weight, ends=ends[0]), x, weight, ends[0])
    if not error <= budget:
        raise LaneloomError(f"{layer}, {tokens}: relative error {error:.2e} is over its budget of {budget:.2e}")
    candidates = {
        GROUPED: lambda i: F.grouped_mm(x, plain.mT, offs=ends[i]),
        OURS: lambda i: quantized_matmul(x, weight, ends=ends[i]),
    }
    timings = interleave(candidates, CHOICES, reference=GROUPED, rounds=rounds)
    return timings, error, budget, bytes_of(layer, tokens, ends)


def run(path: Path, rounds: int) -> None:
    """Measure every layer and append records to `path`."""
    environment = read_environment()
    for layer in LAYERS:
        weight = make_weight(layer.dtype, (layer.groups,), layer.n, layer.k)
        plain = torch.stack([
            QuantizedWeight(q, s, layer.dtype, weight.group).dequantize(torch.bfloat16)
            for q, s in zip(weight.values, weight.scales, strict=True)
        ])  # fmt: skip
        for tokens in TOKENS:
            timings, error, budget, moved = measure(layer, tokens, weight, plain, rounds)
            keep(
                path, timings, environment, shape_of(layer, tokens), op=OP,
                problem={**layer._asdict(), "tokens": tokens}, reference=GROUPED, nbytes=moved, errors=(error, budget),
            )  # fmt: skip
            shown = {n: f"{t.median_us:.1f} us x{t.ratio_to_reference:.3f}" for n, t in timings.items()}
            print(layer, tokens, shown, flush=True)


def render(records: Iterable[Record]) -> str:
    """Markdown: one row a layer and number of tokens, its newest records."""
    newest = by_candidate(records)
    lines = [
        "| layer | experts, N x K | tokens | rows | us | GB/s | TFLOP/s | x grouped_mm, bf16 | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    ratios: dict[int, list[float]] = {}
    for x in newest:
        ours, p = x[OURS], dict(x[OURS].problem)
        tokens = p.pop("tokens")
        layer = Layer(**p)
        replanned = star(shape_of(layer, tokens), ours)
        ratio = x[GROUPED].median_us / ours.median_us
        ratios.setdefault(tokens, []).append(ratio)
        rows = tokens * layer.top
        lines.append(
            f"| {layer.model}, {layer.dtype} | {layer.groups}, {layer.n} x {layer.k} | {tokens} | {rows} | "
            f"{ours.median_us:.1f}{replanned} | {ours.gbs:.0f} | {ours.tflops:.0f} | {ratio:.2f} | {ours.error:.1e} |"
        )
    means = ", ".join(f"{tokens} {geometric_mean(of):.2f}" for tokens, of in ratios.items())
    head = f"{measured_on(newest[-1][OURS], KERNEL_SOURCES)} Geometric means of torch's grouped_mm, by tokens: {means}."
    return page(head, lines)


def main() -> None:
    """Command line."""
    measure_or_fill("Measure quantized_matmul of rows in groups.", 7, run, "quantized experts", render)


if __name__ == "__main__":
    main()

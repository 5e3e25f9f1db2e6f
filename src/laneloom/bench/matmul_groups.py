"""`grouped_matmul` and its gradients on one Hopper GPU: `python -m laneloom.bench.matmul_groups --out FILE`.

Layers of mixtures of experts in bf16, beside torch's grouped_mm: the product, dA = dC B^T by rows, dB = A^T dC by
groups of K. Every token chooses its experts at random, all alike likely. In one interleaved run, captured in graphs;
each launch has choices of its own. Every result of ours is checked against FP64 before it is timed. With `--page` it
fills a page's table from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F

from ..errors import LaneloomError
from ..ops.matmul.grouped import grouped_matmul
from .kernel_sources import schedule_sources
from .quantized_experts import CHOICES, LAYERS, Layer, choose, chosen_experts, error_of_parts
from .records import Record, append, hash_sources, make_record, read_environment
from .report import OURS, by_candidate, geometric_mean, measure_or_fill, measured_on
from .timing import METHOD_SUSTAINED, interleave

KERNEL_SOURCES = schedule_sources("hopper_cluster")
OP = "matmul groups"
TORCH = "torch grouped_mm"
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
SHOWN = TOKENS[::2]  #: on the page
TRAINED = 256  #: tokens, from which on gradients are measured
PASSES = ("C", "dA", "dB")


def _products(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The operands of each pass, of A [M, K], B [G, N, K] as it is stored, dC [M, N]."""
    return {"C": (a, b.mT), "dA": (d, b), "dB": (d.mT, a)}


def _passes(tokens: int) -> tuple[str, ...]:
    return PASSES if tokens >= TRAINED else PASSES[:1]


def _error(got: torch.Tensor, x: torch.Tensor, y: torch.Tensor, ends: list[int]) -> tuple[float, float]:
    """`error_of_parts`, of all groups."""
    parts = [slice(first, end) for first, end in pairwise((0, *ends))]
    if y.dim() == 3:
        return error_of_parts((got[part], x[part], y[group]) for group, part in enumerate(parts))
    return error_of_parts((got[group], x[:, part], y[part]) for group, part in enumerate(parts))


def _candidates(x: torch.Tensor, y: torch.Tensor, ends: list[torch.Tensor]) -> dict[str, Callable[[int], object]]:
    return {TORCH: lambda i: F.grouped_mm(x, y, offs=ends[i]), OURS: lambda i: grouped_matmul(x, y, ends[i])}


def run(path: Path, rounds: int) -> None:
    """Measure every layer and append records to `path`. Raises LaneloomError for a wrong result."""
    environment, sources = read_environment(), hash_sources(KERNEL_SOURCES)
    for layer in LAYERS:
        b = torch.randn(layer.groups, layer.n, layer.k, device="cuda", dtype=torch.bfloat16)
        for tokens in TOKENS:
            rows = tokens * layer.top
            a, d = (torch.randn(rows, n, device="cuda", dtype=torch.bfloat16) for n in (layer.k, layer.n))
            ends = [choose(layer, tokens, seed) for seed in range(CHOICES)]
            products = _products(a, b, d)
            for what in _passes(tokens):
                x, y = products[what]
                error, budget = _error(grouped_matmul(x, y, ends[0]), x, y, ends[0].tolist())
                if not error <= budget:
                    raise LaneloomError(f"{layer}, {tokens}, {what}: error {error:.2e} is over {budget:.2e}")
                timings = interleave(_candidates(x, y, ends), CHOICES, reference=TORCH, rounds=rounds)
                experts = layer.groups if what == "dB" else chosen_experts(ends)
                _keep(path, timings, environment, sources, layer, tokens, what, experts, error, budget)
                best = {name: f"{t.median_us:.1f} us x{t.ratio_to_reference:.3f}" for name, t in timings.items()}
                print(*layer[:5], tokens, what, best, f"error {error:.2e} of {budget:.2e}", flush=True)


def _keep(path, timings, environment, sources, layer: Layer, tokens: int, what: str, experts: float, error: float,
          budget: float) -> None:  # fmt: skip
    rows = tokens * layer.top
    for name, timing in timings.items():
        ours = name == OURS
        append(path, make_record(
            timing, op=OP, problem={**layer._asdict(), "dtype": "bf16", "tokens": tokens, "what": what},
            candidate=name, method=METHOD_SUSTAINED, reference=TORCH, flops=2 * rows * layer.n * layer.k,
            bytes=int(2 * (rows * (layer.n + layer.k) + experts * layer.n * layer.k)), environment=environment,
            kernel_hash=sources if ours else "", config={"text": "hopper_cluster"} if ours else None,
            error=error if ours else None, error_budget=budget if ours else None,
        ))  # fmt: skip


def render(records: Iterable[Record]) -> str:
    """Markdown: one row a layer and number of tokens that is shown, its newest records; the means of all."""
    lines = [
        "| layer | experts, N x K | tokens | rows | " + " | ".join(f"{x}, TFLOP/s | x torch" for x in PASSES) + " |",
        "|" + "---|" * (4 + 2 * len(PASSES)),
    ]
    newest = by_candidate(records)
    ratios: dict[str, list[float]] = {what: [] for what in PASSES}
    rows: dict[str, dict[str, str]] = {}
    for x in newest:
        ours, p = x[OURS], x[OURS].problem
        ratio = x[TORCH].median_us / ours.median_us
        ratios[str(p["what"])].append(ratio)
        tokens, top = int(p["tokens"]), int(p["top"])
        if tokens not in SHOWN:
            continue
        head = f"| {p['model']} | {p['groups']}, {p['n']} x {p['k']} | {tokens} | {tokens * top} |"
        rows.setdefault(head, {})[str(p["what"])] = f" {ours.tflops:.{int(ours.tflops < 9.5)}f} | {ratio:.2f} |"
    lines += [head + "".join(cells.get(what, " | |") for what in PASSES) for head, cells in rows.items()]
    means = ", ".join(f"{what} {geometric_mean(of):.2f}" for what, of in ratios.items())
    of_all = f"Geometric means of torch's grouped_mm, of all {len(newest)}: {means}."
    head = f"{measured_on(newest[-1][OURS], KERNEL_SOURCES)} {of_all}"
    return "\n".join([head, "", *lines])


def main() -> None:
    """Command line."""
    measure_or_fill("Measure grouped_matmul and its gradients.", 7, run, "groups", render)


if __name__ == "__main__":
    main()

"""Calls that `patched` weighs, on layers of models: `python -m laneloom.bench.calls --out results/h200/calls.csv`.

Experts of 17 models beside torch's grouped_mm and scaled_grouped_mm, with the gradients of bf16: every token chooses
its experts at random, each launch has choices of its own. Linear layers in fp8 beside torch's _scaled_mm, with one
scale for each operand or one for each row and column, with fast accumulation and without. In interleaved runs,
captured in graphs; every result of ours is checked against FP64 before it is timed. `--page` fills a page's table from
the file.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..errors import LaneloomError
from ..ops.matmul.gemm import gemm
from ..ops.matmul.grouped import grouped_matmul
from ..pytorch.measurements import scaled_kind
from .matmul import compile_ahead
from .matmul_tiles import read_rows, write
from .products import relative_error
from .quantized_experts import Layer, choose, first_group
from .report import fill_pages, geometric_mean
from .timing import count_sets, interleave

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
WARMUP_S = 0.03
LARGEST_ERROR = 5e-3  #: relative, of a result in bf16, beside sums of 8-bit floats in the tensor cores
CHOICES = 4
SLOWEST = 8  #: shown on the page
MOST_FLOPS = 3e12
#: model, experts, experts of a token, width of an expert, width of the model, matrices of the first product
MODELS = (
    ("gpt-oss-20b", 32, 4, 2880, 2880, 2), ("gpt-oss-120b", 128, 4, 2880, 2880, 2),
    ("Qwen3-30B-A3B", 128, 8, 768, 2048, 2), ("Qwen3-235B-A22B", 128, 8, 1536, 4096, 2),
    ("Qwen3-Next-80B", 512, 10, 512, 2048, 2), ("Mixtral 8x7B", 8, 2, 14336, 4096, 2),
    ("Mixtral 8x22B", 8, 2, 16384, 6144, 2), ("DeepSeek-V3", 256, 8, 2048, 7168, 2),
    ("DeepSeek-V2-Lite", 64, 6, 1408, 2048, 2), ("OLMoE", 64, 8, 1024, 2048, 2), ("Phi-3.5-MoE", 16, 2, 6400, 4096, 2),
    ("Llama 4 Scout", 16, 1, 8192, 5120, 2), ("Llama 4 Maverick", 128, 1, 8192, 5120, 2),
    ("GLM-4.5-Air", 128, 8, 1408, 4096, 2), ("Granite 3 MoE", 40, 8, 512, 1536, 2),
    ("Hunyuan-A13B", 64, 8, 3072, 4096, 2), ("DBRX", 16, 4, 10752, 6144, 2),
)  # fmt: skip
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
TRAINED = 256  #: tokens, from which on gradients are measured
#: N and K of linear layers
LAYERS = (
    (1024, 1024), (3072, 1024), (2048, 2048), (8192, 2048), (2048, 8192), (4096, 4096), (6144, 4096), (28672, 4096),
    (4096, 14336), (5120, 5120), (27648, 5120), (5120, 27648), (8192, 8192), (57344, 8192), (8192, 28672),
    (2112, 7168), (4096, 7168), (7168, 2048), (24576, 1536), (7168, 16384),
)  # fmt: skip
ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


@dataclass(frozen=True)
class Row:
    """One call: what `laneloom.pytorch.measurements` has of it, and whose layer it is."""

    op: str
    kind: str
    sizes: str  #: joined by x
    model: str
    torch_us: float
    us: float

    @property
    def ratio(self) -> float:
        """Torch's time over ours."""
        return self.torch_us / self.us


class Call(NamedTuple):
    """What is timed side by side, for one place in the table."""

    op: str
    kind: str
    sizes: tuple[int, ...]
    theirs: Callable[[int], torch.Tensor]
    ours: Callable[[int], torch.Tensor]
    #: a part of the result, and its truth
    part: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    sets: int = CHOICES  #: of inputs, or choices, that launches take in turn


def _halves(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=BF16)


def expert_layers() -> Iterator[Layer]:
    """Both products of each model's experts."""
    for model, groups, top, width, k, matrices in MODELS:
        yield Layer(model, groups, top, matrices * width, k, "")
        yield Layer(model, groups, top, k, width, "")


def _choices(layer: Layer, tokens: int) -> tuple[list[torch.Tensor], int, int]:
    """Where groups end, for each launch; the first launch's first group that has rows, and where it ends."""
    ends = [choose(layer, tokens, seed) for seed in range(CHOICES)]
    return ends, *first_group(ends[0])


def calls_of_halves(layer: Layer, tokens: int) -> Iterator[Call]:
    """Of bf16 the product of experts, and from TRAINED tokens on its gradients."""
    groups, n, k, rows = layer.groups, layer.n, layer.k, tokens * layer.top
    ends, group, last = _choices(layer, tokens)
    b, a, d = _halves(groups, n, k), _halves(rows, k), _halves(rows, n)

    def of_rows(y: torch.Tensor, x: torch.Tensor) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
        return lambda c: (c[:last], x[:last].double() @ y[group].double())

    def of_k(c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return c[group], d[:last].double().mT @ a[:last].double()

    products = {"rows": (a, b.mT, (rows, n, k), of_rows(b.mT, a))}
    if tokens >= TRAINED:
        products["rows of dA"] = (d, b, (rows, k, n), of_rows(b, d))
        products["k"] = (d.mT, a, (n, k, rows), of_k)
    for what, (x, y, sizes, part) in products.items():
        yield Call(
            "grouped_matmul", f"bf16 {what.split()[0]}", (groups, *sizes),
            lambda i, x=x, y=y: F.grouped_mm(x, y, offs=ends[i]), lambda i, x=x, y=y: grouped_matmul(x, y, ends[i]),
            part,
        )  # fmt: skip


def calls_of_eighths(layer: Layer, tokens: int) -> Iterator[Call]:
    """Of fp8 the product of experts with scales of rows, both ways to add."""
    groups, n, k, rows = layer.groups, layer.n, layer.k, tokens * layer.top
    ends, group, last = _choices(layer, tokens)
    x, y = _halves(rows, k).to(FP8), _halves(groups, n, k).to(FP8).mT
    scale_a, scale_b = torch.rand(rows, device="cuda") + 0.5, torch.rand(groups, n, device="cuda") + 0.5

    def scaled(c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sums = x[:last].double() @ y[group].double()
        return c[:last], scale_a[:last, None].double() * sums * scale_b[group].double()

    for fast in (True, False):
        yield Call(
            "scaled_grouped_mm", scaled_kind("rows", fast), (groups, rows, n, k),
            lambda i, fast=fast: torch._scaled_grouped_mm(  # pyright: ignore[reportPrivateImportUsage]
                x, y, scale_a, scale_b, ends[i], out_dtype=BF16, use_fast_accum=fast),
            lambda i, fast=fast: grouped_matmul(
                x, y, ends[i], scale_a=scale_a, scale_b=scale_b, out_dtype=BF16,
                precision=None if fast else "promoted"),
            scaled,
        )  # fmt: skip


def calls_of_layer(m: int, n: int, k: int) -> Iterator[Call]:
    """fp8 with one scale for each operand, and with one for each row and column, both ways to add."""
    sets = min(count_sets(m * k + n * k + 2 * m * n), 16)
    a = [_halves(m, k).to(FP8) for _ in range(sets)]
    b = [_halves(n, k).to(FP8).mT for _ in range(sets)]
    one = torch.full((1, 1), 1.5, device="cuda")
    rows = torch.rand(m, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda") + 0.5
    first = slice(0, min(m, 256))
    for (what, scales), fast in product((("tensor", (one, one)), ("rows", rows)), (True, False)):

        def ours(i: int, scales=scales, fast=fast) -> torch.Tensor:
            of_a, of_b = (scale.reshape(-1) for scale in scales)
            how = None if fast else "promoted"
            return gemm(a[i], b[i], scale_a=of_a, scale_b=of_b, out_dtype=BF16, precision=how)

        def part(c: torch.Tensor, scales=scales) -> tuple[torch.Tensor, torch.Tensor]:
            of_a = scales[0].double().expand(m, 1)[first]
            return c[first], of_a * (a[0][first].double() @ b[0].double()) * scales[1].double()

        yield Call(
            "scaled_mm", scaled_kind(what, fast), (m, n, k),
            lambda i, scales=scales, fast=fast: torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
                a[i], b[i], *scales, out_dtype=BF16, use_fast_accum=fast),
            ours, part, sets,
        )  # fmt: skip


Place = tuple[Layer, int] | tuple[int, int, int]


def places() -> list[Place]:
    """Every layer and number of tokens, and every linear layer with its rows."""
    experts = [(x, t) for x, t in product(expert_layers(), TOKENS) if 2 * t * x.top * x.n * x.k < MOST_FLOPS]
    linear = [(m, n, k) for (n, k), m in product(LAYERS, ROWS) if 2 * m * n * k < MOST_FLOPS]
    return [*experts, *linear]


def _calls(place: Place) -> Iterator[Call]:
    if len(place) == 3:
        yield from calls_of_layer(*place)
        return
    yield from calls_of_halves(*place)
    if place[0].n % 16 == place[0].k % 16 == 0:  # torch takes no others
        yield from calls_of_eighths(*place)


def _call_once(place: Place) -> None:
    for call in _calls(place):
        call.ours(0)


def measure(place: Place, rounds: int) -> Iterator[Row]:
    """A row for each call. Raises LaneloomError for a wrong result."""
    for call in _calls(place):
        error = relative_error(*call.part(call.ours(0)))
        if not error <= LARGEST_ERROR:
            raise LaneloomError(f"{call.op} {call.kind} {call.sizes}: relative error {error:.2e}")
        candidates = {"torch": call.theirs, "ours": call.ours}
        timings = interleave(candidates, call.sets, rounds=rounds, reference="torch", warmup_s=WARMUP_S)
        model = place[0].model if len(place) == 2 else ""
        times = (round(timings[name].median_us, 2) for name in ("torch", "ours"))
        yield Row(call.op, call.kind, "x".join(map(str, call.sizes)), model, *times)


def read(path: Path) -> list[Row]:
    """The rows of a file that `main` wrote."""
    return read_rows(path, Row)


def render(rows: Iterable[Row]) -> str:
    """Markdown: for each kind how many, the mean and how they are spread; the slowest."""
    kinds: dict[tuple[str, str], list[float]] = defaultdict(list)
    rows = list(rows)
    for row in rows:
        kinds[row.op, row.kind].append(row.ratio)
    lines = ["| torch's function | operands | calls | mean x torch | least | median | under 0.97 |", "|---" * 7 + "|"]
    names = {"grouped_matmul": "F.grouped_mm", "scaled_grouped_mm": "F.scaled_grouped_mm", "scaled_mm": "F.scaled_mm"}
    for (op, kind), ratios in kinds.items():
        ratios.sort()
        lines.append(
            f"| {names[op]} | {kind} | {len(ratios)} | {geometric_mean(ratios):.3f} | {ratios[0]:.2f} | "
            f"{ratios[len(ratios) // 2]:.2f} | {sum(ratio < 0.97 for ratio in ratios)} |"
        )
    lines += ["", "| slowest | operands | sizes | layer of | us | x torch |", "|---" * 6 + "|"]
    for row in sorted(rows, key=lambda row: row.ratio)[:SLOWEST]:
        sizes = row.sizes.replace("x", " x ")
        lines.append(f"| {names[row.op]} | {row.kind} | {sizes} | {row.model} | {row.us:.1f} | {row.ratio:.2f} |")
    return "\n".join(lines)


def run(path: Path, rounds: int, jobs: int) -> None:
    """Measure every call and write `path`."""
    every = places()
    if jobs > 1:
        compile_ahead([place for place in every if len(place) == 3], jobs, _call_once)  # others are few kernels
    rows = []
    for place in every:
        for row in measure(place, rounds):
            rows.append(row)
            print(f"{row.op} {row.kind} {row.sizes}: {row.us} us, {row.ratio:.3f} x torch", flush=True)
        torch.cuda.empty_cache()
        write(path, rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure calls that patched weighs, on layers of models.")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write, or to read with --page")
    parser.add_argument("--page", type=Path, help="measure nothing: fill this page's table from the file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    arguments = parser.parse_args()
    if arguments.page is None:
        run(arguments.out, arguments.rounds, arguments.jobs)
    else:
        fill_pages([arguments.page], {"calls": render(read(arguments.out))})


if __name__ == "__main__":
    main()

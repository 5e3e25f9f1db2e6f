"""Random linear layers of models beside torch.matmul on one Hopper GPU: sides that models have, any number of rows.

`python -m laneloom.bench.matmul_layers --out results/h200/layers.csv --jobs 16` measures LAYERS of them for each seed,
in bf16 and fp16, most of them NT (torch.nn.functional.linear), each checked against FP64, and
`--render results/h200/layers.csv docs/hopper-gemm-products.md --readme README.md` writes what came out into the pages.
The same with `--gradients` and results/h200/layer_gradients.csv: the two products of the backward of such layers.
`bench.matmul_tiles --models` measures many configs of the same products.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from ..ops.matmul.config import plan
from ..ops.target import active_gpu
from .matmul import compile_ahead, measure
from .matmul_cases import (
    GRADIENT_LAYERS,
    GRADIENT_ROWS,
    LAYER_SEEDS,
    LAYERS,
    Case,
    random_layer_gradients,
    random_layers,
)
from .matmul_tiles import read_rows, write
from .report import fill_pages
from .timing import METHOD_SUSTAINED
from .wide_report import SLOW

GROUPS = ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 12288))  #: of rows, in the page's table
SLOWEST = 12  #: products that the page lists


@dataclass(frozen=True)
class Row:
    """One product: our time and torch.matmul's in the same rounds, in microseconds, and both relative errors."""

    dtype: str
    layout: str
    m: int
    n: int
    k: int
    us: float
    ratio: float  #: torch's time over ours, median of rounds
    error: float
    torch_error: float
    config: str


def summarise(rows: Sequence[Row]) -> str:
    """Markdown: a sentence."""
    ratios = sorted(row.ratio for row in rows)
    return (
        f"{len(ratios)} random linear layers of models (sides that models have, 1 to 12288 rows, bf16 and fp16): "
        f"{geometric_mean(ratios):.3f} x torch.matmul on average, median {ratios[len(ratios) // 2]:.2f}, "
        f"{sum(ratio < SLOW for ratio in ratios)} under {SLOW}."
    )


def render(rows: Sequence[Row]) -> str:
    """Markdown: by rows, then the slowest beside torch."""
    lines = [summarise(rows), "", "| rows | products | x torch | least | median | most |", "|---" * 6 + "|"]
    for first, last in GROUPS:
        ratios = sorted(row.ratio for row in rows if first <= row.m <= last)
        lines.append(
            f"| {first} to {last} | {len(ratios)} | {geometric_mean(ratios):.3f} | {ratios[0]:.2f} | "
            f"{ratios[len(ratios) // 2]:.2f} | {ratios[-1]:.2f} |"
        )
    return "\n".join([*lines, "", *_slowest(rows)])


def summarise_gradients(rows: Sequence[Row]) -> str:
    """Markdown: a sentence."""
    ratios = [row.ratio for row in rows]
    of_x, of_w = (geometric_mean(row.ratio for row in rows if row.layout == layout) for layout in ("nn", "tn"))
    return (
        f"{len(rows)} gradients of linear layers of models ({min(GRADIENT_ROWS)} to {max(GRADIENT_ROWS)} tokens, "
        f"bf16 and fp16): dX = dY W {of_x:.3f}, dW = dY^T X {of_w:.3f} x torch.matmul on average, "
        f"{sum(ratio < SLOW for ratio in ratios)} under {SLOW}."
    )


def render_gradients(rows: Sequence[Row]) -> str:
    """Markdown: by tokens, then the slowest beside torch."""
    head = "| tokens | layers | dX: x torch | least | dW: x torch | least |"
    lines = [summarise_gradients(rows), "", head, "|---" * 6 + "|"]
    for tokens in GRADIENT_ROWS:
        of_x = [row.ratio for row in rows if (row.layout, row.m) == ("nn", tokens)]
        of_w = [row.ratio for row in rows if (row.layout, row.k) == ("tn", tokens)]
        cells = (f"{geometric_mean(ratios):.3f} | {min(ratios):.2f}" for ratios in (of_x, of_w))
        lines.append(f"| {tokens} | {len(of_x)} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_slowest(rows)])


def _slowest(rows: Sequence[Row]) -> list[str]:
    lines = ["| slowest: M x N x K | layout | dtype | us | x torch | what ran |", "|---" * 6 + "|"]
    for row in sorted(rows, key=lambda row: row.ratio)[:SLOWEST]:
        schedule = row.config.partition(":")[0].removeprefix("hopper_")
        sizes = f"{row.m} x {row.n} x {row.k}"
        lines.append(f"| {sizes} | {row.layout.upper()} | {row.dtype} | {row.us:.2f} | {row.ratio:.2f} | {schedule} |")
    return lines


@dataclass(frozen=True)
class Kind:
    """What is drawn, and what pages say of it."""

    draw: Callable[[int, int], list[Case]]  #: of a seed, so many layers
    count: int  #: of one seed
    place: str  #: on a page
    render: Callable[[Sequence[Row]], str]
    summarise: Callable[[Sequence[Row]], str]


FORWARD = Kind(random_layers, LAYERS, "layers", render, summarise)
GRADIENTS = Kind(random_layer_gradients, GRADIENT_LAYERS, "layer gradients", render_gradients, summarise_gradients)


def read(path: Path) -> list[Row]:
    """The rows of a file that `main` wrote."""
    return read_rows(path, Row)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure random linear layers of models on Hopper.")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--render", type=Path, nargs="+", metavar=("CSV", "PAGE"), help="fill pages from a file")
    parser.add_argument("--readme", type=Path, help="page that gets the summary alone")
    parser.add_argument("--gradients", action="store_true", help="both products of their backward, in place of them")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(LAYER_SEEDS))
    parser.add_argument("--count", type=int, help="layers of each seed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    arguments = parser.parse_args()
    kind = GRADIENTS if arguments.gradients else FORWARD
    if arguments.render:
        rows = read(arguments.render[0])
        fill_pages(arguments.render[1:], {kind.place: kind.render(rows)})
        if arguments.readme:
            fill_pages([arguments.readme], {f"{kind.place} summary": kind.summarise(rows)})
        return
    if arguments.out is None:
        parser.error("--out or --render")
    gpu, rows = active_gpu(), []
    cases = [case for seed in arguments.seeds for case in kind.draw(seed, arguments.count or kind.count)]
    compile_ahead(cases, arguments.jobs)
    for case in cases:
        timings, errors = measure(case, rounds=arguments.rounds, single=False)
        p, ours = case.problem, timings[METHOD_SUSTAINED]["laneloom"]
        us, ratio = round(ours.median_us, 2), round(ours.ratio_to_reference, 4)
        error, torch_error = float(f"{errors.ours:.2e}"), float(f"{errors.theirs:.2e}")
        rows.append(Row(
            case.dtype, case.layout, p.m, p.n, p.k, us, ratio, error, torch_error, plan(p, gpu).text,
        ))  # fmt: skip
        print(f"{p.m} x {p.n} x {p.k} {case.layout} {case.dtype}: {us:.2f} us, {ratio:.3f} x torch", flush=True)
        write(arguments.out, rows)
    print(kind.summarise(rows))


if __name__ == "__main__":
    main()

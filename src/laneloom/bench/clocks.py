"""How fast large products run in the first seconds after a pause: `python -m laneloom.bench.clocks --help`.

A GPU that was idle starts at its highest clock, draws more power than it may, and is slowed down after some 50 ms.
Which of two kernels is faster depends on the side of that moment: before it, what a tile waits for counts, after it,
what draws power for nothing. Laneloom and torch.matmul are replayed in turns, as `timing.interleave` does, and every
round is kept with the time at which it began.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

from .matmul import check, keep, make_inputs
from .matmul_cases import Case, make_case
from .plots import pyplot_for, save_figure
from .records import Record, load, read_environment
from .report import OURS, fill_page
from .timing import Timing, capture, replay_round

METHOD_CLOCKS = "clocks: interleaved CUDA-graph replays after a pause, median over the rounds of a span"
GROUP = "clocks"
PRODUCTS = (
    (2048, "bf16", "nn"), (4096, "bf16", "nn"), (4096, "bf16", "nt"), (8192, "bf16", "nn"), (4096, "fp8", "nt"),
    (8192, "fp8", "nt"),
)  # fmt: skip
COLOURS = ("#d29922", "#1f6feb", "#2da44e")  #: of three sizes
PAUSE_S = 2.0
#: seconds after the pause, at which one span ends and the next begins
SPANS = (0.0, 0.02, 0.04, 0.06, 0.1, 0.2, 0.5, 1.0, 2.0)


def trace(case: Case) -> dict[str, list[tuple[float, float]]]:
    """Of each candidate, when each round began, in seconds after the pause, and microseconds a launch in it."""
    inputs = make_inputs(case)
    check(case, inputs)
    graphs = capture(inputs.candidates, len(inputs.outs))
    torch.cuda.synchronize()
    time.sleep(PAUSE_S)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in graphs}
    began, number = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < SPANS[-1]:
        for name, us in replay_round(graphs, number).items():
            found[name].append((seconds, us))
        number += 1
    return found


def run(path: Path) -> None:
    """Measure PRODUCTS and append a record for each candidate and span to `path`."""
    environment = read_environment()
    for size, kind, layout in PRODUCTS:
        case = make_case(GROUP, layout, kind, (size, size, size))
        found = trace(case)
        reference = next(iter(found))
        for first, last in pairwise(SPANS):
            spans = {name: [us for s, us in rounds if first <= s < last] for name, rounds in found.items()}
            by_name = {name: Timing.from_samples(samples, spans[reference]) for name, samples in spans.items()}
            keep(path, environment, case, METHOD_CLOCKS, by_name, from_s=first, to_s=last)
            ratio = by_name[OURS].ratio_to_reference
            print(f"{size} cubed {kind} {layout}, {first} to {last} s: {ratio:.3f} x torch", flush=True)


def _product(record: Record) -> str:
    problem = record.problem
    return f"{problem['m']} cubed, {problem['dtype']}, {str(problem['layout']).upper()}"


def render(records: Sequence[Record]) -> str:
    """A row for each product: laneloom's TFLOP/s and its ratio to torch in each span."""
    spans = list(dict.fromkeys((r.problem["from_s"], r.problem["to_s"]) for r in records))
    heads = [f"{1000 * first:g} to {1000 * last:g} ms" for first, last in spans]
    lines = ["| product | " + " | ".join(heads) + " |", "|" + "---|" * (len(spans) + 1)]
    ours = [r for r in records if r.candidate == OURS]
    for name in dict.fromkeys(map(_product, ours)):
        mine = [r for r in ours if _product(r) == name]
        cells = [f"{r.tflops:.0f}, {r.ratio_to_reference:.3f}" for r in mine]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(records: Sequence[Record], path: Path) -> None:
    """TFLOP/s of the bf16 squares in layout NN over the time since the pause, ours and torch's; needs matplotlib."""
    figure, axes = pyplot_for(path).subplots(figsize=(7, 4.2))
    shown = [r for r in records if (r.problem["dtype"], r.problem["layout"]) == ("bf16", "nn")]
    sizes = dict.fromkeys(r.problem["m"] for r in shown)
    for size, colour in zip(sizes, COLOURS, strict=True):
        for candidate in dict.fromkeys(r.candidate for r in shown):
            points = [((r.problem["from_s"] + r.problem["to_s"]) * 500, r.tflops)
                      for r in shown if r.problem["m"] == size and r.candidate == candidate]  # fmt: skip
            axes.plot(*zip(*points, strict=True), "-" if candidate == OURS else ":", marker="o", color=colour,
                      label=f"{size} cubed, {candidate}")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("ms after a pause")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"bf16 NN, one {records[0].environment.gpu}")
    axes.grid(True, linewidth=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    save_figure(figure, path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Time large products in the first seconds after a pause.")
    parser.add_argument("records", type=Path, help="file of records: appended to, or read with --page or --picture")
    parser.add_argument("--page", type=Path, help="a page with a place for the table, which is filled")
    parser.add_argument("--picture", type=Path, help="where the picture goes, an .svg file")
    arguments = parser.parse_args()
    if arguments.page is None and arguments.picture is None:
        run(arguments.records)
        return
    records = load(arguments.records)
    if arguments.page is not None:
        fill_page(arguments.page, {"clocks": render(records)})
    if arguments.picture is not None:
        plot(records, arguments.picture)


if __name__ == "__main__":
    main()

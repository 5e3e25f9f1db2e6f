"""The tables of docs/several-gpus.md, from the records of `laneloom.bench.distributed`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .distributed_cases import COMPUTED, MOVED, OURS
from .records import Record, load
from .report import fill_page

_TORCH = {
    "all_gather_matmul": ("torch: all_gather, matmul", "torch: fused_all_gather_matmul"),
    "matmul_reduce_scatter": ("torch: matmul, reduce_scatter", "torch: fused_matmul_reduce_scatter"),
    "ring_attention": ("torch: context_parallel", "torch: all_gather, attention"),
}
_P2P = "laneloom, p2p"

Times = Mapping[tuple[str, bool], Record]  #: by candidate, and whether it was captured in a graph


def _by_problem(records: Iterable[Record], op: str) -> list[tuple[dict[str, Any], Times]]:
    """Of each problem, in the order in which they first appear, the newest record of each candidate."""
    found: dict[str, tuple[dict[str, Any], dict[tuple[str, bool], Record]]] = {}
    for record in records:
        if record.op == op:
            problem = dict(record.problem)
            _, times = found.setdefault(str(problem), (problem, {}))
            times[record.candidate, "captured" in record.method] = record
    return sorted(found.values(), key=lambda entry: entry[0]["ranks"])


def _cell(times: Times, name: str) -> str:
    """ "180 / 190": in a graph and eager, in microseconds."""
    values = [times.get((name, captured)) for captured in (True, False)]
    return " / ".join("-" if record is None else f"{record.median_us:.0f}" for record in values)


def hidden(times: Times) -> float:
    """The share of the shorter part of a captured call, computing or moving, that the longer one hides."""
    ours, computed, moved = (times[name, True].median_us for name in (OURS, COMPUTED, MOVED))
    return (computed + moved - ours) / min(computed, moved)


def gain(times: Times, others: Sequence[str], *, captured: bool) -> float:
    """The time of the fastest of `others` over laneloom's."""
    theirs = [times[name, captured].median_us for name in others if (name, captured) in times]
    return min(theirs) / times[OURS, captured].median_us


def render(records: Iterable[Record], op: str) -> str:
    """Markdown: a row for each problem and number of GPUs."""
    first, second = _TORCH[op]
    labels = [name.removeprefix("torch: ") for name in (first, second)]
    lines = [
        f"| problem | GPUs | {labels[0]} | {labels[1]} | laneloom | p2p | computed alone | moved alone | hidden "
        "| torch's best over laneloom |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for problem, times in _by_problem(records, op):
        cells = " | ".join(_cell(times, name) for name in (first, second, OURS, _P2P, COMPUTED, MOVED))
        gains = " / ".join(f"{gain(times, (first, second), captured=captured):.2f}" for captured in (True, False))
        lines.append(f"| {_words(problem)} | {problem['ranks']} | {cells} | {hidden(times):.0%} | {gains} |")
    return "\n".join(lines)


def _words(problem: Mapping[str, Any]) -> str:
    if "length" in problem:
        heads = "{heads}:{kv_heads}".format(**problem)
        return f"{problem['length']}, {heads} heads{', causal' if problem['causal'] else ''}"
    return "{m} x {n} x {k}".format(**problem)


def render_transform(records: Iterable[Record]) -> str:
    """Markdown: a row for each K and number of GPUs."""
    lines = ["| K, tensors | GPUs | three products of torch | laneloom | without DTensor |", "|---|---|---|---|---|"]
    for problem, times in _by_problem(records, "transform3d"):
        cells = " | ".join(_cell(times, name) for name in ("torch: three products", OURS, COMPUTED))
        lines.append(f"| {problem['k']}, {problem['count']} | {problem['ranks']} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Fill the page's tables from a file of records."""
    parser = argparse.ArgumentParser(description="Fill docs/several-gpus.md from results/h200/distributed.jsonl.")
    parser.add_argument("records", type=Path)
    parser.add_argument("page", type=Path)
    arguments = parser.parse_args()
    records = load(arguments.records)
    fill_page(arguments.page, {op: render(records, op) for op in _TORCH} | {"transform3d": render_transform(records)})


if __name__ == "__main__":
    main()

"""Tables of `bench.matmul`'s records of a GPU beside the one that the suite's tables are of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .matmul_cases import KINDS, OUTSIDE, RANDOM
from .records import Record, load
from .report import config_words, fill_page, fill_pages, geometric_mean, latest, sizes_of

GROUPS = {"": "the suite", OUTSIDE: "sizes outside of it", RANDOM: "random sizes", KINDS: "other kinds"}


def render_kinds(records: Iterable[Record]) -> str:
    """Markdown: products of 8 bits and of FP32 on the tensor cores, the slowest of each kind first."""
    newest = latest(records)
    rows = sorted(newest, key=lambda r: r.ratio_to_reference)
    lines = ["| kind | M x N x K | layout | us | x sustained | error | what ran |", "|---|---|---|---|---|---|---|"]
    for kind in dict.fromkeys(str(r.problem["dtype"]) for r in newest):
        for record in (r for r in rows if r.problem["dtype"] == kind):
            error = f"{record.error:.1e}" if record.error else ""
            lines.append(
                f"| {kind} | {sizes_of(record)} | {str(record.problem['layout']).upper()} | {record.median_us:.2f} "
                f"| {record.ratio_to_reference:.3f}{' (noisy)' * record.noisy} | {error} | {config_words(record)} |"
            )
    return "\n".join(lines)


def summarise_groups(records: Iterable[Record], groups: Mapping[str, str]) -> str:
    """Markdown: the ratios of each group and dtype; `groups`: what its name stands for, "" for all others."""
    records = latest(records)
    lines = ["| products | kind | number | x torch | least | where | under 0.97 |", "|---|---|---|---|---|---|---|"]
    for group, words in groups.items():
        mine = [r for r in records if (r.problem["group"] if r.problem["group"] in groups else "") == group]
        for kind in dict.fromkeys(r.problem["dtype"] for r in mine):
            of_kind = [r for r in mine if r.problem["dtype"] == kind]
            ratios = [r.ratio_to_reference for r in of_kind]
            least = min(of_kind, key=lambda r: r.ratio_to_reference)
            cells = [words, kind, len(ratios), f"{geometric_mean(ratios):.3f}", f"{min(ratios):.3f}"]
            slow = sum(ratio < 0.97 for ratio in ratios)
            cells += [f"{sizes_of(least)} {str(least.problem['layout']).upper()}", slow]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def of_the_suite(records: Sequence[Record], groups: Iterable[str]) -> str:
    """Markdown: the mean of each kind outside of the groups, in a sentence."""
    suite = [r for r in latest(records) if r.problem["group"] not in groups]
    means = {
        kind: geometric_mean([r.ratio_to_reference for r in suite if r.problem["dtype"] == kind])
        for kind in dict.fromkeys(str(r.problem["dtype"]) for r in suite)
    }
    least = min(r.ratio_to_reference for r in suite)
    return f"{', '.join(f'{kind} {mean:.2f}' for kind, mean in means.items())}; the least of {len(suite)} {least:.3f}."


def fill(records: Path, pages: Sequence[Path], readme: Path | None) -> None:
    """Put the tables into the pages that have their places, and a sentence into README."""
    every = [record for record in load(records) if record.op == "matmul"]
    kinds = render_kinds(record for record in every if record.problem["group"] == KINDS)
    fill_pages(pages, {"other gpu": summarise_groups(every, GROUPS), "kinds": kinds})
    if readme is not None:
        fill_page(readme, {"other gpu": of_the_suite(every, GROUPS)})

"""`laneloom compare OLD NEW`: what changed between two files of records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..errors import ArgumentError
from ..isa.words import counted
from .terminal import new_console, print_json, print_table

if TYPE_CHECKING:
    from ..bench.changes import Comparison


def compare_files(old: str, new: str, as_json: bool) -> None:
    """Statistics, then each of laneloom's figures that moved beyond its noise. Exit 1 where something is slower."""
    from ..bench.changes import compare_records
    from ..bench.records import load

    for name in (old, new):
        if not Path(name).is_file():
            raise ArgumentError(f"no file {name}: expected benchmark records, JSON lines")
    comparison = compare_records(load(old), load(new))
    if not comparison.changes:
        raise ArgumentError(f"{old} and {new} have no problem in common that laneloom was measured on")
    if as_json:
        print_json(comparison.to_dict())
    else:
        _show(comparison)
    if comparison.count("slower"):
        raise typer.Exit(1)


def _show(comparison: Comparison) -> None:
    from rich import box
    from rich.table import Table

    from ..bench.changes import LEAST_CHANGE
    from .bench import problem_text

    console = new_console()
    low, high = comparison.interval
    console.print(
        f"{counted(len(comparison.changes), 'figure')} in both ({comparison.only_old} only in the old, "
        f"{comparison.only_new} only in the new). Speedup {comparison.mean:.4f} in the geometric mean, 95% of "
        f"resamplings {low:.4f} to {high:.4f}. {comparison.count('faster')} faster, "
        f"{comparison.count('slower')} slower, {comparison.count('same')} the same within their interquartile ranges "
        f"and {LEAST_CHANGE:.0%}.",
        soft_wrap=True,
    )
    moved = [change for change in comparison.changes if change.verdict != "same"]
    if not moved:
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("problem", "old us", "new us", "speedup", "interval", "of", ""):
        left = heading in ("problem", "of", "")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "problem")
    for change in moved:
        style = "green" if change.verdict == "faster" else "red"
        table.add_row(
            f"{change.op} {problem_text(change.problem)}", f"{change.old_us:.2f}", f"{change.new_us:.2f}",
            f"{change.speedup:.3f}", f"{change.interval[0]:.3f} to {change.interval[1]:.3f}", change.by,
            f"[{style}]{change.verdict}[/]",
        )  # fmt: skip
    print_table(table)

"""`laneloom isa --check`: findings about machine code, as a list for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from ..errors import ArgumentError
from ..isa.finding import RULES, Severity
from ..isa.words import counted
from .terminal import new_console

if TYPE_CHECKING:
    from ..isa.check import Report

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.HINT: "cyan"}
_SHOWN = 6  #: findings of one rule in one kernel; --json has all


def read_counts(path: Path, gpu: str | None) -> dict[int, tuple[int, int]]:
    """Line -> LDS clocks and those of conflicts, from the JSON of `laneloom emulate --profile --json` on that GPU."""
    try:
        record: Any = json.loads(path.read_text())
        launches, counted_on = record["profile"], record["gpu"]
        rows = [row for launch in launches for row in launch["instructions"]]
        counts = {row["line"]: (row["lds_clocks"], row.get("conflicts", 0)) for row in rows if "lds_clocks" in row}
    except OSError as error:
        raise ArgumentError(f"--profile: cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise ArgumentError(f"--profile: {path} is not what `laneloom emulate --profile --json` prints") from None
    if gpu is not None and counted_on != gpu:  # whose listing has other lines
        raise ArgumentError(f"--profile: {path} was counted on {counted_on}, the code is for {gpu}")
    return counts


def show(reports: tuple[Report, ...]) -> None:
    """Every report as text."""
    console = new_console()
    if not console.is_terminal:  # a pipe has no width: do not cut lines at an assumed one
        console = new_console(width=200)
    for report in reports:
        said = counted(report.instructions, "instruction")
        if not report.gpu.startswith("gfx9"):  # CDNA has no pairs
            said += f", {counted(report.pairs, 'dual-issue pair')}"
        console.print(f"[bold]{escape(report.kernel or 'code')}[/] for {report.gpu}: {said}", highlight=False)
        if not report.findings:
            console.print("  nothing found")
        for rule, count in report.counts.items():
            _show_rule(console, report, rule, count)


def _show_rule(console: Any, report: Report, name: str, count: int) -> None:
    rule = RULES[name]
    style = _STYLES[rule.severity]
    console.print(f"\n  [{style}]{rule.severity}[/] [bold]{name}[/] ({count}): {escape(rule.why)}")
    for finding in [f for f in report.findings if f.rule == name][:_SHOWN]:
        source = f"  ({finding.source})" if finding.source else ""
        console.print(f"    line {finding.line}: {escape(finding.text)}[dim]{escape(source)}[/]", highlight=False)
        console.print(f"      {escape(finding.what)}", highlight=False)
    if count > _SHOWN:
        console.print(f"    and {count - _SHOWN} more; --json lists all")
    console.print(f"    [dim]do: {escape(rule.fix)}\n    basis: {escape(rule.basis)}[/]", highlight=False)


def to_dict(reports: tuple[Report, ...]) -> Mapping[str, Any]:
    """The command's JSON."""
    return {"clean": all(r.clean for r in reports), "kernels": [r.to_dict() for r in reports]}

"""`laneloom report`: every record as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ArgumentError
from .terminal import check_writable, new_console, working


def report(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page.")] = Path("report.html"),
    results: Annotated[
        Path | None, typer.Option("--results", metavar="FOLDER", help="Of *.jsonl records; by default the checkout's.")
    ] = None,
) -> None:
    """Write one page with every record.

    Roofline, sweeps, tables, tuned configs, and what is out of date. It holds its pictures and fetches nothing. Needs
    no GPU.
    """
    from ..bench.html_report import report_page

    folder = results or Path(__file__).parents[3] / "results"
    if not folder.is_dir():
        installed = "" if results else ": records stand in laneloom's repository, not in what pip installs"
        raise ArgumentError(f"--results: {folder} is no folder{installed}")
    check_writable("--output", output)
    with working(f"Reading the records in {folder}"):
        page = report_page(folder)
    output.write_text(page, encoding="utf-8")
    new_console().print(f"{output}: {len(page) // 1024} KiB", soft_wrap=True)

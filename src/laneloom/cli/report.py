"""`laneloom report`: every record as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ArgumentError
from .terminal import new_console


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
        raise ArgumentError(f"--results: {folder} is no folder")
    page = report_page(folder)
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"--output: cannot write {output}: {error.strerror or error}") from None
    new_console().print(f"{output}: {len(page) // 1024} KiB", soft_wrap=True)

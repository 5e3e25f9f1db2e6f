"""How commands write: one rich console for people, strict JSON for programs, files that are tried before the work."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LEAST_WIDTH = 40  #: characters; rich drops what finds no room in fewer, all of it where COLUMNS is 0


def new_console(**options: Any) -> Console:
    """A console on standard output that colours only what is told to be coloured; plain text in a pipe."""
    from rich.console import Console  # a sixth of the time that every command takes to start

    console = Console(highlight=False, **options)
    if "width" not in options and console.width < _LEAST_WIDTH:
        console.width = _LEAST_WIDTH
    return console


def print_table(table: Table) -> None:
    """A table on standard output, past the edge of a narrow terminal or a pipe's 80 characters rather than with
    figures cut off: no column is narrower than its longest word, or line where it does not wrap. At most one may
    wrap: several would have to share what is missing, which rich does at the cost of words."""
    wide = new_console(width=1000)
    for column in table.columns:
        found = [wide.measure(cell) for cell in (column.header, *column.cells)]
        least = max(size.maximum if column.no_wrap else size.minimum for size in found)
        column.min_width = max(least, column.min_width or 0)
    new_console(width=max(new_console().width, wide.measure(table).minimum)).print(table)


def print_json(value: Any) -> None:
    """`value` as JSON on standard output; numbers that JSON lacks (NaN, infinity) become null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def check_writable(option: str, path: Path) -> None:
    """A file that a command will write: better refused now than after the work."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        raise ArgumentError(f"{option}: cannot write {path}: {error.strerror or error}") from None


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

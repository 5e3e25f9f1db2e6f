"""How commands write: one rich console for people, strict JSON for programs, files that are tried before the work."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError

if TYPE_CHECKING:
    import typer
    from rich.console import Console, RenderableType
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
    wrap: several would have to share what is missing, which rich does at the cost of words. What is the same in all
    rows of a table that a terminal is too narrow for stands below it."""
    console = new_console()
    same = fit(table, console.width) if console.is_terminal else []
    new_console(width=max(console.width, least_width(table))).print(table)
    if same:
        console.print(f"in every row: {', '.join(same)}", style="dim")


def print_facts(*parts: RenderableType) -> None:
    """Headings and what belongs to them, or a listing, within a terminal's width. A pipe has none: a config stays one
    word there, and no line is cut."""
    console = new_console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 1000
    console.print(*parts)


def least_width(table: Table) -> int:
    """Characters of the table's lines, no column of which becomes narrower than its longest word from here on."""
    wide = new_console(width=1000)
    for column in table.columns:
        found = [wide.measure(cell) for cell in (column.header, *column.cells)]
        least = max(size.maximum if column.no_wrap else size.minimum for size in found)
        column.min_width = max(least, column.min_width or 0)
    return wide.measure(table).minimum


def fit(table: Table, width: int) -> list[str]:
    """Take columns that say the same in all rows out of a table wider than `width`, as heading and cell, and the
    space between columns if it is too wide even so."""
    same: list[str] = []
    for column in table.columns[1:]:
        cells = [str(cell) for cell in column.cells]
        if least_width(table) > width and len(cells) > 1 and len(set(cells)) == 1:
            table.columns.remove(column)
            same += [f"{column.header} {cells[0]}"] * bool(cells[0])
    if least_width(table) > width:
        table.collapse_padding = True
    return same


def print_json(value: Any) -> None:
    """`value` as JSON on standard output; numbers that JSON lacks (NaN, infinity) become null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


@contextmanager
def working(text: str) -> Iterator[None]:
    """What takes its time, as a line on a terminal's standard error until it is done; the emulator's own signs of life
    (`emulator.heartbeat`) write over it. A pipe gets the results alone."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    most = shutil.get_terminal_size().columns - 1  # a second line would stay
    sys.stderr.write(f"\r{text[:most]}\x1b[K")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def check_writable(option: str, path: Path) -> None:
    """A file that a command will write: better refused now than after the work, whose failure leaves no empty one."""
    if str(path) == "-":  # standard output in other programs; here it has what the command says
        raise ArgumentError(f"{option}: expected the name of a file, got '-'")
    try:
        there = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if not there:
            path.unlink()
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


def given_options(ctx: typer.Context, but: Collection[str] = ()) -> list[str]:
    """The options that the command line has itself, without those in `but`."""
    found = []
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.param_type_name == "option" and source is not None and source.name == "COMMANDLINE":
            found.append(parameter.opts[0])
    return [option for option in found if option not in but]

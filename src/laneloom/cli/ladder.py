"""`laneloom ladder`: the levels of an operation side by side, from the plainest kernel to laneloom's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .product import AsJson
from .terminal import new_console, print_json

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, short_help="Levels side by side.")

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.transform3d_rungs import Ladder

_EMULATED_K = (4, 6, 8)  #: without --gpu's own -K: seconds each


@app.callback()
def ladder() -> None:
    """Compare the levels of an operation, from the plainest kernel to laneloom's own."""


@app.command()
def transform3d(
    k: Annotated[list[int] | None, typer.Option("-K", help="An order; give it as often as you like.")] = None,
    nfuncs: Annotated[int, typer.Option("-N", min=1, help="Tensors in the batch.")] = 2048,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Check in this GPU's emulator and predict its times (gfx11, gfx12).")
    ] = None,
    records: Annotated[
        Path | None, typer.Option("--records", help="Show this file of records; measure nothing.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the rates into this .svg or .png file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Levels x K of the batched 3-D transform: TFLOP/s (6 K^4), share of the bandwidth limit, memory held.

    Measured where there is a GPU. Elsewhere the checkout's own records of an H200, or with --gpu a prediction, after
    each level was checked against FP64 in the emulator.
    """
    from ..bench import transform3d_rungs as rungs

    if gpu is not None:
        found = rungs.predict_rungs(gpu, k or _EMULATED_K, nfuncs)
    else:
        found = rungs.find_rungs(k, nfuncs, records)
    if plot is not None:
        rungs.plot_rungs(found, plot)
    if as_json:
        print_json(found.to_dict())
        return
    console = new_console()
    console.print(found.headline)
    console.print(_table(found))
    for rung in found.rungs:
        if rung.refused:
            console.print(f"{rung.level}, K={rung.k}: {rung.refused}")
    if plot is not None:
        console.print(f"Plot: {plot}")


def _table(found: Ladder) -> Table:
    from rich.table import Table

    table = Table(caption="TFLOP/s, share of the bandwidth limit, device memory held", show_lines=True)
    table.add_column("level", no_wrap=True)
    for order in found.orders:
        table.add_column(f"K={order}", justify="right", no_wrap=True)
    for level in found.levels:
        row = [found.at(level, order) for order in found.orders]
        table.add_row(level, *("-" if rung is None or rung.refused else rung.cell for rung in row))
    return table

"""`laneloom ladder`: the levels of an operation side by side, from the plainest kernel to laneloom's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ArgumentError, UnsupportedError
from ..gpu import get_gpu
from .product import AsJson
from .terminal import check_writable, new_console, print_json, print_table, working

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, short_help="Levels side by side.")

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench import sgemm_rungs
    from ..bench.transform3d_rungs import Ladder

_EMULATED_K = (4, 6, 8)  #: without --gpu's own -K: seconds each


@app.callback()
def ladder() -> None:
    """Compare the levels of an operation, from the plainest kernel to laneloom's own."""


@app.command()
def transform3d(
    k: Annotated[list[int] | None, typer.Option("-K", min=1, help="An order; give it as often as you like.")] = None,
    nfuncs: Annotated[int, typer.Option("-N", min=1, help="Tensors in the batch.")] = 2048,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Check in this GPU's emulator; predict its times (not CDNA 1, 2).")
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

    if gpu is not None and records is not None:
        raise ArgumentError("--records: with --gpu levels are emulated and predicted, no records are shown")
    _check_plot(plot)
    if gpu is not None:
        with working(f"Checking and predicting every level on {gpu}"):
            found = rungs.predict_rungs(gpu, k or _EMULATED_K, nfuncs)
    else:
        found = rungs.find_rungs(k, nfuncs, records)
    if all(rung.refused for rung in found.rungs):
        first = found.rungs[0]
        raise UnsupportedError(f"no level can run: {first.level}, K={first.k}: {first.refused}")
    if plot is not None:
        rungs.plot_rungs(found, plot)
    if as_json:
        print_json(found.to_dict())
        return
    console = new_console()
    console.print(found.headline)
    print_table(_table(found))
    for rung in found.rungs:
        if rung.refused:
            console.print(f"{rung.level}, K={rung.k}: {rung.refused}")
    if plot is not None:
        console.print(f"Plot: {plot}")


def _check_plot(path: Path | None) -> None:
    """Raise for a plot that cannot be drawn or written: steps take half a minute each."""
    if path is not None:
        from ..bench.plots import pyplot_for

        pyplot_for(path)
        check_writable("--plot", path)


def _table(found: Ladder) -> Table:
    from rich.table import Table

    table = Table(caption="TFLOP/s, share of the bandwidth limit, MB of device memory held", show_lines=True)
    table.add_column("level", no_wrap=True)
    for order in found.orders:
        table.add_column(f"K={order}", justify="right", no_wrap=True)
    for level in found.levels:
        row = [found.at(level, order) for order in found.orders]
        # Without the unit all columns fit into 80 characters; narrower ones would lose digits.
        table.add_row(level, *("-" if rung is None or rung.refused else rung.cell.removesuffix(" MB") for rung in row))
    return table


@app.command()
def sgemm(
    gpu: Annotated[str, typer.Option("--gpu", help="gfx1100, gfx1151, gfx1201, ...: emulated; h200: recorded.")],
    size: Annotated[int, typer.Option("--size", min=1, help="M = N = K of the times.")] = 4096,
    step: Annotated[list[str] | None, typer.Option("--step", help="Only this one (k6, h3); may be repeated.")] = None,
    predict: Annotated[
        bool, typer.Option("--predict/--no-predict", help="Predict times, half a minute a step on RDNA.")
    ] = True,
    records: Annotated[Path | None, typer.Option("--records", help="Show this file of records of an H200.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the rates into this .svg or .png file.")] = None,
    as_json: AsJson = False,
) -> None:
    """The FP32 ladder: from a naive kernel to dual-issue assembly on RDNA, to FMA at the limit on Hopper.

    On RDNA each step is compiled, run in the emulator in strict mode and checked against FP64, and its time predicted;
    published times stand beside it. On Hopper times are records; `python -m laneloom.bench.sgemm_ladder` makes them.
    """
    from ..bench import sgemm_rungs

    if records is not None and get_gpu(gpu).vendor == "amd":
        raise ArgumentError(f"--records: on {gpu} steps are emulated and predicted, no records are shown")
    _check_plot(plot)
    with working(f"Looking at every step on {gpu}"):
        found = sgemm_rungs.find_rungs(gpu, size, step, predict=predict, records=records)
    if plot is not None:
        sgemm_rungs.plot_rungs(found, plot)
    if as_json:
        print_json(found.to_dict())
    else:
        console = new_console()
        console.print(f"FP32 product of {size} cubed on {found.product} ({found.gpu}), {found.label}")
        print_table(_sgemm_table(found))
        if found.fma_tflops:
            console.print(f"FMA instructions alone: {found.fma_tflops:.1f} TFLOP/s, measured")
        if plot is not None:
            console.print(f"Plot: {plot}")
    if any(rung.right is False for rung in found.rungs):
        raise typer.Exit(1)


def _sgemm_table(found: sgemm_rungs.Ladder) -> Table:
    from rich.table import Table

    def text(value: object, form: str = "") -> str:
        return "-" if value is None else format(value, form)

    emulated = found.label == "predicted"
    table = Table()
    table.add_column("step", no_wrap=True)
    table.add_column("technique", min_width=20)
    # On two lines where a heading is wider than its figures: columns do not wrap.
    names = ["VGPRs", "LDS", "error /\nbudget"]
    names[2:2] = ["pairs", "in\npairs", "conflicts"] if emulated else []
    names += ["predicted\nus", "published\nus"] if emulated else ["us"]
    names += ["TFLOP/s", "x\nvendor", "limiter" if emulated else "of\nFMA"]
    rows = []
    for r in found.rungs:
        share = r.error / r.budget if r.error is not None and r.budget else None
        rate = found.tflops(r.predicted_us if emulated else r.measured_us)
        pairs = [text(r.dual_issue_pairs), text(r.dual_issue_share, ".0%"), text(r.lds_bank_conflicts)]
        cells = [text(r.vgprs), text(r.lds_bytes), *(pairs if emulated else []), text(share, ".2f")]
        if emulated:
            cells += [text(r.predicted_us, ".0f"), text(r.published_us, ".0f")]
            cells += [text(rate, ".1f"), text(r.x_vendor, ".2f"), r.limiter or "-"]
        else:
            of_fma = rate / found.fma_tflops if rate and found.fma_tflops else None
            cells += [text(r.measured_us, ".1f"), text(rate, ".1f"), text(r.x_vendor, ".3f"), text(of_fma, ".0%")]
        rows.append(cells)
    # What nobody knows of any step has no column.
    known = [k for k in range(len(names)) if any(cells[k] != "-" for cells in rows)]
    for k in known:
        table.add_column(names[k], justify="right", no_wrap=True)
    for r, cells in zip(found.rungs, rows, strict=True):
        table.add_row(r.step, r.technique, *(cells[k] for k in known))
    return table

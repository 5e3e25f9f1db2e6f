"""`laneloom bench`: measure a suite on this machine's GPU beside torch, or predict it for a GPU of RDNA or CDNA."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError, LaneloomError, UnsupportedError
from .product import AsJson
from .terminal import check_writable, new_console, print_json, print_table, working

if TYPE_CHECKING:
    from ..bench.records import Record

_SUITES = ("gemm", "attention", "transform3d", "roofline")
_DTYPES = {"gemm": "bf16", "attention": "bf16", "transform3d": "fp64", "roofline": "bf16"}


def bench(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="gemm, attention, transform3d or roofline.")],
    versus: Annotated[
        str | None, typer.Option("--vs", help="Whom to run beside: torch (unless said), compile, with commas.")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Of the operands; by default the suite's.")] = None,
    layout: Annotated[str, typer.Option("--layout", help="Of products: nn, nt, tn, tt.")] = "nn",
    group: Annotated[list[str] | None, typer.Option("--group", help="Only this part of the suite.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three cases of each group, fewer rounds.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Append records, JSON lines.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the roofline, as SVG.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Predict for this GPU of AMD; nothing is measured.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a suite: each case checked, then timed.

    Each case is timed beside what torch gives, in one run. Needs a GPU, and PyTorch. With --gpu gfx1151, which need not
    be here, the gemm suite is predicted by a timing model.
    """
    if suite not in _SUITES:
        raise ArgumentError(f"unknown suite {suite!r}; there are {', '.join(_SUITES)}")
    dtype = dtype or _DTYPES[suite]
    if gpu is not None:
        for option, value in (("--vs", versus), ("--out", out), ("--plot", plot)):
            if value is not None:
                raise ArgumentError(f"{option}: with --gpu nothing is measured; --json prints the predictions")
        rows = _predict(suite, gpu, dtype, layout, group, quick)
        if as_json:
            print_json(rows)
        else:
            _show_predicted(rows, gpu)
        return
    rivals = [name for name in ("torch" if versus is None else versus).split(",") if name]
    for name in rivals:
        if name not in ("torch", "compile"):
            raise ArgumentError(f"--vs: expected torch, compile or both, got {name!r}")
    for option, file in (("--out", out), ("--plot", plot)):
        if file is not None:
            check_writable(option, file)
    records = _measure(suite, rivals, dtype, layout, group, quick, out, quiet=as_json)
    if plot is not None:
        from ..bench.roofline import ceilings, roofline_svg

        roofs = records if suite == "roofline" else records + _measure_roofs(dtype, quiet=as_json)
        plot.write_text(roofline_svg(records, ceilings(roofs), alone=True))
    if as_json:
        from dataclasses import asdict

        print_json([asdict(record) for record in records])
    else:
        _show(records)


def _measure(
    suite: str, rivals: list[str], dtype: str, layout: str, group: list[str] | None, quick: bool, out: Path | None,
    *, quiet: bool,
) -> list[Record]:  # fmt: skip
    from ..ops.target import active_gpu

    try:
        active_gpu()
    except UnsupportedError:
        raise UnsupportedError(
            "this machine has no GPU to measure on: `laneloom bench gemm --gpu gfx1151` predicts instead, and "
            "`laneloom report` shows the records of others"
        ) from None
    from ..bench import works

    if suite == "roofline":
        from ..bench.roofline import ceiling_works

        makers: list[Any] = list(ceiling_works())
    else:
        makers = list(works.suite_works(suite, dtype=dtype, layout=layout, groups=group, quick=quick))
    found = _run(suite, makers, rivals, out, quick=quick, quiet=quiet)
    if not found:
        raise LaneloomError(f"no case of {suite} could be measured here")
    return found


def _measure_roofs(dtype: str, *, quiet: bool) -> list[Record]:
    """A copy and a large product: what the picture's dots stand under."""
    from ..bench.roofline import ceiling_works

    return _run("roofline", list(ceiling_works(dtype)), [], None, quick=True, quiet=quiet)


def _run(
    title: str, makers: list[Any], rivals: list[str], out: Path | None, *, quick: bool, quiet: bool
) -> list[Record]:
    """The records of the works that could be measured; each is appended to `out` as soon as it is there."""
    import torch
    from rich.progress import track

    from ..bench import works
    from ..bench.records import append, read_environment
    from ..ops.target import active_gpu

    row, environment, console, found = active_gpu(), read_environment(), new_console(stderr=quiet), []
    title = f"{title} on {environment.gpu}"
    for make in track(makers, description=title, console=console, disable=not console.is_terminal):
        try:
            records = works.measure(make(row), rivals, environment, rounds=5 if quick else 15)
        except UnsupportedError as refusal:
            console.print(f"refused: {refusal}", soft_wrap=True)
            continue
        except torch.OutOfMemoryError:
            console.print("left out: the GPU has too little memory for a case", soft_wrap=True)
            continue
        for record in records:
            if out is not None:
                append(out, record)
        found += records
        torch.cuda.empty_cache()
    return found


def problem_text(problem: Any) -> str:
    """A record's problem in a few words: sizes first."""
    sizes = [str(v) for v in problem.values() if type(v) is int]
    words = [str(v) for k, v in problem.items() if isinstance(v, str) and k not in ("group", "dtype_out")]
    words += [k for k, v in problem.items() if v is True]
    return " x ".join(sizes) + (" " + " ".join(words) if words else "")


def _show(records: list[Record]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    rivals = list(dict.fromkeys(r.candidate for r in records if r.candidate != "laneloom"))
    for heading in ("problem", "us", "IQR", "TFLOP/s", "GB/s", *(f"x {name}" for name in rivals), "error/budget"):
        table.add_column(heading, justify="left" if heading == "problem" else "right", no_wrap=True)
    groups: dict[str, dict[str, Record]] = {}
    for record in records:
        groups.setdefault(problem_text(record.problem), {})[record.candidate] = record
    for text, by_name in groups.items():
        ours = by_name.get("laneloom")
        if ours is None:
            continue
        ratios = [f"{by_name[name].median_us / ours.median_us:.3f}" if name in by_name else "" for name in rivals]
        table.add_row(
            text, f"{ours.median_us:.2f}", f"{ours.iqr_us:.2f}" + ("!" if ours.noisy else ""), f"{ours.tflops:.1f}",
            f"{ours.gbs:.0f}", *ratios, "" if ours.error is None else f"{ours.error:.2f}",
        )  # fmt: skip
    print_table(table)


def _predict(
    suite: str, gpu: str, dtype: str, layout: str, group: list[str] | None, quick: bool
) -> list[dict[str, Any]]:
    from ..bench.predicted import predict_matmul
    from ..bench.suites import load_suite, quick_cases
    from ..ops.matmul.problem import MatmulProblem
    from .product import parse_product

    if suite != "gemm":
        others = {"attention": "laneloom profile attention", "transform3d": "laneloom ladder transform3d"}
        instead = f"; `{others[suite]} --gpu {gpu}` is" if suite in others else ""
        raise UnsupportedError(f"--gpu: the gemm suite is predicted, {suite} is not here{instead}")
    parse_product("matmul", gpu, "1,1,1", dtype, None, layout)
    known = load_suite("gemm")
    if unknown := [name for name in group or [] if name not in known]:
        raise ArgumentError(f"--group: expected one of {', '.join(known)}, got {unknown[0]!r}")
    rows, console = [], new_console(stderr=True)
    for name in group or known:
        for m, n, k in quick_cases(known[name]) if quick else known[name]:
            problem = MatmulProblem.contiguous(m, n, k, dtype=dtype, layout=layout)
            try:
                with working(f"Predicting {m} x {n} x {k} on {gpu}"):
                    found = predict_matmul(m, n, k, gpu, dtype=dtype, dtype_out=problem.dtype_out, layout=layout)
            except MemoryError:
                console.print(f"left out: {m} x {n} x {k} needs more memory than there is here")
                continue
            rows.append({
                "label": "predicted", "gpu": gpu, "group": name, "m": m, "n": n, "k": k, "dtype": dtype,
                "layout": layout, "predicted_us": found.time_us, "tflops": problem.flops / found.time_us * 1e-6,
                "gbs": problem.bytes / found.time_us * 1e-3, "limiter": found.limiter,
            })  # fmt: skip
    return rows


def _show_predicted(rows: list[dict[str, Any]], gpu: str) -> None:
    from rich import box
    from rich.table import Table

    title = f"Predicted for {gpu} by the timing model, not measured"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for heading in ("M x N x K", "us", "TFLOP/s", "GB/s", "limited by"):
        right = heading in ("us", "TFLOP/s", "GB/s")
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading != "limited by")
    for row in rows:
        table.add_row(
            f"{row['m']} x {row['n']} x {row['k']}", f"{row['predicted_us']:.1f}", f"{row['tflops']:.1f}",
            f"{row['gbs']:.0f}", row["limiter"],
        )  # fmt: skip
    print_table(table)

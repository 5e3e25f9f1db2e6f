"""`laneloom tune`: search the fastest config of a product, and keep it where `matmul` finds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError, UnsupportedError
from ..isa.words import counted
from .product import AsJson, Operation, OutDtype, Precision
from .terminal import new_console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ..gpu import Gpu
    from ..ops.matmul.problem import MatmulProblem
    from ..tune.outcome import Evaluator
    from ..tune.study import Result, Step
    from ..tune.workers import Workers


def tune(
    operation: Operation,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", help="M,N,K; several, one after another. [default: 4096,4096,4096]")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Of A and B, such as fp16, or several: bf16,fp16.")] = "fp16",
    out_dtype: OutDtype = None,
    layout: Annotated[str, typer.Option("--layout", help="nn, nt, tn or tt, or several: nn,nt.")] = "nn",
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="By default this machine's; another of AMD is tuned by prediction.")
    ] = None,
    precision: Precision = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Configs to try, an earlier run's included.")] = 100,
    quick: Annotated[bool, typer.Option("--quick", help="Search tiles, waves, stages and order only.")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes that compile and verify.")] = None,
    ship: Annotated[
        bool, typer.Option("--ship", help="Write into this package's table too, for everybody, not only your cache.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Search the fastest config of a product and keep it.

    Every config is verified before it is timed. A run that ended in whatever way goes on where it was. On this
    machine's GPU times are measured, interleaved with the cost model's choice; for another they are the timing model's,
    predicted.
    """
    each = [(s, d, x) for s in shape or ["4096,4096,4096"] for d in dtype.split(",") for x in layout.split(",")]
    products = [_parse(operation, s, d, out_dtype, x, gpu, precision) for s, d, x in each]
    from ..tune import tables
    from ..tune.study import run_study
    from ..tune.workers import Workers

    count = jobs or min(8, max(1, (os.cpu_count() or 2) // 2))
    workers = Workers(count)
    console = new_console(stderr=as_json)
    found: list[dict[str, Any]] = []
    try:
        for problem, row, is_here in products:
            evaluator = _evaluator(problem, row, is_here, workers, count, quick)
            try:
                with _Progress(console, f"{problem.key} on {row.name}, {evaluator.objective}", trials) as progress:
                    result = run_study(
                        problem, row, evaluator, trials=trials, quick=quick, together=count, on_step=progress.step
                    )
            finally:
                evaluator.close()
            entry = tables.make_entry(problem, result, evaluator)
            written = [tables.store(entry, row)] + ([tables.ship(entry, row)] if ship else [])
            found.append(entry.to_dict() | {
                "gain": entry.gain, "wrong": list(result.wrong), "files": list(map(str, written)),
                "journal": str(result.journal),
            })  # fmt: skip
            if not as_json:
                _show(console, problem, row, result, evaluator, written)
    finally:
        workers.close()
    if as_json:
        print_json(found[0] if len(found) == 1 else found)
    if any(entry["wrong"] for entry in found):
        raise typer.Exit(1)


def _parse(
    operation: str, shape: str, dtype: str, out_dtype: str | None, layout: str, gpu: str | None, precision: str | None
) -> tuple[MatmulProblem, Gpu, bool]:
    from ..ops.target import active_gpu
    from .product import check_operation, parse_product

    check_operation(operation)
    try:
        here = active_gpu()
    except UnsupportedError:
        here = None
    if gpu is None and here is None:
        raise ArgumentError("--gpu: this machine has no GPU; name one to tune it by prediction, such as gfx1151")
    product = parse_product(operation, gpu or (here.name if here else ""), shape, dtype, out_dtype, layout, precision)
    if 0 in product.shape:
        raise ArgumentError(f"--shape: {product.text} has nothing to multiply")
    return product.problem(), product.gpu, here is not None and here.name == product.gpu.name


def _evaluator(
    problem: MatmulProblem, gpu: Gpu, is_here: bool, workers: Workers, jobs: int, quick: bool
) -> Evaluator:
    if is_here:
        from ..tune.measured import MeasuredEvaluator

        return MeasuredEvaluator(problem, gpu, workers=workers, quick=quick)
    from ..tune.predicted import PredictedEvaluator

    return PredictedEvaluator(problem, gpu, jobs=jobs)


class _Progress:
    """A bar on a terminal; elsewhere a line whenever something better was found."""

    def __init__(self, console: Console, title: str, trials: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._task = self._bar.add_task("tuning", total=trials)
        self._best: float | None = None
        console.print(title)

    def __enter__(self) -> _Progress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def step(self, step: Step) -> None:
        """Show one step."""
        best = "" if step.best_us is None else f"best {step.best_us:.2f} us"
        self._bar.update(self._task, completed=step.tried, description=f"{best}, {step.invalid} invalid")
        if step.outcome.why and step.outcome.why.startswith("wrong"):
            self._console.print(f"{step.outcome.config.text}: {step.outcome.why}", style="bold red", soft_wrap=True)
        if step.best_us != self._best:
            self._best = step.best_us
            if step.outcome.time_us != step.best_us:  # a study that goes on: the best is an earlier run's
                return
            self._console.print(f"{step.tried}: {step.best_us:.2f} us  {step.outcome.config.text}", soft_wrap=True)


def _show(
    console: Console, problem: MatmulProblem, gpu: Gpu, result: Result, evaluator: Evaluator, written: list[Any]
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_row("Best", Text(result.config.text, overflow="fold"))
    rate = problem.flops / result.time_us * 1e-6
    table.add_row(evaluator.objective.capitalize(), f"{result.time_us:.2f} us, {rate:.1f} TFLOP/s")
    kept = " (that is the best)" if result.config == result.model else ""
    table.add_row("Cost model", f"{result.model_us:.2f} us: {result.model_us / result.time_us:.3f} x{kept}")
    if result.torch_us is not None:
        ratio = result.torch_us / result.time_us
        table.add_row("torch.matmul", f"{result.torch_us:.2f} us: {ratio:.3f} x; laneloom.patched decides by that")
    table.add_row("Tried", f"{counted(result.tried, 'config')}, {len(result.wrong)} of them wrong")
    for path in written:
        table.add_row("Written", Text(str(path), overflow="fold"))
    console.print(table)

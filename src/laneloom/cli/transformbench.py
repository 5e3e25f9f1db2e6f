"""`laneloom transformbench`: the seed benchmark of the batched 3-D transform, with its flags and its output line."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated

import typer

from ..errors import ArgumentError, UnsupportedError
from .terminal import given_options

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    short_help="Time the batched 3-D transform.",
)

Level = Annotated[str, typer.Option("-l", "--level", help="1 to 7, or fused: laneloom's own.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def _check(level: str, advice: str) -> None:
    """Raises ArgumentError for an unknown level, and UnsupportedError, with what to do, where there is no GPU."""
    from ..ops.target import active_gpu
    from ..ops.transform3d.ladder import LEVELS

    if level not in LEVELS:
        raise ArgumentError(f"--level: expected one of {', '.join(LEVELS)}, got {level!r}")
    try:
        active_gpu()
    except UnsupportedError:
        raise UnsupportedError(f"this machine has no GPU that Triton can use: {advice}") from None


@app.callback()
def transformbench(
    ctx: typer.Context,
    k: Annotated[int, typer.Option("-K", help="Order of the tensors: K x K x K.")] = 16,
    nfuncs: Annotated[int, typer.Option("-N", help="Tensors in a batch.")] = 2048,
    nblocks: Annotated[int, typer.Option("-M", help="Thread blocks of levels 1 to 4 on NVIDIA.")] = 512,
    ntasks: Annotated[int, typer.Option("-n", help="Batches in one repetition.")] = 500,
    repetitions: Annotated[int, typer.Option("-r", help="Repetitions; one more comes first and is dropped.")] = 5,
    level: Level = "fused",
    as_json: AsJson = False,
) -> None:
    """Time the transform R = A x B x B x B of N tensors in FP64 on this machine's GPU, one line per repetition.

    GFlop counts 6 K^4 operations a tensor, a multiplication and an addition for every term.
    """
    if ctx.invoked_subcommand is not None:
        if given := given_options(ctx):
            raise ArgumentError(f"{given[0]}: expected behind {ctx.invoked_subcommand}, whose options are its own")
        return
    _check(level, "`laneloom transformbench validate --gpu gfx1151` checks a level in the emulator")
    from ..compat.transformbench import run

    for line in run(k, nfuncs, nblocks, ntasks, repetitions, level):
        typer.echo(json.dumps(line.as_json()) if as_json else str(line))


@app.command()
def validate(
    level: Level = "3",
    k: Annotated[int | None, typer.Option("-K", help="One order; without it 4, 6, 8 and 10.")] = None,
    nfuncs: Annotated[int, typer.Option("-N", help="Tensors in the batch.")] = 16,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Run in the emulator of this GPU.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a level with FP64 on the CPU, each line PASS where the relative error is under 1e-10.

    Exit 1 where a line says FAIL, else 2 where one says REFUSED.
    """
    from ..compat.transformbench import validate as check

    with contextlib.ExitStack() as stack:
        if gpu is not None:
            from ..emulator.driver import emulated

            stack.enter_context(emulated(gpu))
        _check(level, "name one to run in the emulator, such as --gpu gfx1151")
        status = 0
        for result in check(level, k, nfuncs):
            typer.echo(json.dumps(result.as_json()) if as_json else str(result))
            if not result.passed and status != 1:
                status = 1 if result.refused is None else 2
    if status:
        raise typer.Exit(status)

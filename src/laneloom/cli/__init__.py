"""The command line; one file per command.

Commands import what they need when they run, so that `laneloom --help` starts at once and nothing here needs torch.
Exit codes: 0 when all is well, 1 when something was found wrong, 2 for a request that cannot be done.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import ArgumentError, InvalidConfigError, LaneloomError, UnknownGpuError, UnsupportedError
from . import (
    bench,
    compare,
    demo,
    doctor,
    emulate,
    explain,
    gpus,
    instructions,
    isa,
    ladder,
    layout,
    predict,
    profile,
    report,
    run,
    selftest,
    transformbench,
    tune,
)

_REFUSALS = (ArgumentError, UnknownGpuError, UnsupportedError, InvalidConfigError)


def _other_folder(name: Any) -> str:
    """Of a file or folder of a cache, how to name another folder for it."""
    from triton import knobs

    from ..codegen.cache import cache_dir

    path, home = Path(str(name)), Path.home()
    for variable, folder in (("TRITON_CACHE_DIR", Path(knobs.cache.dir)), ("LANELOOM_CACHE_DIR", cache_dir())):
        above = path in folder.parents and (not path.exists() or path not in (home, *home.parents))
        if above or path == folder or folder in path.parents:
            return f" (set {variable} to a folder that can be written)"
    return ""


def _discard(descriptor: int) -> None:
    """Send what is still written there to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _say_os_error(error: OSError) -> int:
    """One sentence on stderr; the exit status."""
    where = f"{error.filename}: " if error.filename else ""
    typer.echo(f"laneloom: {where}{error.strerror or error}{_other_folder(error.filename)}", err=True)
    try:
        sys.stdout.flush()
    except OSError:  # what has no room there would fail once more at the interpreter's end, with a status of its own
        _discard(1)
    return 1


class _Commands(TyperGroup):
    """The commands, whose foreseen errors end in one sentence on stderr instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LaneloomError as error:
            typer.echo(f"laneloom: {error}", err=True)
            raise typer.Exit(2 if isinstance(error, _REFUSALS) else 1) from None
        except MemoryError as error:
            typer.echo(f"laneloom: not enough memory for this size: {error}", err=True)
            raise typer.Exit(2) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read has enough: click ends quietly
                raise
            raise typer.Exit(_say_os_error(error)) from None
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("laneloom", ""):
                raise
            typer.echo(f"laneloom: the package {package!r} is missing: run `pip install {package}`", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"laneloom {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print laneloom's version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Matrix-core kernels for AMD and NVIDIA GPUs, and an emulator that runs AMD machine code without one.

    Start with `laneloom demo`.
    """


for _command in (
    demo.demo, doctor.doctor, emulate.emulate, isa.isa, explain.explain, layout.layout, instructions.instructions,
    compare.compare, run.run, predict.predict, tune.tune, bench.bench, profile.profile,
    report.report, selftest.selftest, gpus.gpus,
):  # fmt: skip
    app.command()(_command)
app.add_typer(transformbench.app, name="transformbench")
app.add_typer(ladder.app, name="ladder")


def _silence_stderr() -> None:
    """Send what the interpreter's own end prints to nowhere: nothing of laneloom's runs after this."""
    sys.stderr.flush()
    _discard(2)


def main() -> None:
    """Run the command line and exit."""
    # Triton 3.9 says once per process what it assumes about a * b + c; the listing shows it.
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    # After compiling a Gluon kernel, Triton 3.9's bindings list what they leaked while the interpreter ends. Functions
    # registered first run last, so everybody else's exit functions can still write.
    atexit.register(_silence_stderr)
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character of the tables gets a question mark
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="laneloom")
    except OSError as error:  # of what is printed before a command runs, such as the help
        os._exit(_say_os_error(error))

"""`laneloom selftest`: whether laneloom is right on this machine's GPU, as one file to attach to an issue."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UnsupportedError
from .terminal import check_writable, new_console

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.selftest import Check


def selftest(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file.")] = Path("selftest.json"),
    emulate: Annotated[
        str | None, typer.Option("--emulate", metavar="GPU", help="Run the list as this GPU's code in the emulator.")
    ] = None,
    most: Annotated[int | None, typer.Option("--most", min=1, help="Only the first checks of the list.")] = None,
    no_bench: Annotated[bool, typer.Option("--no-bench", help="Check only, time nothing.")] = False,
) -> None:
    """Check every operation on this machine's GPU.

    A few are timed beside torch, and one file tells it all to an issue. It names GPU, driver and versions, and no
    person, host or path. Exit 1 where something is wrong.
    """
    from ..bench import selftest as list_of
    from ..ops.target import active_gpu

    check_writable("--output", output)
    console = new_console()
    records: list[dict[str, Any]] = []
    if emulate is not None:
        from ..emulator.driver import emulated

        with emulated(emulate):
            told = list_of.describe(active_gpu(), "emulated")
            checks = _check(console, "cpu", told, most)
    else:
        try:
            gpu = active_gpu()
        except UnsupportedError:
            raise UnsupportedError(
                "this machine has no GPU that Triton can use: `laneloom selftest --emulate gfx1151` runs the list in "
                "the emulator"
            ) from None
        from ..bench.records import read_environment

        environment = read_environment()
        told = list_of.describe(gpu, "measured") | {"driver": environment.driver}
        checks = _check(console, "cuda", told, most)
        if not no_bench:
            for record in list_of.run_benchmark(gpu, environment):
                records.append(record)
                console.print(_bench_line(record), soft_wrap=True)
    counts = {verdict: sum(check.verdict == verdict for check in checks)
              for verdict in (list_of.RIGHT, list_of.WRONG, list_of.REFUSED, list_of.FAILED)}  # fmt: skip
    told |= {"counts": counts, "checks": [asdict(check) for check in checks], "records": records}
    output.write_text(json.dumps(told, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    bad = counts[list_of.WRONG] + counts[list_of.FAILED]
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    console.print(f"{summary}. Written: {output}; please attach it to an issue.", soft_wrap=True,
                  style="bold red" if bad else "bold green")  # fmt: skip
    if bad or not counts[list_of.RIGHT]:
        raise typer.Exit(1)


def _check(console: Console, device: str, told: dict[str, Any], most: int | None) -> list[Check]:
    from rich.text import Text

    from ..bench.selftest import REFUSED, RIGHT, run_checks

    device_name = f"{told['device']} ({told['gpu']})" if "device" in told else told["gpu"]
    console.print(f"laneloom {told['laneloom']} on {device_name}, {told['how']}")
    checks = []
    for check in run_checks(device, most=most):
        checks.append(check)
        style = "green" if check.verdict == RIGHT else "dim" if check.verdict == REFUSED else "bold red"
        share = "" if check.share is None else f" {check.share:.0%} of the budget"
        line = Text.assemble((f"{check.verdict:8}", style), check.name, (share, "dim"))
        console.print(line.append(f"  {check.detail}", "dim") if check.detail else line, soft_wrap=True)
    return checks


def _bench_line(record: dict[str, Any]) -> str:
    if "failed" in record:
        return f"{record['case']}: {record['failed']}"
    from .bench import problem_text

    rate = f", {record['flops'] / record['median_us'] * 1e-6:.1f} TFLOP/s" if record["flops"] else ""
    return (
        f"{record['op']} {problem_text(record['problem'])}, {record['candidate']}: {record['median_us']:.1f} us{rate}, "
        f"{record['ratio_to_reference']:.3f} x {record['reference']}"
    )

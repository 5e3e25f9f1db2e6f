"""A script in a process of its own that has imported torch already, which takes seconds, and laneloom's modules not."""

from __future__ import annotations

import multiprocessing
import os
import runpy
from pathlib import Path

#: imported once for all such processes of one that tests; of laneloom that is but its list of names
PRELOADED = ["torch.distributed.tensor", "laneloom"]


def context() -> multiprocessing.context.ForkServerContext:
    """Where processes come from that have imported torch."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made


def _run(script: Path, said: Path) -> None:
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    runpy.run_path(str(script), run_name="__main__")


def run(script: Path, timeout: float) -> tuple[int | None, str]:
    """The exit status, None if it did not end in `timeout` seconds, and what was printed."""
    said = script.with_suffix(".txt")
    process = context().Process(target=_run, args=(script, said))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None, said.read_text()
    return process.exitcode, said.read_text()

"""`laneloom emulate --coverage`: each instruction that the emulator executes, and the test that proves it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from ..gpu import Gpu, emulated_gpu
from .terminal import new_console, print_json

if TYPE_CHECKING:
    from ..emulator.instructions import Proof

#: of each instruction set
ONE_EACH = ("gfx1100", "gfx1151", "gfx1201", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1250", "gfx1251")

# The line behind the message is the source's; Triton before 3.9 prints no line number.
_ABSENT = re.compile(r"error: (instruction not supported on this GPU|invalid instruction)[^\n]*\n\s*(\S+)")
_nowhere: set[str] = set()  #: names that no GPU has; nine tenths of the time goes to finding others like them


@cache
def instructions_of(gpu: Gpu) -> tuple[str, ...]:
    """The mnemonics that the emulator executes and the GPU has, by name: its assembler is asked for each."""
    from ..codegen import versions
    from ..codegen.diagnostics import captured_stderr
    from ..emulator.instructions import mnemonics

    names = sorted(mnemonics() - _nowhere)
    # Each bare mnemonic is refused, in one way if the GPU has it and in another if it has not.
    with captured_stderr() as printed, suppress(RuntimeError, ValueError):
        versions.assembler()("".join(f"\t{n}\n" for n in names), gpu.name, versions.assembler_features(gpu))
    refused = _ABSENT.findall(printed[0])
    _nowhere.update(name for why, name in refused if why == "invalid instruction")
    absent = {name for _, name in refused}
    return tuple(name for name in names if name not in absent)


def table(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """One row for each instruction of these GPUs: name, GPUs, test and how it proves it."""
    from ..emulator.instructions import proofs

    rows: dict[str, dict[str, Any]] = {}
    for gpu in gpus:
        known = proofs(gpu.generation)
        for name in instructions_of(gpu):
            row = rows.setdefault(name, {"instruction": name, "gpus": [], "test": None, "proof": "none"})
            row["gpus"].append(gpu.name)
            if better(known.get(name), row["proof"]):
                row["test"], row["proof"] = known[name].test, how(known[name])
    return [rows[name] for name in sorted(rows)]


def how(proof: Proof) -> str:
    """How an instruction is proved, as the table says it."""
    said = "instruction test" if proof.alone else "executed in kernels only"
    return f"{said}, {proof.through}" if proof.through else said


def better(proof: Proof | None, than: str) -> bool:
    """Whether a proof says more than what is known."""
    return proof is not None and (than == "none" or (proof.alone and "instruction test" not in than))


def show_coverage(gpu: str | None, as_json: bool) -> None:
    """Print the table for one GPU, or for one of each instruction set that is emulated."""
    from rich.table import Table
    from rich.text import Text

    chosen = [emulated_gpu(name) for name in ((gpu,) if gpu else ONE_EACH)]
    rows = table(chosen)
    if as_json:
        print_json(rows)
        return
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("instruction", "GPUs", "test", "proof"):
        shown.add_column(name, no_wrap=True)
    for row in rows:
        style = "bold red" if row["proof"] == "none" else "yellow" if "kernels only" in row["proof"] else ""
        shown.add_row(row["instruction"], " ".join(row["gpus"]), row["test"] or "", Text(row["proof"], style=style))
    console = new_console()
    if not console.is_terminal:  # a pipe has no width: do not cut names at an assumed one
        console = new_console(width=280)
    console.print(shown)
    kinds = [row["proof"].partition(",")[0] for row in rows]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    console.print("", f"{len(rows)} instructions: {counts}", sep="\n")

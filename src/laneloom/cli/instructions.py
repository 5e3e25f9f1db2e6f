"""`laneloom instructions`: the matrix instructions of a GPU."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..isa.words import counted
from .terminal import new_console, print_json

if TYPE_CHECKING:
    from ..gpu import Gpu
    from ..isa import MatrixInstruction


def instructions(
    gpu: Annotated[str, typer.Option("--gpu", help="A GPU of `laneloom gpus`.")],
    matching: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only names that contain this.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the matrix instructions of a GPU: shape, types, rate."""
    from ..gpu import get_gpu
    from ..isa import find_instruction
    from ..isa import instructions as rows_of

    target = get_gpu(gpu)
    # A text that is in no name may be another spelling of one; if not, the refusal has the nearest names.
    rows = [row for row in rows_of(target) if matching.lower() in row.name] or [find_instruction(matching, target)]
    if as_json:
        print_json([to_dict(row, target) for row in rows])
        return
    from rich.table import Table

    console = new_console()
    wide = console
    if not console.is_terminal:  # a pipe has no width: do not cut names at an assumed one
        console, wide = new_console(width=160), new_console(width=1000)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("instruction", "opcode", "registers A B D", "cycles", "per CU", "VALU", "modifiers"):
        right, folds = name in ("opcode", "cycles", "per CU"), name == "modifiers"
        table.add_column(name, justify="right" if right else "left", no_wrap=not folds, overflow="fold")
    for row in rows:
        rate = row.rate(target)
        registers = " | ".join(_registers(row, target, wave) for wave in row.waves)
        table.add_row(
            row.name, "" if row.opcode is None else f"{row.opcode:#x}", registers,
            "" if row.cycles is None else str(row.cycles), "" if rate is None else f"{rate:g}",
            "" if row.coissue is None else ("yes" if row.coissue else "no"), " ".join(row.modifiers),
        )  # fmt: skip
    wide.print(table)
    waves = " | ".join(str(w) for w in rows[0].waves) if rows else ""
    console.print(
        f"\n{counted(len(rows), 'instruction')} of {target.name} ({target.family}). Registers that A, B and D (as C) "
        f"take in each lane, for {waves} lanes. Cycles: of one matrix core, from one instruction to the next. per CU: "
        "FLOPs (or operations) per CU and cycle; sparse forms count the dense product. VALU: whether VALU work runs "
        "beside it.",
        style="dim",
    )
    for source in dict.fromkeys(row.source for row in rows):
        console.print(f"Source: {source}", style="dim")


def _registers(row: MatrixInstruction, gpu: Gpu, wave: int) -> str:
    from ..isa import get_layout

    return " ".join(str(get_layout(row, gpu, wave, m).registers) for m in row.matrices if m not in "KC")


def to_dict(row: MatrixInstruction, gpu: Gpu) -> dict[str, Any]:
    """A row as JSON can hold it, with what follows from it."""
    from ..isa import get_layout

    record = {f.name: getattr(row, f.name) for f in fields(row)}
    registers = {
        str(wave): {m: get_layout(row, gpu, wave, m).registers for m in row.matrices} for wave in row.waves
    }
    return record | {"flops": row.flops, "flops_per_cu_cycle": row.rate(gpu), "registers": registers}

"""`laneloom emulate`: run one product as machine code of a GPU that need not be here, and check it."""

from __future__ import annotations

from typing import Annotated

import typer

from .product import AsJson, Dtype, GpuName, Layout, Operation, Outcome, OutDtype, Product, Shape, parse_product
from .terminal import new_console, print_json


def emulate(
    operation: Operation,
    gpu: GpuName = "gfx1151",
    shape: Shape = "256,256,256",
    dtype: Dtype = "fp16",
    out_dtype: OutDtype = None,
    layout: Layout = "nn",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random operands.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a product in the emulator and check it against FP64.

    The operands are random. Exit 1 when the product is wrong.
    """
    product = parse_product(operation, gpu, shape, dtype, out_dtype, layout)
    from .product import random_operands, run_product

    console = new_console(stderr=as_json)
    with console.status(f"Emulating {product.text} on {product.gpu.name}") if console.is_terminal else _Quiet():
        outcome = run_product(product, *random_operands(product, seed))
    if as_json:
        print_json(to_dict(product, outcome))
    else:
        _show(product, outcome)
    if not outcome.ok:
        raise typer.Exit(1)


class _Quiet:
    """Nothing to show while waiting: a pipe gets the result alone."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def to_dict(product: Product, outcome: Outcome) -> dict[str, object]:
    """The command's JSON. `error` is null where C holds a NaN or an infinity that it should not.

    LDS bank conflicts and hazards are null: the emulator does not count them yet.
    """
    return {
        "ok": outcome.ok,
        "gpu": product.gpu.name,
        "shape": list(product.shape),
        "dtype": product.dtype,
        "error": outcome.verdict.error,
        "budget": outcome.verdict.budget,
        "wall_s": outcome.wall_s,
        "instructions": outcome.instructions,
        "lds_bank_conflicts": None,
        "hazards": None,
    }


def _show(product: Product, outcome: Outcome) -> None:
    from rich.table import Table
    from rich.text import Text

    verdict = outcome.verdict
    table = Table.grid(padding=(0, 2))
    table.add_row("Product", f"{product.text}, on {product.gpu.name} ({product.gpu.family}), emulated")
    schedule = outcome.config.text if outcome.config else "none: there is nothing to multiply"
    table.add_row("Schedule", Text(schedule, overflow="fold"))
    for record in outcome.launches:
        x, y, z = record.grid
        table.add_row(
            "Launch",
            f"{record.kernel}: {x * y * z:,} workgroups of {record.workgroup_size} threads, {record.instructions:,} "
            f"wave-instructions ({record.matching('v_wmma'):,} matrix instructions) in {record.wall_s:.2f} s",
        )
    table.add_row("Largest error", f"{verdict.error:.3g} of {verdict.budget:.3g} allowed ({verdict.share:.0%})")
    ok = Text("right: within the FP64 budget everywhere, nothing written outside C", style="green")
    table.add_row("Result", ok if outcome.ok else Text("wrong: " + "; ".join(outcome.reasons), style="bold red"))
    new_console().print(table)

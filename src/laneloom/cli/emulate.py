"""`laneloom emulate`: run one product as machine code of a GPU that need not be here, and check it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ArgumentError, HazardError
from ..isa.words import counted
from .coverage import show_coverage
from .product import (
    AsJson,
    Dtype,
    Layout,
    Outcome,
    OutDtype,
    Product,
    Shape,
    parse_product,
)
from .terminal import check_writable, given_options, print_facts, print_json
from .weights import Group, Weight, WeightProduct, parse_weight, run_weight, said_of_weight


def emulate(
    ctx: typer.Context,
    operation: Annotated[str | None, typer.Argument(metavar="OPERATION", help="What to compute: matmul.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="A GPU of `laneloom gpus`; by default gfx1151.")] = None,
    shape: Shape = "256,256,256",
    dtype: Dtype = "fp16",
    out_dtype: OutDtype = None,
    layout: Layout = "nn",
    weight: Weight = None,
    group: Group = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the random operands and, where not 0, of the order of waves.")
    ] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also look for hazards: waits, races, undefined values, barriers.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Count what each instruction does, and show the listing with it.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write the profile here as one page.")] = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="List the instructions that the emulator knows, and their tests.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a product in the emulator and check it against FP64.

    The operands are random. Exit 1 when the product is wrong or a hazard was found.
    """
    if coverage:
        if operation is not None:
            raise ArgumentError("--coverage lists what the emulator knows and runs nothing: leave out the operation")
        if surplus := given_options(ctx, but=("--coverage", "--gpu", "--json")):
            raise ArgumentError(f"{surplus[0]}: --coverage lists what the emulator knows and runs nothing")
        show_coverage(gpu, as_json)
        return
    if operation is None:
        raise ArgumentError("name an operation, such as `laneloom emulate matmul`, or ask for --coverage")
    product = parse_product(operation, "gfx1151" if gpu is None else gpu, shape, dtype, out_dtype, layout)
    product = parse_weight(product, weight, group)
    from .product import random_operands, run_product

    if html is not None:
        check_writable("--html", html)
    profile = profile or html is not None
    outcome = None
    hazard = ""
    try:
        if isinstance(product, WeightProduct):
            outcome = run_weight(product, strict=strict, seed=seed, profile=profile)
        else:
            outcome = run_product(product, *random_operands(product, seed), strict=strict, seed=seed, profile=profile)
    except HazardError as error:
        if not as_json:
            raise
        hazard = str(error)
    if outcome is not None and html is not None:
        from .profile_page import page

        html.write_text(page(product, outcome), encoding="utf-8")
    if as_json:
        print_json(to_dict(product, outcome, strict, hazard))
    elif outcome is not None:
        _show(product, outcome, strict, profile, html)
    if outcome is None or not outcome.ok:
        raise typer.Exit(1)


def to_dict(product: Product, outcome: Outcome | None, strict: bool = False, hazard: str = "") -> dict[str, object]:
    """The command's JSON. `error` is null where C holds a NaN or an infinity that it should not.

    `hazards` is null without --strict, which stops at the first: 0, or 1 and the sentence in `hazard`.
    `lds_bank_conflicts` (clocks) is null, and `profile` absent, without --profile.
    """
    profiles = [record.profile for record in outcome.launches if record.profile is not None] if outcome else []
    shown: dict[str, object] = {
        "ok": outcome is not None and outcome.ok,
        "gpu": product.gpu.name,
        "shape": list(product.shape),
        "dtype": product.dtype,
        **said_of_weight(product),
        "error": outcome.verdict.error if outcome else None,
        "budget": outcome.verdict.budget if outcome else None,
        "wall_s": outcome.wall_s if outcome else None,
        "instructions": outcome.instructions if outcome else None,
        "lds_bank_conflicts": sum(p.conflicts for p in profiles) if profiles else None,
        "hazards": int(bool(hazard)) if strict else None,
    }
    if hazard:
        shown["hazard"] = hazard
    if outcome is not None and profiles:
        from .profile_facts import facts

        shown["profile"] = [facts(product, record) for record in outcome.launches]
    return shown


def _show(product: Product, outcome: Outcome, strict: bool, profile: bool, html: Path | None) -> None:
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
            f"{record.kernel}: {counted(x * y * z, 'workgroup')} of {counted(record.workgroup_size, 'thread')}, "
            f"{counted(record.instructions, 'wave-instruction')} "
            f"({counted(record.matrix_instructions, 'matrix instruction')}) in {record.wall_s:.2f} s",
        )
    table.add_row("Largest error", f"{verdict.error:.3g} of {verdict.budget:.3g} allowed ({verdict.share:.0%})")
    if strict:
        table.add_row("Hazards", "none found")
    ok = Text("right: within the FP64 budget everywhere, nothing written outside C", style="green")
    table.add_row("Result", ok if outcome.ok else Text("wrong: " + "; ".join(outcome.reasons), style="bold red"))
    if html is not None:
        table.add_row("Page", str(html))
    print_facts(table)
    if profile and html is None:
        from .profile_text import render_profile

        for record in outcome.launches:
            print_facts("", render_profile(product, record))

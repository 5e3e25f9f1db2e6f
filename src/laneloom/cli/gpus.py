"""`laneloom gpus`: the GPU table."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..gpu import GPUS, KIB, Gpu
from .product import AsJson
from .terminal import new_console, print_json, print_table


def gpus(as_json: AsJson = False) -> None:
    """List the GPUs that laneloom knows, with the sources."""
    if as_json:
        print_json([to_dict(row) for row in GPUS.values()])
        return
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = new_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in (
        ("name", "left"), ("family", "left"), ("product", "left"), ("CU", "right"), ("LDS", "right"),
        ("matrix", "left"), ("fp16", "right"), ("GB/s", "right"), ("runs", "left"),
    ):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=name != "product")  # pyright: ignore[reportArgumentType]
    sources: dict[str, list[str]] = {}
    for row in GPUS.values():
        for source in row.sources:
            sources.setdefault(source, []).append(row.name)
        table.add_row(
            Text(row.name, style="bold"), row.family, row.product, str(row.compute_units) if row.published else "-",
            f"{row.lds_bytes // KIB}", row.matrix_instructions,
            *([f"{row.peak_tflops['fp16']:g}", f"{row.bandwidth_gbs:g}"] if row.published else "--"),
            Text("emulated", style="green") if row.emulated else Text("compiled", style="dim"),
        )  # fmt: skip
    print_table(table)
    console.print(
        "\nCU: compute units or SMs. LDS: KiB for one workgroup. fp16: dense matrix peak in TFLOP/s at boost clock, "
        "by data sheet, not measured. Every row can be compiled for; those marked emulated can be run here as well.",
        style="dim",
    )
    console.print("\nSources", style="bold")
    for source, names in sources.items():
        shown = Text.assemble(source, (f"  {', '.join(names)}", "dim"))
        console.print(Padding(shown, (0, 0, 0, 2), expand=False))


def to_dict(row: Gpu) -> dict[str, Any]:
    """A row as JSON can hold it."""
    record = {f.name: getattr(row, f.name) for f in fields(row)}
    record["peak_tflops"] = dict(row.peak_tflops)
    if not row.published:
        record |= dict.fromkeys(("compute_units", "clock_ghz", "bandwidth_gbs"))
    return record | {"emulated": row.emulated}

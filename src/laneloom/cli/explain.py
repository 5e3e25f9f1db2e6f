"""`laneloom explain`: which schedule and knobs an operation gets on a GPU, why, and what was passed over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .product import (
    AsJson,
    GpuName,
    Layout,
    OutDtype,
    Precision,
    Product,
    Scales,
    check_operation,
    options_of_matmul,
    parse_product,
    refuse_options,
)
from .profile import DTYPES, SHAPES
from .terminal import new_console, print_json
from .weights import Group, Weight, WeightProduct, explain_weight, parse_weight, said_of_weight

if TYPE_CHECKING:
    from ..ops.matmul.api import Explanation
    from ..pytorch.routing import Decision


def explain(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="matmul, attention or transform3d.")],
    gpu: GpuName = "gfx1151",
    shape: Annotated[
        str | None, typer.Option("--shape", help="M,N,K of matmul; B,H,N,D of attention; K,COUNT of transform3d.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Of the operands, such as bf16; by default fp16, of transform3d fp64.")
    ] = None,
    out_dtype: OutDtype = None,
    layout: Layout = "nn",
    precision: Precision = None,
    scales: Scales = None,
    weight: Weight = None,
    group: Group = None,
    causal: Annotated[bool, typer.Option("--causal", help="Attention under the mask of a language model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which schedule and knobs an operation gets, and why.

    Nothing is compiled or run.
    """
    check_operation(operation, tuple(SHAPES))
    if operation != "attention":
        refuse_options((("--causal", causal),), "attention")
    shape, dtype = SHAPES[operation][1] if shape is None else shape, DTYPES[operation] if dtype is None else dtype
    if operation != "matmul":
        from . import explain_kernels

        refuse_options(options_of_matmul(out_dtype, layout, precision, scales, weight, group), "matmul")
        if operation == "attention":
            explained = explain_kernels.explain_attention(gpu, shape, dtype, causal)
        else:
            explained = explain_kernels.explain_transform3d(gpu, shape, dtype)
        explain_kernels.show(explained, as_json)
        return
    product = parse_product(operation, gpu, shape, dtype, out_dtype, layout, precision, scales)
    product = parse_weight(product, weight, group)
    if isinstance(product, WeightProduct):
        explanation, decisions = explain_weight(product), {}
    else:
        from ..ops.matmul import api

        explanation = api.explain(product.problem(), gpu=product.gpu)
        decisions = patched_decisions(product)
    if as_json:
        patched = {name: asdict(decision) for name, decision in decisions.items()}
        print_json(to_dict(product, explanation) | {"patched": patched})
    else:
        _show(product, explanation, decisions)


def patched_decisions(product: Product) -> dict[str, Decision]:
    """What `laneloom.patched` does with the product, eager and captured in a CUDA graph, if no gradients are recorded.

    Empty where nothing was measured.
    """
    from ..ops.matmul import tuned

    shipped = resources.files("laneloom").joinpath("pytorch", "measured", f"{product.gpu.name}.json").is_file()
    measured = shipped or any(entry.torch_us for entry in tuned.entries(product.gpu.name))
    routed = measured and product.scales is None and product.dtype == product.dtype_out and 0 not in product.shape
    if not routed or find_spec("torch") is None:
        return {}
    from ..pytorch.routing import DTYPES, Request, product_part, weigh

    if product.dtype not in DTYPES.values() or product.precision != "ieee":
        return {}
    request = Request(product.text, (product_part(product.dtype, product.layout, 1, *product.shape),))
    return {name: weigh(request, product.gpu, captured=name == "captured") for name in ("eager", "captured")}


def knobs_of(explanation: Explanation) -> dict[str, Any]:
    """The chosen config's knobs by name."""
    config = explanation.config
    return {f.name: getattr(config, f.name) for f in fields(config) if f.name != "schedule"}


def to_dict(product: Product, explanation: Explanation) -> dict[str, Any]:
    """The command's JSON."""
    return {
        "gpu": product.gpu.name,
        "shape": list(product.shape),
        "dtype": product.dtype,
        "out_dtype": product.dtype_out,
        "layout": product.layout,
        "precision": product.precision,
        "scales": product.scales,
        **said_of_weight(product),
        "schedule": explanation.config.schedule,
        "config": explanation.config.text,
        "knobs": knobs_of(explanation),
        "source": explanation.source,
        "reason": explanation.reason,
        "facts": list(explanation.facts),
        "passed_over": [{"config": text, "why": why} for text, why in explanation.passed_over],
    }


def refused_by_reason(chosen: str, passed_over: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Why configs that rank higher were refused, and these: schedule and knobs that the chosen one has not so."""
    knobs = knobs_in(chosen)
    found: dict[str, list[str]] = {}
    for text, why in passed_over:
        other = [f"{name}={value}" for name, value in knobs_in(text).items() if knobs.get(name) != value]
        found.setdefault(why, []).append("  ".join([text.partition(":")[0], *other]))
    return found


def knobs_in(text: str) -> dict[str, str]:
    """The knobs of a config's text."""
    parts = (knob.partition("=") for knob in text.partition(":")[2].split(",") if knob)
    return {name: value for name, _, value in parts}


def _show(product: Product, explanation: Explanation, decisions: dict[str, Decision]) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    knobs = "  ".join(f"{name}={value}" for name, value in knobs_of(explanation).items())
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("Product", f"{product.text}, on {product.gpu.name} ({product.gpu.family}, {product.gpu.product})")
    table.add_row("Schedule", Text(explanation.config.schedule, style="bold"))
    table.add_row("Knobs", knobs)
    table.add_row("Chosen by", explanation.source)
    table.add_row("Why", explanation.reason)
    if explanation.facts:
        table.add_row("So", Group(*(Text(fact) for fact in explanation.facts)))
    for name, decision in decisions.items():
        if name == "eager" or decision.routed != decisions["eager"].routed:
            place = "Patched" if name == "eager" else "In a CUDA graph"
            table.add_row(place, ("runs here: " if decision.routed else "stays torch's: ") + decision.reason)
    refused = [
        Text.assemble(f"{why}:", *(("\n  " + config, "dim") for config in configs))
        for why, configs in refused_by_reason(explanation.config.text, explanation.passed_over).items()
    ]
    table.add_row("Refused", Group(*refused) if refused else "nothing that ranks higher")
    new_console().print(table)

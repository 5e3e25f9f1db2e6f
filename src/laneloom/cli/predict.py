"""`laneloom predict`: how long a product would take on a GPU that need not be here, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..isa.words import counted
from .product import AsJson, Dtype, Layout, Operation, OutDtype, Product, Shape, parse_product
from .terminal import check_writable, print_facts, print_json, working
from .weights import Group, Weight, WeightProduct, parse_weight, predict_weight, said_of_weight

if TYPE_CHECKING:
    from ..timing import Prediction


def predict(
    operation: Operation,
    gpu: Annotated[str, typer.Option("--gpu", help="A GPU of RDNA 3, 3.5 or 4, CDNA 3 or 4.")] = "gfx1151",
    shape: Shape = "4096,4096,4096",
    dtype: Dtype = "fp16",
    out_dtype: OutDtype = None,
    layout: Layout = "nn",
    weight: Weight = None,
    group: Group = None,
    config: Annotated[
        str | None, typer.Option("--config", help="A preset or a config's text; by default the planned one.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", metavar="FILE", help="Write one workgroup's timeline, for Perfetto.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict a product's time on RDNA or CDNA.

    By a timing model of one workgroup processor or compute unit, driven by the emulator.

    A model's figure, not a measurement: docs/timing-model.md says how far off it was where figures are published.
    """
    import json

    product = parse_weight(parse_product(operation, gpu, shape, dtype, out_dtype, layout), weight, group)
    from ..timing import machine_of

    product.problem()  # refuses a product that nothing is launched for
    if timeline is not None:
        check_writable("--timeline", timeline)
    with working(f"Predicting {product.text} on {product.gpu.name}"):
        prediction, chosen = _predict(product, config)
    if timeline is not None:
        from ..timing.timeline import trace_events

        timeline.write_text(json.dumps(trace_events(prediction.slowest, machine_of(product.gpu))))
    flops = 2 * product.m * product.n * product.k
    if as_json:
        print_json(
            {"shape": list(product.shape), "dtype": product.dtype, "config": chosen, **said_of_weight(product)}
            | prediction.to_dict()
            | {"predicted_us": prediction.time_us, "tflops": flops / prediction.time_us * 1e-6}
        )
        return
    _show(product, prediction, chosen, flops, timeline)


def _predict(product: Product, config: str | None) -> tuple[Prediction, str]:
    """The predicted time, and the config's text."""
    if isinstance(product, WeightProduct):
        return predict_weight(product, config)
    from ..bench.predicted import sample_matmul
    from ..timing import machine_of

    sampled = sample_matmul(
        *product.shape, product.gpu, dtype=product.dtype, dtype_out=product.dtype_out, layout=product.layout,
        config=config,
    )  # fmt: skip
    return sampled.evaluate(machine_of(product.gpu)), sampled.config


def _show(product: Product, prediction: Prediction, chosen: str, flops: int, timeline: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_row("Product", f"{product.text}, on {product.gpu.name} ({product.gpu.product})")
    table.add_row("Schedule", Text(chosen, overflow="fold"))
    rate = flops / prediction.time_us * 1e-6
    place = "CU" if product.gpu.major == 9 else "WGP"
    table.add_row("Predicted", f"{prediction.time_us:,.1f} us, {rate:.1f} TFLOP/s: a model's figure, not measured")
    for k in prediction.kernels:
        busy = sorted(k.busy.items(), key=lambda item: -item[1])
        stalls = sorted(k.stalls.items(), key=lambda item: -item[1])
        table.add_row("Kernel", f"{k.kernel}: {k.time_us:,.1f} us, limited by: {k.limiter}")
        table.add_row(
            "  waves",
            f"{counted(k.workgroups_per_wgp, 'workgroup')} per {place}, {counted(k.waves_per_simd, 'wave')} per SIMD, "
            f"the GPU is filled "
            f"{k.rounds:.1f} times",
        )
        table.add_row("  in use", ", ".join(f"{name} {share:.0%}" for name, share in busy if share >= 0.01))
        table.add_row("  waiting", ", ".join(f"{name} {share:.0%}" for name, share in stalls if share >= 0.01))
    if timeline is not None:
        table.add_row("Timeline", f"{timeline}: open it in ui.perfetto.dev")
    print_facts(table)

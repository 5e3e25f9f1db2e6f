"""`laneloom predict`: how long a product would take on a GPU that need not be here, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError
from .product import AsJson, Dtype, Layout, Operation, OutDtype, Product, Shape, parse_product
from .terminal import new_console, print_json

if TYPE_CHECKING:
    from ..timing import Prediction


def predict(
    operation: Operation,
    gpu: Annotated[str, typer.Option("--gpu", help="A GPU of RDNA 3, 3.5 or 4.")] = "gfx1151",
    shape: Shape = "4096,4096,4096",
    dtype: Dtype = "fp16",
    out_dtype: OutDtype = None,
    layout: Layout = "nn",
    config: Annotated[
        str | None, typer.Option("--config", help="A preset or a config's text; by default the planned one.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", metavar="FILE", help="Write one workgroup's timeline, for Perfetto.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict a product's time on RDNA by a timing model of one workgroup processor.

    A model's figure, not a measurement: docs/timing-model.md says how far off it was where figures are published.
    """
    import json

    product = parse_product(operation, gpu, shape, dtype, out_dtype, layout)
    prediction, chosen = predict_product(product, config)
    if timeline is not None:
        from ..timing.machine import machine_of
        from ..timing.timeline import trace_events

        try:
            timeline.write_text(json.dumps(trace_events(prediction.slowest, machine_of(product.gpu))))
        except OSError as error:
            raise ArgumentError(f"--timeline: cannot write {timeline}: {error.strerror or error}") from None
    flops = 2 * product.m * product.n * product.k
    if as_json:
        print_json(
            {"shape": list(product.shape), "dtype": product.dtype, "config": chosen}
            | prediction.to_dict()
            | {"predicted_us": prediction.time_us, "tflops": flops / prediction.time_us * 1e-6}
        )
        return
    _show(product, prediction, chosen, flops, timeline)


def predict_product(product: Product, config: Any = None) -> tuple[Prediction, str]:
    """The predicted time of a product, and the text of the config that runs."""
    from ..ops.matmul import execute
    from ..ops.matmul.presets import named_config
    from ..timing import predict as predict_call

    problem = product.problem()
    chosen = execute.checked_config(problem, product.gpu, named_config(config))
    a = _zeros(product.m, product.k, product.dtype, product.layout[0])
    b = _zeros(product.k, product.n, product.dtype, product.layout[1])
    c = _zeros(product.m, product.n, product.dtype_out)
    dtypes = (product.dtype, product.dtype, product.dtype_out)

    def call() -> None:
        execute.multiply_into(a, b, c, dtypes, product.gpu, chosen)

    return predict_call(call, product.gpu), chosen.text


def _zeros(rows: int, columns: int, dtype: str, layout: str = "n") -> Any:
    import numpy as np

    from .. import verify

    stored = verify.STORAGE[dtype]
    return np.zeros((rows, columns), stored) if layout == "n" else np.zeros((columns, rows), stored).T


def _show(product: Product, prediction: Prediction, chosen: str, flops: int, timeline: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_row("Product", f"{product.text}, on {product.gpu.name} ({product.gpu.product})")
    table.add_row("Schedule", Text(chosen, overflow="fold"))
    rate = flops / prediction.time_us * 1e-6
    table.add_row("Predicted", f"{prediction.time_us:,.1f} us, {rate:.1f} TFLOP/s: a model's figure, not measured")
    for k in prediction.kernels:
        busy = sorted(k.busy.items(), key=lambda item: -item[1])
        stalls = sorted(k.stalls.items(), key=lambda item: -item[1])
        table.add_row("Kernel", f"{k.kernel}: {k.time_us:,.1f} us, limited by: {k.limiter}")
        table.add_row(
            "  waves",
            f"{k.workgroups_per_wgp} workgroups per WGP, {k.waves_per_simd:g} waves per SIMD, the GPU is filled "
            f"{k.rounds:.1f} times",
        )
        table.add_row("  in use", ", ".join(f"{name} {share:.0%}" for name, share in busy if share >= 0.01))
        table.add_row("  waiting", ", ".join(f"{name} {share:.0%}" for name, share in stalls if share >= 0.01))
    if timeline is not None:
        table.add_row("Timeline", f"{timeline}: open it in ui.perfetto.dev")
    new_console().print(table)

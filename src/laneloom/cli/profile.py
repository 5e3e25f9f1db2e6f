"""`laneloom profile`: where the time of one operation goes and what limits it, measured or, with no GPU, predicted."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError, UnsupportedError
from .product import MOST_BYTES, AsJson, Dtype, Layout
from .terminal import new_console, print_json, working

if TYPE_CHECKING:
    from ..bench.bottleneck import GpuProfile
    from ..gpu import Gpu
    from ..timing import Prediction

#: operation -> the names of its sizes, a default
SHAPES = {
    "matmul": (("M", "N", "K"), "4096,4096,4096"),
    "attention": (("B", "H", "N", "D"), "1,8,1024,64"),
    "transform3d": (("K", "COUNT"), "16,2048"),
}
DTYPES = {"matmul": "fp16", "attention": "fp16", "transform3d": "fp64"}
_TAKEN = {"attention": ("fp16", "bf16"), "transform3d": ("fp32", "fp64", "complex128")}  #: matmul's: `parse_product`
_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "complex128": 16}
_EMULATED = 512  #: of M, N and K where counters come from the emulator: larger ones repeat what smaller ones do


def profile(
    operation: Annotated[str, typer.Argument(metavar="OP", help="matmul, attention or transform3d.")],
    shape: Annotated[str | None, typer.Option("--shape", help="M,N,K; B,H,N,D; or K,COUNT.")] = None,
    dtype: Dtype = "",
    layout: Layout = "nn",
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="By default this machine's; another of AMD is emulated and predicted.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where an operation's time goes, and what limits it.

    On this machine's GPU: kernels by torch.profiler, rates and host time measured. For a GPU of AMD that need not be
    here: the emulator's counters and the timing model, called predicted. The bottleneck follows from these figures.
    """
    if operation not in SHAPES:
        raise ArgumentError(f"unknown operation {operation!r}; there are {', '.join(SHAPES)}")
    names, usual = SHAPES[operation]
    sizes = parse_sizes(shape or usual, names)
    dtype = dtype or DTYPES[operation]
    taken = _TAKEN.get(operation, (dtype,))
    if dtype not in taken:
        raise ArgumentError(f"--dtype: {operation} takes {', '.join(taken[:-1])} or {taken[-1]}, got {dtype}")
    if operation != "matmul" and layout != "nn":
        raise ArgumentError(f"--layout: only matmul has layouts, {operation} has none")
    here, said = _present(), f"{operation} {' x '.join(map(str, sizes))} {dtype}"
    if here is not None and gpu in (None, here.name):
        with working(f"Measuring {said}"):
            found = _measure(operation, sizes, dtype, layout, here)
        if as_json:
            print_json({"operation": operation, "sizes": sizes, "dtype": dtype, "gpu": here.name} | found.to_dict())
        else:
            _show_measured(operation, sizes, dtype, here, found)
        return
    if gpu is None:
        raise ArgumentError("--gpu: this machine has no GPU to measure on; name one to predict, such as gfx1151")
    with working(f"Predicting {said} on {gpu}"):
        prediction, counts = _predict(operation, sizes, dtype, layout, gpu)
    from ..bench.bottleneck import predicted_bottleneck

    sentence = predicted_bottleneck(prediction)
    if as_json:
        print_json(
            {"operation": operation, "sizes": sizes, "dtype": dtype, "gpu": gpu, "bottleneck": sentence}
            | prediction.to_dict() | {"counters": dict(counts)}
        )  # fmt: skip
    else:
        _show_predicted(operation, sizes, dtype, gpu, prediction, counts, sentence)


def parse_sizes(text: str, names: tuple[str, ...]) -> list[int]:
    """As many positive integers as there are names. Raises ArgumentError."""
    parts = re.split(r"\s*[,x]\s*", text.strip())
    if len(parts) != len(names) or not all(re.fullmatch(r"[0-9]{1,9}", p) and int(p) > 0 for p in parts):
        raise ArgumentError(f"--shape: expected {len(names)} positive integers {','.join(names)}, got {text!r}")
    return [int(p) for p in parts]


def _present() -> Gpu | None:
    from ..ops.target import active_gpu

    try:
        return active_gpu()
    except UnsupportedError:
        return None


def _measure(operation: str, sizes: list[int], dtype: str, layout: str, gpu: Gpu) -> GpuProfile:
    from ..bench import works
    from ..bench.bottleneck import profile_work

    if operation == "matmul":
        from .product import parse_product

        parse_product("matmul", gpu.name, ",".join(map(str, sizes)), dtype, None, layout)
        return profile_work(works.gemm_work(sizes[0], sizes[1], sizes[2], dtype, layout, "profile", gpu), gpu)
    if operation == "attention":
        batch, heads, n, d = sizes
        return profile_work(works.attention_work((batch, heads, heads, n, n, d, 0), dtype), gpu)
    return profile_work(works.transform_work(sizes[0], sizes[1], dtype), gpu)


def _predict(
    operation: str, sizes: list[int], dtype: str, layout: str, gpu: str
) -> tuple[Prediction, list[tuple[str, str]]]:
    """The timing model's figures, and what the emulator's counters say of a small product of the same schedule."""
    if operation == "matmul":
        from dataclasses import replace

        from ..bench.predicted import predict_matmul
        from ..ops.matmul import config
        from .product import parse_product, random_operands, run_product
        from .profile_facts import conclusions

        product = parse_product("matmul", gpu, ",".join(map(str, sizes)), dtype, None, layout)
        prediction = predict_matmul(*product.shape, gpu, dtype=dtype, dtype_out=product.dtype_out, layout=layout)
        small = replace(product, **{name: min(n, _EMULATED) for name, n in zip("mnk", sizes, strict=True)})
        chosen = config.plan(product.problem(), product.gpu)
        if chosen.why_invalid(small.problem(), small.gpu) is not None:
            chosen = None
        outcome = run_product(small, *random_operands(small, 0), profile=True, chosen=chosen)
        said = [("Counted at", f"{small.text}: {'right' if outcome.ok else 'WRONG'}")]
        return prediction, said + [line for record in outcome.launches for line in conclusions(small, record)]
    elements = 4 * prod(sizes) if operation == "attention" else 2 * sizes[1] * sizes[0] ** 3
    if (needed := elements * _BYTES[dtype]) > MOST_BYTES:
        raise ArgumentError(
            f"--shape: the operands and the result take {needed / 2**30:.0f} GiB, the most is {MOST_BYTES / 2**30:.0f}"
        )
    import torch

    from .. import flash_attention, transform3d
    from ..timing import predict

    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
    kinds["complex128"] = torch.complex128
    if operation == "attention":
        q, k, v = (torch.randn(*sizes, dtype=kinds[dtype]) for _ in range(3))
        return predict(lambda: flash_attention(q, k, v), gpu), []
    order, count = sizes
    x, t = torch.randn(count, order, order, order, dtype=kinds[dtype]), torch.randn(order, order, dtype=kinds[dtype])
    return predict(lambda: transform3d(x, t), gpu), []


def _show_measured(operation: str, sizes: list[int], dtype: str, gpu: Gpu, found: GpuProfile) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_row("Operation", f"{operation} {' x '.join(map(str, sizes))} {dtype}, measured on {gpu.product}")
    table.add_row("Call", f"{found.call_us:.2f} us sustained; the host issues it in {found.host_us:.1f} us")
    peak = "" if found.matrix_share is None else f" ({found.matrix_share:.0%} of the table's peak)"
    table.add_row("Rates", f"{found.tflops:.1f} TFLOP/s{peak}, {found.gbs:.0f} GB/s ({found.memory_share:.0%})")
    for kernel in found.kernels[:8]:
        table.add_row("Kernel", Text(f"{kernel.us:9.2f} us  {kernel.name}", overflow="ellipsis", no_wrap=True))
    if found.overlaps:
        table.add_row("", "each begins before the one before it ends: their times add up to more than the calls'")
    table.add_row("Bottleneck", Text(found.bottleneck, style="bold"))
    new_console().print(table)


def _show_predicted(
    operation: str, sizes: list[int], dtype: str, gpu: str, prediction: Any, said: list[tuple[str, str]], sentence: str
) -> None:
    from rich.table import Table
    from rich.text import Text

    from ..bench.bottleneck import shares_text

    table = Table.grid(padding=(0, 2))
    table.add_row("Operation", f"{operation} {' x '.join(map(str, sizes))} {dtype}, on {gpu}")
    table.add_row("Predicted", f"{prediction.time_us:,.1f} us: a model's figure, not measured")
    for kernel in prediction.kernels:
        table.add_row("Kernel", f"{kernel.time_us:,.1f} us  {kernel.kernel}")
        table.add_row("  in use", shares_text(kernel.busy))
        table.add_row("  waiting", shares_text(kernel.stalls))
    for topic, text in said:
        table.add_row(topic, text)
    table.add_row("Bottleneck", Text(sentence + " (predicted)", style="bold"))
    new_console().print(table)

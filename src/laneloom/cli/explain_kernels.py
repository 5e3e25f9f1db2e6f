"""`laneloom explain attention` and `transform3d`: which kernel does each part of it on a GPU, and what was refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..gpu import Gpu, get_gpu
from ..isa.words import counted
from .attention_code import attention_kernels
from .explain import refused_by_reason
from .product import check_choice
from .profile import SHAPES, parse_sizes
from .terminal import new_console, print_json

if TYPE_CHECKING:
    from ..pytorch.routing import Decision


@dataclass(frozen=True)
class Kernel:
    """One launch, or one role of several."""

    role: str
    config: Any
    refused: tuple[tuple[str, str], ...] = ()  #: configs that rank higher, and why not
    reason: str = ""

    @property
    def knobs(self) -> dict[str, Any]:
        return {f.name: getattr(self.config, f.name) for f in fields(self.config) if f.name not in ("schedule", "role")}


@dataclass(frozen=True)
class Explained:
    """What was asked for, in words and for JSON, its kernels, and what `laneloom.patched` does with it."""

    gpu: Gpu
    text: str
    asked: dict[str, Any]
    kernels: list[Kernel]
    decisions: dict[str, Decision]

    def to_dict(self) -> dict[str, Any]:
        kernels = [
            {
                "role": kernel.role, "schedule": kernel.config.schedule, "config": kernel.config.text,
                "knobs": kernel.knobs, "reason": kernel.reason,
                "passed_over": [{"config": text, "why": why} for text, why in kernel.refused],
            }
            for kernel in self.kernels
        ]  # fmt: skip
        patched = {name: asdict(decision) for name, decision in self.decisions.items()}
        return {"gpu": self.gpu.name, **self.asked, "kernels": kernels, "patched": patched}


def explain_attention(gpu: str, shape: str, dtype: str, causal: bool) -> Explained:
    """`flash_attention` with its gradients, and `attention_decode` over the same keys unless `causal`."""
    from ..ops.attention.config import candidates
    from ..ops.attention.problem import HALVES

    row = get_gpu(gpu)
    batch, heads, n, d = sizes = parse_sizes(shape, SHAPES["attention"][0])
    check_choice("--dtype", dtype, HALVES)

    def refused(problem: Any, role: Any, chosen: Any) -> Iterator[tuple[str, str]]:
        for config in candidates(problem, row, role):
            if config == chosen:
                return
            yield config.text, config.why_invalid(problem, row) or ""

    problem, configs = attention_kernels(row, batch, heads, n, d, dtype, causal, decodes=False)
    kernels = [Kernel(role, config, tuple(refused(problem, role, config))) for role, config in configs.items()]
    if not causal:
        _, decode = attention_kernels(row, batch, heads, n, d, dtype, causal, decodes=True)
        kernels += [Kernel(role, config) for role, config in decode.items()]
    asked = {"operation": "attention", "shape": sizes, "dtype": dtype, "causal": causal}
    text = f"attention {' x '.join(map(str, sizes))}, {dtype}{', causal' if causal else ''}"
    return Explained(row, text, asked, kernels, _decisions(row, sizes, dtype, causal))


def _decisions(gpu: Gpu, sizes: list[int], dtype: str, causal: bool) -> dict[str, Decision]:
    """What `patched` does with the attention, alone and with its gradients; empty where nothing was measured."""
    shipped = resources.files("laneloom").joinpath("pytorch", "measured", f"{gpu.name}.json")
    if not shipped.is_file() or find_spec("torch") is None:  # before seconds of imports
        return {}
    from ..pytorch.measurements import table_of
    from ..pytorch.routing import Part, Request, weigh

    if not any(measured.op == "attention" for measured in table_of(gpu.name).measurements):
        return {}
    batch, heads, n, d = sizes
    mask = "causal" if causal else "full"
    parts = [
        Part("attention", (f"{dtype} {mask} {way}",), (batch, heads, heads, n, n, d, d))
        for way in ("forward", "backward")
    ]
    return {
        "forward": weigh(Request("", tuple(parts[:1])), gpu),
        "with gradients": weigh(Request("", tuple(parts)), gpu),
    }


def explain_transform3d(gpu: str, shape: str, dtype: str) -> Explained:
    """`transform3d` of dense tensors by one real matrix."""
    from ..ops.transform3d.config import plan_with_reasons
    from ..ops.transform3d.problem import DTYPE_BYTES, Transform3dProblem

    row = get_gpu(gpu)
    k, count = sizes = parse_sizes(shape, SHAPES["transform3d"][0])
    check_choice("--dtype", dtype, tuple(DTYPE_BYTES))
    found = plan_with_reasons(Transform3dProblem(k, count, dtype), row)
    refused = tuple((config.text, why) for config, why in found.passed_over)
    asked = {"operation": "transform3d", "shape": sizes, "dtype": dtype}
    text = f"transform3d of {counted(count, 'tensor')}, K = {k}, {dtype}"
    return Explained(row, text, asked, [Kernel("transform", found.config, refused, found.reason)], {})


def show(explained: Explained, as_json: bool) -> None:
    """As a table, or as JSON."""
    if as_json:
        print_json(explained.to_dict())
        return
    from rich.table import Table
    from rich.text import Text

    gpu = explained.gpu
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("Operation", f"{explained.text}, on {gpu.name} ({gpu.family}, {gpu.product})")
    for kernel in explained.kernels:
        knobs = "  ".join(f"{name}={value}" for name, value in kernel.knobs.items())
        table.add_row(kernel.role.capitalize(), Text.assemble((kernel.config.schedule, "bold"), f"  {knobs}"))
        if kernel.reason:
            table.add_row("  why", kernel.reason)
        for why, configs in refused_by_reason(kernel.config.text, kernel.refused).items():
            table.add_row("  refused", Text.assemble(f"{why}:", *(("\n  " + config, "dim") for config in configs)))
    for name, decision in explained.decisions.items():
        place = "Patched" if name == "forward" else f"  {name}"
        table.add_row(place, ("runs here: " if decision.routed else "stays torch's: ") + decision.reason)
    new_console().print(table)

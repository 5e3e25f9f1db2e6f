"""Host time of a warm call, laneloom's and torch's; `python -m laneloom.bench.host_time --help`.

With gradients the forward records them; cases "both ways" run the backward as well.

The problems are smaller than a launch, so that the host is what is measured. A round times `CALLS` calls of one
candidate without a synchronisation, then drains the queue; candidates take turns, in an order that is rotated.
`--page docs/pytorch.md` fills that page's table from the file's newest records.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import laneloom

from ..pytorch.patch import patched
from .records import Record, append, load, make_record, read_environment
from .report import fill_page
from .timing import Timing, host_us

METHOD_HOST = "host: wall time of 200 warm calls without synchronisation, queue drained between, median over rounds"
CALLS, ROUNDS = 200, 9
LAYERS = 8  #: after each other, each the call in question with what stands around it in models; a backward begins once
#: op -> the case of layers; what stands around a call is measured without it too, and taken off
IN_LAYERS = {"matmul": "linear in layers", "attention": "attention in layers"}
BOTH_WAYS = ", both ways"
WITH, WITHOUT = f"{LAYERS} layers", f"{LAYERS} layers without the call"
PATCHED = ", patched and routed"


@dataclass(frozen=True)
class Case:
    """Calls that do the same: the first is torch's."""

    op: str
    gradients: bool
    candidates: dict[str, Callable[[], object]]
    #: what a candidate runs in; nothing by default
    contexts: Mapping[str, Callable[[], AbstractContextManager[object]]]


def cases(device: str) -> Iterator[Case]:
    """Every public function on a problem that no GPU needs microseconds for, with and without gradients."""

    def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(len(shape))
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    for gradients in (False, True):
        a, b, bias = (tensor(*shape).requires_grad_(gradients) for shape in ((64, 64), (64, 64), (64,)))
        out = torch.empty_like(a.detach())
        q = tensor(1, 4, 64, 64).requires_grad_(gradients)
        x, t = (tensor(*s, dtype=torch.float64).requires_grad_(gradients) for s in ((8, 10, 10, 10), (10, 10)))
        products: dict[str, Callable[[], object]] = {
            "torch.matmul": lambda a=a, b=b: torch.matmul(a, b),
            "laneloom.matmul": lambda a=a, b=b: laneloom.matmul(a, b),
            "torch.ops.laneloom.matmul": lambda a=a, b=b: torch.ops.laneloom.matmul(a, b),
            "torch.matmul, patched and routed": lambda a=a, b=b: torch.matmul(a, b),
        }
        if not gradients:
            products["torch.matmul, out="] = lambda a=a, b=b, out=out: torch.matmul(a, b, out=out)
            products["laneloom.matmul, out="] = lambda a=a, b=b, out=out: laneloom.matmul(a, b, out=out)
        yield Case("matmul", gradients, products, {"torch.matmul, patched and routed": lambda: patched(always=True)})
        yield Case("gemm", gradients, {
            "F.linear": lambda a=a, b=b, bias=bias: F.linear(a, b, bias),
            "laneloom.gemm": lambda a=a, b=b, bias=bias: laneloom.gemm(a, b.mT, bias=bias),
        }, {})  # fmt: skip
        yield Case("attention", gradients, {
            "F.scaled_dot_product_attention": lambda q=q: F.scaled_dot_product_attention(q, q, q),
            "laneloom.flash_attention": lambda q=q: laneloom.flash_attention(q, q, q),
        }, {})  # fmt: skip
        if not gradients:
            q, cache, lengths = tensor(2, 1, 8, 64), tensor(2, 256, 2, 64), torch.tensor([256, 256], device=device)
            turned, seen, lengths = q.transpose(1, 2), cache.transpose(1, 2), lengths.int()
            yield Case("decode", False, {
                "F.scaled_dot_product_attention": lambda q=turned, k=seen: F.scaled_dot_product_attention(
                    q, k, k, enable_gqa=True),
                "laneloom.attention_decode": lambda q=q, k=cache, n=lengths: laneloom.attention_decode(
                    q, k, k, cache_lengths=n),
            }, {})  # fmt: skip
            one = torch.ones((), device=device)
            x8, y8 = (tensor(64, 64).to(torch.float8_e4m3fn) for _ in "ab")
            yield Case("scaled_mm", False, {
                "torch._scaled_mm": lambda a=x8, b=y8.mT, s=one: torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
                    a, b, s, s, out_dtype=torch.bfloat16, use_fast_accum=True),
                "laneloom.gemm": lambda a=x8, b=y8.mT, s=one: laneloom.gemm(
                    a, b, scale_a=s, scale_b=s, out_dtype=torch.bfloat16),
            }, {})  # fmt: skip
            experts, ends = tensor(2, 64, 64).mT, torch.tensor([32, 64], device=device).int()
            yield Case("grouped_matmul", False, {
                "torch._grouped_mm": lambda a=a, b=experts, ends=ends: torch._grouped_mm(a, b, offs=ends),  # pyright: ignore
                "laneloom.grouped_matmul": lambda a=a, b=experts, ends=ends: laneloom.grouped_matmul(a, b, ends),
            }, {})  # fmt: skip
        yield Case("transform3d", gradients, {
            "torch.einsum": lambda x=x, t=t: torch.einsum("nabc,ai,bj,ck->nijk", x, t, t, t),
            "laneloom.transform3d": lambda x=x, t=t: laneloom.transform3d(x, t),
        }, {})  # fmt: skip
        yield Case("transpose", gradients, {
            "mT.contiguous()": lambda a=a: a.mT.contiguous(), "laneloom.transpose": lambda a=a: laneloom.transpose(a),
        }, {})  # fmt: skip
        yield Case("gemm_chain", gradients, {
            "two torch.matmul": lambda a=a, b=b: torch.matmul(torch.matmul(a, b), b),
            "laneloom.gemm_chain": lambda a=a, b=b: laneloom.gemm_chain(a, b, b),
        }, {})  # fmt: skip
    a, b, weight = (tensor(64, 64).requires_grad_(gradients) for gradients in (True, True, False))
    q, weight_q = (tensor(1, 4, 64, 64).requires_grad_(gradients) for gradients in (True, False))

    def both_ways(call: Callable[[], torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(call(), (a, b), weight)

    def attention_both_ways(call: Callable[..., torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(call(q, q, q), q, weight_q)

    yield Case("matmul, both ways", True, {
        "torch.matmul": both_ways(lambda: torch.matmul(a, b)),
        "laneloom.matmul": both_ways(lambda: laneloom.matmul(a, b)),
        "torch.ops.laneloom.matmul": both_ways(lambda: torch.ops.laneloom.matmul(a, b)),
        "torch.matmul, patched and routed": both_ways(lambda: torch.matmul(a, b)),
    }, {"torch.matmul, patched and routed": lambda: patched(always=True)})  # fmt: skip
    x, bias = tensor(4, 16, 64).requires_grad_(True), tensor(64).requires_grad_(True)
    calls: dict[str, tuple[tuple[torch.Tensor, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
        "matmul": ((x, b, bias), lambda x: F.linear(x, b, bias)),
        "attention": ((q,), lambda x: F.scaled_dot_product_attention(x, x, x)),
    }
    for op, case in IN_LAYERS.items():
        leaves, call = calls[op]

        def layers(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor = leaves[0]) -> torch.Tensor:
            for _ in range(LAYERS):
                x = x + F.gelu(call(F.layer_norm(x, x.shape[-1:])))
            return x

        def forward(call: Callable[..., torch.Tensor], layers: Callable[..., torch.Tensor] = layers) -> object:
            with torch.no_grad():
                return layers(call)

        def both(
            call: Callable[..., torch.Tensor], layers: Callable[..., torch.Tensor] = layers, leaves: Any = leaves
        ) -> object:
            return torch.autograd.grad(layers(call).sum(), leaves, allow_unused=True)

        for gradients, run in ((False, forward), (True, both)):
            plain = {WITH: lambda run=run, call=call: run(call), WITHOUT: lambda run=run: run(lambda x: x)}
            every = plain | {name + PATCHED: run for name, run in plain.items()}
            contexts = {name + PATCHED: lambda: patched(always=True) for name in plain}
            yield Case(case + BOTH_WAYS * gradients, gradients, every, contexts)
    yield Case("gelu, both ways", True, {
        "F.gelu of torch.matmul": both_ways(lambda: F.gelu(torch.matmul(a, b))),
        "laneloom.gemm": both_ways(lambda: laneloom.gemm(a, b, activation="gelu")),
    }, {})  # fmt: skip
    yield Case("attention, both ways", True, {
        "F.scaled_dot_product_attention": attention_both_ways(F.scaled_dot_product_attention),
        "laneloom.flash_attention": attention_both_ways(laneloom.flash_attention),
    }, {})  # fmt: skip
    yield Case("gemm_chain, both ways", True, {
        "two torch.matmul": both_ways(lambda: torch.matmul(torch.matmul(a, b), b)),
        "laneloom.gemm_chain": both_ways(lambda: laneloom.gemm_chain(a, b, b)),
    }, {})  # fmt: skip
    y = tensor(64, 64)
    yield Case("another function", False, {
        "torch.relu": lambda: torch.relu(y), "torch.relu, patched": lambda: torch.relu(y),
    }, {"torch.relu, patched": lambda: patched()})  # fmt: skip


def measure(case: Case) -> dict[str, Timing]:
    """Timings by candidate, in microseconds of host time per call."""
    samples: dict[str, list[float]] = {name: [] for name in case.candidates}
    names = list(samples)
    for r in range(ROUNDS):
        shift = r % len(names)
        for name in names[shift:] + names[:shift]:
            with case.contexts.get(name, nullcontext)():
                samples[name].append(host_us(lambda _, call=case.candidates[name]: call(), calls=CALLS, rounds=1))
    reference = samples[names[0]]
    return {name: Timing.from_samples(values, reference) for name, values in samples.items()}


def run(path: Path) -> None:
    """Measure every case and append its records to `path`."""
    environment = read_environment()
    for case in cases("cuda"):
        timings = measure(case)
        reference = next(iter(timings))
        for name, timing in timings.items():
            append(path, make_record(
                timing, op=f"host_time/{case.op}", candidate=name, method=METHOD_HOST, reference=reference, flops=0,
                bytes=0, environment=environment, kernel_hash="", config=None, problem={"gradients": case.gradients},
            ))  # fmt: skip
            how = "gradients" if case.gradients else ""
            print(f"{case.op:22} {how:10} {name:36} {timing.median_us:7.2f} us", flush=True)


#: rows of the table: words, what is measured, torch's candidate and laneloom's
_ROWS = (
    ("`torch.matmul`, `matmul`", "matmul", "torch.matmul", "laneloom.matmul"),
    ("the same with `out=`", "matmul", "torch.matmul, out=", "laneloom.matmul, out="),
    ("`torch.matmul`, patched and routed", "matmul", "torch.matmul", "torch.matmul, patched and routed"),
    ("`torch.ops.laneloom.matmul`, as compiled code calls it", "matmul", "torch.matmul", "torch.ops.laneloom.matmul"),
    ("`F.linear` with a bias, `gemm`", "gemm", "F.linear", "laneloom.gemm"),
    ("`scaled_dot_product_attention`, `flash_attention`", "attention", "F.scaled_dot_product_attention",
     "laneloom.flash_attention"),
    ("`scaled_dot_product_attention` over a cache, `attention_decode`", "decode", "F.scaled_dot_product_attention",
     "laneloom.attention_decode"),
    ("`torch.einsum`, `transform3d`", "transform3d", "torch.einsum", "laneloom.transform3d"),
    ("`mT.contiguous()`, `transpose`", "transpose", "mT.contiguous()", "laneloom.transpose"),
    ("two of `torch.matmul`, `gemm_chain`", "gemm_chain", "two torch.matmul", "laneloom.gemm_chain"),
    ("`torch.matmul`, `matmul`, forward and backward", "matmul, both ways", "torch.matmul", "laneloom.matmul"),
    ("the same, patched and routed", "matmul, both ways", "torch.matmul", "torch.matmul, patched and routed"),
    ("the same, `torch.ops.laneloom.matmul`", "matmul, both ways", "torch.matmul", "torch.ops.laneloom.matmul"),
    ("`F.gelu` of `torch.matmul`, `gemm` with `activation=\"gelu\"`, forward and backward", "gelu, both ways",
     "F.gelu of torch.matmul", "laneloom.gemm"),
    ("attention, forward and backward", "attention, both ways", "F.scaled_dot_product_attention",
     "laneloom.flash_attention"),
    ("two of `torch.matmul`, `gemm_chain`, forward and backward", "gemm_chain, both ways", "two torch.matmul",
     "laneloom.gemm_chain"),
    ("`torch.relu`, outside and inside `patched`", "another function", "torch.relu", "torch.relu, patched"),
)  # fmt: skip


def in_layers(records: Iterable[Record], op: str, gradients: bool) -> tuple[float, float] | None:
    """Host time of a call in layers, torch's and laneloom's, by the newest records, if any; with gradients of forward
    and backward."""
    case = f"host_time/{IN_LAYERS[op]}{BOTH_WAYS * gradients}"
    newest = {r.candidate: r.median_us for r in records if r.op == case}
    names = [(WITH + how, WITHOUT + how) for how in ("", PATCHED)]
    if not all(name in newest for pair in names for name in pair):
        return None
    theirs, ours = ((newest[whole] - newest[rest]) / LAYERS for whole, rest in names)
    return theirs, ours


def _cells(times: Iterable[float]) -> str:
    return " | ".join(f"{us:.1f}" for us in times)


def render(records: Iterable[Record]) -> str:
    """Markdown: microseconds of the host for a warm call, without gradients and with."""
    records = list(records)
    newest = {(r.op.removeprefix("host_time/"), r.problem["gradients"], r.candidate): r.median_us for r in records}
    lines = ["| | torch | laneloom | with gradients: torch | laneloom |", "|---|---|---|---|---|"]
    for words, op, *candidates in _ROWS:
        times = [newest.get((op, gradients, name)) for gradients in (False, True) for name in candidates]
        lines.append(f"| {words} | " + " | ".join("" if us is None else f"{us:.1f}" for us in times) + " |")
    for words, op in (("`F.linear` with a bias", "matmul"), ("`scaled_dot_product_attention`", "attention")):
        forward, both = (in_layers(records, op, gradients) or () for gradients in (False, True))
        if forward:
            lines.append(f"| {words} in a model's layers, routed | {_cells(forward)} |  |  |")
        if both:
            lines.append(f"| {words} in a model's layers, forward and backward, routed |  |  | {_cells(both)} |")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure the host time of warm calls.")
    parser.add_argument("--out", type=Path, required=True, help="file of records to append to")
    parser.add_argument("--page", type=Path, help="fill this page's table from the file; nothing is measured")
    arguments = parser.parse_args()
    if arguments.page is None:
        run(arguments.out)
    else:
        fill_page(arguments.page, {"host_time": render(load(arguments.out))})


if __name__ == "__main__":
    main()

"""`quantized_matmul` on one Hopper GPU: `python -m laneloom.bench.quantized_weights --out FILE`.

Beside torch.matmul of the same weight in bf16, which is what it replaces, and of int4 torch's own kernel for it
(_weight_int4pack_mm, as torchao takes it). In one interleaved run, captured in graphs, inputs rotated past the L2.
Every result of ours is checked against FP64 before it is timed. With `--page` it fills a page's table from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import LaneloomError
from ..ops.quantized_matmul.api import quantized_matmul
from ..ops.quantized_matmul.plan import plan
from ..ops.quantized_matmul.problem import QuantizedProblem
from ..ops.quantized_matmul.weight import QuantizedWeight
from ..ops.target import active_gpu
from .records import Environment, Record, append, hash_sources, make_record, read_environment
from .report import OURS, by_candidate, geometric_mean, measure_or_fill, measured_on
from .timing import METHOD_SUSTAINED, Timing, count_sets, interleave

PACKAGE = Path(__file__).parents[1]
KERNEL_SOURCES = tuple(sorted((PACKAGE / "ops/quantized_matmul/kernels").glob("hopper_weights*")))
BF16, INT4PACK = "torch.matmul, bf16", "torch _weight_int4pack_mm"
#: dtype of the weight -> dtype of its scales, group
KINDS = {"int4": ("bf16", 128), "fp4": ("e8m0", 32), "int8": ("fp32", 0), "fp8": ("fp32", 0)}
INNER_TILES = 8  #: of K, of torch's packed weight
ROWS = (1, 4, 16, 32, 64, 128, 256, 1024, 4096)
MOST_PACKED_ROWS = 128  #: that torch's own kernel is measured with: it takes 8 us for each
LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  #: N x K of Llama 3 8B
EXPERTS = ((5760, 2880), (2880, 2880))  #: of gpt-oss
BF16_ROUNDING = 2.0**-9


class Case(NamedTuple):
    """X [M, K] of bf16 and a weight [N, K]."""

    m: int
    n: int
    k: int
    dtype: str

    @property
    def shape(self) -> QuantizedProblem:
        scale, group = KINDS[self.dtype]
        return QuantizedProblem.contiguous(
            self.m, self.n, self.k, dtype="bf16", dtype_w=self.dtype, dtype_scale=scale, group=group
        )


CASES = (
    *(Case(m, n, k, "int4") for n, k in LAYERS for m in ROWS),
    *(Case(m, n, k, "fp4") for n, k in (*EXPERTS, (28672, 4096)) for m in (1, 16, 64, 128, 1024)),
    *(Case(m, n, k, dtype) for dtype in ("int8", "fp8") for n, k in ((4096, 4096), (28672, 4096))
      for m in (1, 16, 64, 128, 1024)),
)


def make_weight(dtype: str, batch: tuple[int, ...], n: int, k: int) -> QuantizedWeight:
    """Random codes, and scales between 1/2 and 1, or powers of two."""
    scale, group = KINDS[dtype]
    packed = dtype in ("int4", "fp4")
    values = torch.randint(0, 256, (*batch, n, k // 2 if packed else k), dtype=torch.uint8, device="cuda")
    if dtype == "int8":
        values = values.view(torch.int8)
    elif dtype == "fp8":
        values = torch.randn(values.shape, device="cuda").to(torch.float8_e4m3fn)
    shape = (*batch, n, -(-k // group) if group else 1)
    if scale == "e8m0":
        scales = torch.randint(124, 131, shape, dtype=torch.uint8, device="cuda")
    else:
        scales = torch.rand(shape, device="cuda") / 2 + 0.5
        scales = scales.to(torch.bfloat16) if scale == "bf16" else scales
    return QuantizedWeight(values, scales, dtype, group or None)


def _of_torch(weight: QuantizedWeight) -> tuple[Any, Any]:
    """An int4 weight as torch's kernel takes it: packed, and a scale and a zero for each group."""
    low, high = weight.values & 15, weight.values >> 4
    codes = torch.stack([low, high], -1).flatten(-2).int() ^ 8  # from 0: two's complement with the sign turned
    octets = (codes[:, 0::2] << 4 | codes[:, 1::2]).to(torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(octets, INNER_TILES)
    scales = weight.scales.t()
    return packed, torch.stack([scales, torch.zeros_like(scales)], -1).contiguous()


def _error(case: Case, got: torch.Tensor, x: torch.Tensor, weight: QuantizedWeight) -> tuple[float, float]:
    """|| C - truth || / || truth ||, and its budget: twice that of the FP32 product of the same numbers, and a rounding
    of the result."""
    wide = weight.dequantize(torch.float32).double()
    truth = x.double() @ wide.T
    in_fp32 = (x.float() @ wide.float().T).double()
    budget = 2 * (in_fp32 - truth).norm() / truth.norm() + BF16_ROUNDING
    return ((got.double() - truth).norm() / truth.norm()).item(), budget.item()


def measure(case: Case, rounds: int) -> tuple[dict[str, Timing], float, float]:
    """Timings by candidate, error and its budget. Raises LaneloomError for an error beyond its budget."""
    weight = make_weight(case.dtype, (), case.n, case.k)
    n_sets = count_sets(case.shape.bytes, limit=48)
    weights = [
        QuantizedWeight(weight.values.clone(), weight.scales.clone(), case.dtype, weight.group) for _ in range(n_sets)
    ]
    plain = [weight.dequantize(torch.bfloat16) for _ in range(count_sets(2 * case.n * case.k, limit=48))]
    x = torch.randn(case.m, case.k, device="cuda", dtype=torch.bfloat16)
    error, budget = _error(case, quantized_matmul(x, weight), x, weight)
    if not error <= budget:
        raise LaneloomError(f"{case}: relative error {error:.2e} is over its budget of {budget:.2e}")
    candidates: dict[str, Callable[[int], object]] = {
        BF16: lambda i: torch.matmul(x, plain[i % len(plain)].T),
        OURS: lambda i: quantized_matmul(x, weights[i]),
    }
    if case.dtype == "int4" and case.m <= MOST_PACKED_ROWS:
        packed = [_of_torch(w) for w in weights]
        candidates[INT4PACK] = lambda i: torch.ops.aten._weight_int4pack_mm(x, packed[i][0], weight.group, packed[i][1])
    return interleave(candidates, n_sets, reference=BF16, rounds=rounds), error, budget


def keep(
    path: Path, timings: dict[str, Timing], environment: Environment, shape: QuantizedProblem, *, op: str,
    problem: dict[str, Any], reference: str, nbytes: int, errors: tuple[float, float],
) -> None:  # fmt: skip
    """Append a record for each candidate; errors: ours and its budget."""
    ours: dict[str, Any] = {
        "kernel_hash": hash_sources(KERNEL_SOURCES), "config": {"text": plan(shape, active_gpu()).text},
        "error": errors[0], "error_budget": errors[1],
    }  # fmt: skip
    others: dict[str, Any] = {"kernel_hash": "", "config": None, "error": None, "error_budget": None}
    for name, timing in timings.items():
        append(path, make_record(
            timing, op=op, problem=problem, candidate=name, method=METHOD_SUSTAINED, reference=reference,
            flops=shape.flops, bytes=nbytes, environment=environment, **(ours if name == OURS else others),
        ))  # fmt: skip


def star(shape: QuantizedProblem, ours: Record) -> str:
    """What marks a time whose config the plan would not choose any more."""
    planned = plan(shape, ours.environment.known_gpu()).text
    return "" if planned == (ours.config or {}).get("text") else " *"


def page(head: str, lines: list[str]) -> str:
    """A table with what is said above it, and below of its stars."""
    note = ["", "\\* the plan chooses another tile since."] if any(" *" in line for line in lines) else []
    return "\n".join([head, "", *lines, *note])


def run(path: Path, rounds: int) -> None:
    """Measure every case and append records to `path`."""
    environment = read_environment()
    for case in CASES:
        timings, error, budget = measure(case, rounds)
        keep(
            path, timings, environment, case.shape, op="quantized matmul", problem=case._asdict(), reference=BF16,
            nbytes=case.shape.bytes, errors=(error, budget),
        )  # fmt: skip
        print(case, {n: f"{t.median_us:.1f} us x{t.ratio_to_reference:.3f}" for n, t in timings.items()}, flush=True)


def render(records: Iterable[Record]) -> str:
    """Markdown: one row a problem, its newest records."""
    newest = by_candidate(records)
    lines = [
        "| weight | M x N x K | us | GB/s | x bf16 | x _weight_int4pack_mm | error |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for x in newest:
        ours, p = x[OURS], x[OURS].problem
        replanned = star(Case(**p).shape, ours)
        packed = f"{x[INT4PACK].median_us / ours.median_us:.2f}" if INT4PACK in x else ""
        lines.append(
            f"| {p['dtype']} | {p['m']} x {p['n']} x {p['k']} | {ours.median_us:.1f}{replanned} | {ours.gbs:.0f} | "
            f"{x[BF16].median_us / ours.median_us:.2f} | {packed} | {ours.error:.1e} |"
        )

    def mean(name: str, low: int, high: int, bits: tuple[str, ...]) -> str:
        rows = [x for x in newest if low <= x[OURS].problem["m"] <= high and x[OURS].problem["dtype"] in bits]
        return f"{geometric_mean([x[name].median_us / x[OURS].median_us for x in rows if name in x]):.2f}"

    four, eight = ("int4", "fp4"), ("int8", "fp8")
    head = (
        f"{measured_on(newest[-1][OURS], KERNEL_SOURCES)} Geometric means, of bf16: 4 bits, up to 16 rows "
        f"{mean(BF16, 1, 16, four)}, 32 and 64 rows {mean(BF16, 32, 64, four)}, 128 rows {mean(BF16, 128, 128, four)}, "
        f"256 {mean(BF16, 256, 256, four)}, 1024 {mean(BF16, 1024, 1024, four)}, 4096 {mean(BF16, 4096, 4096, four)}; "
        f"8 bits, up to 16 rows {mean(BF16, 1, 16, eight)}, 64 and 128 {mean(BF16, 64, 128, eight)}, 1024 "
        f"{mean(BF16, 1024, 1024, eight)}. Of _weight_int4pack_mm: one row {mean(INT4PACK, 1, 1, four)}, 4 to 128 rows "
        f"{mean(INT4PACK, 4, 128, four)}."
    )
    return page(head, lines)


def main() -> None:
    """Command line."""
    measure_or_fill("Measure quantized_matmul.", 7, run, "quantized", render)


if __name__ == "__main__":
    main()

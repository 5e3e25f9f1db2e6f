"""`quantize_blocks` on one NVIDIA GPU: `python -m laneloom.bench.quantize --out FILE`.

Beside the same in torch, eager and compiled, and a copy of as many bytes as are read and written, in one interleaved
run with inputs rotated past the L2. Numbers and scales are compared with torch's before anything is timed. With
`--page` it fills a page's table from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from ..errors import LaneloomError
from ..ops.quantize.api import quantize_blocks
from .records import Record, append, hash_sources, make_record, read_environment
from .report import OURS, by_candidate, geometric_mean, measure_or_fill, measured_on
from .timing import METHOD_SUSTAINED, count_sets, interleave

PACKAGE = Path(__file__).parents[1]
KERNEL_SOURCES = tuple(sorted((PACKAGE / "ops/quantize/kernels").glob("*.py")))
COPY, EAGER, COMPILED = "copy", "torch", "torch.compile"
LARGEST = 448.0  #: of e4m3


class Case(NamedTuple):
    """M x K of bf16, whose scales are of `rows` rows by 128."""

    m: int
    k: int
    rows: int

    @property
    def bytes(self) -> int:
        """Read and written: bf16, fp8 and the scales."""
        return 3 * self.m * self.k + 4 * -(-self.m // self.rows) * -(-self.k // 128)


CASES = (
    Case(64, 7168, 1), Case(1024, 7168, 1), Case(4096, 7168, 1), Case(16384, 2048, 1), Case(7168, 16384, 128),
    Case(24576, 1536, 128), Case(4096, 4096, 128),
)  # fmt: skip


def by_torch(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, of sizes that are whole blocks."""
    blocks = x.float().view(x.shape[0] // rows, rows, x.shape[1] // 128, 128)
    largest = blocks.abs().amax((1, 3), keepdim=True)
    # A number in a tensor: torch divides by one of the host by multiplying with its reciprocal.
    scale = torch.where(largest > 0, largest / torch.full_like(largest, LARGEST), 1.0)
    return (blocks / scale).to(torch.float8_e4m3fn).view(x.shape), scale.view(scale.shape[0], scale.shape[2])


def _check(case: Case, x: torch.Tensor) -> None:
    (got, scale), (wanted, of_torch) = quantize_blocks(x, case.rows), by_torch(x, case.rows)
    same = torch.equal(got.view(torch.uint8), wanted.view(torch.uint8)) and torch.equal(scale, of_torch)
    if not same:
        raise LaneloomError(f"{case}: not torch's numbers, {int((got.float() != wanted.float()).sum())} differ")


def run(path: Path, rounds: int) -> None:
    """Measure every case and append records to `path`."""
    environment, sources = read_environment(), hash_sources(KERNEL_SOURCES)
    compiled = torch.compile(by_torch, dynamic=False)
    for case in CASES:
        n_sets = count_sets(case.bytes, limit=64)
        xs = [torch.randn(case.m, case.k, device="cuda", dtype=torch.bfloat16) for _ in range(n_sets)]
        buffers = [torch.empty(case.bytes // 2, dtype=torch.uint8, device="cuda") for _ in range(2 * n_sets)]
        _check(case, xs[0])

        def candidates(case: Case = case, xs: list = xs, buffers: list = buffers) -> dict[str, Callable[[int], object]]:
            return {
                COPY: lambda i: buffers[2 * i].copy_(buffers[2 * i + 1]),
                OURS: lambda i: quantize_blocks(xs[i], case.rows),
                EAGER: lambda i: by_torch(xs[i], case.rows),
                COMPILED: lambda i: compiled(xs[i], case.rows),
            }

        timings = interleave(candidates(), n_sets, reference=COPY, rounds=rounds)
        for name, timing in timings.items():
            append(path, make_record(
                timing, op="quantize blocks", problem=case._asdict(), candidate=name, method=METHOD_SUSTAINED,
                reference=COPY, flops=0, bytes=case.bytes, environment=environment,
                kernel_hash=sources if name == OURS else "", config=None, error=0.0 if name == OURS else None,
                error_budget=0.0 if name == OURS else None,
            ))  # fmt: skip
        print(case, {n: f"{t.median_us:.1f} us x{t.ratio_to_reference:.3f}" for n, t in timings.items()}, flush=True)


def render(records: Iterable[Record]) -> str:
    """Markdown: one row a problem, its newest records."""
    newest = by_candidate(records)
    lines = [
        "| M x K | scales | us | GB/s | of a copy | x torch.compile | x torch |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for x in newest:
        ours, p = x[OURS], x[OURS].problem
        others = [f"{x[name].median_us / ours.median_us:.2f}" for name in (COPY, COMPILED, EAGER)]
        lines.append(
            f"| {p['m']} x {p['k']} | {p['rows']}x128 | {ours.median_us:.1f} | {ours.gbs:.0f} | {' | '.join(others)} |")
    means = [
        f"{geometric_mean([x[name].median_us / x[OURS].median_us for x in newest]):.2f} of {name}"
        for name in (COPY, COMPILED, EAGER)
    ]
    head = f"{measured_on(newest[-1][OURS], KERNEL_SOURCES)} Geometric means: {', '.join(means)}."
    return "\n".join([head, "", *lines])


def main() -> None:
    """Command line."""
    measure_or_fill("Measure quantize_blocks.", 9, run, "quantize", render)


if __name__ == "__main__":
    main()

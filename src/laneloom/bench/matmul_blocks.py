"""Products of 8-bit floats whose blocks along K have scales, on one Hopper GPU: `python -m laneloom.bench.matmul_blocks
--out FILE`.

Beside `laneloom.gemm` torch's scaled_mm of the same operands and scales (cuBLAS), and ours and torch's with one scale
for each operand; beside `laneloom.grouped_matmul` torch's grouped_mm of bf16, a loop of its scaled_mm over the groups,
and, of scales of rows, ours and its scaled grouped_mm. In one interleaved run, captured in graphs, inputs rotated past
the L2. Every result of ours is checked against FP64 before it is timed. With `--page` it fills a page's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F

from ..errors import LaneloomError
from ..ops.matmul import execute
from ..ops.matmul.config import plan
from ..ops.matmul.gemm import gemm
from ..ops.matmul.grouped import grouped_matmul
from ..ops.matmul.problem import SCALE_BLOCK
from ..ops.target import active_gpu
from .kernel_sources import schedule_sources
from .products import fp8_error_of_sums
from .quantized_experts import first_group
from .records import Record, append, hash_sources, make_record, read_environment
from .report import OURS, by_candidate, geometric_mean, measure_or_fill, measured_on
from .timing import METHOD_SUSTAINED, Timing, count_sets, interleave

KERNEL_SOURCES = schedule_sources("hopper_cluster")
OP = "matmul blocks"
TORCH, ONE_SCALE, TORCH_ONE_SCALE = "torch scaled_mm", "laneloom, one scale", "torch, one scale"
GROUPED, ROW_SCALES, LOOP = "torch grouped_mm, bf16", "torch scaled_grouped_mm, row scales", "torch scaled_mm, a loop"
OURS_ROW_SCALES = "laneloom, row scales"
BF16_ROUNDING = 2.0**-9
FP8 = torch.float8_e4m3fn
DRAWN = 16  #: rows that go to one group, as torch's scaled_mm wants


class Case(NamedTuple):
    """A product, or groups of rows, M in all: 16 by 16 each has a group that is drawn for them."""

    m: int
    n: int
    k: int
    columns: int = SCALE_BLOCK  #: of B that share a scale
    groups: int = 0

    @property
    def bytes(self) -> int:
        """Each element once, of the groups that have rows on the mean."""
        groups = self.groups * (1 - (1 - 1 / self.groups) ** (self.m // DRAWN)) if self.groups else 1
        return int(self.m * self.k + groups * self.n * self.k + 2 * self.m * self.n)

    @property
    def problem(self) -> dict[str, Any]:
        return {**self._asdict(), "dtype": "fp8"}


#: layers of DeepSeek-V3 and Qwen3, squares, few rows; scales of 1x128 twice, as in the gradient of a weight; experts
CASES = (
    *(Case(m, n, k) for n, k in ((2112, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048))
      for m in (64, 128, 1024, 4096)),
    *(Case(m, n, k) for n, k in ((5120, 5120), (12288, 4096)) for m in (16, 256, 2048)),
    *(Case(n, n, n) for n in (1024, 2048, 4096, 8192)),
    *(Case(*size, 1) for size in ((2048, 7168, 4096), (4096, 4096, 4096), (1024, 1536, 7168), (128, 4096, 7168))),
    Case(8192, 4096, 7168, groups=8), Case(8192, 7168, 2048, groups=8), Case(4096, 4096, 7168, groups=32),
    Case(1024, 4096, 7168, groups=64), Case(16384, 4096, 7168, groups=128), Case(16384, 7168, 2048, groups=128),
    Case(65536, 4096, 7168, groups=128), Case(65536, 7168, 2048, groups=128),
)  # fmt: skip


class _Operands(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor  #: [K, N], or [G, K, N], along K
    scale_a: torch.Tensor  #: [M, blocks], along M, as cuBLAS takes them
    scale_b: torch.Tensor  #: [..., blocks, N or its blocks]
    ends: torch.Tensor


def _operands(case: Case, seed: int) -> _Operands:
    generator = torch.Generator("cuda").manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device="cuda", generator=generator).add_(0.5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator).to(FP8)

    blocks, outer = -(-case.k // SCALE_BLOCK), (case.groups,) if case.groups else ()
    columns = -(-case.n // case.columns)
    scale_b = uniform(*outer, blocks, columns) if case.columns == 1 else uniform(*outer, columns, blocks).mT
    drawn = torch.randint(max(case.groups, 1), (case.m // DRAWN,), device="cuda", generator=generator)
    ends = DRAWN * torch.bincount(drawn, minlength=max(case.groups, 1)).cumsum(0).int()
    a, b = normal(case.m, case.k), normal(*outer, case.n, case.k).mT
    return _Operands(a, b, uniform(blocks, case.m).t(), scale_b, ends)


def _torch_scaled(case: Case, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> Any:
    rows, blocks = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
    of_b = (scale_b, blocks) if case.columns > 1 else (scale_b.mT, rows)
    return F.scaled_mm(a, b, scale_a, rows, *of_b, output_dtype=torch.bfloat16)


def _error(case: Case, out: torch.Tensor, x: _Operands, summed: int = SCALE_BLOCK) -> tuple[float, float]:
    """|| C - truth || / || truth || of the first rows, of the first group, and its budget: what sums of `summed`
    products lose in the tensor cores, FP32's sums, and one rounding."""
    group, m = first_group(x.ends) if case.groups else (0, case.m)
    m = min(m, 512)
    b, scale_b = (t[group] if case.groups else t for t in (x.b, x.scale_b))
    truth = torch.zeros(m, case.n, dtype=torch.float64, device="cuda")
    magnitude = torch.zeros_like(truth)
    for block, first in enumerate(range(0, case.k, SCALE_BLOCK)):
        part = slice(first, first + SCALE_BLOCK)
        scale = x.scale_a[:m, block, None].double() * scale_b[block].double().repeat_interleave(case.columns)[: case.n]
        wide_a, wide_b = x.a[:m, part].double(), b[part].double()
        truth += scale * (wide_a @ wide_b)
        magnitude += scale * (wide_a.abs() @ wide_b.abs())
    lost = fp8_error_of_sums(summed) + 2.0**-24 * (case.k / SCALE_BLOCK) ** 0.5
    error = (out[:m].double() - truth).norm() / truth.norm()
    return error.item(), (2 * lost * magnitude.norm() / truth.norm()).item() + BF16_ROUNDING


def _candidates(case: Case, sets: list[_Operands]) -> tuple[dict[str, Callable[[int], object]], str]:
    """What is timed, and the name of the reference."""
    if not case.groups:
        one = torch.ones((), device="cuda")

        def ours(i: int) -> torch.Tensor:
            a, b, scale_a, scale_b, _ = sets[i]
            return gemm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)

        return {
            TORCH: lambda i: _torch_scaled(case, *sets[i][:4]),
            OURS: ours,
            ONE_SCALE: lambda i: gemm(sets[i].a, sets[i].b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
            TORCH_ONE_SCALE: lambda i: torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
                sets[i].a, sets[i].b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
        }, TORCH  # fmt: skip
    wide = [(x.a.bfloat16(), x.b.bfloat16()) for x in sets]
    rows = torch.ones(case.m, device="cuda"), torch.ones(case.groups, case.n, device="cuda")
    # Of each group that has rows: these, its scales of them, its own matrix.
    groups = [
        [(x.a[first:end], x.scale_a[first:end].t().contiguous().t(), x.b[g], x.scale_b[g])
         for g, (first, end) in enumerate(pairwise((0, *x.ends.tolist()))) if end > first] for x in sets
    ]  # fmt: skip

    def loop(i: int) -> None:
        for a, scale_a, b, scale_b in groups[i]:
            _torch_scaled(case, a, b, scale_a, scale_b)

    def ours_grouped(i: int) -> torch.Tensor:
        x = sets[i]
        return grouped_matmul(x.a, x.b, x.ends, scale_a=x.scale_a, scale_b=x.scale_b, out_dtype=torch.bfloat16)

    return {
        GROUPED: lambda i: F.grouped_mm(*wide[i], offs=sets[i].ends),
        OURS: ours_grouped,
        OURS_ROW_SCALES: lambda i: grouped_matmul(
            sets[i].a, sets[i].b, sets[i].ends, scale_a=rows[0], scale_b=rows[1], out_dtype=torch.bfloat16),
        ROW_SCALES: lambda i: torch._scaled_grouped_mm(  # pyright: ignore[reportPrivateImportUsage]
            sets[i].a, sets[i].b, *rows, offs=sets[i].ends, out_dtype=torch.bfloat16, use_fast_accum=True),
        LOOP: loop,
    }, GROUPED  # fmt: skip


def measure(case: Case, rounds: int) -> tuple[dict[str, Timing], float, float, str]:
    """Timings by candidate, error, its budget, what ran. Raises LaneloomError for an error beyond its budget."""
    sets = [_operands(case, i) for i in range(count_sets(case.bytes, limit=16))]
    candidates, reference = _candidates(case, sets)
    out = candidates[OURS](0)
    assert isinstance(out, torch.Tensor)
    error, budget = _error(case, out, sets[0])
    if not error <= budget:
        raise LaneloomError(f"{case}: relative error {error:.2e} is over its budget of {budget:.2e}")
    if case.groups:
        bare = sets[0]._replace(scale_a=torch.ones_like(sets[0].scale_a), scale_b=torch.ones_like(sets[0].scale_b))
        of_rows = _error(case, cast(torch.Tensor, candidates[OURS_ROW_SCALES](0)), bare, case.k)
        if not of_rows[0] <= of_rows[1]:
            raise LaneloomError(f"{case}, row scales: relative error {of_rows[0]:.2e} is over {of_rows[1]:.2e}")
    text = "hopper_cluster, groups that have scales of blocks"
    if not case.groups:
        terms = execute.Terms(scale_a=sets[0].scale_a, scale_b=sets[0].scale_b)
        problem = execute.problem_of(sets[0].a, sets[0].b, out, ("fp8", "fp8", "bf16"), terms)
        assert problem is not None
        text = plan(problem, active_gpu()).text

    def refused(name: str, error: Exception) -> None:
        print(f"{case} {name}: {str(error).splitlines()[0][:120]}", flush=True)

    timings = interleave(candidates, len(sets), reference=reference, rounds=rounds, on_failure=refused)
    return timings, error, budget, text


def run(path: Path, rounds: int) -> None:
    """Measure every case and append records to `path`."""
    environment, sources = read_environment(), hash_sources(KERNEL_SOURCES)
    for case in CASES:
        timings, error, budget, text = measure(case, rounds)
        flops = 2 * case.m * case.n * case.k
        reference = GROUPED if case.groups else TORCH
        for name, timing in timings.items():
            ours = name == OURS
            append(path, make_record(
                timing, op=OP, problem=case.problem, candidate=name, method=METHOD_SUSTAINED, reference=reference,
                flops=flops, bytes=case.bytes, environment=environment, kernel_hash=sources if ours else "",
                config={"text": text} if ours else None, error=error if ours else None,
                error_budget=budget if ours else None,
            ))  # fmt: skip
        best = {name: f"{t.median_us:.1f} us x{t.ratio_to_reference:.3f}" for name, t in timings.items()}
        print(case, best, f"error {error:.2e} of {budget:.2e}", text, flush=True)


def _ratio(by_name: dict[str, Record], name: str) -> float | None:
    """Of another's time to ours of the same scales, if it was measured."""
    ours = OURS_ROW_SCALES if name == ROW_SCALES else OURS
    return by_name[name].median_us / by_name[ours].median_us if {name, ours} <= by_name.keys() else None


def render(records: Iterable[Record], *, groups: bool) -> str:
    """Markdown: one row a problem, its newest records, of products or of groups."""
    newest = [x for x in by_candidate(records) if bool(x[OURS].problem["groups"]) == groups]
    others = (GROUPED, LOOP, ROW_SCALES) if groups else (TORCH, TORCH_ONE_SCALE, ONE_SCALE)
    sizes = "groups | M x N x K" if groups else "M x N x K | scales of B"
    columns = [f"x {name}" for name in others]
    if groups:
        columns.insert(-1, "row scales, us")
    lines = [f"| {sizes} | us | TFLOP/s | GB/s | {' | '.join(columns)} | error |", "|" + "---|" * (6 + len(columns))]
    for by_name in newest:
        ours, p = by_name[OURS], by_name[OURS].problem
        size = f"{p['m']} x {p['n']} x {p['k']}"
        words = f"{p['groups']} | {size}" if groups else f"{size} | 128x{p['columns']}"
        cells = ["-" if (x := _ratio(by_name, name)) is None else f"{x:.2f}" for name in others]
        if groups:
            cells.insert(-1, f"{by_name[OURS_ROW_SCALES].median_us:.1f}")
        of_all = f"{ours.median_us:.1f} | {ours.tflops:.0f} | {ours.gbs:.0f} | {' | '.join(cells)} | {ours.error:.1e}"
        lines.append(f"| {words} | {of_all} |")
    means = [
        f"{geometric_mean([r for x in newest if (r := _ratio(x, name)) is not None]):.2f} of {name}" for name in others
    ]
    head = f"{measured_on(newest[-1][OURS], KERNEL_SOURCES)} Geometric means: {', '.join(means)}."
    return "\n".join([head, "", *lines])


def render_page(records: Iterable[Record]) -> str:
    """Both tables."""
    records = list(records)
    return "\n\n".join(render(records, groups=groups) for groups in (False, True))


def main() -> None:
    """Command line."""
    measure_or_fill("Measure products of 8-bit floats with scales of blocks.", 9, run, "blocks", render_page)


if __name__ == "__main__":
    main()

"""Attention on 8-bit floats on one Hopper GPU: `python -m laneloom.bench.attention_float8 --out FILE`.

Beside `flash_attention` of fp8 the same attention of bf16, ours and cuDNN's (torch has none of fp8), in one interleaved
run, on operands that are the same numbers. Every result is checked on one head before it is timed: against FP64, with
twice the error of the softmax's weights rounded to fp8, and one rounding, as its budget. With `--page` it fills a
page's table from the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from ..errors import LaneloomError
from ..ops.attention import execute
from ..ops.attention.api import flash_attention
from ..ops.attention.config import plan
from ..ops.target import active_gpu
from .attention import CUDNN, ROUNDING, Case, attend_by_torch
from .records import Record, append, hash_sources, make_record, read_environment
from .report import OURS, by_candidate, geometric_mean, measure_or_fill, measured_on
from .timing import METHOD_SUSTAINED, Timing, count_sets, interleave

PACKAGE = Path(__file__).parents[1]
#: what the time of attention on 8-bit floats depends on
KERNEL_SOURCES = tuple(
    PACKAGE / name
    for name in (
        "device/attention_hopper.cuh", "device/attention_hopper_forward.cuh", "ops/attention/config_float8.py",
        "ops/attention/hopper.py", "ops/attention/kernels/hopper_forward_float8.cu",
    )
)  # fmt: skip
OP = "attention forward float8"
OURS_BF16 = "laneloom bf16"
PEAK = 256.0  #: what the largest weight of a row is rounded as
#: batch, heads, heads of keys, queries, keys, D, causal
SIZES = (
    (4, 16, 16, 4096, 4096, 128, 0), (4, 16, 16, 4096, 4096, 128, 1), (1, 16, 16, 16384, 16384, 128, 0),
    (1, 16, 16, 16384, 16384, 128, 1), (2, 32, 8, 4096, 4096, 128, 1), (32, 16, 16, 512, 512, 128, 0),
    (4, 32, 32, 4096, 4096, 64, 0), (4, 32, 32, 4096, 4096, 64, 1),
)  # fmt: skip


def _operands(case: Case, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(seed)
    rows, columns = (case.heads, case.queries), (case.kv_heads, case.keys)
    return tuple(
        torch.randn(case.batch, h, n, case.d, device="cuda", generator=generator).to(torch.float8_e4m3fn)
        for h, n in (rows, columns, columns)
    )


def _error(case: Case, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[float, float]:
    """|| O - truth || / || truth || of the first head, and its budget."""
    wide = [x[0, 0].double() for x in (q, k, v)]
    scores = wide[0] @ wide[1].mT * case.d**-0.5
    if case.causal:
        mask = torch.ones(case.queries, case.keys, dtype=torch.bool, device="cuda").tril()
        scores.masked_fill_(~mask, -math.inf)
    weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    total = weights.sum(-1, keepdim=True)
    truth = weights @ wide[2] / total
    rounded = (weights * PEAK).float().to(torch.float8_e4m3fn).double() / PEAK
    size = truth.norm()
    error = ((out[0, 0].double() - truth).norm() / size).item()
    return error, 2 * ((rounded @ wide[2] / total - truth).norm() / size).item() + ROUNDING["bf16"]


def measure(case: Case, rounds: int) -> tuple[dict[str, Timing], float, float, str]:
    """Timings by candidate, error, its budget, what ran. Raises LaneloomError for an error beyond its budget."""
    sets = count_sets(case.bytes(False), limit=16)
    narrow = [_operands(case, i) for i in range(sets)]
    wide = [tuple(x.to(torch.bfloat16) for x in operands) for operands in narrow]
    causal = "top_left" if case.causal else False
    q, k, v = narrow[0]
    error, budget = _error(case, flash_attention(q, k, v, causal=causal), q, k, v)
    if not error <= budget:
        raise LaneloomError(f"{case.text}: relative error {error:.2e} is over its budget of {budget:.2e}")

    def by_us(operands: Any, i: int) -> torch.Tensor:
        return flash_attention(*operands[i], causal=causal)

    candidates: dict[str, Callable[[int], object]] = {
        CUDNN: partial(attend_by_torch, case, SDPBackend.CUDNN_ATTENTION, wide),
        OURS_BF16: partial(by_us, wide),
        OURS: partial(by_us, narrow),
    }
    problem = execute.problem_of(q, k, v, case.dtype, None, execute.band_of(causal, None))
    text = plan(replace(problem, out="bf16"), active_gpu()).text
    return interleave(candidates, sets, reference=CUDNN, rounds=rounds), error, budget, text


def run(path: Path, rounds: int) -> None:
    """Measure every case and append records to `path`."""
    environment, sources = read_environment(), hash_sources(KERNEL_SOURCES)
    for batch, heads, kv_heads, queries, keys, d, causal in SIZES:
        case = Case(batch, heads, kv_heads, queries, keys, d, bool(causal), "fp8")
        timings, error, budget, text = measure(case, rounds)
        for name, timing in timings.items():
            ours = name == OURS
            moved = case.bytes(False) // 2 + case.batch * case.heads * case.queries * case.d  # O has 16 bits
            append(path, make_record(
                timing, op=OP, problem=case.problem, candidate=name, method=METHOD_SUSTAINED, reference=CUDNN,
                flops=case.flops(False), bytes=moved if ours else case.bytes(False), environment=environment,
                kernel_hash=sources if ours else "", config={"text": text} if ours else None,
                error=error if ours else None, error_budget=budget if ours else None,
            ))  # fmt: skip
            rate = case.flops(False) / timing.median_us / 1e6
            words = [f"x{timing.ratio_to_reference:.3f}", *["noisy"] * timing.noisy, *[text] * ours]
            print(f"{case.text} {name}: {timing.median_us:.1f} us, {rate:.0f} TFLOP/s,", *words, flush=True)
        print(f"  error {error:.2e} of {budget:.2e}", flush=True)


def render(records: Iterable[Record]) -> str:
    """Markdown: one row a problem, its newest records."""
    newest = by_candidate(records)
    lines = [
        "| B x H x N x D | causal | us | TFLOP/s | x cuDNN, bf16 | x laneloom, bf16 | error | budget |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for by_name in newest:
        ours, problem = by_name[OURS], by_name[OURS].problem
        heads = f"{problem['heads']}" + (f":{problem['kv_heads']}" if problem["kv_heads"] != problem["heads"] else "")
        lines.append(
            f"| {problem['batch']} x {heads} x {problem['queries']} x {problem['d']} "
            f"| {'yes' if problem['causal'] else 'no'} | {ours.median_us:.1f} | {ours.tflops:.0f} "
            f"| {ours.ratio_to_reference:.2f} | {by_name[OURS_BF16].median_us / ours.median_us:.2f} "
            f"| {ours.error:.1e} | {ours.error_budget:.1e} |"
        )
    ours = [by_name[OURS] for by_name in newest]
    head = (
        f"{measured_on(ours[-1], KERNEL_SOURCES)} "
        f"Geometric means: {geometric_mean([r.ratio_to_reference for r in ours]):.2f} of cuDNN's bf16, "
        f"{geometric_mean([x[OURS_BF16].median_us / x[OURS].median_us for x in newest]):.2f} of ours."
    )
    return "\n".join([head, "", *lines])


def main() -> None:
    """Command line."""
    measure_or_fill("Measure laneloom's attention on 8-bit floats.", 9, run, "float8", render)


if __name__ == "__main__":
    main()

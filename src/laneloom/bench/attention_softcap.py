"""Capped attention on one Hopper GPU: `python -m laneloom.bench.attention_softcap --out FILE`.

Beside `flash_attention(softcap=50)`, forward and backward: what torch has for it, flex_attention compiled with that
score function, and the same attention without a cap. The forward is checked on one head against FP64 before it is
timed, with twice the error of plain operations in bf16, and one rounding, as its budget. With `--page` it fills a
page's table from the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ..errors import LaneloomError
from ..ops.attention import execute
from ..ops.attention.api import flash_attention
from ..ops.attention.config import plan, plan_backward
from ..ops.target import active_gpu
from .attention import KERNEL_SOURCES, ROUNDING, Case
from .records import Record, append, hash_sources, make_record, read_environment
from .report import OURS, by_candidate, geometric_mean, measure_or_fill, measured_on
from .timing import Timing

CAP = 50.0
FLEX, UNCAPPED = "torch flex_attention", "laneloom, no cap"
METHOD = "launches in turns between events, order and inputs rotated, median"
DIRECTIONS = ("forward", "backward")
SETS = 2
#: batch, heads, heads of keys, queries and keys, D, causal
SIZES = (
    (4, 16, 8, 4096, 128, 1), (2, 32, 8, 8192, 128, 1), (4, 16, 8, 4096, 128, 0), (4, 8, 4, 4096, 256, 1),
    (4, 16, 16, 2048, 64, 0), (4, 16, 16, 2048, 64, 1),
)  # fmt: skip

Call = Callable[[int], Any]


def _cap(score: torch.Tensor, *_: Any) -> torch.Tensor:
    return CAP * torch.tanh(score / CAP)


def _mask(case: Case) -> Any:
    """What `flash_attention` takes for `causal`."""
    return "top_left" if case.causal else False


def _error(case: Case, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[float, float]:
    """|| O - truth || / || truth || of the first head, and its budget."""

    def attend(kind: torch.dtype) -> torch.Tensor:
        wide = torch.float64 if kind == torch.float64 else torch.float32
        scores = _cap(q[0, 0].to(wide) @ k[0, 0].to(wide).mT * case.d**-0.5)
        if case.causal:
            scores.masked_fill_(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
        return (scores.softmax(-1).to(kind) @ v[0, 0].to(kind)).double()

    truth = attend(torch.float64)
    error, theirs = (((x - truth).norm() / truth.norm()).item() for x in (out[0, 0].double(), attend(q.dtype)))
    return error, 2 * theirs + ROUNDING["bf16"]


def timed(candidates: dict[str, Call], rounds: int) -> dict[str, Timing]:
    """Each candidate's time, in turns; ratios are to the first."""
    names, samples = list(candidates), {name: [] for name in candidates}
    for call in candidates.values():
        for i in range(SETS):
            call(i)
    for number in range(rounds + 2):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(1_000_000)  # the host is ahead
            start.record()
            for i in range(SETS):
                candidates[name](i)
            end.record()
            end.synchronize()
            if number >= 2:
                samples[name].append(1000 * start.elapsed_time(end) / SETS)
    return {name: Timing.from_samples(us, samples[names[0]]) for name, us in samples.items()}


def _candidates(case: Case, operands: list[Any], slopes: list[torch.Tensor], direction: str) -> dict[str, Call]:
    causal, grouped = _mask(case), case.heads != case.kv_heads
    mask = None
    if case.causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, case.queries, case.keys, device="cuda")
    torch.compiler.reset()  # or the ninth shape would not be compiled
    flex: Any = torch.compile(flex_attention, dynamic=False)
    forwards: dict[str, Call] = {
        FLEX: lambda i: flex(*operands[i], score_mod=_cap, block_mask=mask, enable_gqa=grouped),
        UNCAPPED: lambda i: flash_attention(*operands[i], causal=causal),
        OURS: lambda i: flash_attention(*operands[i], causal=causal, softcap=CAP),
    }
    if direction == "forward":
        return {name: torch.no_grad()(call) for name, call in forwards.items()}
    outs = {name: [call(i) for i in range(SETS)] for name, call in forwards.items()}

    def backward(name: str) -> Call:
        return lambda i: torch.autograd.grad(outs[name][i], operands[i], slopes[i], retain_graph=True)

    return {name: backward(name) for name in forwards}


def run(path: Path, rounds: int) -> None:
    """Measure every case and append records to `path`. Raises LaneloomError for an error beyond its budget."""
    environment, sources, gpu = read_environment(), hash_sources(KERNEL_SOURCES), active_gpu()
    for batch, heads, kv_heads, n, d, causal in SIZES:
        case = Case(batch, heads, kv_heads, n, n, d, bool(causal), "bf16")
        shapes = (heads, n, d), (kv_heads, n, d), (kv_heads, n, d)
        operands = [
            tuple(torch.randn(batch, *shape, device="cuda").bfloat16().requires_grad_() for shape in shapes)
            for _ in range(SETS)
        ]
        slopes = [torch.randn_like(q) for q, _, _ in operands]
        q, k, v = operands[0]
        mask = _mask(case)
        with torch.no_grad():
            out = flash_attention(q, k, v, causal=mask, softcap=CAP)
            error, budget = _error(case, out, q, k, v)
        if not error <= budget:
            raise LaneloomError(f"{case.text}: relative error {error:.2e} is over its budget of {budget:.2e}")
        problem = execute.problem_of(q, k, v, "bf16", None, execute.band_of(mask, None), None, CAP)
        texts = {"forward": plan(problem, gpu).text, "backward": plan_backward(problem, gpu)[0].text}
        for direction in DIRECTIONS:
            backward = direction == "backward"
            for name, timing in timed(_candidates(case, operands, slopes, direction), rounds).items():
                ours = name == OURS
                append(path, make_record(
                    timing, op="attention softcap", problem={**case.problem, "direction": direction}, candidate=name,
                    method=METHOD, reference=FLEX, flops=case.flops(backward), bytes=case.bytes(backward),
                    environment=environment, kernel_hash="" if name == FLEX else sources,
                    config={"text": texts[direction]} if ours else None, error=error if ours and not backward else None,
                    error_budget=budget if ours and not backward else None,
                ))  # fmt: skip
                rate = case.flops(backward) / timing.median_us / 1e6
                print(f"{case.text} {direction} {name}: {timing.median_us:.1f} us, {rate:.0f} TFLOP/s, "
                      f"x{timing.ratio_to_reference:.3f}", flush=True)  # fmt: skip


def render(records: Iterable[Record]) -> str:
    """Markdown: one row a problem and direction, its newest records."""
    newest = by_candidate(records)
    lines = [
        "| B x H x N x D | direction | us | TFLOP/s | x flex_attention | x laneloom without a cap |",
        "|---|---|---|---|---|---|",
    ]
    for by_name in newest:
        ours, problem = by_name[OURS], dict(by_name[OURS].problem)
        direction = problem.pop("direction")
        what = Case(**problem).text.removesuffix(f" {problem['dtype']}")
        lines.append(
            f"| {what} | {direction} | {ours.median_us:.1f} | {ours.tflops:.0f} | {ours.ratio_to_reference:.2f} "
            f"| {by_name[UNCAPPED].median_us / ours.median_us:.2f} |"
        )
    ours = [by_name[OURS] for by_name in newest]
    means = ", ".join(
        f"{direction} {geometric_mean([r.ratio_to_reference for r in ours if r.problem['direction'] == direction]):.2f}"
        for direction in DIRECTIONS
    )
    head = f"{measured_on(ours[-1], KERNEL_SOURCES)} Geometric means of flex_attention: {means}."
    return "\n".join([head, "", *lines])


def main() -> None:
    """Command line."""
    measure_or_fill("Measure laneloom's attention with capped scores.", 11, run, "softcap", render)


if __name__ == "__main__":
    main()

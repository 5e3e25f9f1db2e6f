"""Benchmark of `laneloom.transpose` against a copy of the same bytes and torch's own, in one run.

`python -m laneloom.bench.transpose [--out results/h200/transpose.jsonl]` checks every bit of every case, then times it;
`--search` times other tiles as well; `--table FILE` prints records as a Markdown table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from ..errors import LaneloomError
from ..ops.target import active_gpu
from ..ops.transpose import execute
from ..ops.transpose.config import TilesConfig, TransposeConfig, plan
from ..ops.transpose.problem import TransposeProblem
from .records import Environment, Record, append, hash_sources, load, make_record, read_environment
from .report import by_candidate
from .timing import METHOD_SUSTAINED, count_sets, interleave

PACKAGE = Path(__file__).parents[1]
#: what a transpose's time depends on
KERNEL_SOURCES = tuple(PACKAGE / "ops/transpose" / name for name in ("kernels/tiles.py", "layouts.py", "config.py"))
_L2_TIMES = 4.0  #: the input and output sets together, in sizes of the L2
_COPY_WORDS = 2048  #: of 8 bytes
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Case:
    """Dense matrices [batch, rows, columns], elements of `size` bytes."""

    batch: int
    rows: int
    columns: int
    size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.batch, self.rows, self.columns


CASES = (
    Case(1, 8192, 8192, 2), Case(1, 16384, 16384, 1), Case(1, 8192, 8192, 4), Case(1, 8192, 4096, 8),
    Case(1, 4096, 4096, 2), Case(1, 65536, 1024, 2), Case(1, 1024, 65536, 2), Case(128, 4096, 128, 2),
    Case(64, 1024, 1024, 2), Case(262144, 16, 16, 2), Case(1, 8191, 8193, 2), Case(1, 8191, 8193, 4),
    Case(4096, 197, 64, 2), Case(1, 16777216, 3, 4),
    Case(1, 256, 256, 4), Case(1, 1024, 1024, 2), Case(1, 1000, 1000, 1), Case(64, 64, 64, 1), Case(200, 8, 28, 1),
    Case(16, 144, 394, 8),
)  # fmt: skip


@triton.jit
def _copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)


def _copy(x: torch.Tensor, out: torch.Tensor) -> None:
    """Copy all whole 8-byte words."""
    words = x.numel() * x.element_size() // 8
    kernel: Any = _copy_kernel
    first, second = (t.view(-1).view(torch.uint8)[: 8 * words].view(torch.int64) for t in (x, out))
    grid = (triton.cdiv(words, _COPY_WORDS),)
    kernel[grid](first, second, words, BLOCK=_COPY_WORDS, num_warps=8, enable_fp_fusion=True)


def _tiles(problem: TransposeProblem) -> Iterator[TransposeConfig]:
    """Tiles around the planned one."""
    size = problem.element_bytes
    for row_bytes in (64, 128, 256):
        for column_bytes in (64, 128, 256):
            for num_warps in (4, 8):
                config = TilesConfig(
                    block_r=column_bytes // size, block_c=row_bytes // size, num_warps=num_warps)
                held = config.block_r * config.block_c * size // (32 * num_warps)
                if 32 <= held <= 128:
                    yield config


def compare(
    case: Case,
    *,
    search: bool = False,
    rounds: int = 15,
    environment: Environment | None = None,
    report: Callable[[str], None] = print,
) -> Iterator[Record]:
    """Records of a copy, torch and laneloom, each compared bit by bit before it is timed.

    Raises LaneloomError where laneloom's planned transpose is wrong: a wrong kernel is not timed.
    """
    gpu = active_gpu()
    problem = TransposeProblem.contiguous(case.rows, case.columns, element_bytes=case.size, batch=case.batch)
    n_sets = count_sets(problem.bytes, factor=_L2_TIMES)
    xs = [torch.randint(-128, 127, (*case.shape, case.size), dtype=torch.int8, device="cuda") for _ in range(n_sets)]
    xs = [x.view(_BITS[case.size]).squeeze(-1) for x in xs]
    outs = [torch.empty(x.mT.shape, dtype=x.dtype, device="cuda") for x in xs]
    configs: dict[str, TransposeConfig] = {"laneloom": plan(problem, gpu)}
    if search:
        configs |= {c.text: c for c in _tiles(problem) if c.why_invalid(problem, gpu) is None}

    def run(config: TransposeConfig) -> Callable[[int], None]:
        return lambda i: execute.transpose_into(xs[i], outs[i], gpu, config)

    launches: dict[str, Callable[[int], Any]] = {
        "copy": lambda i: _copy(xs[i], outs[i]),
        "torch": lambda i: outs[i].copy_(xs[i].mT),
    }
    for name, config in configs.items():
        outs[0].fill_(77)
        run(config)(0)
        if not torch.equal(outs[0], xs[0].mT):
            if name == "laneloom":
                raise LaneloomError(f"{problem.key}: {config.text} is wrong")
            report(f"{problem.key}: {name} is wrong and not timed")
            continue
        launches[name] = run(config)
    timings = interleave(launches, n_sets, reference="copy", rounds=rounds)
    for name, timing in timings.items():
        config = configs.get(name)
        yield make_record(
            timing,
            op="transpose",
            problem={"batch": case.batch, "rows": case.rows, "columns": case.columns, "element_bytes": case.size},
            candidate=name,
            config={"text": config.text} if config else None,
            method=METHOD_SUSTAINED,
            reference="copy",
            flops=0,
            bytes=problem.bytes,
            kernel_hash=hash_sources(KERNEL_SOURCES) if name == "laneloom" else "",
            environment=environment or read_environment(),
            error=0.0 if config else None,
            error_budget=0.0 if config else None,
        )


def table(records: Iterable[Record]) -> str:
    """The records as a Markdown table, one row per case; of repeated measurements the last counts."""
    lines = [
        "| matrices | element | time, us | GB/s | of copy | of torch's time | tile |",
        "|---|---|---|---|---|---|---|",
    ]
    for by_name in by_candidate(records):
        ours, torchs = by_name["laneloom"], by_name["torch"]
        p = ours.problem
        sizes = f"{p['rows']} x {p['columns']}" + (f", {p['batch']} of them" if p["batch"] > 1 else "")
        tile = dict(word.split("=") for word in (ours.config or {})["text"].partition(":")[2].split(","))
        lines.append(
            f"| {sizes} | {p['element_bytes']} B | {ours.median_us:.1f} | {ours.gbs:.0f} | "
            f"{ours.ratio_to_reference:.3f} | {ours.median_us / torchs.median_us:.2f} | "
            f"{tile['block_b']} x {tile['block_r']} x {tile['block_c']}, {tile['num_warps']} warps |"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure laneloom.transpose against a copy and torch.")
    parser.add_argument("--table", type=Path, help="print the records of this file as a table and stop")
    parser.add_argument("--out", type=Path, help="append records to this file")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--search", action="store_true", help="time other tiles as well")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(load(arguments.table)))
        return
    environment = read_environment()
    for case in CASES:
        for record in compare(case, search=arguments.search, rounds=arguments.rounds, environment=environment):
            if arguments.out and record.candidate in ("copy", "torch", "laneloom"):
                append(arguments.out, record)
            print(
                f"{case.shape} {case.size} B {record.candidate:60s} {record.median_us:9.1f} us {record.gbs:6.0f} GB/s "
                f"{record.ratio_to_reference:.3f} of copy" + (" noisy" if record.noisy else ""),
                flush=True,
            )
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

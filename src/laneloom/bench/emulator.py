"""How fast the emulator is, on this machine's processor: `python -m laneloom.bench.emulator [--out FILE]`.

Each case runs in the emulator in fast and in strict mode, in turn. The clock runs from the call to its return, without
compilation. A record holds the median of wall time; processor time of the whole process stands in its config, since
that changes less when somebody else uses the machine. The rates are those of the emulator, not of a GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ..codegen.versions import triton_version
from ..emulator.driver import ArrayArgument, emulated
from ..ops.matmul.api import matmul
from .records import Environment, Record, append, hash_sources, load, make_record, read_commit
from .report import fill_page
from .timing import Timing

EMULATOR_SOURCES = tuple(sorted((Path(__file__).parents[1] / "emulator").glob("*.py")))
METHOD = "emulator: wall clock of one call, compiled before, fast and strict mode in turn, median over rounds"


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + offs, mask=offs < columns, other=-float("inf"))  # [BLOCK]
    weight = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + offs, weight / tl.sum(weight, axis=0), mask=offs < columns)


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, length, scale, HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    head = tl.program_id(1).to(tl.int64) * length * HEAD
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD)
    q = tl.load(q_ptr + head + offs_m[:, None] * HEAD + offs_d[None, :])  # [BLOCK_M, HEAD]
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD], tl.float32)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + head + offs_n[None, :] * HEAD + offs_d[:, None])  # [HEAD, BLOCK_N]
        s = tl.dot(q, k) * scale  # [BLOCK_M, BLOCK_N]
        higher = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp(s - higher[:, None])
        shrink = tl.exp(top - higher)
        v = tl.load(v_ptr + head + offs_n[:, None] * HEAD + offs_d[None, :])  # [BLOCK_N, HEAD]
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        top = higher
    out = acc / total[:, None]
    tl.store(out_ptr + head + offs_m[:, None] * HEAD + offs_d[None, :], out.to(out_ptr.dtype.element_ty))


@dataclass(frozen=True)
class Case:
    """One kernel and its sizes; `prepare` gives the call and how to judge what it left."""

    name: str
    gpu: str
    flops: int
    prepare: Callable[[], tuple[Callable[[], None], Callable[[], float]]]
    most_s: float  #: what fast mode may take on two cores


def _matmul(n: int) -> tuple[Callable[[], None], Callable[[], float]]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n, n), np.float32).astype(np.float16)
    out = np.full((n, n), np.nan, np.float16)
    return lambda: matmul(a, b, out=out), lambda: _error(out, a.astype(np.float64) @ b.astype(np.float64))


def _softmax(n: int) -> tuple[Callable[[], None], Callable[[], float]]:
    x = np.random.default_rng(0).standard_normal((n, n), np.float32)
    out = np.full_like(x, np.nan)
    arguments = ArrayArgument(x), ArrayArgument(out)

    run_softmax: Any = softmax_kernel[(n,)]

    def expected() -> np.ndarray:
        weight = np.exp(x.astype(np.float64))
        return weight / weight.sum(axis=1, keepdims=True)

    return (
        lambda: run_softmax(*arguments, n, BLOCK=n, num_warps=8, enable_fp_fusion=True),
        lambda: _error(out, expected()),
    )


def _attention(heads: int, length: int, head: int) -> tuple[Callable[[], None], Callable[[], float]]:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, heads, length, head), np.float32).astype(np.float16)
    out = np.full_like(q, np.nan)
    arguments = [ArrayArgument(x) for x in (q, k, v, out)]
    scale = head**-0.5
    run_attention: Any = attention_kernel[length // 64, heads]

    def call() -> None:
        run_attention(
            *arguments, length, scale, HEAD=head, BLOCK_M=64, BLOCK_N=32, num_warps=4, enable_fp_fusion=True
        )

    def error() -> float:
        wide = [x.astype(np.float64) for x in (q, k, v)]
        weight = np.exp(wide[0] @ wide[1].swapaxes(1, 2) * scale)
        return _error(out, weight @ wide[2] / weight.sum(axis=2, keepdims=True))

    return call, error


def _error(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest error over the largest value."""
    return float(np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max())


CASES = (
    Case("matmul 512^3 fp16", "gfx1151", 2 * 512**3, lambda: _matmul(512), 0.2),
    Case("matmul 512^3 fp16", "gfx1201", 2 * 512**3, lambda: _matmul(512), 0.2),
    Case("matmul 1024^3 fp16", "gfx1151", 2 * 1024**3, lambda: _matmul(1024), 1.5),
    Case("matmul 1024^3 fp16", "gfx1201", 2 * 1024**3, lambda: _matmul(1024), 1.5),
    Case("softmax 4096 x 4096 fp32", "gfx1151", 5 * 4096**2, lambda: _softmax(4096), 2.0),
    Case("attention forward 1 x 4 x 1024 x 64 fp16", "gfx1151", 4 * 4 * 1024**2 * 64,
         lambda: _attention(4, 1024, 64), 5.0),
)  # fmt: skip
LARGEST_ERROR = 2e-3  #: of fp16 results, over the largest value: a wrong kernel is far off


def measure(case: Case, environment: Environment, rounds: int) -> list[Record]:
    """Two records, fast and strict mode. Raises RuntimeError where the result is wrong."""
    call, error = case.prepare()
    wall: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    instructions: dict[bool, int] = {}
    for turn in range(rounds + 1):
        for strict in (False, True):
            with emulated(case.gpu, strict=strict) as emulation:
                began_wall, began_cpu = time.perf_counter(), time.process_time()
                call()
                took = time.perf_counter() - began_wall, time.process_time() - began_cpu
            instructions[strict] = emulation.instructions
            if turn:  # the first one compiles
                wall[strict].append(took[0])
                cpu[strict].append(took[1])
    if not error() < LARGEST_ERROR:
        raise RuntimeError(f"{case.name} on {case.gpu} is wrong by {error():.3g}: its time says nothing")
    records = []
    for strict in (False, True):
        timing = Timing.from_samples([1e6 * s for s in wall[strict]], [1e6 * s for s in wall[False]])
        records.append(make_record(
            timing, op="emulator", problem={"case": case.name, "gpu": case.gpu, "strict": strict},
            candidate="laneloom", reference="fast mode", method=METHOD, flops=case.flops, bytes=0,
            config={"cpu_s": round(statistics.median(cpu[strict]), 4), "instructions": instructions[strict],
                    "most_s": case.most_s * (5 if strict else 1), "rounds": rounds},
            kernel_hash=hash_sources(EMULATOR_SOURCES), environment=environment, error=error(),
            error_budget=LARGEST_ERROR,
        ))  # fmt: skip
    return records


def read_processor() -> Environment:
    """The processor in the GPU's place, Python and NumPy in the driver's."""
    commit, dirty = read_commit()
    return Environment(
        gpu=f"{_processor_name()}, {len(os.sched_getaffinity(0))} cores",
        driver=f"Python {platform.python_version()}, NumPy {np.__version__}",
        torch=importlib.metadata.version("torch"),
        triton=triton_version(),
        commit=commit,
        dirty=dirty,
    )


def _processor_name() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def render_table(records: Iterable[Record]) -> str:
    """Markdown: one row a case, from the newest records of each."""
    newest: dict[tuple[str, str], dict[bool, Record]] = {}
    for record in records:
        problem = record.problem
        newest.setdefault((problem["case"], problem["gpu"]), {})[problem["strict"]] = record
    lines = [
        "| kernel | GPU | wave-instructions | fast | strict | strict / fast (processor time) |",
        "|---|---|---|---|---|---|",
    ]
    for (case, gpu), pair in newest.items():
        fast, strict = pair[False], pair[True]
        facts = fast.config or {}
        ratio = (strict.config or {})["cpu_s"] / facts["cpu_s"]
        lines.append(
            f"| {case} | {gpu} | {facts['instructions']:,} | {fast.median_us / 1e6:.2f} s "
            f"| {strict.median_us / 1e6:.2f} s | {ratio:.1f} |"
        )
    last = next(reversed(newest.values()))[False]
    where = last.environment
    day = last.time.partition("T")[0]
    lines += ["", f"{where.gpu}; {where.driver}, Triton {where.triton}; {day}, commit {where.commit}."]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m laneloom.bench.emulator", description=__doc__)
    parser.add_argument("--out", type=Path, help="append records here, such as results/cpu/emulator.jsonl")
    parser.add_argument("--page", type=Path, help="write the table of --out's records into this page's Speed section")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--no-run", action="store_true", help="make the table of the records that are there")
    chosen = parser.parse_args()
    records = [] if chosen.out is None else load(chosen.out)
    if not chosen.no_run:
        environment = read_processor()
        for case in CASES:
            if chosen.only in case.name:
                for record in measure(case, environment, chosen.rounds):
                    records.append(record)
                    if chosen.out is not None:
                        append(chosen.out, record)
                    mode = "strict" if record.problem["strict"] else "fast"
                    print(f"{case.name}, {case.gpu}, {mode}: {record.median_us / 1e6:.3f} s", flush=True)
    table = render_table(records)
    print(table)
    if chosen.page is not None:
        fill_page(chosen.page, {"speed": table})


if __name__ == "__main__":
    main()

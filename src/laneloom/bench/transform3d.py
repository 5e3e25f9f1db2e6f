"""Benchmark of the transform: laneloom against a copy of the same bytes, three torch products and cuBLASDx, in one run.

`python -m laneloom.bench.transform3d [--out results/h200/transform3d.jsonl]` checks, then times, every case of
suites/transform3d.json on the GPU that is there, and appends records; `--dtypes fp32,complex64` some of them. `--page
docs/transform3d.md` writes the records of results/h200 and h100 into that page's tables and the README's, and the
ladder's picture beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from ..errors import UnsupportedError
from ..ops.target import active_gpu
from ..ops.transform3d import MatmulsConfig, Transform3dConfig, Transform3dProblem, execute, plan, reference
from ..ops.transform3d.config_levels import CublasdxConfig
from ..ops.transform3d.hopper import TEXTS
from .records import Environment, Record, append, hash_sources, load, make_record, read_environment
from .report import fill_page
from .suites import load_suite
from .timing import METHOD_SUSTAINED, count_sets, interleave

ERROR_BUDGET = 4.0  #: times the bound on the rounding of an FP64 reference
_CHECKED = 64  #: tensors that are compared with the CPU, from either end of the batch
_L2_TIMES = 4.0  #: the input and output sets together, in sizes of the L2
_COPY_BLOCK = 2048
_SMALL_BATCH = 2048  #: tensors
_FOLDER = Path(str(resources.files("laneloom.ops.transform3d")))
#: schedule -> what its machine code is made from
SOURCES = {
    name: [*(_FOLDER / "kernels" / text for text in texts), _FOLDER / "hopper.py"] for name, texts in TEXTS.items()
}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "complex128": torch.complex128, "complex64": torch.complex64}


@triton.jit
def _copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)


def copy_tensors(x: torch.Tensor, out: torch.Tensor) -> None:
    """Launch a copy of the bytes of x, a multiple of eight."""
    source, target = (t.view(-1).view(torch.float64) for t in (x, out))
    n = source.numel()
    kernel: Any = _copy_kernel
    kernel[(triton.cdiv(n, _COPY_BLOCK),)](source, target, n, BLOCK=_COPY_BLOCK, num_warps=8, enable_fp_fusion=True)


def share_of_budget(x: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, dtype: str) -> float:
    """The worst error among the first and the last tensors, in bounds of the reference's own rounding."""
    ends = torch.cat((x[:_CHECKED], x[-_CHECKED:])).cpu().numpy()
    got = torch.cat((out[:_CHECKED], out[-_CHECKED:])).cpu().numpy()
    if bool(out.isnan().any()):
        return float("inf")
    return reference.worst_share(got, ends, matrix.cpu().numpy(), dtype=dtype)


def _configs(problem: Transform3dProblem) -> dict[str, Transform3dConfig]:
    """Whom to compare; "laneloom" is what `plan` chooses. cuBLASDx with several CTA sizes, since it depends on them."""
    gpu = active_gpu()
    configs: dict[str, Transform3dConfig] = {"laneloom": plan(problem, gpu), "three torch matmuls": MatmulsConfig()}
    for threads in (64, 128, 256):
        config = CublasdxConfig(threads=threads)
        if config.why_invalid(problem, gpu) is None:
            configs[f"cuBLASDx, {threads} threads"] = config
    return configs


def compare(
    k: int,
    count: int,
    dtype: str = "fp64",
    *,
    rounds: int = 15,
    environment: Environment | None = None,
    report: Callable[[str], None] = print,
) -> Iterator[Record]:
    """Records of every candidate that runs, each checked before it is timed. `report` gets what was left out."""
    gpu = active_gpu()
    problem = Transform3dProblem(k, count, dtype)
    environment = environment or read_environment()
    n_sets = count_sets(problem.bytes, factor=_L2_TIMES)
    shape = (count, k, k, k)
    xs = [torch.randn(shape, dtype=DTYPES[dtype], device="cuda") for _ in range(n_sets)]
    outs = [torch.empty_like(x) for x in xs]
    matrix = torch.randn((k, k), dtype=xs[0].real.dtype, device="cuda")

    def run(config: Transform3dConfig, i: int) -> None:
        execute.transform_into(xs[i], matrix, outs[i], dtype, gpu, transpose=False, accumulate=False, config=config)

    launches: dict[str, Callable[[int], Any]] = {"copy": lambda i: copy_tensors(xs[i], outs[i])}
    errors: dict[str, float] = {}
    configs = _configs(problem)
    for name, config in configs.items():
        outs[0].fill_(float("nan"))
        try:
            run(config, 0)
        except UnsupportedError as refusal:
            report(f"K={k}: without {name}: {refusal}")
            continue
        errors[name] = share_of_budget(xs[0], matrix, outs[0], dtype)
        if not errors[name] <= ERROR_BUDGET:
            report(f"K={k}: {name} is wrong, {errors[name]:.1f} bounds off, and not timed")
            continue
        launches[name] = partial(run, config)
    timings = interleave(launches, n_sets, reference="copy", rounds=rounds)
    for name, timing in timings.items():
        config = configs.get(name)
        schedule = config.schedule if name == "laneloom" and config is not None else ""
        yield make_record(
            timing,
            op="transform3d",
            problem={"k": k, "count": count, "dtype": dtype},
            candidate=name,
            config=asdict(config) if config else None,
            method=METHOD_SUSTAINED,
            reference="copy",
            flops=problem.flops if config else 0,
            bytes=problem.bytes,
            kernel_hash=hash_sources(SOURCES[schedule]) if schedule in SOURCES else "",
            environment=environment,
            error=errors.get(name),
            error_budget=ERROR_BUDGET if name in errors else None,
        )


def table(records: Iterable[Record], dtype: str = "fp64") -> str:
    """The records of a dtype as a Markdown table, one row per case; of repeated measurements the last counts."""
    latest: dict[tuple[int, int], dict[str, Record]] = {}
    for record in records:
        if record.problem["dtype"] != dtype:
            continue
        latest.setdefault((record.problem["k"], record.problem["count"]), {})[record.candidate] = record
    lines = [
        "| K | tensors | time, us | GB/s | TFLOP/s | x of copy | x of three torch products | x of cuBLASDx | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (k, count), by_name in sorted(latest.items(), key=lambda case: (case[0][1] != _SMALL_BATCH, case[0])):
        ours = by_name["laneloom"]
        dx = [r.median_us for name, r in by_name.items() if name.startswith("cuBLASDx")]
        lines.append(
            f"| {k} | {count} | {ours.median_us:.1f} | {ours.gbs:.0f} | {ours.tflops:.1f} | "
            f"{ours.ratio_to_reference:.3f} | {by_name['three torch matmuls'].median_us / ours.median_us:.1f} | "
            f"{f'{min(dx) / ours.median_us:.2f}' if dx else ''} | {ours.error:.3f} |"
        )
    return "\n".join(lines)


def page_tables(records: Path, ladder_records: Path, other_records: Path) -> dict[str, str]:
    """The tables of docs/transform3d.md by name: one per dtype of either GPU's records, and levels x K."""
    from .transform3d_rungs import from_records, markdown

    every, others = load(records), load(other_records)
    tables = {dtype: table(every, dtype) for dtype in ("fp64", "complex128", "fp32", "complex64")}
    tables |= {f"other {dtype}": table(others, dtype) for dtype in ("fp64", "fp32", "complex64")}
    return tables | {"ladder": markdown(from_records(load(ladder_records), "recorded"))}


def summary(records: Iterable[Record]) -> str:
    """The README's table: FP64, the largest batch of each K."""
    by_order: dict[int, dict[str, Record]] = {}
    for record in records:
        k, count = record.problem["k"], record.problem["count"]
        known = by_order.setdefault(k, {})
        if record.problem["dtype"] == "fp64" and count >= max((r.problem["count"] for r in known.values()), default=0):
            by_order[k] = {n: r for n, r in known.items() if r.problem["count"] == count} | {record.candidate: record}
    lines = [
        "| K | tensors | TFLOP/s | x of copy | x of three torch products | x of cuBLASDx |",
        "|---|---|---|---|---|---|",
    ]
    for k, by_name in sorted(by_order.items()):
        ours, torch_us = by_name["laneloom"], by_name["three torch matmuls"].median_us
        dx = [record.median_us for name, record in by_name.items() if name.startswith("cuBLASDx")]
        if ours.problem["count"] > _SMALL_BATCH:
            lines.append(
                f"| {k} | {ours.problem['count']} | {ours.tflops:.1f} | {ours.ratio_to_reference:.2f} | "
                f"{torch_us / ours.median_us:.1f} | {f'{min(dx) / ours.median_us:.2f}' if dx else ''} |"
            )
    return "\n".join(lines)


def suite_cases() -> list[tuple[int, int, str]]:
    """K, number of tensors and dtype of every case of suites/transform3d.json."""
    return [(k, count, dtype) for dtype, cases in load_suite("transform3d").items() for k, count in cases]


def _write_page(page: Path) -> None:
    from .transform3d_rungs import RECORDS, from_records, plot_rungs

    folder = page.resolve().parents[1]
    fill_page(folder / "README.md", {"transform3d": summary(load(folder / RECORDS.with_name("transform3d.jsonl")))})
    records, other = (folder / "results" / gpu / "transform3d.jsonl" for gpu in ("h200", "h100"))
    fill_page(page, page_tables(records, folder / RECORDS, other))
    plot_rungs(from_records(load(folder / RECORDS), "recorded"), page.with_name("transform3d-ladder.svg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="fill this page's tables and draw its picture, and stop")
    parser.add_argument("--out", type=Path, help="append records to this file")
    parser.add_argument("--dtypes", default=",".join(load_suite("transform3d")), help="of those, comma-separated")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if arguments.page:
        _write_page(arguments.page)
        return
    environment = read_environment()
    for k, count, dtype in suite_cases():
        if dtype not in arguments.dtypes.split(","):
            continue
        for record in compare(k, count, dtype, rounds=arguments.rounds, environment=environment):
            if arguments.out:
                append(arguments.out, record)
            print(
                f"K={k:2d} N={count:6d} {record.problem['dtype']:10s} {record.candidate:22s} "
                f"{record.median_us:9.1f} us {record.gbs:6.0f} GB/s {record.tflops:5.1f} TFLOP/s "
                f"{record.ratio_to_reference:.3f} of copy" + (" noisy" if record.noisy else ""),
                flush=True,
            )
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""Measure `laneloom.matmul` on the gemm suite against what torch gives; `python -m laneloom.bench.matmul --help`.

Every product is checked against FP64 before it is timed. The output buffers are poisoned, and the candidates are what a
user would call: laneloom.matmul with out=, torch.matmul, torch._scaled_mm (fast accumulation), torch._int_mm.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import LaneloomError
from ..ops.matmul import config as matmul_config
from ..ops.matmul.api import matmul
from ..ops.matmul.problem import MatmulProblem
from ..ops.target import active_gpu
from .records import Environment, append, hash_sources, make_record, read_environment
from .suites import load_suite
from .timing import METHOD_SINGLE, METHOD_SUSTAINED, Timing, count_sets, interleave, single_launch

PACKAGE = Path(__file__).parents[1]
#: what a Hopper product's time depends on
KERNEL_SOURCES = tuple(
    PACKAGE / name
    for name in (
        "device/hopper.py", "device/repack.py", "device/split_k.py", "ops/matmul/kernels/hopper.py",
        "ops/matmul/kernels/hopper_plain.py", "ops/matmul/kernels/hopper_skinny.py", "ops/matmul/plan_hopper.py",
    )
)  # fmt: skip
DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn, "int8": torch.int8,
    "int32": torch.int32,
}  # fmt: skip
OUTPUTS = {"fp8": "bf16", "int8": "int32"}  #: where C's dtype is not A's
EIGHT_BIT_SIZES = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 4096))


@dataclass(frozen=True)
class Case:
    """One product: its place in the suite, and the problem."""

    group: str
    layout: str
    dtype: str
    problem: MatmulProblem


def iterate_cases(dtypes: list[str], layouts: list[str]) -> Iterator[Case]:
    """The suite in 16-bit types and layouts, and some squares in 8-bit types, for which wgmma wants "nt"."""
    for dtype in dtypes:
        groups = load_suite("gemm") if dtype in ("bf16", "fp16") else {"eight_bit": list(EIGHT_BIT_SIZES)}
        for group, sizes in groups.items():
            for m, n, k in sizes:
                for layout in layouts if dtype in ("bf16", "fp16") else ["nt"]:
                    problem = MatmulProblem.contiguous(
                        m, n, k, dtype=dtype, dtype_out=OUTPUTS.get(dtype, dtype), layout=layout)
                    yield Case(group, layout, dtype, problem)


def _operand(rows: int, columns: int, letter: str, dtype: str, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (rows, columns) if letter == "n" else (columns, rows)
    if dtype == "int8":
        x = torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda", generator=generator)
    else:
        wide = torch.float32 if dtype == "fp8" else DTYPES[dtype]
        x = torch.randn(shape, dtype=wide, device="cuda", generator=generator).to(DTYPES[dtype])
    return x if letter == "n" else x.mT


def _torch_call(dtype: str) -> tuple[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]]:
    """What a user would call instead, and its name."""
    if dtype == "fp8":
        one = torch.ones((), device="cuda")
        return "torch._scaled_mm", lambda a, b, out: torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            a, b, one, one, out_dtype=out.dtype, use_fast_accum=True, out=out)
    if dtype == "int8":
        product = torch._int_mm  # pyright: ignore[reportPrivateImportUsage]
        return "torch._int_mm", lambda a, b, out: product(a, b, out=out)
    return "torch.matmul", lambda a, b, out: torch.matmul(a, b, out=out)


def _relative_error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """|| out - truth || / || truth ||, infinite where an element is NaN."""
    error = ((out.double() - truth).norm() / truth.norm().clamp_min(1e-300)).item()
    return error if error == error else float("inf")


def measure(case: Case, *, rounds: int, single: bool) -> tuple[dict[str, dict[str, Timing]], float, float]:
    """Timings by method and candidate, laneloom's error and its budget.

    Raises LaneloomError when the product is wrong: a wrong kernel is not timed.
    """
    problem, dtype = case.problem, case.dtype
    sets = count_sets(problem.bytes)
    operands = [
        (_operand(problem.m, problem.k, case.layout[0], dtype, 2 * i),
         _operand(problem.k, problem.n, case.layout[1], dtype, 2 * i + 1))
        for i in range(sets)
    ]  # fmt: skip
    out_type = DTYPES[problem.dtype_out]
    outs = [torch.empty((problem.m, problem.n), dtype=out_type, device="cuda") for _ in range(sets)]
    name, call = _torch_call(dtype)
    out_dtype = out_type if out_type != DTYPES[dtype] else None
    candidates: dict[str, Callable[[int], object]] = {
        name: lambda i: call(*operands[i], outs[i]),
        "laneloom": lambda i: matmul(*operands[i], out=outs[i], out_dtype=out_dtype),
    }
    a, b = operands[0]
    truth = a.double() @ b.double()
    candidates[name](0)
    theirs = _relative_error(outs[0], truth)
    outs[0].fill_(-77 if dtype == "int8" else float("nan"))
    candidates["laneloom"](0)
    error = _relative_error(outs[0], truth)
    rounding = {"bf16": 2.0**-8, "fp16": 2.0**-11}.get(problem.dtype_out, 0.0)
    budget = 2 * theirs + rounding
    if not error <= budget:
        raise LaneloomError(f"{problem.key}: relative error {error:.2e} is over its budget of {budget:.2e}")
    del truth
    timings = {METHOD_SUSTAINED: interleave(candidates, sets, reference=name, rounds=rounds)}
    if single:
        timings[METHOD_SINGLE] = single_launch(candidates, sets, reference=name, rounds=rounds)
    return timings, error, budget


def run(path: Path, dtypes: list[str], layouts: list[str], *, rounds: int, single: bool) -> None:
    """Measure every case and append its records to `path`, one for laneloom and one for torch, by each method."""
    environment: Environment = read_environment()
    sources = hash_sources(KERNEL_SOURCES)
    gpu = active_gpu()
    for case in iterate_cases(dtypes, layouts):
        problem = case.problem
        timings, error, budget = measure(case, rounds=rounds, single=single)
        reference = _torch_call(case.dtype)[0]
        config = matmul_config.plan(problem, gpu).text
        for method, by_name in timings.items():
            for name, timing in by_name.items():
                ours = name == "laneloom"
                append(path, make_record(
                    timing, op="matmul", candidate=name, method=method, reference=reference, flops=problem.flops,
                    bytes=problem.bytes, environment=environment, kernel_hash=sources if ours else "",
                    config={"text": config} if ours else None, error=error if ours else None,
                    error_budget=budget if ours else None,
                    problem={"m": problem.m, "n": problem.n, "k": problem.k, "layout": case.layout,
                             "dtype": case.dtype, "dtype_out": problem.dtype_out, "group": case.group},
                ))  # fmt: skip
        ours = timings[METHOD_SUSTAINED]["laneloom"]
        print(
            f"{problem.m}x{problem.n}x{problem.k} {case.layout} {case.dtype}: {ours.median_us:.2f} us, "
            f"{problem.flops / ours.median_us / 1e6:.0f} TFLOP/s, {ours.ratio_to_reference:.3f} x {reference}"
            f"{' (noisy)' if ours.noisy else ''}, {config}",
            flush=True,
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure laneloom.matmul on the gemm suite.")
    parser.add_argument("--out", type=Path, required=True, help="file of records to append to")
    parser.add_argument("--dtypes", default="bf16,fp16,fp8,int8")
    parser.add_argument("--layouts", default="nn,nt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--single", action="store_true", help="time single launches on an idle GPU as well")
    arguments = parser.parse_args()
    run(
        arguments.out, arguments.dtypes.split(","), arguments.layouts.split(","), rounds=arguments.rounds,
        single=arguments.single,
    )  # fmt: skip


if __name__ == "__main__":
    main()

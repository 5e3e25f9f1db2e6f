"""Measure `laneloom.matmul` on the gemm suite against what torch gives; `python -m laneloom.bench.matmul --help`.

Every product is checked against FP64 before it is timed. The output buffers are poisoned, and the candidates are what a
user would call: laneloom.matmul with out=, torch.matmul, torch._scaled_mm (fast accumulation), torch._int_mm. The kinds
"tf32", "3xtf32" and "3xbf16" are FP32 operands with that precision; torch multiplies them in FP32, in TF32 for "tf32".
"fp8 promoted" is fp8 with precision "promoted", beside torch without fast accumulation.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ArgumentError, LaneloomError
from ..ops.matmul import config as matmul_config
from ..ops.matmul.api import matmul
from ..ops.matmul.config import MatmulConfig
from ..ops.target import active_gpu
from .kernel_sources import config_sources
from .matmul_cases import DTYPES, Case, iterate_cases, kinds_cases, make_case, random_cases
from .products import relative_error
from .records import Environment, Record, append, hash_sources, load, make_record, read_environment
from .timing import METHOD_SINGLE, METHOD_SUSTAINED, Launch, Timing, count_sets, host_us, interleave, single_launch

HOST = "host"  #: the group of the host's times
METHOD_HOST = "host: time of a warm call on the host, nothing waits for the GPU, median over rounds"
HOST_CASES = (
    ((256, 256, 256), "nn"), ((1000, 1000, 1000), "nn"), ((1, 4096, 4096), "nt"), ((16, 4096, 4096), "nn"),
    ((127, 129, 131), "nn"),
)  # fmt: skip
COMPILED = "torch.compile"  #: inductor's Triton template, tuned


def is_replanned(record: Record) -> bool:
    """Whether the plan now chooses another config for a record's product than the one that was measured."""
    problem = record.problem
    if record.op != "matmul" or not (record.config or {}).get("text"):
        return False
    sizes = (int(problem["m"]), int(problem["n"]), int(problem["k"]))
    case = make_case("", str(problem["layout"]), str(problem["dtype"]), sizes)
    try:
        measured = MatmulConfig.parse((record.config or {})["text"])  # knobs that are newer take their defaults
    except ArgumentError:
        return True
    return matmul_config.plan(case.problem, record.environment.known_gpu()) != measured


def replanned_cases(records: Iterable[Record]) -> Iterator[Case]:
    """The products for whose newest record, the last one, the plan has changed; no host's times."""
    newest = {}
    for record in records:
        p = record.problem
        if record.op == "matmul" and record.config and p["group"] != HOST:
            sizes = (int(p["m"]), int(p["n"]), int(p["k"]))
            newest[str(p["group"]), str(p["layout"]), str(p["dtype"]), sizes] = record
    for key, record in newest.items():
        if is_replanned(record):
            yield make_case(*key)


def is_stale(record: Record) -> bool:
    """Whether other code would run now: the sources of the record's schedule have changed, or the plan has."""
    return record.is_stale(config_sources((record.config or {}).get("text"))) or is_replanned(record)


def _operand(rows: int, columns: int, letter: str, dtype: str, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (rows, columns) if letter == "n" else (columns, rows)
    if dtype == "int8":
        x = torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda", generator=generator)
    else:
        wide = torch.float32 if dtype == "fp8" else DTYPES[dtype]
        x = torch.randn(shape, dtype=wide, device="cuda", generator=generator).to(DTYPES[dtype])
    return x if letter == "n" else x.mT


def torch_call(
    dtype: str, fast: bool = True
) -> tuple[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]]:
    """What a user would call instead for A, B and C, and its name; fast: of 8-bit floats, with its faster sums."""
    if dtype == "fp8":
        one = torch.ones((), device="cuda")
        return "torch._scaled_mm", lambda a, b, out: torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            a, b, one, one, out_dtype=out.dtype, use_fast_accum=fast, out=out)
    if dtype == "int8":
        product = torch._int_mm  # pyright: ignore[reportPrivateImportUsage]
        return "torch._int_mm", lambda a, b, out: product(a, b, out=out)
    return "torch.matmul", lambda a, b, out: torch.matmul(a, b, out=out)


@dataclass(frozen=True)
class Errors:
    """Relative norms against FP64: laneloom's, torch's, and what laneloom's may be."""

    ours: float
    theirs: float
    budget: float


def _compiled_call(a: torch.Tensor, b: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """torch.matmul as inductor compiles it with its own Triton template."""
    import torch._inductor.config as inductor

    with inductor.patch(max_autotune_gemm_backends="TRITON"):
        call = torch.compile(torch.matmul, mode="max-autotune-no-cudagraphs", dynamic=False)
        call(a, b)
    return call


@dataclass(frozen=True)
class Inputs:
    """A case's operands and outputs, as many sets as exceed the L2, and what is timed on them."""

    operands: list[tuple[torch.Tensor, torch.Tensor]]
    outs: list[torch.Tensor]
    candidates: dict[str, Launch]  #: torch's call first


def make_inputs(case: Case) -> Inputs:
    """Random operands; the candidates are torch's call and laneloom's, with out=."""
    problem, dtype = case.problem, case.problem.dtype_a
    sets = count_sets(problem.bytes)
    operands = [
        (_operand(problem.m, problem.k, case.layout[0], dtype, 2 * i),
         _operand(problem.k, problem.n, case.layout[1], dtype, 2 * i + 1))
        for i in range(sets)
    ]  # fmt: skip
    out_type = DTYPES[problem.dtype_out]
    outs = [torch.empty((problem.m, problem.n), dtype=out_type, device="cuda") for _ in range(sets)]
    name, call = torch_call(case.problem.dtype_a, case.precision is None)
    out_dtype = out_type if out_type != DTYPES[dtype] else None
    return Inputs(operands, outs, {
        name: lambda i: call(*operands[i], outs[i]),
        "laneloom": lambda i: matmul(*operands[i], out=outs[i], out_dtype=out_dtype, precision=case.precision),
    })  # fmt: skip


def check(case: Case, inputs: Inputs) -> Errors:
    """Both candidates' errors. Raises LaneloomError when the product is wrong: a wrong kernel is not timed."""
    problem, (a, b), out = case.problem, inputs.operands[0], inputs.outs[0]
    theirs_call, ours_call = inputs.candidates.values()
    truth = a.double() @ b.double()
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    theirs_call(0)
    theirs = relative_error(out, truth)
    out.fill_(-77 if problem.dtype_a == "int8" else float("nan"))
    ours_call(0)
    error = relative_error(out, truth)
    # FP64 has no better truth: the bound on both sums' rounding, which grows with the root of K.
    rounding = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp64": problem.k**0.5 * 2.0**-53}.get(problem.dtype_out, 0.0)
    if case.precision == "tf32":
        rounding = 2.0**-11  # of one row torch's product is in FP32
    # Of so few sums that they hardly count FP32's own roundings are what is left of both.
    budget = max(theirs, 2.0**-22) if case.precision in ("3xtf32", "3xbf16") else 2 * theirs + rounding
    if not error <= budget:
        raise LaneloomError(f"{problem.key}: relative error {error:.2e} is over its budget of {budget:.2e}")
    return Errors(error, theirs, budget)


def measure(
    case: Case, *, rounds: int, single: bool, compiled: bool = False
) -> tuple[dict[str, dict[str, Timing]], Errors]:
    """Timings by method and candidate, and the errors."""
    inputs = make_inputs(case)
    candidates, sets = inputs.candidates, len(inputs.outs)
    errors = check(case, inputs)
    if compiled:
        product = _compiled_call(*inputs.operands[0])
        candidates[COMPILED] = lambda i: product(*inputs.operands[i])
    timings = {METHOD_SUSTAINED: interleave(candidates, sets, rounds=rounds)}
    if single:
        timings[METHOD_SINGLE] = single_launch(candidates, sets, rounds=rounds)
    return timings, errors


def measure_host(case: Case) -> dict[str, Timing]:
    """Host time of a warm call of laneloom and of torch, both without out=."""
    problem = case.problem
    a = _operand(problem.m, problem.k, case.layout[0], problem.dtype_a, 0)
    b = _operand(problem.k, problem.n, case.layout[1], problem.dtype_a, 1)
    theirs = host_us(lambda i: torch.matmul(a, b))
    ours = host_us(lambda i: matmul(a, b))
    return {"torch.matmul": Timing(theirs, 0.0, 1.0, False), "laneloom": Timing(ours, 0.0, theirs / ours, False)}


def _call_once(case: Case) -> None:
    problem = case.problem
    a = _operand(problem.m, problem.k, case.layout[0], problem.dtype_a, 0)
    b = _operand(problem.k, problem.n, case.layout[1], problem.dtype_a, 1)
    matmul(a, b, out_dtype=DTYPES[problem.dtype_out], precision=case.precision)


def compile_ahead(cases: Sequence[Any], jobs: int, call_once: Callable[[Any], None] = _call_once) -> None:
    """Call each case once in one of `jobs` processes, so that its kernel is on disk."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        pool.map(call_once, cases, chunksize=1)


def keep(
    path: Path, environment: Environment, case: Case, method: str, by_name: Mapping[str, Timing],
    errors: Errors | None = None, **more: float,
) -> None:  # fmt: skip
    """Append a record for each candidate, torch's first; `more` tells this record's problem from others of the case."""
    problem, reference = case.problem, next(iter(by_name))
    config = matmul_config.plan(problem, active_gpu()).text
    for name, timing in by_name.items():
        ours = name == "laneloom"
        error = None if errors is None or name == COMPILED else errors.ours if ours else errors.theirs
        append(path, make_record(
            timing, op="matmul", candidate=name, method=method, reference=reference, flops=problem.flops,
            bytes=problem.bytes, environment=environment,
            kernel_hash=hash_sources(config_sources(config)) if ours else "",
            config={"text": config} if ours else None, error=error,
            error_budget=errors.budget if ours and errors else None,
            problem={"m": problem.m, "n": problem.n, "k": problem.k, "layout": case.layout,
                     "dtype": case.dtype, "dtype_out": problem.dtype_out, "group": case.group, **more},
        ))  # fmt: skip


def run(
    path: Path, cases: Sequence[Case], *, rounds: int, single: bool, compiled: bool = False, host: bool = False
) -> None:
    """Measure every case and append its records to `path`, one for each candidate by each method."""
    environment, gpu = read_environment(), active_gpu()
    for case in cases:
        problem = case.problem
        with_compiled = compiled and (case.group, case.layout, case.dtype) == ("square", "nn", "bf16")
        timings, errors = measure(case, rounds=rounds, single=single, compiled=with_compiled)
        for method, by_name in timings.items():
            keep(path, environment, case, method, by_name, errors)
        ours = timings[METHOD_SUSTAINED]["laneloom"]
        print(
            f"{problem.m}x{problem.n}x{problem.k} {case.layout} {case.dtype}: {ours.median_us:.2f} us, "
            f"{problem.flops / ours.median_us / 1e6:.0f} TFLOP/s, {ours.ratio_to_reference:.3f} x torch"
            f"{' (noisy)' if ours.noisy else ''}, error {errors.ours:.1e} (torch {errors.theirs:.1e}), "
            f"{matmul_config.plan(problem, gpu).text}",
            flush=True,
        )
    if host:
        for sizes, layout in HOST_CASES:
            case = make_case(HOST, layout, "bf16", sizes)
            timings_host = measure_host(case)
            keep(path, environment, case, METHOD_HOST, timings_host)
            ours = timings_host["laneloom"].median_us
            theirs = timings_host["torch.matmul"].median_us
            print(f"host {sizes} {layout}: {ours:.1f} us, torch {theirs:.1f}", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure laneloom.matmul on the gemm suite.")
    parser.add_argument("--out", type=Path, required=True, help="file of records to append to")
    parser.add_argument("--dtypes", default="bf16,fp16,fp8,fp8 promoted,int8,fp32,tf32,3xtf32,3xbf16,fp64")
    parser.add_argument("--layouts", default="nn,nt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--single", action="store_true", help="time single launches on an idle GPU, and the host, too")
    parser.add_argument("--compiled", action="store_true", help="time torch.compile on the bf16 squares as well")
    parser.add_argument("--outside", action="store_true", help="time bf16 products of sizes outside of the suite, too")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="time N products of random sizes, too")
    parser.add_argument("--kinds", action="store_true",
                        help="time more products of 8 bits and of FP32 on the tensor cores, too")  # fmt: skip
    parser.add_argument("--replanned", type=Path, metavar="FILE",
                        help="only the products of these records for which the plan has changed")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    arguments = parser.parse_args()
    kinds = [kind for kind in arguments.dtypes.split(",") if kind]
    if arguments.replanned:
        cases = [*replanned_cases(load(arguments.replanned))]
    else:
        cases = [*iterate_cases(kinds, arguments.layouts.split(","), outside=arguments.outside)]
        cases += random_cases(arguments.random)
        cases += kinds_cases() if arguments.kinds else ()
    if arguments.jobs > 1:
        compile_ahead(cases, arguments.jobs)
    run(
        arguments.out, cases, rounds=arguments.rounds, single=arguments.single, compiled=arguments.compiled,
        host=arguments.single and bool(kinds),
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""Overlapped products and context-parallel attention against torch's own, on the GPUs of one host.

    torchrun --nproc-per-node 2 -m laneloom.bench.distributed --out results/h200/distributed.jsonl

Every candidate is checked against the FP64 result of this rank's part before it is timed. A round times up to `CALLS`
calls of one candidate between CUDA events after a barrier; candidates take turns in an order that is rotated, and the
slowest rank counts. Then the same with each call captured in a CUDA graph, where the host does not count. What fails
on one rank is said and left out on all; the other candidates and cases are measured, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..errors import LaneloomError
from .distributed_cases import OURS, Call, Case, attention_cases, product_cases, transform_cases
from .products import relative_error
from .records import Environment, append, hash_sources, make_record, read_environment
from .timing import Timing
from .works import sources

METHODS = {
    False: "distributed: CUDA events around up to 10 calls after a barrier, order rotated, slowest rank, median",
    True: "distributed, captured: the same with replays of a CUDA graph of one call",
}
CALLS, ROUNDS, ROUND_US = 10, 9, 6_000.0
TIMEOUT = timedelta(seconds=60)  #: after which a collective that a rank never joins ends the run
#: what the kernels of a case belong to
OPERATIONS = {"all_gather_matmul": "matmul", "matmul_reduce_scatter": "matmul", "ring_attention": "attention",
              "transform3d": "transform3d"}  # fmt: skip
SUITES = {"products": product_cases, "transform3d": transform_cases, "attention": attention_cases}


def error_of_rows(got: torch.Tensor, truth: torch.Tensor) -> float:
    """`relative_error` of the last rows that truth has."""
    axis = next((i for i, (n, kept) in enumerate(zip(got.shape, truth.shape, strict=True)) if n != kept), 0)
    return relative_error(got.narrow(axis, got.shape[axis] - truth.shape[axis], truth.shape[axis]), truth)


def _worst(value: float, device: torch.device) -> float:
    """The largest of all ranks' values."""
    worst = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.item()


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def _attempt(case: Case, name: str, call: Callable[[], float], device: torch.device) -> float:
    """The worst of what `call` gives on all ranks in the candidate's context; infinite where it fails on one."""
    try:
        with case.contexts.get(name, nullcontext)(), torch.no_grad():
            value = call()
    except Exception:  # of a candidate: the others are measured all the same
        value = float("inf")
        print(f"rank {dist.get_rank()}: {case.op} {case.problem}: {name} fails\n{traceback.format_exc()}", flush=True)
    return _worst(value, device)


def check(case: Case) -> tuple[dict[str, Call], dict[str, float], float, list[str]]:
    """The candidates that are right here, their worst errors, the budget, and what was wrong with laneloom's.

    The budget is twice the smallest of torch's errors and one rounding.
    """
    truth = case.truth()
    errors = {
        name: _attempt(case, name, lambda call=call: error_of_rows(call(), truth), truth.device)
        for name, call in case.candidates.items()
    }
    theirs = [error for name, error in errors.items() if name.startswith("torch") and error < float("inf")]
    budget = 2 * min(theirs, default=0.0) + 2.0**-8
    faults = [
        f"{case.op} {case.problem}: {name}: relative error {error:.2e} is over its budget of {budget:.2e}"
        for name, error in errors.items()
        if not error <= budget
    ]
    for fault in faults:
        _say(fault)
    runs = {name: call for name, call in case.candidates.items() if errors[name] <= budget}
    return runs, errors, budget, [fault for fault in faults if OURS in fault]


def capture(case: Case, calls: Mapping[str, Call]) -> dict[str, Call]:
    """Replays of each call in a CUDA graph, of those that can be captured on all ranks."""
    replays: dict[str, Call] = {}
    for name, call in calls.items():
        graph = torch.cuda.CUDAGraph()

        def record(graph: torch.cuda.CUDAGraph = graph, call: Call = call, name: str = name) -> float:
            # The thread of NCCL that watches its work may ask for events meanwhile: this thread's calls alone count.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                result = call()

            def replay() -> torch.Tensor:
                graph.replay()
                return result

            replays[name] = replay
            return 0.0

        if _attempt(case, name, record, torch.device("cuda")) > 0:
            replays.pop(name, None)
    return replays


def measure(case: Case, calls: Mapping[str, Call]) -> dict[str, Timing]:
    """Timings by name, of the slowest rank; ratios to the first."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names, repeats = list(samples), 1
    for r in range(ROUNDS + 2):
        shift = r % len(names)
        for name in names[shift:] + names[:shift]:
            with case.contexts.get(name, nullcontext)(), torch.no_grad():
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                dist.barrier()
                torch.cuda.synchronize()
                start.record()
                for _ in range(repeats):
                    calls[name]()
                end.record()
                torch.cuda.synchronize()
            samples[name].append(_worst(1000 * start.elapsed_time(end) / repeats, torch.device("cuda")))
        if r == 1:  # warm now: the same number of calls on every rank, whose slowest times are the same
            longest = max(values[-1] for values in samples.values())
            repeats = max(1, min(CALLS, int(ROUND_US / longest)))
            samples = {name: [] for name in names}
    return {name: Timing.from_samples(values, samples[names[0]]) for name, values in samples.items()}


def run_case(path: Path, case: Case, environment: Environment) -> list[str]:
    """Check and measure a case; rank 0 appends the records to `path`. What was wrong with laneloom's results."""
    runs, errors, budget, faults = check(case)
    everything = {**runs, **case.floors}
    for captured in (False, True):
        calls = capture(case, everything) if captured else everything
        timings = measure(case, calls) if calls else {}
        reference = next(iter(timings), "")
        for name, timing in timings.items():
            if dist.get_rank() != 0:
                continue
            ours = name.startswith(OURS)
            append(path, make_record(
                timing, op=case.op, problem=case.problem, candidate=name, config=None, method=METHODS[captured],
                reference=reference, flops=case.flops, bytes=case.bytes, environment=environment,
                kernel_hash=hash_sources(sources(OPERATIONS[case.op])) if ours else "",
                error=errors.get(name), error_budget=budget if name in errors else None,
            ))  # fmt: skip
            _say(f"{case.op} {' '.join(map(str, case.problem.values()))} {'graph' if captured else 'eager'} {name}: "
                 f"{timing.median_us:.1f} us, {case.flops / timing.median_us / 1e6:.0f} TFLOP/s a GPU, "
                 f"{timing.ratio_to_reference:.3f} x{' (noisy)' if timing.noisy else ''}")  # fmt: skip
    return faults


def run(path: Path, cases: Iterator[Case], seconds: float) -> list[str]:
    """Check and measure cases until `seconds` have passed on some rank; what was wrong."""
    environment, start, faults = read_environment(), time.monotonic(), []
    for case in cases:
        late = _worst(time.monotonic() - start, torch.device("cuda")) > seconds
        if late:
            _say(f"{case.op} {case.problem}: not measured, {seconds:g} s have passed")
            continue
        try:
            faults += run_case(path, case, environment)
        except Exception:
            faults.append(f"{case.op} {case.problem}: {traceback.format_exc()}")
            _say(faults[-1])
    return faults


def main() -> None:
    """Command line, one process for each GPU."""
    parser = argparse.ArgumentParser(description="Measure products and attention over several GPUs; run by torchrun.")
    parser.add_argument("--out", type=Path, required=True, help="file of records to append to")
    parser.add_argument("--only", choices=SUITES, help="one part of the suite")
    parser.add_argument("--seconds", type=float, default=600.0, help="time after which no case of a part is begun")
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, timeout=TIMEOUT)
    faults = []
    for name, cases in SUITES.items():
        if arguments.only in (None, name):
            faults += run(arguments.out, cases("cuda"), arguments.seconds)
    dist.destroy_process_group()
    if faults:
        raise LaneloomError(f"{len(faults)} faults, the first: {faults[0]}")


if __name__ == "__main__":
    main()

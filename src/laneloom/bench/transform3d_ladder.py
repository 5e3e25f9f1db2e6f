"""The ladder of the transform on one GPU: every level at every K, against a copy of the same bytes, in one run.

`python -m laneloom.bench.transform3d_ladder [--out results/h200/transform3d-ladder.jsonl]` checks each level against
FP64 on the CPU, then times it, and appends records. `laneloom ladder transform3d` shows them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from ..errors import InvalidConfigError, UnsupportedError
from ..gpu import Gpu
from ..ops.target import active_gpu
from ..ops.transform3d import MatmulsConfig, Transform3dConfig, Transform3dProblem, execute, ladder
from .records import Environment, Record, append, hash_sources, make_record, read_environment
from .timing import METHOD_SUSTAINED, count_sets, interleave
from .transform3d import ERROR_BUDGET, copy_tensors, share_of_budget
from .transform3d_rungs import TORCH

ORDERS = (6, 8, 10, 12, 16, 20, 32)
_L2_TIMES = 4.0


def _hash(config: Transform3dConfig) -> str:
    folder = Path(str(resources.files("laneloom.ops.transform3d.kernels")))
    return hash_sources(sorted(folder.glob(f"{config.schedule}.*")))


def measure(
    orders: Sequence[int] = ORDERS,
    count: int = 2048,
    *,
    rounds: int = 9,
    environment: Environment | None = None,
    refused: Callable[[int, str, str], None] = lambda *_: None,
) -> Iterator[Record]:
    """Records of the copy, three torch products and every level that can run; `refused(k, level, why)` hears the rest.

    Raises UnsupportedError where there is no GPU.
    """
    gpu = active_gpu()
    environment = environment or read_environment()
    for k in orders:
        yield from _measure_order(k, count, gpu, rounds, environment, refused)
        torch.cuda.empty_cache()


def _measure_order(
    k: int, count: int, gpu: Gpu, rounds: int, environment: Environment, refused: Callable[[int, str, str], None]
) -> Iterator[Record]:
    problem = Transform3dProblem(k, count)
    n_sets = count_sets(problem.bytes, factor=_L2_TIMES)
    xs = [torch.randn((count, k, k, k), dtype=torch.float64, device="cuda") for _ in range(n_sets)]
    outs = [torch.empty_like(x) for x in xs]
    matrix = torch.randn((k, k), dtype=torch.float64, device="cuda")

    def run(config: Transform3dConfig, i: int) -> None:
        execute.transform_into(xs[i], matrix, outs[i], "fp64", gpu, transpose=False, accumulate=False, config=config)

    launches: dict[str, Callable[[int], Any]] = {"copy": lambda i: copy_tensors(xs[i], outs[i])}
    configs: dict[str, Transform3dConfig] = {}
    errors: dict[str, float] = {}
    if gpu.vendor == "nvidia":
        configs[TORCH] = MatmulsConfig()
    for level in ladder.LEVELS:
        try:
            configs[ladder.level_name(level, gpu)] = ladder.level_config(level, problem, gpu)
        except (InvalidConfigError, UnsupportedError) as why:
            refused(k, ladder.level_name(level, gpu), str(why))
    for name, config in configs.items():
        outs[0].fill_(float("nan"))
        try:
            run(config, 0)
        except UnsupportedError as why:
            refused(k, name, str(why))
            continue
        errors[name] = share_of_budget(xs[0], matrix, outs[0], "fp64")
        if errors[name] <= ERROR_BUDGET * ladder.terms_ratio(config, k):
            launches[name] = partial(run, config)
        else:
            refused(k, name, f"wrong: {errors[name]:.1f} times the bound on rounding")
    for name, timing in interleave(launches, n_sets, reference="copy", rounds=rounds, graph_us=300.0).items():
        config = configs.get(name)
        yield make_record(
            timing,
            op="transform3d-ladder",
            problem={"k": k, "count": count, "dtype": "fp64"},
            candidate=name,
            config=asdict(config) if config else None,
            method=METHOD_SUSTAINED,
            reference="copy",
            flops=problem.flops if config else 0,
            bytes=problem.bytes,
            kernel_hash=_hash(config) if config else "",
            environment=environment,
            error=errors.get(name),
            error_budget=ERROR_BUDGET * ladder.terms_ratio(config, k) if config else None,
        )


def main() -> None:
    """Measure, print and append."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="append records to this file")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    for record in measure(rounds=arguments.rounds, refused=lambda k, level, why: print(f"K={k} {level}: {why}")):
        if arguments.out:
            append(arguments.out, record)
        print(
            f"K={record.problem['k']:2d} {record.candidate:20s} {record.median_us:10.1f} us "
            f"{record.tflops:6.2f} TFLOP/s {record.ratio_to_reference:.3f} of copy",
            flush=True,
        )


if __name__ == "__main__":
    main()

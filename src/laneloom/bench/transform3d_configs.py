"""Measure many configs of the transform's kernels `fused` and `flat` on one Hopper GPU: what
`ops/transform3d/model_hopper.py` was fitted to.

`python -m laneloom.bench.transform3d_configs --out results/h200/transform3d_configs.csv --jobs 16` writes one row a
config: of orders of every dtype, from a few tensors to many, each checked against the plan's result, all interleaved
with a copy of the same bytes. `tests/cpu/test_transform3d_plan.py` holds the plan against the file. Rows of one batch
that have another copy's time are another run's, on another GPU of the kind: the shares of the copy's speed compare.

`--few --out results/h200/transform3d_few.csv` measures batches of fewer tensors than the GPU has SMs by clusters, whose
CTAs hold a tensor together, beside what more tensors take; `--large --out results/h200/transform3d_large.csv` many
tensors of the orders from 25 on (complex128 19), of which an SM has room for one or for none.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

from ..errors import CompileError, LaneloomError
from ..gpu import get_gpu
from ..ops.target import active_gpu
from ..ops.transform3d import FusedConfig, Transform3dConfig, Transform3dProblem, execute, parse_config, plan
from ..ops.transform3d.config import MOST_CTAS
from ..ops.transform3d.hopper import compile_on_hopper
from ..ops.transform3d.plan_hopper import IN_REGISTERS_UP_TO, MANY, fewest_ctas, flat_configs, fused_configs
from .matmul_tiles import read_rows, write
from .timing import Launch, count_sets, interleave
from .transform3d import DTYPES, copy_tensors

ORDERS = {
    "fp64": (2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 21, 23, 26),
    "fp32": (8, 13, 14, 17, 20, 22, 24, 28),
    "complex128": (3, 4, 6, 7, 8, 9, 10, 11, 12, 14, 18),
    "complex64": (8, 13, 16, 20, 24),
}
ORDERS_OF_FEW = {
    "fp64": (12, 13, 14, 15, 16, 17, 18, 20, 21, 24, 25, 27, 28, 30, 31, 32, 37, 40, 41, 48),
    "fp32": (13, 16, 20, 24, 27, 30, 32, 40),
    "complex128": (8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 28, 31),
    "complex64": (13, 16, 20, 29),
}
COUNTS_OF_FEW = (2, 14, 30, 50, 66)  #: even, as a copy of doubles wants them
ORDERS_OF_LARGE = {
    "fp64": range(25, 49), "fp32": range(32, 49), "complex128": range(19, 48), "complex64": (31, 32, 36, 40, 44, 48),
}  # fmt: skip
MOST_OF_LARGE = 1000  #: tensors
WARPS_OF_LARGE, MOST_WARPS_OF_SM = (4, 6, 8, 12), 16  #: more leave a thread too few registers
COUNTS = (30, 100, 256, 512, 1000, 2048, 4096, 8192, 30000)
MOST_BYTES = 1 << 29  #: read and written; of each order one batch of so many as well
L2_TIMES = 2.0  #: all input sets together, in sizes of the L2
SAME = 1e-4  #: relative to the largest element
SLOWEST = 1.5  #: times the fastest: slower configs, but the plan's, are left out of the file
ROUNDS, WARMUP_S = 5, 0.05
HOPPER = get_gpu("sm_90a")


@dataclass(frozen=True)
class Row:
    """A config of one batch, its time, and that of a copy of the same bytes."""

    dtype: str
    k: int
    count: int
    config: str
    us: float
    copy_us: float

    @property
    def problem(self) -> Transform3dProblem:
        """The batch."""
        return Transform3dProblem(self.k, self.count, self.dtype)


def configs_of(problem: Transform3dProblem) -> list[Transform3dConfig]:
    """The plan's, and all that the model chooses from: of `fused`, or of `flat` where that comes first."""
    chosen = plan(problem, HOPPER)
    fused = chosen.schedule == "fused"
    others = (fused_configs(problem, HOPPER, True, every=True) if fused else flat_configs(problem, HOPPER, every=True))
    return list(dict.fromkeys((chosen, *others)))


def configs_of_few(problem: Transform3dProblem) -> list[Transform3dConfig]:
    """The plan's, that of many tensors, and clusters."""
    of_many = plan(replace(problem, count=MANY), HOPPER)
    found = [plan(problem, HOPPER), of_many]
    for cluster in dict.fromkeys(fewest_ctas(problem.k, most) for most in range(2, MOST_CTAS + 1)):
        for warps in (4, 8):
            config = FusedConfig(
                cluster=cluster, warps=warps, bulk=problem.vector_aligned, unroll=1, as_flat=of_many.schedule == "flat",
                matrix_in_registers=problem.k <= IN_REGISTERS_UP_TO,
            )  # fmt: skip
            found.append(config)
    return [config for config in dict.fromkeys(found) if config.why_invalid(problem, HOPPER) is None]


def configs_of_large(problem: Transform3dProblem) -> list[Transform3dConfig]:
    """The plan's, and clusters of every size by as many CTAs of an SM as there is room for."""
    found = [plan(problem, HOPPER)]
    for cluster in dict.fromkeys(fewest_ctas(problem.k, most) for most in range(1, MOST_CTAS + 1)):
        for warps, unroll in product(WARPS_OF_LARGE, (1, 2) if problem.k <= 32 else (1,)):
            config = FusedConfig(
                cluster=cluster, warps=warps, bulk=problem.vector_aligned, unroll=unroll, matrix_in_registers=False,
                as_flat=found[0].schedule == "flat",
            )  # fmt: skip
            fits = (replace(config, ctas_per_sm=n) for n in range(MOST_WARPS_OF_SM // warps, 0, -1))
            found += [each for each in fits if each.why_invalid(problem, HOPPER) is None][:1]
    return list(dict.fromkeys(found))


def most_tensors(k: int, dtype: str) -> int:
    """An even number of them that move MOST_BYTES."""
    return MOST_BYTES // Transform3dProblem(k, 1, dtype).bytes // 2 * 2


def large_problems() -> Iterator[Transform3dProblem]:
    """Many tensors of large orders, an even number of them."""
    for dtype, orders in ORDERS_OF_LARGE.items():
        for k in orders:
            most = most_tensors(k, dtype)
            yield Transform3dProblem(k, min(most, MOST_OF_LARGE), dtype)


def few_problems() -> Iterator[Transform3dProblem]:
    """Batches of fewer tensors than SMs."""
    for dtype, orders in ORDERS_OF_FEW.items():
        yield from (Transform3dProblem(k, count, dtype) for k in orders for count in COUNTS_OF_FEW)


def problems() -> Iterator[Transform3dProblem]:
    """Every batch that is not too large, of even numbers of tensors, whose bytes a copy can move as doubles."""
    for dtype, orders in ORDERS.items():
        for k in orders:
            most = most_tensors(k, dtype)
            counts = dict.fromkeys((*COUNTS, most))
            yield from (Transform3dProblem(k, count, dtype) for count in counts if count <= most)


def _compile(job: tuple[int, str, str]) -> str | None:
    """The config's text where it does not compile: in too few registers for its instructions."""
    k, dtype, text = job
    try:
        compile_on_hopper(Transform3dProblem(k, 1, dtype), parse_config(text), HOPPER)  # pyright: ignore
    except CompileError:
        return f"{dtype} {k} {text}"
    return None


def compile_ahead(batches: Mapping[Transform3dProblem, Sequence[Transform3dConfig]], jobs: int) -> set[str]:
    """Compile every config in so many processes; those that do not compile."""
    texts = {(p.k, p.dtype, config.text): None for p, configs in batches.items() for config in configs}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return {text for text in pool.map(_compile, texts, chunksize=4) if text}


def measure(problem: Transform3dProblem, configs: Sequence[Transform3dConfig], left_out: set[str]) -> list[Row]:
    """A row of every config, the plan's first, the copy's time beside it. Raises LaneloomError where results differ."""
    k, count, dtype, gpu = problem.k, problem.count, problem.dtype, active_gpu()
    sets = count_sets(problem.bytes, factor=L2_TIMES)
    xs = [torch.randn((count, k, k, k), dtype=DTYPES[dtype], device="cuda") for _ in range(sets)]
    outs = [torch.empty_like(x) for x in xs]
    matrix = torch.randn((k, k), dtype=xs[0].real.dtype, device="cuda")

    def run(config: Transform3dConfig, i: int) -> None:
        execute.transform_into(xs[i], matrix, outs[i], dtype, gpu, transpose=False, accumulate=False, config=config)

    launches: dict[str, Launch] = {"copy": lambda i: copy_tensors(xs[i], outs[i])}
    first: torch.Tensor | None = None
    for config in configs:
        if f"{dtype} {k} {config.text}" in left_out:
            continue
        outs[0].fill_(float("nan"))
        run(config, 0)
        first = outs[0].clone() if first is None else first
        if not (outs[0] - first).abs().max() <= SAME * first.abs().max():
            raise LaneloomError(f"{problem.key}: {config.text} gives another result than the plan's")
        launches[config.text] = partial(run, config)
    times = interleave(launches, sets, reference="copy", rounds=ROUNDS, warmup_s=WARMUP_S)
    copy_us = times.pop("copy").median_us
    least, chosen = min(t.median_us for t in times.values()), configs[0].text
    return [
        Row(dtype, k, count, text, round(timing.median_us, 3), round(copy_us, 3))
        for text, timing in times.items() if text == chosen or timing.median_us <= SLOWEST * least
    ]  # fmt: skip


def read(path: Path) -> list[Row]:
    """The rows of a file that this made."""
    return read_rows(path, Row)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure configs of the transform on a Hopper GPU.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    parser.add_argument("--least-mb", type=int, default=0, help="leave out batches that move less")
    parser.add_argument("--few", action="store_true", help="batches of fewer tensors than SMs, by clusters")
    parser.add_argument("--large", action="store_true", help="large orders, by clusters")
    chosen = parser.parse_args(arguments)
    of, every = (configs_of_few, few_problems()) if chosen.few else (configs_of, problems())
    if chosen.large:
        of, every = configs_of_large, large_problems()
    batches = {problem: of(problem) for problem in every if problem.bytes >= chosen.least_mb * 10**6}
    left_out, rows = compile_ahead(batches, chosen.jobs), list[Row]()
    for problem, configs in batches.items():
        found = measure(problem, configs, left_out)
        rows += found
        write(chosen.out, rows)
        best, planned = min(found, key=lambda row: row.us), found[0]
        print(f"{problem.key}: copy {best.copy_us} us, plan {planned.us}, {best.us} {best.config}", flush=True)


if __name__ == "__main__":
    main()

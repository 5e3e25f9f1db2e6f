"""Measure many configs of `hopper_async` on one Hopper GPU: what `plan_wide.py` and `plan_half.py` were fitted to.

`python -m laneloom.bench.matmul_wide --out results/h200/tiles_wide.csv --jobs 16` writes one row a config: of every
product of `wide_products` the likely configs of `hopper_async` and of the other schedules, each checked against FP64,
all interleaved with torch.matmul in full precision. `tests/cpu/test_wide_plan.py` holds the plan against the file.
`--batches --out results/h100/tiles_batches.csv` measures batches of 16 bits instead, with configs of `hopper_rows` and
`hopper_cluster` as well: what `plan_batch.py` was fitted to. `--unaligned --out results/h200/tiles_unaligned.csv`
measures single ones of rows that do not begin at 16 bytes, with configs of `hopper` and `hopper_cluster`, and
`--decode --out results/h200/tiles_decode.csv` few rows or columns of 16 bits: what `plan_few.py` is held against, as
`plan_short.py` against `--short --out results/h200/tiles_short.csv`, up to 128 of 16 and 8 bits, and against `--small
--out results/h200/tiles_small.csv`: few tiles, or a K of a slice or less.
`--render results/h200/tiles_wide.csv docs/hopper-gemm.md docs/hopper-gemm-products.md --readme README.md --dtypes fp32
fp64` writes what the plan takes into the pages; `--dtypes bf16` does so for 16 bits, and for the other files.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch

from ..errors import LaneloomError
from ..gpu import Gpu, get_gpu
from ..ops.matmul.config import MatmulConfig, plan
from ..ops.matmul.config_async import AsyncConfig
from ..ops.matmul.config_cluster import ClusterConfig
from ..ops.matmul.config_row import stream_row
from ..ops.matmul.config_rows import GROUP, stream_rows
from ..ops.matmul.dtypes import HALVES
from ..ops.matmul.execute import schedule_of
from ..ops.matmul.plan_cluster import cluster_configs, cluster_parts
from ..ops.matmul.plan_few import is_few
from ..ops.matmul.plan_half import half_configs, half_us
from ..ops.matmul.plan_hopper import candidates, long_side, tiled
from ..ops.matmul.plan_rows import batched_rows, one_row
from ..ops.matmul.plan_wide import async_configs, async_us, by_tma
from ..ops.matmul.problem import MatmulProblem
from ..ops.target import active_gpu
from .matmul import torch_call
from .matmul_tiles import read_rows, write
from .report import fill_page, fill_pages
from .timing import count_sets, interleave
from .wide_products import (
    DECODE,
    NOT_ALIGNED,
    PRODUCTS,
    RANDOM,
    SHORT,
    SMALL,
    WIDE_RANDOM,
    decode_products,
    half_batches,
    half_products,
    problem_of,
    short_products,
    small_products,
    unaligned_products,
)
from .wide_report import WIDE, render, render_decode, render_half, summarise

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
#: configs of hopper_async by the model that a random product is measured with, and of each way to cut K
LIKELY, LIKELY_OF_EACH = 8, 2
MOST_ASYNC, MOST_FED = 12, 16  #: configs that FP32 and FP64 are measured with, the likely ones by the model,
ASYNC_OF_TILE, FED_OF_TILE = 3, 2  #: and of each tile
OTHERS = 2  #: configs of other schedules that 16 bits are measured with
TILES_OF_UNALIGNED = 4  #: likely configs of `hopper` that a product of rows anywhere is measured with
CLUSTERS_OF_UNALIGNED = 80  #: of `hopper_cluster`, of which two of each height, way up and kind are
CLUSTERS_OF_BATCH = 12  #: likely configs of `hopper_cluster` that a batch is measured with
LIKELY_OF_FEW, MOST_OF_FEW = 1.35, 40  #: times the shortest estimate, and configs
OF_FEW = DECODE | SHORT | SMALL  #: what `_of_few` is for
SLOWEST, SLOWEST_OF_FEW = 2.5, 1.25  #: times the fastest: slower configs, but the plan's, are left out of the file


@dataclass(frozen=True)
class Row:
    """A config of one product, its time and its error, beside torch.matmul's."""

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    layout: str
    config: str
    us: float
    torch_us: float
    error: float  #: relative norm against FP64
    torch_error: float

    @property
    def problem_key(self) -> tuple[int, int, int, int, str]:
        """The product, as PRODUCTS has it."""
        return self.batch, self.m, self.n, self.k, self.layout

    @property
    def problem(self) -> MatmulProblem:
        """The product."""
        return problem_of(self.dtype, self.problem_key)


def _likely(problem: MatmulProblem, gpu: Gpu) -> Iterator[AsyncConfig]:
    """Of `hopper_async` in 16 bits."""
    ranked = sorted(half_configs(problem, gpu), key=lambda config: half_us(problem, config, gpu))
    found: Counter[tuple[int, int]] = Counter()
    for number, config in enumerate(ranked):
        found[cut := (config.cluster_k, config.split_k)] += 1
        if number < LIKELY or found[cut] <= LIKELY_OF_EACH:
            yield config


def _of_batch(problem: MatmulProblem, gpu: Gpu) -> Iterator[MatmulConfig]:
    """The plan's, likely ones of every schedule that takes a batch, of `hopper_rows` those around its choice."""
    yield plan(problem, gpu)
    for config, _ in batched_rows(problem, gpu):
        knobs = product((4, 8, 16), (1, 2), (1, 2, 3), (1, 2, 4))
        yield from (
            config.with_knobs(num_warps=warps, across=across, block_n=GROUP * across, stages=stages, cluster_k=parts)
            for warps, across, stages, parts in knobs
        )
    yield from _likely(problem, gpu)
    yield from (config for config, _ in islice(cluster_configs(problem, gpu), CLUSTERS_OF_BATCH))


def _unaligned(problem: MatmulProblem, gpu: Gpu) -> Iterator[MatmulConfig]:
    """The plan's and likely ones of every schedule, `hopper_cluster` with copies of operands too."""
    yield plan(problem, gpu)
    by_time = sorted(tiled(problem, gpu), key=lambda pair: pair[1])
    yield from (config for config, _ in by_time[:TILES_OF_UNALIGNED])
    found: Counter[tuple[int, bool, bool]] = Counter()
    for config, _ in islice(cluster_configs(problem, gpu), CLUSTERS_OF_UNALIGNED):
        found[kind := (config.block_m, config.own_tiles, config.swapped)] += 1
        if found[kind] <= LIKELY_OF_EACH:
            yield config
    yield from (config for config, _ in cluster_parts(problem, gpu))
    yield from islice(_likely(problem, gpu), LIKELY)


def _of_few(problem: MatmulProblem, gpu: Gpu) -> Iterator[MatmulConfig]:
    """The plan's, likely ones of `hopper_cluster`, one or two of every other schedule, and of K in parts."""
    yield plan(problem, gpu)
    ranked = list(islice(cluster_configs(problem, gpu), MOST_OF_FEW))
    yield from (config for config, time_us in ranked if time_us <= LIKELY_OF_FEW * ranked[0][1])
    if is_few(problem):
        yield long_side(problem, gpu)
    if problem in DECODE:
        found = (stream_row(problem, gpu), stream_rows(problem, gpu), one_row(problem, gpu))
        yield from (config for config in found if config is not None)
    else:
        yield from (config for config, _ in islice(cluster_parts(problem, gpu), OTHERS))
        yield from (config for config, _ in sorted(tiled(problem, gpu), key=lambda pair: pair[1])[:OTHERS])
    if problem.dtype_a in HALVES:
        yield from islice(_likely(problem, gpu), OTHERS)


def iterate_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[MatmulConfig]:
    """What is measured of one product."""
    batched = problem.dtype_a in HALVES and problem.batches > 1
    if batched or problem in NOT_ALIGNED or problem in OF_FEW:
        of = _of_batch if batched else _unaligned if problem in NOT_ALIGNED else _of_few
        found = dict.fromkeys(of(problem, gpu))
        yield from (config for config in found if config.why_invalid(problem, gpu) is None)
        return
    if problem.dtype_a in HALVES:
        yield from (_likely if problem in RANDOM else half_configs)(problem, gpu)
        others = (config for config, _ in candidates(problem, gpu) if config.schedule != "hopper_async")
        yield from islice((config for config in others if config.why_invalid(problem, gpu) is None), OTHERS)
        return
    found = {plan(problem, gpu): None}
    by_lanes = ((config, async_us(problem, config, gpu)) for config in async_configs(problem, gpu))
    for some, most, of_tile in ((by_lanes, MOST_ASYNC, ASYNC_OF_TILE), (by_tma(problem, gpu), MOST_FED, FED_OF_TILE)):
        found.update(dict.fromkeys(islice(_various(some, of_tile), most)))
    yield from found


def _various(configs: Iterable[tuple[Any, float]], most: int) -> Iterator[Any]:
    """The shortest estimates first, no more than so many of a tile, way up and number of warps."""
    found: Counter[tuple[int, int, bool, int]] = Counter()
    for config, _ in sorted(configs, key=lambda pair: pair[1]):
        found[kind := (config.block_m, config.block_n, getattr(config, "swapped", False), config.num_warps)] += 1
        if found[kind] <= most:
            yield config


def _operands(dtype: str, sizes: tuple[int, int, int, int, str]) -> tuple[torch.Tensor, torch.Tensor]:
    batch, m, n, k, layout = sizes
    wide = torch.float32 if dtype == "fp8" else DTYPES[dtype]
    a, b = (torch.randn((batch, *shape), dtype=wide, device="cuda").to(DTYPES[dtype])
            for shape in ((m, k) if layout[0] == "n" else (k, m), (k, n) if layout[1] == "n" else (n, k)))  # fmt: skip
    a, b = a if layout[0] == "n" else a.mT, b if layout[1] == "n" else b.mT
    return (a, b) if batch > 1 else (a[0], b[0])


def measure(dtype: str, sizes: tuple[int, int, int, int, str], gpu: Gpu, *, rounds: int) -> list[Row]:
    """Every config's row. Raises LaneloomError for a wrong product."""
    problem = problem_of(dtype, sizes)
    sets = min(count_sets(problem.bytes), 24)
    operands = [_operands(dtype, sizes) for _ in range(sets)]
    by_torch = torch_call(dtype)[1]
    outs = [a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=DTYPES[problem.dtype_out]) for a, b in operands]
    by_torch(*operands[0], outs[0])
    truth = operands[0][0].double() @ operands[0][1].double()
    errors = {"torch": ((outs[0].double() - truth).norm() / truth.norm()).item()}
    # A chain of K roundings, which torch's own sums may be better than by far: enough to tell what is wrong.
    eps = torch.finfo(DTYPES[problem.dtype_out]).eps
    budget = 2 * errors["torch"] + eps / 2 if problem.dtype_out in HALVES else 4 * eps * max(8, problem.k**0.5)
    calls: dict[str, Callable[[int], object]] = {"torch": lambda i: by_torch(*operands[i], outs[i])}
    for config in iterate_configs(problem, gpu):
        call = schedule_of(config).prepare(problem, config, gpu)
        outs[0].fill_(float("nan"))
        call(*operands[0], outs[0])
        errors[config.text] = error = ((outs[0].double() - truth).norm() / truth.norm()).item()
        if not error <= budget:
            raise LaneloomError(f"{problem.key} by {config.text}: relative error {error:.2e}")
        calls[config.text] = lambda i, call=call: call(*operands[i], outs[i])
    timings = interleave(calls, sets, rounds=rounds, warmup_s=0.02, graph_us=300.0)
    torch_us = round(timings.pop("torch").median_us, 2)
    slowest = SLOWEST_OF_FEW if problem in OF_FEW else SLOWEST
    near, taken = slowest * min(timing.median_us for timing in timings.values()), plan(problem, gpu).text
    torch_error = float(f"{errors['torch']:.2e}")
    return [
        Row(dtype, *sizes, text, round(timing.median_us, 2), torch_us, float(f"{errors[text]:.2e}"), torch_error)
        for text, timing in timings.items() if timing.median_us <= near or text == taken
    ]  # fmt: skip


def read(path: Path) -> list[Row]:
    """The rows of a file that `write` made."""
    return read_rows(path, Row)


def _of_any_store(config: MatmulConfig) -> MatmulConfig:
    """The config whatever writes C, and when: files were measured before the plan let lanes do it where a CTA has one
    tile, which takes up to 8% less."""
    return config.with_knobs(tma_store=False, hold_back=0) if isinstance(config, ClusterConfig) else config


def planned(path: Path, dtypes: Sequence[str] = tuple(DTYPES)) -> list[tuple[Row, list[Row]]]:
    """Of a file in a folder with the GPU's name: the row of what the plan takes there with all rows of its product, for
    products of which it was measured, C by lanes or by TMA."""
    gpu, rows = get_gpu(path.parent.name), [row for row in read(path) if row.dtype in dtypes]
    of: dict[MatmulProblem, list[Row]] = {}
    for row in rows:
        of.setdefault(row.problem, []).append(row)
    found = []
    for problem, every in of.items():
        config = plan(problem, gpu)
        measured = [(MatmulConfig.parse(row.config), row) for row in every]
        exact = [row for ran, row in measured if ran == config]
        alike = [row for ran, row in measured if _of_any_store(ran) == _of_any_store(config)]
        found += [(row, every) for row in exact or alike]
    return found


def _compile(pair: tuple[MatmulProblem, MatmulConfig]) -> None:
    problem, config = pair
    schedule_of(config).code_object(problem, config, get_gpu("sm_90a"))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure many configs of hopper_async on Hopper.")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--render", type=Path, nargs="+", metavar=("CSV", "PAGE"), help="fill pages from a file")
    parser.add_argument("--readme", type=Path, help="page that gets the summary alone")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--batches", action="store_true", help="batches in bf16, and nothing else")
    parser.add_argument("--decode", action="store_true", help="few rows or columns in bf16, and nothing else")
    parser.add_argument("--short", action="store_true", help="up to 128 rows in bf16 and fp8, and nothing else")
    parser.add_argument("--small", action="store_true", help="few tiles or a short K in bf16 and fp8, and nothing else")
    parser.add_argument("--unaligned", action="store_true", help="rows that do not begin at 16 bytes, and nothing else")
    arguments = parser.parse_args()
    if arguments.render:
        taken = planned(arguments.render[0], arguments.dtypes)
        name = "wide" if taken[0][0].dtype in WIDE else "batches" if taken[0][0].batch > 1 else "half"
        name = "unaligned" if all(row.problem in NOT_ALIGNED for row, _ in taken) else name
        for few, of in (("decode", DECODE), ("short", SHORT), ("small", SMALL)):
            name = few if all(row.problem in of for row, _ in taken) else name
        summary = {f"{name} summary": summarise(taken)}
        tables = {"wide": render, "half": render_half, "batches": render_half, "unaligned": render_half}
        table = tables.get(name, render_decode)(taken)
        fill_pages(arguments.render[1:], {name: table} | summary)
        if arguments.readme:
            fill_page(arguments.readme, summary)
        return
    if arguments.out is None:
        parser.error("--out or --render")
    gpu, rows = active_gpu(), []
    if arguments.batches:
        every = [("bf16", sizes) for sizes in half_batches()]
    elif arguments.decode:
        every = [("bf16", sizes) for sizes in decode_products()]
    elif arguments.short or arguments.small:
        every = list(short_products() if arguments.short else small_products())
    elif arguments.unaligned:
        every = [("bf16", sizes) for sizes in unaligned_products()]
    else:
        of = {"bf16": half_products()}
        every = [(dtype, sizes) for dtype in arguments.dtypes for sizes in of.get(dtype, (*PRODUCTS, *WIDE_RANDOM))]
    pairs = [(p, c) for p in (problem_of(*x) for x in every) for c in iterate_configs(p, gpu)]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for _ in pool.imap_unordered(_compile, pairs, chunksize=8):
            pass
    for dtype, sizes in every:
        found = measure(dtype, sizes, gpu, rounds=arguments.rounds)
        rows += found
        best = min(found, key=lambda row: row.us)
        print(f"{dtype} {sizes}: {best.us:.2f} us, {best.torch_us / best.us:.3f} x torch, {best.config}", flush=True)
        write(arguments.out, rows)


if __name__ == "__main__":
    main()

"""Measure many configs of `hopper_async` on one Hopper GPU: what `plan_wide.py` and `plan_half.py` were fitted to.

`python -m laneloom.bench.matmul_wide --out results/h100/tiles_wide.csv --jobs 16` writes one row a config: of every
product listed here the likely configs of `hopper_async` and of the other schedules, each checked against FP64,
all interleaved with torch.matmul in full precision. `tests/cpu/test_wide_plan.py` holds the plan against the file.
`--batches` measures batches of models instead, few rows of each above all, with configs of `hopper_rows` and
`hopper_cluster` as well, for a file of its own.
`--render results/h100/tiles_wide.csv docs/hopper-gemm.md docs/hopper-gemm-products.md --readme README.md` writes what
the plan takes into the pages.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

from ..errors import LaneloomError
from ..gpu import Gpu, get_gpu
from ..ops.matmul.config import MatmulConfig, plan
from ..ops.matmul.config_async import AsyncConfig
from ..ops.matmul.config_rows import GROUP
from ..ops.matmul.config_shares import SharedConfig
from ..ops.matmul.execute import schedule_of
from ..ops.matmul.plan_cluster import cluster_configs
from ..ops.matmul.plan_half import HALF, MOST_MULTIPLICATIONS, half_configs, half_us
from ..ops.matmul.plan_hopper import candidates
from ..ops.matmul.plan_rows import batched_rows
from ..ops.matmul.plan_wide import async_configs, async_us, by_tma
from ..ops.matmul.problem import MatmulProblem
from ..ops.target import active_gpu
from .matmul_cases import random_side
from .matmul_tiles import read_rows, write
from .report import fill_page, fill_pages
from .timing import count_sets, interleave

WIDE = ("fp32", "fp64")
DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}
#: batch, M, N, K, layout: a few rows, few tiles and a long K, short K, small products, batches, odd sizes, squares
PRODUCTS = (
    (1, 1, 4096, 4096, "nt"), (1, 1, 4096, 4096, "nn"), (1, 4096, 1, 4096, "tn"), (1, 16, 4096, 4096, "nt"),
    (1, 16, 4096, 4096, "nn"), (1, 8, 11008, 4096, "nt"), (1, 64, 4096, 4096, "nt"), (1, 3, 5000, 700, "nn"),
    (1, 64, 64, 100000, "tn"), (1, 128, 128, 20000, "tn"), (1, 10, 10, 1000000, "nt"), (1, 128, 128, 4096, "nt"),
    (1, 300, 300, 3000, "nt"), (1, 100, 5000, 3000, "tt"), (1, 4095, 129, 1000, "nn"), (1, 30000, 64, 64, "nn"),
    (1, 20000, 100, 100, "nn"), (1, 2000, 2000, 100, "nn"), (1, 4096, 4096, 64, "nn"), (1, 5000, 24, 24, "nn"),
    (1, 2048, 2048, 256, "nn"), (1, 777, 1777, 333, "nn"), (1, 32, 32, 32, "nn"), (1, 128, 128, 128, "tt"),
    (1, 256, 256, 256, "nn"), (1, 512, 512, 512, "nn"), (1, 512, 512, 512, "nt"), (1, 600, 600, 600, "tn"),
    (1, 777, 777, 777, "nn"), (1, 1000, 1000, 1000, "nt"), (1, 1024, 1024, 1024, "nn"), (1, 1536, 1536, 1536, "nn"),
    (1, 2048, 4096, 1024, "nt"), (4096, 16, 16, 16, "nn"), (512, 32, 32, 32, "nn"), (256, 64, 64, 64, "nt"),
    (128, 77, 77, 64, "nt"), (100, 100, 100, 100, "nn"), (32, 128, 128, 128, "nn"), (64, 200, 200, 200, "nn"),
    (16, 256, 256, 256, "nt"), (8, 512, 512, 64, "nn"), (12, 512, 64, 512, "nn"), (1, 40, 3000, 3000, "nn"),
    (1, 400, 400, 10000, "tn"), (1, 1000, 200, 2000, "tt"), (24, 1, 128, 4096, "nn"), (1, 1023, 513, 255, "nt"),
    (1, 192, 192, 192, "nn"), (1, 384, 384, 384, "nt"), (1, 450, 450, 450, "nn"), (1, 640, 640, 5000, "tn"),
    (1, 900, 700, 500, "nn"), (1, 1111, 1111, 1111, "nn"), (1, 1200, 1200, 4000, "nt"), (1, 1333, 999, 2001, "tt"),
    (1, 1500, 1500, 1500, "nn"), (1, 2049, 2047, 2050, "nt"), (1, 2500, 2500, 50, "nn"), (1, 3000, 3000, 3000, "nn"),
    (1, 5000, 300, 300, "nn"), (1, 256, 4096, 1024, "nt"), (1, 512, 2048, 2048, "nn"), (1, 1600, 1200, 77, "tn"),
    (4, 1024, 1024, 256, "nn"), (8, 300, 400, 500, "nn"), (32, 500, 500, 100, "nt"), (200, 60, 90, 300, "tt"),
    (1, 256, 256, 16384, "nt"), (1, 100, 1000, 10000, "nn"), (1, 200, 200, 8192, "nt"), (1, 32, 32, 200000, "tn"),
    (1, 16, 16, 1000000, "nt"), (1, 512, 512, 8192, "nn"), (4, 64, 64, 50000, "tn"), (1, 48, 1000, 20000, "nn"),
    (1, 333, 555, 7777, "nt"), (1, 2048, 2048, 2048, "nn"), (1, 2048, 2048, 2048, "nt"), (1, 4096, 4096, 4096, "nn"),
    (1, 4096, 4096, 4096, "nt"),
)  # fmt: skip
#: the same of 16 bits: batches of few rows, small products and odd ones, one short side or K
HALF_PRODUCTS = (
    (48, 1, 128, 4096, "nn"), (48, 128, 1, 4096, "nn"), (48, 1, 128, 4096, "nt"), (32, 1, 4096, 128, "nt"),
    (256, 1, 64, 1024, "nn"), (64, 4, 128, 2048, "nn"), (64, 8, 2048, 128, "nt"), (2048, 8, 128, 128, "nn"),
    (512, 16, 64, 64, "nn"), (4096, 16, 16, 16, "nn"), (1024, 32, 32, 32, "nn"), (512, 48, 48, 48, "nn"),
    (256, 64, 64, 32, "nt"), (128, 100, 100, 100, "nn"), (64, 200, 200, 200, "nn"), (32, 17, 33, 65, "nn"),
    (300, 33, 33, 33, "tn"), (192, 197, 197, 64, "nt"), (192, 197, 64, 197, "nn"), (64, 77, 77, 64, "nt"),
    (64, 77, 64, 77, "nn"), (100, 50, 512, 50, "nn"), (16, 127, 129, 131, "nn"), (8, 255, 255, 255, "nt"),
    (12, 512, 64, 512, "nn"), (32, 128, 128, 128, "tn"), (256, 24, 256, 256, "nn"),
    (1, 65536, 16, 16, "nn"), (1, 16, 65536, 16, "nn"), (1, 100000, 8, 32, "nn"), (1, 200000, 3, 3, "nn"),
    (1, 50000, 10, 10, "nt"), (1, 10000, 24, 24, "nn"), (1, 300, 300, 7, "nn"), (1, 1000, 1000, 9, "nn"),
    (1, 7, 7, 100000, "nt"), (1, 16, 16, 65536, "nt"), (1, 33, 33, 20001, "tn"), (1, 1, 1, 100000, "nn"),
    (1, 5, 1000, 5, "nn"), (1, 127, 129, 131, "nn"), (1, 63, 65, 1000, "nn"), (1, 99, 101, 103, "tt"),
    (1, 1, 999, 999, "nn"), (1, 999, 1, 999, "nn"), (1, 3, 3001, 501, "nn"), (1, 2000, 30, 2000, "tn"),
    (1, 513, 7, 1025, "nn"), (1, 64, 64, 64, "nn"), (1, 128, 128, 128, "nt"), (1, 256, 256, 64, "nn"),
    (1, 300, 301, 302, "nn"), (1, 20000, 100, 100, "nn"), (1, 4096, 4096, 16, "nn"), (1, 50, 50, 50, "tt"),
    (1, 20, 3000, 20, "nn"), (1, 2048, 2048, 16, "nt"), (1, 777, 777, 33, "nn"), (1, 1500, 100, 40, "nn"),
    (1, 96, 96, 4000, "nn"), (1, 40, 40, 3000, "tt"), (1, 257, 255, 256, "nn"), (1, 31, 1000, 31, "tn"),
    (6, 300, 500, 20, "nn"), (20, 90, 70, 110, "nt"), (1000, 7, 9, 11, "nn"), (2000, 24, 24, 8, "nn"),
    (4, 100, 1000, 1000, "nn"), (64, 1, 64, 64, "nn"), (64, 1, 2048, 64, "nt"), (16, 5, 333, 777, "nn"),
    (8, 33, 4097, 65, "nn"), (1, 4096, 10, 1000, "nn"), (1, 10, 4096, 1000, "nt"), (128, 64, 64, 256, "nn"),
    (48, 16, 1024, 64, "nt"), (48, 16, 64, 1024, "nn"), (1, 36, 1640, 699, "nn"), (1, 25, 112, 7345, "nn"),
    (1, 64, 192, 9640, "nn"), (1, 64, 168, 6005, "nn"), (1, 49, 640, 209, "nn"), (1, 382, 256, 105, "nn"),
    (1, 64, 321, 2528, "nn"), (1, 5, 241, 6400, "nn"), (1, 2, 2794, 384, "nn"), (1, 8, 133, 1360, "nt"),
    (1, 64, 256, 181, "nt"), (1, 8, 78, 188, "nn"),
)  # fmt: skip
#: few rows or columns of 16 bits beside an operand that TMA does not read where it lies
NARROW_FEW = (
    (28, 1868, 1612, "tn"), (32, 1396, 2316, "tn"), (20, 528, 5452, "nt"), (518, 24, 4538, "nn"),
    (16, 4095, 4097, "nn"), (8, 12063, 1472, "nn"), (4, 5001, 3001, "nt"), (24, 5122, 5122, "nt"),
    (40, 3001, 2000, "nn"), (16, 2502, 3004, "nt"), (8, 2050, 4098, "nn"), (30, 5004, 1004, "tn"),
    (12, 2001, 4001, "nt"), (48, 4004, 4004, "nn"), (6, 7000, 3002, "tt"), (20, 3500, 1501, "nn"),
    (3000, 20, 2501, "nn"), (2, 3001, 3001, "nn"), (1, 3001, 3001, "nn"), (1, 2501, 4001, "nt"),
)  # fmt: skip
#: configs of hopper_async by the model that a random product is measured with, and of each way to cut K
LIKELY, LIKELY_OF_EACH = 8, 2
SLOW = 0.97  #: of torch.matmul
MOST_ELEMENTS = 1 << 26  #: of a random product
NARROW_LEAST, NARROW_MOST = 1 << 21, 3e8  #: multiplications of one of narrow rows
MOST_ASYNC, MOST_FED = 8, 24  #: configs that FP32 and FP64 are measured with, the likely ones by the model
OTHERS = 2  #: configs of other schedules that 16 bits are measured with
CLUSTERS_OF_BATCH = 12  #: likely configs of `hopper_cluster` that a batch of models is measured with
SLOWEST = 2.5  #: times the fastest: slower configs are left out of the file


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


def random_products(count: int = 72, seed: int = 0) -> Iterator[tuple[int, int, int, int, str]]:
    """Products of 16 bits that nobody chose: short sides, a long K, many odd rows, a third in batches."""
    generator = random.Random(seed)
    while count:
        sides = [random_side(generator, (1, 1, 8, 64), least, most) for least, most in ((0, 10), (4, 13), (4, 14))]
        batch = round(2 ** generator.uniform(1, 8)) if generator.random() < 1 / 3 else 1
        m, n, k = sides if generator.random() < 0.5 else (sides[1], sides[0], sides[2])
        if batch * m * n * k <= MOST_MULTIPLICATIONS and batch * (m * k + k * n + m * n) <= MOST_ELEMENTS:
            count -= 1
            product = batch, m, n, k, generator.choice(("nn", "nt", "tn", "tt"))
            if product not in HALF_PRODUCTS:
                yield product


def narrow_products(count: int = 44, seed: int = 5) -> Iterator[tuple[int, int, int, int, str]]:
    """Single products of 16 bits of which an operand's rows come 2, 4 or 8 bytes at a time: few rows, and random."""
    yield from ((1, *sizes) for sizes in NARROW_FEW)
    generator = random.Random(seed)
    while count:
        step = generator.choice((1, 2, 2, 4, 4, 4))
        m, n, k = (max(step, round(2 ** generator.uniform(*of) / step) * step) for of in ((3, 10), (4, 11), (6, 12.5)))
        layout = generator.choice(("nn", "nt", "tn", "tt"))
        n, k = (-(-x // 8) * 8 if generator.random() < 0.45 else x for x in (n, k))
        product = 1, m, n, k, layout
        problem = problem_of("bf16", product)
        if min(problem.vector_a, problem.vector_b) < 8 and NARROW_LEAST <= m * n * k <= NARROW_MOST:
            count -= 1
            yield product


def model_batches() -> Iterator[tuple[int, int, int, int, str]]:
    """Batches of models: latent attention's products with the heads' matrices, experts of as many rows each, scores."""
    for heads, rows, layout in product((16, 128), (1, 8, 16, 24, 32, 48, 64, 128), ("nn", "nt")):
        yield heads, rows, 512, 128, layout
        yield heads, rows, 128, 512, layout
    for rows, layout in product((4, 16, 32, 40, 64), ("nn", "nt")):
        yield from ((64, rows, 1408, 2048, layout), (64, rows, 2048, 1408, layout), (8, rows, 14336, 4096, layout))
        yield from ((64, rows, 128, 1024, layout), (8, rows, 1024, 1024, layout), (40, rows, 4096, 128, layout))
        yield from ((32, rows, 768, 2048, layout), (128, rows, 128, 2048, layout))
    yield from ((4, 1500, 1500, 64, "nt"), (48, 1024, 1024, 64, "nn"), (32, 2048, 2048, 128, "nt"))


def problem_of(dtype: str, sizes: tuple[int, int, int, int, str]) -> MatmulProblem:
    """One of PRODUCTS."""
    batch, m, n, k, layout = sizes
    return MatmulProblem.contiguous(m, n, k, dtype=dtype, layout=layout, batch=batch)


RANDOM = frozenset(problem_of("bf16", sizes) for sizes in (*random_products(), *narrow_products()))
BATCHES = frozenset(problem_of("bf16", sizes) for sizes in model_batches())


def _likely(ranked: Sequence[AsyncConfig]) -> Iterator[AsyncConfig]:
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
    ranked = sorted(half_configs(problem, gpu), key=lambda config: half_us(problem, config, gpu))
    yield from _likely(ranked)
    yield from (config for config, _ in islice(cluster_configs(problem, gpu), CLUSTERS_OF_BATCH))


def iterate_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[MatmulConfig]:
    """What is measured of one product."""
    if problem in BATCHES:
        found = dict.fromkeys(_of_batch(problem, gpu))
        yield from (config for config in found if config.why_invalid(problem, gpu) is None)
        return
    if problem.dtype_a in HALF:
        configs = list(half_configs(problem, gpu))
        if problem in RANDOM:
            configs = list(_likely(sorted(configs, key=lambda config: half_us(problem, config, gpu))))
        yield from configs
        skipped = ("hopper_async", "hopper") if problem.batches > 1 else ("hopper_async",)
        others = (config for config, _ in candidates(problem, gpu) if config.schedule not in skipped)
        yield from islice((config for config in others if config.why_invalid(problem, gpu) is None), OTHERS)
        return
    yield from sorted(async_configs(problem, gpu), key=lambda config: async_us(problem, config, gpu))[:MOST_ASYNC]
    fed = sorted(by_tma(problem, gpu), key=lambda pair: pair[1])[:MOST_FED]
    yield from (config for config, time_us in fed if time_us <= SLOWEST * fed[0][1])


def _operands(dtype: str, sizes: tuple[int, int, int, int, str]) -> tuple[torch.Tensor, torch.Tensor]:
    batch, m, n, k, layout = sizes
    a, b = (torch.randn((batch, *shape), dtype=DTYPES[dtype], device="cuda")
            for shape in ((m, k) if layout[0] == "n" else (k, m), (k, n) if layout[1] == "n" else (n, k)))  # fmt: skip
    a, b = a if layout[0] == "n" else a.mT, b if layout[1] == "n" else b.mT
    return (a, b) if batch > 1 else (a[0], b[0])


def measure(dtype: str, sizes: tuple[int, int, int, int, str], gpu: Gpu, *, rounds: int) -> list[Row]:
    """Every config's row. Raises LaneloomError for a wrong product."""
    problem = problem_of(dtype, sizes)
    sets = min(count_sets(problem.bytes), 24)
    operands = [_operands(dtype, sizes) for _ in range(sets)]
    outs = [torch.matmul(a, b) for a, b in operands]
    truth = operands[0][0].double() @ operands[0][1].double()
    errors = {"torch": ((outs[0].double() - truth).norm() / truth.norm()).item()}
    # A chain of K roundings, which torch's own sums may be better than by far: enough to tell what is wrong.
    eps = torch.finfo(DTYPES[dtype]).eps
    budget = 2 * errors["torch"] + eps / 2 if dtype in HALF else 4 * eps * max(8, problem.k**0.5)
    calls: dict[str, Callable[[int], object]] = {"torch": lambda i: torch.matmul(*operands[i], out=outs[i])}
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
    near = SLOWEST * min(timing.median_us for timing in timings.values())
    torch_error = float(f"{errors['torch']:.2e}")
    return [
        Row(dtype, *sizes, text, round(timing.median_us, 2), torch_us, float(f"{errors[text]:.2e}"), torch_error)
        for text, timing in timings.items() if timing.median_us <= near
    ]  # fmt: skip


def read(path: Path) -> list[Row]:
    """The rows of a file that `write` made."""
    return read_rows(path, Row)


def planned(path: Path, dtypes: Sequence[str] = tuple(DTYPES)) -> list[tuple[Row, list[Row]]]:
    """Of a file in a folder with the GPU's name: the row of what the plan takes there with all rows of its product, for
    products of which it was measured."""
    gpu, rows = get_gpu(path.parent.name), [row for row in read(path) if row.dtype in dtypes]
    of: dict[MatmulProblem, list[Row]] = {}
    for row in rows:
        of.setdefault(row.problem, []).append(row)
    found = []
    for problem, every in of.items():
        config = plan(problem, gpu)
        found += [(row, every) for row in every if MatmulConfig.parse(row.config) == config]
    return found


def summarise(taken: Sequence[tuple[Row, list[Row]]]) -> str:
    """Markdown: the ratios of each type in a sentence."""
    words = []
    for dtype in DTYPES:
        ratios = sorted(row.torch_us / row.us for row, _ in taken if row.dtype == dtype)
        below = sum(ratio < SLOW for ratio in ratios)
        words.append(
            f"{dtype.upper()}: {len(ratios)} products, {geometric_mean(ratios):.3f} x torch.matmul on average, from "
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}, {below} under {SLOW}")  # fmt: skip
    return "; ".join(words) + "."


def render(taken: Sequence[tuple[Row, list[Row]]]) -> str:
    """Markdown: what the plan takes of each product, both types in a line."""
    of_type = " us | x torch | what ran |"
    lines = [f"| batch | M x N x K | layout | FP32,{of_type} FP64,{of_type}", "|---" * 9 + "|"]
    by_type = {dtype: {row.problem_key: row for row, _ in taken if row.dtype == dtype} for dtype in WIDE}
    for batch, m, n, k, layout in PRODUCTS:
        cells = [str(batch), f"{m} x {n} x {k}", layout.upper()]
        for dtype in WIDE:
            row = by_type[dtype].get((batch, m, n, k, layout))
            cells += ["", "", ""] if row is None else [f"{row.us:.2f}", f"{row.torch_us / row.us:.2f}", _words(row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def render_half(taken: Sequence[tuple[Row, list[Row]]]) -> str:
    """Markdown: what the plan takes of products of 16 bits, the slowest beside torch first, then of random ones."""
    lines = ["| batch | M x N x K | layout | us | x torch | what ran |", "|---" * 6 + "|"]
    rows = sorted((row for row, _ in taken if row.dtype in HALF), key=lambda row: row.torch_us / row.us)
    for row in (row for row in rows if row.problem not in RANDOM):
        cells = [str(row.batch), f"{row.m} x {row.n} x {row.k}", row.layout.upper(), f"{row.us:.2f}"]
        cells += [f"{row.torch_us / row.us:.2f}", _words(row)]
        lines.append("| " + " | ".join(cells) + " |")
    ratios = [(row.torch_us / row.us, row.problem_key) for row in rows if row.problem in RANDOM]
    below = ", ".join(f"{' x '.join(map(str, key[:4]))} {ratio:.2f}" for ratio, key in ratios if ratio < SLOW) or "none"
    mean = geometric_mean([ratio for ratio, _ in ratios])
    lines += ["", f"Of {len(ratios)} random products: {mean:.3f} x torch.matmul on average; under {SLOW}: {below}."]
    return "\n".join(lines)


def _words(row: Row) -> str:
    config: Any = MatmulConfig.parse(row.config)
    words = [f"{config.schedule.removeprefix('hopper_')}, {config.block_m}x{config.block_n}"]
    if isinstance(config, AsyncConfig):
        words += [f"K in {config.cluster_k} CTAs"] * (config.cluster_k > 1)
    if isinstance(config, AsyncConfig | SharedConfig):
        words += [f"K in {config.split_k}"] * (config.split_k > 1)
    if isinstance(config, AsyncConfig):
        words += ["transposed"] * config.swapped
    return ", ".join(words)


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
    parser.add_argument("--batches", action="store_true", help="batches of models in bf16, and nothing else")
    arguments = parser.parse_args()
    if arguments.render:
        taken = planned(arguments.render[0])
        tables = {"wide": render(taken), "half": render_half(taken), "wide summary": summarise(taken)}
        fill_pages(arguments.render[1:], tables)
        if arguments.readme:
            fill_page(arguments.readme, {"wide summary": summarise(taken)})
        return
    if arguments.out is None:
        parser.error("--out or --render")
    gpu, rows = active_gpu(), []
    if arguments.batches:
        every = [("bf16", sizes) for sizes in model_batches()]
    else:
        half = (*HALF_PRODUCTS, *random_products(), *narrow_products())
        every = [(dtype, sizes) for dtype in arguments.dtypes for sizes in (half if dtype in HALF else PRODUCTS)]
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

"""Measure many configs of Hopper's attention forward: what the plan in `ops/attention/plan_forward.py` was fitted to.

`python -m laneloom.bench.attention_tiles --out results/h200/attention_tiles.csv --jobs 16` writes one row a config of
every case listed here, and with `--models 11 12 --out results/h100/attention_tiles.csv` one of each random attention of
models of these seeds (bench/attention_models.py), and with `--few --out results/h100/attention_few.csv` of FEW, each
checked against torch, all interleaved with cuDNN.
`tests/cpu/test_attention_forward_plan.py` holds the plan against the files.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from ..errors import LaneloomError
from ..gpu import Gpu, get_gpu
from ..ops.attention import execute
from ..ops.attention.config_hopper import HopperForwardConfig
from ..ops.attention.kernels import hopper_forward
from ..ops.attention.plan_forward import forward_configs
from ..ops.attention.problem import AttentionProblem, band
from ..ops.target import active_gpu
from .attention import Case, attend_by_torch
from .attention_models import random_cases
from .matmul_tiles import read_rows, write
from .timing import count_sets, interleave

#: batch, heads, length, D, causal
CASES = (
    (16, 12, 197, 64, 0), (64, 12, 77, 64, 0), (32, 12, 128, 64, 0), (32, 16, 256, 64, 0), (16, 12, 257, 64, 0),
    (8, 16, 384, 64, 0), (8, 16, 577, 64, 0), (16, 16, 512, 64, 0), (4, 16, 1024, 64, 0), (2, 10, 4096, 64, 0),
    (1, 16, 2048, 64, 0), (256, 8, 50, 64, 0), (8, 12, 730, 64, 0), (2, 8, 512, 64, 0), (4, 32, 4096, 64, 0),
    (64, 8, 77, 64, 1), (32, 8, 128, 64, 1), (64, 8, 256, 64, 1), (16, 16, 512, 64, 1), (8, 12, 1000, 64, 1),
    (2, 10, 4096, 64, 1), (4, 16, 2048, 64, 1),
    (16, 12, 197, 128, 0), (32, 8, 128, 128, 0), (64, 8, 256, 128, 0), (16, 16, 512, 128, 0), (8, 16, 777, 128, 0),
    (4, 8, 1024, 128, 0), (2, 10, 4096, 128, 0), (16, 12, 300, 96, 0), (1, 8, 1500, 80, 0), (8, 8, 640, 128, 0),
    (64, 8, 100, 128, 1), (64, 8, 256, 128, 1), (16, 16, 512, 128, 1), (8, 12, 1000, 128, 1), (2, 10, 4096, 128, 1),
    (16, 12, 300, 32, 0), (4, 16, 1024, 32, 1), (1, 12, 197, 64, 0), (2, 12, 300, 64, 0), (1, 32, 8192, 64, 1),
    (4, 4, 1500, 64, 0), (1, 32, 2048, 128, 1), (1, 32, 512, 128, 1), (8, 32, 128, 128, 1), (1, 16, 16384, 128, 0),
    (1, 16, 16384, 128, 1), (3, 5, 777, 80, 1), (1, 8, 300, 128, 0), (32, 16, 512, 128, 0), (4, 16, 4096, 128, 0),
)  # fmt: skip
#: of few tiles, where parts of the keys may have one each: batch, heads of queries and of keys, both lengths, D, causal
FEW = (
    (2, 16, 8, 49, 2048, 128, 0), (4, 14, 2, 50, 2048, 64, 0), (1, 32, 8, 64, 16384, 128, 0),
    (1, 8, 8, 64, 16384, 64, 0), (1, 32, 8, 1, 8192, 128, 0), (1, 16, 16, 256, 8192, 128, 0),
    (1, 12, 12, 197, 1500, 64, 0), (1, 8, 8, 32, 257, 64, 0), (4, 16, 16, 64, 2304, 96, 0),
    (1, 16, 8, 100, 32768, 128, 0), (1, 8, 4, 64, 4096, 256, 0), (2, 20, 20, 1, 1500, 64, 0),
    (1, 24, 24, 512, 4096, 128, 0), (8, 12, 12, 32, 577, 64, 0), (1, 16, 16, 384, 4096, 64, 0),
    (1, 6, 6, 1000, 1000, 64, 0), (1, 8, 8, 512, 512, 128, 0), (1, 10, 10, 700, 5000, 80, 0),
    (2, 8, 8, 16, 300, 40, 0),
)  # fmt: skip
SLOWEST = 2.0  #: times the fastest: slower configs are left out of the file


@dataclass(frozen=True)
class Row:
    """A config of one case, in bf16, its time, and cuDNN's."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    causal: int
    config: str
    us: float
    cudnn_us: float

    @property
    def case(self) -> Case:
        """The case."""
        sizes = self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.d
        return Case(*sizes, bool(self.causal), "bf16")


def cases_of(seeds: list[int], *, few: bool = False) -> list[Case]:
    """CASES, or FEW, or those of models of these seeds, in bf16."""
    if few:
        return [Case(b, h, kv_h, n, m, d, bool(causal), "bf16") for b, h, kv_h, n, m, d, causal in FEW]
    if not seeds:
        return [Case(batch, heads, heads, n, n, d, bool(causal), "bf16") for batch, heads, n, d, causal in CASES]
    return list(dict.fromkeys(replace(case, dtype="bf16") for seed in seeds for case in random_cases(seed)))


def problem_of(case: Case) -> AttentionProblem:
    """The problem of a case."""
    first, last = band(case.queries, case.keys, "top_left" if case.causal else "none")
    return AttentionProblem(
        case.batch, case.heads, case.kv_heads, case.queries, case.keys, case.d, case.d, dtype=case.dtype,
        scale=case.d**-0.5, first=first, last=last,
    )  # fmt: skip


def knobs_of(text: str) -> dict[str, Any]:
    """The knobs of a config's text."""
    pairs = (pair.split("=") for pair in text.partition(":")[2].split(","))
    return {n: value == "True" if value in ("True", "False") else int(value) for n, value in pairs}


def config_of(text: str) -> HopperForwardConfig:
    """The config of a row."""
    return HopperForwardConfig(**knobs_of(text))


def iterate_configs(problem: AttentionProblem, gpu: Gpu) -> Iterator[HopperForwardConfig]:
    """What is measured of one problem."""
    yield from (config for config in forward_configs(problem) if config.why_invalid(problem, gpu) is None)


def measure(case: Case, gpu: Gpu, *, rounds: int) -> list[Row]:
    """Every config's row. Raises LaneloomError for a wrong result."""
    problem = problem_of(case)
    sets = min(count_sets(problem.bytes), 16)
    shapes = [(case.batch, h, n, case.d) for h, n in ((case.heads, case.queries), *[(case.kv_heads, case.keys)] * 2)]
    operands = [[torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes] for _ in range(sets)]
    named = [dict(zip("qkv", x, strict=True)) | {"out": torch.empty_like(x[0]), "lse": x[0].new_empty(
        x[0].shape[:3], dtype=torch.float32)} for x in operands]  # fmt: skip
    truth = attend_by_torch(case, SDPBackend.FLASH_ATTENTION, operands, 0).float()
    calls: dict[str, Callable[[int], object]] = {
        "cudnn": partial(attend_by_torch, case, SDPBackend.CUDNN_ATTENTION, operands)
    }
    for config in iterate_configs(problem, gpu):
        run = execute.prepare_forward(problem, gpu, named[0], config)
        calls[config.text] = checked(run, named, truth, f"{problem.key} by {config.text}")
    timings = interleave(calls, sets, rounds=rounds, warmup_s=0.02, graph_us=300.0)
    cudnn_us = round(timings.pop("cudnn").median_us, 2)
    near = SLOWEST * min(timing.median_us for timing in timings.values())
    sizes = case.batch, case.heads, case.kv_heads, case.queries, case.keys, case.d, int(case.causal)
    return [Row(*sizes, text, round(timing.median_us, 2), cudnn_us)
            for text, timing in timings.items() if timing.median_us <= near]  # fmt: skip


def checked(
    run: Callable[[Any], object], operands: list[dict[str, Any]], truth: torch.Tensor, what: str
) -> Callable[[int], object]:
    """What runs on the i-th operands, once held on the first ones. Raises LaneloomError for a wrong result."""
    operands[0]["out"].fill_(float("nan"))
    run(operands[0])
    difference = (operands[0]["out"].float() - truth).norm() / truth.norm()
    if not difference <= 2.0**-7:
        raise LaneloomError(f"{what}: {difference:.2e} off torch's")
    return lambda i: run(operands[i])


def compile_ahead(compile_one: Callable[[Any], None], pairs: set[Any], jobs: int) -> None:
    """Compile all pairs of problem and config in so many processes."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for _ in pool.imap_unordered(compile_one, sorted(pairs, key=repr), chunksize=2):
            pass


def read(path: Path) -> list[Row]:
    """The rows of a file that `write` made."""
    return read_rows(path, Row)


def _compile(pair: tuple[AttentionProblem, HopperForwardConfig]) -> None:
    hopper_forward.code_object(*pair, get_gpu("sm_90a"))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure many configs of attention's forward on Hopper.")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--models", type=int, nargs="+", default=[], help="seeds of random attentions of models")
    parser.add_argument("--few", action="store_true", help="few tiles")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    arguments = parser.parse_args()
    gpu, rows = active_gpu(), []
    cases = cases_of(arguments.models, few=arguments.few)
    pairs = {(p.code_key, config) for p in map(problem_of, cases) for config in iterate_configs(p, gpu)}
    compile_ahead(_compile, pairs, arguments.jobs)
    for case in cases:
        found = measure(case, gpu, rounds=arguments.rounds)
        rows += found
        best = min(found, key=lambda row: row.us)
        print(f"{case.text}: {best.us:.2f} us, {best.cudnn_us / best.us:.3f} x cuDNN, {best.config}", flush=True)
        write(arguments.out, rows)


if __name__ == "__main__":
    main()

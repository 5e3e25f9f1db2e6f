"""Measure many configs of Hopper's attention over a cache: what the estimate in `ops/attention/plan_decode.py` was
fitted to.

`python -m laneloom.bench.decode_tiles --out results/h200/decode_tiles.csv --jobs 16` writes one row a config of random
decodes of models (bench/attention_models.py) and of the suite's, each checked against torch, all interleaved with
torch's cuDNN and flash backends. `tests/cpu/test_decode_plan.py` holds the plan against the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import torch
from torch.nn.attention import SDPBackend

from ..gpu import Gpu, get_gpu
from ..ops.attention.config_decode import DecodeProblem, HopperDecodeConfig, HopperRangesConfig
from ..ops.attention.decode import launch_by
from ..ops.attention.hopper_decode_call import Config, compiled
from ..ops.attention.plan_decode import estimate_us, hopper_configs, plan_decode
from ..ops.target import active_gpu
from .attention import DECODING, DTYPES, Case, attend_by_torch, decode_problem
from .attention_models import random_decodes
from .attention_tiles import checked, compile_ahead, knobs_of
from .matmul_tiles import read_rows, write
from .suites import load_suite
from .timing import count_sets, interleave

SEEDS = (5, 6, 7)
NEAR = 1.7  #: estimates above the least so many times are not measured
MOST_OF_KIND = 5  #: configs that differ by their runs alone
SLOWEST = 2.0  #: times the fastest: slower configs are left out of the file
CLUSTERS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
RUNS = (1, 2, 3, 4, 5, 6, 8, 11, 12, 16, 22, 24, 32, 33, 44, 66)


@dataclass(frozen=True)
class Row:
    """A config of one decode, its time, and those of torch's backends; 0 where one refuses."""

    dtype: str
    batch: int
    heads: int
    kv_heads: int
    keys: int
    d: int
    config: str
    us: float
    cudnn_us: float
    flash_us: float

    @property
    def case(self) -> Case:
        """The case."""
        return Case(self.batch, self.heads, self.kv_heads, 1, self.keys, self.d, False, self.dtype)

    @property
    def torch_us(self) -> float:
        """The faster backend's time."""
        return min(us for us in (self.cudnn_us, self.flash_us) if us)


def cases_of(seeds: list[int]) -> list[Case]:
    """The suite's decodes and random ones."""
    (suite,) = load_suite("attention").values()
    named = (Case(b, h, kv_h, n, keys, d, False, "bf16") for b, h, kv_h, n, keys, d, _ in [*DECODING, *suite] if n == 1)
    return list(dict.fromkeys([*named, *(case for seed in seeds for case in random_decodes(seed))]))


def config_of(text: str) -> Config:
    """The config of a row."""
    kinds = {of.schedule: of for of in (HopperDecodeConfig, HopperRangesConfig)}
    return kinds[text.partition(":")[0]](**knobs_of(text))


def iterate_configs(problem: DecodeProblem, gpu: Gpu) -> Iterator[HopperDecodeConfig]:
    """What is measured of one problem: of each way to share a processor and of heads abreast, the least estimates."""
    found: dict[tuple[int, int, bool], list[tuple[float, HopperDecodeConfig]]] = {}
    shares = list(product(CLUSTERS, RUNS))
    for resident, config in hopper_configs(problem, gpu, shares):
        kind = resident, config.abreast, config.cluster > 1
        found.setdefault(kind, []).append((estimate_us(problem, config, resident, gpu), config))
    least = min((us for some in found.values() for us, _ in some), default=0.0)
    for some in found.values():
        for us, config in sorted(some, key=lambda pair: pair[0])[:MOST_OF_KIND]:
            if us <= NEAR * least:
                yield config


def measure(case: Case, gpu: Gpu, *, rounds: int) -> list[Row]:
    """Every config's row. Raises LaneloomError for a wrong result."""
    problem = decode_problem(case)
    sets = count_sets(case.bytes(False), limit=64)
    shapes = [(case.batch, n, h, case.d) for h, n in ((case.heads, 1), *[(case.kv_heads, case.keys)] * 2)]
    caches = [[torch.randn(shape, dtype=DTYPES[case.dtype], device="cuda") for shape in shapes] for _ in range(sets)]
    # torch's keys of a head lie in one piece, which it reads fastest.
    operands = [[x.transpose(1, 2).contiguous() for x in three] for three in caches]
    lengths = torch.full((case.batch,), case.keys, dtype=torch.int32, device="cuda")
    named = [dict(zip("qkv", x, strict=True)) | {
        "out": torch.empty_like(x[0]), "lse": x[0].new_empty((case.batch, case.heads, 1), dtype=torch.float32),
        "lengths": lengths, "table": None} for x in caches]  # fmt: skip
    truth = attend_by_torch(case, SDPBackend.FLASH_ATTENTION, operands, 0).float().transpose(1, 2)
    calls: dict[str, Callable[[int], object]] = {
        "flash": partial(attend_by_torch, case, SDPBackend.FLASH_ATTENTION, operands),
        "cudnn": partial(attend_by_torch, case, SDPBackend.CUDNN_ATTENTION, operands),
    }
    for config in iterate_configs(problem, gpu):
        run = launch_by(problem, config, gpu, named[0])
        calls[config.text] = checked(run, named, truth, f"{problem.key} by {config.text}")
    timings = interleave(
        calls, sets, rounds=rounds, warmup_s=0.02, graph_us=300.0, on_failure=lambda name, _: print(f"  no {name}"))
    theirs = [round(timings.pop(name).median_us, 2) if name in timings else 0.0 for name in ("cudnn", "flash")]
    near = SLOWEST * min(timing.median_us for timing in timings.values())
    sizes = case.dtype, case.batch, case.heads, case.kv_heads, case.keys, case.d
    return [Row(*sizes, text, round(timing.median_us, 2), *theirs)
            for text, timing in timings.items() if timing.median_us <= near]  # fmt: skip


def read(path: Path) -> list[Row]:
    """The rows of a file that `write` made."""
    return read_rows(path, Row)


def _compile(pair: tuple[DecodeProblem, Config]) -> None:
    compiled(*pair, get_gpu("sm_90a"))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure many configs of attention over a cache on Hopper.")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of random decodes of models")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    arguments = parser.parse_args()
    gpu, rows, ratios = active_gpu(), [], []
    cases = cases_of(arguments.seeds)
    # Runs are no part of the code.
    pairs = {(p.code_key, replace(config, splits=1, cluster=1, early=False, alone=False))
             for p in map(decode_problem, cases) for config in iterate_configs(p, gpu)}  # fmt: skip
    compile_ahead(_compile, pairs, arguments.jobs)
    for case in cases:
        found = measure(case, gpu, rounds=arguments.rounds)
        rows += found
        best, text = min(found, key=lambda row: row.us), plan_decode(decode_problem(case), gpu).text
        taken = next((row.us for row in found if row.config == text), 0.0)
        ratios.append(best.torch_us / best.us)
        print(f"{case.text}: {best.us:.2f} us (the plan {taken}), {ratios[-1]:.3f} x torch, {best.config}", flush=True)
        write(arguments.out, rows)
    print(f"{len(cases)} decodes: the fastest config of each {geometric_mean(ratios):.3f} x torch's faster backend")


if __name__ == "__main__":
    main()

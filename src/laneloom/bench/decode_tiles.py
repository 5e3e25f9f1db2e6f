"""Measure many configs of Hopper's attention over a cache, of lengths that are even and that differ: what the estimates
in `ops/attention/model_decode.py` were fitted to.

`python -m laneloom.bench.decode_tiles --out results/h200/decode_tiles.csv --jobs 16` writes one row a config of random
decodes of models (bench/attention_models.py) and of the suite's, each checked against torch, all interleaved with
torch's cuDNN and flash backends, or where lengths differ with its flash kernel for such.
`tests/cpu/test_decode_plan.py` holds the plan against the file; `--render results/h200/decode_tiles.csv
docs/attention.md` makes the page's table.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from ..gpu import Gpu, get_gpu
from ..ops.attention.config_decode import DecodeProblem, HopperDecodeConfig, HopperRangesConfig
from ..ops.attention.decode import launch_by
from ..ops.attention.hopper_decode_call import Config, compiled
from ..ops.attention.model_decode import EVEN, RAGGED, SKEWED, estimate_us
from ..ops.attention.plan_decode import hopper_configs, plan_decode, ranges_configs
from ..ops.target import active_gpu
from .attention import DECODING, DTYPES, Case, attend_by_torch, decode_problem
from .attention_models import random_decodes
from .attention_tiles import checked, compile_ahead, knobs_of
from .matmul_tiles import read_rows, write
from .report import fill_page
from .suites import load_suite
from .timing import count_sets, interleave

SEEDS = (5, 6, 7)
NEAR = 1.7  #: estimates above the least so many times are not measured
MOST_OF_KIND = 3  #: configs that differ by their runs or ranges alone
SLOWEST = 1.25  #: times the fastest: slower configs are left out of the file
CLUSTERS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
RUNS = (1, 2, 3, 4, 5, 6, 8, 11, 12, 16, 22, 24, 32, 33, 44, 66)


@dataclass(frozen=True)
class Row:
    """A config of one decode, its time, and those of torch's backends; 0 where one refuses.

    spread: of B sequences, the i-th has ((i + 1) / B)^spread of the keys; torch's cuDNN backend knows no lengths.
    """

    dtype: str
    batch: int
    heads: int
    kv_heads: int
    keys: int
    d: int
    spread: int
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


def iterate_configs(problem: DecodeProblem, gpu: Gpu) -> Iterator[Config]:
    """What is measured of one problem: of each schedule, way to share a processor and heads abreast, the least
    estimates for any lengths."""
    found: dict[tuple[object, ...], list[tuple[int, Config]]] = {}
    runs = hopper_configs(problem, gpu, list(product(CLUSTERS, RUNS)))
    for resident, config in (*runs, *ranges_configs(problem, gpu)):
        shares = isinstance(config, HopperDecodeConfig) and config.cluster > 1
        found.setdefault((config.schedule, resident, config.abreast, shares), []).append((resident, config))
    taken: dict[Any, None] = {plan_decode(problem, gpu): None}
    for spread in spreads_of(problem.batch):
        us = {config: estimate_us(problem, config, n, gpu, spread) for some in found.values() for n, config in some}
        least = min(us.values(), default=0.0)
        for some in found.values():
            near = sorted((us[config], i) for i, (_, config) in enumerate(some) if us[config] <= NEAR * least)
            taken.update(dict.fromkeys(some[i][1] for _, i in near[:MOST_OF_KIND]))
    yield from taken


def spreads_of(batch: int) -> tuple[int, ...]:
    """Those that there are of so many sequences."""
    return (EVEN, RAGGED, SKEWED) if batch > 1 else (EVEN,)


def lengths_of(batch: int, keys: int, spread: int) -> list[int]:
    """Keys of each sequence, in any order that is always the same."""
    found = [max(1, round(keys * ((i + 1) / batch) ** spread)) for i in range(batch)]
    random.Random(batch).shuffle(found)
    return found


def measure(case: Case, gpu: Gpu, *, rounds: int) -> list[Row]:
    """Every config's rows. Raises LaneloomError for a wrong result."""
    problem = decode_problem(case)
    sets = count_sets(case.bytes(False), limit=64)
    shapes = [(case.batch, n, h, case.d) for h, n in ((case.heads, 1), *[(case.kv_heads, case.keys)] * 2)]
    caches = [[torch.randn(shape, dtype=DTYPES[case.dtype], device="cuda") for shape in shapes] for _ in range(sets)]
    # torch's keys of a head lie in one piece, which it reads fastest.
    operands = [[x.transpose(1, 2).contiguous() for x in three] for three in caches]
    configs, text, rows = list(iterate_configs(problem, gpu)), plan_decode(problem, gpu).text, []
    for spread in spreads_of(case.batch):
        lengths = torch.tensor(lengths_of(case.batch, case.keys, spread), dtype=torch.int32, device="cuda")
        named = [dict(zip("qkv", x, strict=True)) | {
            "out": torch.empty_like(x[0]), "lse": x[0].new_empty((case.batch, case.heads, 1), dtype=torch.float32),
            "lengths": lengths, "table": None} for x in caches]  # fmt: skip
        if spread == EVEN:
            calls: dict[str, Callable[[int], object]] = {
                "flash": partial(attend_by_torch, case, SDPBackend.FLASH_ATTENTION, operands),
                "cudnn": partial(attend_by_torch, case, SDPBackend.CUDNN_ATTENTION, operands),
            }
            truth = attend_by_torch(case, SDPBackend.FLASH_ATTENTION, operands, 0).float().transpose(1, 2)
        else:
            calls = {"flash": (flash := attend_to_lengths(case, caches, lengths))}
            truth = flash(0).float().view_as(named[0]["out"])
        for config in configs:
            run = launch_by(problem, config, gpu, named[0])
            calls[config.text] = checked(run, named, truth, f"{problem.key} by {config.text}")
        timings = interleave(
            calls, sets, rounds=rounds, warmup_s=0.02, graph_us=300.0, on_failure=lambda name, _: print(f"  no {name}"))
        theirs = [round(timings.pop(name).median_us, 2) if name in timings else 0.0 for name in ("cudnn", "flash")]
        near = SLOWEST * min(timing.median_us for timing in timings.values())
        sizes = case.dtype, case.batch, case.heads, case.kv_heads, case.keys, case.d, spread
        rows += [Row(*sizes, name, round(timing.median_us, 2), *theirs)
                 for name, timing in timings.items() if timing.median_us <= near or name == text]  # fmt: skip
    return rows


def attend_to_lengths(
    case: Case, caches: list[list[torch.Tensor]], lengths: torch.Tensor
) -> Callable[[int], torch.Tensor]:
    """What runs torch's flash attention on the i-th caches [B, S, H, D], of which each sequence has a length: what its
    `varlen_attn` calls."""
    ends = torch.arange(case.batch + 1, dtype=torch.int32, device=lengths.device)
    sizes = ends, ends * case.keys, 1, case.keys, 0.0, False, False

    def attend(i: int) -> torch.Tensor:
        q, k, v = (x.flatten(0, 1) for x in caches[i])
        return torch.ops.aten._flash_attention_forward(q, k, v, *sizes, seqused_k=lengths)[0]

    return attend


def read(path: Path) -> list[Row]:
    """The rows of a file that `write` made."""
    return read_rows(path, Row)


def _compile(pair: tuple[DecodeProblem, Config]) -> None:
    compiled(*pair, get_gpu("sm_90a"))


def planned(rows: list[Row], gpu: Gpu, spread: int) -> list[Row]:
    """The rows of lengths of this spread by what the plan takes."""
    of = [row for row in rows if row.spread == spread]
    texts = {case: plan_decode(decode_problem(case), gpu).text for case in dict.fromkeys(row.case for row in of)}
    return [row for row in of if row.config == texts[row.case]]


def sentence(rows: list[Row], gpu: Gpu) -> str:
    """Markdown: what lengths that differ cost."""
    found = {spread: planned(rows, gpu, spread) for spread in (RAGGED, SKEWED)}
    ragged, skewed = (geometric_mean(row.torch_us / row.us for row in of) for of in found.values())
    return (
        f"Decoding of {len(found[RAGGED])} batches whose sequences differ in length: {ragged:.2f} x torch's flash "
        f"kernel for given lengths where they are even from 0 to the longest, {skewed:.2f} x where most are short."
    )


def summarise(rows: list[Row], gpu: Gpu) -> str:
    """Markdown: what the plan takes, by how lengths differ."""
    names = {EVEN: "all as long as there is room", RAGGED: "even from 0 to that", SKEWED: "most of them short"}
    head = "| lengths | caches | x the faster of torch's | least | x flash | behind the fastest config |"
    lines = [head, "|---" * 6 + "|"]
    for spread, name in names.items():
        best = {row.case: row.us for row in sorted(rows, key=lambda row: -row.us) if row.spread == spread}
        taken = planned(rows, gpu, spread)
        ratios = [row.torch_us / row.us for row in taken]
        flash = [row.flash_us / row.us for row in taken if row.flash_us]
        behind = geometric_mean(row.us / best[row.case] for row in taken) - 1
        lines.append(f"| {name} | {len(taken)} | {geometric_mean(ratios):.3f} | {min(ratios):.2f} | "
                     f"{geometric_mean(flash):.2f} | {behind:.1%} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure many configs of attention over a cache on Hopper.")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--render", type=Path, nargs=2, metavar=("CSV", "PAGE"), help="fill a page from a file")
    parser.add_argument("--readme", type=Path, help="page that gets a sentence of it")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of random decodes of models")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    arguments = parser.parse_args()
    if arguments.render:
        source, page = arguments.render
        rows, gpu = read(source), get_gpu("sm_90a")
        fill_page(page, {"lengths": summarise(rows, gpu)})
        if arguments.readme:
            fill_page(arguments.readme, {"lengths summary": sentence(rows, gpu)})
    if arguments.out:
        sweep(arguments.out, arguments.seeds, arguments.rounds, arguments.jobs)


def sweep(out: Path, seeds: list[int], rounds: int, jobs: int) -> None:
    """Measure and write."""
    gpu, rows, cases = active_gpu(), [], cases_of(seeds)
    # Runs and ranges are no part of the code.
    pairs = {(p.code_key, plain(config)) for p in map(decode_problem, cases) for config in iterate_configs(p, gpu)}
    compile_ahead(_compile, pairs, jobs)
    for number, case in enumerate(cases):
        found = measure(case, gpu, rounds=rounds)
        rows += found
        text, said = plan_decode(decode_problem(case), gpu).text, []
        for spread in spreads_of(case.batch):
            of = [row for row in found if row.spread == spread]
            taken = next((row.us for row in of if row.config == text), 0.0)
            said.append(f"{taken} us (best {min(row.us for row in of)}, torch {of[0].torch_us})")
        print(f"{number + 1} of {len(cases)}, {case.text}: {', '.join(said)} by {text}", flush=True)
        write(out, rows)
    print(summarise(rows, gpu))


def plain(config: Config) -> Config:
    """The config without what its kernel's code does not depend on."""
    if isinstance(config, HopperDecodeConfig):
        return replace(config, splits=1, cluster=1, alone=False)
    return replace(config, ranges=1, alone=False)


if __name__ == "__main__":
    main()

"""Random attentions of models beside torch's backends on one Hopper GPU: heads that models have, any batch and lengths.

`python -m laneloom.bench.attention_models --out results/h200/attention_models.csv --jobs 16` measures forward and
backward of COUNT of them for each seed, and as many times one query over a cache, each checked against FP64, beside
torch's cuDNN and flash backends, and
`--render results/h200/attention_models.csv docs/attention.md --readme README.md
--other results/h100/attention_models.csv` writes what came out into the pages.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import torch

from ..ops.attention.api import flash_attention
from ..ops.attention.config_decode import DecodeConfig
from ..ops.attention.hopper_decode_call import compiled
from ..ops.attention.plan_decode import plan_decode
from ..ops.target import active_gpu
from .attention import CUDNN, DTYPES, FLASH, Case, decode_problem, measure, measure_decode
from .matmul_tiles import read_rows, write
from .report import fill_pages
from .wide_report import SLOW

#: heads of queries and of keys, and D, of models: BERT, ViT, GPT-2, Whisper, CLIP, SigLIP, diffusion, language models
HEADS = (
    (12, 12, 64), (16, 16, 64), (20, 20, 64), (10, 10, 64), (24, 24, 64), (6, 6, 64), (3, 3, 64), (12, 12, 32),
    (8, 8, 32), (16, 16, 72), (16, 16, 80), (8, 8, 40), (8, 8, 160), (32, 32, 80), (32, 32, 96), (24, 24, 128),
    (32, 32, 128), (32, 8, 128), (28, 4, 128), (40, 8, 128), (64, 8, 128), (16, 8, 128), (32, 4, 128), (12, 2, 128),
    (8, 1, 256), (16, 8, 256), (8, 4, 256), (32, 8, 64), (14, 2, 64), (9, 3, 64), (16, 16, 192), (40, 40, 128),
)  # fmt: skip
#: lengths of sequences: of images and text, of prompts, of latents
LENGTHS = (
    49, 50, 64, 77, 100, 128, 196, 197, 200, 256, 257, 300, 333, 384, 400, 512, 577, 640, 729, 768, 800, 1000, 1024,
    1025, 1200, 1296, 1370, 1500, 1536, 2000, 2048, 2304, 2500, 3000, 3072, 4096, 4200, 5000, 6144, 8192, 12000, 16384,
)  # fmt: skip
#: lengths of what a cross attention looks at
OTHER_LENGTHS = (77, 128, 154, 226, 256, 257, 300, 512, 577, 1024, 1500, 2048, 4096)
MASKED, CROSS = 0.5, 0.2  #: shares of the cases
MOST_TOKENS, MOST_PAIRS = 1 << 16, 1 << 33  #: of all sequences, and of all heads
COUNT, SEEDS = 70, (1, 2)
SLOWEST = 10  #: that the page lists
DIRECTIONS = ("forward", "backward", "decode")
#: of caches, and the most bytes of one
CACHE_LENGTHS = (
    50, 100, 197, 333, 500, 777, 1000, 1500, 2048, 3000, 4096, 5000, 8192, 10000, 16384, 32768, 65536,
)  # fmt: skip
MOST_CACHE_BYTES = 1 << 30
GROUPS = ((1, 64), (65, 128), (129, 256))  #: of D, in the page's table


@dataclass(frozen=True)
class Row:
    """One direction of a case: our time and that of torch's backends in the same rounds, in microseconds."""

    direction: str
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    causal: int
    us: float
    cudnn_us: float  #: 0 where it refuses
    flash_us: float
    error: float
    budget: float
    config: str

    @property
    def case(self) -> Case:
        """What was measured."""
        return Case(
            self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.d, bool(self.causal), self.dtype)

    @property
    def ratio(self) -> float:
        """The faster backend's time over ours."""
        return min(us for us in (self.cudnn_us, self.flash_us) if us) / self.us


def random_cases(seed: int, count: int = COUNT) -> list[Case]:
    """So many random attentions."""
    generator, found = random.Random(seed), []
    while len(found) < count:
        (heads, kv_heads, d), queries = generator.choice(HEADS), generator.choice(LENGTHS)
        keys, causal = queries, generator.random() < MASKED
        if not causal and generator.random() < CROSS / (1 - MASKED):
            keys = generator.choice(OTHER_LENGTHS)
        batch = 2 ** generator.randrange(9)
        tokens, pairs = batch * max(queries, keys), batch * heads * queries * keys
        if tokens <= MOST_TOKENS and pairs <= MOST_PAIRS:
            dtype = generator.choice(("bf16", "fp16"))
            found.append(Case(batch, heads, kv_heads, queries, keys, d, causal, dtype))
    return found


def random_decodes(seed: int, count: int = COUNT) -> list[Case]:
    """So many random attentions of one query over a cache."""
    generator, found = random.Random(seed), []
    while len(found) < count:
        heads, kv_heads, d = generator.choice(HEADS)
        batch, keys = 2 ** generator.randrange(8), generator.choice(CACHE_LENGTHS)
        dtype = generator.choice(("bf16", "fp16"))
        if batch * kv_heads * keys * d * 4 <= MOST_CACHE_BYTES:
            found.append(Case(batch, heads, kv_heads, 1, keys, d, False, dtype))
    return found


def summarise(rows: Sequence[Row]) -> str:
    """Markdown: a sentence."""
    parts, directions = [], [one for one in DIRECTIONS if any(row.direction == one for row in rows)]
    for direction in directions:
        ratios = [row.ratio for row in rows if row.direction == direction]
        slow = sum(ratio < SLOW for ratio in ratios)
        parts.append(f"{direction} {geometric_mean(ratios):.3f}, least {min(ratios):.2f}, {slow} under {SLOW}")
    return (
        f"{len(rows) // len(directions)} random attentions of models in each direction, the time of the faster of "
        f"cuDNN and torch's flash backend over ours: {'; '.join(parts)}."
    )


def render(rows: Sequence[Row]) -> str:
    """Markdown: by D and direction, then the slowest."""
    head = "| D | direction | cases | x the faster | least | x cuDNN | x flash |"
    lines = [summarise(rows), "", head, "|---" * 7 + "|"]
    for first, last in GROUPS:
        for direction in DIRECTIONS:
            some = [row for row in rows if first <= row.d <= last and row.direction == direction]
            if not some:
                continue
            ratios = [row.ratio for row in some]
            cudnn = geometric_mean(row.cudnn_us / row.us for row in some if row.cudnn_us)
            flash = geometric_mean(row.flash_us / row.us for row in some if row.flash_us)
            lines.append(f"| {first} to {last} | {direction} | {len(some)} | {geometric_mean(ratios):.3f} | "
                         f"{min(ratios):.2f} | {cudnn:.2f} | {flash:.2f} |")  # fmt: skip
    lines += ["", "| slowest: B x H x N x D | direction | us | x cuDNN | x flash | what ran |", "|---" * 6 + "|"]
    for row in sorted(rows, key=lambda row: row.ratio)[:SLOWEST]:
        cudnn, flash = (f"{us / row.us:.2f}" if us else "" for us in (row.cudnn_us, row.flash_us))
        schedule = row.config.partition(":")[0].removeprefix("hopper_")
        lines.append(f"| {row.case.text} | {row.direction} | {row.us:.1f} | {cudnn} | {flash} | {schedule} |")
    return "\n".join(lines)


def read(path: Path) -> list[Row]:
    """The rows of a file that `main` wrote."""
    return read_rows(path, Row)


def _call_once(case: Case) -> None:
    """Compile the case's kernels."""
    q, k, v = (
        torch.randn(case.batch, h, n, case.d, dtype=DTYPES[case.dtype], device="cuda", requires_grad=True)
        for h, n in ((case.heads, case.queries), (case.kv_heads, case.keys), (case.kv_heads, case.keys))
    )
    flash_attention(q, k, v, causal="top_left" if case.causal else False).sum().backward()


def _compile_decode(case: Case) -> None:
    """Compile the kernel that the plan takes."""
    problem, gpu = decode_problem(case), active_gpu()
    config = plan_decode(problem, gpu)
    if not isinstance(config, DecodeConfig):  # the general schedule is Triton's to compile
        compiled(problem.code_key, config, gpu)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure random attentions of models on Hopper.")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--render", type=Path, nargs="+", metavar=("CSV", "PAGE"), help="fill pages from a file")
    parser.add_argument("--readme", type=Path, help="page that gets the summary alone")
    parser.add_argument("--other", type=Path, help="file of another GPU, whose summary the pages get too")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--count", type=int, default=COUNT, help="cases of each seed")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS),
                        help="what to measure; --out keeps the rows of the others")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    arguments = parser.parse_args()
    if arguments.render:
        rows = read(arguments.render[0])
        others = {"other models": summarise(read(arguments.other))} if arguments.other else {}
        fill_pages(arguments.render[1:], {"models": render(rows)} | others)
        if arguments.readme:
            fill_pages([arguments.readme], {"attention models": summarise(rows)})
        return
    if arguments.out is None:
        parser.error("--out or --render")
    wanted = set(arguments.directions)
    measured_before = read(arguments.out) if arguments.out.exists() else []
    rows = [row for row in measured_before if row.direction not in wanted]
    seeds = arguments.seeds if wanted - {"decode"} else []
    cases = [case for seed in seeds for case in random_cases(seed, arguments.count)]
    seeds = arguments.seeds if "decode" in wanted else []
    decodes = [case for seed in seeds for case in random_decodes(seed, arguments.count)]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        pool.map(_call_once, cases, chunksize=1)
        pool.map(_compile_decode, decodes, chunksize=1)
    for case in cases + decodes:
        if case.queries == 1:
            found = {"decode": measure_decode(case, arguments.rounds)}
        else:
            found = measure(case, arguments.rounds, gradients="backward" in wanted)
        for direction, (timings, error, budget, text) in found.items():
            if direction not in wanted:
                continue
            us, cudnn, flash = (
                round(timings[name].median_us, 2) if name in timings else 0.0 for name in ("laneloom", CUDNN, FLASH)
            )
            rows.append(Row(
                direction, case.dtype, case.batch, case.heads, case.kv_heads, case.queries, case.keys, case.d,
                int(case.causal), us, cudnn, flash, float(f"{error:.2e}"), float(f"{budget:.2e}"), text,
            ))  # fmt: skip
            print(f"{case.text} {direction}: {us:.2f} us, {rows[-1].ratio:.3f} x torch, {cudnn} {flash}", flush=True)
        write(arguments.out, rows)
    print(summarise(rows))


if __name__ == "__main__":
    main()

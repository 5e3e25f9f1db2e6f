"""Measure many configs of one product on one Hopper GPU: what `ops/matmul/model_hopper.py` was fitted to.

`python -m laneloom.bench.matmul_tiles --consumers --most 7 --out results/h200/tiles_consumers.csv` writes one row a
config: of all products listed here but the longest, and of random ones, the shortest estimates of tiles of one
warpgroup and of more, each checked against FP64, all interleaved with torch.matmul. By both tiled schedules, with
`--random` sizes that nobody chose, for tiles_random.csv, with `--random --seed 2` others, for tiles_random_2.csv, and
with `--few` 8 and 32 rows and many columns, for tiles_few.csv, with `--decode` 16 and 64 rows, on an H100, for
tiles_decode.csv. By hopper_cluster alone, with `--broken --most 2` products whose rows break sectors in every cluster,
for tiles_in_classes.csv (an H200's: its shortest 12 estimates), with `--long` those of several tiles for each SM, for
tiles_overlapped.csv, with `--uneven` more of these, for tiles_uneven.csv, and with `--pairs` large tiles in pairs of
CTAs, one config after the other, for tiles_pairs.csv; of these four the rows of one warpgroup are left out, measured
before its loop lost half of its instructions. Other lists are measured alone by `--survey`, `--layers`, `--misranked`,
`--parts`, and, without any of these, SIZES. `--models --most 10`, on an H100 and in part on an H200, made
tiles_models.csv, and `--own --most 6`, on an H100, tiles_own.csv, of tiles of one warpgroup each beside others.
`tests/cpu/test_hopper_model.py` holds the model against the files.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ..errors import LaneloomError
from ..gpu import Gpu, get_gpu
from ..ops.matmul.config_cluster import ClusterConfig
from ..ops.matmul.config_hopper import HopperConfig, tma_reads
from ..ops.matmul.execute import schedule_of
from ..ops.matmul.plan_cluster import cluster_configs
from ..ops.matmul.problem import MatmulProblem
from ..ops.matmul.shortlist import shortlist
from ..ops.target import active_gpu
from .matmul_cases import LAYER_SEEDS, random_cases, random_layers
from .timing import count_sets, interleave

#: of decoding, of linear layers, of squares that no tile divides
SIZES = (
    (64, 4096, 11008), (64, 14336, 4096), (96, 4096, 4096), (128, 8192, 8192), (128, 2048, 2048), (160, 4096, 4096),
    (192, 6144, 4096), (256, 1024, 4096), (256, 14336, 4096), (320, 5120, 5120), (384, 4096, 4096), (512, 4096, 4096),
    (512, 14336, 4096), (512, 4096, 14336), (768, 768, 768), (768, 3072, 768), (1024, 4096, 1024), (1024, 1024, 4096),
    (1024, 8192, 8192), (1536, 1536, 1536), (2048, 5120, 5120), (2048, 2048, 8192), (3000, 3000, 3000),
    (3072, 3072, 3072), (5000, 5000, 5000), (6000, 6000, 6000), (4096, 4096, 512), (4096, 4096, 256),
    (16384, 1024, 1024), (32768, 512, 512), (100000, 256, 256), (1280, 1280, 1280), (1000, 4096, 1000),
    (200, 200, 8192), (2000, 2000, 2000), (4000, 4000, 4000), (8192, 8192, 1024), (640, 640, 640), (896, 896, 896),
    (128, 6144, 4096), (128, 4096, 4096), (1000, 1000, 1000), (2048, 11008, 4096), (1024, 1024, 1024),
    (2056, 2056, 2056), (300, 3000, 3000), (80, 8192, 1024), (4096, 2112, 7168), (2304, 2304, 2304), (100, 1000, 10000),
    (40, 8192, 8192), (4096, 128, 4096), (256, 4096, 4096), (256, 8192, 8192), (1152, 1152, 1152), (512, 512, 4096),
    (640, 5120, 5120), (256, 6144, 4096), (384, 6144, 4096), (768, 4096, 4096), (1536, 4096, 4096), (2560, 2560, 2560),
    (3584, 3584, 3584), (2048, 2048, 2048), (4096, 4096, 4096), (1024, 1024, 2048), (1024, 1024, 16384),
    (304, 304, 30000), (72, 4096, 4096), (176, 6144, 4096), (2048, 7168, 2048), (3000, 512, 3000), (1024, 2112, 7168),
    (1000, 1000, 5000), (48, 5120, 5120), (512, 18432, 7168), (512, 512, 8192), (208, 8192, 8192), (224, 5120, 5120),
    (112, 14336, 4096), (4608, 4608, 4608), (2800, 2800, 2800), (6144, 6144, 6144), (4096, 576, 7168),
    (3200, 3200, 3200), (512, 7168, 2048), (2200, 2200, 2200), (1304, 1304, 1304), (5120, 5120, 5120),
)  # fmt: skip
#: of rows that break 32-byte sectors
BROKEN_SIZES = (
    (1000, 1000, 1000), (1000, 1000, 5000), (3000, 3000, 3000), (1960, 1960, 1960), (504, 504, 504), (2040, 2040, 2040),
    (1304, 1304, 1304), (300, 3000, 3000), (760, 760, 760), (1400, 1400, 1400), (2056, 2056, 2056), (2200, 2200, 2200),
    (600, 600, 600), (1000, 4096, 1000), (3000, 512, 3000), (512, 1000, 1000), (128, 1000, 1000), (4096, 4096, 4104),
    (1000, 1000, 264), (1000, 1000, 2008), (2000, 1000, 1000), (5000, 5000, 5000), (4096, 1000, 1000),
    (1000, 4096, 4104),
)  # fmt: skip
#: of several tiles for each SM, where it counts what a tile's end costs
LONG_SIZES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (2048, 28672, 4096), (8192, 4096, 4096), (3000, 3000, 3000),
    (3072, 3072, 3072), (5000, 5000, 5000), (6000, 6000, 6000), (2560, 2560, 2560), (4096, 2112, 7168),
    (2048, 11008, 4096), (8192, 32000, 512), (16384, 1024, 1024), (4096, 4096, 512), (512, 14336, 4096),
    (1024, 8192, 8192), (4000, 4000, 4000), (2048, 2048, 2048), (2048, 5120, 5120), (2048, 4096, 14336),
    (3584, 3584, 3584),
)  # fmt: skip
#: of several tiles for each SM, whose number tiles of two widths can fit to the SMs
UNEVEN_SIZES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (8192, 6144, 4096), (8192, 4096, 4096), (2048, 6144, 4096),
    (2048, 4096, 4096), (2048, 28672, 4096), (2048, 4096, 14336), (5120, 5120, 5120), (6000, 6000, 6000),
    (5000, 5000, 5000), (3000, 3000, 3000), (3584, 3584, 3584), (4608, 4608, 4608), (2560, 2560, 2560),
    (16384, 1024, 1024), (4096, 4096, 512), (512, 14336, 4096), (1024, 8192, 8192), (4096, 2112, 7168),
    (1536, 4096, 4096), (2304, 2304, 2304), (6144, 6144, 6144), (2048, 11008, 4096), (8192, 32000, 512),
)  # fmt: skip
#: of more tiles than SMs, where one warpgroup may write a tile while another multiplies the next
OWN_SIZES = (
    (4096, 4096, 192), (4096, 4096, 512), (4096, 4096, 1024), (4096, 4096, 4096), (8192, 8192, 512), (8192, 8192, 2048),
    (8192, 8192, 8192), (16384, 4096, 256), (16384, 1024, 1024), (8192, 32000, 512), (2048, 4096, 1024),
    (2048, 2048, 2048), (2048, 5120, 5120), (2048, 28672, 4096), (3000, 3000, 3000), (5000, 5000, 5000),
    (1536, 4096, 1024), (4096, 6144, 2048), (8192, 6144, 4096), (3072, 3072, 3072), (2560, 2560, 2560),
    (4096, 2112, 7168), (1024, 8192, 8192), (2304, 2304, 768), (16384, 16384, 128), (4096, 14336, 4096),
    (6144, 6144, 6144), (4096, 4096, 4104), (2000, 9000, 640), (12288, 3072, 768), (1024, 14336, 2048),
    (8192, 1024, 2048), (32768, 512, 512), (2048, 4096, 14336),
)  # fmt: skip
#: of linear layers that a survey of 286 products showed to be slow, each in one layout
SURVEY_SIZES = (
    (160, 5120, 13824, "nn"), (400, 1536, 7168, "nt"), (96, 5120, 5120, "nt"), (160, 5120, 5120, "nn"),
    (400, 1536, 7168, "nn"), (160, 5120, 13824, "nt"), (256, 2880, 2880, "nn"), (48, 5120, 5120, "nn"),
    (256, 3584, 3584, "nn"), (256, 7168, 2048, "nt"), (256, 3584, 18944, "nt"), (40, 5120, 13824, "nt"),
    (96, 5120, 5120, "nn"), (160, 2880, 2880, "nt"), (64, 5120, 5120, "nn"), (512, 3584, 18944, "nt"),
    (48, 4608, 3584, "nn"), (512, 1536, 7168, "nn"), (160, 3584, 3584, "nn"), (256, 5120, 5120, "nn"),
    (256, 2048, 7168, "nt"), (64, 4608, 3584, "nn"), (1024, 1536, 7168, "nt"), (512, 2880, 2880, "nn"),
    (256, 4608, 3584, "nn"), (64, 18944, 3584, "nt"), (304, 304, 30000, "nn"), (24, 5120, 5120, "nn"),
)  # fmt: skip
#: N and K of linear layers whose weights come from memory while few rows are multiplied
LAYER_SIZES = (
    (48, 5120, 5120), (64, 8192, 1024), (72, 6144, 4096), (80, 14336, 4096), (96, 6144, 4096), (96, 4096, 14336),
    (112, 3584, 3584), (120, 11944, 4640), (128, 6144, 4096), (128, 4096, 4096), (128, 5120, 5120), (128, 7168, 2048),
    (128, 8192, 8192), (128, 14336, 4096), (160, 6144, 4096), (192, 6144, 4096), (192, 4096, 11008), (208, 8192, 8192),
    (224, 6144, 4096), (256, 4096, 4096), (256, 6144, 4096), (256, 5120, 13824), (320, 4096, 4096), (384, 8192, 2048),
)  # fmt: skip
#: for which what the model chose was slower than cuBLAS, or than what it had chosen before, some in one layout
MISRANKED_SIZES = (
    (1024, 2112, 7168, "nn"), (587, 3891, 1064, "nt"), (3496, 128, 3097, "nn"), (6784, 128, 5177, "nt"),
    (100, 1000, 10000, "nn"), (6000, 6000, 6000, "nn"), (5000, 5000, 5000, "nn"), (5000, 5000, 5000, "nt"),
    (320, 5120, 5120, "nt"), (512, 14336, 4096, "nt"), (1870, 4800, 1152, "nn"), (1870, 4800, 1152, "nt"),
    (192, 6144, 4096, "nt"), (192, 6144, 4096, "nn"), (304, 304, 30000, "nn"), (48, 5120, 5120, "nn"),
    (1024, 1024, 4096, "nn"), (1024, 1024, 4096, "nt"), (256, 4096, 4096, "nn"), (256, 4096, 4096, "nt"),
    (120, 11944, 4640, "nt"), (128, 6144, 4096, "nn"), (128, 6144, 4096, "nt"), (208, 8192, 8192, "nn"),
    (16, 28672, 4096, "nt"), (5917, 6208, 1592, "nt"), (4096, 2112, 7168, "nt"), (3072, 3072, 3072, "nt"),
    (48, 2238, 2030, "nn"), (88, 704, 14576, "nt"), (8, 12063, 1472, "nn"), (24, 5120, 5120, "nn"),
)  # fmt: skip
#: of few tiles and a long K, some of which clusters of CTAs that share loads and have parts of K fit
PARTS_SIZES = (
    (400, 1536, 7168, "nn"), (400, 1536, 7168, "nt"), (96, 5120, 5120, "nn"), (256, 2880, 2880, "nn"),
    (48, 5120, 5120, "nn"), (160, 5120, 13824, "nt"), (160, 5120, 13824, "nn"), (512, 1536, 7168, "nn"),
    (256, 5120, 5120, "nn"), (256, 3584, 3584, "nn"), (256, 4096, 4096, "nn"), (256, 4096, 4096, "nt"),
    (1024, 1024, 4096, "nn"), (1024, 1024, 4096, "nt"), (128, 6144, 4096, "nn"), (304, 304, 30000, "nn"),
    (512, 512, 8192, "nn"), (192, 6144, 4096, "nt"), (1024, 1536, 7168, "nt"), (256, 2048, 7168, "nt"),
    (1024, 2112, 7168, "nn"), (512, 4096, 4096, "nn"), (512, 7168, 2048, "nt"), (64, 5120, 5120, "nn"),
)  # fmt: skip
#: of large products, whose configs are timed one by one
PAIR_SIZES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (2048, 4096, 4096), (2048, 4096, 14336),
    (8192, 1024, 2048), (4096, 11008, 4096), (6000, 6000, 6000),
)  # fmt: skip
#: N and K, for each of FEW_ROWS
FEW_SIZES = (
    (2048, 2048), (4096, 256), (4096, 512), (4096, 1024), (4096, 2048), (4096, 4096), (4096, 14336), (5120, 5120),
    (6144, 4096), (8192, 1024), (8192, 8192), (9472, 200), (11008, 4096), (12288, 384), (14336, 4096), (16384, 512),
    (16384, 2048), (28672, 1024), (28672, 4096),
)  # fmt: skip
FEW_ROWS = (8, 32)
#: of linear layers of models, for each of DECODE_ROWS
DECODE_SIZES = (
    (576, 7168), (896, 4864), (1152, 4304), (1280, 5120), (1536, 4096), (2048, 8192), (2112, 7168), (2560, 2560),
    (3072, 3072), (3584, 3584), (3584, 18944), (4096, 11008), (4608, 3584), (5120, 5120), (5120, 13824), (5120, 27648),
    (5760, 2880), (6400, 1600), (7168, 2304), (7168, 7168), (8192, 28672), (10240, 8192), (18944, 3584), (24576, 3072),
    (37888, 3584), (57344, 8192),
)  # fmt: skip
DECODE_ROWS = (16, 64)
CHOSEN_SIZES: dict[str, Sequence[tuple[Any, ...]]] = {
    "": SIZES, "broken": BROKEN_SIZES, "long": LONG_SIZES, "uneven": UNEVEN_SIZES, "survey": SURVEY_SIZES,
    "layers": LAYER_SIZES, "misranked": MISRANKED_SIZES, "parts": PARTS_SIZES, "pairs": PAIR_SIZES, "own": OWN_SIZES,
}  # fmt: skip
LONG_FLOPS = 1e11  #: from here on no tile of one warpgroup is near the fastest
RANDOM_CASES, RANDOM_SEED = 120, 1  #: another seed than that of bench.matmul
MOST_PAIRED = 12
HOPELESS = 1.4  #: times the shortest estimate
LARGEST_ERROR = 2.0**-7  #: relative norm: a product of bf16 that is right stays far below


@dataclass(frozen=True)
class Row:
    """A config of one product and its time, beside torch.matmul's in the same rounds."""

    m: int
    n: int
    k: int
    layout: str
    torch_us: float
    schedule: str
    block_m: int
    block_n: int
    swapped: int
    cluster_m: int
    cluster_n: int
    cluster_k: int
    split_k: int
    repacked: str  #: "A", "B", "AB" or nothing
    us: float
    line: int = 0  #: bytes; see ClusterConfig
    tiles_n: int = 0  #: of two widths
    stages: int = 0  #: 0 where it was not written down
    own: int = 0  #: whether warpgroups have tiles of their own


def describe(config: HopperConfig | ClusterConfig) -> tuple[str, int, int, int, int, int, int, int, str]:
    """What a row says of a config."""
    tile = config.schedule, config.block_m, config.block_n, int(config.swapped)
    if isinstance(config, ClusterConfig):
        return *tile, config.cluster_m, config.cluster_n, config.cluster_k, 1, ""
    return *tile, 1, 1, 1, config.split_k, "A" * config.repack_a + "B" * config.repack_b


def iterate_pairs(problem: MatmulProblem, gpu: Gpu) -> Iterator[ClusterConfig]:
    """Tiles of 128 by 256 and 256 by 128, each way, by CTAs alone and in pairs: the shortest estimates."""
    of_all = (config for config, _ in cluster_configs(problem, gpu))
    large = (config for config in of_all if {config.block_m, config.block_n} == {128, 256} and config.peers <= 2)
    yield from islice(large, MOST_PAIRED)


def iterate_consumers(problem: MatmulProblem, gpu: Gpu, most: int) -> Iterator[ClusterConfig]:
    """The `most` shortest estimates of tiles of one warpgroup, and of those of more, where nothing is copied."""
    if not (tma_reads(problem, "a") and tma_reads(problem, "b")):
        return
    found = {True: 0, False: 0}
    for config, _ in cluster_configs(problem, gpu):
        found[config.consumers == 1] += 1
        if found[config.consumers == 1] <= most:
            yield config
        if min(found.values()) >= most:
            return


def iterate_classes(problem: MatmulProblem, gpu: Gpu, most: int) -> Iterator[ClusterConfig]:
    """The `most` shortest estimates of each way to share loads, with and without rows in classes and C turned."""
    found: Counter[tuple[int, ...]] = Counter()
    shortest = 0.0
    for config, us in cluster_configs(problem, gpu):
        shortest = shortest or us
        if us > HOPELESS * shortest:
            return
        if config.cluster_k == 1:
            found[kind := (config.line, int(config.swapped), config.cluster_m, config.cluster_n)] += 1
            if found[kind] <= most:
                yield config


def iterate_own(problem: MatmulProblem, gpu: Gpu, most: int) -> Iterator[ClusterConfig]:
    """The shortest estimates of tiles of one warpgroup each, of every width, even and uneven, and `most` of others."""
    found: Counter[tuple[int, ...]] = Counter()
    for config, _ in cluster_configs(problem, gpu):
        own = config.own_tiles
        found[kind := (own, config.block_n * own, (config.tiles_n > 0) * own)] += 1
        if found[kind] <= (1 if own else most):
            yield config


def configs_of(kind: str, problem: MatmulProblem, gpu: Gpu, most: int) -> list[HopperConfig | ClusterConfig]:
    """What is measured of one product."""
    if kind == "pairs":
        return list(iterate_pairs(problem, gpu))
    if kind == "consumers":
        return list(iterate_consumers(problem, gpu, most))
    if kind == "own":
        return list(iterate_own(problem, gpu, most))
    if kind == "broken":
        return list(iterate_classes(problem, gpu, most))
    return list(shortlist(problem, gpu, most, gluon=kind in ("", "random", "few", "decode", "misranked")))


def measure(
    problem: MatmulProblem, layout: str, gpu: Gpu, configs: Sequence[HopperConfig | ClusterConfig], *, rounds: int,
    alone: bool = False,
) -> list[Row]:  # fmt: skip
    """Every config's row. alone: each in rounds of its own with torch.matmul.
    Raises LaneloomError for a wrong product."""
    sets = count_sets(problem.bytes)
    a, b = (
        [torch.randn(shape, device="cuda").bfloat16() for _ in range(sets)]
        for shape in ((problem.m, problem.k), (problem.k, problem.n))
    )
    a, b = (
        [x.mT.contiguous().mT for x in some] if letter == "t" else some
        for some, letter in zip((a, b), layout, strict=True)
    )
    outs = [torch.empty((problem.m, problem.n), dtype=torch.bfloat16, device="cuda") for _ in range(sets)]
    truth = a[0].double() @ b[0].double()
    reference: dict[str, Callable[[int], object]] = {"torch": lambda i: torch.matmul(a[i], b[i], out=outs[i])}
    calls: dict[str, Callable[[int], object]] = {}
    by_text = {config.text: config for config in configs}
    for text, config in by_text.items():
        call = schedule_of(config).prepare(problem, config, gpu)
        outs[0].fill_(float("nan"))
        call(a[0], b[0], outs[0])
        error = ((outs[0].double() - truth).norm() / truth.norm()).item()
        if not error <= LARGEST_ERROR:
            raise LaneloomError(f"{problem.key} by {text}: relative error {error:.2e}")
        calls[text] = lambda i, call=call: call(a[i], b[i], outs[i])
    rows = []
    for group in ([text] for text in calls) if alone else (list(calls),):
        together = reference | {text: calls[text] for text in group}
        timings = interleave(together, sets, rounds=rounds, graph_us=1000.0 if alone else 250.0)
        torch_us = round(timings["torch"].median_us, 2)
        for text in group:
            c, us = by_text[text], round(timings[text].median_us, 2)
            knobs = getattr(c, "line", 0), getattr(c, "tiles_n", 0), c.stages, int(getattr(c, "own_tiles", False))
            rows.append(Row(problem.m, problem.n, problem.k, layout, torch_us, *describe(c), us, *knobs))
    return rows


def write(path: Path, rows: Sequence[Any]) -> None:
    """Rows of one dataclass, such as Row, as CSV; no file for none."""
    if not rows:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, [field.name for field in fields(rows[0])], lineterminator="\n")
        out.writeheader()
        out.writerows(asdict(row) for row in rows)


def read_rows(path: Path, kind: Any) -> list[Any]:
    """The rows of a file that `write` made, of a dataclass of integers, floats and words."""
    by_name: dict[str, type] = {"int": int, "float": float, "str": str}
    kinds = {field.name: by_name[str(field.type)] for field in fields(kind)}
    with path.open(encoding="utf-8", newline="") as file:
        return [kind(**{name: kinds[name](value) for name, value in row.items()}) for row in csv.DictReader(file)]


def read(path: Path) -> list[Row]:
    """The rows of a file that `write` made."""
    return read_rows(path, Row)


def _sizes_of(kind: str, seed: int) -> Sequence[tuple[Any, ...]]:
    """M, N, K and, where it is one, the layout. seed: of random sizes."""
    if kind == "few":
        return [(m, n, k) for m in FEW_ROWS for n, k in FEW_SIZES]
    if kind == "decode":
        return [(m, n, k) for m in DECODE_ROWS for n, k in DECODE_SIZES]
    if kind == "random":
        cases = ((case.problem, case.layout) for case in random_cases(RANDOM_CASES, seed))
        return [(p.m, p.n, p.k, layout) for p, layout in cases if max(p.m, p.n, p.k) > 64 and p.m > 1]
    if kind == "models":
        cases = (case for seed in LAYER_SEEDS for case in random_layers(seed) if case.problem.flops < LONG_FLOPS)
        return list(dict.fromkeys((*(getattr(case.problem, x) for x in "mnk"), case.layout) for case in cases))
    if kind == "consumers":
        every = [*(_sizes_of(of, seed) for of in (*CHOSEN_SIZES, "few")), *(_sizes_of("random", x) for x in (1, 2))]
        return list(dict.fromkeys(
            (*sizes[:3], layout) for of in every for sizes in of for layout in sizes[3:] or ("nn", "nt")
            if 2 * sizes[0] * sizes[1] * sizes[2] < LONG_FLOPS
        ))  # fmt: skip
    return CHOSEN_SIZES[kind]


def _compile(pair: tuple[MatmulProblem, Sequence[HopperConfig | ClusterConfig]]) -> None:
    problem, configs = pair
    for config in configs:
        schedule_of(config).code_object(problem, config, get_gpu("sm_90a"))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure many configs of products in bf16 on Hopper.")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    kinds = {
        "broken": "products whose rows break 32-byte sectors", "long": "products of several tiles for each SM",
        "uneven": "products that tiles of two widths can fit to the SMs", "survey": "linear layers",
        "pairs": "large products, each config in rounds of its own", "random": "sizes that nobody chose",
        "few": "few rows and many columns", "decode": "16 and 64 rows by linear layers of models",
        "layers": "linear layers of 48 to 384 rows",
        "misranked": "products for which the model had chosen a slow config",
        "parts": "few tiles and a long K", "models": "random linear layers of models, as bench.matmul_layers has them",
        "own": "products of more tiles than SMs, tiles of one warpgroup each beside others",
        "consumers": "all but the longest, tiles of one warpgroup beside others",
    }  # fmt: skip
    for kind, words in kinds.items():
        parser.add_argument(f"--{kind}", action="store_true", help=words)
    parser.add_argument("--most", type=int, default=8, help="configs of each schedule")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=RANDOM_SEED, help="of --random")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile the kernels ahead")
    arguments = parser.parse_args()
    kind = next((kind for kind in kinds if getattr(arguments, kind)), "")
    gpu, made = active_gpu(), []
    for sizes in _sizes_of(kind, arguments.seed):
        for layout in sizes[3:] or ("nn", "nt"):
            problem = MatmulProblem.contiguous(*sizes[:3], dtype="bf16", layout=layout)
            if configs := configs_of(kind, problem, gpu, arguments.most):
                made.append((layout, problem, configs))
    rows = []
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        compiled = pool.imap(_compile, [(problem, configs) for _, problem, configs in made])
        for layout, problem, configs in made:
            next(compiled)
            found = measure(problem, layout, gpu, configs, rounds=arguments.rounds, alone=kind == "pairs")
            rows += found
            best = min(found, key=lambda row: row.us)
            sizes = f"{problem.m} x {problem.n} x {problem.k}"
            print(f"{sizes} {layout}: {best.us:.2f} us, {best.torch_us / best.us:.3f} x torch", flush=True)
            write(arguments.out, rows)


if __name__ == "__main__":
    main()

"""Fit the constants of `ops/matmul/model_hopper.py` to the configs that `bench/matmul_tiles.py` measured.

`python -m laneloom.bench.model_fit results --steps 2000` walks at random from the constants in place: a step moves
one to three of them and stays where what the model prefers of the measured configs is faster, and the estimates of good
configs are no further from their times. It prints how much slower than the fastest that is, of each file, before and
after, and the constants that moved. A step takes half a second.
Several walks end at about the same loss with other constants: hold what one says against the plans of the suite.
`tests/cpu/test_hopper_model.py` bounds the losses of the constants in place.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from ..gpu import Gpu, get_gpu
from ..ops.matmul import fit_cluster, model_hopper, plan_cluster, plan_hopper
from ..ops.matmul.config import MatmulConfig
from ..ops.matmul.config_cluster import ClusterConfig
from ..ops.matmul.problem import MatmulProblem
from ..ops.matmul.tuned import shipped_entries
from .matmul_tiles import Row, read
from .records import Record, load
from .timing import METHOD_SUSTAINED

GPU = get_gpu("sm_90a")
TILES = {(tile.m, tile.n): tile for tile in plan_hopper.TILES}
ALONE = "tiles_pairs"  #: the file of configs each beside torch.matmul alone, whose times only that makes comparable
MODELS = "tiles_models"  #: layers of models
#: by folder, which has the GPU's name
FILES = {
    "h200": (
        "tiles_consumers", "tiles_random", "tiles_random_2", "tiles_few", "tiles_in_classes", "tiles_overlapped",
        "tiles_uneven", ALONE, MODELS, "tiles_own",
    ),
    "h100": (MODELS, "tiles_in_classes", "tiles_few", "tiles_decode", "tiles_own"),
}  # fmt: skip
SHARE_OF_MODELS = 3  #: those files count as so many
SHARE_OF_NEAR = 0.6  #: of the loss, what configs near the preferred one lose: the loss of that one alone has steps
NEARNESS = 0.012  #: of estimates, relative
MOST_LOST = 0.25  #: by one product: a few that nothing explains do not lead the walk
#: of the spread of estimates about their times, in the loss: else what only has to be slow becomes slower and slower
SHARE_OF_SPREAD = 0.2
LEAST_HELD_US = 5.0
SHARE_OF_HELD = 1.0  #: of the loss of what is held, in the loss
PASSED_OVER = 0.01  #: what a config that is held loses where another is preferred, by however little
GOOD = 1.3  #: times the fastest: configs whose spread counts
#: what measuring one thing gave, or of FP64
FIXED = {"LONG_US", "PROMOTE_CLOCKS", "IN_STEP_SHARE", "FETCHED_US", "PRECISE_TILES"}
MODULES = (model_hopper, plan_hopper, plan_cluster)
PRODUCTS = ("H200", "H100")


def _is_planned(row: Row) -> bool:
    """Whether clusters of 4 or 8 are no more than fit: the last of them would begin when the others had ended."""
    m, n = (row.n, row.m) if row.swapped else (row.m, row.n)
    peers = row.cluster_m * row.cluster_n * row.cluster_k
    tiles = -(-m // (row.block_m * row.cluster_m)) * -(-n // (row.block_n * row.cluster_n))
    return peers < 4 or tiles * peers <= model_hopper.SMS_IN_CLUSTERS[peers]


def _product(row: Row) -> tuple[object, ...]:
    return row.m, row.n, row.k, row.layout


def _by(key: Callable[[Row], object], rows: Iterable[Row]) -> dict[object, list[Row]]:
    found: dict[object, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def measured(folder: Path, name: str) -> list[Row]:
    """The rows of one of FILES that the model ranks, in today's times."""
    rows = [row for row in read(folder / f"{name}.csv") if _is_planned(row)]
    rows = [row for row in rows if row.schedule == "hopper_cluster" or (row.block_m, row.block_n) in TILES]
    # Parts of C whose rows broke sectors took up to twice as long when the files were made.
    rows = [row for row in rows if row.split_k == 1 or row.n % 8 == 0]
    if name == ALONE:
        usual = {of: median(row.torch_us for row in some) for of, some in _by(_product, rows).items()}
        rows = [
            replace(row, us=row.us / row.torch_us * usual[_product(row)], torch_us=usual[_product(row)]) for row in rows
        ]  # fmt: skip
    return rows


Estimate = Callable[[], np.ndarray]


@cache
def _estimate(rows: tuple[Row, ...], gpu: Gpu) -> Estimate:
    """What computes the model's times of rows of one product, by configs that are alike in all but numbers at once."""
    first = rows[0]
    problem = MatmulProblem.contiguous(first.m, first.n, first.k, dtype="bf16", layout=first.layout)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(rows):
        tiled = () if row.schedule == "hopper_cluster" else (row.block_m, row.block_n)
        alike.setdefault((row.swapped, row.line, row.repacked, *tiled), []).append(number)
    parts: list[tuple[list[int], Estimate]] = []
    for numbers in alike.values():
        some = [rows[number] for number in numbers]
        if some[0].schedule == "hopper_cluster":
            configs = [_cluster_config(row, problem) for row in some]
            tiles = plan_cluster.tiles_of(configs)
            parts.append((numbers, partial(plan_cluster.estimate_us, problem, configs[0], tiles, gpu)))
        else:
            tile, splits = TILES[some[0].block_m, some[0].block_n], np.array([row.split_k for row in some])
            copies = {"repack_a": "A" in some[0].repacked, "repack_b": "B" in some[0].repacked}
            parts.append((numbers, partial(plan_hopper.estimate_us, problem, tile, splits, gpu, **copies)))

    def run() -> np.ndarray:
        found = np.empty(len(rows))
        for numbers, part in parts:
            found[numbers] = part()
        return found

    return run


def _cluster_config(row: Row, problem: MatmulProblem) -> ClusterConfig:
    config = ClusterConfig(
        block_m=row.block_m, block_n=row.block_n, block_k=64, stages=4, consumers=fit_cluster.ROWS[row.block_m],
        cluster_m=row.cluster_m, cluster_n=row.cluster_n, cluster_k=row.cluster_k, swapped=bool(row.swapped),
        line=row.line, tiles_n=row.tiles_n, own_tiles=bool(row.own),
    )  # fmt: skip
    return fit_cluster.overlapped(config.with_knobs(tma_store=config.stores_by_tma(problem)), problem)


def estimates_us(rows: Sequence[Row], gpu: Gpu = GPU) -> np.ndarray:
    """The model's times of configs of one product."""
    return _estimate(tuple(rows), gpu)()


def estimate_us(row: Row) -> float:
    """Of one."""
    return float(estimates_us([row])[0])


def products(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each product of each run."""
    return list(_by(lambda row: (*_product(row), row.torch_us), rows).values())


@dataclass(frozen=True)
class Loss:
    """Of one product, relative: by how much what the model prefers is slower than the fastest, and what is near it."""

    own: float
    near: float
    spread: float  #: of times about their estimates, of configs that are not far from the fastest


def losses(of: Iterable[Sequence[Row]], gpu: Gpu = GPU) -> list[Loss]:
    """Of each product."""
    found = []
    for rows in of:
        times, us = estimates_us(rows, gpu), np.array([row.us for row in rows])
        weights = np.exp((1 - times / times.min()) / NEARNESS)
        good = np.log(us / times)[us < GOOD * us.min()]
        found.append(Loss(
            us[times.argmin()] / us.min() - 1, weights @ us / weights.sum() / us.min() - 1,
            np.abs(good - np.median(good)).mean(),
        ))  # fmt: skip
    return found


def without_own(tiles: plan_cluster.Tiles) -> plan_cluster.Tiles:
    """Those that all warpgroups multiply together: the records that configs are held by are older than others."""
    return plan_cluster.Tiles(*np.array(tiles)[:, tiles.hiding != plan_cluster.OWN])


def _problem_of(record: Record) -> MatmulProblem:
    p = record.problem
    return MatmulProblem.contiguous(p["m"], p["n"], p["k"], dtype=p["dtype"], layout=p["layout"])


@dataclass(frozen=True)
class Held:
    """A config that ran ahead of torch.matmul, and all that a plan ranks for its product."""

    own: Estimate
    every: tuple[Estimate, ...]

    @staticmethod
    def of(record: Record) -> Held:
        """What a record of bench.matmul says."""
        problem, config = _problem_of(record), MatmulConfig.parse((record.config or {})["text"])
        assert isinstance(config, ClusterConfig)

        def whole(config: ClusterConfig, tiles: plan_cluster.Tiles) -> Estimate:
            return partial(plan_cluster.estimate_us, problem, config, tiles, GPU)

        every = [whole(config, without_own(tiles)) for config, tiles in plan_cluster.every_tile(problem, GPU)]
        one = np.ones(1, dtype=int)
        every += [partial(plan_hopper.estimate_us, problem, tile, one, GPU) for tile in plan_hopper.TILES]
        return Held(whole(config, plan_cluster.tiles_of([config])), tuple(every))

    def loss(self) -> float:
        """How far the config is from being preferred, relative, and PASSED_OVER if it is not."""
        behind = float(self.own()[0] / min(part().min() for part in self.every) - 1)
        return behind + (PASSED_OVER if behind > 1e-9 else 0.0)


def held(path: Path) -> list[Held]:
    """Of the products in bf16 that take LEAST_HELD_US or more and whose config the model chose: not the tuned ones, nor
    parts of K that a second launch adds up (plan_cluster.cluster_parts), nor those of few rows or tiles, which have
    estimates of their own."""
    tuned = {(*x.sizes, x.config) for x in shipped_entries(GPU.name)}

    def is_tuned(record: Record) -> bool:
        p = record.problem
        return (1, p["m"], p["n"], p["k"], (record.config or {})["text"]) in tuned

    def is_whole(record: Record) -> bool:
        config = record.config and MatmulConfig.parse(record.config["text"])
        return isinstance(config, ClusterConfig) and config.split_k == 1

    return [
        Held.of(record) for record in load(path)
        if record.candidate == "laneloom" and record.method == METHOD_SUSTAINED and record.median_us >= LEAST_HELD_US
        and record.problem["dtype"] == "bf16" and (record.ratio_to_reference or 0) >= 1
        and record.problem["group"] != "variants"
        and is_whole(record) and not is_tuned(record)
        and plan_cluster.own_estimate(_problem_of(record), GPU) is None
    ]  # fmt: skip


def constants() -> dict[tuple[str, object], float]:
    """What a walk moves: the numbers of MODULES that are no counts, by name and, of a table, key; those of a product's
    Constants by the product's name and theirs."""
    found: dict[tuple[str, object], float] = {}
    for product in PRODUCTS:
        of_product = getattr(model_hopper, product)
        names = (field.name for field in fields(of_product) if field.type == "float")
        found |= {(product, name): float(getattr(of_product, name)) for name in names}
    for module in MODULES:
        for name, value in vars(module).items():
            if name.isupper() and name not in FIXED:
                of = value if isinstance(value, dict) else {None: value}
                found |= {(name, key): number for key, number in of.items() if isinstance(number, float)}
    return found


def set_constant(name: str, key: object, value: float) -> None:
    """Give a constant, or a table's entry, another value wherever MODULES have it."""
    if name in PRODUCTS:
        setattr(model_hopper, name, replace(getattr(model_hopper, name), **{str(key): value}))
        return
    for module in MODULES:
        if key is not None:
            getattr(module, name, {})[key] = value
        elif hasattr(module, name):
            setattr(module, name, value)


Files = Mapping[tuple[str, str], Sequence[Sequence[Row]]]  #: by GPU and file: the rows of each product


def walk(of: Files, steps: int, seed: int, keep: Sequence[Held] = ()) -> float:
    """Move the constants, in place, to a smaller loss, which is returned: the mean over files, and of `keep`."""

    def loss() -> float:
        per_file = []
        for (gpu, name), rows in of.items():
            found = losses(rows, get_gpu(gpu))
            lost = mean(min(SHARE_OF_NEAR * x.near + (1 - SHARE_OF_NEAR) * x.own, MOST_LOST) for x in found)
            times = SHARE_OF_MODELS if name == MODELS else 1
            per_file += [lost + SHARE_OF_SPREAD * mean(x.spread for x in found)] * times
        return mean(per_file) + (SHARE_OF_HELD * mean(x.loss() for x in keep) if keep else 0.0)

    generator, best = random.Random(seed), loss()
    for step in range(steps):
        now = constants()
        moved = generator.sample(sorted(now, key=str), generator.randint(1, 3))
        for name in moved:
            set_constant(*name, now[name] * math.exp(generator.gauss(0, 0.12)))
        if (found := loss()) < best:
            best = found
            print(f"step {step}: {best:.5f}", flush=True)
        else:
            for name in moved:
                set_constant(*name, now[name])
    return best


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Fit the constants of Hopper's cost model to measured configs.")
    parser.add_argument("folder", type=Path, help="of a folder for each GPU, where tiles*.csv are")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    of = {
        (gpu, name): products(measured(arguments.folder / gpu, name)) for gpu, names in FILES.items() for name in names
    }

    def report() -> None:
        for (gpu, name), rows in of.items():
            own = mean(x.own for x in losses(rows, get_gpu(gpu)))
            print(f"{gpu} {name}: {100 * own:.2f}% of {len(rows)} products")

    before = constants()
    report()
    keep = held(arguments.folder / "h200" / "matmul.jsonl")
    walk(of, arguments.steps, arguments.seed, keep)
    report()
    for name, value in constants().items():
        if before[name] != value:
            place = name[0] if name[1] is None else f"{name[0]}[{name[1]}]"
            print(f"{place} = {value:.4g}  # {before[name]:.4g}")


if __name__ == "__main__":
    main()

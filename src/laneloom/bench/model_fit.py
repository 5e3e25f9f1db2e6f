"""Fit the constants of `ops/matmul/model_hopper.py` to the configs that `bench/matmul_tiles.py` measured.

`python -m laneloom.bench.model_fit results/h200 --steps 2000` walks at random from the constants in place: a step moves
one to three of them and stays where what the model prefers of the measured configs is faster. It prints how much slower
than the fastest that is, of each file, before and after, and the constants that moved. A step takes a second or two.
Several walks end at about the same loss with other constants: hold what one says against the plans of the suite.
`tests/cpu/test_hopper_model.py` bounds the losses of the constants in place.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from ..gpu import get_gpu
from ..ops.matmul import model_hopper, plan_cluster, plan_hopper
from ..ops.matmul.config_cluster import ClusterConfig
from ..ops.matmul.problem import MatmulProblem
from .matmul_tiles import Row, read

GPU = get_gpu("sm_90a")
SETUP_US = 0.5  #: that each launch of hopper_cluster took longer when tiles.csv was made; docs/hopper-gemm.md, "Tried"
TILES = {(tile.m, tile.n): tile for tile in plan_hopper.TILES}
OLDEST = "tiles"  #: the file of kernels that did not write C while they multiply
FILES = (OLDEST, "tiles_in_classes", "tiles_overlapped", "tiles_uneven", "tiles_survey", "tiles_random", "tiles_few",
         "tiles_layers")  # fmt: skip
SHARE_OF_NEAR = 0.6  #: of the loss, what configs near the preferred one lose: the loss of that one alone has steps
NEARNESS = 0.012  #: of estimates, relative
#: what measuring one thing gave
FIXED = {"LONG_US", "PROMOTE_CLOCKS", "IN_STEP_SHARE", "FETCHED_US"}
MODULES = (model_hopper, plan_hopper, plan_cluster)


def _is_planned(row: Row) -> bool:
    """Whether clusters of 4 or 8 are no more than fit: the last of them would begin when the others had ended."""
    m, n = (row.n, row.m) if row.swapped else (row.m, row.n)
    peers = row.cluster_m * row.cluster_n * row.cluster_k
    tiles = -(-m // (row.block_m * row.cluster_m)) * -(-n // (row.block_n * row.cluster_n))
    return peers < 4 or tiles * peers <= model_hopper.SMS_IN_CLUSTERS[peers]


def measured(folder: Path, name: str) -> list[Row]:
    """The rows of one of FILES that the model ranks, in today's times."""
    rows = [row for row in read(folder / f"{name}.csv") if _is_planned(row)]
    rows = [row for row in rows if row.schedule == "hopper_cluster" or (row.block_m, row.block_n) in TILES]
    if name == OLDEST:
        rows = [replace(row, us=row.us - SETUP_US) if row.schedule == "hopper_cluster" else row for row in rows]
    return rows


def estimate_us(row: Row, *, overlapped: bool = True) -> float:
    """The model's time of a row's config; overlapped: of kernels that write C while they multiply."""
    problem = MatmulProblem.contiguous(row.m, row.n, row.k, dtype="bf16", layout=row.layout)
    if row.schedule == "hopper_cluster":
        config = ClusterConfig(
            block_m=row.block_m, block_n=row.block_n, block_k=64, stages=4, consumers=plan_cluster.ROWS[row.block_m],
            cluster_m=row.cluster_m, cluster_n=row.cluster_n, cluster_k=row.cluster_k, swapped=bool(row.swapped),
            line=row.line, tiles_n=row.tiles_n,
        )  # fmt: skip
        if overlapped:
            config = config.with_knobs(tma_store=config.stores_by_tma(problem)).overlapped(problem)
        return plan_cluster.estimate_us(problem, config, GPU)
    copies = {"repack_a": "A" in row.repacked, "repack_b": "B" in row.repacked}
    return plan_hopper.estimate_us(problem, TILES[row.block_m, row.block_n], row.split_k, GPU, **copies)


def products(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each product of each run."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row.m, row.n, row.k, row.layout, row.torch_us), []).append(row)
    return list(found.values())


def losses(of: Sequence[Sequence[Row]], *, overlapped: bool = True) -> list[tuple[float, float]]:
    """Of each product: by how much what the model prefers is slower than the fastest, and what is near it."""
    found = []
    for rows in of:
        times = [estimate_us(row, overlapped=overlapped) for row in rows]
        least, fastest = min(times), min(row.us for row in rows)
        weights = [math.exp((1 - time / least) / NEARNESS) for time in times]
        near = sum(w * row.us for w, row in zip(weights, rows, strict=True)) / sum(weights)
        found.append((rows[times.index(least)].us / fastest - 1, near / fastest - 1))
    return found


def constants() -> dict[str, float]:
    """What a walk moves: the numbers of MODULES that are no counts."""
    return {
        name: value for module in MODULES for name, value in vars(module).items()
        if name.isupper() and isinstance(value, float) and name not in FIXED
    }  # fmt: skip


def _set(name: str, value: float) -> None:
    for module in MODULES:  # one has the names of another
        if hasattr(module, name):
            setattr(module, name, value)


def walk(of: Mapping[str, Sequence[Sequence[Row]]], steps: int, seed: int) -> float:
    """Move the constants, in place, to a smaller loss, which is returned: the mean over files."""

    def loss() -> float:
        per_file = []
        for name, rows in of.items():
            found = losses(rows, overlapped=name != OLDEST)
            per_file.append(mean(SHARE_OF_NEAR * near + (1 - SHARE_OF_NEAR) * own for own, near in found))
        return mean(per_file)

    generator, best = random.Random(seed), loss()
    for step in range(steps):
        now = constants()
        moved = generator.sample(sorted(now), generator.randint(1, 3))
        for name in moved:
            _set(name, now[name] * math.exp(generator.gauss(0, 0.12)))
        if (found := loss()) < best:
            best = found
            print(f"step {step}: {best:.5f}", flush=True)
        else:
            for name in moved:
                _set(name, now[name])
    return best


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Fit the constants of Hopper's cost model to measured configs.")
    parser.add_argument("folder", type=Path, help="where tiles*.csv are")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    of = {name: products(measured(arguments.folder, name)) for name in FILES}

    def report() -> None:
        for name, rows in of.items():
            own = mean(own for own, _ in losses(rows, overlapped=name != OLDEST))
            print(f"{name}: {100 * own:.2f}% of {len(rows)} products")

    before = constants()
    report()
    walk(of, arguments.steps, arguments.seed)
    report()
    for name, value in constants().items():
        if before[name] != value:
            print(f"{name} = {value:.4g}  # {before[name]:.4g}")


if __name__ == "__main__":
    main()

"""What the tuner may choose for a product: schedules, knobs and values, narrowed to what `why_invalid` lets pass."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from importlib import import_module
from itertools import islice
from math import prod
from typing import Any

from ..errors import UnsupportedError
from ..gpu import Gpu
from ..ops.matmul.config import FAMILIES, MatmulConfig, plan_with_reasons
from ..ops.matmul.config_async import SLICES_BYTES
from ..ops.matmul.config_cluster import ClusterConfig
from ..ops.matmul.config_hopper import HopperConfig
from ..ops.matmul.config_row import CLUSTERS, LANES, PIECE_BYTES, UNIT
from ..ops.matmul.config_rows import EIGHTH
from ..ops.matmul.config_rows import UNIT as ROWS_UNIT
from ..ops.matmul.config_sgemm import LADDER
from ..ops.matmul.config_wmma import CONTROLS, LDS_LAYOUTS, STORES, TRANSPOSES
from ..ops.matmul.fit_cluster import CLASSES, MOST_FETCHED, MOST_STAGES, ROWS
from ..ops.matmul.model_hopper import SECTOR_BYTES, clusters_at_once
from ..ops.matmul.plan_blocks import scaled_configs
from ..ops.matmul.plan_cluster import CLUSTERS as SHARERS
from ..ops.matmul.plan_cluster import (
    LEAST_COLUMNS,
    best_cluster,
    cluster_parts,
    general_configs,
    own_estimate,
    uneven_numbers,
)
from ..ops.matmul.plan_few import CLUSTERS as FEW_SHARERS
from ..ops.matmul.plan_few import is_few
from ..ops.matmul.plan_short import ALL_ROWS, is_short
from ..ops.matmul.plan_short import CLUSTERS as SHORT_SHARERS
from ..ops.matmul.plan_wide import by_tma
from ..ops.matmul.presets import PRESETS
from ..ops.matmul.problem import DTYPE_BYTES, MatmulProblem, Matrix
from ..ops.matmul.shortlist import shortlist
from ..ops.matmul.tile_orders import ORDERS

#: schedule -> knob -> values; other knobs keep their defaults. Knobs that are chosen together are one, such as
#: "block_m,consumers", whose values are tuples.
Space = dict[str, dict[str, tuple[Any, ...]]]

DRAWS = 4000  #: random configs of a schedule, of which the valid ones show what is worth proposing
SETTLED = ("hopper_cluster",)  #: schedules whose knobs and values stand in an order that `_settle` can follow
_SHORTLISTED = 24  #: tiles of hopper_cluster that the cost model has next, and of hopper a quarter as many
DRAWS_PER_SETTLED = 8  #: settling takes longer than looking, and nearly all are valid
#: steps of the FP32 ladder that a measurement may prefer to what the plan takes
_LAST_STEPS = ("sgemm_k5", "sgemm_k6", "sgemm_k7", "sgemm_k8")
_POWERS = tuple(1 << n for n in range(13))
_BOTH = (False, True)


def _between(low: int, high: int) -> tuple[int, ...]:
    return tuple(n for n in _POWERS if low <= n <= high)


def _rdna() -> Space:
    tiles = {
        "block_m": _between(32, 256), "block_n": _between(16, 256), "block_k": _between(16, 128),
        "waves_n": _between(1, 8), "group_m": (1, 4, 8, 16), "order": tuple(ORDERS),
    }  # fmt: skip
    knobs = {
        **tiles, "lds": LDS_LAYOUTS, "buffers": (1, 2), "prefetch": _BOTH, "transpose": TRANSPOSES, "stores": STORES,
        "control": CONTROLS,
    }  # fmt: skip
    return {
        "wmma": {**knobs, "num_warps": _between(1, 16), "split_k": _between(1, 16)},
        "wmma_coop": {**knobs, "num_warps": _between(2, 16)},
        "wmma_pingpong": {**knobs, "num_warps": _between(2, 16)},
        "wmma_wide": {**knobs, "num_warps": _between(2, 8)},
        "wmma_direct": {
            "block_m": _between(16, 128), "block_n": _between(16, 128), "block_k": _between(16, 128),
            "num_warps": _between(1, 8), "waves_n": _between(1, 4), "group_m": (1, 4, 8, 16), "doubled": _BOTH,
        },
        "fma": {
            "block_m": _between(16, 256), "block_n": _between(16, 256), "block_k": _between(4, 32),
            "num_warps": _between(1, 8), "group_m": (1, 4, 8, 16), "order": tuple(ORDERS),
        },
    }  # fmt: skip


def _cdna(gpu: Gpu) -> Space:
    vector = {"fma": _rdna()["fma"]} if gpu.is_cdna_1 else {}
    return vector | {
        "mfma": {
            "block_m": _between(32, 256), "block_n": _between(32, 256), "block_k": _between(16, 128),
            "num_warps": _between(1, 8), "group_m": (1, 4, 8, 16), "order": tuple(ORDERS),
        }
    }  # fmt: skip


def _hopper(problem: MatmulProblem, gpu: Gpu) -> Space:
    size = DTYPE_BYTES[problem.dtype_a]
    slice_elements = 128 // (2 if problem.precision == "3xbf16" else size)
    walk = {"group_m": (1, 4, 8, 16), "pdl": _BOTH}
    wide = by_tma(problem, gpu) if problem.dtype_a in ("fp32", "fp64") and problem.precision == "ieee" else ()
    parts = (1, *sorted({config.split_k for config, _ in wide} - {1}))
    return {
        "hopper": {
            **walk, "block_m": (64, 128, 256), "block_n": _between(16, 256),
            "block_k": tuple(n // size for n in (64, 128, 256)), "stages": tuple(range(2, 9)), "consumers": (1, 2),
            "split_k": _between(1, 64), "pieces": (1, 2, 4), "buffers": (1, 2), "tma_store": _BOTH,
            "repack_a": _BOTH, "repack_b": _BOTH, "swapped": _BOTH,
            "programs": tuple(n * gpu.compute_units for n in (1, 2, 3)), "max_registers": (128, 168, 208),
        },
        "hopper_cluster": _hopper_cluster(problem, gpu),
        "hopper_precise": {
            **walk, "block_m": (64, 128), "block_n": (64, 128), "block_k": (slice_elements,),
            "stages": tuple(range(2, 9)), "split": _BOTH, "split_k": parts, "copy_a": _BOTH,
            "copy_b": _BOTH, "programs": (gpu.compute_units,),
        },
        "hopper_stream": {
            **walk, "block_m": (64, 128), "block_n": (64, 128, 256), "block_k": (8, 12, 14, 16, 24),
            "num_warps": (4, 8), "stages": tuple(range(2, 13)), "split": _BOTH, "split_k": parts,
            "copy_a": _BOTH, "copy_b": _BOTH,
            "lanes_a": _BOTH, "lanes_b": _BOTH, "programs": (gpu.compute_units, 2 * gpu.compute_units),
        },
        "hopper_registers": {
            **walk, "block_m": (16, 32, 64, 96, 128, 192, 256), "block_n": (16, 32, 64, 96, 128, 192, 256),
            "block_k": (slice_elements,), "stages": tuple(range(2, 9)), "turned": _BOTH, "split_k": _between(1, 64),
            "copy_a": _BOTH, "copy_b": _BOTH, "programs": (gpu.compute_units,),
        },
        "hopper_skinny": {
            **walk, "block_m": (16,), "block_n": _between(1, 128), "block_k": _between(16, 2048),
            "num_warps": (1, 2, 4, 8), "stages": (1, 2, 3, 4, 5), "split_k": _between(1, 16), "use_dot": _BOTH,
            "swapped": (problem.n < problem.m,),
        },
        "hopper_row": {
            **walk, "block_m": (1,), "block_n": tuple(lanes * PIECE_BYTES // size for lanes in LANES),
            "block_k": (UNIT,), "num_warps": (4, 8, 16), "stages": (1, 2), "cluster_k": CLUSTERS,
            "ahead": (0, 64, 128, 256, 512), "swapped": (problem.n < problem.m,),
        },
        "hopper_rows": {
            **walk, "block_m": (-(-min(problem.m, problem.n) // EIGHTH) * EIGHTH,), "block_n": (64, 128, 256, 512),
            "block_k": (ROWS_UNIT,), "num_warps": (4, 8, 16), "stages": (1, 2, 3), "across": (1, 2, 4, 8),
            "cluster_k": CLUSTERS, "resident": (1, 2), "ahead": (0, 256), "swapped": (problem.n < problem.m,),
        },
        "hopper_async": {
            "block_m": (32, 64, 128), "block_n": (1, 4, 8, 16, 32, 64),
            "block_k": tuple(n // size for n in SLICES_BYTES), "stages": tuple(range(2, 9)),
            "cluster_k": CLUSTERS, "split_k": _between(1, 64), "swapped": _BOTH,
            "resident": (1, 2, 3, 4), "pdl": _BOTH,
        },
        "hopper_plain": {
            **walk, "block_m": _between(16, 128), "block_n": _between(16, 128), "block_k": _between(16, 128),
            "num_warps": (2, 4, 8), "stages": (1, 2, 3, 4),
        },
    }  # fmt: skip


def _copies(matrix: Matrix, dtype: str, planned: bool) -> tuple[bool, ...]:
    """Whether to copy an operand: as planned, or where its rows break sectors, which the copy engine reads slowly."""
    pitch = matrix.strides[2] if matrix.major == "n" else matrix.strides[3]
    return _BOTH if not planned and pitch * DTYPE_BYTES[dtype] % SECTOR_BYTES else (planned,)


def _hopper_cluster(problem: MatmulProblem, gpu: Gpu) -> dict[str, tuple[Any, ...]]:
    """What tiles need first, then the tile, then what it leaves room for; of each knob what asks for least first."""
    found = next(iter(scaled_configs(problem, gpu)), None) if problem.adds_blocks else best_cluster(problem, gpu)
    if found is None:
        return {}
    planned = found[0]
    least = min(LEAST_COLUMNS, -(-min(problem.m, problem.n) // 16) * 8)
    slices = -(-problem.k // planned.block_k)
    shapes = set(SHARERS)
    if is_few(problem):
        shapes |= {(shared, 1, parts) for shared, parts in FEW_SHARERS}
    elif is_short(problem, gpu):
        shapes |= set(SHORT_SHARERS)
        least = 16
    return {
        "split_k": (1, *sorted({config.split_k for config, _ in cluster_parts(problem, gpu)})),
        "pieces": (planned.pieces,), "block_k": (planned.block_k,),
        "promote": (1, 2, 4) if planned.promote else (0,),
        "scaled,dual": ((1, False), (1, True), (2, False)) if problem.adds_blocks else ((0, False),),
        "copy_a": _copies(problem.a, problem.dtype_a, planned.copy_a),
        "copy_b": _copies(problem.b, problem.dtype_b, planned.copy_b), "swapped": _BOTH, "line": (0, *CLASSES),
        "block_m,consumers": tuple(sorted({*ROWS.items(), (128, 1)})), "block_n": tuple(range(least, 257, 8)),
        # More clusters than fit at once would begin when others end.
        "cluster_m,cluster_n,cluster_k,programs": tuple(
            (*shape, int(clusters_at_once(prod(shape), gpu)) * prod(shape)) for shape in sorted(shapes)),
        "tma_store": _BOTH,
        "tiles_n": (0, *uneven_numbers(problem, planned, gpu)),
        "split,hold_back,own_tiles": (
            *((split, kept, False) for split in _BOTH for kept in (0, 1, 2)), (False, 0, True)),
        "panels": (1, 2, 4), "stages": tuple(range(2, MOST_STAGES + 1)),
        "fetched": tuple(range(min(slices, MOST_FETCHED) + 1)), "group_m": (1, 4, 8, 16, ALL_ROWS), "pdl": _BOTH,
    }  # fmt: skip


#: knobs that a quick search leaves at the values of the configs that it starts from
SLOW_KNOBS = (
    "lds", "buffers", "prefetch", "transpose", "stores", "control", "pdl", "panels", "lead", "max_registers", "line",
    "fetched",
)  # fmt: skip


def starting_points(problem: MatmulProblem, gpu: Gpu, *, quick: bool = False) -> list[MatmulConfig]:
    """Configs that are tried first: the cost model's choice, its other candidates and, unless quick, the presets; of
    Hopper's tiles the model's next choices; the last steps of the FP32 ladder, which no plan takes by itself.

    Raises UnsupportedError where no schedule can do the product.
    """
    found = [plan_with_reasons(problem, gpu, use_tables=False).config]
    family = import_module(f"laneloom.ops.matmul.{FAMILIES[gpu.matrix_instructions]}")
    others = [config for config, _ in family.candidates(problem, gpu)]
    if gpu.matrix_instructions == "wmma" and not quick:
        others += [config for config in PRESETS.values() if isinstance(config, MatmulConfig)]
    if isinstance(found[0], HopperConfig | ClusterConfig):
        ranked = list(shortlist(problem, gpu, _SHORTLISTED // 4))
        others += [config for config in ranked if isinstance(config, HopperConfig)][: _SHORTLISTED // 4]
        others += [config for config in ranked if isinstance(config, ClusterConfig)][:_SHORTLISTED]
        if own_estimate(problem, gpu):  # what another model has at its top
            others += [config for config, _ in islice(general_configs(problem, gpu), _SHORTLISTED // 4)]
    others += [LADDER[step] for step in _LAST_STEPS]
    for config in others:
        if config not in found and config.why_invalid(problem, gpu) is None:
            found.append(config)
    return found


def search_space(
    problem: MatmulProblem, gpu: Gpu, starts: Sequence[MatmulConfig], *, quick: bool = False, draws: int = DRAWS
) -> Space:
    """Schedules, knobs and values that some valid config of the product has, and those of `starts`. Deterministic.

    quick: only the tile, its waves or stages and the order are searched.
    """
    by_family = {"wmma": _rdna, "mfma": lambda: _cdna(gpu), "wgmma": lambda: _hopper(problem, gpu)}
    wide = by_family[gpu.matrix_instructions]()
    for config in starts:
        wide.setdefault(config.schedule, {})
    space: Space = {}
    for schedule, knobs in wide.items():
        mine = [config for config in starts if config.schedule == schedule]
        if quick:
            knobs = {
                name: tuple(dict.fromkeys(value_of(config, name) for config in mine)) if name in SLOW_KNOBS else values
                for name, values in knobs.items()
                if mine or name not in SLOW_KNOBS
            }
        if schedule in SETTLED:
            drawn = [
                _settle(config, knobs, problem, gpu, mine)
                for config in _draw(schedule, tuple(knobs.items()), -(-draws // DRAWS_PER_SETTLED))
            ]
        else:
            drawn = list(_draw(schedule, tuple(knobs.items()), draws))
        found = [config for config in drawn if config.why_invalid(problem, gpu) is None] + mine
        if found:
            together = {name for names in knobs for name in names.split(",")}
            others = {f.name for config in mine for f in fields(config)} - together - {"schedule"}
            space[schedule] = {
                name: _ordered({value_of(config, name) for config in found}, knobs.get(name, ()))
                for name in (*knobs, *sorted(others))
            }
    if not space:
        raise UnsupportedError(f"there is nothing to tune for {problem.key} on {gpu.name}")
    return space


def _ordered(values: set[Any], order: Sequence[Any]) -> tuple[Any, ...]:
    """The values that are in `order` in that order, then the others."""
    return *(value for value in order if value in values), *sorted(values.difference(order))


def value_of(config: MatmulConfig, knob: str) -> Any:
    """A config's value of a knob of a space."""
    if "," not in knob:
        return getattr(config, knob)
    return tuple(getattr(config, name) for name in knob.split(","))


def _fields(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config that knobs of a space set."""
    found: dict[str, Any] = {}
    for knob, value in knobs.items():
        names = knob.split(",")
        found |= zip(names, value if len(names) > 1 else (value,), strict=True)
    return found


def make_config(schedule: str, knobs: Mapping[str, Any]) -> MatmulConfig:
    """The config of a schedule with these knobs; others keep their defaults."""
    return MatmulConfig.parse(f"{schedule}:" + ",".join(f"{name}={value}" for name, value in _fields(knobs).items()))


@lru_cache(maxsize=16)
def _draw(schedule: str, knobs: tuple[tuple[str, tuple[Any, ...]], ...], draws: int) -> tuple[MatmulConfig, ...]:
    if not knobs:
        return ()
    chooser = random.Random(schedule)
    first = make_config(schedule, {name: values[0] for name, values in knobs})
    return tuple(
        replace(first, **_fields({name: chooser.choice(values) for name, values in knobs})) for _ in range(draws)
    )


def _settle(
    wanted: MatmulConfig, knobs: Mapping[str, Sequence[Any]], problem: MatmulProblem, gpu: Gpu,
    starts: Sequence[MatmulConfig],
) -> MatmulConfig:  # fmt: skip
    """What is wanted if it is valid; else, knob after knob, the nearest value that asks for no more and is valid.

    It begins at the first value of every knob, or at a starting point where these are refused.
    """
    if wanted.why_invalid(problem, gpu) is None:
        return wanted
    least = replace(wanted, **_fields({name: values[0] for name, values in knobs.items()}))
    settled = next((c for c in (least, *starts) if c.why_invalid(problem, gpu) is None), None)
    if settled is None:
        return wanted
    for name, values in knobs.items():
        for value in reversed(values[: values.index(value_of(wanted, name)) + 1]):
            config = replace(settled, **_fields({name: value}))
            if config.why_invalid(problem, gpu) is None:
                settled = config
                break
    return settled


def _choice(value: Any) -> Any:
    """A value as Optuna keeps it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def params_of(config: MatmulConfig, space: Space) -> dict[str, Any]:
    """A config of the space as the study's parameters."""
    knobs = {f"{config.schedule}.{name}": _choice(value_of(config, name)) for name in space[config.schedule]}
    return {"schedule": config.schedule} | knobs


def propose(
    trial: Any, space: Space, problem: MatmulProblem, gpu: Gpu, starts: Sequence[MatmulConfig]
) -> MatmulConfig:
    """The config that an Optuna trial chooses, settled where the schedule is one of SETTLED; others may be invalid."""
    schedule = trial.suggest_categorical("schedule", tuple(space))
    knobs = {}
    for name, values in space[schedule].items():
        choices = [_choice(value) for value in values]
        one = len(values) == 1
        knobs[name] = values[0 if one else choices.index(trial.suggest_categorical(f"{schedule}.{name}", choices))]
    config = make_config(schedule, knobs)
    if schedule not in SETTLED:
        return config
    return _settle(config, space[schedule], problem, gpu, [c for c in starts if c.schedule == schedule])

"""What the tuner may choose for a product: schedules, knobs and values, narrowed to what `why_invalid` lets pass."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from typing import Any

from ..errors import UnsupportedError
from ..gpu import Gpu
from ..ops.matmul.config import FAMILIES, MatmulConfig, plan_with_reasons
from ..ops.matmul.config_row import CLUSTERS, COLUMNS, UNIT
from ..ops.matmul.config_sgemm import LADDER
from ..ops.matmul.config_wmma import CONTROLS, LDS_LAYOUTS, STORES, TRANSPOSES
from ..ops.matmul.presets import PRESETS
from ..ops.matmul.problem import DTYPE_BYTES, MatmulProblem
from ..ops.matmul.tile_orders import ORDERS

Space = dict[str, dict[str, tuple[Any, ...]]]  #: schedule -> knob -> values; other knobs keep their defaults

DRAWS = 4000  #: random configs of a schedule, of which the valid ones show what is worth proposing
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


def _cdna() -> Space:
    return {
        "mfma": {
            "block_m": _between(32, 256), "block_n": _between(32, 256), "block_k": _between(16, 128),
            "num_warps": _between(1, 8), "group_m": (1, 4, 8, 16), "order": tuple(ORDERS),
        }
    }  # fmt: skip


def _hopper(problem: MatmulProblem, gpu: Gpu) -> Space:
    size = DTYPE_BYTES[problem.dtype_a]
    slice_elements = 128 // (2 if problem.precision == "3xbf16" else size)
    # A knob that the precision leaves no choice of; `why_invalid` picks among the values.
    pieces = (1, 2, 3)
    walk = {"group_m": (1, 4, 8, 16), "pdl": _BOTH}
    return {
        "hopper": {
            **walk, "block_m": (64, 128, 256), "block_n": _between(16, 256),
            "block_k": tuple(n // size for n in (64, 128, 256)), "stages": tuple(range(2, 9)), "consumers": (1, 2),
            "split_k": _between(1, 64), "pieces": (1, 2, 4), "buffers": (1, 2), "tma_store": _BOTH,
            "repack_a": _BOTH, "repack_b": _BOTH, "swapped": _BOTH,
            "programs": tuple(n * gpu.compute_units for n in (1, 2, 3)), "max_registers": (128, 168, 208),
        },
        "hopper_cluster": {
            **walk, "block_m": (64, 128, 192, 256), "block_n": tuple(range(8, 257, 8)),
            "block_k": (slice_elements,), "stages": tuple(range(2, 15)), "consumers": (1, 2, 3),
            "cluster_m": (1, 2, 4), "cluster_n": (1, 2, 4), "cluster_k": (1, 2, 4), "panels": (1, 2, 4),
            "tma_store": _BOTH, "copy_a": _BOTH, "copy_b": _BOTH, "pieces": pieces, "promote": (0, 1, 2, 4),
            "swapped": _BOTH, "programs": (gpu.compute_units,),
        },
        "hopper_precise": {
            **walk, "block_m": (64, 128), "block_n": (64, 128), "block_k": (slice_elements,),
            "stages": tuple(range(2, 9)), "copy_a": _BOTH, "copy_b": _BOTH, "programs": (gpu.compute_units,),
        },
        "hopper_stream": {
            **walk, "block_m": (64, 128), "block_n": (64, 128, 256), "block_k": (8, 12, 14, 24, 32),
            "stages": tuple(range(2, 13)), "split": _BOTH, "copy_a": _BOTH, "copy_b": _BOTH,
            "programs": (gpu.compute_units,),
        },
        "hopper_registers": {
            **walk, "block_m": (64, 128, 256), "block_n": (64, 128, 256), "block_k": (slice_elements,),
            "stages": tuple(range(2, 9)), "copy_other": _BOTH, "programs": (gpu.compute_units,),
        },
        "hopper_skinny": {
            **walk, "block_m": (16,), "block_n": _between(4, 128), "block_k": _between(16, 2048),
            "num_warps": (1, 2, 4, 8), "stages": (1, 2, 3, 4, 5), "split_k": _between(1, 16), "use_dot": _BOTH,
        },
        "hopper_row": {
            **walk, "block_m": (1,), "block_n": COLUMNS, "block_k": (UNIT,), "num_warps": (4, 8, 16), "stages": (1, 2),
            "cluster_k": CLUSTERS, "ahead": (0, 64, 128, 256, 512),
        },
        "hopper_plain": {
            **walk, "block_m": _between(16, 128), "block_n": _between(16, 128), "block_k": _between(16, 128),
            "num_warps": (2, 4, 8), "stages": (1, 2, 3, 4),
        },
    }  # fmt: skip


#: knobs that a quick search leaves at the values of the configs that it starts from
SLOW_KNOBS = ("lds", "buffers", "prefetch", "transpose", "stores", "control", "pdl", "panels", "lead", "max_registers")


def starting_points(problem: MatmulProblem, gpu: Gpu, *, quick: bool = False) -> list[MatmulConfig]:
    """Configs that are tried first: the cost model's choice, its other candidates and, unless quick, the presets; the
    last steps of the FP32 ladder, which no plan takes by itself.

    Raises UnsupportedError where no schedule can do the product.
    """
    found = [plan_with_reasons(problem, gpu, use_tables=False).config]
    family = import_module(f"laneloom.ops.matmul.{FAMILIES[gpu.matrix_instructions]}")
    others = [config for config, _ in family.candidates(problem, gpu)]
    if gpu.matrix_instructions == "wmma" and not quick:
        others += [config for config in PRESETS.values() if isinstance(config, MatmulConfig)]
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
    by_family = {"wmma": _rdna, "mfma": _cdna, "wgmma": lambda: _hopper(problem, gpu)}
    wide = by_family[gpu.matrix_instructions]()
    for config in starts:
        wide.setdefault(config.schedule, {})
    space: Space = {}
    for schedule, knobs in wide.items():
        mine = [config for config in starts if config.schedule == schedule]
        if quick:
            knobs = {
                name: tuple(dict.fromkeys(getattr(config, name) for config in mine)) if name in SLOW_KNOBS else values
                for name, values in knobs.items()
                if mine or name not in SLOW_KNOBS
            }
        valid = [config for config in _draw(schedule, knobs, draws) if config.why_invalid(problem, gpu) is None]
        names = set(knobs).union(f.name for config in mine for f in fields(config) if f.name != "schedule")
        seen = {name: {getattr(config, name) for config in valid + mine} for name in sorted(names) if valid or mine}
        if seen:
            space[schedule] = {name: tuple(sorted(values, key=_order)) for name, values in seen.items()}
    if not space:
        raise UnsupportedError(f"there is nothing to tune for {problem.key} on {gpu.name}")
    return space


def _order(value: Any) -> tuple[str, Any]:
    return type(value).__name__, value


def make_config(schedule: str, knobs: Mapping[str, Any]) -> MatmulConfig:
    """The config of a schedule with these knobs; others keep their defaults."""
    return MatmulConfig.parse(f"{schedule}:" + ",".join(f"{name}={value}" for name, value in knobs.items()))


def _draw(schedule: str, knobs: Mapping[str, Sequence[Any]], draws: int) -> list[MatmulConfig]:
    if not knobs:
        return []
    chooser = random.Random(schedule)
    first = make_config(schedule, {name: values[0] for name, values in knobs.items()})
    return [replace(first, **{name: chooser.choice(values) for name, values in knobs.items()}) for _ in range(draws)]


def params_of(config: MatmulConfig, space: Space) -> dict[str, Any]:
    """A config of the space as the study's parameters."""
    knobs = {f"{config.schedule}.{name}": getattr(config, name) for name in space[config.schedule]}
    return {"schedule": config.schedule} | knobs


def propose(trial: Any, space: Space) -> MatmulConfig:
    """The config that an Optuna trial chooses; it may be invalid."""
    schedule = trial.suggest_categorical("schedule", tuple(space))
    knobs = {
        name: values[0] if len(set(values)) == 1 else trial.suggest_categorical(f"{schedule}.{name}", values)
        for name, values in space[schedule].items()
    }
    return make_config(schedule, knobs)

"""The rungs of the ladder: which schedule each level of the transformbench seed is on each GPU, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ArgumentError
from ...gpu import Gpu
from . import execute
from .config import ChainedConfig, FusedConfig, MatmulsConfig, RowsConfig, Transform3dConfig, parse_config, plan
from .config_levels import AMD_THREADS, AmdLevelsConfig, CublasdxConfig, KroneckerConfig, LevelsConfig
from .problem import Transform3dProblem

#: Name of every level, as in the seed's output line. "fused" is laneloom's own, with the config that `plan` chooses.
LEVELS = {
    "1": "L1-global",
    "2": "L2-shared",
    "3": "L3-regblk",
    "4": "L4-mma",
    "5": "L5-cublasdx",
    "6": "L6-kron",
    "7": "L7-chained",
    "fused": "fused",
}
_AMD_NAMES = {"5": "L5-strips"}
_NARROW_K, _WIDE_K = 10, 16


def level_name(level: str, gpu: Gpu) -> str:
    """The level's name in the output line."""
    return _AMD_NAMES.get(level, LEVELS[level]) if gpu.vendor == "amd" else LEVELS[level]


def level_config(level: str, problem: Transform3dProblem, gpu: Gpu, *, blocks: int = 512) -> Transform3dConfig:
    """The config of one level.

    On AMD's GPUs and in the emulator, levels 1, 2, 3 and 5 are the schedule `levels_amd`, 4 is `rows` through the
    matrix unit (v_fma_f64 on RDNA, which has no FP64 matrix instruction), 7 is `chained`.
    Raises ArgumentError for an unknown level, InvalidConfigError with the reason where the level cannot do the problem.
    """
    k = problem.k
    if level not in LEVELS:
        raise ArgumentError(f"level: expected one of {', '.join(LEVELS)}, got {level!r}")
    if level == "fused":
        return plan(problem, gpu)
    if gpu.vendor == "amd" and level != "6":
        config = RowsConfig(dot=True) if level == "4" else _amd_config(level, k)
    elif level == "7":
        config = FusedConfig(warps=4 if k <= _WIDE_K else 8, bulk=problem.vector_aligned)
    elif level == "6":
        config = KroneckerConfig()
    elif level == "5":
        config = CublasdxConfig(threads=64 if k <= _NARROW_K else 128)  # what the library itself suggests
    else:
        config = LevelsConfig(level=int(level), blocks=blocks)
    return execute.checked_config(problem, gpu, config)


def _amd_config(level: str, k: int) -> Transform3dConfig:
    return ChainedConfig.for_order(k) if level == "7" else AmdLevelsConfig(level=int(level))


def launch_shape(config: Transform3dConfig, problem: Transform3dProblem, gpu: Gpu, blocks: int) -> tuple[int, int, int]:
    """CTAs, threads and bytes of shared memory that the kernel's text names; 0 where a library or Triton chooses."""
    rows = problem.count * problem.k**2
    if isinstance(config, AmdLevelsConfig):
        return -(-rows // config.rows(problem.k)), AMD_THREADS, config.shared_bytes(problem.k)
    if isinstance(config, RowsConfig):
        return -(-rows // config.rows), config.num_warps * gpu.wave, 0
    if isinstance(config, ChainedConfig):
        return -(-problem.count // config.group), config.num_warps * gpu.wave, 0
    if isinstance(config, FusedConfig):
        ctas = -(-problem.count // config.group) * config.cluster
        return ctas, 32 * config.warps, config.shared_bytes(problem)
    if isinstance(config, CublasdxConfig):
        return problem.count, config.threads, config.shared_bytes(problem.k)
    if isinstance(config, LevelsConfig):
        return min(blocks, problem.count), config.threads, 0 if config.level == 1 else problem.k**2 * 8
    return 0, 0, 0


def terms_ratio(config: Transform3dConfig, k: int) -> float:
    """Products of a config's longest sum over the 3 K of three chained contractions: its error bound's factor."""
    return (k**3 + 2) / (3 * k) if isinstance(config, KroneckerConfig) else 1.0


def footprint_of(knobs: Mapping[str, Any], problem: Transform3dProblem) -> int:
    """`footprint_bytes` of a config that a record holds."""
    words = ",".join(f"{name}={value}" for name, value in knobs.items() if name != "schedule")
    return footprint_bytes(parse_config(f"{knobs['schedule']}:{words}"), problem)


def footprint_bytes(config: Transform3dConfig, problem: Transform3dProblem, blocks: int = 512) -> int:
    """Device memory that one call holds: both batches, the matrix and what the schedule keeps between its passes."""
    tensor = problem.k**3 * problem.element_bytes
    batches = 2 * problem.count * tensor + problem.k**2 * problem.element_bytes
    if isinstance(config, LevelsConfig):
        return batches + min(blocks, problem.count) * tensor
    if isinstance(config, AmdLevelsConfig | RowsConfig | MatmulsConfig):
        return batches + 2 * problem.count * tensor
    if isinstance(config, KroneckerConfig):
        return batches + (problem.k**6 + problem.k**4) * problem.element_bytes
    return batches

"""Which config runs a product with a weight of few bits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ...errors import InvalidConfigError, UnsupportedError
from ...gpu import Gpu
from .config import MOST_WITH_ZEROS, BaseConfig, QuantizedConfig, given_config
from .config_fragments import FragmentsConfig
from .config_hopper import hopper_configs
from .problem import QuantizedProblem

#: rows up to which a tile is made for: block_m, block_n, block_k, warps; above, LARGE
TILES = ((1, 1, 16, 256, 2), (16, 16, 16, 128, 1), (64, 32, 32, 64, 2))
#: of more rows; of weights of 8 bits a longer K-tile leaves no registers (RDNA)
LARGE = {True: (64, 128, 64, 4), False: (64, 128, 32, 4)}
FEW_OF_GROUP, SOME_OF_GROUP = 48, 192  #: rows, for which tiles of 32, and of 64, are faster than larger ones
MOST_PARTS, WAVES = 8, 2  #: of K; waves of a SIMD that parts of K are for


def _fragments(problem: QuantizedProblem, gpu: Gpu) -> Iterator[BaseConfig]:
    """Of many rows on RDNA and CDNA, as predicted for 512 of them.

    A wave with 128 rows has no registers for a second set of sums on RDNA 4: where groups have their own it gets 64,
    and K-tiles of several small groups. RDNA 3 is slower so than by `tiles`, or spills, but for large groups of 4 bits.

    Of rows in groups a tile has no more than a group is likely to fill. Where K-tiles are half of a line
    of X, CDNA's L2 is the limit: larger tiles ask it for less.
    """
    own_sums = problem.group > 0 and not problem.folds
    if gpu.wmma_version == 0:
        block_m, block_n, block_k = 64, 64, 128
    elif gpu.wmma_version == 2 and own_sums:
        block_m, block_n, block_k = 64, 128, 128 if problem.group < 64 else 64
    elif own_sums and (problem.group < 64 or not problem.is_packed):
        if not problem.ragged:
            return
        block_m, block_n, block_k = 64, 64, 64
    else:
        block_m, block_n, block_k = 128, 64, 64
    if problem.ragged and problem.typical.m <= SOME_OF_GROUP:
        block_m = 64
    few = problem.ragged and problem.typical.m <= FEW_OF_GROUP
    for depth in (block_k, block_k // 2):
        rows = 32 if few else block_m
        if problem.ragged and gpu.wmma_version == 0 and depth < block_k:
            rows, block_n = 64, 128
        config = FragmentsConfig(block_m=rows, block_n=block_n, block_k=depth)
        # with fewer waves than three for four SIMDs parts of K are faster
        programs = problem.likely_row_tiles(rows) * -(-problem.n // block_n)
        if 4 * programs * config.num_warps >= 3 * gpu.compute_units * gpu.simds_per_cu:
            yield config


def candidates(problem: QuantizedProblem, gpu: Gpu) -> Iterator[BaseConfig]:
    """Best first; of `tiles` on every GPU, of `hopper_weights`, and of many rows `fragments`, ahead of them where these
    can read the operands.

    The tile goes by the rows, of each group where they are in groups: few have K-tiles of several small groups of K,
    whose lines of memory are whole.

    Of few waves, fewer than a GPU has SIMDs, K goes in parts: their second launch is worth the memory's latency then.
    """
    if gpu.matrix_instructions == "wgmma":
        yield from hopper_configs(problem, gpu)
    stages = 2 if gpu.vendor == "nvidia" else 1
    longest = 1 << max(4, (problem.k - 1).bit_length())
    m = problem.typical.m
    if m > TILES[1 if problem.ragged else -1][0] and gpu.vendor == "amd":
        yield from _fragments(problem, gpu)
    for rows, block_m, block_n, block_k, num_warps in (*TILES, (m, *LARGE[problem.is_packed])):
        if m > rows:
            continue
        if block_m > 32 and not problem.folds:
            block_k = min(block_k, problem.group or block_k)
        elif block_m > 1 and problem.zeros and problem.group:
            block_k = min(block_k, MOST_WITH_ZEROS * problem.group)
        config = QuantizedConfig(
            block_m=block_m, block_n=block_n, block_k=min(block_k, longest), num_warps=num_warps, stages=stages
        )
        waves, simds = config.programs(problem) * num_warps, gpu.compute_units * gpu.simds_per_cu
        parts = min(MOST_PARTS, -(-WAVES * simds // waves)) if waves < simds and not problem.ragged else 1
        yield config.with_knobs(split_k=parts)
    yield QuantizedConfig(block_m=16, block_n=16, block_k=16, num_warps=1, stages=1)


@lru_cache(maxsize=4096)
def plan(problem: QuantizedProblem, gpu: Gpu) -> BaseConfig:
    """The config that `quantized_matmul` runs when none is given. Pure. Raises UnsupportedError."""
    first = None
    for config in candidates(problem, gpu):
        why = config.why_invalid(problem, gpu)
        if why is None:
            return config
        first = first or why
    raise UnsupportedError(f"{first} (no schedule can do {problem.key} on {gpu.name})")


def checked_config(problem: QuantizedProblem, gpu: Gpu, config: Any) -> BaseConfig:
    """`config`, or the planned one. Raises InvalidConfigError for one that cannot do the problem on the GPU."""
    if config is None:
        return plan(problem, gpu)
    chosen = given_config(config)
    why = chosen.why_invalid(problem, gpu)
    if why is not None:
        raise InvalidConfigError(f"config {chosen.text} cannot run: {why}")
    return chosen

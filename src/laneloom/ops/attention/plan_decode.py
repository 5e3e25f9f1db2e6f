"""Which config attention over a cache gets.

On Hopper by estimates of the time of each (model_decode.py): of lengths that are all as long as there is room for, and
of lengths that differ, which only the GPU knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import gcd, log

from ...errors import UnsupportedError
from ...gpu import Gpu
from .config import padded
from .config_decode import (
    MOST_CLUSTER,
    MOST_SPLITS,
    STATIC_BYTES,
    DecodeConfig,
    DecodeProblem,
    HopperDecodeConfig,
    HopperRangesConfig,
)
from .model_decode import CLUSTERS, EVEN, RAGGED, SKEWED, clusters_at_once, estimate_us, is_held_up, memory_us
from .problem import DTYPE_BYTES

_PROGRAMS_PER_PROCESSOR = 8  #: enough of one wave each to keep the memory's queues full
_LEAST_STEPS = 4  #: blocks of keys of a program
_LEAST_STAGES = 2  #: of a ring, where there is room
_ON_THE_WAY = 12e6  #: bytes that all rings together hold; of more, memory is slower
#: programs that a processor's registers hold, by the most columns of a row: PROGRAMS of the kernels
_RESIDENT = {"hopper_decode": {64: 3, 160: 2}, "hopper_decode_ranges": {64: 3, 128: 2}}
_ABREAST, _WIDEST_ABREAST = (1, 2, 4), 192  #: heads of keys that a program may read as one, and their columns
_CLUSTERS_OF_ROW = (1, 2, 3, 4, 6, 8, 12, 16, 32)
_LARGE_CLUSTER, _LARGE_CLUSTER_US = 8, 5  #: programs, and of reading
_FEW_SPLITS = 4  #: more of them are no more than run at once
#: of reading, up to which the next kernel's programs take their places early; where these take several rounds, and
#: where they find no places for their clusters
_EARLY_US, _EARLY_IN_ROUNDS_US, _EARLY_HELD_UP_US = 16, 20, 0.5
_NEARLY_FULL = 0.75  #: of the places for programs
#: what the logarithm of a time counts for, by the lengths' spread
_WEIGHTS = {EVEN: 2, RAGGED: 1, SKEWED: 1}
_LINE = 128  #: bytes that a miss brings: of what lies in one, programs far from each other read it twice


def hopper_configs(
    problem: DecodeProblem, gpu: Gpu, shares: Sequence[tuple[int, int]] | None = None
) -> Iterator[tuple[int, HopperDecodeConfig]]:
    """Programs that a processor has at once, and the config: of clusters and how many of them share a row's keys."""
    tiles = max(1, -(-problem.keys // HopperDecodeConfig.tile))
    # The processors of a large cluster lie together, and read a long cache by the one way that they have.
    largest = _LARGE_CLUSTER if memory_us(problem, gpu) > _LARGE_CLUSTER_US else MOST_CLUSTER
    for abreast in _abreast(problem, gpu):
        alone = HopperDecodeConfig(splits=1, stages=1, abreast=abreast)
        programs = alone.programs(problem)
        room = _most_resident(alone, problem) * gpu.compute_units
        for cluster, clusters in shares or product(CLUSTERS, _CLUSTERS_OF_ROW):
            splits = cluster * clusters
            fits = cluster <= largest and splits <= min(tiles, MOST_SPLITS)
            if fits and (splits <= _FEW_SPLITS or programs * splits <= room):
                yield from _with_rings(replace(alone, splits=splits, cluster=cluster), problem, gpu)


def ranges_configs(problem: DecodeProblem, gpu: Gpu) -> Iterator[tuple[int, HopperRangesConfig]]:
    """Programs that a processor has at once, and the config: as many programs as there are places for, or nearly as
    many, so that heads of one length are divided evenly."""
    tiles = max(1, -(-problem.keys // HopperRangesConfig.tile))
    for abreast in _abreast(problem, gpu):
        row_bytes = abreast * gcd(problem.d, problem.d_v) * DTYPE_BYTES[problem.dtype]
        if row_bytes % _LINE and problem.adjacent and problem.kv_heads > abreast:
            continue
        one = HopperRangesConfig(ranges=1, stages=1, abreast=abreast)
        units, tile = one.units(problem), one.ring_bytes(problem)
        if units == 0:
            return
        for resident in range(1, _most_resident(one, problem) + 1):
            places = resident * gpu.compute_units
            even = places // units * units if units <= places else -(-units // -(-units // places))
            for ranges in dict.fromkeys((even, places)):
                if not (resident - 1) * gpu.compute_units < ranges <= units * (tiles + 1):
                    continue
                wanted = max(_LEAST_STAGES, round(_ON_THE_WAY / (ranges * tile)))
                for stages in range(wanted, 0 if resident == 1 else _LEAST_STAGES - 1, -1):
                    config = replace(one, ranges=ranges, stages=stages, alone=resident == 1)
                    if config.lds_bytes(problem) + STATIC_BYTES <= gpu.lds_bytes // resident:
                        yield resident, config
                        break


def _abreast(problem: DecodeProblem, gpu: Gpu) -> Iterator[int]:
    """How many heads of keys a program may read as one."""
    for abreast in _ABREAST:
        if HopperDecodeConfig(splits=1, stages=1, abreast=abreast).why_invalid(problem, gpu):
            continue
        seen = problem.abreast(abreast)
        # More rows than one program has would read the keys more than once.
        fits = max(seen.d, seen.d_v) <= _WIDEST_ABREAST and seen.row_tiles <= problem.row_tiles
        if abreast == 1 or fits:
            yield abreast


def _with_rings(
    config: HopperDecodeConfig, problem: DecodeProblem, gpu: Gpu
) -> Iterator[tuple[int, HopperDecodeConfig]]:
    """Programs that a processor has at once, and the config with its ring.

    Where each program can have a processor, it has it alone: else the next launch's programs come to lie in twos
    beside the last of these, and their processors' ways to the L2 are too narrow. All rings together then hold what
    memory wants to have on the way. More programs than processors share them, with rings as long as there is room, and
    so may few large clusters, which the next launch's find no places beside.
    """
    programs, tile = max(config.programs(problem), 1), config.tile * 128 * config.pieces(problem)
    most = (gpu.lds_bytes - STATIC_BYTES - 1024) // tile
    resident = _most_resident(config, problem)
    at_once = config.cluster * clusters_at_once(config.cluster, gpu)
    if programs <= at_once or resident == 1:
        wanted = _ON_THE_WAY / (min(programs, at_once) * tile)
        stages = max(1, min(most, max(_LEAST_STAGES, round(wanted))))
        yield 1, replace(config, stages=stages, alone=True, early=_is_early(config, 1, problem, gpu))
    if programs > max(at_once, gpu.compute_units) or is_held_up(config, problem, gpu):
        for rings in range(2, resident + 1):
            stages = (gpu.lds_bytes // rings - STATIC_BYTES - 1024) // tile
            if stages > 1:
                yield rings, replace(config, stages=stages, early=_is_early(config, rings, problem, gpu))


def _is_early(config: HopperDecodeConfig, resident: int, problem: DecodeProblem, gpu: Gpu) -> bool:
    """Whether the next launch's programs take their places as these begin, and ask the L2 for their first keys: where
    they find processors without programs, or none, and reading takes so little that its beginning counts."""
    programs, us = config.programs(problem), memory_us(problem, gpu)
    if is_held_up(config, problem, gpu):
        return resident == 1 and us < _EARLY_HELD_UP_US
    rounds = programs / (resident * gpu.compute_units)
    is_full = resident == 1 or rounds > _NEARLY_FULL
    return is_full and us < (_EARLY_US if rounds <= 1 else _EARLY_IN_ROUNDS_US)


def _most_resident(config: HopperDecodeConfig | HopperRangesConfig, problem: DecodeProblem) -> int:
    columns = config.abreast * max(problem.d, problem.d_v)
    return next((n for limit, n in _RESIDENT[config.schedule].items() if columns <= limit), 1)


def _plan_hopper(problem: DecodeProblem, gpu: Gpu) -> HopperDecodeConfig | HopperRangesConfig | None:
    """The config that has the shortest estimates, of several spreads of the lengths where there are several."""
    problem = replace(problem, keys=problem.read_keys)
    weights = _WEIGHTS if problem.batch > 1 else {EVEN: 1}
    found = [
        (sum(weight * log(estimate_us(problem, config, n, gpu, spread)) for spread, weight in weights.items()), config)
        for n, config in (*hopper_configs(problem, gpu), *ranges_configs(problem, gpu))
    ]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def plan_decode(
    problem: DecodeProblem, gpu: Gpu, *, boxed: bool = True
) -> DecodeConfig | HopperDecodeConfig | HopperRangesConfig:
    """The config that `attention_decode` runs. Pure; raises UnsupportedError where there is none.

    boxed: the copy engine can read the caches, whose strides are above 0.
    """
    if boxed and gpu.matrix_instructions == "wgmma":
        own = _plan_hopper(problem, gpu)
        if own is not None and own.why_invalid(problem, gpu) is None:
            return own
    wide = max(padded(problem.d), padded(problem.d_v))
    most = 64 if gpu.matrix_instructions == "wmma" else 128  # beyond, blocks of 32 keys spill
    depth = gpu.matrix_depth
    columns = 32 if depth == 32 or (wide <= most and problem.page % 32 == 0) else 16
    # columns whose sums, with all else, a lane's registers hold: 512 of CDNA 1 to 4, 1024 of CDNA 5
    widest = {"mfma": 512, "wmma3": 256}.get(gpu.matrix_instructions, 128)
    out = min(widest, padded(problem.d_v))
    alone = DecodeConfig(columns=columns, out=out, splits=1, depth=depth)
    # No program more than run at once: the last ones would run alone.
    together = _PROGRAMS_PER_PROCESSOR
    if gpu.family.startswith("CDNA"):
        together = min(together, max(1, gpu.lds_bytes // alone.lds_bytes(problem)))
    wanted = together * gpu.compute_units // max(alone.programs(problem), 1)
    most = max(1, problem.read_keys // (_LEAST_STEPS * columns))
    config = replace(alone, splits=max(1, min(wanted, most, MOST_SPLITS)))
    why = config.why_invalid(problem, gpu)
    if why is not None:
        raise UnsupportedError(f"no schedule can do {problem.key} on {gpu.name}: {why}")
    return config

"""Which config attention over a cache gets.

On Hopper by an estimate of the time of each, whose constants were fitted to results/h200/decode_tiles.csv and as much
again (bench/decode_tiles.py measures them; docs/attention.md, "Tried").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from ...errors import UnsupportedError
from ...gpu import Gpu
from .config import padded
from .config_decode import (
    MOST_CLUSTER,
    MOST_SPLITS,
    ROWS,
    STATIC_BYTES,
    DecodeConfig,
    DecodeProblem,
    HopperDecodeConfig,
)
from .problem import DTYPE_BYTES

_PROGRAMS_PER_PROCESSOR = 8  #: enough of one wave each to keep the memory's queues full
_LEAST_STEPS = 4  #: blocks of keys of a program
_LEAST_STAGES = 2  #: of a ring, where there is room
_ON_THE_WAY = 12e6  #: bytes that all rings together hold; of more, memory is slower
#: programs that a processor's registers hold, by the most columns of a row: PROGRAMS of hopper_decode.cu
_RESIDENT = {64: 3, 160: 2}
_ABREAST, _WIDEST_ABREAST = (1, 2, 4), 192  #: heads of keys that a program may read as one, and their columns
#: clusters that run at once on 132 processors, of which a cluster takes some that lie together, by their programs
_CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 12: 7, 16: 7}
_CLUSTERS_ON = 132
_CLUSTERS_OF_ROW = (1, 2, 3, 4, 6, 8, 12, 16, 32)
_LARGE_CLUSTER, _LARGE_CLUSTER_US = 8, 5  #: programs, and of reading
_FEW_SPLITS = 4  #: more of them are no more than run at once
#: of reading, up to which the next kernel's programs take their places early; where these take several rounds
_EARLY_US, _EARLY_IN_ROUNDS_US = 8, 20
_NEARLY_FULL = 0.75  #: of the places for programs
_SECTOR = 64  #: bytes that memory moves at once
#: of 480 problems on one H200 (docs/attention.md, "Tried"), in us: a call, each further round of programs, a tile's
#: work and that for 128 bytes of its rows; tiles' work after the last one is there, a tile ahead, a row of the result
_START_US, _ROUND_US, _TILE_US, _CHUNK_US = 1.10, 2.73, 0.140, 0.171
_TILES_AFTER, _AHEAD_US, _ROW_US = 2.91, 0.076, 0.0167
#: clusters' sums and each of their programs; clusters that share rows, and a row of each; what an early launch saves;
#: clusters whose next launch finds too few places for its own
_CLUSTER_US, _PEER_US, _JOIN_US, _JOIN_ROW_US, _EARLY_SAVES_US, _HELD_UP_US = 1.28, 0.0244, 2.87, 0.0535, 0.125, 2.45
#: of the memory's rate, what is reached; bytes that a row costs beside its own, and those beyond where it begins within
#: a sector and neighbours are not read together, more so in clusters; what clusters lose, and runs without them
_BANDWIDTH_SHARE, _ROW_BYTES, _BROKEN_BYTES, _BROKEN_MORE = 1.0586, 9.95, 20.7, 42.7
_CLUSTERS_LOSE, _RUNS_LOSE = 0.1277, 0.0675
_PAIR_GBS = 127.6  #: of two processors that have one way to the L2
_NORM = 5.07  #: of limits: the largest one counts, and near it the others


def hopper_configs(
    problem: DecodeProblem, gpu: Gpu, shares: Sequence[tuple[int, int]] | None = None
) -> Iterator[tuple[int, HopperDecodeConfig]]:
    """Programs that a processor has at once, and the config: of clusters and how many of them share a row's keys."""
    tiles = max(1, -(-problem.keys // HopperDecodeConfig.tile))
    # The processors of a large cluster lie together, and read a long cache by the one way that they have.
    largest = _LARGE_CLUSTER if _memory_us(problem, gpu) > _LARGE_CLUSTER_US else MOST_CLUSTER
    for abreast in _ABREAST:
        alone = HopperDecodeConfig(splits=1, stages=1, abreast=abreast)
        if alone.why_invalid(problem, gpu):
            continue
        seen = problem.abreast(abreast)
        if abreast > 1 and (max(seen.d, seen.d_v) > _WIDEST_ABREAST or seen.row_tiles > problem.row_tiles):
            continue  # keys would be read more than once
        programs = alone.programs(problem)
        room = _most_resident(alone, problem) * gpu.compute_units
        for cluster, clusters in shares or product(_CLUSTERS, _CLUSTERS_OF_ROW):
            splits = cluster * clusters
            fits = cluster <= largest and splits <= min(tiles, MOST_SPLITS)
            if fits and (splits <= _FEW_SPLITS or programs * splits <= room):
                yield from _with_rings(replace(alone, splits=splits, cluster=cluster), problem, gpu)


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
    if programs > max(at_once, gpu.compute_units) or _is_held_up(config, problem, gpu):
        for rings in range(2, resident + 1):
            stages = (gpu.lds_bytes // rings - STATIC_BYTES - 1024) // tile
            if stages > 1:
                yield rings, replace(config, stages=stages, early=_is_early(config, rings, problem, gpu))


def _is_held_up(config: HopperDecodeConfig, problem: DecodeProblem, gpu: Gpu) -> bool:
    """Whether there are processors for these programs and the next launch's, but not where clusters need them."""
    programs = config.programs(problem)
    is_room = 2 * programs <= gpu.compute_units
    return is_room and 2 * programs > config.cluster * clusters_at_once(config.cluster, gpu)


def _is_early(config: HopperDecodeConfig, resident: int, problem: DecodeProblem, gpu: Gpu) -> bool:
    """Whether the next launch's programs take their places as these begin: where there are processors for both, or
    none left for the next, and reading takes so little that its beginning counts."""
    programs, processors, us = config.programs(problem), gpu.compute_units, _memory_us(problem, gpu)
    if resident == 1 and 2 * programs <= processors:
        return config.cluster == 1
    rounds = programs / (resident * processors)
    is_full = resident == 1 or rounds > _NEARLY_FULL
    return config.splits == 1 and is_full and us < (_EARLY_US if rounds <= 1 else _EARLY_IN_ROUNDS_US)


def _most_resident(config: HopperDecodeConfig, problem: DecodeProblem) -> int:
    columns = config.abreast * max(problem.d, problem.d_v)
    return next((n for limit, n in _RESIDENT.items() if columns <= limit), 1)


def clusters_at_once(programs: int, gpu: Gpu) -> int:
    """Clusters of so many programs, each of which has a processor alone, that run at once."""
    return max(1, _CLUSTERS[programs] * gpu.compute_units // _CLUSTERS_ON)


def estimate_us(problem: DecodeProblem, config: HopperDecodeConfig, resident: int, gpu: Gpu) -> float:
    """A call's time: memory, the way of two processors to the L2 or the programs' work bounds each round of programs;
    then what it costs to begin and to put runs together."""
    programs, pieces, peers = max(config.programs(problem), 1), config.pieces(problem), config.cluster
    run = max(1, -(-problem.keys // (config.tile * config.splits)))  # tiles
    at_once = resident * peers * clusters_at_once(peers, gpu)
    further = -(-programs // at_once) - 1
    row = config.abreast * problem.d * DTYPE_BYTES[problem.dtype]
    beyond = _ROW_BYTES
    if row % _SECTOR and (config.splits > 1 or further):
        beyond += _BROKEN_BYTES + (_BROKEN_MORE if peers > 1 else 0)
    lost = (_CLUSTERS_LOSE if peers > 1 else 0) + (_RUNS_LOSE if config.clusters > 1 else 0)
    memory_us = _memory_us(problem, gpu) * (1 + beyond / row) * (1 + lost)
    pair_us = problem.cache_bytes / programs / (_PAIR_GBS * 1e3)
    tile_us = _TILE_US + _CHUNK_US * pieces / 2

    def round_us(count: int) -> float:
        beside = min(-(-count // gpu.compute_units), resident)
        limits = memory_us * count / programs, run * tile_us * beside, pair_us * -(-2 * count // gpu.compute_units)
        return sum(us**_NORM for us in limits) ** (1 / _NORM)

    last = programs - further * at_once
    beside = min(-(-last // gpu.compute_units), resident)
    rows = min(ROWS, problem.group * problem.queries * config.abreast) * problem.d_v / 128
    total = _START_US + _ROUND_US * further + (further * round_us(at_once) if further else 0) + round_us(last)
    total += _TILES_AFTER * tile_us * beside + _AHEAD_US * min(config.stages, run) + _ROW_US * rows
    if peers > 1:
        total += _CLUSTER_US + _PEER_US * peers
    if resident == 1 and _is_held_up(config, problem, gpu):
        total += _HELD_UP_US
    if config.clusters > 1:
        total += _JOIN_US + _JOIN_ROW_US * rows * config.clusters / peers
    return total - _EARLY_SAVES_US * config.early


def _memory_us(problem: DecodeProblem, gpu: Gpu) -> float:
    return problem.cache_bytes / (gpu.bandwidth_gbs * 1e3 * _BANDWIDTH_SHARE)


def _plan_hopper(problem: DecodeProblem, gpu: Gpu) -> HopperDecodeConfig | None:
    """The config that has the shortest estimate."""
    found = [(estimate_us(problem, config, n, gpu), config) for n, config in hopper_configs(problem, gpu)]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def plan_decode(problem: DecodeProblem, gpu: Gpu, *, boxed: bool = True) -> DecodeConfig | HopperDecodeConfig:
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
    most = max(1, problem.keys // (_LEAST_STEPS * columns))
    config = replace(alone, splits=max(1, min(wanted, most, MOST_SPLITS)))
    why = config.why_invalid(problem, gpu)
    if why is not None:
        raise UnsupportedError(f"no schedule can do {problem.key} on {gpu.name}: {why}")
    return config

"""How long attention over a cache takes on Hopper: an estimate, by which plan_decode.py chooses.

Its constants were fitted to times of one H200 (docs/attention.md, "Tried"; bench/decode_tiles.py measures such).
"""

from __future__ import annotations

from functools import cache
from math import ceil, sqrt

from ...gpu import Gpu
from .config_decode import ROWS, DecodeProblem, HopperDecodeConfig, HopperRangesConfig
from .problem import DTYPE_BYTES

#: lengths that are planned for: of B sequences, the i-th has ((i + 1) / B)^spread of the keys that there is room for
EVEN, RAGGED, SKEWED = 0, 1, 4
#: clusters that run at once on 132 processors, of which a cluster takes some that lie together, by their programs
CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 12: 7, 16: 7}
_CLUSTERS_ON = 132
_LINE = 128  #: bytes that a miss brings
_DRIFT_TILES = 64  #: of a run, until programs that share processors are far from their neighbours
#: in us: a call, each further round of programs, a tile's work and that for 128 bytes of its rows; tiles' work after
#: the last one is there, a tile ahead, a row of the result
_START_US, _ROUND_US, _TILE_US, _CHUNK_US = 1.42, 1.78, 0.141, 0.131
_TILES_AFTER, _AHEAD_US, _ROW_US = 1.53, 0.102, 0.059
#: clusters' sums and each of their programs; clusters that share rows, and a row of each; what an early launch saves;
#: clusters whose next launch finds too few places for its own
_CLUSTER_US, _PEER_US, _JOIN_US, _JOIN_ROW_US, _EARLY_SAVES_US, _HELD_UP_US = 1.34, 0.0135, 1.83, 0.0244, 0.33, 3.9
#: of the memory's rate, what is reached; bytes that a row costs beside its own, and those beyond where it begins within
#: a sector and neighbours are not read together, more so in clusters; what clusters lose, and runs without them
_BANDWIDTH_SHARE, _ROW_BYTES, _BROKEN_BYTES, _BROKEN_SHARED, _BROKEN_MORE = 1.06, 13.8, 1.61, 60.1, 2.65
_CLUSTERS_LOSE, _RUNS_LOSE = 0.0788, 0.0302
_PAIR_GBS = 157.0  #: of two processors that have one way to the L2
_NORM = 3.43  #: of limits: the largest one counts, and near it the others
#: where lengths differ: of a tile's work, what it takes in the longest run, more where programs share processors, and
#: where they take rounds; further rounds; the norm of that run and all else, in one round and in several
_LONGEST, _LONGEST_BESIDE, _LONGEST_LATE, _ROUND_SHARE, _NORM_ONE, _NORM_SEVERAL = 1.1, 0.0629, 1.45, 0.879, 2.09, 3.26
#: ranges: what they lose, a unit's begin and end, the norm of limits; the call, tiles' work after the last one is
#: there, a row; sums of parts, and 128 items by 8 parts of them
_RANGES_LOSE, _UNIT_US, _NORM_RANGES = 0.0429, 0.331, 3.8
_RANGES_US, _RANGES_AFTER, _RANGES_ROW_US, _CUT_US, _ITEMS_US = 2.17, 2.63, 0.0431, 1.57, 0.532
_PARTS_AHEAD, _ITEMS = 8, 128  #: AHEAD and threads of attention_hopper_decode.cuh


def clusters_at_once(programs: int, gpu: Gpu) -> int:
    """Clusters of so many programs, each of which has a processor alone, that run at once."""
    return max(1, CLUSTERS[programs] * gpu.compute_units // _CLUSTERS_ON)


def memory_us(problem: DecodeProblem, gpu: Gpu) -> float:
    """What reading the whole cache takes."""
    return problem.cache_bytes / (gpu.bandwidth_gbs * 1e3 * _BANDWIDTH_SHARE)


def is_held_up(config: HopperDecodeConfig, problem: DecodeProblem, gpu: Gpu) -> bool:
    """Whether there are processors for these programs and the next launch's, but not where clusters need them."""
    programs = config.programs(problem)
    is_room = 2 * programs <= gpu.compute_units
    return is_room and 2 * programs > config.cluster * clusters_at_once(config.cluster, gpu)


@cache
def mean_share(batch: int, spread: int) -> float:
    """Of the keys that there is room for, what sequences of such lengths have on average."""
    return sum(((i + 1) / batch) ** spread for i in range(batch)) / batch if spread and batch else 1.0


def estimate_us(
    problem: DecodeProblem, config: HopperDecodeConfig | HopperRangesConfig, resident: int, gpu: Gpu, spread: int = EVEN
) -> float:
    """A call's time, `resident` programs on a processor at once, for lengths of this spread."""
    estimate = _ranges_us if isinstance(config, HopperRangesConfig) else _runs_us
    return estimate(problem, config, resident, gpu, spread)  # pyright: ignore[reportArgumentType]


def _runs_us(problem: DecodeProblem, config: HopperDecodeConfig, resident: int, gpu: Gpu, spread: int) -> float:
    """Memory, the way of two processors to the L2 or the programs' work bounds each round of programs; then what it
    costs to begin and to put runs together. Where lengths differ, the longest run bounds all rounds."""
    share, processors = mean_share(problem.batch, spread), gpu.compute_units
    programs, peers = max(config.programs(problem), 1), config.cluster
    longest = max(1, -(-problem.keys // (config.tile * config.splits)))  # tiles
    at_once = resident * peers * clusters_at_once(peers, gpu)
    further = -(-programs // at_once) - 1
    row = config.abreast * problem.d * DTYPE_BYTES[problem.dtype]
    beyond = _ROW_BYTES
    if row % _LINE and (config.splits > 1 or further):
        drift = _BROKEN_SHARED * sqrt(min(longest / _DRIFT_TILES, 1)) if resident > 1 or further else 0
        beyond += _BROKEN_BYTES + drift + (_BROKEN_MORE if peers > 1 else 0)
    lost = (_CLUSTERS_LOSE if peers > 1 else 0) + (_RUNS_LOSE if config.clusters > 1 else 0)
    reading_us = memory_us(problem, gpu) * share * (1 + beyond / row) * (1 + lost)
    pair_us = problem.cache_bytes * share / programs / (_PAIR_GBS * 1e3)
    tile_us = _tile_us(problem, config)
    run_us = max(1.0, longest * share) * tile_us

    def round_us(count: int) -> float:
        beside = min(-(-count // processors), resident)
        limits = reading_us * count / programs, run_us * beside, pair_us * -(-2 * count // processors)
        return _norm(_NORM, *limits)

    last = programs - further * at_once
    beside = min(-(-last // processors), resident)
    if spread == EVEN:
        total = _ROUND_US * further + (further * round_us(at_once) if further else 0) + round_us(last)
    else:
        each = max(min(-(-programs // processors), resident), programs / processors)
        longest_us = longest * tile_us * _LONGEST * (1 + _LONGEST_BESIDE * (beside - 1))
        total = _ROUND_US * further * _ROUND_SHARE
        norm = _NORM_SEVERAL if further else _NORM_ONE
        total += _norm(
            norm, max(reading_us, run_us * each, pair_us * programs * 2 / processors),
            longest_us * (_LONGEST_LATE if further else 1),
        )  # fmt: skip
    rows = min(ROWS, problem.group * problem.queries * config.abreast) * problem.d_v / 128
    total += _START_US + _TILES_AFTER * tile_us * beside + _AHEAD_US * min(config.stages, longest) + _ROW_US * rows
    if peers > 1:
        total += _CLUSTER_US + _PEER_US * peers
    if resident == 1 and is_held_up(config, problem, gpu):
        total += _HELD_UP_US
    if config.clusters > 1:
        total += _JOIN_US + _JOIN_ROW_US * rows * config.clusters / peers
    return total - _EARLY_SAVES_US * config.early


def _ranges_us(problem: DecodeProblem, config: HopperRangesConfig, resident: int, gpu: Gpu, spread: int) -> float:
    """Memory, two processors' way to the L2 or the programs' work bounds all; then what it costs to begin, and to put
    heads together that several programs have."""
    share, processors, units = mean_share(problem.batch, spread), gpu.compute_units, config.units(problem)
    room = max(1, -(-problem.keys // config.tile))  # tiles of a unit
    programs = max(1, min(config.ranges, int(units * (room * share + 1))))
    tiles = units * (room * share + (0.5 if spread else 0)) / programs
    row = config.abreast * problem.d * DTYPE_BYTES[problem.dtype]
    tile_us = _tile_us(problem, config)
    limits = (
        memory_us(problem, gpu) * share * (1 + _ROW_BYTES / row) * (1 + _RANGES_LOSE),
        (tiles * tile_us + max(1.0, units / programs) * _UNIT_US) * min(ceil(programs / processors), resident),
        problem.cache_bytes * share / programs / (_PAIR_GBS * 1e3) * ceil(2 * programs / processors),
    )
    rows = min(ROWS, problem.group * problem.queries * config.abreast)
    total = _norm(_NORM_RANGES, *limits) + _RANGES_US + _RANGES_AFTER * tile_us
    total += _AHEAD_US * min(config.stages, tiles) + _RANGES_ROW_US * rows * problem.d_v / 128
    is_aligned = spread == EVEN and (programs % units == 0 or units % programs == 0)
    if not is_aligned or units < programs:
        parts = programs / units + (not is_aligned)
        batches = ceil(rows * problem.d_v / 4 / _ITEMS) * ceil(parts / _PARTS_AHEAD)
        total += _CUT_US + _ITEMS_US * (batches - 1)
    return total


def _tile_us(problem: DecodeProblem, config: HopperDecodeConfig | HopperRangesConfig) -> float:
    return _TILE_US + _CHUNK_US * config.pieces(problem) / 2


def _norm(order: float, *limits: float) -> float:
    return sum(us**order for us in limits) ** (1 / order)

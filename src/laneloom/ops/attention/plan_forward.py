"""Which config Hopper's attention forward takes: the one with the shortest estimate. Pure.

A tile takes what it costs to begin one, and a time for each step that grows with its keys; both depend on how many
warpgroups share a multiprocessor. Fitted to results/h200/attention_tiles.csv and results/h100/attention_tiles.csv
alike, which `bench.attention_tiles` measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from .config_hopper import BARRIER_BYTES, PROCESSORS, REGISTERS, HopperForwardConfig
from .problem import DTYPE_BYTES, AttentionProblem

COLUMNS = (64, 80, 112, 128, 160, 208)  #: keys of a step that are worth a thought, besides equal parts of all
MOST_PARTS = 4
MOST_MASKED = 208  #: of which a mask may hide half
MOST_TILES = 1024  #: of a head that the model looks at
WIDE, WIDE_COLUMNS = 128, (48, 64, 80, 96, 112, 128)  #: D, above which these are worth a thought
ROOM = 227 << 10  #: shared memory of a multiprocessor
PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  #: of the keys, where tiles of all parts run at once
_JOIN_US, _JOIN_BYTES_PER_US = 3.0, 2e6  #: of the launch that adds up parts, and what it reads and writes
#: of sections of heads: the most waves; what the longest tile costs at the end, of its time, and waves of the last
#: section beside which it costs nothing; keys and values read again, for each further wave, over the longest tile's
#: keys, and from where on they fall out of the L2
_MOST_WAVES, _WAITING, _LAST_WAVES, _AGAIN, _L2_WAVES, _BEYOND = 8, 0.4, 1.5, 32.0, 4, 0.08
_LONG_US, _LONG_FACTOR = 400, 0.97  #: where power is the limit, three warpgroups draw less of it


@dataclass(frozen=True)
class _Model:
    """What the kernel takes for head dimensions around `d`, in us."""

    d: int
    per_d: float  #: how much of a step grows with D
    launch: float
    tail: float  #: of the longest tile, which the others do not wait for together
    mask: float  #: of a tile, for 128 keys of a step
    stages: float  #: relative: a third stage
    buffers: float  #: a single place for queries
    #: begin of a tile, a step, and each key of it, by consumers, programs, queries in registers, early
    times: dict[tuple[int, int, bool, bool], tuple[float, float, float]]


_NARROW = _Model(
    64, 0.4663, 3.1, 0.08644, 0.5479, -0.0568, 0.06573,
    {
        (1, 1, False, False): (0.639, 0.09031, 0.005646), (2, 1, False, False): (1.173, 0.1835, 0.008264),
        (3, 1, False, False): (1.694, 0.4272, 0.007562), (1, 2, False, False): (1.06, 0.2745, 0.007456),
        (1, 3, False, False): (1.69, 0.3606, 0.007914), (2, 1, False, True): (1.064, 0.2883, 0.007239),
    },
)  # fmt: skip
_BROAD = _Model(
    128, 0.6023, 3.605, 0.1499, 0.5386, 0.008034, 0.1501,
    {
        (1, 1, False, False): (0.5961, 0.186, 0.008978), (2, 1, False, False): (1.061, 0.3244, 0.01017),
        (3, 1, False, False): (2.551, 0.405, 0.01153), (1, 2, False, False): (1.722, 0.4741, 0.007191),
        (1, 3, False, False): (0.5617, 1.062, 0.01297), (2, 1, False, True): (1.591, 0.2301, 0.01138),
        (2, 1, True, False): (1.363, 0.2588, 0.01045), (2, 1, True, True): (1.664, 0.1776, 0.0116),
    },
)  # fmt: skip
_WIDEST = _Model(
    256, 0.9238, 2.07, 0.21, 1.654, 0.0428, 0.07559,
    {
        (1, 1, False, False): (1.613, 0.2583, 0.01136), (2, 1, False, False): (3.491, 0.4717, 0.01243),
        (3, 1, False, False): (2.576, 0.2364, 0.03121), (1, 2, False, False): (4.132, 0.2984, 0.01587),
        (2, 1, False, True): (2.879, 0.03052, 0.02554),
    },
)  # fmt: skip


def forward_configs(problem: AttentionProblem) -> Iterator[HopperForwardConfig]:
    """Every config that is worth a thought; some may not be able to do the problem."""
    most = MOST_MASKED if problem.masked else 256
    parts = {-(-problem.keys // (16 * n)) * 16 for n in range(1, MOST_PARTS + 1)}
    known = WIDE_COLUMNS if max(problem.d, problem.d_v) > WIDE else COLUMNS
    columns = [n for n in sorted(parts | set(known)) if 48 <= n <= most and n < problem.keys + 16]
    for (consumers, resident), n in product(REGISTERS, columns or known[:1]):
        if 64 * (consumers - 1) >= max(problem.queries, 1):
            continue
        in_registers = (False, True) if consumers == 2 and 64 < problem.d <= WIDE else (False,)
        for registers, early in product(in_registers, (False, True) if consumers == 2 else (False,)):
            for stages, buffers in ((3, 2), (2, 2), (2, 1)):
                config = HopperForwardConfig(
                    columns=n, consumers=consumers, resident=resident, stages=stages, q_buffers=buffers,
                    q_in_registers=registers, early=early and buffers == 2,
                )  # fmt: skip
                if resident * (config.lds_bytes(problem) + BARRIER_BYTES) <= ROOM:
                    if config.early == early:
                        yield config
                        yield from in_parts(problem, config)
                    break


def in_parts(problem: AttentionProblem, config: HopperForwardConfig) -> Iterator[HopperForwardConfig]:
    """The config with the keys in parts, where tiles are few."""
    tiles, steps = config.tiles(problem), -(-problem.keys // config.columns)
    for parts in PARTS:
        if parts <= steps and tiles * parts <= PROCESSORS * config.resident:
            yield replace(config, parts=parts)


def steps_of(problem: AttentionProblem, config: HopperForwardConfig) -> np.ndarray:
    """Of each tile of one head, or of MOST_TILES of them; packed sequences count as if all were the longest."""
    tiles = -(-problem.queries // config.rows)
    rows = np.linspace(0, tiles - 1, min(tiles, MOST_TILES)).astype(np.int64) * config.rows
    ends = np.minimum(rows + config.rows, problem.queries)
    return blocks_seen(rows, ends, problem.keys, config.columns, problem.first, problem.last)


def blocks_seen(
    rows: np.ndarray, ends: np.ndarray, length: int, block: int, first: int | None, last: int | None
) -> np.ndarray:
    """Blocks of columns, of `length`, that rows from each of `rows` to `ends` see where column - row is in a band."""
    low = np.zeros_like(rows) if first is None else np.maximum(rows + first, 0)
    high = np.full_like(rows, length) if last is None else np.minimum(ends + last, length)
    return np.where(high > low, -(-high // block) - low // block, 0)


def estimate_us(problem: AttentionProblem, config: HopperForwardConfig) -> float:
    """The model's time; infinite for what it does not know."""
    wide = max(problem.d, problem.d_v)
    model = next(model for model in (_NARROW, _BROAD, _WIDEST) if wide <= model.d)
    key = (config.consumers, config.resident, config.q_in_registers, config.early)
    if key not in model.times:
        return float("inf")
    begin, step, per_key = model.times[key]
    step += per_key * config.columns * (1 + model.per_d * ((problem.d + problem.d_v) / (2 * model.d) - 1))
    steps, slots = -(-steps_of(problem, config) // config.parts), PROCESSORS * config.resident
    tiles = config.tiles(problem) * config.parts
    tile = begin + float(steps.mean()) * step + problem.masked * model.mask * config.columns / 128
    if problem.masked:
        longest = float(steps.max()) * step + begin
        time_us = max(tile * tiles / slots + model.tail * longest * min(1, tiles / slots), longest)
    else:
        full, left = divmod(tiles, slots)
        # Programs that are left alone on a multiprocessor are faster.
        part = 0.5 + 0.5 * -(-left // PROCESSORS) / config.resident if config.resident > 1 else 1
        time_us = (full + (part if left else 0)) * tile
    rings = 1 + model.stages * (config.stages == 3) + model.buffers * (config.q_buffers == 1)
    time_us = (model.launch + time_us) * rings
    if config.parts > 1:
        row = problem.d_v * DTYPE_BYTES[problem.out_dtype]
        moved = problem.batch * problem.heads * problem.queries * row * (config.parts + 1)
        time_us += _JOIN_US + moved / _JOIN_BYTES_PER_US
    return time_us * (_LONG_FACTOR if time_us > _LONG_US and config.consumers == 3 and not problem.masked else 1)


def section(problem: AttentionProblem, config: Any) -> int:
    """Heads of keys whose tiles are mixed, the longest first, before the next ones' begin.

    Many of them keep programs from waiting for a long tile at the end, few read their keys and values from the L2.
    Waves are of tiles that begin together; the shares of the time are from 24 problems on one H100 (docs/attention.md,
    "Tried").
    """
    if not problem.masked and not problem.packed:
        return 1  # all are as long as each other
    heads, steps, slots = problem.batch * problem.kv_heads, steps_of(problem, config), PROCESSORS * config.resident
    tiles = -(-problem.queries // config.rows) * problem.group
    if not heads * tiles:
        return 1
    mixed = np.arange(1, min(heads, -(-_MOST_WAVES * slots // tiles)) + 1)
    waves, last = mixed * tiles / slots, (heads - (-(-heads // mixed) - 1) * mixed) * tiles / slots
    longest = max(int(steps.max()), 1)
    share = longest / max(float(steps.mean()) * tiles * heads / slots, longest)
    waiting = _WAITING * share * np.maximum(1 - last / _LAST_WAVES, 0)
    again = _AGAIN / (longest * config.columns) * np.maximum(waves - 1, 0) + _BEYOND * np.maximum(waves - _L2_WAVES, 0)
    return int(mixed[np.argmin(waiting + again)])


def forward_candidates(problem: AttentionProblem) -> list[HopperForwardConfig]:
    """Configs of the forward, the shortest estimate first."""
    if max(problem.d, problem.d_v) > _WIDEST.d or not min(problem.queries, problem.keys):
        return [HopperForwardConfig(columns=COLUMNS[0])]
    return sorted(forward_configs(problem), key=lambda config: estimate_us(problem, config))

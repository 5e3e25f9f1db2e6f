"""How many programs share a head of keys in Hopper's backward: as many as have the shortest estimate. Pure.

A tile of keys visits the queries of its whole group. Where tiles are few, sharers visit a part of the group each, and a
last launch adds up what each found of dK and dV. Fitted on one H100 (docs/attention.md, "Tried").
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .config_hopper import (
    PROCESSORS,
    HopperBackwardConfig,
    HopperBackwardNarrowConfig,
    HopperBackwardWideConfig,
    KeyTiles,
)
from .plan_forward import blocks_seen
from .problem import DTYPE_BYTES, AttentionProblem

BLOCK = 64  #: queries of a step
_TAIL = 0.1  #: of the longest tile, which others do not wait for together
_JOIN_US, _JOIN_MB_US = 1.0, 0.4  #: of the last launch, and of a megabyte that is written, read or added up


@dataclass(frozen=True)
class _Times:
    begin: float  #: and end of a tile, in us
    step: float  #: a block of queries


_TIMES = {
    HopperBackwardNarrowConfig.schedule: _Times(5.0, 1.2),
    HopperBackwardConfig.schedule: _Times(13.0, 2.2),
    HopperBackwardWideConfig.schedule: _Times(13.0, 2.8),
}


def steps_of(problem: AttentionProblem, config: KeyTiles) -> np.ndarray:
    """Blocks of one head's queries that each tile of keys visits; packed sequences count as if all were the longest."""
    keys = np.arange(0, max(problem.keys, 1), config.rows)
    ends = np.minimum(keys + config.rows, problem.keys)
    first, last = (None if end is None else -end for end in (problem.last, problem.first))  # seen from the keys
    return blocks_seen(keys, ends, problem.queries, BLOCK, first, last)


def estimate_us(problem: AttentionProblem, config: KeyTiles) -> float:
    """The model's time, without what is the same for any number of sharers."""
    times, programs = _TIMES[config.schedule], PROCESSORS // config.cluster
    tiles = times.begin + steps_of(problem, config) * (problem.group // config.sharers) * times.step
    number, longest = config.tiles(problem), float(tiles.max())
    if not problem.masked:
        time_us = -(-number // programs) * longest
    else:
        time_us = max(float(tiles.mean()) * number / programs + _TAIL * longest * min(1, number / programs), longest)
    if config.sharers > 1:
        row = problem.batch * problem.kv_heads * problem.keys * (problem.d + problem.d_v) * DTYPE_BYTES[problem.dtype]
        time_us += _JOIN_US + _JOIN_MB_US * row * (2 * config.sharers + 1) / 1e6
    return time_us


def backward_candidates(problem: AttentionProblem) -> list[KeyTiles]:
    """Configs of the backward, best first."""
    owners = [HopperBackwardConfig(stages=stages) for stages in (4, 3, 2)]
    kinds = [HopperBackwardNarrowConfig(), *owners, HopperBackwardWideConfig(g_stages=2), HopperBackwardWideConfig()]
    numbers = [n for n in range(1, max(problem.group, 1) + 1) if problem.group % n == 0]
    return [
        min((replace(config, sharers=n) for n in numbers), key=lambda shared: estimate_us(problem, shared))
        for config in kinds
    ]

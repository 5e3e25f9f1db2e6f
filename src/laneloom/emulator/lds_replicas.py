"""Stores of several lanes of a wave to one place of LDS (strict mode).

Reductions leave a sum in several lanes, not always rounded alike, and store it from each; where the layout is
replicated, other waves do the same. What counts between waves is what each leaves, and of a wave's lanes the last one's
value is taken to stay, here as where the store is executed.
"""

from __future__ import annotations

import numpy as np


def left_by_wave(bad: np.ndarray, unit: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    """`bad` [wave, lane, n] without the units that a later lane of the same wave stores too."""
    wave, lane, k = np.nonzero(np.ones(unit.shape, np.bool_) if active is None else active)
    keys = unit[wave, lane, k] * np.int64(len(unit)) + wave
    last = len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]
    stays = np.zeros(unit.shape, np.bool_)
    stays[wave[last], lane[last], k[last]] = True
    return bad & stays

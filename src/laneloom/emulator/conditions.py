"""What conditional branches ask, by wave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .state import Waves


def _never(g: Waves) -> np.ndarray:
    return np.zeros(g.count, bool)


CONDITIONS: dict[str, Callable[[Waves], Any]] = {
    # a debugger's
    "cdbgsys": _never, "cdbguser": _never, "cdbgsys_or_user": _never, "cdbgsys_and_user": _never,
    "scc0": lambda g: ~g.scc,
    "scc1": lambda g: g.scc,
    "vccz": lambda g: ~g.mask(106).any(axis=1),
    "vccnz": lambda g: g.mask(106).any(axis=1),
    "execz": lambda g: np.zeros(g.count, bool) if g.exec is None else ~g.exec.any(axis=1),
    "execnz": lambda g: np.ones(g.count, bool) if g.exec is None else g.exec.any(axis=1),
}

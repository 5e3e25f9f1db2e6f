"""Numbers that a caller gives."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..errors import ArgumentError

_MOST_SHOWN = 80  #: characters


def is_number(value: Any) -> bool:
    """Whether a caller gave a real number, Python's or numpy's."""
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether a caller gave an integer, Python's or numpy's, or one that is a symbol while torch traces."""
    return (isinstance(value, int | np.integer) and not isinstance(value, bool)) or _is_symbol(value)


def whole(value: Any) -> Any:
    """An integer as Python's own; a symbol stays one, so that what is traced serves all integers."""
    return value if _is_symbol(value) else int(value)


def _is_symbol(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.SymInt)


def shown(value: Any) -> str:
    """What a caller gave, for one sentence: of a tensor or an array, whose elements may be many, what it is."""
    if not isinstance(value, type) and getattr(value, "ndim", 0):
        return f"{type(value).__name__} of {value.dtype} with {value.ndim} axes"
    text = " ".join(repr(value).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def to_float(name: str, value: Any) -> float:
    """A real number as a float. Raises ArgumentError for an integer that no float holds."""
    try:
        return float(value)
    except OverflowError:
        bits = int(value).bit_length()
        raise ArgumentError(f"{name}: expected a number that a float holds, got an integer of {bits} bits") from None

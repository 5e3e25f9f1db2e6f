"""Numbers that a caller gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ArgumentError


def is_number(value: Any) -> bool:
    """Whether a caller gave a real number, Python's or numpy's."""
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether a caller gave an integer, Python's or numpy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def to_float(name: str, value: Any) -> float:
    """A real number as a float. Raises ArgumentError for an integer that no float holds."""
    try:
        return float(value)
    except OverflowError:
        bits = int(value).bit_length()
        raise ArgumentError(f"{name}: expected a number that a float holds, got an integer of {bits} bits") from None

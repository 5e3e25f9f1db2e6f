"""Numbers that a caller gives."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError


def to_float(name: str, value: Any) -> float:
    """A real number as a float. Raises ArgumentError for an integer that no float holds."""
    try:
        return float(value)
    except OverflowError:
        bits = int(value).bit_length()
        raise ArgumentError(f"{name}: expected a number that a float holds, got an integer of {bits} bits") from None

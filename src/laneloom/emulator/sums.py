"""How matrix instructions add where the hardware's way is known: as it does, or rounded once, which is faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SUMS = ("hardware", "exact")
_sums: ContextVar[str] = ContextVar("sums", default="hardware")


def rounds_once() -> bool:
    """Whether sums are those of float64, rounded once to D's type."""
    return _sums.get() == "exact"


@contextmanager
def added(sums: str) -> Iterator[None]:
    """Launches inside add so: "hardware" or "exact"."""
    token = _sums.set(sums)
    try:
        yield
    finally:
        _sums.reset(token)

"""How commands write: one rich console for people, strict JSON for programs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def new_console(**options: Any) -> Console:
    """A console on standard output that colours only what is told to be coloured; plain text in a pipe."""
    from rich.console import Console  # a sixth of the time that every command takes to start

    return Console(highlight=False, **options)


def print_json(value: Any) -> None:
    """`value` as JSON on standard output; numbers that JSON lacks (NaN, infinity) become null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

"""Modules that are looked for at each call, for functions that do without torch."""

from __future__ import annotations

import sys
from typing import Any


def loaded(module: str) -> Any:
    """A module that was imported before: an import statement at each call takes a microsecond.

    None of one that was not, and where torch.compile traces, so that the caller imports it: of a look that finds
    nothing the graph remembers how many modules there are, and is compiled again as soon as there are more.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        return None
    return sys.modules.get(module)

"""Modules that are looked for at each call, for functions that do without torch."""

from __future__ import annotations

import sys
from typing import Any

from ..first_use import module_of, whole


def loaded(module: str) -> Any:
    """A module, imported at the first call: an import statement at each call takes a microsecond.

    None without torch, and where torch.compile traces, so that the caller imports it: of a look that finds nothing the
    graph remembers how many modules there are, and is compiled again as soon as there are more.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.compiler.is_compiling():
        return None
    return whole(module) or module_of(module)

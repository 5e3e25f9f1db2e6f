"""Whether torch.compile traces what runs, for functions that do without torch."""

from __future__ import annotations

import sys


def is_traced() -> bool:
    """Then a function has to import what it may find in sys.modules elsewhere: of a look that finds nothing the graph
    remembers how many modules there are, and is compiled again as soon as there are more."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()

"""Modules that are imported when something of theirs is first used, by one thread at a time.

Python locks each module by itself while it is imported. A package that imports its own modules is locked in one thread
while another holds one of these and waits for the package; Python then hands out modules that are half there.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from .locks import process_lock

_one_at_a_time = process_lock()


def module_of(name: str, package: str | None = None) -> ModuleType:
    """The module, imported whole."""
    with _one_at_a_time:
        return import_module(name, package)


def whole(name: str) -> ModuleType | None:
    """The module if it was imported before; None too while another thread imports it."""
    found = sys.modules.get(name)
    return None if found is None or getattr(found.__spec__, "_initializing", False) else found

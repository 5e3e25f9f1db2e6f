"""Locks that a forked process finds free, as multiprocessing's and those of torch's DataLoader are.

The thread that held one is not there in the child: nothing would ever release it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:
        """functools' own, which before Python 3.12 locks a class while one of its objects computes."""

        def __init__(self, compute: Callable[[Any], Any]):
            self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.compute(instance)
            return value


__all__ = ["cached_property", "process_lock"]


def process_lock() -> Any:
    """An RLock of this process alone."""
    lock = threading.RLock()
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # pyright: ignore[reportAttributeAccessIssue]
    return lock

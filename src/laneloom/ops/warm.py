"""Calls met before: what was prepared for operands that lie alike, found by one look into a table.

To check a call, plan it and pack its arguments takes 50 to 150 us of host time, more than a small kernel runs. All of
it follows from shapes, strides, dtypes, alignments, the device and the options; only addresses are new in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

MOST_CALLS = 4096  #: entries after which a table starts afresh

#: torch without CUDA has none, and its tensors only say "cuda" where they are emulated: then no device is the current
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)

Key = tuple[Any, ...]


def key_of(tensors: Sequence[torch.Tensor | None], *options: Any) -> Key | None:
    """All that a call depends on but its data; None for tensors elsewhere than on the current GPU, for those that show
    other bits than they hold, and for those without strides.

    The first of `tensors` is there; others may be None.
    """
    first = tensors[0]
    assert first is not None
    device = first.get_device()
    if device < 0 or device != current_device():  # in this order: without a GPU there is no current device to ask for
        return None
    parts: list[Any] = [device, options]
    for x in tensors:
        if x is None:
            parts.append(None)
            continue
        if x.get_device() != device or x.layout is not torch.strided or x.is_neg() or x.is_conj():
            return None
        parts.append((x.shape, x.stride(), x.dtype, x.data_ptr() & 15))
    return tuple(parts)


class WarmCalls:
    """What runs, by key."""

    def __init__(self) -> None:
        self._runs: dict[Key, Callable[..., Any]] = {}

    def get(self, key: Key | None) -> Callable[..., Any] | None:
        """What was kept for a key; None for None."""
        return None if key is None else self._runs.get(key)

    def keep(self, key: Key | None, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, which calls with this key will find. It depends on nothing that the key does not hold."""
        if key is not None:
            if len(self._runs) >= MOST_CALLS:
                self._runs.clear()
            self._runs[key] = run
        return run

    def __len__(self) -> int:
        return len(self._runs)

"""Calls met before: what was prepared for arguments that lie alike, found by one look into a table.

To check a call, plan it and pack its arguments takes 50 to 150 us of host time, more than a small kernel runs. All of
it follows from shapes, strides, dtypes, alignments, the device and the options; only addresses are new in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import is_grad_enabled

MOST_CALLS = 4096  #: entries after which a table starts afresh

#: torch without CUDA has none, and its tensors only say "cuda" where they are emulated: then no device is the current
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)

Key = tuple[Any, ...]
PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_OPTIONS = frozenset((type(None), bool, int, float, str, torch.dtype, torch.Size))


def key_of(args: Sequence[Any]) -> Key | None:
    """All that a call depends on but its data, gradients included; the first of `args` is a tensor.

    None for tensors elsewhere than on the current GPU, of other classes, without strides or memory, for those that show
    other bits than they hold, and for options that are no numbers, words or dtypes.
    """
    device = args[0].get_device()
    if device < 0 or device != current_device():  # in this order: without a GPU there is no current device to ask for
        return None
    parts: list[Any] = [device, is_grad_enabled()]
    try:
        for x in args:
            kind = type(x)
            if x is None:  # most options are
                parts.append(None)
            elif kind in PLAIN_TENSORS:
                dtype = x.dtype
                if x.get_device() != device or x.is_neg() or (dtype.is_complex and x.is_conj()):
                    return None
                address = x.data_ptr()
                if not address and x.numel():  # zeros without memory, which the dispatcher makes real
                    return None
                parts += (x.shape, x.stride(), dtype, address & 15, x.requires_grad)
            elif kind in _OPTIONS:
                parts.append(x)
            else:
                return None
    except RuntimeError:  # a sparse tensor has no strides, one that outlived its torch.func transform no memory
        return None
    return tuple(parts)


def keep(table: dict[Key, Any], key: Key, value: Any) -> Any:
    """`value`, which is from now on in a table that does not grow for ever."""
    if len(table) >= MOST_CALLS:
        table.clear()
    table[key] = value
    return value


def maker_of(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """What makes empty tensors that lie as x does. `new_empty` with its shape takes twice as long, 1.6 to 0.8 us."""
    return partial(torch.empty_strided, tuple(x.shape), x.stride(), dtype=x.dtype, device=x.device)


class WarmCalls:
    """`prepare(*args)(*args)`, what an operator runs; of arguments whose key was met before without `prepare`.

    What `prepare` gives depends on nothing that the key does not hold.
    """

    def __init__(
        self, prepare: Callable[..., Callable[..., Any]], key_of: Callable[[Sequence[Any]], Key | None] = key_of
    ) -> None:
        self.key_of = key_of
        self._prepare = prepare
        self._runs: dict[Key, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        key = self.key_of(args)
        if key is not None:
            return self.prepared(key, args)(*args)
        with torch.cuda.device(args[0].device if args[0].device.type == "cuda" else -1):
            return self._prepare(*args)(*args)

    def prepared(self, key: Key, args: Sequence[Any]) -> Callable[..., Any]:
        """What runs for arguments with this key."""
        run = self._runs.get(key)
        if run is None:
            with torch.no_grad():
                run = keep(self._runs, key, self._prepare(*args))
        return run

    def clear(self) -> None:
        """Forget what was met."""
        self._runs.clear()

    def __len__(self) -> int:
        return len(self._runs)

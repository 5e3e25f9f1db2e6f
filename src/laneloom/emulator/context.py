"""The context that `laneloom.emulated` gives: entered as often as you like, and a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from typing import TYPE_CHECKING, Any

from triton import knobs

from ..errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from .driver import Emulation


class Emulated(ContextDecorator, AbstractContextManager["Emulation"]):
    """What `emulated` returns: a context, entered as often as you like, and a decorator."""

    def __init__(self, enter: Callable[[], AbstractContextManager[Emulation]]):
        self._enter = enter
        self._entered: list[AbstractContextManager[Emulation]] = []

    def __enter__(self) -> Emulation:
        context = self._enter()
        emulation = context.__enter__()
        self._entered.append(context)
        return emulation

    def __call__(self, func: Any) -> Any:
        """As a decorator. A call of a generator or a coroutine returns before the first line of it runs."""
        late = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
        if any(is_late(func) for is_late in late):
            name = getattr(func, "__name__", "it")
            raise ArgumentError(f"emulated: {name} is a generator or a coroutine, which runs later; enter it inside")
        return super().__call__(func)

    def __exit__(self, *error: Any) -> bool | None:
        if not self._entered:
            raise ArgumentError("emulated: left more often than entered")
        return self._entered.pop().__exit__(*error)


def check_knobs() -> None:
    """Raises UnsupportedError under a setting of Triton's with which it hands the emulator nothing to run."""
    if knobs.runtime.interpret:
        raise UnsupportedError("TRITON_INTERPRET is set: Triton interprets kernels, so that none is emulated; unset it")
    if knobs.compilation.store_binary_only:
        raise UnsupportedError("TRITON_STORE_BINARY_ONLY is set: Triton keeps no assembly to emulate; unset it")

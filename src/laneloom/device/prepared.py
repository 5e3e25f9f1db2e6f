"""Launches that are repeated with the same specialisation, without the JIT's work per call.

Triton's `kernel[grid](...)` binds, specialises and looks up every argument at each call, 20 to 60 us of host time for a
kernel of 30 arguments. The kernel that it found can be launched by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PreparedLaunch:
    """One kernel with its grid and options. The first call goes through the JIT, later ones straight to what it
    compiled.

    All calls pass the arguments in the kernel's order, constexprs among them, and differ at most in what the JIT does
    not specialise on: pointers of equal alignment and dtype, integers marked `do_not_specialize`. One device.
    """

    __slots__ = ("_grid", "_kernel", "_options", "_run")

    def __init__(self, kernel: Any, grid: tuple[int, ...], **options: Any) -> None:
        self._kernel = kernel
        self._grid = (*grid, 1, 1)[:3]
        self._options = options
        self._run: Any = None

    @property
    def is_compiled(self) -> bool:
        """Whether the next call skips the JIT."""
        return self._run is not None

    def __call__(self, *arguments: Any) -> None:
        if self._run is None:
            self._run = self._kernel[self._grid](*arguments, **self._options)[self._grid]
        else:
            self._run(*arguments)


def specialise(
    kernel: Any, arguments: Mapping[str, Any], pointers: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """What Triton's JIT makes of `arguments`, for `codegen.compile_kernel`: signature, constants, and the attrs.

    `pointers` has the type of each pointer and tensor descriptor; all of them are taken to be aligned to 16 bytes.
    An integer that is 1 becomes a constant, one that 16 divides is marked so, unless the kernel forbids it.
    """
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible = [name for name, kind in pointers.items() if kind.startswith("*")]
    for parameter in kernel.params:
        name = parameter.name
        if name in pointers:
            signature[name] = pointers[name]
            continue
        value = arguments[name]
        free = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (free and isinstance(value, int) and value == 1):
            constants[name] = value
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if abs(value) < 1 << 31 else "i64"
            if free and value % 16 == 0:
                divisible.append(name)
    return signature, constants, divisible

"""Loads an NVIDIA CodeObject into a device's primary context and launches it on a stream (the extra `cuda`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..errors import LaneloomError, UnsupportedError
from .code_object import CodeObject
from .cuda_context import make_current


class CudaKernel:
    """One kernel, loaded into the primary context of one device: the context that torch and the CUDA runtime use."""

    def __init__(self, code: CodeObject, argument_types: Sequence[Any], device: int) -> None:
        """`argument_types`: the ctypes type of every kernel argument; a pointer is ctypes.c_void_p."""
        self.code = code
        self._driver = _driver()
        self._types = tuple(argument_types)
        self._device = device
        make_current(device)
        self._module = self._check(self._driver.cuModuleLoadData(code.binary))
        self._function = self._check(self._driver.cuModuleGetFunction(self._module, code.kernel.encode()))
        attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._check(self._driver.cuFuncSetAttribute(self._function, attribute, code.lds_bytes))

    @property
    def handle(self) -> int:
        """The driver's CUfunction."""
        return int(self._function)

    def launch(self, ctas: int, stream: int, arguments: Sequence[int]) -> None:
        """Launch `ctas` CTAs in one dimension; asynchronous, and captured if the stream is being captured."""
        make_current(self._device)
        self._check(
            self._driver.cuLaunchKernel(
                self._function, ctas, 1, 1, self.code.workgroup_size, 1, 1, self.code.lds_bytes, stream,
                (tuple(arguments), self._types), 0,
            )
        )  # fmt: skip

    def _check(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise LaneloomError(f"kernel {self.code.kernel}: the CUDA driver says {status.name}")
        return values[0] if values else None


def argument_types(pattern: str) -> tuple[Any, ...]:
    """ctypes types from letters: p a pointer, q a 64-bit integer, i a 32-bit integer."""
    letters = {"p": ctypes.c_void_p, "q": ctypes.c_int64, "i": ctypes.c_int32}
    return tuple(letters[letter] for letter in pattern)


def _driver() -> Any:
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UnsupportedError("CUDA C++ kernels are launched through cuda-bindings: install laneloom[cuda]") from error

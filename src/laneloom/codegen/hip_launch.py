"""Loads an AMD CodeObject by HIP's module calls and launches it on a stream, with the argument block as one buffer.

Written after the HIP runtime API reference, "Module Management"; laneloom's authors have not run it on hardware.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from triton.backends.amd import driver as triton_amd_driver

from ..errors import LaneloomError
from .code_object import CodeObject

# hipModuleLaunchKernel's `extra`: pairs of key and value up to the end key.
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3

_modules: dict[tuple[bytes, int], ctypes.c_void_p] = {}  #: functions by binary and device; modules stay loaded


@lru_cache(maxsize=1)
def _library() -> Any:
    """The HIP runtime that Triton uses, which is torch's where torch brings one."""
    hip = ctypes.CDLL(triton_amd_driver._get_path_to_hip_runtime_dylib())
    hip.hipGetErrorString.restype = ctypes.c_char_p
    hip.hipModuleLaunchKernel.argtypes = [
        ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    return hip


def _check(code: CodeObject, what: str, status: int) -> None:
    if status:
        reason = _library().hipGetErrorString(status).decode()
        raise LaneloomError(f"kernel {code.kernel}: {what} failed, HIP says {reason!r}")


def _function(code: CodeObject, device: int) -> ctypes.c_void_p:
    key = (code.binary, device)
    if key not in _modules:
        hip, module, function = _library(), ctypes.c_void_p(), ctypes.c_void_p()
        _check(code, "hipModuleLoadData", hip.hipModuleLoadData(ctypes.byref(module), code.binary))
        got = hip.hipModuleGetFunction(ctypes.byref(function), module, code.kernel.encode())
        _check(code, "hipModuleGetFunction", got)
        _modules[key] = function
    return _modules[key]


def launch_module(code: CodeObject, grid: tuple[int, int], block: bytes, *, device: int, stream: int) -> None:
    """Launch `code` over `grid` workgroups on HIP's current device, which is `device`; asynchronous.

    block: the kernel argument segment, as the metadata lays it out. The kernel's LDS is fixed, none is added.
    Raises LaneloomError with HIP's words.
    """
    function = _function(code, device)
    buffer, size = ctypes.create_string_buffer(block, len(block)), ctypes.c_size_t(len(block))
    extra = (ctypes.c_void_p * 5)(_BUFFER_POINTER, ctypes.addressof(buffer), _BUFFER_SIZE, ctypes.addressof(size), _END)
    status = _library().hipModuleLaunchKernel(
        function, *grid, 1, code.workgroup_size, 1, 1, 0, stream, None, ctypes.cast(extra, ctypes.c_void_p)
    )
    _check(code, "hipModuleLaunchKernel", status)

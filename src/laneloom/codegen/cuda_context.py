"""The driver's library, and the context in which a thread's calls of it mean one device (the extra `cuda`).

A thread has no context until its first call of the CUDA runtime that needs one. torch's autograd gives each device a
thread of its own for the backward pass; there, and in any thread that a user starts, the first such call may be ours.
"""

from __future__ import annotations

import ctypes
from functools import cache

from ..errors import LaneloomError, UnsupportedError

NO_CONTEXT = 201  #: CUDA_ERROR_INVALID_CONTEXT


@cache
def driver() -> ctypes.CDLL:
    """libcuda. Raises UnsupportedError where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UnsupportedError("CUDA C++ kernels are launched through NVIDIA's driver, which is not there") from error


def make_current(device: int) -> None:
    """Make the primary context of a device, which torch and the CUDA runtime use, the calling thread's."""
    _check(driver().cuCtxSetCurrent(_primary_context(device)))


@cache
def _primary_context(device: int) -> ctypes.c_void_p:
    """Retained for the life of the process, as torch and Triton do."""
    ordinal, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver().cuInit(0))
    _check(driver().cuDeviceGet(ctypes.byref(ordinal), device))
    _check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
    return context


def _check(status: int) -> None:
    if status != 0:
        raise LaneloomError(f"the CUDA driver cannot give this thread a device (error {status})")

"""Which GPU a call runs on."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from triton.runtime import driver

from ..codegen.versions import check_gpu
from ..emulator.driver import EmulatedDriver
from ..errors import ArgumentError, UnsupportedError
from ..gpu import Gpu, as_found, get_gpu
from .scalars import shown


def active_gpu() -> Gpu:
    """The GPU of Triton's active driver: the emulated one inside `laneloom.emulated`, else the machine's.

    Raises UnsupportedError if there is neither, or this Triton does not know the GPU, UnknownGpuError for a GPU that is
    not in the table.
    """
    try:
        target: Any = driver.active.get_current_target()
    except RuntimeError as error:  # Triton found no driver, or the driver no GPU
        raise UnsupportedError(
            'there is no GPU that Triton can use here: put the call inside `with laneloom.emulated("gfx1151"):` to '
            "run it on an emulated one"
        ) from error
    gpu = get_gpu(target.arch if target.backend == "hip" else f"sm_{target.arch}")
    check_gpu(gpu)
    if target.backend != "cuda":
        return gpu
    active: Any = driver.active
    return _device(gpu.name, active.get_current_device())


@cache
def _device(name: str, device: int) -> Gpu:
    """The row with what the device has; where its driver tells no clocks, the row's."""
    import torch

    row = get_gpu(name)
    active: Any = driver.active
    has: dict[str, int] = active.utils.get_device_properties(device)  # kHz, bits
    bandwidth_gbs = 2 * has["mem_clock_rate"] * has["mem_bus_width"] / 8e6 or row.bandwidth_gbs
    product = torch.cuda.get_device_name(device).removeprefix("NVIDIA ")
    clock_ghz = has["sm_clock_rate"] / 1e6 or row.clock_ghz
    return as_found(row, product, has["multiprocessor_count"], clock_ghz, bandwidth_gbs)


def is_emulated() -> bool:
    """Whether the active driver is the emulator's, for which operands lie in the host's memory."""
    return isinstance(driver._active, EmulatedDriver)  # `active` would look for a real GPU


def check_ends_rise(ends: Any) -> None:
    """Raise ArgumentError for ends of groups that are negative or fall: in the emulator, a GPU's are not looked at."""
    if is_emulated() and (numbers := ends.tolist()) and (numbers[0] < 0 or numbers != sorted(numbers)):
        raise ArgumentError(f"ends: expected numbers from 0 on that never fall, got {shown(numbers)}")


def gpu_for_arrays(**operands: Any) -> Gpu:
    """The emulated GPU that a call on numpy arrays runs on; an operand that is not there is None.

    Raises UnsupportedError where the active driver is that of a real GPU, and for masked arrays.
    """
    gpu = active_gpu()
    for name, x in operands.items():
        if not is_emulated():
            raise UnsupportedError(
                f"{name}: expected a torch tensor on {gpu.name}, got a numpy array, which only `laneloom.emulated` "
                "takes"
            )
        check_unmasked(name, x)
    return gpu


def check_unmasked(name: str, x: Any) -> None:
    """Raise UnsupportedError for an array with a mask, which the numbers in its memory do not show."""
    if isinstance(x, np.ma.MaskedArray):
        raise UnsupportedError(f"{name}: expected an array without a mask, got a MaskedArray")


def gpu_for_tensor(name: str, x: Any) -> Gpu:
    """The GPU that a call on torch tensors runs on; `name` is x's. Raises ArgumentError for a tensor elsewhere."""
    gpu = active_gpu()
    if x.device.type != (expected := expected_device_type()):
        hint = "" if expected == "cpu" else '; inside `with laneloom.emulated("gfx1151"):` CPU tensors work'
        raise ArgumentError(f"{name}: expected a tensor on {expected} for {gpu.name}, got one on {x.device}{hint}")
    return gpu


def expected_device_type() -> str:
    """The type of the torch device whose tensors the active driver takes: "cpu" inside `laneloom.emulated`."""
    # Under `pytest --emulate` the emulator's driver says "cuda:0", as a GPU's does; tensors are the CPU's there too.
    active: Any = driver.active
    return getattr(active, "memory_of", None) or active.get_active_torch_device().type

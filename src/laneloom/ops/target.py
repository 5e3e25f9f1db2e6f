"""Which GPU a call runs on."""

from __future__ import annotations

from typing import Any

from triton.runtime import driver

from ..codegen.versions import check_gpu
from ..errors import UnsupportedError
from ..gpu import Gpu, get_gpu


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
    return gpu


def expected_device_type() -> str:
    """The type of the torch device whose tensors the active driver takes: "cpu" inside `laneloom.emulated`."""
    device: Any = driver.active.get_active_torch_device()
    return device.type

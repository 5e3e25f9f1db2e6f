"""Launches a kernel written in assembly where Triton's active driver is: in the emulator, or on an AMD GPU through HIP.

Nobody of laneloom's has run the HIP half on hardware: its calls are those of the HIP runtime's documentation, Triton
finds the library, and the argument block is the one that the emulator runs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from triton.runtime import driver

from ..codegen import CodeObject
from ..codegen.hip_launch import launch_module
from ..emulator.driver import EmulatedDriver, emulate_code_object


def launch_assembled(
    code: CodeObject,
    grid: tuple[int, int],
    pointers: Sequence[Any],
    offsets: Sequence[int],
    integers: Sequence[int],
) -> None:
    """Run `code` over `grid` workgroups: its arguments are the pointers, then the integers, each of 32 bits.

    pointers: tensors, or what else has data_ptr() and element_size(); `offsets` are in their elements. Asynchronous on
    a GPU, on Triton's current stream.
    """
    addresses = [p.data_ptr() + at * p.element_size() for p, at in zip(pointers, offsets, strict=True)]
    block = struct.pack(f"<{len(addresses)}Q{len(integers)}I", *addresses, *integers)
    block = block.ljust(code.kernarg_bytes, b"\0")
    active: Any = driver.active
    if isinstance(active, EmulatedDriver):
        names = [argument.name or f"argument {n}" for n, argument in enumerate(code.arguments)]
        emulate_code_object(code.asm, code.kernel, grid, block, dict(zip(names, pointers, strict=False)),
                            workgroup_size=code.workgroup_size)  # fmt: skip
        return
    device = active.get_current_device()
    launch_module(code, grid, block, device=device, stream=active.get_current_stream(device))

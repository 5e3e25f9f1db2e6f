"""CudaCalls of kernels that Triton's JIT has compiled: the same launch as by Triton's launcher, with less host time.

What a kernel takes is the same from Triton 3.6 to 3.9: its arguments without the constants, of a tensor descriptor the
map, the sizes and the strides, then two pointers to scratch memory.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

from triton import knobs

from .cuda_call import CudaCall, CudaFunction, Pointer, TensorMap

_SCALARS = {
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
}  # fmt: skip
#: Triton's element types of descriptors -> those of tensor maps
_ELEMENTS = {"fp8e4nv": "fp8", "fp8e5": "bf8", "i8": "int8", "u8": "uint8", "i32": "int32"}
_SWIZZLE_BYTES = (0, 32, 64, 128)


def launches_are_observed() -> bool:
    """Whether a profiler has asked Triton to be told of launches, which only Triton's own launcher does."""
    return bool(knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls)


def call_of(kernel: Any, grid: tuple[int, int, int], arguments: Sequence[Any], device: int) -> CudaCall | None:
    """Launches of a compiled kernel, with the arguments that it was compiled with; `launch_at` takes the addresses of
    pointers and descriptors, in the kernel's order. None for a kernel that only Triton's launcher can start: one with
    scratch memory, nested arguments or floats other than fp32.

    kernel: Triton's CompiledKernel, for the GPU of number `device`. arguments: all of the kernel's, constants among
    them; of tensor descriptors, something with the `shape` and `strides` of one.
    """
    about = kernel.metadata
    if about.global_scratch_size or about.profile_scratch_size or about.launch_cooperative_grid or about.num_ctas > 1:
        return None
    maps = iter(about.tensordesc_meta or ())
    taken: list[Any] = []
    for kind, value in zip(kernel.src.signature.values(), arguments, strict=True):
        if kind == "constexpr":
            continue
        if kind in _SCALARS:
            taken.append(_SCALARS[kind](value))
        elif isinstance(kind, str) and kind.startswith("*"):
            taken.append(Pointer())
        elif isinstance(kind, str) and kind.startswith("tensordesc<"):
            shape, strides = value.shape, value.strides
            taken.append(_map(kind, next(maps, None), shape, strides))
            taken += [ctypes.c_int32(n) for n in shape] + [ctypes.c_int64(n) for n in strides]
        else:
            return None
    taken += [ctypes.c_void_p(), ctypes.c_void_p()]
    function = CudaFunction(kernel.name, int(kernel.function), 32 * about.num_warps, about.shared, kernel)
    return CudaCall(function, taken, device, ctas=grid, pdl=bool(about.launch_pdl))


def _map(kind: str, about: Any, shape: Sequence[int], strides: Sequence[int]) -> TensorMap:
    """The map of a descriptor of Triton's type `kind`; `about`: the compiler's box and swizzle of it."""
    found = re.match(r"tensordesc<(\w+)\[", kind)
    assert found is not None
    assert about is not None
    size = about["elem_size"]
    dtype = _ELEMENTS.get(found[1], found[1])
    steps = [stride * size for stride in strides[-2::-1]]
    return TensorMap(dtype, shape[::-1], steps, about["block_size"][::-1], _SWIZZLE_BYTES[about["swizzle"]])

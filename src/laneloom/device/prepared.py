"""Launches that are repeated with the same specialisation, without the JIT's work per call.

Triton's `kernel[grid](...)` binds, specialises and looks up every argument at each call, 20 to 60 us of host time for a
kernel of 30 arguments. The kernel that it found can be launched by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..codegen.cuda_call import CudaCall
from ..codegen.cuda_context import make_current
from ..codegen.triton_call import call_of, launches_are_observed

if TYPE_CHECKING:
    import torch

#: the stream of torch on a device, as the driver knows it; torch without CUDA has none
current_stream: Callable[[int], int]
try:
    from torch._C import _cuda_getCurrentRawStream as current_stream
except ImportError:  # no torch either: AMD's schedules of a file that has Hopper's too run on arrays

    def current_stream(device: int) -> int:
        return 0


@lru_cache(maxsize=8192)
def prepared_on(prepare: Callable[..., Callable[..., None]], problem: Any, config: Any, gpu: Any, device: torch.device):
    """What a schedule's `prepare(problem, config, gpu)` gave for a device, made once."""
    return prepare(problem, config, gpu)


class PreparedLaunch:
    """One kernel with its grid and options on one CUDA device. The first call goes through the JIT, later ones straight
    to what it compiled. Calls differ in the addresses of their tensors only.
    """

    __slots__ = ("_arguments", "_grid", "_kernel", "_launches", "_options")

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], arguments: Callable[..., tuple[Any, ...]], **options: Any
    ) -> None:
        """`arguments(*tensors)`: all of the kernel's, for the tensors of one call. Multiplications and additions fuse
        to FMA, as `compile_kernel` has them of this package's kernels, unless options say otherwise."""
        self._kernel = kernel
        self._grid = (*grid, 1, 1)[:3]
        self._arguments = arguments
        self._options = {"enable_fp_fusion": True} | options
        #: by what the JIT specialises on: which addresses 16 divides, 0 if it divides all
        self._launches: dict[tuple[bool, ...] | int, CudaCall | None] = {}

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Launch on the current stream. `tensors`: one for each pointer and descriptor, in the kernel's order."""
        addresses = [x.data_ptr() for x in tensors]
        low_bits = 0
        for address in addresses:
            low_bits |= address
        key = tuple(address % 16 == 0 for address in addresses) if low_bits & 15 else 0
        launch = self._launches.get(key)
        if launch is None or launches_are_observed():
            self._launches[key] = self._launch_by_jit(tensors)
        else:
            launch.launch_at(current_stream(tensors[0].get_device()), *addresses)

    def _launch_by_jit(self, tensors: tuple[torch.Tensor, ...]) -> CudaCall | None:
        device = tensors[0].get_device()
        # Triton encodes descriptors before it looks for a context.
        make_current(device)
        arguments = self._arguments(*tensors)
        kernel = self._kernel[self._grid](*arguments, **self._options)
        return call_of(kernel, self._grid, arguments, device)


def specialise(
    kernel: Any, arguments: Mapping[str, Any], pointers: Mapping[str, str | None]
) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """What Triton's JIT makes of `arguments`, for `codegen.compile_kernel`: signature, constants, and the attrs.

    `pointers` has the type of each pointer and tensor descriptor, None of one that is not there; all of them are taken
    to be aligned to 16 bytes.
    An integer that is 1 becomes a constant, one that 16 divides is marked so, unless the kernel forbids it.
    """
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible = [name for name, kind in pointers.items() if kind is not None and kind.startswith("*")]
    for parameter in kernel.params:
        name = parameter.name
        kind = pointers.get(name)
        if kind is not None:
            signature[name] = kind
            continue
        value = None if name in pointers else arguments[name]
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

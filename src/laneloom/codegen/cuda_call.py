"""Launches of one CUDA kernel with tensor maps, clusters and programmatic dependent launch, with little host time each.

`CudaKernel` packs every argument anew. Here arguments are ctypes objects that are changed in place, and the descriptors
of the copy engine (TMA) are encoded by the driver once per address.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LaneloomError
from .code_object import CodeObject
from .cuda_context import NO_CONTEXT, driver, make_current
from .cuda_launch import CudaKernel

#: element types of a tensor map: CUtensorMapDataType of cuda.h
TENSOR_MAP_TYPES = {
    "uint8": 0, "int8": 0, "fp8": 0, "bf8": 0, "int32": 3, "fp16": 6, "fp32": 7, "fp64": 8, "bf16": 9, "tf32": 11,
}  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  #: bytes -> CUtensorMapSwizzle
#: CUtensorMapL2promotion: a miss brings 128 bytes to the L2. With 256, one H200 read a cache of keys at 4.0 in place of
#: 4.4 TB/s, and rows of a product at 16-byte pitches 10% slower
L2_PROMOTION = 2
_MOST_ADDRESSES = 1024  #: encoded maps that are kept of one view
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6  #: CUlaunchAttributeID
_LARGE_CLUSTERS_ALLOWED = 14  #: CUfunction_attribute
_PORTABLE_CLUSTER = 8  #: CTAs that every GPU with clusters takes


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("attribute_count", ctypes.c_uint),
    )  # fmt: skip


class Pointer:
    """An address as an argument of a kernel, which comes with each launch."""


def _map_room() -> tuple[Any, int]:
    """Memory for a map, and where in it the map lies: the driver asks for 64-byte alignment."""
    room = ctypes.create_string_buffer(192)
    return room, -(-ctypes.addressof(room) // 64) * 64


class TensorMap:
    """A tensor of up to five axes that TMA moves in boxes; its address comes with each call.

    The innermost axis comes first and is dense. An argument of kernels: `parameter` points to 128 bytes.
    """

    device = 0  #: of the kernel that takes the map, which tells it

    def __init__(
        self, dtype: str, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int
    ) -> None:
        """`strides`: bytes, of every axis but the first; `swizzle`: bytes, 0 for none."""
        rank = len(sizes)
        self._type, self._rank, self._swizzle = TENSOR_MAP_TYPES[dtype], rank, _SWIZZLES[swizzle]
        self._sizes = (ctypes.c_uint64 * rank)(*sizes)
        self._strides = (ctypes.c_uint64 * max(rank - 1, 1))(*strides)
        self._box = (ctypes.c_uint32 * rank)(*box)
        self._steps = (ctypes.c_uint32 * rank)(*[1] * rank)
        self._room, self.parameter = _map_room()
        self._address = -1  #: of what `parameter` points to
        self._encoded: dict[int, int] = {}  #: address of the tensor -> address of its map
        self._rooms: list[Any] = []  #: keeps those maps

    def set_address(self, address: int) -> None:
        """Let the map begin at `address`, a multiple of 16."""
        if address != self._address:
            ctypes.memmove(self.parameter, self.encoded(address), 128)
            self._address = address

    def encoded(self, address: int) -> int:
        """Where the map lies that begins at `address`, a multiple of 16: to be read before another one is asked for."""
        found = self._encoded.get(address)
        return self._encode(address) if found is None else found

    def _encode(self, address: int) -> int:
        room, place = _map_room()
        status = self._ask_driver(place, address)
        if status == NO_CONTEXT:
            make_current(self.device)
            status = self._ask_driver(place, address)
        if status != 0:
            raise LaneloomError(
                f"the CUDA driver refuses a tensor map (error {status}): sizes {list(self._sizes)}, strides "
                f"{list(self._strides)}, box {list(self._box)}"
            )
        if len(self._encoded) >= _MOST_ADDRESSES:
            self._encoded.clear()
            self._rooms.clear()
        self._rooms.append(room)
        self._encoded[address] = place
        return place

    def _ask_driver(self, place: int, address: int) -> int:
        return driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(place), self._type, self._rank, ctypes.c_void_p(address), self._sizes,
            self._strides, self._box, self._steps, 0, self._swizzle, L2_PROMOTION, 0,
        )  # fmt: skip


@dataclass(frozen=True)
class CudaFunction:
    """A kernel that is loaded on a device, and what each launch of it takes."""

    name: str
    handle: int  #: the driver's CUfunction
    threads: int
    shared_bytes: int
    owner: Any  #: keeps it loaded


def load_function(code: CodeObject, device: int) -> CudaFunction:
    """Load a kernel into the primary context of a device."""
    kernel = CudaKernel(code, (), device)
    return CudaFunction(code.kernel, kernel.handle, code.workgroup_size, code.lds_bytes, kernel)


def ctas_per_processor(kernel: CudaFunction, device: int) -> int:
    """CTAs of a kernel that a multiprocessor of the device holds at once."""
    ctas = ctypes.c_int()
    make_current(device)
    status = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(ctas), ctypes.c_void_p(kernel.handle), kernel.threads, ctypes.c_size_t(kernel.shared_bytes)
    )
    if status != 0:
        raise LaneloomError(f"kernel {kernel.name}: the CUDA driver says error {status} of its occupancy")
    return ctas.value


class CudaCall:
    """A kernel with its grid, ready to be launched again and again with other addresses."""

    def __init__(
        self,
        kernel: CodeObject | CudaFunction,
        arguments: Sequence[Any],
        device: int,
        *,
        ctas: int | tuple[int, int, int],
        cluster: int = 1,
        pdl: bool = False,
    ) -> None:
        """`arguments`: TensorMaps, Pointers and ctypes objects, in the kernel's order, read at each launch; `cluster`:
        CTAs in a cluster, which divide `ctas`; of more than 8 a half, or a quarter, where this GPU has no room for
        so many: `cluster` then says how many. `pdl`: may start while the kernel ahead still drains."""
        self._kernel = load_function(kernel, device) if isinstance(kernel, CodeObject) else kernel
        self._device = device
        self._arguments = tuple(arguments)
        places = [i for i, argument in enumerate(arguments) if isinstance(argument, (TensorMap, Pointer))]
        #: what `launch_at` is given, for TensorMaps and Pointers in the kernel's order; kernels read Pointers from it
        self._addresses = (ctypes.c_uint64 * len(places))()
        self._maps: list[tuple[int, int, TensorMap]] = []  #: number of the address, number of the argument, the map
        self._parameters = (ctypes.c_void_p * len(arguments))()
        for i, argument in enumerate(arguments):
            if isinstance(argument, TensorMap):
                argument.device = device
                self._maps.append((places.index(i), i, argument))
                self._parameters[i] = argument.parameter
            elif isinstance(argument, Pointer):
                self._parameters[i] = ctypes.addressof(self._addresses) + 8 * places.index(i)
            else:
                self._parameters[i] = ctypes.addressof(argument)
        attributes = []
        if cluster > 1:
            attributes.append(_Attribute(_CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(cluster, 1, 1)))
        if pdl:
            attributes.append(_Attribute(_PROGRAMMATIC_SERIALIZATION, 0, (ctypes.c_uint * 16)(1)))
        self._attributes = (_Attribute * max(len(attributes), 1))(*attributes)
        grid = ctas if isinstance(ctas, tuple) else (ctas, 1, 1)
        self._config = _LaunchConfig(
            (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(self._kernel.threads, 1, 1), self._kernel.shared_bytes,
            None, ctypes.cast(self._attributes, ctypes.POINTER(_Attribute)), len(attributes),
        )  # fmt: skip
        self._function = ctypes.c_void_p(self._kernel.handle)
        self._launch = driver().cuLaunchKernelEx
        self._by_config = ctypes.byref(self._config)
        self.cluster = cluster
        while self.cluster > _PORTABLE_CLUSTER and not self._has_room():
            self.cluster //= 2
            self._attributes[0].value[0] = self.cluster
        self._lock = threading.Lock()

    def _has_room(self) -> bool:
        """Whether the GPU can run one such cluster."""
        clusters = ctypes.c_int()
        make_current(self._device)
        status = driver().cuFuncSetAttribute(self._function, _LARGE_CLUSTERS_ALLOWED, 1)
        if status == 0:
            status = driver().cuOccupancyMaxActiveClusters(ctypes.byref(clusters), self._function, self._by_config)
        return status == 0 and clusters.value > 0

    def __call__(self, stream: int) -> None:
        """Launch on a stream of the device; asynchronous, and captured if the stream is being captured."""
        self._config.stream = stream
        status = self._launch(self._by_config, self._function, self._parameters, None)
        if status == NO_CONTEXT:
            make_current(self._device)
            status = self._launch(self._by_config, self._function, self._parameters, None)
        if status != 0:
            raise LaneloomError(f"kernel {self._kernel.name}: the CUDA driver says error {status}")

    def launch_at(self, stream: int, *addresses: int) -> None:
        """Launch with these addresses in the TensorMaps and Pointers among the arguments, in the kernel's order."""
        with self._lock:  # the arguments are filled in place
            self._addresses[:] = addresses
            for number, i, tensor_map in self._maps:
                self._parameters[i] = tensor_map.encoded(addresses[number])
            self(stream)

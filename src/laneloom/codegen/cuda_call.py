"""Launches of one CUDA kernel with tensor maps, clusters and programmatic dependent launch, with little host time each.

`CudaKernel` packs every argument anew. Here arguments are ctypes objects that the caller changes in place, and the
descriptors of the copy engine (TMA) are encoded by the driver once per address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from ..errors import LaneloomError, UnsupportedError
from .code_object import CodeObject
from .cuda_launch import CudaKernel

#: element types of a tensor map: CUtensorMapDataType of cuda.h
TENSOR_MAP_TYPES = {
    "uint8": 0, "int8": 0, "fp8": 0, "bf8": 0, "int32": 3, "fp16": 6, "fp32": 7, "fp64": 8, "bf16": 9, "tf32": 11,
}  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  #: bytes -> CUtensorMapSwizzle
_L2_PROMOTION_128B = 2  #: with 256, rows at 16-byte pitches came 10% slower on one H200
_MOST_ADDRESSES = 64  #: encoded maps that are kept of one view
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6  #: CUlaunchAttributeID
_NO_CONTEXT = 201  #: CUDA_ERROR_INVALID_CONTEXT


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("attribute_count", ctypes.c_uint),
    )  # fmt: skip


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UnsupportedError("CUDA C++ kernels are launched through NVIDIA's driver, which is not there") from error


class TensorMap:
    """A tensor of up to five axes that TMA moves in boxes; its address comes with each call.

    The innermost axis comes first and is dense. An argument of kernels: `parameter` points to 128 bytes.
    """

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
        self._storage = ctypes.create_string_buffer(192)
        self.parameter = -(-ctypes.addressof(self._storage) // 64) * 64  # the driver asks for 64-byte alignment
        self._encoded: dict[int, bytes] = {}

    def set_address(self, address: int) -> None:
        """Let the map begin at `address`, a multiple of 16."""
        encoded = self._encoded.get(address)
        if encoded is None:
            encoded = self._encode(address)
        ctypes.memmove(self.parameter, encoded, 128)

    def _encode(self, address: int) -> bytes:
        status = _driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.parameter), self._type, self._rank, ctypes.c_void_p(address), self._sizes,
            self._strides, self._box, self._steps, 0, self._swizzle, _L2_PROMOTION_128B, 0,
        )  # fmt: skip
        if status != 0:
            raise LaneloomError(
                f"the CUDA driver refuses a tensor map (error {status}): sizes {list(self._sizes)}, strides "
                f"{list(self._strides)}, box {list(self._box)}"
            )
        if len(self._encoded) >= _MOST_ADDRESSES:
            self._encoded.clear()
        encoded = self._encoded[address] = ctypes.string_at(self.parameter, 128)
        return encoded


class CudaCall:
    """A kernel with its grid, ready to be launched again and again with other addresses."""

    def __init__(
        self, code: CodeObject, arguments: Sequence[Any], device: int, *, ctas: int, cluster: int = 1, pdl: bool = False
    ) -> None:
        """`arguments`: TensorMaps and ctypes objects, in the kernel's order, read at each launch; `cluster`: CTAs in a
        cluster, which divide `ctas`; `pdl`: may start while the kernel ahead still drains."""
        self._kernel = CudaKernel(code, (), device)
        self._arguments = tuple(arguments)
        addresses = [a.parameter if isinstance(a, TensorMap) else ctypes.addressof(a) for a in arguments]
        self._parameters = (ctypes.c_void_p * len(addresses))(*addresses)
        attributes = []
        if cluster > 1:
            attributes.append(_Attribute(_CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(cluster, 1, 1)))
        if pdl:
            attributes.append(_Attribute(_PROGRAMMATIC_SERIALIZATION, 0, (ctypes.c_uint * 16)(1)))
        self._attributes = (_Attribute * max(len(attributes), 1))(*attributes)
        self._config = _LaunchConfig(
            (ctypes.c_uint * 3)(ctas, 1, 1), (ctypes.c_uint * 3)(code.workgroup_size, 1, 1), code.lds_bytes, None,
            ctypes.cast(self._attributes, ctypes.POINTER(_Attribute)), len(attributes),
        )  # fmt: skip
        self._function = ctypes.c_void_p(self._kernel.handle)
        self._launch = _driver().cuLaunchKernelEx
        self._by_config = ctypes.byref(self._config)

    def __call__(self, stream: int) -> None:
        """Launch on a stream of the current context; asynchronous, and captured if the stream is being captured."""
        self._config.stream = stream
        status = self._launch(self._by_config, self._function, self._parameters, None)
        if status == _NO_CONTEXT:  # a thread of torch's autograd engine, before it has met the device
            self._kernel.make_current()
            status = self._launch(self._by_config, self._function, self._parameters, None)
        if status != 0:
            raise LaneloomError(f"kernel {self._kernel.code.kernel}: the CUDA driver says error {status}")

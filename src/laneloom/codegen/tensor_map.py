"""CUtensorMaps: how Hopper's copy engine (TMA) sees a tensor, encoded on the host (the extra `cuda`)."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

from ..errors import LaneloomError, UnsupportedError
from .cuda_call import L2_PROMOTION
from .cuda_context import make_current


@lru_cache(maxsize=4096)
def tensor_map(
    address: int, device: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> Any:
    """The map of a tensor on a device: axes from the last, contiguous one on, boxes of 128 bytes a row.

    shape, box: in elements. strides: bytes between neighbours along each further axis, multiples of 16. Rows of a box
    are 128 bytes of shared memory, swizzled; what lies outside the tensor is zero. A kernel takes it by value.
    """
    try:
        cuda = import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UnsupportedError("CUDA C++ kernels need cuda-bindings: install laneloom[cuda]") from error
    kinds, sizes = cuda.CUtensorMapDataType, (cuda.cuuint64_t, cuda.cuuint32_t)
    kind = {
        "fp16": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, "bf16": kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        "fp32": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, "fp8": kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    }[dtype]  # fmt: skip
    make_current(device)
    status, encoded = cuda.cuTensorMapEncodeTiled(
        kind, len(shape), address, [sizes[0](n) for n in shape], [sizes[0](n) for n in strides],
        [sizes[1](n) for n in box], [sizes[1](1)] * len(shape),
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        cuda.CUtensorMapL2promotion(L2_PROMOTION),
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    if status != cuda.CUresult.CUDA_SUCCESS:
        raise LaneloomError(f"the CUDA driver refuses a tensor map of shape {shape}, strides {strides}: {status.name}")
    return encoded

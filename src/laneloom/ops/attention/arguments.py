"""What the attention kernels take: tensors as pointers and strides, sizes that Triton shall not specialise on."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from typing import Any

import numpy as np

from ...emulator.arguments import ArrayArgument
from ...errors import ArgumentError
from ..scalars import is_number, shown, to_float

UNIT = 8  #: elements; every stride is a multiple of it and is passed in it, so that rows are known to be aligned

_SCALARS = ("queries", "keys", "heads", "group", "first", "last", "stride_lb", "stride_lh", "batches")
_STRIDES = tuple(f"stride_{x}{axis}" for x in ("q", "k", "v", "o", "g", "dq", "dk", "dv") for axis in "bhn")

#: arguments whose value makes no kernel of its own
_FLOATS = ("scale2", "scale", "cap2")
RUNTIME = (*_FLOATS, *_SCALARS, *_STRIDES)
LENGTHS = ("first_q_ptr", "first_k_ptr")  #: None where no sequences are packed
SCALES = ("scale_q_ptr", "scale_k_ptr", "scale_v_ptr")  #: of 8-bit operands, [B, H_kv] in order; None for others
_FP32 = ("lse_ptr", "delta_ptr", "dlse_ptr", *SCALES)
_TRITON = {"fp8": "fp8e4nv"}
_CAPS = (1e-30, 1e30)
MOST_SCALE = 1e30  #: beyond it a factor to base 2 would be infinite in FP32, and every score NaN


def checked_scale(scale: Any) -> float | None:
    """The factor of the scores as a float; None stays. Raises ArgumentError for what FP32 cannot multiply by."""
    if scale is None:
        return None
    factor = to_float("scale", scale) if is_number(scale) else inf
    if not abs(factor) <= MOST_SCALE:
        raise ArgumentError(
            f"scale: expected a number from {-MOST_SCALE} to {MOST_SCALE}, or None, got {shown(scale)}"
        )
    return factor


def checked_softcap(softcap: Any) -> float:
    """What caps the scores as a float, 0 for nothing. Raises ArgumentError for what FP32 cannot divide by."""
    if softcap is None:
        return 0.0
    cap = to_float("softcap", softcap) if is_number(softcap) else inf
    if cap != 0 and not _CAPS[0] <= cap <= _CAPS[1]:
        raise ArgumentError(f"softcap: expected a number from {_CAPS[0]} to {_CAPS[1]}, or None, got {shown(softcap)}")
    return cap


class Tensors:
    """The operands of one launch by name: torch tensors or numpy arrays, [B, H, N, D], as `is_direct` wants them."""

    def __init__(self, operands: Mapping[str, Any]):
        self._operands = operands

    def tensor(self, name: str) -> Any:
        """One operand itself."""
        return self._operands[name]

    def table_stride(self) -> int:
        """Elements between the rows of the table of pages; 0 without one."""
        table = self._operands.get("table")
        return 0 if table is None else strides_of(table)[0]

    def lines(self) -> list[int]:
        """Strides of batch and head of the LSE [B, H, N], in elements."""
        return list(strides_of(self._operands["lse"])[:2])

    def pointers(self, *names: str) -> list[Any]:
        """What Triton takes for pointers."""
        found = [self._operands.get(name) for name in names]
        return [ArrayArgument(x) if isinstance(x, np.ndarray) else x for x in found]

    def strides(self, *names: str) -> list[int]:
        """Strides of batch, head and row of each, in UNIT elements; those of single rows do not matter."""
        found = []
        for name in names:
            x = self._operands[name]
            found += [0 if n <= 1 else s // UNIT for n, s in zip(x.shape[:3], strides_of(x)[:3], strict=True)]
        return found


def strides_of(x: Any) -> tuple[int, ...]:
    """Strides in elements of a torch tensor or numpy array."""
    return tuple(s // x.itemsize for s in x.strides) if hasattr(x, "strides") else tuple(x.stride())


def address_of(x: Any) -> int:
    """Where a torch tensor or numpy array begins."""
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr()


def is_direct(x: Any, address: int) -> bool:
    """Whether kernels read x [B, H, N, D] where it lies: contiguous aligned rows that are not too far apart."""
    far, unit = 1 << 23, max(UNIT, 16 // x.itemsize)
    *outer, inner = zip(x.shape, strides_of(x), strict=True)
    in_units = all(n <= 1 or (s >= 0 and s % unit == 0) for n, s in outer)
    return in_units and inner[1] == 1 and address % 16 == 0 and (x.shape[2] <= 1 or strides_of(x)[2] < far)


def aligned_empty(shape: tuple[int, ...], dtype: Any = np.float16) -> np.ndarray:
    """numpy aligns to 16 bytes on most systems, but promises no more than an element's size."""
    size, count = np.dtype(dtype).itemsize, prod(shape)
    room = np.empty(count + 16 // size, dtype)
    start = -room.ctypes.data % 16 // size
    return room[start : start + count].reshape(shape)


def aligned_copy(x: np.ndarray) -> np.ndarray:
    """The same elements, contiguous, in the machine's byte order, at a multiple of 16 bytes."""
    copied = aligned_empty(x.shape, x.dtype.newbyteorder("="))
    copied[...] = x
    return copied


def signature(kernel: Any, dtype: str, out_dtype: str = "") -> dict[str, str]:
    """Triton's types of a kernel's arguments, as a call with tensors below 2**31 elements has them."""
    types = {"out_ptr": out_dtype or dtype}
    kinds = {}
    for name in kernel.arg_names:
        if name.endswith("_ptr"):
            kind = types.get(name, dtype)
            kinds[name] = "*fp32" if name in _FP32 else "*i32" if name in LENGTHS else f"*{_TRITON.get(kind, kind)}"
        elif name in _FLOATS:
            kinds[name] = "fp32"
        elif name in RUNTIME:
            kinds[name] = "i32"
    return kinds

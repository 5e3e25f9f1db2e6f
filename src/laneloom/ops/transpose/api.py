"""`laneloom.transpose`: what users call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..matmul.execute import check_distinct, overlap
from ..target import gpu_for_arrays
from ..traced import loaded
from . import execute
from .config import TransposeConfig, parse_config
from .problem import ELEMENT_BYTES

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray

_ON_TENSORS = f"{__package__}.torch_op"  #: the module that needs torch


def transpose(x: Operand, *, out: Operand | None = None, config: TransposeConfig | str | None = None) -> Any:
    """Y[..., c, r] = X[..., r, c], written to memory.

    x: [..., R, C], any batch axes, any strides, any dtype of 1, 2, 4 or 8 bytes. A torch tensor on the GPU that Triton
        drives, or on the CPU inside `laneloom.emulated`; a numpy array only there.
    out: where Y goes, of shape [..., C, R] and x's dtype, with any strides that keep its elements apart; by default a
        new contiguous tensor. It may overlap x (Y is then made elsewhere and copied). It takes no part in autograd.
    config: what runs, a config or its text; by default `plan` chooses.

    Bits are moved: every value arrives unchanged, NaN payloads and -0 included, unless a config says otherwise
    (`FragmentsConfig(by="f16")`). The gradient is the transpose of the gradient; second derivatives work as well.

    Raises ArgumentError for an operand that does not fit, UnsupportedError for other dtypes and GPUs,
    InvalidConfigError for a config that cannot do this.
    Source: AMD RDNA 3 and RDNA 4 ISA guides, data-parallel primitives; docs/transpose.md derives the exchange.
    """
    if config is not None and not isinstance(config, TransposeConfig):
        config = parse_config(config)
    torch = sys.modules.get("torch")
    if torch is not None and (isinstance(x, torch.Tensor) or isinstance(out, torch.Tensor)):
        torch_op = loaded(_ON_TENSORS)
        if torch_op is None:
            from . import torch_op
        return torch_op.transpose_tensor(x, out, config)
    for name, operand in (("x", x), ("out", out)):
        if not isinstance(operand, np.ndarray) and (name == "x" or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor or a numpy array, got {type(operand).__name__}")
    return _transpose_array(x, out, config)


def turned_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the transpose. Raises ArgumentError for fewer than two axes."""
    if len(shape) < 2:
        raise ArgumentError(f"x: expected at least 2 axes [..., R, C], got shape {tuple(shape)}")
    return (*shape[:-2], shape[-1], shape[-2])


def check_size(dtype: Any) -> int:
    """Bytes of an element. Raises UnsupportedError for one that no kernel moves."""
    if dtype.itemsize not in ELEMENT_BYTES:
        raise UnsupportedError(f"x: expected a dtype of 1, 2, 4 or 8 bytes, got {dtype} of {dtype.itemsize}")
    return dtype.itemsize


def _transpose_array(x: Any, out: Any, config: TransposeConfig | None) -> Any:
    gpu = gpu_for_arrays(x=x, out=out)
    shape = turned_shape(x.shape)
    if x.dtype.hasobject:
        raise UnsupportedError(f"x: expected numbers, got dtype {x.dtype}")
    bits = np.dtype(f"i{check_size(x.dtype)}")
    if out is not None and (out.shape != shape or out.dtype != x.dtype):
        raise ArgumentError(f"out: expected shape {shape} and {x.dtype}, got {out.shape} and {out.dtype}")
    if out is not None and not out.flags.writeable:
        raise ArgumentError("out: expected an array that can be written, got a read-only one")
    x = x if _walkable(x) else np.array(x, order="C")
    target: Any = out
    if out is not None and _walkable(out):
        check_distinct(out)
    if out is None or not _walkable(out) or overlap(out, x):
        target = np.empty(shape, x.dtype)
    execute.transpose_into(x.view(bits), target.view(bits), gpu, config)
    if out is None:
        return target
    if target is not out:
        out[...] = target
    return out


def _walkable(array: Any) -> bool:
    """Whether a kernel can walk over the array where it lies: aligned elements, whole and non-negative strides."""
    steps = [step for step, n in zip(array.strides, array.shape, strict=True) if n > 1]
    return array.ctypes.data % array.itemsize == 0 and all(s >= 0 and s % array.itemsize == 0 for s in steps)

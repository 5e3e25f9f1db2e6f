"""`laneloom.transform3d`: what users call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..matmul.api import addressable, addressed, check_array_out
from ..scalars import shown
from ..target import gpu_for_arrays
from ..traced import loaded
from .config import Transform3dConfig, parse_config

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray

_DTYPES = ("float64", "float32", "complex128", "complex64")
_ON_TENSORS = f"{__package__}.torch_op"  #: the module that needs torch


def transform3d(
    coeffs: Operand,
    matrix: Operand,
    *,
    out: Operand | None = None,
    transpose: bool = False,
    accumulate: bool = False,
    config: Transform3dConfig | str | None = None,
) -> Any:
    """R[..., a', b', c'] = sum over a, b, c of X[..., a, b, c] T0[a, a'] T1[b, b'] T2[c, c'].

    coeffs: X, [..., K, K, K], float64, float32, complex128 or complex64. A torch tensor on the GPU that Triton drives,
        or on the CPU inside `laneloom.emulated`; a numpy array only there. Any number of tensors, 0 included. X is
        copied first where a tensor [K, K, K] is not dense, or where the batch axes do not flatten to one stride.
    matrix: T, [K, K] for all three axes or [3, K, K], with any strides; of coeffs' dtype or, where that is complex, of
        its parts'.
    out: where R goes, of coeffs' shape and dtype; it may overlap coeffs (R is then made elsewhere and copied). It takes
        no part in autograd.
    transpose: T[a', a] in place of T[a, a'], never conjugated, which inverts the transform of an orthogonal T.
    accumulate: add R to what `out` holds.
    config: what runs, a config or its text; by default `plan` chooses: one kernel on Hopper (K up to 48, of complex128
        47), three passes elsewhere and for a complex matrix; on AMD K may be up to 64.

    float64 is computed in float64. On Hopper float32 is computed in FP32 for K up to 7, 9 to 12, 15 and 18, for others
    in float64, rounded after each contraction (K = 16 and from 32 on, complex64 from 31, after the second and third). A
    complex tensor takes two real transforms, or with a complex matrix products of four parts. The same call gives the
    same bits, and a tensor's result does not depend on the batch it is in. Gradients of coeffs and matrix are
    transforms by the same operator; second derivatives work as well.

    Raises ArgumentError for operands that do not fit together or are elsewhere, UnsupportedError for other dtypes and,
    on Hopper, without the extra `cuda`, InvalidConfigError for a config that cannot do this.
    Source: Beylkin et al., "Multiresolution quantum chemistry"; the transform of MADNESS (mtxmq).
    """
    if config is not None and not isinstance(config, Transform3dConfig):
        config = parse_config(config)
    for name, flag in (("transpose", transpose), ("accumulate", accumulate)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name}: expected True or False, got {shown(flag)}")
    text = None if config is None else config.text
    options = {"transpose": transpose, "accumulate": accumulate, "config": text}
    if isinstance(coeffs, np.ndarray):
        return _transform_arrays(coeffs, matrix, out, **options)
    torch_op = loaded(_ON_TENSORS)
    if torch_op is None:
        if "torch" not in sys.modules:
            raise ArgumentError(f"coeffs: expected a torch tensor or a numpy array, got {type(coeffs).__name__}")
        from . import torch_op
    return torch_op.transform_tensors(coeffs, matrix, out, **options)


def _transform_arrays(coeffs: np.ndarray, matrix: Any, out: Any, **options: Any) -> Any:
    """The transform of arrays, as tensors of the same memory."""
    for name, operand in (("matrix", matrix), ("out", out)):
        if not isinstance(operand, np.ndarray) and (name == "matrix" or operand is not None):
            raise ArgumentError(f"{name}: expected a numpy array, as coeffs is, got {type(operand).__name__}")
    gpu_for_arrays(coeffs=coeffs, matrix=matrix, out=out)
    for name, operand in (("coeffs", coeffs), ("matrix", matrix)):
        if operand.dtype.name not in _DTYPES:
            raise UnsupportedError(f"{name}: expected dtype {', '.join(_DTYPES)}, got {operand.dtype}")
    if out is not None:
        check_array_out(out, coeffs.shape, coeffs.dtype.newbyteorder("="))
    try:
        import torch
    except ModuleNotFoundError:
        raise UnsupportedError("coeffs: transform3d needs torch, for numpy arrays too, and there is none") from None
    from . import torch_op

    target = out if out is None or addressable(out) else np.array(out)
    # torch.from_numpy warns of arrays that cannot be written; none of these is written to.
    x, factors = (a if a.flags.writeable else a.copy() for a in map(addressed, (coeffs, matrix)))
    x, factors, into = (None if a is None else torch.from_numpy(_plain(a)) for a in (x, factors, target))
    result = torch_op.transform_tensors(x, factors, into, **options).numpy()
    if out is None:
        return result
    if target is not out:
        out[...] = target
    return out


def _plain(array: np.ndarray) -> np.ndarray:
    """The same memory with stride 0 along axes of one element, which may have any, also such as torch refuses."""
    strides = [0 if n == 1 else step for n, step in zip(array.shape, array.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)

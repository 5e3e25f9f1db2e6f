"""`laneloom.quantize_blocks`: what users call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..matmul.api import addressed, known_name, numpy_dtype
from ..matmul.execute import pointer_to, strides_of
from ..scalars import shown
from ..target import gpu_for_arrays
from ..traced import loaded
from .kernels import blocks
from .problem import DTYPES, check_rows, problem_of, scales_shape

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray

_ON_TENSORS = f"{__package__}.torch_op"  #: the module that needs torch


def quantize_blocks(x: Operand, rows: int = 1, *, dtype: Any = None) -> tuple[Any, Any]:
    """Q[..., m, k] = X[..., m, k] / scale[..., m / rows, k / 128] in 8-bit floats, and the scales.

    x: [..., M, K], any batch axes, any strides, fp32, fp16 or bf16. A torch tensor on the GPU that Triton drives, or on
        the CPU inside `laneloom.emulated`; a numpy array only there. Where more than two batch axes cannot be merged
        into two it is copied first.
    rows: of the blocks of rows x 128 that have a scale, 1 or 128; those at the edges have fewer rows and columns.
    dtype: of Q, torch.float8_e4m3fn (default) or torch.float8_e5m2; of arrays ml_dtypes' float8_e4m3fn or float8_e5m2.

    Gives Q [..., M, K] and scale [..., ceil(M / rows), ceil(K / 128)], fp32, both contiguous, as `laneloom.gemm` takes
    them: X W^T of activations X and weights W [N, K] is

        q, scale = quantize_blocks(x)
        w, scale_w = quantize_blocks(weight, rows=128)
        gemm(q, w.mT, scale_a=scale, scale_b=scale_w.mT)

    A scale is the largest finite magnitude of its block, in FP32, divided by the largest number of the dtype (448 of
    E4M3, 57344 of E5M2) and rounded; at least 2^-126, so that no quotient overflows and no GPU takes it for 0; and 1
    for a block of zeros, whose Q is 0. X / scale is rounded to FP32, then to nearest even, subnormal numbers included;
    -0 stays -0. NaN and infinities do not count for scales and spoil no other element: NaN becomes NaN, infinity stays
    infinity in E5M2 and becomes NaN in E4M3, which has none. The same call gives the same bits on every GPU, but for
    the sign of NaN.

    One launch that reads X once. There are no gradients: asking for them is refused.

    Raises ArgumentError for an operand that does not fit, UnsupportedError for other dtypes and GPUs, and of arrays
    without the package ml_dtypes.
    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 3.3.2; OCP 8-bit Floating Point Specification.
    """
    rows = check_rows(rows)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        torch_op = loaded(_ON_TENSORS)
        if torch_op is None:
            from . import torch_op
        return torch_op.quantize_tensor(x, rows, dtype)
    if not isinstance(x, np.ndarray):
        raise ArgumentError(f"x: expected a torch tensor or a numpy array, got {type(x).__name__}")
    return _quantize_array(x, rows, dtype)


def _quantize_array(x: np.ndarray, rows: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    gpu = gpu_for_arrays(x=x)
    shape = scales_shape(x.shape, rows)
    name = known_name(x.dtype)
    if name not in DTYPES:
        raise UnsupportedError(f"x: expected dtype float32, float16 or bfloat16, got {x.dtype}")
    wanted = _array_dtype(dtype)
    q, scale = np.empty(x.shape, wanted), np.empty(shape, np.float32)
    if q.size:
        x = addressed(x)
        problem = problem_of(x.shape, strides_of(x), rows, name, known_name(wanted))
        if problem is None:
            x = np.ascontiguousarray(x)
            problem = problem_of(x.shape, strides_of(x), rows, name, known_name(wanted))
        assert problem is not None
        pointers = ((x, name), (q.view(np.uint8), "uint8"), (scale, "fp32"))
        blocks.launch(problem, gpu, *(pointer_to(*pointer) for pointer in pointers))
    return q, scale


def _array_dtype(asked: Any) -> np.dtype:
    """Q's dtype. Raises ArgumentError, UnsupportedError."""
    try:
        import ml_dtypes  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise UnsupportedError(
            "x: expected a torch tensor, or the package ml_dtypes, which has 8-bit floats for arrays, got a numpy array"
        ) from None
    wanted = numpy_dtype("dtype", ml_dtypes.float8_e4m3fn if asked is None else asked)
    if known_name(wanted) not in ("fp8", "bf8"):
        raise UnsupportedError(f"dtype: expected float8_e4m3fn or float8_e5m2 of ml_dtypes, got {shown(asked)}")
    return wanted

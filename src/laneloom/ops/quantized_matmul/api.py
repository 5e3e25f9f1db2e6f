"""`laneloom.quantized_matmul`: what users call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..matmul.api import addressable, addressed, check_array_out, known_name, numpy_dtype
from ..matmul.dtypes import HALVES
from ..matmul.execute import check_distinct
from ..target import gpu_for_arrays
from ..traced import loaded
from . import execute
from .config import BaseConfig, given_config
from .weight import QuantizedWeight, is_tensor

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray

_ON_TENSORS = f"{__package__}.torch_op"  #: the module that needs torch


def quantized_matmul(
    x: Operand,
    weight: QuantizedWeight,
    *,
    ends: Operand | None = None,
    bias: Operand | None = None,
    out: Any = None,
    out_dtype: Any = None,
    config: BaseConfig | str | None = None,
) -> Any:
    """C[..., m, n] = sum over g of scale[n, g] (sum over k in g of X[..., m, k] (q[n, k] - zero[n, g])) + bias[n],

    g over groups of K, which is X W^T + bias of a weight of few bits, as torch.nn.functional.linear has it.

    x: [..., M, K] or [K], fp16 or bf16, any strides. A torch tensor on the GPU that Triton drives, or on the CPU inside
        `laneloom.emulated`; a numpy array only there (bf16 as ml_dtypes' bfloat16).
    weight: `laneloom.QuantizedWeight` [..., N, K] of tensors on x's device, or of arrays as x is. Its batch axes
        broadcast with x's. Any strides. Sizes may be 0.
    ends: [G], int32, not decreasing: the rows of x are in groups, as tokens of experts are, with a weight each. x is
        [M, K], the weight [G, N, K], bias [G, N], and rows from ends[g - 1] (0 for the first) up to ends[g] are
        multiplied by weight g. Only the kernel reads it: nothing waits for the GPU, and a CUDA graph may be replayed
        with other ends. Rows from ends[G - 1] on are not written; ends past M are M.
    bias: [N], fp32, fp16 or bf16.
    out: where the result goes, of its shape and dtype, with any strides that keep its elements apart. Where it shares
        memory with an operand the result is made elsewhere and copied. It takes no part in autograd.
    out_dtype: fp32, fp16 or bf16; x's dtype by default.
    config: what runs, a config or its text; by default `plan` chooses.

    q - zero is exact in x's dtype (a zero is 0 to 255), products are exact. Sums and scales are FP32, in an order that
    depends on the config alone; one rounding to out_dtype, to nearest even. Of rows that have one scale, and of parts
    of groups of more than 8 K-tiles, it is the sums of these that are scaled. The same call gives the same bits.
    Gradients reach x (the product of the incoming gradient, rounded to x's dtype, with W, rounded to it) and bias; the
    weight has none.

    Raises ArgumentError for operands that do not fit together, UnsupportedError for other dtypes and GPUs,
    InvalidConfigError for a config that cannot do this product.
    Source: Frantar et al., "GPTQ"; Lin et al., "AWQ"; OCP Microscaling Formats (MX) Specification.
    """
    if not isinstance(weight, QuantizedWeight):
        raise ArgumentError(f"weight: expected a laneloom.QuantizedWeight, got {type(weight).__name__}")
    if config is not None:
        config = given_config(config)
    if any(is_tensor(operand) for operand in (x, weight.values, ends, bias, out)):
        torch_op = loaded(_ON_TENSORS)
        if torch_op is None:
            from . import torch_op
        return torch_op.quantized_tensors(x, weight, ends, bias, out, out_dtype, config)
    for name, operand in (("x", x), ("ends", ends), ("bias", bias), ("out", out)):
        if not isinstance(operand, np.ndarray) and (name == "x" or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor or a numpy array, got {type(operand).__name__}")
    return _quantized_arrays(x, weight, ends, bias, out, out_dtype, config)


def check_operand(name: str) -> str:
    """The project's word for x's dtype, as `known_name` gives it. Raises UnsupportedError."""
    if name not in HALVES:
        raise UnsupportedError(f"x: expected dtype fp16 or bf16, got {name}")
    return name


def _quantized_arrays(
    x: Any, weight: QuantizedWeight, ends: Any, bias: Any, out: Any, out_dtype: Any, config: Any
) -> Any:  # fmt: skip
    gpu = gpu_for_arrays(x=x, weight=weight.values, ends=ends, bias=bias, out=out)
    name = check_operand(known_name(x.dtype))
    single = x.ndim == 1
    rows = x[None] if single else x
    groups = ()
    if ends is None:
        shape = execute.result_shape(rows.shape, weight.shape)
    else:
        shape, groups = execute.ragged_shape(x.shape, weight.shape, ends.shape, known_name(ends.dtype)), ends.shape
        ends = np.ascontiguousarray(ends, np.int32)
    wanted = x.dtype.newbyteorder("=") if out_dtype is None else numpy_dtype("out_dtype", out_dtype)
    if out_dtype is None and out is not None:
        wanted = out.dtype.newbyteorder("=")
    dtype_out = execute.check_output(known_name(wanted))
    visible = (*shape[:-2], shape[-1]) if single else shape
    if bias is not None:
        execute.check_bias(bias.shape, known_name(bias.dtype), shape[-1], *groups)
    rows = addressed(rows)
    values, scales, zeros = (None if x is None else addressed(x) for x in execute.weight_operands(weight))
    target = out
    if out is not None:
        check_array_out(out, visible, wanted)
        if addressable(out):
            check_distinct(out)
        if not addressable(out) or execute.needs_copy(out, rows, values, scales, zeros, bias, ends):
            target = None
    result = target
    if result is None:  # of rows in groups those behind the last stay as they are
        result = np.empty(visible, wanted) if out is None or ends is None else np.array(out)
    if ends is None:
        rows, values, scales, zeros = (
            None if x is None else np.broadcast_to(x, (*shape[:-2], *x.shape[-2:]))
            for x in (rows, values, scales, zeros)
        )
    bias = None if bias is None else addressed(bias)
    into = result[..., None, :] if single else result
    operands = execute.Operands(rows, values, scales, zeros, bias, into, ends)
    kinds = (name, weight.dtype, weight.dtype_scale, dtype_out, "" if bias is None else known_name(bias.dtype))
    execute.multiply_into(operands, execute.Dtypes(*kinds, weight.group or 0), gpu, config)
    if out is None:
        return result
    if target is None:
        out[...] = result
    return out

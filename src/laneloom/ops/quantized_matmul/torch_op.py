"""torch.ops.laneloom.quantized_matmul: the product as an opaque operator, with a fake implementation and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..matmul.execute import check_distinct
from ..matmul.torch_grouped import grouped_operator, grouped_step
from ..matmul.torch_op import check_aligned, known_name, summing_step
from ..operators import Composed, check_strided, complete, mark_written, one_by_one, refuse_out, to_front
from ..scalars import shown
from ..target import gpu_for_tensor
from ..warm import WarmCalls, maker_of
from . import execute
from .api import check_operand
from .config import BaseConfig
from .weight import QuantizedWeight

_NAMES = ("x", "values", "scales", "zeros", "bias", "ends", "out")


def quantized_tensors(
    x: Any, weight: QuantizedWeight, ends: Any, bias: Any, out: Any, out_dtype: Any, config: BaseConfig | None
) -> torch.Tensor:
    """`laneloom.quantized_matmul` on torch tensors."""
    for name, operand in (("x", x), ("weight", weight.values), ("ends", ends), ("bias", bias), ("out", out)):
        if not isinstance(operand, torch.Tensor) and (operand is not None or name in ("x", "weight")):
            kind = "a numpy array" if name == "weight" else type(operand).__name__
            raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {kind}")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {shown(out_dtype)}")
    if x.ndim == 0:
        raise ArgumentError("x: expected at least 1 axis, got a scalar")
    if torch.is_grad_enabled() and (weight.scales.requires_grad or weight.values.requires_grad):
        raise UnsupportedError("weight: expected one without gradients; use .detach() on its tensors")
    how = (weight.dtype, weight.group or 0)
    text = None if config is None else config.text
    rows = x[None] if x.ndim == 1 else x
    if out is None:
        c = quantized_operator(rows, *execute.weight_operands(weight), bias, *how, out_dtype, text, ends)
        return c.squeeze(-2) if x.ndim == 1 else c
    if out.dtype != (out_dtype or out.dtype):
        raise ArgumentError(f"out: expected dtype {out_dtype}, got {out.dtype}")
    target = out.unsqueeze(-2) if x.ndim == 1 else out
    quantized_out_operator(rows, *execute.weight_operands(weight), bias, target, *how, text, ends)
    return out


def _check(x, values, scales, zeros, bias, dtype, group, ends, out=None) -> tuple[tuple[int, ...], QuantizedWeight]:
    """C's shape, and the weight. Raises for operands that no product takes."""
    for name, tensor in zip(_NAMES, (x, values, scales, zeros, bias, ends, out), strict=True):
        if tensor is None:
            continue
        check_strided(name, tensor)
        if tensor.device != x.device:
            raise ArgumentError(f"{name}: expected a tensor on {x.device}, as x is, got one on {tensor.device}")
    weight = QuantizedWeight(values, scales, dtype, group or None, zeros)
    if ends is None:
        shape, groups = execute.result_shape(x.shape, weight.shape, torch.broadcast_shapes), ()
    else:
        shape, groups = execute.ragged_shape(x.shape, weight.shape, ends.shape, known_name(ends.dtype)), ends.shape
        if not ends.is_contiguous():
            raise ArgumentError(f"ends: expected contiguous numbers, got stride {ends.stride()}")
    check_operand(known_name(x.dtype))
    if bias is not None:
        execute.check_bias(bias.shape, known_name(bias.dtype), shape[-1], *groups)
    if out is not None:
        execute.check_output(known_name(out.dtype))
        if tuple(out.shape) != tuple(shape):
            raise ArgumentError(f"out: expected shape {tuple(shape)}, got {tuple(out.shape)}")
    return shape, weight


def _expanded(x, values, scales, zeros, bias, ends, out) -> execute.Operands:
    """The operands with all of C's batch axes."""
    if ends is None and out.dim() > 2:
        batch = out.shape[:-2]
        x, values, scales, zeros = (
            None if t is None else t.expand(*batch, *t.shape[-2:]) for t in (x, values, scales, zeros)
        )
    return execute.Operands(x, values, scales, zeros, bias, out, ends)


def _prepare_into(x, values, scales, zeros, bias, ends, out, weight, config) -> Callable[..., None]:
    """What writes C into out, which is distinct from all others, for tensors that lie as these do."""
    gpu = gpu_for_tensor("x", x)
    check_aligned(**dict(zip(_NAMES, (x, values, scales, zeros, bias, ends, out), strict=True)))
    kinds = (known_name(x.dtype), weight.dtype, weight.dtype_scale, known_name(out.dtype))
    dtypes = execute.Dtypes(*kinds, "" if bias is None else known_name(bias.dtype), weight.group or 0)
    run = execute.prepare(_expanded(x, values, scales, zeros, bias, ends, out), dtypes, gpu, config)
    return lambda *operands: run(_expanded(*operands))


def _prepare(x, values, scales, zeros, bias, dtype, group, out_dtype, config, ends) -> Callable[..., torch.Tensor]:
    """What makes C of tensors that lie as these do."""
    shape, weight = _check(x, values, scales, zeros, bias, dtype, group, ends)
    first = x.new_empty(shape, dtype=out_dtype or x.dtype)
    execute.check_output(known_name(first.dtype))
    make, run_into = maker_of(first), _prepare_into(x, values, scales, zeros, bias, ends, first, weight, config)

    def run(x, values, scales, zeros, bias, *rest: Any) -> torch.Tensor:
        out = make()
        run_into(x, values, scales, zeros, bias, rest[-1], out)
        return out

    return run


_warm = WarmCalls(_prepare)


def _quantized(x, values, scales, zeros, bias, dtype, group=0, out_dtype=None, config=None, ends=None):
    return _warm(x, values, scales, zeros, bias, dtype, group, out_dtype, config, ends)


def _fake(x, values, scales, zeros, bias, dtype, group=0, out_dtype=None, config=None, ends=None):
    shape, _ = _check(x, values, scales, zeros, bias, dtype, group, ends)
    execute.check_output(known_name(out_dtype or x.dtype))
    return x.new_empty(shape, dtype=out_dtype or x.dtype)


def _quantized_out(x, values, scales, zeros, bias, out, dtype, group=0, config=None, ends=None):
    _, weight = _check(x, values, scales, zeros, bias, dtype, group, ends, out)
    check_distinct(out)
    copies = execute.needs_copy(out, x, values, scales, zeros, bias, ends)
    result = out
    if copies:  # of rows in groups those behind the last stay as they are
        made = torch.empty_like if ends is None else torch.clone
        result = made(out, memory_format=torch.contiguous_format)
    with torch.cuda.device(x.device if x.device.type == "cuda" else -1), torch.no_grad():
        operands = (x, values, scales, zeros, bias, ends, result)
        _prepare_into(*operands, weight, config)(*operands)
    if copies:
        out.copy_(result)
    mark_written(out)


def _out_fake(x, values, scales, zeros, bias, out, dtype, group=0, config=None, ends=None):
    _check(x, values, scales, zeros, bias, dtype, group, ends, out)


def _remember(ctx, inputs, output) -> None:
    """x and the bias are not kept alive: no gradient needs more of them than shapes and dtypes."""
    x, values, scales, zeros, bias, dtype, group, *_, ends = inputs
    of_x, of_bias = ctx.needs_input_grad[0], ctx.needs_input_grad[4]
    ctx.options = dtype, group, x.dtype, x.shape if of_x else None, bias.dtype if of_bias else None
    ctx.save_for_backward(values, scales, zeros, ends)


def _make_gradients(
    prepared, grad, values, scales, zeros, ends, dtype, group, x_dtype, x_shape, bias_dtype
) -> Callable[..., Any]:  # fmt: skip
    """What gives dX = dC W, summed over the axes along which x was broadcast, and dbias = the sum of dC's rows; of rows
    in groups each group's, and zeros in dX's rows of no group.

    dC and W enter the product rounded to x's dtype; rows are summed in FP32, of groups those of dC in x's dtype.
    x_shape, bias_dtype: of those that have gradients.
    """

    def dequantized(values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
        return QuantizedWeight(values, scales, dtype, group or None, zeros).dequantize(x_dtype)

    step = None
    if x_shape is not None and ends is None:
        step = summing_step(prepared, grad.to(x_dtype), dequantized(values, scales, zeros), x_shape)
    elif x_shape is not None:
        step = grouped_step(prepared, grad.to(x_dtype), dequantized(values, scales, zeros), ends, cleared=True)

    def run(grad, values, scales, zeros, ends, *_: Any) -> tuple[Any, Any]:
        grad_x = grad_bias = None
        if step is not None:
            operands = (grad.to(x_dtype), dequantized(values, scales, zeros))
            grad_x = step(*operands) if ends is None else step(*operands, ends)
        if bias_dtype is not None:
            grad_bias = _sum_of_rows(grad, x_dtype, ends).to(bias_dtype)
        return grad_x, grad_bias

    return run


def _sum_of_rows(grad: torch.Tensor, dtype: torch.dtype, ends: torch.Tensor | None) -> torch.Tensor:
    """[N] in FP32; of rows in groups [G, N], each group's, by a product with ones, which adds in one order."""
    if ends is None:
        return grad.sum(tuple(range(grad.dim() - 1)), dtype=torch.float32)
    ones, rounded = grad.new_ones(1, len(grad), dtype=dtype), grad.to(dtype)
    return grouped_operator(ones, rounded, ends, torch.float32, None, None, False)[:, 0]


_differentiate = Composed(_make_gradients)


def _gradients(ctx, grad):
    grad_x, grad_bias = _differentiate(grad, *ctx.saved_tensors, *ctx.options)
    return grad_x, None, None, None, grad_bias, *[None] * 5


def _batched(call, info, in_dims, x, values, scales, zeros, bias, *rest):
    """One launch, unless a bias is batched or rows are in groups, which takes a call for every element."""
    if in_dims[4] is not None or rest[-1] is not None:
        return one_by_one(call, info, in_dims, x, values, scales, zeros, bias, *rest)
    weight = [values, scales, zeros]
    if any(axis is not None for axis in in_dims[1:4]):  # each of its tensors has all of its batch axes
        weight = [
            t if t is None else t.expand(info.batch_size, *t.shape) if axis is None else t.movedim(axis, 0)
            for t, axis in zip(weight, in_dims[1:4], strict=True)
        ]
        ndim = max(x.dim() - (in_dims[0] is not None), values.dim() - (in_dims[1] is not None))
        weight = [to_front(t, 0, ndim) for t in weight]
    else:
        ndim = values.dim()
    return call(to_front(x, in_dims[0], ndim), *weight, bias, *rest), 0


_TENSORS = "Tensor x, Tensor values, Tensor scales, Tensor? zeros, Tensor? bias"
_OPERATOR: Any = torch.library.custom_op(
    "laneloom::quantized_matmul",
    _quantized,
    mutates_args=(),
    schema=f"({_TENSORS}, str dtype, int group=0, ScalarType? out_dtype=None, str? config=None, "
    "Tensor? ends=None) -> Tensor",
)
_OPERATOR.register_fake(_fake)
quantized_operator = complete(
    _OPERATOR, batched=_batched, remember=_remember, gradients=_gradients, cast=lambda args: (0,), warm=_warm
)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::quantized_matmul_out",
    _quantized_out,
    mutates_args=("out",),
    schema=f"({_TENSORS}, Tensor(a!) out, str dtype, int group=0, str? config=None, Tensor? ends=None) -> ()",
)
_OUT_OPERATOR.register_fake(_out_fake)
quantized_out_operator = complete(_OUT_OPERATOR, batched=refuse_out)

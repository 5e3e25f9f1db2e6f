"""torch.ops.laneloom.gemm: activation(alpha scale_a (A B) scale_b + beta C + bias) as an operator of PyTorch, with
gradients.

The backward pass is made of this operator and of laneloom::matmul, so that second derivatives work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..operators import aligned, call, complete, one_by_one, refuse_out, to_front
from . import execute
from .config import MatmulConfig, NamedPlan
from .dtypes import Arithmetic
from .fast_gemm import Checked, call_prepared_gemm
from .gemm import check_shapes, check_term, needs_copy
from .torch_op import (
    accumulator_name,
    arithmetic_of,
    check,
    check_differentiable,
    dtype_name,
    output_dtype,
    run,
    summed_product,
)


def gemm_tensors(
    operands: dict[str, Any],
    alpha: float,
    beta: float,
    activation: str | None,
    out_dtype: torch.dtype | None,
    config: MatmulConfig | NamedPlan | None,
    how: tuple[str | None, Any, tuple[str, str] | None],
) -> torch.Tensor:
    """`laneloom.gemm` on torch tensors, by name; how: precision, acc_dtype, the dtypes of packed operands."""
    a, b, c, bias, out, scale_a, scale_b = operands.values()
    precision, acc_dtype, packed = how
    for name, operand in operands.items():
        if not isinstance(operand, torch.Tensor) and (name in ("a", "b") or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {type(operand).__name__}")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {out_dtype!r}")
    for name in ("scale_a", "scale_b"):
        if operands[name] is not None and operands[name].requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(f"{name}: expected a scale without gradients; use .detach()")
    if config is acc_dtype is packed is out is None:
        used = (None if beta == 0 else c, bias, scale_a, scale_b)

        def check_operands() -> Checked:
            shape, names, arithmetic = _check(a, b, *used, precision, acc_dtype, packed)
            has_terms = alpha != 1 or activation is not None or any(x is not None for x in used)
            dtype = output_dtype(names[0], out_dtype, has_terms)
            return shape, dtype, (*names, dtype_name("out_dtype", dtype)), arithmetic

        arguments = (alpha, beta, activation, out_dtype, precision)
        result = call_prepared_gemm(a, b, used, *arguments, check_operands, _Finished.apply)
        if result is not None:
            return result
    text = None if config is None else config.text
    terms = (None if beta == 0 else c, bias, alpha, beta, activation)
    rest = (scale_a, scale_b, precision, accumulator_name(acc_dtype), packed)
    if out is None:
        return call(torch.ops.laneloom.gemm, a, b, *terms, out_dtype, text, *rest)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands.values()):
        raise ArgumentError("out: expected none where gradients are recorded, got a tensor; use torch.no_grad()")
    if out.dtype != (out_dtype or out.dtype):
        raise ArgumentError(f"out: expected dtype {out_dtype}, got {out.dtype}")
    torch.ops.laneloom.gemm_out(a, b, out, *terms, text, *rest)
    return out


def _check(
    a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed, out=None
) -> tuple[tuple[int, ...], tuple[str, str], Arithmetic]:  # fmt: skip
    """The result's shape, the operands' dtypes, and how they are multiplied."""
    names = check(a, b, packed)
    terms = {"c": c, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    for name, term in (*terms.items(), ("out", out)):
        if term is not None and term.device != a.device:
            raise ArgumentError(f"{name}: expected a tensor on {a.device}, as a is, got one on {term.device}")
    for name, term in terms.items():
        if term is not None:
            check_term(name, dtype_name(name, term.dtype), names[0])
    shapes = [None if x is None else tuple(x.shape) for x in (a, b, c, bias, out, scale_a, scale_b)]
    shape = check_shapes(*shapes, broadcast=torch.broadcast_shapes)
    return shape, names, arithmetic_of(names[0], precision, acc_dtype)


def _run(a, b, c, bias, out, alpha, beta, activation, config, scales, names, arithmetic) -> None:
    addend = None if c is None or beta == 0 else c.expand(out.shape)
    scales = [None if x is None else x.reshape(-1).contiguous() for x in scales]
    copies = needs_copy(out, addend, a, b, bias, *scales)
    result = torch.empty_like(out, memory_format=torch.contiguous_format) if copies else out
    terms = execute.Terms(
        alpha,
        beta,
        addend,
        "" if addend is None else dtype_name("c", addend.dtype),
        bias,
        "" if bias is None else dtype_name("bias", bias.dtype),
        "n",
        activation,
        *scales,
    )
    run(a, b, result, config, names, terms, arithmetic)
    if copies:
        out.copy_(result)


def _gemm(
    a, b, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, out_dtype=None, config=None, scale_a=None,
    scale_b=None, precision=None, acc_dtype=None, packed=None,
):  # fmt: skip
    out = _gemm_fake(
        a, b, c, bias, alpha, beta, activation, out_dtype, config, scale_a, scale_b, precision, acc_dtype, packed
    )  # fmt: skip
    _, names, arithmetic = _check(a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed)
    a, b, c, bias, *scales = (None if x is None else x.detach() for x in (a, b, c, bias, scale_a, scale_b))
    _run(a, b, c, bias, out, alpha, beta, activation, config, scales, names, arithmetic)
    return out


def _gemm_fake(
    a, b, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, out_dtype=None, config=None, scale_a=None,
    scale_b=None, precision=None, acc_dtype=None, packed=None,
):  # fmt: skip
    shape, names, _ = _check(a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed)
    has_terms = alpha != 1 or activation is not None or any(x is not None for x in (c, bias, scale_a, scale_b))
    return a.new_empty(shape, dtype=output_dtype(names[0], out_dtype, has_terms))


def _gemm_out(
    a, b, out, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, config=None, scale_a=None, scale_b=None,
    precision=None, acc_dtype=None, packed=None,
):  # fmt: skip
    _, names, arithmetic = _check(a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed, out)
    execute.check_distinct(out)
    _run(a, b, c, bias, out, alpha, beta, activation, config, (scale_a, scale_b), names, arithmetic)


def _gemm_out_fake(
    a, b, out, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, config=None, scale_a=None, scale_b=None,
    precision=None, acc_dtype=None, packed=None,
):  # fmt: skip
    _check(a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed, out)


def _remember(ctx, inputs, output) -> None:
    a, b, c, bias, ctx.alpha, ctx.beta, ctx.activation, _, ctx.config, scale_a, scale_b, *ctx.how, _ = inputs
    ctx.save_for_backward(a, b, c, bias, scale_a, scale_b, output if ctx.activation == "relu" else None)


def _times_slope(grad: torch.Tensor, z: torch.Tensor, activation: str) -> torch.Tensor:
    """grad times the derivative of gelu or silu at z."""
    if activation == "gelu":
        return torch.ops.aten.gelu_backward(grad, z)
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, z)
    part = torch.sigmoid(z)  # silu_backward has no derivative
    return grad * part * (1 + z * (1 - part))


def _gradients(ctx, grad):
    """With G = grad * activation'(z), S = scale_a G scale_b: dA = alpha S B^T, dB = alpha A^T S, dC = beta G, dbias =
    sum of G's rows.

    S enters the products rounded to a's dtype, and the sums in FP32, or FP64 for operands in that.
    """
    a, b, c, bias, scale_a, scale_b, output = ctx.saved_tensors
    check_differentiable(a)
    wide = torch.promote_types(a.dtype, torch.float32)
    if output is not None:
        grad = torch.where(output > 0, grad, 0.0)
    elif ctx.activation is not None:
        terms = (ctx.alpha, ctx.beta, None, wide)
        if ctx.config is ctx.how[1] is None:
            operands: dict[str, Any] = {"a": a, "b": b, "c": c, "bias": bias, "out": None}
            operands |= {"scale_a": scale_a, "scale_b": scale_b}
            z = gemm_tensors(operands, *terms, None, (ctx.how[0], None, None))
        else:
            z = call(torch.ops.laneloom.gemm, a, b, c, bias, *terms, ctx.config, scale_a, scale_b, *ctx.how, None)
        grad = _times_slope(grad.to(wide), z, ctx.activation)
    wanted = ctx.needs_input_grad
    scaled = grad if scale_a is None else grad.to(wide) * scale_a.reshape(-1, 1)
    scaled = (scaled if scale_b is None else scaled * scale_b.reshape(1, -1)).to(a.dtype)
    grad_a = summed_product(scaled, b.mT, a.shape, ctx.alpha, ctx.how) if wanted[0] else None
    grad_b = summed_product(a.mT, scaled, b.shape, ctx.alpha, ctx.how) if wanted[1] else None
    grad_c = grad_bias = None
    if c is not None and wanted[2]:
        grad_c = (ctx.beta * grad.to(wide)).sum_to_size(c.shape).to(c.dtype)
    if bias is not None and wanted[3]:
        grad_bias = grad.sum(tuple(range(grad.dim() - 1)), dtype=wide).to(bias.dtype)
    return grad_a, grad_b, grad_c, grad_bias, *[None] * 10


class _Finished(torch.autograd.Function):
    """`gemm` with its gradients past PyTorch's dispatcher; see `call_prepared_gemm`."""

    @staticmethod
    def forward(ctx, a, b, c, bias, rest):
        scale_a, scale_b, alpha, beta, activation, precision, run = rest
        out = run(a, b, (c, bias, scale_a, scale_b), alpha, beta)
        ctx.alpha, ctx.beta, ctx.activation = alpha, beta, activation
        ctx.config, ctx.how = None, (precision, None)
        ctx.save_for_backward(a, b, c, bias, scale_a, scale_b, out if activation == "relu" else None)
        return out

    @staticmethod
    def backward(ctx, *grads):
        return *_gradients(ctx, *grads)[:4], None


def _batched(info, in_dims, a, b, c=None, bias=None, alpha=1.0, beta=0.0, *rest):
    """One launch, unless a scale is batched or a bias beside an addend: those take a call for every element."""
    operator = torch.ops.laneloom.gemm
    scales = in_dims[9:11]
    if any(axis is not None for axis in scales) or (in_dims[3:4] != (None,) and c is not None and beta != 0):
        return one_by_one(operator, info, in_dims, a, b, c, bias, alpha, beta, *rest)
    a, b, c = aligned(in_dims, a, b, c)
    if len(in_dims) > 3 and in_dims[3] is not None:  # a bias for every element is an addend
        c, bias, beta = to_front(bias, in_dims[3])[:, *(None,) * (max(3, a.dim(), b.dim()) - 2), :], None, 1.0
    if in_dims[0] is None and in_dims[1] is None:
        a = a.expand(info.batch_size, *(1,) * (b.dim() - a.dim()), *a.shape)
    return operator(a, b, c, bias, alpha, beta, *rest), 0


def _cast(args: Sequence[Any]) -> tuple[int, ...]:
    """Under autocast the operands become its dtype, unless `precision` says how to multiply fp32; the terms stay."""
    return () if len(args) > 11 and args[11] is not None else (0, 1)


_TERMS = "Tensor? c=None, Tensor? bias=None, float alpha=1., float beta=0., str? activation=None"
_HOW = (
    "str? config=None, Tensor? scale_a=None, Tensor? scale_b=None, str? precision=None, str? acc_dtype=None, "
    "str[]? packed=None"
)
_OPERATOR: Any = torch.library.custom_op(
    "laneloom::gemm",
    _gemm,
    mutates_args=(),
    schema=f"(Tensor a, Tensor b, {_TERMS}, ScalarType? out_dtype=None, {_HOW}) -> Tensor",
)
_OPERATOR.register_fake(_gemm_fake)
complete(_OPERATOR, batched=_batched, remember=_remember, gradients=_gradients, cast=_cast)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::gemm_out",
    _gemm_out,
    mutates_args=("out",),
    schema=f"(Tensor a, Tensor b, Tensor(a!) out, {_TERMS}, {_HOW}) -> ()",
)
_OUT_OPERATOR.register_fake(_gemm_out_fake)
complete(_OUT_OPERATOR, batched=refuse_out)

"""torch.ops.laneloom.gemm: activation(alpha A B + beta C + bias) as an operator of PyTorch, with gradients.

The backward pass is made of this operator and of laneloom::matmul, so that second derivatives work.
"""

from __future__ import annotations

from math import sqrt, tau
from typing import Any

import torch

from ...errors import ArgumentError
from . import execute
from .config import MatmulConfig, NamedPlan
from .gemm import check_shapes, check_term, needs_copy
from .torch_op import check, dtype_name, run, summed_product


def gemm_tensors(
    operands: dict[str, Any],
    alpha: float,
    beta: float,
    activation: str | None,
    out_dtype: torch.dtype | None,
    config: MatmulConfig | NamedPlan | None,
) -> torch.Tensor:
    """`laneloom.gemm` on torch tensors, by name."""
    a, b, c, bias, out = operands.values()
    for name, operand in operands.items():
        if not isinstance(operand, torch.Tensor) and (name in ("a", "b") or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {type(operand).__name__}")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {out_dtype!r}")
    text = None if config is None else config.text
    terms = (None if beta == 0 else c, bias, alpha, beta, activation)
    if out is None:
        return torch.ops.laneloom.gemm(a, b, *terms, out_dtype, text)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands.values()):
        raise ArgumentError("out: expected none where gradients are recorded, got a tensor; use torch.no_grad()")
    if out.dtype != (out_dtype or out.dtype):
        raise ArgumentError(f"out: expected dtype {out_dtype}, got {out.dtype}")
    torch.ops.laneloom.gemm_out(a, b, out, *terms, text)
    return out


def _check(a, b, c, bias, out=None) -> tuple[int, ...]:
    """The result's shape."""
    check(a, b)
    for name, term in (("c", c), ("bias", bias), ("out", out)):
        if term is not None and term.device != a.device:
            raise ArgumentError(f"{name}: expected a tensor on {a.device}, as a is, got one on {term.device}")
    for name, term in (("c", c), ("bias", bias)):
        if term is not None:
            check_term(name, dtype_name(name, term.dtype))
    shapes = [None if x is None else tuple(x.shape) for x in (a, b, c, bias, out)]
    return check_shapes(*shapes, broadcast=torch.broadcast_shapes)


def _run(a, b, c, bias, out, alpha, beta, activation, config) -> None:
    addend = None if c is None or beta == 0 else c.expand(out.shape)
    copies = needs_copy(out, a, b, addend, bias)
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
    )
    run(a, b, result, config, terms)
    if copies:
        out.copy_(result)


def _gemm(a, b, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, out_dtype=None, config=None):
    out = _gemm_fake(a, b, c, bias, alpha, beta, activation, out_dtype, config)
    a, b, c, bias = (None if x is None else x.detach() for x in (a, b, c, bias))
    _run(a, b, c, bias, out, alpha, beta, activation, config)
    return out


def _gemm_fake(a, b, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, out_dtype=None, config=None):
    return a.new_empty(_check(a, b, c, bias), dtype=out_dtype or a.dtype)


def _gemm_out(a, b, out, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, config=None):
    _check(a, b, c, bias, out)
    execute.check_distinct(out)
    _run(a, b, c, bias, out, alpha, beta, activation, config)


def _gemm_out_fake(a, b, out, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, config=None):
    _check(a, b, c, bias, out)


def _remember(ctx, inputs, output) -> None:
    a, b, c, bias, ctx.alpha, ctx.beta, ctx.activation, _, ctx.config = inputs
    ctx.save_for_backward(a, b, c, bias, output if ctx.activation == "relu" else None)


def _slope(z: torch.Tensor, activation: str) -> torch.Tensor:
    """The derivative of gelu or silu at z."""
    if activation == "gelu":
        return 0.5 * (1 + torch.erf(z / sqrt(2))) + z * torch.exp(-0.5 * z * z) / sqrt(tau)
    part = torch.sigmoid(z)
    return part * (1 + z * (1 - part))


def _gradients(ctx, grad):
    """With G = grad * activation'(z): dA = alpha G B^T, dB = alpha A^T G, dC = beta G, dbias = sum of G's rows.

    G enters the products rounded to a's dtype, and the sums in FP32.
    """
    a, b, c, bias, output = ctx.saved_tensors
    grad = grad.float()
    if output is not None:
        grad = torch.where(output > 0, grad, 0.0)
    elif ctx.activation is not None:
        z = torch.ops.laneloom.gemm(a, b, c, bias, ctx.alpha, ctx.beta, None, torch.float32, ctx.config)
        grad = grad * _slope(z, ctx.activation)
    wanted = ctx.needs_input_grad
    half = grad.to(a.dtype)
    grad_a = summed_product(half, b.mT, a.shape, ctx.alpha) if wanted[0] else None
    grad_b = summed_product(a.mT, half, b.shape, ctx.alpha) if wanted[1] else None
    grad_c = (ctx.beta * grad).sum_to_size(c.shape).to(c.dtype) if c is not None and wanted[2] else None
    grad_bias = grad.sum_to_size(bias.shape).to(bias.dtype) if bias is not None and wanted[3] else None
    return grad_a, grad_b, grad_c, grad_bias, None, None, None, None, None


_TERMS = "Tensor? c=None, Tensor? bias=None, float alpha=1., float beta=0., str? activation=None"
_OPERATOR: Any = torch.library.custom_op(
    "laneloom::gemm",
    _gemm,
    mutates_args=(),
    schema=f"(Tensor a, Tensor b, {_TERMS}, ScalarType? out_dtype=None, str? config=None) -> Tensor",
)
_OPERATOR.register_fake(_gemm_fake)
_OPERATOR.register_autograd(_gradients, setup_context=_remember)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::gemm_out",
    _gemm_out,
    mutates_args=("out",),
    schema=f"(Tensor a, Tensor b, Tensor(a!) out, {_TERMS}, str? config=None) -> ()",
)
_OUT_OPERATOR.register_fake(_gemm_out_fake)

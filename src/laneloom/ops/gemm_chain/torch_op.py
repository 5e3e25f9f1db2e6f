"""torch.ops.laneloom.gemm_chain: the chain as an opaque operator, with a fake implementation and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..matmul.execute import check_distinct
from ..matmul.gemm import needs_copy
from ..matmul.saved import layout_of
from ..matmul.torch_op import gradient_step, of_batch, summing_step
from ..operators import Composed, aligned, check_strided, complete, mark_written, refuse_out
from ..target import gpu_for_tensor
from ..warm import WarmCalls, maker_of
from . import execute
from .config import ChainConfig, parse_config
from .execute import Factors

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_ADDENDS = {**_NAMES, torch.float32: "fp32"}
_SCALARS = "float alpha0=1., float alpha1=1., float beta1=0."


def chain_tensors(operands: dict[str, Any], factors: Factors, config: ChainConfig | None) -> torch.Tensor:
    """`laneloom.gemm_chain` on torch tensors, by name."""
    for name, x in operands.items():
        if not isinstance(x, torch.Tensor) and (name not in ("c1", "out") or x is not None):
            raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {type(x).__name__}")
    a0, b0, b1, c1, out = operands.values()
    scalars = (factors.alpha0, factors.alpha1, factors.beta1)
    text = None if config is None else config.text
    c1 = None if factors.beta1 == 0 else c1
    if out is None:
        return chain_operator(a0, b0, b1, c1, *scalars, text)
    chain_out_operator(a0, b0, b1, out, c1, *scalars, text)
    return out


def _check(a0, b0, b1, c1, out=None) -> tuple[int, ...]:
    """D1's shape."""
    for name, x in (("a0", a0), ("b0", b0), ("b1", b1), ("c1", c1), ("out", out)):
        if x is None:
            continue
        check_strided(name, x)
        if x.device != a0.device:
            raise ArgumentError(f"{name}: expected a tensor on {a0.device}, as a0 is, got one on {x.device}")
        known = _ADDENDS if name == "c1" else _NAMES
        if x.dtype not in known:
            raise UnsupportedError(f"{name}: expected dtype {' or '.join(map(str, known))}, got {x.dtype}")
        if name != "c1" and x.dtype != a0.dtype:
            raise ArgumentError(f"{name}: expected a0's dtype {a0.dtype}, got {x.dtype}")
    shapes = (a0.shape, b0.shape, b1.shape, None if c1 is None else c1.shape)
    shape = execute.chain_shape(*shapes, torch.broadcast_shapes)
    if out is not None and tuple(out.shape) != tuple(shape):
        raise ArgumentError(f"out: expected shape {tuple(shape)}, got {tuple(out.shape)}")
    return shape


def _prepare_into(a0, b0, b1, c1, out, factors: Factors, config: str | None) -> Callable[..., None]:
    """What writes D1 into out for operands that lie as these do, call after call: of a0, b0, b1, c1 and out."""
    gpu = gpu_for_tensor("a0", a0)
    names = (_NAMES[a0.dtype], "" if c1 is None or factors.beta1 == 0 else _ADDENDS[c1.dtype])
    parsed = None if config is None else parse_config(config)
    operands = _expanded(a0, b0, b1, c1, out, factors)
    run = execute.prepare_chain(*operands, out, names, factors, gpu, parsed)
    return lambda a0, b0, b1, c1, out: run(*_expanded(a0, b0, b1, c1, out, factors), out)


def _expanded(a0: Any, b0: Any, b1: Any, c1: Any, out: torch.Tensor, factors: Factors) -> tuple[Any, Any, Any, Any]:
    """The operands with all of D1's batch axes, C1 with all axes or None where it is not read."""
    added = None if c1 is None or factors.beta1 == 0 else c1.expand(out.shape)
    if out.dim() > 2:
        a0, b0, b1 = of_batch(out.shape, a0, b0, b1)
    return a0, b0, b1, added


def _run(a0, b0, b1, c1, out, factors: Factors, config: str | None) -> None:
    a, b, e, added = _expanded(a0, b0, b1, c1, out, factors)
    copies = needs_copy(out, added, a, b, e)
    result = torch.empty_like(out, memory_format=torch.contiguous_format) if copies else out
    with torch.cuda.device(a0.device if a0.device.type == "cuda" else -1), torch.no_grad():
        _prepare_into(a0, b0, b1, c1, result, factors, config)(a0, b0, b1, c1, result)
    if copies:
        out.copy_(result)


def _prepare(a0, b0, b1, c1, alpha0, alpha1, beta1, config) -> Callable[..., torch.Tensor]:
    """What makes D1 of operands that lie as these do."""
    first = _chain_fake(a0, b0, b1, c1)
    run_into, make = _prepare_into(a0, b0, b1, c1, first, Factors(alpha0, alpha1, beta1), config), maker_of(first)

    def run(a0: torch.Tensor, b0: torch.Tensor, b1: torch.Tensor, c1: torch.Tensor | None, *_: Any) -> torch.Tensor:
        out = make()
        run_into(a0, b0, b1, c1, out)
        return out

    return run


_warm = WarmCalls(_prepare)


def _chain(a0, b0, b1, c1=None, alpha0=1.0, alpha1=1.0, beta1=0.0, config=None):
    return _warm(a0, b0, b1, c1, alpha0, alpha1, beta1, config)


def _chain_fake(a0, b0, b1, c1=None, alpha0=1.0, alpha1=1.0, beta1=0.0, config=None):
    return a0.new_empty(_check(a0, b0, b1, c1))


def _chain_out(a0, b0, b1, out, c1=None, alpha0=1.0, alpha1=1.0, beta1=0.0, config=None):
    _check(a0, b0, b1, c1, out)
    check_distinct(out)
    _run(a0, b0, b1, c1, out, Factors(alpha0, alpha1, beta1), config)
    mark_written(out)


def _chain_out_fake(a0, b0, b1, out, c1=None, alpha0=1.0, alpha1=1.0, beta1=0.0, config=None):
    _check(a0, b0, b1, c1, out)


def _remember(ctx, inputs, output) -> None:
    a0, b0, b1, c1, *ctx.scalars, _ = inputs
    ctx.save_for_backward(a0, b0, b1, c1)


def _make_gradients(
    prepared, grad, a0, b0, b1, c1, alpha0, alpha1, beta1, *wanted
) -> Callable[..., tuple[Any, ...]]:  # fmt: skip
    """With G = dD1 and dP = alpha1 G B1^T: what gives dA0 = alpha0 dP B0^T, dB0 = alpha0 A0^T dP, dB1 = alpha1 P^T G
    and dC1 = beta1 G, those that are wanted.

    dA0 is a chain itself; dP and P, which the others need, are computed (again) by gemm.
    """
    dtype, shape_p, shape_dp = a0.dtype, _product_shape(a0, b0), _product_shape(grad, b1.mT)
    g = grad.to(dtype) if prepared else grad
    p = a0.new_empty(shape_p) if prepared else a0  # lies as P and dP do where nothing is broadcast
    chain = chain_operator
    if prepared and wanted[0]:
        chain = chain_operator.prepared(g, b1.mT, b0.mT, None, alpha1, alpha0, 0.0, None)
    step_dp, step_b0 = (
        (summing_step(prepared, g, b1.mT, shape_dp, alpha1), gradient_step(prepared, a0.mT, p, layout_of(b0), alpha0))
        if wanted[1] else (None, None)
    )
    step_p, step_b1 = (
        (summing_step(prepared, a0, b0, shape_p, alpha0), gradient_step(prepared, p.mT, g, layout_of(b1), alpha1))
        if wanted[2] else (None, None)
    )

    def run(grad, a0, b0, b1, c1, *_) -> tuple[Any, ...]:
        g = grad if grad.dtype == dtype else grad.to(dtype)
        grad_a0 = grad_b0 = grad_b1 = grad_c1 = None
        if wanted[0]:
            grad_a0 = chain(g, b1.mT, b0.mT, None, alpha1, alpha0, 0.0, None)
            grad_a0 = grad_a0 if grad_a0.shape == a0.shape else grad_a0.float().sum_to_size(a0.shape).to(dtype)
        if step_dp and step_b0:
            grad_b0 = step_b0(a0.mT, step_dp(g, b1.mT, alpha1), alpha0)
        if step_p and step_b1:
            grad_b1 = step_b1(step_p(a0, b0, alpha0).mT, g, alpha1)
        if c1 is not None and wanted[3]:
            grad_c1 = (beta1 * grad.float()).sum_to_size(c1.shape).to(c1.dtype)
        return grad_a0, grad_b0, grad_b1, grad_c1

    return run


def _product_shape(x: torch.Tensor, y: torch.Tensor) -> torch.Size:
    batch = () if x.dim() == y.dim() == 2 else torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return torch.Size((*batch, x.shape[-2], y.shape[-1]))


_differentiate = Composed(_make_gradients)


def _gradients(ctx, grad):
    gradients = _differentiate(grad, *ctx.saved_tensors, *ctx.scalars, *ctx.needs_input_grad[:4])
    return *gradients, None, None, None, None


def _batched(call, info, in_dims, a0, b0, b1, c1=None, *rest):
    a0, b0, b1, c1 = aligned(in_dims, a0, b0, b1, c1)
    if not any(axis is not None for axis in in_dims[:3]):  # c1 alone: the products are repeated
        missing = max(x.dim() for x in (b0, b1)) - a0.dim()
        a0 = a0.expand(info.batch_size, *(1,) * missing, *a0.shape)
    return call(a0, b0, b1, c1, *rest), 0


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::gemm_chain",
    _chain,
    mutates_args=(),
    schema=f"(Tensor a0, Tensor b0, Tensor b1, Tensor? c1=None, {_SCALARS}, str? config=None) -> Tensor",
)
_OPERATOR.register_fake(_chain_fake)
chain_operator = complete(
    _OPERATOR, batched=_batched, remember=_remember, gradients=_gradients, cast=lambda args: (0, 1, 2), warm=_warm
)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::gemm_chain_out",
    _chain_out,
    mutates_args=("out",),
    schema=f"(Tensor a0, Tensor b0, Tensor b1, Tensor(a!) out, Tensor? c1=None, {_SCALARS}, str? config=None) -> ()",
)
_OUT_OPERATOR.register_fake(_chain_out_fake)
chain_out_operator = complete(_OUT_OPERATOR, batched=refuse_out)

"""`laneloom.flash_attention` where torch's attention stands: of any derivative order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ops.attention.api import flash_attention
from ..ops.attention.torch_op import attention_backward_operator, attention_operator, must_be_deterministic
from ..ops.operators import recorded
from .routing import dtype_in_force


def attend(q: Any, k: Any, v: Any, causal: bool, scale: float | None) -> torch.Tensor:
    """torch's scaled_dot_product_attention of q [B, H, N, D], without mask or dropout, by laneloom's kernels.

    First derivatives are laneloom's. Where second ones may be asked for, as torch.func always may, both are torch's,
    with the whole matrix of scores; compiled graphs have none.
    """
    if _records(q, k, v) and not torch.compiler.is_compiling():
        q, k, v = (x.to(dtype_in_force(x)) for x in (q, k, v))
        transformed = torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
        return (_Attention if transformed else _Eager).apply(q, k, v, causal, scale)[0]
    return flash_attention(q, k, v, causal="top_left" if causal else False, scale=scale)


def prepared(q: Any, k: Any, v: Any, causal: bool, scale: float | None) -> Callable[[Any, Any, Any], torch.Tensor]:
    """What `attend` does, for plain tensors that lie as these do and that nothing else looks at."""
    options = _options(causal, scale, False)
    run = attention_operator.prepared(q, k, v, *options)
    if not _records(q, k, v):
        return lambda q, k, v: run(q, k, v, *options)[0]
    forward = lambda q, k, v, *_: run(q, k, v, *options)  # noqa: E731
    apply = recorded("attention", _Attention.setup_context, _Attention.backward, forward)
    return lambda q, k, v: apply(q, k, v, causal, scale)[0]


def _records(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _options(causal: bool, scale: float | None, deterministic: bool) -> tuple[Any, ...]:
    """What the operators take behind their tensors."""
    return "top_left" if causal else "none", scale, None, None, None, None, 0, 0, deterministic, 0.0


def _by_scores(grad: Any, q: Any, k: Any, v: Any, causal: bool, scale: float | None) -> tuple[Any, ...]:
    """dQ, dK, dV in FP32, rounded once, by torch's operators, which have derivatives of any order.

    torch.autograd.grad of torch's attention would do where each operand has gradients, and outside of torch.func.
    """
    dtype, heads, shared = q.dtype, k.shape[1], q.shape[1] // k.shape[1]
    grad, q, k, v = (x.float() for x in (grad, q, k, v))
    k, v = (x.repeat_interleave(shared, 1) if shared > 1 else x for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.mT * scale  # [B, H, M, N]
    if causal:
        unseen = scores.new_ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(unseen, -torch.inf)
    p, dp = scores.softmax(-1), grad @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ grad
    if shared > 1:
        dk, dv = (x.unflatten(1, (heads, shared)).sum(2) for x in (dk, dv))
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


class _Attention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, causal, scale):
        return flash_attention(q, k, v, causal="top_left" if causal else False, scale=scale, return_lse=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, ctx.causal, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.deterministic = must_be_deterministic()
        ctx.save_for_backward(q, k, v, *output)
        ctx.set_materialize_grads(False)  # a gradient of LSE would be a launch that writes zeros

    @staticmethod
    def backward(ctx, *grads):
        grad, _ = grads
        if grad is None:
            return (None,) * 5
        q, k, v, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative may be asked for
            # no mode sends these products to laneloom, and autocast does not round what enters them
            with torch._C.DisableTorchFunction(), torch.autocast(q.device.type, enabled=False):
                grads = _by_scores(grad, q, k, v, ctx.causal, ctx.scale)
        else:
            options = _options(ctx.causal, ctx.scale, ctx.deterministic or must_be_deterministic())
            grads = attention_backward_operator(grad, None, q, k, v, out, lse, *options)
        return (*grads, None, None)


class _Eager(torch.autograd.Function):
    """The same outside of torch.func's transforms: with `setup_context` torch looks at a signature, 30 us a call."""

    @staticmethod
    def forward(ctx, *inputs):
        output = _Attention.forward(*inputs)
        _Attention.setup_context(ctx, inputs, output)
        return output

    backward = _Attention.backward

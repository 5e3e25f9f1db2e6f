"""`laneloom.flash_attention` where torch's attention stands: of any derivative order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..ops.attention.api import flash_attention
from ..ops.attention.torch_op import attention_backward_operator, attention_operator, must_be_deterministic
from ..ops.operators import recorded
from .routing import dtype_in_force


def attend(q: Any, k: Any, v: Any, causal: bool, scale: float | None) -> torch.Tensor:
    """torch's scaled_dot_product_attention of q [B, H, N, D], without mask or dropout, by laneloom's kernels.

    First derivatives are laneloom's, second ones torch's, with the whole matrix of scores; compiled graphs have none.
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


class _Attention(torch.autograd.Function):
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
            q, k, v = (x.view_as(x) for x in (q, k, v))  # apart, where a caller passes one tensor twice
            # torch's own attention, and its derivatives: no mode sends them back here
            with torch._C.DisableTorchFunction(), sdpa_kernel(SDPBackend.MATH):
                out = F.scaled_dot_product_attention(
                    q, k, v, is_causal=ctx.causal, scale=ctx.scale, enable_gqa=q.shape[1] != k.shape[1]
                )
                grads = torch.autograd.grad(out, (q, k, v), grad, create_graph=True)
        else:
            options = _options(ctx.causal, ctx.scale, ctx.deterministic)
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

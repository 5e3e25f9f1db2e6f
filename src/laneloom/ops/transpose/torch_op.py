"""torch.ops.laneloom.transpose: the transpose as an opaque operator, with a fake implementation and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentError
from ..matmul.execute import check_distinct, overlap
from ..operators import check_strided, complete, mark_written, refuse_out, to_front
from ..target import gpu_for_tensor
from ..warm import WarmCalls, maker_of
from . import execute
from .api import check_size, turned_shape
from .config import TransposeConfig, parse_config


def transpose_tensor(x: Any, out: Any, config: TransposeConfig | None) -> torch.Tensor:
    """`laneloom.transpose` on torch tensors."""
    if not isinstance(x, torch.Tensor) or not (out is None or isinstance(out, torch.Tensor)):
        name, operand = ("out", out) if isinstance(x, torch.Tensor) else ("x", x)
        raise ArgumentError(f"{name}: expected a torch tensor, got {type(operand).__name__}")
    text = None if config is None else config.text
    if out is None:
        return transpose_operator(x, text)
    transpose_out_operator(x, out, text)
    return out


def _check(x: torch.Tensor, out: torch.Tensor | None = None) -> tuple[int, ...]:
    """The result's shape."""
    shape = turned_shape(x.shape)
    check_strided("x", x)
    check_size(x.dtype)
    if out is not None and (tuple(out.shape), out.dtype, out.device) != (tuple(shape), x.dtype, x.device):
        raise ArgumentError(
            f"out: expected shape {tuple(shape)}, {x.dtype} on {x.device}, "
            f"got {tuple(out.shape)}, {out.dtype} on {out.device}"
        )
    return shape


def _prepare_into(
    x: torch.Tensor, out: torch.Tensor, config: str | None
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """What writes the transpose of x into out, which is apart from it, for tensors that lie as these do."""
    gpu = gpu_for_tensor("x", x)
    return execute.prepare_transpose(x, out, gpu, None if config is None else parse_config(config))


def _prepare(x: torch.Tensor, config: str | None) -> Callable[..., torch.Tensor]:
    """What makes the transpose of tensors that lie as x does."""
    first = _transpose_fake(x)
    make, run_into = maker_of(first), _prepare_into(x, first, config)

    def run(x: torch.Tensor, _config: str | None) -> torch.Tensor:
        out = make()
        run_into(x, out)
        return out

    return run


_warm = WarmCalls(_prepare)


def _transpose(x, config=None):
    return _warm(x, config)


def _transpose_fake(x, config=None):
    return x.new_empty(_check(x))


def _prepare_out(x: torch.Tensor, out: torch.Tensor, config: str | None) -> Callable[..., None]:
    """What writes the transpose of x into out for tensors that lie as these do, apart from how they lie to each
    other."""
    _check(x, out)
    check_distinct(out)
    run_into = _prepare_into(x, out, config)

    def run(x: torch.Tensor, out: torch.Tensor, config: str | None) -> None:
        if overlap(out, x):
            out.copy_(_transpose(x, config))
        else:
            run_into(x, out)
            mark_written(out)

    return run


_warm_out = WarmCalls(_prepare_out)


def _transpose_out(x, out, config=None):
    _warm_out(x, out, config)


def _transpose_out_fake(x, out, config=None):
    _check(x, out)


def _remember(ctx, inputs, output) -> None:
    """Nothing: the gradient is made of the incoming one alone."""


def _gradient(ctx, grad):
    return transpose_operator(grad, None), None


def _batched(call, info, in_dims, x, *config):
    return call(to_front(x, in_dims[0]), *config), 0


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::transpose", _transpose, mutates_args=(), schema="(Tensor x, str? config=None) -> Tensor"
)
_OPERATOR.register_fake(_transpose_fake)
transpose_operator = complete(
    _OPERATOR, batched=_batched, remember=_remember, gradients=_gradient, warm=_warm
)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::transpose_out",
    _transpose_out,
    mutates_args=("out",),
    schema="(Tensor x, Tensor(a!) out, str? config=None) -> ()",
)
_OUT_OPERATOR.register_fake(_transpose_out_fake)
transpose_out_operator = complete(_OUT_OPERATOR, batched=refuse_out, warm=_warm_out)

"""torch.ops.laneloom.transpose: the transpose as an opaque operator, with a fake implementation and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..matmul.execute import check_distinct, overlap
from ..operators import call, complete, refuse_out, to_front
from ..target import active_gpu, expected_device_type
from ..warm import WarmCalls, key_of
from . import execute
from .api import check_size, turned_shape
from .config import TransposeConfig, parse_config

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_met = WarmCalls()


def transpose_tensor(x: Any, out: Any, config: TransposeConfig | None) -> torch.Tensor:
    """`laneloom.transpose` on torch tensors."""
    for name, operand in (("x", x), ("out", out)):
        if not isinstance(operand, torch.Tensor) and (name == "x" or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor, got {type(operand).__name__}")
    text = None if config is None else config.text
    if out is None:
        return call(torch.ops.laneloom.transpose, x, text)
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
        raise ArgumentError("out: expected none where gradients are recorded, got a tensor; use torch.no_grad()")
    torch.ops.laneloom.transpose_out(x, out, text)
    return out


def _check(x: torch.Tensor, out: torch.Tensor | None = None) -> tuple[int, ...]:
    """The result's shape."""
    shape = turned_shape(x.shape)
    if x.layout != torch.strided:
        raise UnsupportedError(f"x: expected a strided tensor, got {x.layout}")
    check_size(x.dtype)
    if out is not None and (tuple(out.shape), out.dtype, out.device) != (tuple(shape), x.dtype, x.device):
        raise ArgumentError(
            f"out: expected shape {tuple(shape)}, {x.dtype} on {x.device}, "
            f"got {tuple(out.shape)}, {out.dtype} on {out.device}"
        )
    return shape


def _prepare(
    x: torch.Tensor, out: torch.Tensor, config: str | None
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """What writes the transpose of x into out, which is apart from it, for tensors that lie as these do."""
    gpu = active_gpu()
    if x.device.type != (expected := expected_device_type()):
        hint = "" if expected == "cpu" else '; inside `with laneloom.emulated("gfx1151"):` CPU tensors work'
        raise ArgumentError(f"x: expected a tensor on {expected} for {gpu.name}, got one on {x.device}{hint}")
    bits = _BITS[x.dtype.itemsize]
    run = execute.prepare_transpose(
        _plain(x).view(bits), out.view(bits), gpu, None if config is None else parse_config(config)
    )
    return lambda x, out: run(_plain(x).view(bits), out.view(bits))


def _plain(x: torch.Tensor) -> torch.Tensor:
    """x with the bits that it shows: a conjugate or negative view holds others."""
    return x.detach().resolve_conj().resolve_neg()


def _run(x: torch.Tensor, out: torch.Tensor, config: str | None) -> None:
    """As `_prepare` says, once, or as a call that lay alike did."""
    key = key_of((x, out), config)
    run = _met.get(key)
    if run is not None:
        run(x, out)
        return
    with torch.cuda.device(x.device if x.device.type == "cuda" else -1):
        _met.keep(key, _prepare(x, out, config))(x, out)


def _transpose(x, config=None):
    out = _transpose_fake(x, config)
    _run(x, out, config)
    return out


def _transpose_fake(x, config=None):
    return x.new_empty(_check(x))


def _transpose_out(x, out, config=None):
    _check(x, out)
    check_distinct(out)
    if out.is_conj() or out.is_neg() or overlap(out, x):
        out.copy_(_transpose(x, config))
    else:
        _run(x, out, config)


def _transpose_out_fake(x, out, config=None):
    _check(x, out)


def _remember(ctx, inputs, output) -> None:
    ctx.config = inputs[1]


def _gradient(ctx, grad):
    return call(torch.ops.laneloom.transpose, grad, None), None


def _batched(info, in_dims, x, *config):
    return torch.ops.laneloom.transpose(to_front(x, in_dims[0]), *config), 0


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::transpose", _transpose, mutates_args=(), schema="(Tensor x, str? config=None) -> Tensor"
)
_OPERATOR.register_fake(_transpose_fake)
complete(_OPERATOR, batched=_batched, remember=_remember, gradients=_gradient)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::transpose_out",
    _transpose_out,
    mutates_args=("out",),
    schema="(Tensor x, Tensor(a!) out, str? config=None) -> ()",
)
_OUT_OPERATOR.register_fake(_transpose_out_fake)
complete(_OUT_OPERATOR, batched=refuse_out)

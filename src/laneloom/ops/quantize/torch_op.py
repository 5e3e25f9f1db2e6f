"""torch.ops.laneloom.quantize_blocks: an opaque operator with a fake implementation, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..operators import check_strided, complete, to_front
from ..scalars import shown
from ..target import gpu_for_tensor
from ..warm import WarmCalls, maker_of
from .kernels import blocks
from .problem import check_rows, problem_of, scales_shape

_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_RESULTS = {torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "bf8"}


def quantize_tensor(x: Any, rows: int, dtype: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`laneloom.quantize_blocks` on a torch tensor."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"dtype: expected torch.float8_e4m3fn or torch.float8_e5m2, got {shown(dtype)}")
    return quantize_operator(x, rows, dtype)


def _results(x: torch.Tensor, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for Q and the scales. Raises ArgumentError, UnsupportedError for what cannot be quantised."""
    check_strided("x", x)
    shape = scales_shape(x.shape, check_rows(rows))
    if x.dtype not in _NAMES:
        raise UnsupportedError(f"x: expected dtype {', '.join(map(str, _NAMES))}, got {x.dtype}")
    if dtype not in _RESULTS:
        raise UnsupportedError(f"dtype: expected torch.float8_e4m3fn or torch.float8_e5m2, got {dtype}")
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(shape, dtype=torch.float32)


def _prepare(x: torch.Tensor, rows: int, dtype: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """What gives Q and the scales of tensors that lie as x does. Checks all."""
    dtype = torch.float8_e4m3fn if dtype is None else dtype
    first = _results(x, rows, dtype)
    gpu = gpu_for_tensor("x", x)
    make, make_scale = map(maker_of, first)
    if not x.numel():
        return lambda *_: (make(), make_scale())
    names = (_NAMES[x.dtype], _RESULTS[dtype])
    problem = problem_of(x.shape, x.stride(), rows, *names)
    copies = problem is None
    if problem is None:
        dense = x.contiguous()
        problem = problem_of(dense.shape, dense.stride(), rows, *names)
    assert problem is not None
    known = problem
    launch = blocks.prepare(known, gpu) if gpu.vendor == "nvidia" else (lambda *xs: blocks.launch(known, gpu, *xs))

    def run(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, scale = make(), make_scale()
        launch(x.contiguous() if copies else x, q.view(torch.uint8), scale)
        return q, scale

    return run


_warm = WarmCalls(_prepare)


def _quantize(x, rows=1, dtype=None):
    return _warm(x, rows, dtype)


def _fake(x, rows=1, dtype=None):
    return _results(x, rows, torch.float8_e4m3fn if dtype is None else dtype)


def _batched(call, info, in_dims, x, *options):
    return call(to_front(x, in_dims[0]), *options), (0, 0)


def _remember(ctx, inputs, output) -> None:
    pass


def _refuse(ctx, *grads):
    raise UnsupportedError("quantize_blocks has no gradients: quantise x.detach()")


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::quantize_blocks",
    _quantize,
    mutates_args=(),
    schema="(Tensor x, int rows=1, ScalarType? dtype=None) -> (Tensor, Tensor)",
)
_OPERATOR.register_fake(_fake)
quantize_operator = complete(_OPERATOR, batched=_batched, remember=_remember, gradients=_refuse, warm=_warm)

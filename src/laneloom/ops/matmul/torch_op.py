"""torch.ops.laneloom.matmul: the product as an opaque operator of PyTorch, with a fake implementation and gradients.

The pattern of every operator here. Three functions: one that runs, one that gives the result's shape to tracing, one
that differentiates by calling the operator again, which is what makes second derivatives work. Shapes are adapted in
ordinary differentiable views around it.
"""

from __future__ import annotations

from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..target import active_gpu, expected_device_type
from . import execute
from .config import MatmulConfig, NamedPlan
from .fast_call import call_prepared
from .presets import named_config

_NAMES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.int8: "int8",
    torch.uint8: "uint8", torch.int32: "int32", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "bf8",
}  # fmt: skip


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """The project's word for a dtype; raises UnsupportedError, naming the argument, for one that it has none for."""
    if dtype not in _NAMES:
        raise UnsupportedError(f"{name}: expected dtype torch.float16 or torch.bfloat16, got {dtype}")
    return _NAMES[dtype]


def matmul_tensors(
    a: Any, b: Any, out: Any, out_dtype: torch.dtype | None, config: MatmulConfig | NamedPlan | None
) -> torch.Tensor:
    """`laneloom.matmul` on torch tensors."""
    for name, operand in (("a", a), ("b", b), ("out", out)):
        if not isinstance(operand, torch.Tensor) and (name != "out" or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {type(operand).__name__}")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {out_dtype!r}")
    if config is None:
        result = call_prepared(a, b, out_dtype, out)
        if result is not None:
            return result
    text = None if config is None else config.text
    a, b, extra = execute.as_matrices(a, b)
    if out is None:
        result = torch.ops.laneloom.matmul(a, b, out_dtype, text)
        for axis in extra:
            result = result.squeeze(axis)
        return result
    if torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, out)):
        raise ArgumentError("out: expected none where gradients are recorded, got a tensor; use torch.no_grad()")
    wanted = a.dtype if out_dtype is None else out_dtype
    target = out
    for axis in reversed(extra):
        target = target.unsqueeze(axis)
    shape = execute.batched_shape(a.shape, b.shape)
    if tuple(target.shape) != tuple(shape) or out.dtype != wanted:
        visible = [n for axis, n in enumerate(shape) if axis - len(shape) not in extra]
        raise ArgumentError(f"out: expected shape {visible} and {wanted}, got {list(out.shape)} and {out.dtype}")
    torch.ops.laneloom.matmul_out(a, b, target, text)
    return out


def check(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise for operands that no product takes: not strided, on two devices, of two dtypes."""
    for name, operand in (("a", a), ("b", b)):
        if operand.layout != torch.strided:
            raise UnsupportedError(f"{name}: expected a strided tensor, got {operand.layout}")
    if a.device != b.device:
        raise ArgumentError(f"b: expected a tensor on {a.device}, as a is, got one on {b.device}")
    if a.dtype != b.dtype:
        raise ArgumentError(f"b: expected a's dtype {a.dtype}, got {b.dtype}")


def run(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    config: str | None,
    terms: execute.Terms = execute.NO_TERMS,
) -> None:
    """Write the product and its terms into out, which is distinct from a and b."""
    dtypes = (dtype_name("a", a.dtype), dtype_name("b", b.dtype), dtype_name("out_dtype", out.dtype))
    gpu = active_gpu()
    if a.device.type != (expected := expected_device_type()):
        hint = "" if expected == "cpu" else '; inside `with laneloom.emulated("gfx1151"):` CPU tensors work'
        raise ArgumentError(f"a: expected a tensor on {expected} for {gpu.name}, got one on {a.device}{hint}")
    a, b = (x.expand(*out.shape[:-2], *x.shape[-2:]) for x in (a, b))
    parsed = named_config(config)
    with torch.cuda.device(a.device if a.device.type == "cuda" else -1):
        execute.multiply_into(a, b, out, dtypes, gpu, parsed, terms)


def _matmul(a, b, out_dtype=None, config=None):
    out = _matmul_fake(a, b, out_dtype, config)
    run(a.detach(), b.detach(), out, config)
    return out


def _matmul_fake(a, b, out_dtype=None, config=None):
    check(a, b)
    shape = execute.batched_shape(a.shape, b.shape, torch.broadcast_shapes)
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx, grad):
    """dA = dC B^T and dB = A^T dC, summed over the axes along which the operand was broadcast."""
    a, b = ctx.saved_tensors
    grad = grad.to(a.dtype)
    grad_a = summed_product(grad, b.mT, a.shape) if ctx.needs_input_grad[0] else None
    grad_b = summed_product(a.mT, grad, b.shape) if ctx.needs_input_grad[1] else None
    return grad_a, grad_b, None, None


def summed_product(x: torch.Tensor, y: torch.Tensor, shape: torch.Size, alpha: float = 1.0) -> torch.Tensor:
    """alpha x @ y summed to `shape`, the sum in FP32."""

    def product(x: torch.Tensor, y: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        if alpha == 1:
            return torch.ops.laneloom.matmul(x, y, out_dtype, None)
        return torch.ops.laneloom.gemm(x, y, None, None, alpha, 0.0, None, out_dtype, None)

    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if batch == shape[:-2]:
        return product(x, y)
    if shape[:-2].numel() == 1:  # a sum over the whole batch is a longer K
        x = x.expand(*batch, *x.shape[-2:]).movedim(-2, 0).reshape(x.shape[-2], -1)
        y = y.expand(*batch, *y.shape[-2:]).reshape(-1, y.shape[-1])
        return product(x, y).reshape(shape)
    return product(x, y, torch.float32).sum_to_size(shape).to(x.dtype)


def _matmul_out(a, b, out, config=None):
    check(a, b)
    execute.check_distinct(out)
    if execute.overlap(out, a) or execute.overlap(out, b):
        result = torch.empty_like(out, memory_format=torch.contiguous_format)
        run(a, b, result, config)
        out.copy_(result)
    else:
        run(a, b, out, config)


def _matmul_out_fake(a, b, out, config=None):
    check(a, b)


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::matmul",
    _matmul,
    mutates_args=(),
    schema="(Tensor a, Tensor b, ScalarType? out_dtype=None, str? config=None) -> Tensor",
)
_OPERATOR.register_fake(_matmul_fake)
_OPERATOR.register_autograd(_gradients, setup_context=_remember)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::matmul_out",
    _matmul_out,
    mutates_args=("out",),
    schema="(Tensor a, Tensor b, Tensor(a!) out, str? config=None) -> ()",
)
_OUT_OPERATOR.register_fake(_matmul_out_fake)

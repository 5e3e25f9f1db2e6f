"""torch.ops.laneloom.matmul: the product as an opaque operator of PyTorch, with a fake implementation and gradients.

The pattern of every operator here. Three functions: one that runs, one that gives the result's shape to tracing, one
that differentiates by calling the operator again, which is what makes second derivatives work. Shapes are adapted in
ordinary differentiable views around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..operators import aligned, call, complete, refuse_out
from ..target import active_gpu, expected_device_type
from . import execute
from .config import MatmulConfig, NamedPlan
from .dtypes import IEEE, Arithmetic, check_arithmetic, check_pair, default_output
from .fast_call import call_prepared, multiply
from .presets import named_config

_NAMES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.int8: "int8",
    torch.uint8: "uint8", torch.int32: "int32", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "bf8",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """The project's word for a dtype; raises UnsupportedError, naming the argument, for one that it has none for."""
    if dtype not in _NAMES:
        words = ", ".join(str(known).removeprefix("torch.") for known in _NAMES)
        raise UnsupportedError(f"{name}: expected dtype {words}, got {dtype}")
    return _NAMES[dtype]


def operand_dtypes(a: torch.Tensor, b: torch.Tensor, packed: Sequence[str] | None) -> tuple[str, str]:
    """The dtypes of two operands that go together. Raises ArgumentError, UnsupportedError."""
    name_a, name_b = packed or (dtype_name("a", a.dtype), dtype_name("b", b.dtype))
    check_pair(name_a, name_b)
    return name_a, name_b


def accumulator_name(acc_dtype: Any) -> str | None:
    """The project's word for `acc_dtype`, which is such a word, torch's dtype or None."""
    return dtype_name("acc_dtype", acc_dtype) if isinstance(acc_dtype, torch.dtype) else acc_dtype


def arithmetic_of(dtype_a: str, precision: str | None, acc_dtype: Any) -> Arithmetic:
    """The checked `precision` and `acc_dtype` of a call. Raises ArgumentError."""
    return check_arithmetic(dtype_a, precision, accumulator_name(acc_dtype))


def output_dtype(dtype_a: str, asked: torch.dtype | None, has_terms: bool = False) -> torch.dtype:
    """torch's dtype of the result: the asked one, or the default."""
    return asked or _DTYPES[default_output(dtype_a, has_terms)]


def matmul_tensors(
    a: Any,
    b: Any,
    out: Any,
    out_dtype: torch.dtype | None,
    config: MatmulConfig | NamedPlan | None,
    precision: str | None,
    acc_dtype: Any,
    packed: tuple[str, str] | None,
) -> torch.Tensor:
    """`laneloom.matmul` on torch tensors."""
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {out_dtype!r}")
    if config is acc_dtype is packed is None:
        result = call_prepared(a, b, out_dtype, out, precision, _Product.apply)
        if result is not None:
            return result
    for name, operand in (("a", a), ("b", b), ("out", out)):
        if not isinstance(operand, torch.Tensor) and (name != "out" or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {type(operand).__name__}")
    text = None if config is None else config.text
    how = (precision, accumulator_name(acc_dtype), packed)
    a, b, extra = execute.as_matrices(a, b)
    if out is None:
        result = call(torch.ops.laneloom.matmul, a, b, out_dtype, text, *how)
        for axis in extra:
            result = result.squeeze(axis)
        return result
    if torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, out)):
        raise ArgumentError("out: expected none where gradients are recorded, got a tensor; use torch.no_grad()")
    wanted = output_dtype(operand_dtypes(a, b, packed)[0], out_dtype)
    target = out
    for axis in reversed(extra):
        target = target.unsqueeze(axis)
    shape = execute.batched_shape(a.shape, b.shape)
    if tuple(target.shape) != tuple(shape) or out.dtype != wanted:
        visible = [n for axis, n in enumerate(shape) if axis - len(shape) not in extra]
        raise ArgumentError(f"out: expected shape {visible} and {wanted}, got {list(out.shape)} and {out.dtype}")
    torch.ops.laneloom.matmul_out(a, b, target, text, *how)
    return out


def check(a: torch.Tensor, b: torch.Tensor, packed: Sequence[str] | None) -> tuple[str, str]:
    """The operands' dtypes. Raises for those that no product takes: not strided, on two devices, of dtypes that do not
    go together.
    """
    for name, operand in (("a", a), ("b", b)):
        if operand.layout != torch.strided:
            raise UnsupportedError(f"{name}: expected a strided tensor, got {operand.layout}")
    if a.device != b.device:
        raise ArgumentError(f"b: expected a tensor on {a.device}, as a is, got one on {b.device}")
    return operand_dtypes(a, b, packed)


def run(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    config: str | None,
    names: tuple[str, str],
    terms: execute.Terms = execute.NO_TERMS,
    arithmetic: Arithmetic = IEEE,
) -> None:
    """Write the product and its terms into out, which is distinct from a and b; `names` are a's and b's dtypes."""
    dtypes = (*names, dtype_name("out_dtype", out.dtype))
    gpu = active_gpu()
    if a.device.type != (expected := expected_device_type()):
        hint = "" if expected == "cpu" else '; inside `with laneloom.emulated("gfx1151"):` CPU tensors work'
        raise ArgumentError(f"a: expected a tensor on {expected} for {gpu.name}, got one on {a.device}{hint}")
    a, b = (x.expand(*out.shape[:-2], *x.shape[-2:]) for x in (a, b))
    parsed = named_config(config)
    with torch.cuda.device(a.device if a.device.type == "cuda" else -1):
        execute.multiply_into(a, b, out, dtypes, gpu, parsed, terms, arithmetic)


def _matmul(a, b, out_dtype=None, config=None, precision=None, acc_dtype=None, packed=None):
    out = _matmul_fake(a, b, out_dtype, config, precision, acc_dtype, packed)
    names = operand_dtypes(a, b, packed)
    run(a.detach(), b.detach(), out, config, names, arithmetic=arithmetic_of(names[0], precision, acc_dtype))
    return out


def _matmul_fake(a, b, out_dtype=None, config=None, precision=None, acc_dtype=None, packed=None):
    names = check(a, b, packed)
    check_arithmetic(names[0], precision, acc_dtype)
    shape = execute.batched_shape(a.shape, b.shape, torch.broadcast_shapes)
    return a.new_empty(shape, dtype=output_dtype(names[0], out_dtype))


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.how = inputs[4:6]


def _gradients(ctx, grad):
    """dA = dC B^T and dB = A^T dC, summed over the axes along which the operand was broadcast."""
    a, b = ctx.saved_tensors
    check_differentiable(a)
    grad = grad.to(a.dtype)
    grad_a = summed_product(grad, b.mT, a.shape, how=ctx.how) if ctx.needs_input_grad[0] else None
    grad_b = summed_product(a.mT, grad, b.shape, how=ctx.how) if ctx.needs_input_grad[1] else None
    return grad_a, grad_b, None, None, None, None, None


def check_differentiable(a: torch.Tensor) -> None:
    """Raise UnsupportedError for operands whose dtype is too coarse for a gradient."""
    if a.dtype.itemsize == 1:
        raise UnsupportedError(f"a: expected an operand without gradients, {a.dtype} would round them; use .detach()")


def summed_product(
    x: torch.Tensor, y: torch.Tensor, shape: torch.Size, alpha: float = 1.0, how: Sequence[str | None] = (None, None)
) -> torch.Tensor:
    """alpha x @ y summed to `shape`, the sum in FP32, or FP64 if x is; `how`: precision, acc_dtype."""

    def product(x: torch.Tensor, y: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        if alpha == 1:
            prepared = call_prepared(x, y, out_dtype, None, how[0], _Product.apply) if how[1] is None else None
            if prepared is not None:
                return prepared
            return call(torch.ops.laneloom.matmul, x, y, out_dtype, None, *how, None)
        terms = (None, None, alpha, 0.0, None, out_dtype, None, None, None)
        return call(torch.ops.laneloom.gemm, x, y, *terms, *how, None)

    if x.dim() == y.dim() == len(shape) == 2:  # torch.broadcast_shapes takes microseconds
        return product(x, y)
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if batch == shape[:-2]:
        return product(x, y)
    if shape[:-2].numel() == 1:  # a sum over the whole batch is a longer K
        x = x.expand(*batch, *x.shape[-2:]).movedim(-2, 0).reshape(x.shape[-2], -1)
        y = y.expand(*batch, *y.shape[-2:]).reshape(-1, y.shape[-1])
        return product(x, y).reshape(shape)
    return product(x, y, torch.promote_types(x.dtype, torch.float32)).sum_to_size(shape).to(x.dtype)


class _Product(torch.autograd.Function):
    """A product with its gradients past PyTorch's dispatcher; see `call_prepared`."""

    @staticmethod
    def forward(ctx, a, b, out_dtype, precision, run):
        ctx.save_for_backward(a, b)
        ctx.how = (precision, None)
        return multiply(a, b, out_dtype, run)

    @staticmethod
    def backward(ctx, *grads):
        return *_gradients(ctx, *grads)[:2], None, None, None


def _batched(info, in_dims, a, b, *how):
    return torch.ops.laneloom.matmul(*aligned(in_dims, a, b), *how), 0


def _cast(args: Sequence[Any]) -> tuple[int, ...]:
    """Under autocast the operands become its dtype, unless `precision` says how to multiply fp32."""
    return () if len(args) > 4 and args[4] is not None else (0, 1)


def _matmul_out(a, b, out, config=None, precision=None, acc_dtype=None, packed=None):
    names = check(a, b, packed)
    arithmetic = arithmetic_of(names[0], precision, acc_dtype)
    execute.check_distinct(out)
    if execute.overlap(out, a) or execute.overlap(out, b):
        result = torch.empty_like(out, memory_format=torch.contiguous_format)
        run(a, b, result, config, names, arithmetic=arithmetic)
        out.copy_(result)
    else:
        run(a, b, out, config, names, arithmetic=arithmetic)


def _matmul_out_fake(a, b, out, config=None, precision=None, acc_dtype=None, packed=None):
    check(a, b, packed)


_HOW = "str? config=None, str? precision=None, str? acc_dtype=None, str[]? packed=None"
_OPERATOR: Any = torch.library.custom_op(
    "laneloom::matmul",
    _matmul,
    mutates_args=(),
    schema=f"(Tensor a, Tensor b, ScalarType? out_dtype=None, {_HOW}) -> Tensor",
)
_OPERATOR.register_fake(_matmul_fake)
complete(_OPERATOR, batched=_batched, remember=_remember, gradients=_gradients, cast=_cast)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::matmul_out",
    _matmul_out,
    mutates_args=("out",),
    schema=f"(Tensor a, Tensor b, Tensor(a!) out, {_HOW}) -> ()",
)
_OUT_OPERATOR.register_fake(_matmul_out_fake)
complete(_OUT_OPERATOR, batched=refuse_out)

"""torch.ops.laneloom.transform3d: the transform as an opaque operator, with a fake implementation and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..matmul.execute import check_distinct, overlap
from ..operators import check_strided, complete, folded, mark_written, one_by_one, refuse_out, unfolded
from ..target import gpu_for_tensor
from ..warm import WarmCalls, maker_of
from . import execute
from .config import parse_config

_NAMES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.complex128: "complex128", torch.complex64: "complex64",
}  # fmt: skip
_TENSOR_AXES = 3


def transform_tensors(
    coeffs: Any, matrix: Any, out: Any, *, transpose: bool, accumulate: bool, config: str | None
) -> torch.Tensor:
    """`laneloom.transform3d` on torch tensors."""
    for name, operand in (("coeffs", coeffs), ("matrix", matrix), ("out", out)):
        if not isinstance(operand, torch.Tensor) and (name != "out" or operand is not None):
            what = "a torch tensor or a numpy array" if name == "coeffs" else "a torch tensor, as coeffs is"
            raise ArgumentError(f"{name}: expected {what}, got {type(operand).__name__}")
    if accumulate and out is None:
        raise ArgumentError("accumulate: expected out, to which the transform is added, got none")
    if out is None and coeffs.dim() == _TENSOR_AXES + 1:  # which the operator checks
        return transform3d_operator(coeffs, matrix, transpose, config)
    _check(coeffs, matrix)
    if out is None:
        return _flat_call(coeffs, matrix, transpose, config)
    check_strided("out", out)
    if out.shape != coeffs.shape or out.dtype != coeffs.dtype or out.device != coeffs.device:
        raise ArgumentError(
            f"out: expected shape {tuple(coeffs.shape)}, {coeffs.dtype} on {coeffs.device}, "
            f"got {tuple(out.shape)}, {out.dtype} on {out.device}"
        )
    check_distinct(out)
    transform3d_out_operator(coeffs, matrix, out, transpose, accumulate, config)
    return out


def _flat_call(coeffs: torch.Tensor, matrix: torch.Tensor, transpose: bool, config: str | None) -> torch.Tensor:
    flat = coeffs.reshape(coeffs.shape[:-3].numel(), *coeffs.shape[-3:])
    return transform3d_operator(flat, matrix, transpose, config).reshape(coeffs.shape)


def _check(coeffs: torch.Tensor, matrix: torch.Tensor) -> None:
    for name, operand in (("coeffs", coeffs), ("matrix", matrix)):
        check_strided(name, operand)
    shape = tuple(coeffs.shape)
    if coeffs.dim() < _TENSOR_AXES or not shape[-1] == shape[-2] == shape[-3] or shape[-1] < 1:
        raise ArgumentError(f"coeffs: expected shape [..., K, K, K] with K at least 1, got {shape}")
    k = shape[-1]
    if tuple(matrix.shape) not in ((k, k), (3, k, k)):
        raise ArgumentError(f"matrix: expected shape [{k}, {k}] or [3, {k}, {k}], got {tuple(matrix.shape)}")
    real = coeffs.dtype.to_real() if coeffs.is_complex() else coeffs.dtype
    if coeffs.dtype not in _NAMES:
        raise UnsupportedError(
            f"coeffs: expected dtype torch.float64, float32, complex128 or complex64, got {coeffs.dtype}"
        )
    if matrix.dtype not in (real, coeffs.dtype):
        which = f"{real}, as coeffs has" if real == coeffs.dtype else f"{real} or that of coeffs, {coeffs.dtype}"
        raise ArgumentError(f"matrix: expected dtype {which}, got {matrix.dtype}")
    if matrix.device != coeffs.device:
        raise ArgumentError(f"matrix: expected a tensor on {coeffs.device}, as coeffs is, got one on {matrix.device}")


def _dense(x: torch.Tensor) -> bool:
    """Whether each tensor [K, K, K] of x [N, K, K, K] is dense, and the tensors are apart."""
    k = x.shape[-1]
    inner = all(n == 1 or s == want for n, s, want in zip(x.shape[1:], x.stride()[1:], (k * k, k, 1), strict=True))
    return inner and (x.shape[0] <= 1 or x.stride(0) >= k**3)


def _prepare_into(
    x: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, transpose: bool, accumulate: bool, config: str | None
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """What transforms x into out, [N, K, K, K], for tensors that lie as these do; out is dense and apart from both."""
    gpu = gpu_for_tensor("coeffs", x)
    parsed, dense = None if config is None else parse_config(config), _dense(x)
    run = execute.prepare_transform(
        x if dense else x.contiguous(), matrix, out, _NAMES[x.dtype], gpu, transpose=transpose, accumulate=accumulate,
        config=parsed,
    )  # fmt: skip
    return run if dense else lambda x, matrix, out: run(x.contiguous(), matrix, out)


def _prepare(coeffs, matrix, transpose, config) -> Callable[..., torch.Tensor]:
    """What transforms tensors that lie as these do."""
    first = _transform3d_fake(coeffs, matrix)
    make, run_into = maker_of(first), _prepare_into(coeffs, matrix, first, transpose, False, config)

    def run(coeffs: torch.Tensor, matrix: torch.Tensor, *_: Any) -> torch.Tensor:
        out = make()
        run_into(coeffs, matrix, out)
        return out

    return run


_warm = WarmCalls(_prepare)


@torch.library.custom_op(
    "laneloom::transform3d",
    mutates_args=(),
    schema="(Tensor coeffs, Tensor matrix, bool transpose=False, str? config=None) -> Tensor",
)
def _transform3d(coeffs, matrix, transpose=False, config=None):
    return _warm(coeffs, matrix, transpose, config)


@_transform3d.register_fake
def _transform3d_fake(coeffs, matrix, transpose=False, config=None):
    _check(coeffs, matrix)
    return coeffs.new_empty(coeffs.shape)


def _remember(ctx, inputs, output) -> None:
    coeffs, matrix, ctx.transpose, ctx.config = inputs
    ctx.save_for_backward(coeffs, matrix)


def _gradients(ctx, grad):
    """dX: dR by the conjugate matrix in the other orientation; dT_i: Z_i^H dR with Z_i = X along the other two axes."""
    coeffs, matrix = ctx.saved_tensors
    grad = grad.contiguous()
    grad_coeffs = grad_matrix = None
    if ctx.needs_input_grad[0]:
        grad_coeffs = transform3d_operator(grad, matrix.conj(), not ctx.transpose, ctx.config)
    if ctx.needs_input_grad[1]:
        k = coeffs.shape[-1]
        factors = matrix.expand(3, k, k)
        identity = torch.eye(k, dtype=matrix.dtype, device=matrix.device)
        parts = []
        for axis in range(3):
            others = torch.stack([identity if i == axis else factors[i] for i in range(3)])
            z = transform3d_operator(coeffs, others, ctx.transpose, None)
            z_rows, grad_rows = (t.movedim(axis + 1, 0).reshape(k, coeffs.numel() // k) for t in (z, grad))
            z_rows = z_rows.conj()
            part = grad_rows @ z_rows.mT if ctx.transpose else z_rows @ grad_rows.mT
            parts.append(part if matrix.is_complex() else part.real)
        grad_matrix = torch.stack(parts) if matrix.dim() == 3 else parts[0] + parts[1] + parts[2]
    return grad_coeffs, grad_matrix, None, None


def _batched(call, info, in_dims, coeffs, matrix, *options):
    """vmap's axis is more of N; a matrix for every element takes a call for every element."""
    if in_dims[1] is not None:
        return one_by_one(call, info, in_dims, coeffs, matrix, *options)
    return unfolded(info, in_dims, coeffs, call(*folded(info, in_dims, (coeffs,)), matrix, *options)), 0


transform3d_operator = complete(
    _transform3d, batched=_batched, remember=_remember, gradients=_gradients, warm=_warm
)


def _prepare_out(coeffs, matrix, out, transpose, accumulate, config) -> Callable[..., None]:
    """What transforms into out for tensors that lie as these do, apart from how they lie to each other."""
    _check(coeffs, matrix)
    shape = (coeffs.shape[:-3].numel(), *coeffs.shape[-3:])
    try:
        flat = out.view(shape)
    except RuntimeError:
        flat = None
    direct = flat is not None and _dense(flat)
    made = flat if flat is not None and direct else coeffs.new_empty(shape)
    run_into = _prepare_into(coeffs.reshape(shape), matrix, made, transpose, accumulate, config)

    def run(coeffs: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, *_: Any) -> None:
        x = coeffs.reshape(shape)
        if direct and not overlap(out, coeffs) and not overlap(out, matrix):
            run_into(x, matrix, out.view(shape))
            mark_written(out)
            return
        old = out.reshape(shape)
        result = old.clone(memory_format=torch.contiguous_format) if accumulate else x.new_empty(shape)
        _prepare_into(x, matrix, result, transpose, accumulate, config)(x, matrix, result)
        out.copy_(result.view(out.shape))

    return run


_warm_out = WarmCalls(_prepare_out)


@torch.library.custom_op(
    "laneloom::transform3d_out",
    mutates_args=("out",),
    schema=(
        "(Tensor coeffs, Tensor matrix, Tensor(a!) out, bool transpose=False, bool accumulate=False, "
        "str? config=None) -> ()"
    ),
)
def _transform3d_out(coeffs, matrix, out, transpose=False, accumulate=False, config=None):
    _warm_out(coeffs, matrix, out, transpose, accumulate, config)


@_transform3d_out.register_fake
def _transform3d_out_fake(coeffs, matrix, out, transpose=False, accumulate=False, config=None):
    _check(coeffs, matrix)


transform3d_out_operator = complete(_transform3d_out, batched=refuse_out, warm=_warm_out)

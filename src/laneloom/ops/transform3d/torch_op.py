"""torch.ops.laneloom.transform3d: the transform as an opaque operator, with a fake implementation and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..operators import call, complete, folded, one_by_one, refuse_out, unfolded
from ..target import active_gpu, expected_device_type
from ..warm import WarmCalls, key_of
from . import execute
from .config import parse_config

_NAMES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.complex128: "complex128", torch.complex64: "complex64",
}  # fmt: skip
_TENSOR_AXES = 3
_met = WarmCalls()


def transform_tensors(
    coeffs: Any, matrix: Any, out: Any, *, transpose: bool, accumulate: bool, config: str | None
) -> torch.Tensor:
    """`laneloom.transform3d` on torch tensors."""
    for name, operand in (("coeffs", coeffs), ("matrix", matrix), ("out", out)):
        if not isinstance(operand, torch.Tensor) and (name != "out" or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor, got {type(operand).__name__}")
    if accumulate and out is None:
        raise ArgumentError("accumulate: expected out, to which the transform is added, got none")
    if out is None and coeffs.dim() == _TENSOR_AXES + 1:  # which the operator checks
        return call(torch.ops.laneloom.transform3d, coeffs, matrix, transpose, config)
    _check(coeffs, matrix)
    if out is None:
        return _flat_call(coeffs, matrix, transpose, config)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (coeffs, matrix, out)):
        raise ArgumentError("out: expected none where gradients are recorded, got a tensor; use torch.no_grad()")
    if out.shape != coeffs.shape or out.dtype != coeffs.dtype or out.device != coeffs.device:
        raise ArgumentError(
            f"out: expected shape {tuple(coeffs.shape)}, {coeffs.dtype} on {coeffs.device}, "
            f"got {tuple(out.shape)}, {out.dtype} on {out.device}"
        )
    torch.ops.laneloom.transform3d_out(coeffs, matrix, out, transpose, accumulate, config)
    return out


def _flat_call(coeffs: torch.Tensor, matrix: torch.Tensor, transpose: bool, config: str | None) -> torch.Tensor:
    flat = coeffs.reshape(coeffs.shape[:-3].numel(), *coeffs.shape[-3:])
    return call(torch.ops.laneloom.transform3d, flat, matrix, transpose, config).reshape(coeffs.shape)


def _check(coeffs: torch.Tensor, matrix: torch.Tensor) -> None:
    shape = tuple(coeffs.shape)
    if coeffs.dim() < _TENSOR_AXES or not shape[-1] == shape[-2] == shape[-3] or shape[-1] < 1:
        raise ArgumentError(f"coeffs: expected shape [..., K, K, K] with K at least 1, got {shape}")
    k = shape[-1]
    if tuple(matrix.shape) not in ((k, k), (3, k, k)):
        raise ArgumentError(f"matrix: expected shape [{k}, {k}] or [3, {k}, {k}], got {tuple(matrix.shape)}")
    for name, operand in (("coeffs", coeffs), ("matrix", matrix)):
        if operand.layout != torch.strided:
            raise UnsupportedError(f"{name}: expected a strided tensor, got {operand.layout}")
    real = coeffs.dtype.to_real() if coeffs.is_complex() else coeffs.dtype
    if coeffs.dtype not in _NAMES:
        raise UnsupportedError(
            f"coeffs: expected dtype torch.float64, float32, complex128 or complex64, got {coeffs.dtype}"
        )
    if matrix.dtype not in (real, coeffs.dtype):
        raise ArgumentError(f"matrix: expected dtype {real} or that of coeffs, {coeffs.dtype}, got {matrix.dtype}")
    if matrix.device != coeffs.device:
        raise ArgumentError(f"matrix: expected a tensor on {coeffs.device}, as coeffs is, got one on {matrix.device}")


def _plain(x: torch.Tensor) -> torch.Tensor:
    """x, with a conjugation or negation that torch only noted carried out."""
    return x.resolve_conj().resolve_neg()


def _dense(x: torch.Tensor) -> bool:
    """Whether each tensor [K, K, K] of x [N, K, K, K] is dense, and the tensors are apart."""
    k = x.shape[-1]
    inner = all(n == 1 or s == want for n, s, want in zip(x.shape[1:], x.stride()[1:], (k * k, k, 1), strict=True))
    return inner and (x.shape[0] <= 1 or x.stride(0) >= k**3)


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the spans of memory between first and last element meet."""
    if 0 in (x.numel(), y.numel()) or x.device != y.device:
        return False
    spans = []
    for t in (x, y):
        last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        spans.append((t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()))
    return spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]


def _prepare(
    x: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, transpose: bool, accumulate: bool, config: str | None
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """What transforms x into out, [N, K, K, K], for tensors that lie as these do; out is dense and apart from both."""
    gpu = active_gpu()
    if x.device.type != (expected := expected_device_type()):
        hint = "" if expected == "cpu" else '; inside `with laneloom.emulated("gfx1151"):` CPU tensors work'
        raise ArgumentError(f"coeffs: expected a tensor on {expected} for {gpu.name}, got one on {x.device}{hint}")
    parsed, dense = None if config is None else parse_config(config), _dense(x)
    plain = x if dense else x.contiguous()
    run = execute.prepare_transform(
        _plain(plain), _plain(matrix), out, _NAMES[x.dtype], gpu, transpose=transpose, accumulate=accumulate,
        config=parsed,
    )  # fmt: skip
    return lambda x, matrix, out: run(_plain(x if dense else x.contiguous()), _plain(matrix), out)


def _run(
    x: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, transpose: bool, accumulate: bool, config: str | None
) -> None:
    """As `_prepare` says, once, or as a call that lay alike did."""
    key = key_of((x, matrix, out), transpose, accumulate, config)
    run = _met.get(key)
    if run is not None:
        run(x, matrix, out)
        return
    with torch.cuda.device(x.device if x.device.type == "cuda" else -1):
        _met.keep(key, _prepare(x, matrix, out, transpose, accumulate, config))(x, matrix, out)


@torch.library.custom_op(
    "laneloom::transform3d",
    mutates_args=(),
    schema="(Tensor coeffs, Tensor matrix, bool transpose=False, str? config=None) -> Tensor",
)
def _transform3d(coeffs, matrix, transpose=False, config=None):
    _check(coeffs, matrix)
    out = coeffs.new_empty(coeffs.shape)
    _run(coeffs.detach(), matrix.detach(), out, transpose, False, config)
    return out


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
        grad_coeffs = call(torch.ops.laneloom.transform3d, grad, matrix.conj(), not ctx.transpose, ctx.config)
    if ctx.needs_input_grad[1]:
        k = coeffs.shape[-1]
        factors = matrix.expand(3, k, k)
        identity = torch.eye(k, dtype=matrix.dtype, device=matrix.device)
        parts = []
        for axis in range(3):
            others = torch.stack([identity if i == axis else factors[i] for i in range(3)])
            z = call(torch.ops.laneloom.transform3d, coeffs, others, ctx.transpose, None)
            z_rows, grad_rows = (t.movedim(axis + 1, 0).reshape(k, coeffs.numel() // k) for t in (z, grad))
            z_rows = z_rows.conj()
            part = grad_rows @ z_rows.mT if ctx.transpose else z_rows @ grad_rows.mT
            parts.append(part if matrix.is_complex() else part.real)
        grad_matrix = torch.stack(parts) if matrix.dim() == 3 else parts[0] + parts[1] + parts[2]
    return grad_coeffs, grad_matrix, None, None


def _batched(info, in_dims, coeffs, matrix, *options):
    """vmap's axis is more of N; a matrix for every element takes a call for every element."""
    operator = torch.ops.laneloom.transform3d
    if in_dims[1] is not None:
        return one_by_one(operator, info, in_dims, coeffs, matrix, *options)
    return unfolded(info, operator(*folded(info, in_dims, (coeffs,)), matrix, *options)), 0


complete(_transform3d, batched=_batched, remember=_remember, gradients=_gradients)


@torch.library.custom_op(
    "laneloom::transform3d_out",
    mutates_args=("out",),
    schema=(
        "(Tensor coeffs, Tensor matrix, Tensor(a!) out, bool transpose=False, bool accumulate=False, "
        "str? config=None) -> ()"
    ),
)
def _transform3d_out(coeffs, matrix, out, transpose=False, accumulate=False, config=None):
    _check(coeffs, matrix)
    shape = (coeffs.shape[:-3].numel(), *coeffs.shape[-3:])
    x = coeffs.reshape(shape)
    try:
        flat = out.view(shape)
    except RuntimeError:
        flat = None
    noted = out.is_conj() or out.is_neg()
    if flat is not None and not noted and _dense(flat) and not _overlap(out, coeffs) and not _overlap(out, matrix):
        _run(x, matrix, flat, transpose, accumulate, config)
        return
    result = out.reshape(shape).clone(memory_format=torch.contiguous_format) if accumulate else x.new_empty(shape)
    result = _plain(result)
    _run(x, matrix, result, transpose, accumulate, config)
    out.copy_(result.view(out.shape))


@_transform3d_out.register_fake
def _transform3d_out_fake(coeffs, matrix, out, transpose=False, accumulate=False, config=None):
    _check(coeffs, matrix)


complete(_transform3d_out, batched=refuse_out)

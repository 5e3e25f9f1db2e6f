"""The warm path of `matmul` on CUDA tensors: from a table, past PyTorch's dispatcher and the planner.

The operator torch.ops.laneloom.matmul costs tens of microseconds of host time per call, more than a small product
takes. Where nothing needs it (no autocast, tracing, functional transform or dispatch mode), two 2-D tensors
go straight to what was prepared for their shapes, strides, dtypes and alignment. Same kernel, same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..target import active_gpu
from ..warm import MOST_CALLS, current_device
from . import execute
from .config import plan
from .dtypes import PRECISIONS, Arithmetic

_DTYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.int8: "int8",
    torch.int32: "int32", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "bf8",
}  # fmt: skip
#: what a product is stored as if nobody says and it is not a's dtype
_DEFAULT_OUTPUTS = {
    torch.float8_e4m3fn: torch.float32, torch.float8_e5m2: torch.float32, torch.int8: torch.int32,
}  # fmt: skip
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_UNKNOWN = object()
_prepared: dict[tuple[Any, ...], Any] = {}  #: what runs, or None where the operator has to be called


def _is_observed() -> bool:
    """Whether something between the caller and the kernel wants to see the operator."""
    return (
        torch.is_autocast_enabled("cuda")
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
    )


def can_skip_operator(*tensors: torch.Tensor | None) -> bool:
    """Whether nothing but autograd needs to see the operator: plain tensors, as they lie, on the current device."""
    if torch.compiler.is_compiling():  # first: a compiler can trace nothing of what follows
        return False
    device = next((x.get_device() for x in tensors if x is not None), -1)
    if device < 0 or device != current_device():  # in this order: without a GPU there is no current device to ask for
        return False
    for x in tensors:
        if x is not None and (type(x) not in _PLAIN_TENSORS or x.get_device() != device or x.is_neg()):
            return False
    return not _is_observed()


def call_prepared(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None, out: torch.Tensor | None = None,
    precision: str | None = None, differentiate: Callable[..., torch.Tensor] | None = None,
) -> torch.Tensor | None:  # fmt: skip
    """The product, in `out` if that is given, or None where the operator has to be called.

    Where gradients are recorded it comes from `differentiate(a, b, out_dtype, precision, run)`, which records them and
    calls `multiply`; without that the operator is called.
    """
    if torch.compiler.is_compiling():  # first: a compiler can trace nothing of what follows
        return None
    if type(a) not in _PLAIN_TENSORS or type(b) not in _PLAIN_TENSORS or a.is_neg() or b.is_neg():
        return None
    device = a.get_device()
    if device < 0 or b.get_device() != device or current_device() != device:
        return None
    recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if (recorded and (differentiate is None or out is not None)) or _is_observed():
        return None
    key = (
        a.shape, a.stride(), a.dtype, a.data_ptr() & 15, b.shape, b.stride(), b.dtype, b.data_ptr() & 15, out_dtype,
        device, precision,
    )  # fmt: skip
    if out is not None:
        if not _takes_result(out, a, b, out_dtype):
            return None
        key = (*key, out.data_ptr() & 15)
    run = _prepared.get(key, _UNKNOWN)
    if run is _UNKNOWN:
        if len(_prepared) >= MOST_CALLS:
            _prepared.clear()
        run = _prepared[key] = _prepare(a, b, out_dtype, out, precision)
    if run is None:
        return None
    if recorded:
        assert differentiate is not None
        return differentiate(a, b, out_dtype, precision, run)
    if out is None:
        return multiply(a, b, out_dtype, run)
    run(a, b, out)
    return out


def multiply(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None, run: Callable[..., None]
) -> torch.Tensor:
    """A new tensor with the product, by what was prepared for it."""
    out = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or _DEFAULT_OUTPUTS.get(a.dtype))
    run(a, b, out)
    return out


def _takes_result(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None) -> bool:
    """Whether `out` needs none of the operator's checks: as a fresh result would be, in memory of its own."""
    return (
        type(out) is torch.Tensor
        and out.device == a.device
        and out.dtype == (out_dtype or _DEFAULT_OUTPUTS.get(a.dtype, a.dtype))
        and a.ndim == b.ndim == 2
        and out.shape == (a.shape[0], b.shape[1])
        and out.is_contiguous()
        and not out.requires_grad
        and not out.is_neg()
        and out.untyped_storage().data_ptr() not in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr())
    )


def _prepare(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None, out: torch.Tensor | None, precision: str | None
) -> Callable[..., None] | None:
    """What runs for these operands; None for those that the operator has to check, and GPUs without prepared
    schedules."""
    wanted = out_dtype or _DEFAULT_OUTPUTS.get(a.dtype, a.dtype)
    fits = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and 0 not in (*a.shape, *b.shape)
    known = a.layout == b.layout == torch.strided and a.dtype == b.dtype and {a.dtype, wanted} <= _DTYPES.keys()
    known = known and (precision is None or (precision in PRECISIONS and a.dtype == torch.float32))
    if not fits or not known:
        return None
    gpu = active_gpu()
    if gpu.matrix_instructions != "wgmma":
        return None
    if out is None:
        out = torch.empty((a.shape[0], b.shape[1]), dtype=wanted, device=a.device)
    dtypes = (_DTYPES[a.dtype], _DTYPES[b.dtype], _DTYPES[wanted])
    problem = execute.problem_of(a, b, out, dtypes, arithmetic=Arithmetic(precision or "ieee"))
    if problem is None:
        return None
    config = plan(problem, gpu)
    return execute.schedule_of(config).prepare(problem, config, gpu)

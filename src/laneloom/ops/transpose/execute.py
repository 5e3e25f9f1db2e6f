"""From operands to launches: the problem of a call, its config, the schedule that runs it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from ...codegen import CodeObject
from ...emulator.driver import ArrayArgument
from ...gpu import Gpu
from ..axes import merge_axes
from ..matmul.execute import address_of, strides_of
from ..matmul.problem import Matrix
from .config import TransposeConfig, checked_config
from .problem import MAX_VECTOR_BYTES, TransposeProblem, as_integers


def _alignment(operand: Any) -> int:
    address = address_of(operand)
    return min(MAX_VECTOR_BYTES, address & -address) if address else MAX_VECTOR_BYTES


def problem_of(x: Any, y: Any) -> TransposeProblem | None:
    """The problem of X and Y, both in X's axes [..., R, C]; None where their batch axes need three strides."""
    x_strides, y_strides = strides_of(x), strides_of(y)
    axes = merge_axes(x.shape[:-2], x_strides[:-2], y_strides[:-2])
    if len(axes) > 2:
        return None
    (outer, *outers), (inner, *inners) = [(1, 0, 0)] * (2 - len(axes)) + axes
    x_matrix, y_matrix = (
        Matrix((o, i, strides[-2], strides[-1]), _alignment(operand))
        for o, i, strides, operand in zip(outers, inners, (x_strides, y_strides), (x, y), strict=True)
    )
    return TransposeProblem(x.shape[-2], x.shape[-1], x.dtype.itemsize, (outer, inner), x_matrix, y_matrix)


def _schedule(config: TransposeConfig) -> ModuleType:
    return import_module(f".kernels.{config.schedule}", __package__)


def code_object(problem: TransposeProblem, gpu: Gpu, config: TransposeConfig | None = None) -> CodeObject:
    """The machine code that a call with this problem runs on `gpu`, compiled on any machine."""
    chosen = checked_config(problem, gpu, config)
    return _schedule(chosen).code_object(problem, chosen, gpu)


def transpose_into(x: Any, out: Any, gpu: Gpu, config: TransposeConfig | None) -> None:
    """out[..., c, r] = x[..., r, c], torch tensors, or numpy arrays of integers of their element's size, apart.

    Batch axes are equal, broadcast ones of x have stride 0.
    """
    prepare_transpose(x, out, gpu, config)(x, out)


def prepare_transpose(x: Any, out: Any, gpu: Gpu, config: TransposeConfig | None) -> Callable[[Any, Any], None]:
    """What does `transpose_into` for operands that lie as these do, call after call."""
    if 0 in x.shape:
        return lambda x, out: None
    problem = problem_of(x, out.swapaxes(-1, -2))
    if problem is None:
        return lambda x, out: _each(x, out, gpu, config)
    chosen = checked_config(problem, gpu, config)
    schedule = _schedule(chosen)
    if gpu.vendor == "nvidia" and hasattr(schedule, "prepare"):
        return schedule.prepare(problem, chosen, gpu)
    return lambda x, out: schedule.launch(problem, chosen, gpu, *map(_pointer, (x, out)))


def _each(x: Any, out: Any, gpu: Gpu, config: TransposeConfig | None) -> None:
    for i in range(x.shape[0]):
        transpose_into(x[i], out[i], gpu, config)


def _pointer(operand: Any) -> Any:
    return ArrayArgument(operand) if hasattr(operand, "ctypes") else as_integers(operand)

"""From checked operands to launches: what a torch tensor and a numpy array have in common from here on.

An operand is a torch tensor or a numpy array; both are indexed, transposed and filled in the same words.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from ...codegen import CodeObject
from ...emulator.driver import ArrayArgument
from ...errors import ArgumentError, InvalidConfigError
from ...gpu import Gpu
from .config import MatmulConfig, plan
from .problem import MatmulProblem, Matrix


def strides_of(operand: Any) -> tuple[int, ...]:
    """Strides in elements."""
    if isinstance(operand, np.ndarray):
        return tuple(stride // operand.itemsize for stride in operand.strides)
    return tuple(operand.stride())


def address_of(operand: Any) -> int:
    """Address of its first element."""
    return operand.ctypes.data if isinstance(operand, np.ndarray) else operand.data_ptr()


def overlap(x: Any, y: Any) -> bool:
    """Whether the address ranges of two operands meet; they may still share no element."""

    def span(operand: Any) -> tuple[int, int]:
        reach = sum((n - 1) * s for n, s in zip(operand.shape, strides_of(operand), strict=True))
        return address_of(operand), address_of(operand) + (reach + 1) * operand.dtype.itemsize

    if 0 in x.shape or 0 in y.shape:
        return False
    (x_low, x_high), (y_low, y_high) = span(x), span(y)
    return x_low < y_high and y_low < x_high


def check_distinct(out: Any) -> None:
    """Raise ArgumentError unless out's strides show that no two of its elements share an address."""
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(out.shape, strides_of(out), strict=True) if n > 1):
        if stride <= reach:
            raise ArgumentError(
                f"out: expected strides under which no elements overlap, got shape {tuple(out.shape)} with strides "
                f"{strides_of(out)}"
            )
        reach += (size - 1) * stride


def _merged(a: Any, b: Any, out: Any) -> list[tuple[int, int, int, int]]:
    """Batch axes of two elements or more as (size, stride in A, in B, in C), neighbours merged where they can be."""
    axes: list[tuple[int, int, int, int]] = []
    for size, *strides in zip(out.shape[:-2], *(strides_of(x)[:-2] for x in (a, b, out)), strict=True):
        if size == 1:
            continue
        if axes and all(outer == size * inner for outer, inner in zip(axes[-1][1:], strides, strict=True)):
            axes[-1] = (axes[-1][0] * size, *strides)
        else:
            axes.append((size, *strides))
    return axes


def _alignment(operand: Any) -> int:
    address = address_of(operand)
    return min(16, address & -address) if address else 16


def problem_of(a: Any, b: Any, out: Any, dtypes: tuple[str, str, str]) -> MatmulProblem | None:
    """The problem of A[..., M, K], B[..., K, N] and C[..., M, N] with equal batch axes; None if these need three
    strides.

    A batch that B does not have becomes more rows of A and C, if their strides allow it.
    """
    axes = _merged(a, b, out)
    m, n, k = *out.shape[-2:], a.shape[-1]
    a_row, c_row = strides_of(a)[-2], strides_of(out)[-2]
    if axes and m > 0 and axes[-1][1:] == (m * a_row, 0, m * c_row):
        m *= axes.pop()[0]
    if len(axes) > 2:
        return None
    (outer, *outers), (inner, *inners) = [(1, 0, 0, 0)] * (2 - len(axes)) + axes
    matrices = (
        Matrix((o, i, strides_of(x)[-2], strides_of(x)[-1]), _alignment(x))
        for o, i, x in zip(outers, inners, (a, b, out), strict=True)
    )
    return MatmulProblem(m, n, k, *dtypes, (outer, inner), *matrices)


def schedule_of(config: MatmulConfig) -> ModuleType:
    """The kernel file of a config."""
    return import_module(f".kernels.{config.schedule}", __package__)


def checked_config(problem: MatmulProblem, gpu: Gpu, config: MatmulConfig | None) -> MatmulConfig:
    """`config`, or the planned one. Raises InvalidConfigError for one that cannot do the problem on the GPU."""
    if config is None:
        return plan(problem, gpu)
    why = config.why_invalid(problem, gpu)
    if why is not None:
        raise InvalidConfigError(f"config {config.text} cannot run: {why}")
    return config


def code_object(problem: MatmulProblem, gpu: Gpu, config: MatmulConfig | None = None) -> CodeObject:
    """The machine code that a call with this problem runs on `gpu`, compiled on any machine."""
    config = checked_config(problem, gpu, config)
    return schedule_of(config).code_object(problem, config, gpu)


def _pointer(operand: Any, dtype: str) -> Any:
    """What Triton takes for a pointer to the operand; bf16 comes as an array of its bits."""
    if not isinstance(operand, np.ndarray):
        return operand
    argument = ArrayArgument(operand)
    argument.dtype = dtype
    return argument


def multiply_into(
    a: Any, b: Any, out: Any, dtypes: tuple[str, str, str], gpu: Gpu, config: MatmulConfig | None
) -> None:
    """out[..., m, n] = sum over k of a[..., m, k] b[..., k, n]; equal batch axes, broadcast ones with stride 0.

    out is distinct from a and b. `dtypes` names those of a, b and out.
    """
    if 0 in out.shape:
        return
    if a.shape[-1] == 0:
        out[...] = 0
        return
    # A lane stores neighbours along N: where C is contiguous along M, C^T = B^T A^T is.
    if config is None and strides_of(out)[-2] == 1 and out.shape[-2] > 1 and strides_of(out)[-1] != 1:
        flipped = (dtypes[1], dtypes[0], dtypes[2])
        multiply_into(b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2), flipped, gpu, None)
        return
    problem = problem_of(a, b, out, dtypes)
    if problem is None:
        for i in range(out.shape[0]):
            multiply_into(a[i], b[i], out[i], dtypes, gpu, config)
        return
    chosen = checked_config(problem, gpu, config)
    pointers = (_pointer(x, dtype) for x, dtype in zip((a, b, out), dtypes, strict=True))
    schedule_of(chosen).launch(problem, chosen, gpu, *pointers)


def batched_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the product of operands with two or more axes each, whose batch axes broadcast.

    Raises ArgumentError if they do not fit.
    """
    if a[-1] != b[-2]:
        raise ArgumentError(f"b: expected {a[-1]} rows, as many as a has columns, got {tuple(a)} and {tuple(b)}")
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ArgumentError(
            f"b: expected batch axes that broadcast with a's {tuple(a[:-2])}, got {tuple(b[:-2])}"
        ) from None
    return (*batch, a[-2], b[-1])


def as_matrices(a: Any, b: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """a and b as matrices, and the axes of their product that torch.matmul removes again (those of 1-D operands).

    Raises ArgumentError for an operand without axes.
    """
    for name, operand in (("a", a), ("b", b)):
        if operand.ndim == 0:
            raise ArgumentError(f"{name}: expected at least 1 axis, got a scalar")
    extra = ((-2,) if a.ndim == 1 else ()) + ((-1,) if b.ndim == 1 else ())
    return (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b), extra


"""From checked operands to launches: what a torch tensor and a numpy array have in common from here on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from ...codegen import CodeObject
from ...emulator.driver import ArrayArgument
from ...errors import ArgumentError
from ...gpu import Gpu
from ..axes import merge_axes
from ..matmul.execute import alignment_of, strides_of
from ..matmul.problem import Matrix
from .config import ChainConfig, checked_config
from .problem import ChainProblem


@dataclass(frozen=True)
class Factors:
    """The scalars of a call."""

    alpha0: float = 1.0
    alpha1: float = 1.0
    beta1: float = 0.0


def chain_shape(
    a0: Sequence[int], b0: Sequence[int], b1: Sequence[int], c1: Sequence[int] | None, broadcast: Any
) -> tuple[int, ...]:
    """Shape of D1 for operands of these shapes; `broadcast` is numpy's function or, for symbols, torch's.

    Raises ArgumentError for operands that do not fit together.
    """
    for name, shape in (("a0", a0), ("b0", b0), ("b1", b1)):
        if len(shape) < 2:
            raise ArgumentError(f"{name}: expected at least 2 axes, got shape {tuple(shape)}")
    if a0[-1] != b0[-2]:
        raise ArgumentError(f"b0: expected {a0[-1]} rows, as many as a0 has columns, got shape {tuple(b0)}")
    if b0[-1] != b1[-2]:
        raise ArgumentError(f"b1: expected {b0[-1]} rows, as many as b0 has columns, got shape {tuple(b1)}")
    try:
        batch = broadcast(tuple(a0[:-2]), tuple(b0[:-2]), tuple(b1[:-2]))
    except (ValueError, RuntimeError):
        raise ArgumentError(
            f"b1: expected batch axes that broadcast, got {tuple(a0[:-2])}, {tuple(b0[:-2])} and {tuple(b1[:-2])}"
        ) from None
    shape = (*batch, a0[-2], b1[-1])
    if c1 is not None:
        try:
            fits = tuple(broadcast(shape, tuple(c1))) == shape
        except (ValueError, RuntimeError):
            fits = False
        if not fits:
            raise ArgumentError(f"c1: expected a shape that broadcasts to {tuple(shape)}, got {tuple(c1)}")
    return shape


def _matrix(operand: Any, outer: int, inner: int) -> Matrix:
    strides = strides_of(operand)
    return Matrix((outer, inner, strides[-2], strides[-1]), alignment_of(operand))


def problem_of(a0: Any, b0: Any, b1: Any, c1: Any, out: Any, dtype: str, dtype_c: str) -> ChainProblem | None:
    """The problem of operands with equal batch axes; None if these need three strides.

    A batch that B0 and B1 do not have becomes more rows, if the strides of A0, C1 and D1 allow it.
    """
    operands = [out, a0, b0, b1] + ([] if c1 is None else [c1])
    axes = merge_axes(out.shape[:-2], *(strides_of(x)[:-2] for x in operands))
    m = out.shape[-2]
    rows = [strides_of(x)[-2] for x in operands]
    rows[2] = rows[3] = 0
    if axes and axes[-1][1:] == tuple(m * stride for stride in rows):
        m *= axes.pop()[0]
    if len(axes) > 2:
        return None
    (outer, *outers), (inner, *inners) = [(1,) + (0,) * len(operands)] * (2 - len(axes)) + axes
    d, a, b, e, *c = (_matrix(x, o, i) for x, o, i in zip(operands, outers, inners, strict=True))
    sizes = (m, a0.shape[-1], b0.shape[-1], b1.shape[-1])
    return ChainProblem(*sizes, dtype, (outer, inner), a, b, e, d, c[0] if c else None, dtype_c if c else "")


def _schedule(config: ChainConfig) -> ModuleType:
    return import_module(f".kernels.{config.schedule}", __package__)


def code_object(problem: ChainProblem, gpu: Gpu, config: ChainConfig | None = None) -> CodeObject:
    """The machine code of a fused call with this problem on `gpu`, compiled on any machine."""
    chosen = checked_config(problem, gpu, config)
    return _schedule(chosen).code_object(problem, chosen, gpu)


def _pointer(operand: Any) -> Any:
    return ArrayArgument(operand) if isinstance(operand, np.ndarray) else operand


def chain_into(
    a0: Any, b0: Any, b1: Any, c1: Any, out: Any, dtypes: tuple[str, str], factors: Factors, gpu: Gpu,
    config: ChainConfig | None,
) -> None:  # fmt: skip
    """Write D1 into out. Equal batch axes, broadcast ones with stride 0; c1 of out's shape or None.

    out is distinct from a0, b0, b1; it may be c1. `dtypes` names that of the operands and that of c1.
    """
    prepare_chain(a0, b0, b1, c1, out, dtypes, factors, gpu, config)(a0, b0, b1, c1, out)


def prepare_chain(
    a0: Any, b0: Any, b1: Any, c1: Any, out: Any, dtypes: tuple[str, str], factors: Factors, gpu: Gpu,
    config: ChainConfig | None,
) -> Callable[..., None]:  # fmt: skip
    """What does `chain_into` for a0, b0, b1, c1, out that lie as these do, call after call."""
    if 0 in out.shape:
        return lambda *operands: None
    if factors.beta1 == 0:
        c1 = None
    if 0 in (a0.shape[-1], b0.shape[-1]) or factors.alpha0 == 0 or factors.alpha1 == 0:
        return lambda a0, b0, b1, c1, out: _write_addend(c1, factors.beta1, out)
    problem = problem_of(a0, b0, b1, c1, out, *dtypes)
    if problem is None:
        return lambda *operands: _each(operands, dtypes, factors, gpu, config)
    chosen = checked_config(problem, gpu, config)
    scalars, schedule = (factors.alpha0, factors.alpha1, factors.beta1), _schedule(chosen)
    if hasattr(schedule, "prepare"):
        launch = schedule.prepare(problem, chosen, gpu, scalars)
    else:

        def launch(*operands: Any) -> None:
            schedule.launch(problem, chosen, gpu, *map(_pointer, operands), *scalars)

    return lambda a0, b0, b1, c1, out: launch(a0, b0, b1, None if factors.beta1 == 0 else c1, out)


def _write_addend(c1: Any, beta: float, out: Any) -> None:
    """Nothing is multiplied, and as in BLAS nothing is read."""
    out[...] = 0 if c1 is None or beta == 0 else _scaled(c1, beta)


def _each(operands: Any, dtypes: tuple[str, str], factors: Factors, gpu: Gpu, config: ChainConfig | None) -> None:
    for i in range(operands[-1].shape[0]):
        parts = [None if x is None else x[i] for x in operands]
        chain_into(*parts, dtypes, factors, gpu, config)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _scaled(c1: Any, beta: float) -> Any:
    return c1.astype(np.float32) * np.float32(beta) if isinstance(c1, np.ndarray) else c1.float() * beta

"""From dense torch tensors to a launch: the problem of a call, its config, the schedule that runs it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...errors import InvalidConfigError
from ...gpu import Gpu
from .config import Transform3dConfig, plan
from .problem import Transform3dProblem

_MAX_ALIGNMENT = 16


def problem_of(x: Any, matrix: Any, out: Any, dtype: str, *, accumulate: bool) -> Transform3dProblem:
    """The problem of torch tensors x, out [N, K, K, K], each tensor dense, and matrix [K, K] or [3, K, K]."""
    addresses = x.data_ptr() | out.data_ptr()
    return Transform3dProblem(
        k=x.shape[-1],
        count=x.shape[0],
        dtype=dtype,
        same_matrix=matrix.dim() == 2,
        accumulate=accumulate,
        complex_matrix=matrix.is_complex(),
        stride_x=x.stride(0),
        stride_out=out.stride(0),
        alignment=min(_MAX_ALIGNMENT, addresses & -addresses) if addresses else _MAX_ALIGNMENT,
    )


def checked_config(problem: Transform3dProblem, gpu: Gpu, config: Transform3dConfig | None) -> Transform3dConfig:
    """`config` if it can do the problem, or what `plan` chooses. Raises InvalidConfigError, UnsupportedError."""
    if config is None:
        return plan(problem, gpu)
    why = config.why_invalid(problem, gpu)
    if why is not None:
        raise InvalidConfigError(f"config: {config.text} cannot do {problem.key} on {gpu.name}: {why}")
    return config


def prepare_transform(
    x: Any,
    matrix: Any,
    out: Any,
    dtype: str,
    gpu: Gpu,
    *,
    transpose: bool,
    accumulate: bool,
    config: Transform3dConfig | None,
) -> Callable[[Any, Any, Any], None]:
    """What transforms torch tensors x [N, K, K, K] into `out`, call after call, for tensors that lie as these do.

    `out` does not overlap x or matrix. Nothing runs for N = 0.
    """
    problem = problem_of(x, matrix, out, dtype, accumulate=accumulate)
    chosen = checked_config(problem, gpu, config)
    if problem.count == 0:
        return lambda x, matrix, out: None
    schedule = import_module(f".kernels.{chosen.schedule}", __package__)
    if hasattr(schedule, "prepare"):
        return schedule.prepare(problem, chosen, gpu, x, matrix.mT if transpose else matrix, out)
    return lambda x, matrix, out: schedule.launch(problem, chosen, gpu, x, matrix.mT if transpose else matrix, out)


def transform_into(x: Any, matrix: Any, out: Any, dtype: str, gpu: Gpu, **options: Any) -> None:
    """`prepare_transform`, once."""
    prepare_transform(x, matrix, out, dtype, gpu, **options)(x, matrix, out)

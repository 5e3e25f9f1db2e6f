"""The warm path of `gemm` on CUDA tensors, as fast_call.py is `matmul`'s: same kernels, same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..target import active_gpu
from ..warm import MOST_CALLS
from . import execute
from .config import plan
from .dtypes import ACCUMULATORS, Arithmetic
from .fast_call import can_skip_operator

_UNKNOWN = object()
_prepared: dict[tuple[Any, ...], Any] = {}  #: what runs, or None where the operator has to be called

#: of a call: the result's shape and dtype, the project's words for a's, b's and the result's, and how to multiply
Checked = tuple[tuple[int, ...], torch.dtype, tuple[str, str, str], Arithmetic]


def call_prepared_gemm(
    a: torch.Tensor, b: torch.Tensor, terms: tuple[Any, Any, Any, Any], alpha: float, beta: float,
    activation: str | None, out_dtype: torch.dtype | None, precision: str | None, check: Callable[[], Checked],
    differentiate: Callable[..., torch.Tensor],
) -> torch.Tensor | None:  # fmt: skip
    """`gemm` into a new tensor, or None where the operator has to be called. terms: c, bias, scale_a, scale_b or None.

    `check` checks operands that were not met before. Where gradients are recorded the tensor comes from
    `differentiate(a, b, c, bias, (scale_a, scale_b, alpha, beta, activation, precision, run))`, which records them and
    calls `run(a, b, terms, alpha, beta)`.
    """
    if not can_skip_operator(a, b, *terms):
        return None
    key = (
        *((x.shape, x.stride(), x.dtype, x.data_ptr() & 15) if x is not None else None for x in (a, b, *terms)),
        alpha == 1, alpha == 0, activation, out_dtype, precision, a.get_device(),
    )  # fmt: skip
    found = _prepared.get(key, _UNKNOWN)
    if found is _UNKNOWN:
        if len(_prepared) >= MOST_CALLS:
            _prepared.clear()
        found = _prepared[key] = _prepare(a, b, terms, alpha, beta, activation, check())
    if found is None:
        return None
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (a, b, *terms)):
        c, bias, *scales = terms
        return differentiate(a, b, c, bias, (*scales, alpha, beta, activation, precision, found))
    return found(a, b, terms, alpha, beta)


def _terms(
    terms: tuple[Any, Any, Any, Any], alpha: float, beta: float, activation: str | None, names: list[str],
    shape: tuple[int, ...],
) -> execute.Terms:  # fmt: skip
    c, bias, scale_a, scale_b = terms
    return execute.Terms(
        alpha, beta, None if c is None else c.expand(shape), names[0], bias, names[1], "n", activation,
        *(None if x is None else x.reshape(-1) for x in (scale_a, scale_b)),
    )  # fmt: skip


def _prepare(
    a: Any, b: Any, terms: tuple[Any, Any, Any, Any], alpha: float, beta: float, activation: str | None,
    checked: Checked,
) -> Callable[..., torch.Tensor] | None:  # fmt: skip
    """What makes the result of these operands; None for those that the operator has to take."""
    from .torch_op import dtype_name

    shape, dtype, dtypes, arithmetic = checked
    gpu = active_gpu()
    plain = a.ndim == b.ndim == 2 and 0 not in (*a.shape, *b.shape) and alpha != 0
    plain = plain and all(x is None or x.layout == torch.strided for x in (a, b, *terms))
    if not plain or gpu.matrix_instructions != "wgmma" or not all(x is None or x.is_contiguous() for x in terms[2:]):
        return None
    names = ["" if x is None else dtype_name("c", x.dtype) for x in terms[:2]]
    out = a.new_empty(shape, dtype=dtype)
    first = _terms(terms, alpha, beta, activation, names, shape)
    problem = execute.problem_of(a, b, out, dtypes, first, arithmetic)
    if problem is None:
        return None
    if problem.epilogue is None or execute.has_fused_schedule(problem, gpu, None):
        config = plan(problem, gpu)
        product = execute.schedule_of(config).prepare(problem, config, gpu)
        has_epilogue, has_alpha = problem.epilogue is not None, alpha != 1

        def run(a, b, terms, alpha, beta) -> torch.Tensor:
            out = a.new_empty(shape, dtype=dtype)
            if has_epilogue:
                c, bias, scale_a, scale_b = terms
                product(a, b, out, c, bias, alpha if has_alpha else None, None if c is None else beta, scale_a, scale_b)
            else:
                product(a, b, out)
            return out

        return run
    kind = ACCUMULATORS[problem.dtype_a][0]
    sums_dtype = {"fp32": torch.float32, "fp64": torch.float64, "int32": torch.int32}[kind]
    bare = execute.problem_of(a, b, a.new_empty(shape, dtype=sums_dtype), (*dtypes[:2], kind), arithmetic=arithmetic)
    assert bare is not None
    config = plan(bare, gpu)
    multiply = execute.schedule_of(config).prepare(bare, config, gpu)

    def run_with_terms(a, b, terms, alpha, beta) -> torch.Tensor:
        out, sums = a.new_empty(shape, dtype=dtype), a.new_empty(shape, dtype=sums_dtype)
        multiply(a, b, sums)
        execute.apply_terms(sums, out, dtypes[2], _terms(terms, alpha, beta, activation, names, shape), kind)
        return out

    return run_with_terms

"""From checked operands to launches: what a torch tensor and a numpy array have in common from here on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from ...codegen import CodeObject
from ...device.prepared import prepared_on
from ...errors import ArgumentError, UnsupportedError
from ...gpu import Gpu
from ..axes import merge_axes
from ..matmul.dtypes import FLOAT_OUTPUTS, words
from ..matmul.execute import (
    Terms,
    alignment_of,
    apply_terms,
    empty_like,
    matrix_of_groups,
    overlap,
    pointer_to,
    reach_bytes,
    strides_of,
)
from ..matmul.gemm import TERM_DTYPES
from ..matmul.problem import Matrix
from ..target import check_ends_rise
from .config import BaseConfig
from .plan import checked_config
from .problem import QuantizedProblem
from .weight import QuantizedWeight, as_octets


@dataclass(frozen=True)
class Operands:
    """What one product is made of, batch axes as C's: x [..., M, K], values [..., N, bytes], scales and zeros [..., N,
    G], bias [N], C [..., M, N]. zeros and bias may be None.

    Of rows in groups, which end at `ends`: x [M, K], C [M, N], all else with an axis for the groups in front."""

    x: Any
    values: Any
    scales: Any
    zeros: Any
    bias: Any
    out: Any
    ends: Any = None

    @property
    def matrices(self) -> list[Any]:
        """Those with two axes or more, C first."""
        return [x for x in (self.out, self.x, self.values, self.scales, self.zeros) if x is not None]

    def part(self, index: int) -> Operands:
        """Those of one product of the first batch axis."""
        zeros = None if self.zeros is None else self.zeros[index]
        return replace(self, x=self.x[index], values=self.values[index], scales=self.scales[index], zeros=zeros,
                       out=self.out[index])  # fmt: skip


@dataclass(frozen=True)
class Dtypes:
    """The project's words for dtypes of operands, and the group."""

    x: str
    w: str
    scale: str
    out: str
    bias: str
    group: int  #: 0 where a row has one scale

    def problem(self, operands: Operands) -> QuantizedProblem | None:
        """The problem of operands with equal batch axes; None if these need three strides.

        A batch that the weight does not have becomes more rows of X and C, if their strides allow it.
        """
        matrices = operands.matrices
        if operands.ends is not None:
            return self._ragged(operands)
        axes = merge_axes(operands.out.shape[:-2], *(strides_of(x)[:-2] for x in matrices))
        m, n = operands.out.shape[-2:]
        rows = [strides_of(x)[-2] for x in matrices[:2]] + [0] * (len(matrices) - 2)
        if axes and m > 0 and axes[-1][1:] == tuple(m * stride for stride in rows):
            m *= axes.pop()[0]
        if len(axes) > 2:
            return None
        (outer, *outers), (inner, *inners) = [(1,) + (0,) * len(matrices)] * (2 - len(axes)) + axes
        out, x, values, scales, *zeros = (
            Matrix((o, i, strides_of(matrix)[-2], strides_of(matrix)[-1]), alignment_of(matrix))
            for o, i, matrix in zip(outers, inners, matrices, strict=True)
        )
        bias = None if operands.bias is None else (self.bias, strides_of(operands.bias)[0], 0)
        return QuantizedProblem(
            m, n, operands.x.shape[-1], self.x, self.w, self.out, self.scale, self.group, (outer, inner), x, values,
            scales, out, zeros[0] if zeros else None, bias,
        )  # fmt: skip

    def _ragged(self, operands: Operands) -> QuantizedProblem:
        """Of rows in groups."""
        out, x, values, scales, *zeros = map(matrix_of_groups, operands.matrices)
        bias = None
        if operands.bias is not None:
            group, column = strides_of(operands.bias)
            bias = (self.bias, column, group)
        (m, n), (groups, *_), k = operands.out.shape, operands.values.shape, operands.x.shape[-1]
        return QuantizedProblem(
            m, n, k, self.x, self.w, self.out, self.scale, self.group, (1, groups), x, values, scales, out,
            zeros[0] if zeros else None, bias, ragged=True,
        )  # fmt: skip

    def pointers(self, operands: Operands) -> tuple[Any, ...]:
        """What a kernel takes: x, values, scales, zeros, bias, C and ends."""
        scale = operands.scales
        if operands.ends is not None:
            check_ends_rise(operands.ends)
        return (
            pointer_to(operands.x, self.x),
            pointer_to(as_octets(operands.values), "uint8"),
            pointer_to(scale, self.scale) if self.scale not in ("e8m0", "fp8") else pointer_to(as_octets(scale), "u8"),
            None if operands.zeros is None else pointer_to(operands.zeros, "uint8"),
            None if operands.bias is None else pointer_to(operands.bias, self.bias),
            pointer_to(operands.out, self.out),
            None if operands.ends is None else pointer_to(operands.ends, "int32"),
        )


def schedule_of(config: BaseConfig) -> ModuleType:
    """The kernel file of a config."""
    return import_module(f".kernels.{config.schedule}", __package__)


def code_object(problem: QuantizedProblem, gpu: Gpu, config: Any = None) -> CodeObject:
    """The machine code that a call with this problem runs on `gpu`, compiled on any machine."""
    chosen = checked_config(problem, gpu, config)
    if chosen.parts(problem) > 1:
        problem = problem.of_sums()
    return schedule_of(chosen).code_object(problem, chosen, gpu)


def multiply_into(operands: Operands, dtypes: Dtypes, gpu: Gpu, config: Any) -> None:
    """Write C, which is distinct from all others."""
    prepare(operands, dtypes, gpu, config)(operands)


def prepare(operands: Operands, dtypes: Dtypes, gpu: Gpu, config: Any) -> Callable[[Operands], None]:
    """What does `multiply_into` for operands that lie as these do, call after call."""
    if 0 in operands.out.shape:
        return lambda operands: None
    if operands.ends is not None and 0 in (operands.x.shape[-1], len(operands.ends)):
        raise ArgumentError("x: expected at least one column of rows in groups, and at least one group")
    if operands.x.shape[-1] == 0:
        return lambda operands: _write_bias(operands)
    problem = dtypes.problem(operands)
    if problem is None:
        return lambda operands: _each(operands, dtypes, gpu, config)
    chosen = checked_config(problem, gpu, config)
    parts = chosen.parts(problem)
    run = problem if parts == 1 else problem.of_sums()
    schedule = schedule_of(chosen)
    if gpu.vendor == "nvidia":
        launch = prepared_on(schedule.prepare, run, chosen, gpu, operands.out.device)
    else:

        def launch(*pointers: Any) -> None:
            schedule.launch(run, chosen, gpu, *pointers)

    if parts == 1:
        return lambda operands: launch(*dtypes.pointers(operands))
    bare = replace(dtypes, out="fp32")

    def run_parts(operands: Operands) -> None:
        sums = empty_like(operands.out, "fp32", (parts, *operands.out.shape))
        launch(*bare.pointers(replace(operands, bias=None, out=sums)))
        apply_terms(sums, operands.out, dtypes.out, Terms(bias=operands.bias, dtype_bias=dtypes.bias))

    return run_parts


def _write_bias(operands: Operands) -> None:
    """Nothing is multiplied, and no scale is read."""
    bias = operands.bias
    operands.out[...] = 0 if bias is None else bias if isinstance(bias, np.ndarray) else bias.to(operands.out.dtype)


def _each(operands: Operands, dtypes: Dtypes, gpu: Gpu, config: Any) -> None:
    for i in range(operands.out.shape[0]):
        multiply_into(operands.part(i), dtypes, gpu, config)


def result_shape(x: Sequence[int], weight: Sequence[int], broadcast: Any = np.broadcast_shapes) -> tuple[int, ...]:
    """C's shape, of those of x [..., M, K] and W [..., N, K].

    `broadcast` is numpy's function or, for sizes that are symbols, torch's. Raises ArgumentError if they do not fit.
    """
    if len(x) < 2:
        raise ArgumentError(f"x: expected at least 2 axes, got shape {tuple(x)}")
    if x[-1] != weight[-1]:
        raise ArgumentError(f"weight: expected K = {x[-1]}, as many as x has columns, got shape {tuple(weight)}")
    try:
        batch = broadcast(tuple(x[:-2]), tuple(weight[:-2]))
    except (ValueError, RuntimeError):
        raise ArgumentError(
            f"weight: expected batch axes that broadcast with x's {tuple(x[:-2])}, got {tuple(weight[:-2])}"
        ) from None
    return (*batch, x[-2], weight[-2])


def ragged_shape(x: Sequence[int], weight: Sequence[int], ends: Sequence[int], dtype: str) -> tuple[int, ...]:
    """C's shape, of those of x [M, K], W [G, N, K] and ends [G]. Raises ArgumentError if they do not fit."""
    if len(x) != 2 or len(weight) != 3 or x[-1] != weight[-1]:
        got = f"{tuple(x)}, {tuple(weight)}"
        raise ArgumentError(f"ends: expected x [M, K] and a weight [G, N, K] beside it, got {got}")
    if tuple(ends) != (weight[0],) or dtype != "int32":
        got = f"{dtype} of {tuple(ends)}"
        raise ArgumentError(f"ends: expected {weight[0]} numbers of int32, a group's each, got {got}")
    return x[0], weight[-2]


def check_bias(bias_shape: Sequence[int], dtype: str, n: Any, *groups: Any) -> None:
    """Raise ArgumentError, UnsupportedError for what is no bias of n columns, of each of so many groups of rows."""
    if tuple(bias_shape) != (*groups, n):
        each = "column of each group" if groups else "column"
        raise ArgumentError(f"bias: expected shape {(*groups, n)}, one for each {each}, got {tuple(bias_shape)}")
    if dtype not in TERM_DTYPES:
        raise UnsupportedError(f"bias: expected dtype {words(TERM_DTYPES)}, got {dtype}")


def check_output(dtype: str) -> str:
    """The result's dtype. Raises UnsupportedError."""
    if dtype not in FLOAT_OUTPUTS:
        raise UnsupportedError(f"out_dtype: expected {words(FLOAT_OUTPUTS)}, got {dtype}")
    return dtype


def needs_copy(out: Any, *operands: Any) -> bool:
    """Whether out shares memory with an operand, or may."""
    return bool(reach_bytes(out)) and any(x is not None and overlap(out, x) for x in operands)


def weight_operands(weight: QuantizedWeight) -> tuple[Any, Any, Any]:
    """Values, scales and zeros."""
    return weight.values, weight.scales, weight.zeros

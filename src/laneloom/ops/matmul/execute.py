"""From checked operands to launches: what a torch tensor and a numpy array have in common from here on.

An operand is a torch tensor or a numpy array; both are indexed, transposed and filled in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from struct import pack, unpack
from types import ModuleType
from typing import Any

import numpy as np

from ...codegen import CodeObject
from ...emulator.driver import ArrayArgument
from ...errors import ArgumentError, InvalidConfigError, UnsupportedError
from ...gpu import Gpu
from ..axes import merge_axes
from .config import MatmulConfig, NamedPlan, plan
from .config_wmma import WmmaConfig
from .dtypes import IEEE, Arithmetic, outputs, words
from .problem import SCALE_BLOCK, BlockScales, Epilogue, MatmulProblem, Matrix


@dataclass(frozen=True)
class Terms:
    """What one call makes of a product: C = activation(alpha scale_a (A B) scale_b + beta D + bias)."""

    alpha: float = 1.0
    beta: float = 0.0
    addend: Any = None  #: D, expanded to C's shape; None where beta is 0
    dtype_addend: str = ""
    bias: Any = None  #: 1-D
    dtype_bias: str = ""
    bias_axis: str = "n"  #: or "m": the axis of C along which the bias lies
    activation: str | None = None
    #: fp32: contiguous 1-D of one element, or one for each row of C; or of blocks along K, [..., rows, blocks], of any
    #: strides, with C's batch axes
    scale_a: Any = None
    scale_b: Any = None  #: the same, or one for each column of C; or [..., blocks, columns]

    @property
    def in_blocks(self) -> bool:
        """Whether the scales are of blocks along K."""
        return self.scale_a is not None and self.scale_a.ndim > 1

    @property
    def of_blocks(self) -> Terms:
        """What happens to the sums of blocks."""
        return Terms(scale_a=self.scale_a, scale_b=self.scale_b) if self.in_blocks else NO_TERMS

    @property
    def of_sums(self) -> Terms:
        """What happens to the sums of all of K."""
        return replace(self, scale_a=None, scale_b=None) if self.in_blocks else self

    @property
    def epilogue(self) -> Epilogue | None:
        """The problem's part of it, without where D lies; None where C is the bare product."""
        bias = None if self.bias is None else (self.bias_axis, strides_of(self.bias)[0] if len(self.bias) > 1 else 0)
        dtype_bias = self.dtype_bias if bias else ""
        scales = [
            None if scale is None or self.in_blocks else "tensor" if len(scale) == 1 else axis
            for scale, axis in ((self.scale_a, "row"), (self.scale_b, "column"))
        ]
        found = Epilogue(self.alpha != 1, None, self.dtype_addend, bias, dtype_bias, self.activation, *scales)
        return None if found == Epilogue() and self.addend is None else found

    def transposed(self) -> Terms:
        """The terms of C^T."""
        addend = None if self.addend is None else self.addend.swapaxes(-1, -2)
        axis = "m" if self.bias_axis == "n" else "n"
        scales = self.scale_b, self.scale_a
        if self.in_blocks:
            scales = tuple(scale.swapaxes(-1, -2) for scale in scales)
        return replace(self, addend=addend, bias_axis=axis, scale_a=scales[0], scale_b=scales[1])

    def part(self, index: int) -> Terms:
        """The terms of one product of the first batch axis."""
        part = self if self.addend is None else replace(self, addend=self.addend[index])
        if self.in_blocks:
            part = replace(part, scale_a=self.scale_a[index], scale_b=self.scale_b[index])
        return part

    def arguments(self, dtype_acc: str) -> tuple[Any, ...]:
        """Addend, bias, alpha, beta and both scales as kernels take them: None for what is left out.

        alpha and beta of FP64 sums come as the integers that have their bits: Triton takes no FP64 number.
        """
        add = None if self.addend is None else pointer_to(self.addend, self.dtype_addend)
        bias = None if self.bias is None else pointer_to(self.bias, self.dtype_bias)
        alpha, beta = (
            unpack("q", pack("d", x))[0] if dtype_acc == "fp64" else float(x) for x in (self.alpha, self.beta)
        )
        scales = (None if scale is None else pointer_to(scale, "fp32") for scale in (self.scale_a, self.scale_b))
        return add, bias, None if self.alpha == 1 else alpha, None if add is None else beta, *scales


NO_TERMS = Terms()


def strides_of(operand: Any) -> tuple[int, ...]:
    """Strides in elements."""
    if isinstance(operand, np.ndarray):
        return tuple(stride // operand.itemsize for stride in operand.strides)
    return tuple(operand.stride())


def address_of(operand: Any) -> int:
    """Address of its first element."""
    return operand.ctypes.data if isinstance(operand, np.ndarray) else operand.data_ptr()


def reach_bytes(operand: Any) -> int:
    """Bytes from its first element to behind the last; 0 of an operand without elements."""
    if 0 in operand.shape:
        return 0
    reach = sum((n - 1) * s for n, s in zip(operand.shape, strides_of(operand), strict=True))
    return (reach + 1) * operand.dtype.itemsize


def overlap(x: Any, y: Any) -> bool:
    """Whether the address ranges of two operands meet; they may still share no element."""
    if 0 in x.shape or 0 in y.shape:
        return False
    first_x, first_y = address_of(x), address_of(y)
    return first_x < first_y + reach_bytes(y) and first_y < first_x + reach_bytes(x)


def check_distinct(out: Any) -> None:
    """Raise ArgumentError unless out's strides show that no two of its elements share an address."""
    if 0 in out.shape:  # numpy's arrays without elements have strides of 0
        return
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(out.shape, strides_of(out), strict=True) if n > 1):
        if stride <= reach:
            raise ArgumentError(
                f"out: expected strides under which no elements overlap, got shape {tuple(out.shape)} with strides "
                f"{strides_of(out)}"
            )
        reach += (size - 1) * stride


def alignment_of(operand: Any) -> int:
    """The largest power of two up to 16 that divides the operand's address."""
    address = address_of(operand)
    return min(16, address & -address) if address else 16


def matrix_of_groups(operand: Any) -> Matrix:
    """Where [M, N], or [G, M, N] of groups of rows, lies."""
    group, row, column = (0, *strides_of(operand))[-3:]
    return Matrix((0, group, row, column), alignment_of(operand))


def problem_of(
    a: Any, b: Any, out: Any, dtypes: tuple[str, str, str], terms: Terms = NO_TERMS, arithmetic: Arithmetic = IEEE
) -> MatmulProblem | None:
    """The problem of A[..., M, K], B[..., K, N] and C[..., M, N] with equal batch axes; None if these need three
    strides.

    A batch that B does not have becomes more rows of A and C, if their strides allow it.
    """
    operands = [out, a, b] + ([] if terms.addend is None else [terms.addend])
    if terms.in_blocks:
        operands += [terms.scale_a, terms.scale_b]
    axes = merge_axes(out.shape[:-2], *(strides_of(x)[:-2] for x in operands))
    m, n = out.shape[-2:]
    k = a.shape[-1] * (2 if dtypes[0] in ("int4", "uint4") else 1)
    row = [strides_of(x)[-2] for x in operands]
    row[2] = 0  # of B, which is the same for all rows
    by_row = terms.bias is not None and terms.bias_axis == "m"
    by_row |= terms.scale_a is not None and (terms.in_blocks or len(terms.scale_a) > 1)
    if axes and m > 0 and not by_row and axes[-1][1:] == tuple(m * stride for stride in row):
        m *= axes.pop()[0]
    if len(axes) > 2:
        return None
    (outer, *outers), (inner, *inners) = [(1,) + (0,) * len(operands)] * (2 - len(axes)) + axes
    c, first, second, *others = (
        Matrix((o, i, strides_of(x)[-2], strides_of(x)[-1]), alignment_of(x))
        for o, i, x in zip(outers, inners, operands, strict=True)
    )
    epilogue = terms.epilogue
    if epilogue and terms.addend is not None:
        epilogue = replace(epilogue, addend=others[0])
    of_blocks = None
    if terms.in_blocks:
        rows, columns = operands[-2].shape[-2], operands[-1].shape[-1]
        of_blocks = BlockScales(
            others[-2], others[-1], 1 if rows == m else SCALE_BLOCK, 1 if columns == n else SCALE_BLOCK)
    how = (arithmetic.precision, arithmetic.dtype_acc, of_blocks)
    return MatmulProblem(m, n, k, *dtypes, (outer, inner), first, second, c, epilogue, *how)


def schedule_of(config: MatmulConfig) -> ModuleType:
    """The kernel file of a config."""
    return import_module(f".kernels.{config.schedule}", __package__)


def checked_config(problem: MatmulProblem, gpu: Gpu, config: MatmulConfig | NamedPlan | None) -> MatmulConfig:
    """`config`, or the planned one. Raises InvalidConfigError for one that cannot do the problem on the GPU."""
    if config is None:
        return plan(problem, gpu)
    if isinstance(config, NamedPlan):
        config = config.choose(problem, gpu)
    why = config.why_invalid(problem, gpu)
    if why is not None:
        raise InvalidConfigError(f"config {config.text} cannot run: {why}")
    return config


def code_object(problem: MatmulProblem, gpu: Gpu, config: MatmulConfig | NamedPlan | None = None) -> CodeObject:
    """The machine code that a call with this problem runs on `gpu`, compiled on any machine."""
    config = checked_config(problem, gpu, config)
    if config.parts(problem) > 1:
        problem = problem.of_sums()
    return schedule_of(config).code_object(problem, config, gpu)


#: Triton's names of what numpy has no dtypes of its own for
_TYPES_OF_BITS = {"bf16": "bf16", "fp8": "fp8e4nv", "bf8": "fp8e5"}


def pointer_to(operand: Any, dtype: str) -> Any:
    """What Triton takes for a pointer to the operand; bf16 and 8-bit floats come as an array of their bits."""
    if not isinstance(operand, np.ndarray):
        return operand
    if dtype not in _TYPES_OF_BITS:
        return ArrayArgument(operand)
    argument = ArrayArgument(operand.view(f"u{operand.itemsize}"))
    argument.dtype = _TYPES_OF_BITS[dtype]
    return argument


def multiply_into(
    a: Any,
    b: Any,
    out: Any,
    dtypes: tuple[str, str, str],
    gpu: Gpu,
    config: MatmulConfig | NamedPlan | None,
    terms: Terms = NO_TERMS,
    arithmetic: Arithmetic = IEEE,
) -> None:
    """out[..., m, n] = sum over k of a[..., m, k] b[..., k, n] and `terms`; equal batch axes, broadcast ones with
    stride 0.

    out is distinct from a, b, the bias and the scales; it may be the addend. `dtypes` names those of a, b and out.
    """
    if 0 in out.shape:
        return
    if a.shape[-1] == 0 or terms.alpha == 0:
        _check_output(dtypes, terms)
        terms = replace(terms, alpha=1.0, scale_a=None, scale_b=None)
        if terms.epilogue is None:
            out[...] = 0
        else:
            apply_terms(None, out, dtypes[2], terms, "fp64" if dtypes[2] == "fp64" else "fp32")
        return
    # A lane stores neighbours along N: where C is contiguous along M, C^T = B^T A^T is.
    if config is None and strides_of(out)[-2] == 1 and out.shape[-2] > 1 and strides_of(out)[-1] != 1:
        flipped = (dtypes[1], dtypes[0], dtypes[2])
        second, first, turned = (x.swapaxes(-1, -2) for x in (a, b, out))
        multiply_into(first, second, turned, flipped, gpu, None, terms.transposed(), arithmetic)
        return
    problem = problem_of(a, b, out, dtypes, terms, arithmetic)
    if problem is None:
        for i in range(out.shape[0]):
            multiply_into(a[i], b[i], out[i], dtypes, gpu, config, terms.part(i), arithmetic)
        return
    if problem.epilogue and not fuses_epilogue(problem, gpu, config):
        _check_output(dtypes, terms)
        sums = empty_like(out, problem.dtype_sums, out.shape)
        multiply_into(a, b, sums, (*dtypes[:2], problem.dtype_sums), gpu, config, terms.of_blocks, arithmetic)
        apply_terms(sums, out, dtypes[2], terms.of_sums, problem.dtype_sums)
        return
    chosen = checked_config(problem, gpu, config)
    parts = chosen.parts(problem)
    if parts > 1:
        kind = problem.dtype_sums
        sums = empty_like(out, kind, (parts, *out.shape))
        pointers = (pointer_to(x, dtype) for x, dtype in zip((a, b, sums), (*dtypes[:2], kind), strict=True))
        schedule_of(chosen).launch(problem.of_sums(), chosen, gpu, *pointers)
        apply_terms(sums, out, dtypes[2], terms, kind)
        return
    pointers = [pointer_to(x, dtype) for x, dtype in zip((a, b, out), dtypes, strict=True)]
    taken = terms.arguments(problem.dtype_acc) if problem.epilogue or problem.scales else ()
    if isinstance(chosen, WmmaConfig) and (shape := chosen.workspace(problem, gpu)):
        from .kernels import stream_sums

        pieces = pointer_to(empty_like(out, problem.dtype_sums, shape), problem.dtype_sums)
        schedule_of(chosen).launch(problem, chosen, gpu, *pointers, *taken, parts=pieces)
        stream_sums.launch(problem, chosen, gpu, pieces, pointers[2], *taken)
        return
    schedule_of(chosen).launch(problem, chosen, gpu, *pointers, *taken)


def _check_output(dtypes: tuple[str, str, str], terms: Terms) -> None:
    """Raise UnsupportedError for a result that no schedule stores, where none is asked."""
    stored = outputs(dtypes[0], has_terms=terms.epilogue is not None)
    if dtypes[2] not in stored:
        raise UnsupportedError(f"out_dtype: expected {words(stored)}, got {dtypes[2]}")


def fuses_epilogue(problem: MatmulProblem, gpu: Gpu, config: MatmulConfig | NamedPlan | None) -> bool:
    """Whether `config`, or without one a schedule of the plan's choice, applies the problem's epilogue itself; for
    others it is a launch of its own on the sums."""
    if gpu.vendor == "amd":
        return gpu.matrix_instructions != "wmma3" and problem.scales is None
    if gpu.matrix_instructions != "wgmma":
        return False
    if config is None:
        from .plan_hopper import fuses_epilogue as fuses

        return fuses(problem, gpu)
    return isinstance(config, MatmulConfig) and config.why_invalid(problem, gpu) is None


def empty_like(out: Any, dtype: str, shape: Sequence[int]) -> Any:
    """Row-major fp32, fp64 or int32 on out's device."""
    name = {"fp32": "float32", "fp64": "float64"}.get(dtype, dtype)
    if isinstance(out, (np.ndarray, ArrayArgument)):
        return np.empty(shape, name)
    import torch

    return torch.empty(tuple(shape), dtype=getattr(torch, name), device=out.device)


def apply_terms(sums: Any, out: Any, dtype_out: str, terms: Terms, dtype_sums: str = "fp32") -> None:
    """out = activation(alpha scale_a sums scale_b + beta D + bias), of sums of out's shape; None are zeros. One more
    axis in front of them has parts, which are added up in their order.
    """
    from .kernels import epilogue

    if out.ndim > 4:
        for i in range(out.shape[0]):
            apply_terms(None if sums is None else sums[..., i, *[slice(None)] * (out.ndim - 1)], out[i], dtype_out,
                        terms.part(i), dtype_sums)  # fmt: skip
        return
    parts, stride_part = (1, 0) if sums is None or sums.ndim == out.ndim else (sums.shape[0], strides_of(sums)[0])
    pointer = None if sums is None else pointer_to(sums, dtype_sums)
    strides = [None if x is None else _padded(strides_of(x)[-out.ndim :]) for x in (sums, out, terms.addend)]
    sizes = (1,) * (4 - out.ndim) + tuple(out.shape)
    bias = (terms.bias_axis, 0 if terms.bias is None else strides_of(terms.bias)[0])
    arguments = terms.arguments("fp64" if dtype_sums == "fp64" else "fp32")
    scales = terms.epilogue or Epilogue()
    axes = (scales.scale_a, scales.scale_b)
    epilogue.launch(
        sizes,
        strides,
        (parts, stride_part),
        bias,
        axes,
        terms.activation,
        pointer,
        pointer_to(out, dtype_out),
        *arguments,
    )


def _padded(strides: Sequence[int]) -> tuple[int, ...]:
    return (0,) * (4 - len(strides)) + tuple(strides)


def batched_shape(a: Sequence[int], b: Sequence[int], broadcast: Any = np.broadcast_shapes) -> tuple[int, ...]:
    """Shape of the product of operands with two or more axes each, whose batch axes broadcast.

    `broadcast` is numpy's function or, for sizes that are symbols, torch's. Raises ArgumentError if they do not fit.
    """
    if a[-1] != b[-2]:
        raise ArgumentError(f"b: expected {a[-1]} rows, as many as a has columns, got {tuple(a)} and {tuple(b)}")
    try:
        batch = broadcast(tuple(a[:-2]), tuple(b[:-2]))
    except (ValueError, RuntimeError):
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

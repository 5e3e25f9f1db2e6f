"""`laneloom.matmul` and `laneloom.explain`: what users call."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ...gpu import Gpu, get_gpu
from ..target import active_gpu
from . import execute
from .config import MatmulConfig, NamedPlan, plan_with_reasons
from .presets import named_config
from .problem import MatmulProblem

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray

_NAMES = {"float16": "fp16", "float32": "fp32", "float64": "fp64", "int8": "int8", "int32": "int32", "uint8": "uint8"}


def matmul(
    a: Operand,
    b: Operand,
    *,
    out: Operand | None = None,
    out_dtype: Any = None,
    config: MatmulConfig | NamedPlan | str | None = None,
) -> Any:
    """C[..., m, n] = sum over k of A[..., m, k] B[..., k, n].

    a: [..., M, K] or [K]; b: [..., K, N] or [K]. Batch axes broadcast as in torch.matmul, sizes may be 0, K = 0 gives
        zeros. fp16 or bf16, both of one dtype, with any strides. Torch tensors on the GPU that Triton drives, or on
        the CPU inside `laneloom.emulated`; numpy arrays (float16) only there.
    out: where the product goes, of its shape and dtype, with any strides that keep its elements apart. It may
        overlap a or b: the product is then made elsewhere and copied. It takes no part in autograd.
    out_dtype: fp32, fp16 or bf16, given as torch's or numpy's dtype; a's dtype by default.
    config: what runs, a config or a preset's name; by default `plan` chooses, see `explain`.

    Products are exact and sums FP32, in an order that depends on the config alone; one rounding to out_dtype, to
    nearest even. The same call gives the same bits. Gradients are products by the same kernel, of the incoming
    gradient rounded to a's dtype; second derivatives work as well.

    Raises ArgumentError for operands that do not fit together, UnsupportedError for what no schedule can do,
    InvalidConfigError for a config that cannot do this product.
    Source: AMD RDNA 3 and RDNA 4 ISA guides, WMMA instructions.
    """
    config = named_config(config)
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(x, torch.Tensor) for x in (a, b, out)):
        from .torch_op import matmul_tensors

        return matmul_tensors(a, b, out, out_dtype, config)
    for name, operand in (("a", a), ("b", b), ("out", out)):
        if not isinstance(operand, np.ndarray) and (name != "out" or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor or a numpy array, got {type(operand).__name__}")
    return _matmul_arrays(a, b, out, out_dtype, config)


def dtype_name(name: str, dtype: np.dtype) -> str:
    """The project's word for a dtype; raises UnsupportedError, naming the argument, for one that it has none for."""
    if dtype.name not in _NAMES:
        raise UnsupportedError(f"{name}: expected dtype float16, got {dtype}")
    return _NAMES[dtype.name]


def addressable(array: np.ndarray) -> bool:
    """Whether a kernel can walk over the array where it lies: native byte order, whole and non-negative strides."""
    size = array.itemsize
    return (
        array.dtype.isnative
        and array.ctypes.data % size == 0
        and all(step >= 0 and step % size == 0 for step, n in zip(array.strides, array.shape, strict=True) if n > 1)
    )


def _matmul_arrays(a: Any, b: Any, out: Any, out_dtype: Any, config: MatmulConfig | NamedPlan | None) -> Any:
    gpu = active_gpu()
    if not gpu.emulated:
        raise UnsupportedError(
            f"a: expected a torch tensor on {gpu.name}, got a numpy array, which only `laneloom.emulated` takes"
        )
    for name, array in (("a", a), ("b", b), ("out", out)):
        if isinstance(array, np.ma.MaskedArray):
            raise UnsupportedError(f"{name}: expected an array without a mask, got a MaskedArray")
    wanted = np.dtype(a.dtype.newbyteorder("=") if out_dtype is None else out_dtype)
    dtypes = (dtype_name("a", a.dtype), dtype_name("b", b.dtype), dtype_name("out_dtype", wanted))
    a, b, extra = execute.as_matrices(a, b)
    shape = execute.batched_shape(a.shape, b.shape)
    visible = tuple(np.squeeze(np.empty(shape, np.bool_), extra).shape)
    a, b = (x if addressable(x) else np.ascontiguousarray(x, x.dtype.newbyteorder("=")) for x in (a, b))
    target = out
    if out is not None:
        if out.shape != visible or out.dtype != wanted:
            raise ArgumentError(f"out: expected shape {visible} and {wanted}, got {out.shape} and {out.dtype}")
        if not out.flags.writeable:
            raise ArgumentError("out: expected an array that can be written, got a read-only one")
        if addressable(out):
            execute.check_distinct(out)
        if not addressable(out) or execute.overlap(out, a) or execute.overlap(out, b):
            target = None
    result = np.empty(shape, wanted) if target is None else np.expand_dims(target, extra)
    a, b = (np.broadcast_to(x, (*shape[:-2], *x.shape[-2:])) for x in (a, b))
    execute.multiply_into(a, b, result, dtypes, gpu, config)
    if out is None:
        return np.squeeze(result, extra)[()]
    if target is None:
        out[...] = np.squeeze(result, extra)
    return out


@dataclass(frozen=True)
class Explanation:
    """What a product runs as on one GPU, and why."""

    problem: MatmulProblem
    gpu: Gpu
    config: MatmulConfig
    reason: str  #: why this config came first
    facts: tuple[str, ...]  #: what the operands' sizes and strides made of it
    passed_over: tuple[tuple[str, str], ...]  #: configs that came before, each with why it cannot run

    def __str__(self) -> str:
        lines = [f"{self.problem.key} on {self.gpu.name}: {self.config.text}", f"  because: {self.reason}"]
        lines += [f"  {fact}" for fact in self.facts]
        lines += [f"  not {text}: {why}" for text, why in self.passed_over]
        return "\n".join(lines)


def explain(
    a: Operand | MatmulProblem,
    b: Operand | None = None,
    *,
    out_dtype: Any = None,
    gpu: str | Gpu | None = None,
    config: MatmulConfig | NamedPlan | str | None = None,
) -> Explanation:
    """What `matmul(a, b)` runs, without running it; a may be a MatmulProblem in place of both operands.

    gpu: by default the one that the call would run on. Raises as `matmul` does.
    """
    row = active_gpu() if gpu is None else get_gpu(gpu)
    problem = a if isinstance(a, MatmulProblem) else _problem_of_operands(a, b, out_dtype)
    config = named_config(config)
    extra = []
    if problem.epilogue and not execute.fuses_epilogue(row):
        extra.append(f"a launch of its own makes C of FP32 sums: {problem.epilogue.key.replace('+', ', ')}")
        problem = replace(problem, epilogue=None, dtype_out="fp32")
    planned = None if config else plan_with_reasons(problem, row)
    chosen = planned.config if planned else execute.checked_config(problem, row, config)
    passed_over = planned.passed_over if planned else ()
    schedule = execute.schedule_of(chosen)
    return Explanation(
        problem,
        row,
        chosen,
        planned.reason if planned else "it was asked for",
        (*schedule.facts(problem, chosen, row), *extra),
        tuple((other.text, why) for other, why in passed_over),
    )


def _problem_of_operands(a: Any, b: Any, out_dtype: Any) -> MatmulProblem:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        name: Any = dtype_name
        module: Any = np
        wanted = np.dtype(a.dtype if out_dtype is None else out_dtype)
    else:
        from . import torch_op

        name = torch_op.dtype_name

        module = sys.modules["torch"]
        wanted = a.dtype if out_dtype is None else out_dtype
    dtypes = (name("a", a.dtype), name("b", b.dtype), name("out_dtype", wanted))
    a, b, _ = execute.as_matrices(a, b)
    shape = execute.batched_shape(tuple(a.shape), tuple(b.shape))
    a, b = (module.broadcast_to(x, (*shape[:-2], *x.shape[-2:])) for x in (a, b))
    out = np.lib.stride_tricks.as_strided(np.empty(1, np.uint16), shape, _row_major(shape))
    problem = execute.problem_of(a, b, out, dtypes)
    if problem is None:
        raise UnsupportedError(f"a: its batch axes {shape[:-2]} take several launches, explain one of them")
    return problem


def _row_major(shape: tuple[int, ...]) -> list[int]:
    return [2 * int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]

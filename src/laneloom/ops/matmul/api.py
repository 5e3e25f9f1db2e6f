"""`laneloom.matmul` and `laneloom.explain`: what users call."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ...gpu import Gpu, get_gpu
from ..scalars import shown
from ..target import active_gpu, gpu_for_arrays
from ..traced import loaded
from . import execute
from .config import MatmulConfig, NamedPlan, plan_with_reasons
from .dtypes import Arithmetic, Int4, check_arithmetic, check_pair, default_output, unwrap
from .presets import named_config
from .problem import MatmulProblem

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray | Int4

_NAMES = {
    "float16": "fp16", "float32": "fp32", "float64": "fp64", "int8": "int8", "int32": "int32", "uint8": "uint8",
    "bfloat16": "bf16", "float8_e4m3fn": "fp8", "float8_e5m2": "bf8",  # ml_dtypes'
}  # fmt: skip
_ARRAYS = {name: array for array, name in _NAMES.items()}
_ON_TENSORS = f"{__package__}.torch_op"  #: the module that needs torch


def matmul(
    a: Operand,
    b: Operand,
    *,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    acc_dtype: Any = None,
    config: MatmulConfig | NamedPlan | str | None = None,
) -> Any:
    """C[..., m, n] = sum over k of A[..., m, k] B[..., k, n].

    a: [..., M, K] or [K]; b: [..., K, N] or [K]. Batch axes broadcast as in torch.matmul, sizes may be 0, K = 0 gives
        zeros. Any strides. fp16, bf16, fp32 or fp64, both of one dtype; int8 and uint8, fp8 (float8_e4m3fn) and bf8
        (float8_e5m2) in every pairing; 4-bit integers as `laneloom.Int4`. Torch tensors on the GPU that Triton drives,
        or on the CPU inside `laneloom.emulated`; numpy arrays only there. What a GPU has no schedule for is refused.
    out: where the product goes, of its shape and dtype, with any strides that keep its elements apart. It may
        overlap a or b: the product is then made elsewhere and copied. It takes no part in autograd.
    out_dtype: torch's or numpy's dtype. a's by default, for fp8 fp32, for integers int32. Halves, fp32, fp8: fp32, fp16
        or bf16. fp64: fp64 or fp32. Integers: int32, fp32, fp16 or bf16.
    precision: of fp32 operands. None or "ieee": FP32 products and sums. "tf32", "3xtf32", "3xbf16": the matrix
        instructions of a GPU that has them, with about 11, 21 and 22 bits of a product right. Of fp8 and bf8:
        "promoted", sums leave Hopper's tensor cores every 128 of K and are added in FP32, as elsewhere anyhow.
    acc_dtype: what is summed in. None: fp32, fp64 for fp64, int32 for integers. fp16 for fp16 and bf16 for bf16, where
        the GPU has such an instruction: every step rounds.
    config: what runs, a config or a preset's name; by default `plan` chooses, see `explain`.

    Products of halves and 8-bit floats are exact and their sums FP32, in an order that depends on the config alone
    (Hopper's tensor cores keep about 14 bits of sums of 8-bit floats: see `precision`); one rounding to out_dtype, to
    nearest even.
    Integer sums are exact modulo 2**32. The same call gives the same bits.
    Gradients are products by the same kernels, of the incoming gradient rounded to a's dtype; second derivatives work
    as well; fp8 and bf8 operands have none.

    Raises ArgumentError for operands that do not fit together, UnsupportedError for what no schedule can do,
    InvalidConfigError for a config that cannot do this product.
    Source: AMD RDNA 3 and RDNA 4 ISA guides, WMMA instructions.
    """
    config = named_config(config)
    a, b, packed = unwrap(a, b)
    torch = sys.modules.get("torch")
    # Not a loop, nor an import at each call: a microsecond is a tenth of a warm call.
    if torch is not None and (
        isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) or isinstance(out, torch.Tensor)
    ):
        torch_op = loaded(_ON_TENSORS)
        if torch_op is None:
            from . import torch_op
        return torch_op.matmul_tensors(a, b, out, out_dtype, config, precision, acc_dtype, packed)
    for name, operand in (("a", a), ("b", b), ("out", out)):
        if not isinstance(operand, np.ndarray) and (name != "out" or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor or a numpy array, got {type(operand).__name__}")
    return _matmul_arrays(a, b, out, out_dtype, config, precision, acc_dtype, packed)


def dtype_name(name: str, dtype: np.dtype) -> str:
    """The project's word for a dtype; raises UnsupportedError, naming the argument, for one that it has none for."""
    if dtype.name not in _NAMES:
        known = [x for x in _NAMES if x != "int32" or name not in ("a", "b")]  # int32 is a result's
        raise UnsupportedError(f"{name}: expected dtype {', '.join(known)}, got {dtype}")
    return _NAMES[dtype.name]


def known_name(dtype: np.dtype) -> str:
    """The project's word for a dtype, or numpy's."""
    return _NAMES.get(dtype.name, dtype.name)


def numpy_dtype(name: str, asked: Any) -> np.dtype:
    """numpy's dtype that an argument means, in the machine's byte order. Raises ArgumentError."""
    try:
        return np.dtype(asked).newbyteorder("=")
    except (TypeError, ValueError):  # the latter of what has a `dtype` that is none of numpy's
        what = "a dtype of numpy's, as the operands are arrays"
        raise ArgumentError(f"{name}: expected {what}, got {shown(asked)}") from None


def operand_dtypes(a: np.ndarray, b: np.ndarray, packed: tuple[str, str] | None) -> tuple[str, str]:
    """The dtypes of two operands that go together. Raises ArgumentError, UnsupportedError."""
    names = packed or (dtype_name("a", a.dtype), dtype_name("b", b.dtype))
    check_pair(*names)
    return names


def arithmetic_of(dtype_a: str, precision: str | None, acc_dtype: Any) -> Arithmetic:
    """The checked `precision` and `acc_dtype` of a call on arrays, the latter numpy's dtype or the project's word."""
    acc = acc_dtype
    if acc is not None and not (isinstance(acc, str) and acc in ("fp16", "bf16", "fp32", "fp64", "int32")):
        acc = dtype_name("acc_dtype", numpy_dtype("acc_dtype", acc_dtype))
    return check_arithmetic(dtype_a, precision, acc)


def output_dtype(a: np.ndarray, dtype_a: str, asked: Any, has_terms: bool) -> np.dtype:
    """numpy's dtype of the result: the asked one, or the default."""
    if asked is not None:
        return numpy_dtype("out_dtype", asked)
    wanted = default_output(dtype_a, has_terms)
    return a.dtype.newbyteorder("=") if wanted == dtype_a else np.dtype(_ARRAYS[wanted])


def addressable(array: np.ndarray) -> bool:
    """Whether a kernel can walk over the array where it lies: native byte order, whole and non-negative strides."""
    size = array.itemsize
    return (
        array.dtype.isnative
        and array.ctypes.data % size == 0
        and all(step >= 0 and step % size == 0 for step, n in zip(array.strides, array.shape, strict=True) if n > 1)
    )


def addressed(array: np.ndarray) -> np.ndarray:
    """The array, or a copy where a kernel cannot walk over it."""
    return array if addressable(array) else np.array(array, array.dtype.newbyteorder("="), order="C")


def check_array_out(out: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise ArgumentError for an `out` that a result of this shape and dtype cannot go into."""
    if out.shape != shape or out.dtype != dtype:
        raise ArgumentError(f"out: expected shape {shape} and {dtype}, got {out.shape} and {out.dtype}")
    if not out.flags.writeable:
        raise ArgumentError("out: expected an array that can be written, got a read-only one")


def _matmul_arrays(a, b, out, out_dtype, config, precision, acc_dtype, packed) -> Any:
    gpu = gpu_for_arrays(a=a, b=b, out=out)
    names = operand_dtypes(a, b, packed)
    arithmetic = arithmetic_of(names[0], precision, acc_dtype)
    wanted = output_dtype(a, names[0], out_dtype, has_terms=False)
    dtypes = (*names, dtype_name("out_dtype", wanted))
    a, b, extra = execute.as_matrices(a, b)
    shape = execute.batched_shape(a.shape, b.shape)
    visible = tuple(np.squeeze(np.empty(shape, np.bool_), extra).shape)
    a, b = addressed(a), addressed(b)
    target = out
    if out is not None:
        check_array_out(out, visible, wanted)
        if addressable(out):
            execute.check_distinct(out)
        if not addressable(out) or execute.overlap(out, a) or execute.overlap(out, b):
            target = None
    result = np.empty(shape, wanted) if target is None else np.expand_dims(target, extra)
    a, b = (np.broadcast_to(x, (*shape[:-2], *x.shape[-2:])) for x in (a, b))
    execute.multiply_into(a, b, result, dtypes, gpu, config, arithmetic=arithmetic)
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
    source: str = "cost model"  #: who chose: or "tuned, exact", "tuned, nearest", "asked for"

    def __str__(self) -> str:
        lines = [f"{self.problem.key} on {self.gpu.name}: {self.config.text}", f"  {self.source}: {self.reason}"]
        lines += [f"  {fact}" for fact in self.facts]
        lines += [f"  not {text}: {why}" for text, why in self.passed_over]
        return "\n".join(lines)


def explain(
    a: Operand | MatmulProblem,
    b: Operand | None = None,
    *,
    out_dtype: Any = None,
    precision: str | None = None,
    acc_dtype: Any = None,
    gpu: str | Gpu | None = None,
    config: MatmulConfig | NamedPlan | str | None = None,
) -> Explanation:
    """What `matmul(a, b)` runs, without running it; a may be a MatmulProblem in place of both operands.

    gpu: by default the one that the call would run on. Of a product without elements or terms, for which nothing is
    multiplied, it is what one of each would run. Raises as `matmul` does.
    """
    row = active_gpu() if gpu is None else get_gpu(gpu)
    asked = a if isinstance(a, MatmulProblem) else _problem_of_operands(a, b, out_dtype, precision, acc_dtype)
    problem, config = asked.with_elements(), named_config(config)
    nothing = problem != asked
    extra = []
    if problem.epilogue and not execute.fuses_epilogue(problem, row, config):
        sums = problem.dtype_sums
        extra.append(f"a launch of its own makes C of {sums} sums: {problem.epilogue.key.replace('+', ', ')}")
        problem = replace(problem, epilogue=None, dtype_out=sums)
    planned = None if config else plan_with_reasons(problem, row)
    chosen = planned.config if planned else execute.checked_config(problem, row, config)
    passed_over = planned.passed_over if planned else ()
    facts = (*_facts(problem, chosen, row), *extra)
    if nothing:
        no_result = 0 in (*asked.batch, asked.m, asked.n)
        facts = ("C has no elements: nothing runs" if no_result else "K = 0: C is its terms or zeros",)
        problem = asked
    return Explanation(
        problem,
        row,
        chosen,
        planned.reason if planned else "it was asked for",
        facts,
        tuple((other.text, why) for other, why in passed_over),
        planned.source if planned else "asked for",
    )


def _facts(problem: MatmulProblem, config: MatmulConfig, gpu: Gpu) -> Sequence[str]:
    """What sizes and strides made of the launch, as sentences."""
    try:
        return execute.schedule_of(config).facts(problem, config, gpu)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return ["what this schedule's launches look like is said where PyTorch is, on whose tensors alone it runs"]


def _problem_of_operands(a: Any, b: Any, out_dtype: Any, precision: str | None, acc_dtype: Any) -> MatmulProblem:
    a, b, packed = unwrap(a, b)
    kind = np.ndarray if isinstance(a, np.ndarray) else getattr(sys.modules.get("torch"), "Tensor", np.ndarray)
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, kind):
            known = "numpy array, as a is" if kind is np.ndarray else "torch tensor, as a is"
            known = "torch tensor or a numpy array" if name == "a" else known
            raise ArgumentError(f"{name}: expected a {known}, got {type(x).__name__}")
    if kind is np.ndarray:
        module: Any = np
        names = operand_dtypes(a, b, packed)
        arithmetic = arithmetic_of(names[0], precision, acc_dtype)
        dtypes = (*names, dtype_name("out_dtype", output_dtype(a, names[0], out_dtype, has_terms=False)))
    else:
        from . import torch_op

        module = sys.modules["torch"]
        names = torch_op.check(a, b, packed)  # pyright: ignore[reportArgumentType]
        arithmetic = torch_op.arithmetic_of(names[0], precision, acc_dtype)
        dtypes = (*names, torch_op.dtype_name("out_dtype", torch_op.output_dtype(names[0], out_dtype)))
    a, b, _ = execute.as_matrices(a, b)
    shape = execute.batched_shape(tuple(a.shape), tuple(b.shape))
    a, b = (module.broadcast_to(x, (*shape[:-2], *x.shape[-2:])) for x in (a, b))
    out = np.lib.stride_tricks.as_strided(np.empty(1, np.uint16), shape, _row_major(shape))
    problem = execute.problem_of(a, b, out, dtypes, arithmetic=arithmetic)
    if problem is None:
        raise UnsupportedError(f"a: its batch axes {shape[:-2]} take several launches, explain one of them")
    return problem


def _row_major(shape: tuple[int, ...]) -> list[int]:
    return [2 * int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]

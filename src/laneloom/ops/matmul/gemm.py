"""`laneloom.gemm`: the product with alpha, beta, bias and activation in its epilogue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..target import active_gpu
from . import execute
from .api import addressable, dtype_name
from .config import MatmulConfig, NamedPlan
from .presets import named_config
from .problem import ACTIVATIONS

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray

TERM_DTYPES = ("fp32", "fp16", "bf16")


def gemm(
    a: Operand,
    b: Operand,
    c: Operand | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Operand | None = None,
    activation: str | None = None,
    out: Operand | None = None,
    out_dtype: Any = None,
    config: MatmulConfig | NamedPlan | str | None = None,
) -> Any:
    """activation(alpha A B + beta C + bias), over the last two axes.

    a: [..., M, K]; b: [..., K, N]; as for `matmul`, but with two axes at least.
    c: broadcasts to the result's shape [..., M, N]; fp32, fp16 or bf16, any strides. It is read if beta is not 0, and
        never otherwise: NaN in it does not show. Without it C is 0, whatever beta is.
    alpha: if 0, A and B are not read, as in BLAS.
    bias: [N], added to every row; fp32, fp16 or bf16.
    activation: None, "relu", "gelu" (exact, by erf) or "silu".
    out: where the result goes, of its shape and dtype, with any strides that keep its elements apart. It may be c: each
        element of c is read before the same element of out is written. Where out shares memory with an operand in any
        other way, the result is made elsewhere and copied. It takes no part in autograd.
    out_dtype: fp32, fp16 or bf16; out's by default, else a's.
    config: what runs, a config or a preset's name; by default `plan` chooses.

    Sums, alpha, beta, bias and activation are FP32; one rounding to out_dtype, to nearest even. The same call gives the
    same bits. Gradients reach a, b, c and bias; those of gelu and silu compute alpha A B + beta C + bias once more.
    On AMD RDNA the terms are the epilogue of the product's kernel; on Hopper they are a launch of their own on FP32
    sums, and `explain` says so.

    Raises ArgumentError for operands that do not fit together, UnsupportedError for what no schedule can do,
    InvalidConfigError for a config that cannot do this product.
    Source: BLAS, GEMM; AMD RDNA 3 and RDNA 4 ISA guides, WMMA instructions.
    """
    if activation is not None and activation not in ACTIVATIONS:
        words = ", ".join(map(repr, ACTIVATIONS))
        raise ArgumentError(f"activation: expected None, {words}, got {activation!r}")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, complex) or not isinstance(value, (int, float, np.floating, np.integer)):
            raise ArgumentError(f"{name}: expected a real number, got {value!r}")
    config = named_config(config)
    torch = sys.modules.get("torch")
    operands = {"a": a, "b": b, "c": c, "bias": bias, "out": out}
    if torch is not None and any(isinstance(x, torch.Tensor) for x in operands.values()):
        from .torch_gemm import gemm_tensors

        return gemm_tensors(operands, float(alpha), float(beta), activation, out_dtype, config)
    for name, operand in operands.items():
        if not isinstance(operand, np.ndarray) and (name in ("a", "b") or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor or a numpy array, got {type(operand).__name__}")
        if isinstance(operand, np.ma.MaskedArray):
            raise UnsupportedError(f"{name}: expected an array without a mask, got a MaskedArray")
    return _gemm_arrays(a, b, c, bias, out, float(alpha), float(beta), activation, out_dtype, config)


def check_shapes(a: Any, b: Any, c: Any, bias: Any, out: Any, broadcast: Any = np.broadcast_shapes) -> tuple[int, ...]:
    """The result's shape, of the operands' shapes. Raises ArgumentError where they do not fit together."""
    for name, shape in (("a", a), ("b", b)):
        if len(shape) < 2:
            raise ArgumentError(f"{name}: expected at least 2 axes, got shape {tuple(shape)}")
    result = execute.batched_shape(a, b, broadcast)
    if c is not None:
        try:
            fits = tuple(broadcast(tuple(c), result)) == result
        except (ValueError, RuntimeError):
            fits = False
        if not fits:
            raise ArgumentError(f"c: expected a shape that broadcasts to {result}, got {tuple(c)}")
    if bias is not None and tuple(bias) != result[-1:]:
        raise ArgumentError(f"bias: expected shape {result[-1:]}, one for each column, got {tuple(bias)}")
    if out is not None and tuple(out) != result:
        raise ArgumentError(f"out: expected shape {result}, got {tuple(out)}")
    return result


def check_term(name: str, dtype: str) -> str:
    """The dtype, if an addend or a bias may have it; raises UnsupportedError."""
    if dtype not in TERM_DTYPES:
        raise UnsupportedError(f"{name}: expected dtype fp32, fp16 or bf16, got {dtype}")
    return dtype


def is_same_place(x: Any, y: Any) -> bool:
    """Whether two operands of one shape and dtype have every element at the same address."""
    return execute.address_of(x) == execute.address_of(y) and all(
        s == t or n == 1 for s, t, n in zip(execute.strides_of(x), execute.strides_of(y), x.shape, strict=True)
    )


def needs_copy(out: Any, a: Any, b: Any, addend: Any, bias: Any) -> bool:
    """Whether the result has to be made elsewhere and copied to out. `addend` is expanded to out's shape."""
    if any(x is not None and execute.overlap(out, x) for x in (a, b, bias)):
        return True
    if addend is None or not execute.overlap(out, addend):
        return False
    return addend.dtype != out.dtype or not is_same_place(out, addend)


def _addressed(array: np.ndarray) -> np.ndarray:
    """The array, or a copy where a kernel cannot walk over it."""
    return array if addressable(array) else np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _gemm_arrays(a, b, c, bias, out, alpha, beta, activation, out_dtype, config) -> Any:
    gpu = active_gpu()
    if not gpu.emulated:
        raise UnsupportedError(
            f"a: expected a torch tensor on {gpu.name}, got a numpy array, which only `laneloom.emulated` takes"
        )
    shape = check_shapes(*(None if x is None else x.shape for x in (a, b, c, bias, out)))
    wanted = np.dtype(out_dtype) if out_dtype is not None else (a if out is None else out).dtype.newbyteorder("=")
    dtypes = (dtype_name("a", a.dtype), dtype_name("b", b.dtype), dtype_name("out_dtype", wanted))
    if out is not None and out.dtype != wanted:
        raise ArgumentError(f"out: expected dtype {wanted}, got {out.dtype}")
    if out is not None and not out.flags.writeable:
        raise ArgumentError("out: expected an array that can be written, got a read-only one")
    addend = None if c is None or beta == 0 else c
    term_dtypes = [
        "" if x is None else check_term(name, dtype_name(name, x.dtype)) for name, x in (("c", c), ("bias", bias))
    ]
    a, b, bias = (None if x is None else _addressed(x) for x in (a, b, bias))
    addend = None if addend is None else np.broadcast_to(_addressed(addend), shape)
    result = out
    if out is not None and addressable(out):
        execute.check_distinct(out)
    if out is None or not addressable(out) or needs_copy(out, a, b, addend, bias):
        result = np.empty(shape, wanted)
    a, b = (np.broadcast_to(x, (*shape[:-2], *x.shape[-2:])) for x in (a, b) if x is not None)
    terms = execute.Terms(
        alpha, beta, addend, term_dtypes[0] if addend is not None else "", bias, term_dtypes[1], "n", activation
    )
    execute.multiply_into(a, b, result, dtypes, gpu, config, terms)
    if out is not None and result is not out:
        out[...] = result
        return out
    return result

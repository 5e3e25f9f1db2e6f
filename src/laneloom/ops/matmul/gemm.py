"""`laneloom.gemm`: the product with scales, alpha, beta, bias and activation in its epilogue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..scalars import is_number, shown, to_float
from ..target import gpu_for_arrays
from ..traced import loaded
from . import execute
from .api import addressable, addressed, arithmetic_of, dtype_name, known_name, operand_dtypes, output_dtype
from .config import MatmulConfig, NamedPlan
from .dtypes import Int4, unwrap
from .presets import named_config
from .problem import ACTIVATIONS, SCALE_BLOCK

if TYPE_CHECKING:
    import torch

    Term = torch.Tensor | np.ndarray
    Operand = Term | Int4

_ON_TENSORS = f"{__package__}.torch_gemm"  #: the module that needs torch
OPERANDS = ("a", "b", "c", "bias", "out", "scale_a", "scale_b")
TERM_DTYPES = ("fp32", "fp16", "bf16")


def gemm(
    a: Operand,
    b: Operand,
    c: Term | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Term | None = None,
    activation: str | None = None,
    scale_a: float | Term | None = None,
    scale_b: float | Term | None = None,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    acc_dtype: Any = None,
    config: MatmulConfig | NamedPlan | str | None = None,
) -> Any:
    """activation(alpha scale_a[:, None] (A B) scale_b[None, :] + beta C + bias), over the last two axes.

    Of fp8 and bf8, blocks of 128 along K may have scales of their own: in place of scale_a (A B) scale_b then

        sum over blocks x of K: scale_a[m, x] (sum over k in x of A[m, k] B[k, n]) scale_b[x, n].

    a: [..., M, K]; b: [..., K, N]; as for `matmul`, but with two axes at least.
    scale_a: a number, or fp32 with one element or, one for each row of A, [M] or [M, 1]: what A was divided by before
        it was rounded to few bits. scale_b: the same, one for each column of B, [N] or [1, N].
        Of blocks: scale_a [..., M, X] with X = ceil(K / 128), or one for 128 rows, [..., ceil(M / 128), X]; scale_b
        [..., X, N] or [..., X, ceil(N / 128)]; any strides, batch axes broadcast. Both or neither; `quantize_blocks`
        makes them.
    c: broadcasts to the result's shape [..., M, N]; fp32, fp16 or bf16 (fp64 if a is), any strides. It is read if beta
        is not 0, and never otherwise: NaN in it does not show. Without it C is 0, whatever beta is.
    alpha: if 0, A, B and their scales are not read, as in BLAS.
    bias: [N], added to every row; fp32, fp16 or bf16 (fp64 if a is).
    activation: None, "relu", "gelu" (exact, by erf) or "silu".
    out: where the result goes, of its shape and dtype, with any strides that keep its elements apart. It may be c: each
        element of c is read before the same element of out is written. Where out shares memory with an operand in any
        other way, the result is made elsewhere and copied. It takes no part in autograd.
    out_dtype: as for `matmul`; out's by default, else a's, and fp32 for operands of 8 or 4 bits. Integer operands give
        int32 only where nothing is scaled or added.
    precision, acc_dtype: as for `matmul`.
    config: what runs, a config or a preset's name; by default `plan` chooses.

    Scales, alpha, beta, bias and activation are FP32 (FP64 for fp64); one rounding to out_dtype, to nearest even. Sums
    of blocks that have scales are multiplied and added in FP32.
    The same call gives the same bits. Gradients reach a, b, c and bias, not the scales; those of gelu and silu compute
    once more what they are applied to. Where a schedule has no epilogue, the terms are a launch of their own on its
    sums; `explain` says so.

    Raises ArgumentError for operands that do not fit together, UnsupportedError for what no schedule can do,
    InvalidConfigError for a config that cannot do this product.
    Source: BLAS, GEMM; AMD RDNA 3 and RDNA 4 ISA guides, WMMA instructions; DeepSeek-AI, "DeepSeek-V3 Technical Report"
    (scales of blocks).
    """
    if activation is not None and not (isinstance(activation, str) and activation in ACTIVATIONS):
        words = ", ".join(map(repr, ACTIVATIONS))
        raise ArgumentError(f"activation: expected None, {words}, got {shown(activation)}")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if type(value) is float:
            continue
        if isinstance(value, complex) or not isinstance(value, (int, float, np.floating, np.integer)):
            raise ArgumentError(f"{name}: expected a real number, got {shown(value)}")
    config = named_config(config)
    a, b, packed = unwrap(a, b)
    torch = sys.modules.get("torch")
    alpha, scale_a, scale_b = folded_scales(to_float("alpha", alpha), scale_a, scale_b)
    beta = to_float("beta", beta)
    operands = (a, b, c, bias, out, scale_a, scale_b)
    if torch is not None and (isinstance(a, torch.Tensor) or any(isinstance(x, torch.Tensor) for x in operands)):
        torch_gemm = loaded(_ON_TENSORS)
        if torch_gemm is None:
            from . import torch_gemm
        how = (precision, acc_dtype, packed)
        return torch_gemm.gemm_tensors(operands, alpha, beta, activation, out_dtype, config, how)
    for name, operand in zip(OPERANDS, operands, strict=True):
        if not isinstance(operand, np.ndarray) and (name in ("a", "b") or operand is not None):
            raise ArgumentError(f"{name}: expected a torch tensor or a numpy array, got {type(operand).__name__}")
    how = (precision, acc_dtype, packed)
    arguments = (alpha, beta, activation, out_dtype, config, how)
    return _gemm_arrays(a, b, c, bias, out, scale_a, scale_b, *arguments)


def folded_scales(alpha: float, scale_a: Any, scale_b: Any) -> tuple[float, Any, Any]:
    """alpha with the scales that are numbers in it, and the other scales."""
    if scale_a is scale_b is None:
        return alpha, None, None
    if is_number(scale_a):
        alpha, scale_a = alpha * to_float("scale_a", scale_a), None
    if is_number(scale_b):
        alpha, scale_b = alpha * to_float("scale_b", scale_b), None
    return alpha, scale_a, scale_b


def check_scales(scale_a: Any, scale_b: Any, shape: Sequence[int], k: int, broadcast: Any) -> None:
    """Raise ArgumentError for shapes of scales that are neither one number nor one for each row or column of a result
    of `shape`, nor both of blocks along k."""
    m, n = shape[-2:]
    blocks = -(-k // SCALE_BLOCK)
    if not in_blocks(scale_a, scale_b, m, n):
        return
    for name, scale, size, what in (("scale_a", scale_a, m, "row"), ("scale_b", scale_b, n, "column")):
        if scale is not None and len(scale) == 1 and tuple(scale) not in ((1,), (size,)):
            raise ArgumentError(
                f"{name}: expected a number, one element, one for each {what} in shape ({size},), or scales of blocks "
                f"along K, got {tuple(scale)}"
            )
    for name, scale, size in (("scale_a", scale_a, m), ("scale_b", scale_b, n)):
        several = -(-size // SCALE_BLOCK)
        known = [(x, blocks) if name == "scale_a" else (blocks, x) for x in (size, several)]
        if scale is None or tuple(scale)[-2:] not in known or not _reaches(scale[:-2], shape[:-2], broadcast):
            got = "none, or a number" if scale is None else tuple(scale)
            raise ArgumentError(
                f"{name}: expected scales of blocks along K, {known[0]} or {known[1]} behind batch axes that broadcast "
                f"to {tuple(shape[:-2])}, as the other operand's are, got {got}"
            )


def _reaches(shape: Sequence[int], result: Sequence[int], broadcast: Any) -> bool:
    try:
        return tuple(broadcast(tuple(shape), tuple(result))) == tuple(result)
    except (ValueError, RuntimeError):
        return False


def in_blocks(scale_a: Any, scale_b: Any, m: int, n: int) -> bool:
    """Whether scales of these shapes, which `check_scales` has seen, are of blocks along K."""
    of_rows = scale_a is None or tuple(scale_a) in ((), (1,), (1, 1), (m,), (m, 1))
    return not (of_rows and (scale_b is None or tuple(scale_b) in ((), (1,), (1, 1), (n,), (1, n))))


def check_shapes(
    a: Any, b: Any, c: Any, bias: Any, out: Any, scale_a: Any = None, scale_b: Any = None,
    broadcast: Any = np.broadcast_shapes,
) -> tuple[int, ...]:  # fmt: skip
    """The result's shape, of the operands' shapes. Raises ArgumentError where they do not fit together."""
    for name, shape in (("a", a), ("b", b)):
        if len(shape) < 2:
            raise ArgumentError(f"{name}: expected at least 2 axes, got shape {tuple(shape)}")
    result = execute.batched_shape(a, b, broadcast)
    if c is not None and not _reaches(c, result, broadcast):
        raise ArgumentError(f"c: expected a shape that broadcasts to {result}, got {tuple(c)}")
    if bias is not None and tuple(bias) != result[-1:]:
        raise ArgumentError(f"bias: expected shape {result[-1:]}, one for each column, got {tuple(bias)}")
    if out is not None and tuple(out) != result:
        raise ArgumentError(f"out: expected shape {result}, got {tuple(out)}")
    check_scales(scale_a, scale_b, result, a[-1], broadcast)
    return result


def check_term(name: str, dtype: str, dtype_a: str) -> str:
    """The dtype, if an addend, a bias or a scale may have it; raises UnsupportedError."""
    if name.startswith("scale"):
        if dtype != "fp32":
            raise UnsupportedError(f"{name}: expected a number or dtype fp32, got {dtype}")
    elif dtype not in TERM_DTYPES and not dtype == dtype_a == "fp64":
        wide = "fp64, " if dtype_a == "fp64" else ""
        raise UnsupportedError(f"{name}: expected dtype {wide}fp32, fp16 or bf16, got {dtype}")
    return dtype


def have_blocks(scale_a: Any, scale_b: Any, shape: Sequence[int]) -> bool:
    """`in_blocks` of scales themselves, of a result of `shape`."""
    of_a, of_b = (None if scale is None else scale.shape for scale in (scale_a, scale_b))
    return in_blocks(of_a, of_b, shape[-2], shape[-1])


def check_block_dtypes(dtype_a: str) -> None:
    """Raise UnsupportedError for operands whose blocks along K have no scales."""
    if dtype_a not in ("fp8", "bf8"):
        raise UnsupportedError(f"scale_a: scales of blocks along K are for fp8 and bf8, a's dtype is {dtype_a}")


def is_same_place(x: Any, y: Any) -> bool:
    """Whether two operands of one shape and dtype have every element at the same address."""
    return execute.address_of(x) == execute.address_of(y) and all(
        s == t or n == 1 for s, t, n in zip(execute.strides_of(x), execute.strides_of(y), x.shape, strict=True)
    )


def needs_copy(out: Any, addend: Any, *others: Any) -> bool:
    """Whether the result has to be made elsewhere and copied to out. `addend` is expanded to out's shape."""
    if any(x is not None and execute.overlap(out, x) for x in others):
        return True
    if addend is None or not execute.overlap(out, addend):
        return False
    return addend.dtype != out.dtype or not is_same_place(out, addend)


def _gemm_arrays(
    a, b, c, bias, out, scale_a, scale_b, alpha, beta, activation, out_dtype, config, how
) -> Any:  # fmt: skip
    gpu = gpu_for_arrays(**dict(zip(OPERANDS, (a, b, c, bias, out, scale_a, scale_b), strict=True)))
    precision, acc_dtype, packed = how
    shape = check_shapes(*(None if x is None else x.shape for x in (a, b, c, bias, out, scale_a, scale_b)))
    names = operand_dtypes(a, b, packed)
    arithmetic = arithmetic_of(names[0], precision, acc_dtype)
    given = {"c": c, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    has_terms = alpha != 1 or activation is not None or any(x is not None for x in given.values())
    asked = out_dtype if out is None or out_dtype is not None else out.dtype.newbyteorder("=")
    wanted = output_dtype(a, names[0], asked, has_terms)
    dtypes = (*names, dtype_name("out_dtype", wanted))
    if out is not None and out.dtype != wanted:
        raise ArgumentError(f"out: expected dtype {wanted}, got {out.dtype}")
    if out is not None and not out.flags.writeable:
        raise ArgumentError("out: expected an array that can be written, got a read-only one")
    addend = None if c is None or beta == 0 else c
    term_dtypes = [
        "" if x is None else check_term(name, known_name(x.dtype), names[0]) for name, x in given.items()
    ]
    a, b, bias = (None if x is None else addressed(x) for x in (a, b, bias))
    if have_blocks(scale_a, scale_b, shape):
        check_block_dtypes(names[0])
        scales = [np.broadcast_to(addressed(x), (*shape[:-2], *x.shape[-2:])) for x in (scale_a, scale_b)]
    else:
        scales = [
            None if x is None else np.array(x.reshape(-1), x.dtype.newbyteorder("="), order="C")
            for x in (scale_a, scale_b)
        ]
    addend = None if addend is None else np.broadcast_to(addressed(addend), shape)
    result = out
    if out is not None and addressable(out):
        execute.check_distinct(out)
    if out is None or not addressable(out) or needs_copy(out, addend, a, b, bias, *scales):
        result = np.empty(shape, wanted)
    a, b = (np.broadcast_to(x, (*shape[:-2], *x.shape[-2:])) for x in (a, b) if x is not None)
    terms = execute.Terms(
        alpha, beta, addend, term_dtypes[0] if addend is not None else "", bias, term_dtypes[1], "n", activation,
        *scales,
    )  # fmt: skip
    execute.multiply_into(a, b, result, dtypes, gpu, config, terms, arithmetic)
    if out is not None and result is not out:
        out[...] = result
        return out
    return result

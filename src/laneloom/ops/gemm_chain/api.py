"""`laneloom.gemm_chain`: what users call."""

from __future__ import annotations

import sys
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..matmul.api import addressable, addressed
from ..matmul.execute import check_distinct
from ..matmul.gemm import needs_copy
from ..scalars import is_number, shown, to_float
from ..target import gpu_for_arrays
from ..traced import loaded
from . import execute
from .config import ChainConfig, parse_config
from .execute import Factors

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray

_ADDENDS = {"float16": "fp16", "float32": "fp32"}
_ON_TENSORS = f"{__package__}.torch_op"  #: the module that needs torch


def gemm_chain(
    a0: Operand,
    b0: Operand,
    b1: Operand,
    c1: Operand | None = None,
    *,
    alpha0: float = 1.0,
    alpha1: float = 1.0,
    beta1: float = 0.0,
    out: Operand | None = None,
    config: ChainConfig | str | None = None,
) -> Any:
    """D1 = alpha1 P B1 + beta1 C1 with P = alpha0 A0 B0, over the last two axes; P stays in registers.

    a0: [..., M, K0]; b0: [..., K0, N0]; b1: [..., N0, N1]. fp16 or bf16, all of one dtype, any strides; batch axes
        broadcast. Torch tensors on the GPU that Triton drives, or on the CPU inside `laneloom.emulated`; numpy arrays
        (float16) only there. Sizes may be 0.
    c1: broadcasts to D1's shape; fp32, fp16 or bf16. It is read if beta1 is not 0, and never otherwise.
    alpha0, alpha1: where one is 0, or K0 is, A0, B0 and B1 are not read, as in BLAS.
    out: where D1 goes, of its shape and a0's dtype, with any strides that keep its elements apart. It may be c1. Where
        it shares memory with an operand in any other way, D1 is made elsewhere and copied. No part of autograd.
    config: what runs, a config or its text; by default `plan` chooses. Where both N0 and N1 are wide, that is two
        products through memory ("pair"), because a fused one would compute P again for every block of columns.

    Products are exact and sums FP32; alpha0 times a sum is rounded once to the operands' dtype, which is P, and D1
    once, to nearest even: what two calls of `gemm` give, up to the order of sums. P overflows where it does not fit the
    dtype (fp16: 65504): alpha0 scales it before. The same call gives the same bits. Gradients are chains and products
    of the same kind, second derivatives work as well.

    Raises ArgumentError for operands that do not fit together, UnsupportedError for what no schedule can do,
    InvalidConfigError for a config that cannot do this.
    Source: AMD RDNA 3 and RDNA 4 ISA guides, WMMA; PTX ISA, wgmma; docs/gemm-chain.md derives layouts and budget.
    """
    if config is not None and not isinstance(config, ChainConfig):
        config = parse_config(config)
    for name, value in (("alpha0", alpha0), ("alpha1", alpha1), ("beta1", beta1)):
        if not is_number(value) or not -inf < value < inf:
            raise ArgumentError(f"{name}: expected a finite number, got {shown(value)}")
    alpha0, alpha1, beta1 = to_float("alpha0", alpha0), to_float("alpha1", alpha1), to_float("beta1", beta1)
    factors = Factors(alpha0, alpha1, beta1 if c1 is not None else 0.0)
    torch = sys.modules.get("torch")
    if torch is not None and (
        isinstance(a0, torch.Tensor) or any(isinstance(x, torch.Tensor) for x in (b0, b1, c1, out))
    ):
        torch_op = loaded(_ON_TENSORS)
        if torch_op is None:
            from . import torch_op
        return torch_op.chain_tensors({"a0": a0, "b0": b0, "b1": b1, "c1": c1, "out": out}, factors, config)
    for name, x in (("a0", a0), ("b0", b0), ("b1", b1), ("c1", c1), ("out", out)):
        if not isinstance(x, np.ndarray) and (name not in ("c1", "out") or x is not None):
            raise ArgumentError(f"{name}: expected a torch tensor or a numpy array, got {type(x).__name__}")
    return _chain_arrays(a0, b0, b1, c1, out, factors, config)


def _chain_arrays(
    a0: Any, b0: Any, b1: Any, c1: Any, out: Any, factors: Factors, config: ChainConfig | None
) -> np.ndarray:
    gpu = gpu_for_arrays(a0=a0, b0=b0, b1=b1, c1=c1, out=out)
    for name, x in (("a0", a0), ("b0", b0), ("b1", b1)):
        if x.dtype != np.float16:
            raise UnsupportedError(f"{name}: expected dtype float16, got {x.dtype}")
    if c1 is not None and c1.dtype.name not in _ADDENDS:
        raise UnsupportedError(f"c1: expected dtype float32 or float16, got {c1.dtype}")
    shapes = (a0.shape, b0.shape, b1.shape, None if c1 is None else c1.shape)
    shape = execute.chain_shape(*shapes, np.broadcast_shapes)
    if out is not None and (out.shape != shape or out.dtype != np.float16):
        raise ArgumentError(f"out: expected shape {shape} and float16, got {out.shape} and {out.dtype}")
    if out is not None and not out.flags.writeable:
        raise ArgumentError("out: expected an array that can be written, got a read-only one")
    a0, b0, b1, c1 = (None if x is None else addressed(x) for x in (a0, b0, b1, c1))
    a0, b0, b1 = (np.broadcast_to(x, (*shape[:-2], *x.shape[-2:])) for x in (a0, b0, b1))
    added = None if c1 is None else np.broadcast_to(c1, shape)
    target: Any = out
    if out is not None and addressable(out):
        check_distinct(out)
    if out is None or not addressable(out) or needs_copy(out, added, a0, b0, b1):
        target = np.empty(shape, np.float16)
    names = ("fp16", "" if c1 is None else _ADDENDS[c1.dtype.name])
    execute.chain_into(a0, b0, b1, added, target, names, factors, gpu, config)
    if out is None:
        return target
    if target is not out:
        out[...] = target
    return out

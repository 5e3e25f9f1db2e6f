"""What torch.utils.flop_counter counts for laneloom's operators; without a formula it takes a custom operator for free.

As torch counts its own: a multiplication and an addition per term, of complex numbers too, and all pairs of a query and
a key, whatever is masked. Lengths that are data are read, unless the tensors are fake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import register_flop_formula


def _known(x: torch.Tensor) -> bool:
    return not isinstance(x, FakeTensor) and x.device.type != "meta"


def _product(a: Any, b: Any, *rest: Any, out_val: Any = None, out: Any = None, **options: Any) -> int:
    result = next(x for x in (out_val, out, *rest) if isinstance(x, torch.Tensor))
    words = rest[-1] if rest and isinstance(rest[-1], (list, tuple)) else options.get("packed")
    k = a.shape[-1] * (2 if words and words[0] in ("int4", "uint4") else 1)  # two to a byte
    return 2 * result.numel() * k


def _in_groups(a: Any, b: Any, *rest: Any, **options: Any) -> int:
    return 2 * a.shape[0] * a.shape[1] * b.shape[-1]


def _chain(a0: Any, b0: Any, b1: Any, *rest: Any, out_val: Any = None, out: Any = None, **options: Any) -> int:
    result = next(x for x in (out_val, out, *rest) if isinstance(x, torch.Tensor))
    k0, n0 = b0.shape[-2:]
    return 2 * result.shape[:-1].numel() * n0 * (k0 + b1.shape[-1])


def _pairs(
    q: Any, k: Any, causal: Any = "", scale: Any = None, left: Any = None, right: Any = None, first_q: Any = None,
    first_k: Any = None, max_queries: int = 0, max_keys: int = 0, *rest: Any, **options: Any,
) -> int:  # fmt: skip
    """Pairs of a query and a key of all heads, of q [B, H, N, D] or packed [tokens, H, D]."""
    if first_q is None:
        return q.shape[:-1].numel() * k.shape[-2]
    first_k = first_q if first_k is None else first_k
    if _known(first_q) and _known(first_k):
        return int((first_q.diff().long() * first_k.diff().long()).sum()) * q.shape[1]
    return (first_q.shape[0] - 1) * max_queries * max_keys * q.shape[1]


def _attention(q: Any, k: Any, v: Any, *rest: Any, out_val: Any = None, **options: Any) -> int:
    return 2 * _pairs(q, k, *rest, **options) * (q.shape[-1] + v.shape[-1])


def _attention_backward(
    grad: Any, grad_lse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any, out_val: Any = None,
    **options: Any,
) -> int:  # fmt: skip
    """Scores once more, dV, dP, dQ and dK."""
    return 2 * _pairs(q, k, *rest, **options) * (3 * q.shape[-1] + 2 * v.shape[-1])


def _decode(
    q: Any, k_cache: Any, v_cache: Any, cache_lengths: Any, block_table: Any = None, *rest: Any, **options: Any
) -> int:
    batch, queries, heads, d = q.shape
    if _known(cache_lengths):
        keys = int(cache_lengths.sum())
    else:
        keys = batch * k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    return 2 * queries * heads * keys * (d + v_cache.shape[-1])


def _quantized(x: Any, *rest: Any, out_val: Any = None, **options: Any) -> int:
    result = out_val if isinstance(out_val, torch.Tensor) else rest[4]  # after x, values, scales, zeros and bias
    return 2 * result.numel() * x.shape[-1]


def _transform3d(coeffs: Any, *rest: Any, **options: Any) -> int:
    return 6 * coeffs.shape[-1] * coeffs.numel()


FORMULAS: dict[str, Callable[..., int]] = {
    "matmul": _product,
    "matmul_out": _product,
    "gemm": _product,
    "gemm_out": _product,
    "grouped_matmul": _in_groups,
    "grouped_matmul_out": _in_groups,
    "gemm_chain": _chain,
    "gemm_chain_out": _chain,
    "flash_attention": _attention,
    "flash_attention_float8": _attention,
    "flash_attention_backward": _attention_backward,
    "attention_decode": _decode,
    "quantized_matmul": _quantized,
    "quantized_matmul_out": _quantized,
    "transform3d": _transform3d,
    "transform3d_out": _transform3d,
}


def register(packet: Any) -> None:
    """Make torch count the operator's FLOPs, where it has any."""
    formula = FORMULAS.get(packet._qualified_op_name.partition("::")[2])
    if formula is not None:
        register_flop_formula(packet, get_raw=True)(formula)

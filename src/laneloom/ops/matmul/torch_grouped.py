"""torch.ops.laneloom.grouped_matmul: the product in groups as an opaque operator, for compilers, autocast and vmap.

A call that nothing observes does not go through it. It has no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ArgumentError
from ..operators import complete, is_observed, one_by_one
from .grouped import multiply_groups
from .torch_op import operand_dtypes, output_dtype

__all__ = ["is_observed"]


def _grouped(a, b, ends, out_dtype=None):
    return multiply_groups(a, b, ends, None, out_dtype, None)


def _grouped_fake(a, b, ends, out_dtype=None):
    if a.dim() != 2 or b.dim() != 3 or a.shape[1] != b.shape[1]:
        raise ArgumentError(f"b: expected [G, {a.shape[-1]}, N] for a of [M, K], got {list(a.shape)}, {list(b.shape)}")
    names = operand_dtypes(a, b, None)
    return a.new_empty((a.shape[0], b.shape[2]), dtype=output_dtype(names[0], out_dtype))


def _batched(info, in_dims, *args):
    return one_by_one(torch.ops.laneloom.grouped_matmul, info, in_dims, *args)


def _cast(args: Sequence[Any]) -> tuple[int, ...]:
    return (0, 1)


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::grouped_matmul",
    _grouped,
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor ends, ScalarType? out_dtype=None) -> Tensor",
)
_OPERATOR.register_fake(_grouped_fake)
complete(_OPERATOR, batched=_batched, cast=_cast)

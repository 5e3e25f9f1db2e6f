"""torch.ops.laneloom.grouped_matmul: the product in groups as an opaque operator, for compilers, autocast and vmap.

It has no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..operators import complete, one_by_one
from ..warm import WarmCalls, maker_of
from . import grouped
from .torch_op import operand_dtypes, output_dtype


def _prepare(a, b, ends, out_dtype, scale_a, scale_b) -> Callable[..., torch.Tensor]:
    """What makes the product of tensors that lie as these do."""
    dtype = grouped.result_dtype(a, b, ends, out_dtype, scale_a, scale_b)  # which checks the shapes
    out = a.new_empty((a.shape[0], b.shape[2]), dtype=dtype)
    names = grouped.tensor_names(a, b, ends, out)
    make, launch = maker_of(out), grouped.prepare_launch(a, b, out, names, None, scale_a, scale_b)

    def run(a, b, ends, _, scale_a, scale_b) -> torch.Tensor:
        out = make()
        launch(a, b, out, ends, scale_a, scale_b)
        return out

    return run


_warm = WarmCalls(_prepare)


def _grouped(a, b, ends, out_dtype=None, scale_a=None, scale_b=None):
    return _warm(a, b, ends, out_dtype, scale_a, scale_b)


def _grouped_fake(a, b, ends, out_dtype=None, scale_a=None, scale_b=None):
    grouped.check_shapes(a, b)
    grouped.check_scales(a, b, scale_a, scale_b)
    names = operand_dtypes(a, b, None)
    return a.new_empty((a.shape[0], b.shape[2]), dtype=output_dtype(names[0], out_dtype))


def _batched(call, info, in_dims, *args):
    return one_by_one(call, info, in_dims, *args)


def _cast(args: Sequence[Any]) -> tuple[int, ...]:
    return (0, 1)


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::grouped_matmul",
    _grouped,
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor ends, ScalarType? out_dtype=None, Tensor? scale_a=None, "
    "Tensor? scale_b=None) -> Tensor",
)
_OPERATOR.register_fake(_grouped_fake)
grouped_operator = complete(_OPERATOR, batched=_batched, cast=_cast, warm=_warm)

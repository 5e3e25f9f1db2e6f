"""torch.ops.laneloom.attention_decode: decoding as an opaque operator, for compilers, autocast and vmap.

It has no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import UnsupportedError
from ..operators import complete, one_by_one
from ..warm import Key, WarmCalls, key_of
from .decode import check_axes, check_devices, named_operands, prepare_decode, rounded_up


def _key_of(args: Sequence[Any]) -> Key | None:
    """Of `max_seqlen_k` what plans go by: it may grow from call to call."""
    *rest, most = args
    return key_of(args if most is None else (*rest, rounded_up(most)))


_warm = WarmCalls(prepare_decode, _key_of)


def _decode(
    q, k_cache, v_cache, cache_lengths, block_table=None, scale=None, window=None, softcap=0.0, max_seqlen_k=None
):
    return _warm(q, k_cache, v_cache, cache_lengths, block_table, scale, window, softcap, max_seqlen_k)


def _decode_fake(
    q, k_cache, v_cache, cache_lengths, block_table=None, scale=None, window=None, softcap=0.0, max_seqlen_k=None
):
    operands = named_operands(q, k_cache, v_cache, cache_lengths, block_table)
    check_axes(operands)
    check_devices(operands)  # else one on meta would make the result one
    batch, queries, heads, _ = q.shape
    out = q.new_empty((batch, queries, heads, v_cache.shape[3]))
    return out, q.new_empty((batch, heads, queries), dtype=torch.float32)


def _batched(call, info, in_dims, *args):
    """A call for every element, whose caches have to be dense."""
    batched = [isinstance(axis, int) for axis in in_dims]
    dense = [
        x.movedim(axis, 0).contiguous() if moved else x for x, axis, moved in zip(args, in_dims, batched, strict=True)
    ]
    axes = [0 if moved else None for moved in batched]
    return one_by_one(call, info, axes, *dense)


def _remember(ctx, inputs, output) -> None:
    pass


def _refuse(ctx, *grads):
    raise UnsupportedError("attention_decode has no gradients: use flash_attention where they are wanted")


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::attention_decode",
    _decode,
    mutates_args=(),
    schema=(
        "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor cache_lengths, Tensor? block_table=None, float? scale=None, "
        "SymInt? window=None, float softcap=0.0, SymInt? max_seqlen_k=None) -> (Tensor, Tensor)"
    ),
)
_OPERATOR.register_fake(_decode_fake)
decode_operator = complete(
    _OPERATOR, batched=_batched, remember=_remember, gradients=_refuse, cast=lambda args: (0, 1, 2), warm=_warm
)

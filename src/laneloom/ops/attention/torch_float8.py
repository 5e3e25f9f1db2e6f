"""torch.ops.laneloom.flash_attention_float8: attention on operands in e4m3 as an opaque operator, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ..operators import check_strided, complete, one_by_one
from ..scalars import is_number, shown, to_float
from ..warm import WarmCalls, maker_of
from . import execute
from .arguments import MOST_SCALE
from .execute import Band, Packing
from .torch_op import OPTIONS, direct, gpu_of, packing_of_tensors, room

FLOAT8 = torch.float8_e4m3fn
_SCALES = ("scale_q", "scale_k", "scale_v")
_OUT = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def attend_float8(
    q: Any, k: Any, v: Any, scale: float | None, seen: Band, packing: Packing | None, scales: dict[str, Any],
    out_dtype: Any, softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`laneloom.flash_attention` on tensors in e4m3, packed ones as [1, H, all positions, D]: O and LSE.

    scales: what q, k and v were divided by, by argument's name: numbers, tensors or None.
    """
    for name, x in (("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {type(x).__name__}")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected torch.bfloat16 or torch.float16, got {shown(out_dtype)}")
    lengths: tuple[Any, ...] = (None, None, 0, 0) if packing is None else tuple(packing)
    numbers = dict.fromkeys(scales, 1.0)
    for name, x in scales.items():
        if x is None or isinstance(x, torch.Tensor):
            continue
        numbers[name] = to_float(name, x) if is_number(x) else 0.0
        if not 0 < numbers[name] <= MOST_SCALE:
            raise ArgumentError(f"{name}: expected a number above 0, up to {MOST_SCALE}, or a tensor, got {shown(x)}")
    factor = (q.shape[-1] or 1) ** -0.5 if scale is None else float(scale)
    factor *= numbers["scale_q"] * numbers["scale_k"]
    if abs(factor) > MOST_SCALE:
        raise ArgumentError(f"scale: expected scale x scale_q x scale_k up to {MOST_SCALE}, got {factor}")
    tensors = [x if isinstance(x, torch.Tensor) else None for x in scales.values()]
    options = (seen.causal, factor, seen.left, seen.right, *lengths, *tensors, numbers["scale_v"], out_dtype, softcap)
    return float8_operator(q, k, v, *options)


def _scales_shape(q: Any, k: Any, first_q: Any) -> tuple[int, int]:
    """[B, H_kv]; B: of packed ones, the sequences."""
    return q.shape[0] if first_q is None else first_q.shape[0] - 1, k.shape[1]


def _check(q: Any, k: Any, v: Any, scales: dict[str, Any], first_q: Any, out_dtype: Any) -> None:
    """Raises ArgumentError, UnsupportedError for what does not fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_strided(name, x)
        if x.dtype != FLOAT8:
            raise ArgumentError(f"{name}: expected dtype {FLOAT8} as the others have, got {x.dtype}")
        if x.device != q.device:
            raise ArgumentError(f"{name}: expected a tensor on {q.device}, as q is, got one on {x.device}")
    execute.check_shapes(q, k, v)
    if out_dtype not in _OUT:
        raise UnsupportedError(f"out_dtype: expected torch.bfloat16 or torch.float16, got {out_dtype}")
    each = _scales_shape(q, k, first_q)
    for name, x in scales.items():
        if x is not None and (x.dtype != torch.float32 or x.device != q.device):
            raise ArgumentError(f"{name}: expected float32 on {q.device}, got {x.dtype} on {x.device}")
        if x is not None and x.shape not in ((), (1,), (1, 1), each):
            raise ArgumentError(
                f"{name}: expected a number, one element, or one for each sequence and head of keys in shape {each}, "
                f"got shape {tuple(x.shape)}"
            )


def _results(q: Any, v: Any, packed: bool, out_dtype: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for O and LSE."""
    return room(q, v.shape[3], packed, out_dtype), q.new_empty(q.shape[:3], dtype=torch.float32)


def _prepare(
    q, k, v, causal, scale, left, right, first_q, first_k, max_queries, max_keys, scale_q, scale_k, scale_v, number_v,
    out_dtype, softcap,
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:  # fmt: skip
    """What gives O and LSE of tensors that lie as these do. Checks all."""
    out_dtype = out_dtype or torch.bfloat16
    packing = packing_of_tensors(first_q, first_k, max_queries, max_keys)
    _check(q, k, v, dict(zip(_SCALES, (scale_q, scale_k, scale_v), strict=True)), first_q, out_dtype)
    gpu, each = gpu_of(q), _scales_shape(q, k, first_q)
    problem = execute.problem_of(q, k, v, "fp8", scale, Band(causal, left, right), packing, softcap)
    make, make_lse = map(maker_of, _results(q, v, packing is not None, out_dtype))

    def operands_of(q, k, v, first_q, first_k, *given: Any) -> dict[str, Any]:
        expanded = (None if x is None else x.detach().expand(each) for x in given)
        scales: dict[str, Any] = dict(zip(_SCALES, expanded, strict=True))
        if gpu.vendor == "amd":  # whose kernel reads scales in order, and takes no number
            if number_v != 1:
                by = torch.ones((), device=q.device) if scales["scale_v"] is None else scales["scale_v"]
                scales["scale_v"] = (number_v * by).expand(each)
            scales = {name: None if x is None else x.contiguous() for name, x in scales.items()}
        return {
            "q": direct(q, gpu), "k": direct(k, gpu), "v": direct(v, gpu), "out": make(), "lse": make_lse(),
            "first_q": first_q, "first_k": first_k, **scales, "number_v": number_v,
        }  # fmt: skip

    operands = operands_of(q, k, v, first_q, first_k, scale_q, scale_k, scale_v)
    attend = execute.prepare_forward(replace(problem, out=_OUT[out_dtype]), gpu, operands)

    def run(q, k, v, _causal, _scale, _left, _right, first_q, first_k, _most_q, _most_k, *scales_and_rest):
        operands = operands_of(q, k, v, first_q, first_k, *scales_and_rest[: len(_SCALES)])
        attend(operands)
        return operands["out"], operands["lse"]

    return run


_warm = WarmCalls(_prepare)


def _attend(q, k, v, causal="none", scale=None, left=None, right=None, first_q=None, first_k=None, max_queries=0,
            max_keys=0, scale_q=None, scale_k=None, scale_v=None, number_v=1.0, out_dtype=None,
            softcap=0.0):  # fmt: skip
    return _warm(
        q, k, v, causal, scale, left, right, first_q, first_k, max_queries, max_keys, scale_q, scale_k, scale_v,
        number_v, out_dtype, softcap,
    )  # fmt: skip


def _fake(q, k, v, causal="none", scale=None, left=None, right=None, first_q=None, first_k=None, max_queries=0,
          max_keys=0, scale_q=None, scale_k=None, scale_v=None, number_v=1.0, out_dtype=None,
          softcap=0.0):  # fmt: skip
    out_dtype = out_dtype or torch.bfloat16
    _check(q, k, v, dict(zip(_SCALES, (scale_q, scale_k, scale_v), strict=True)), first_q, out_dtype)
    return _results(q, v, first_q is not None, out_dtype)


def _batched(call, info, in_dims, *args):
    return one_by_one(call, info, in_dims, *args)


def _remember(ctx, inputs, output) -> None:
    pass


def _refuse(ctx, *grads):
    raise UnsupportedError("flash_attention has no gradients for 8-bit operands: differentiate it in fp16 or bf16")


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::flash_attention_float8",
    _attend,
    mutates_args=(),
    schema=(
        f"(Tensor q, Tensor k, Tensor v, {OPTIONS}, Tensor? scale_q=None, Tensor? scale_k=None, Tensor? scale_v=None, "
        "float number_v=1.0, ScalarType? out_dtype=None, float softcap=0.0) -> (Tensor, Tensor)"
    ),
)
_OPERATOR.register_fake(_fake)
float8_operator = complete(_OPERATOR, batched=_batched, remember=_remember, gradients=_refuse, warm=_warm)

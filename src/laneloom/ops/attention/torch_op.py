"""torch.ops.laneloom.flash_attention: attention as an opaque operator, with a fake implementation and gradients.

The backward is an operator of its own, torch.ops.laneloom.flash_attention_backward; it has no derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import ArgumentError, UnsupportedError
from ...gpu import Gpu
from ..operators import check_strided, complete, folded, one_by_one, unfolded
from ..target import gpu_for_tensor
from ..warm import WarmCalls, maker_of
from . import execute
from .arguments import is_direct
from .execute import Band, Packing
from .hopper import is_boxed

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
OPTIONS = (
    'str causal="none", float? scale=None, SymInt? left=None, SymInt? right=None, Tensor? first_q=None, '
    "Tensor? first_k=None, SymInt max_queries=0, SymInt max_keys=0"
)
_MORE = "bool deterministic=False, float softcap=0.0"


def must_be_deterministic() -> bool:
    """Whether `torch.use_deterministic_algorithms` is on, and does not only warn."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


# The mark of torch.compiler.assume_constant_result, which takes a second to import the compiler. That guards the switch
# itself, and traces no question for `warn_only`.
must_be_deterministic._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def attend_tensors(
    q: Any, k: Any, v: Any, scale: float | None, seen: Band, packing: Packing | None, deterministic: bool,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`laneloom.flash_attention` on torch tensors, packed ones as [1, H, all positions, D]: O and LSE."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {type(x).__name__}")
    scale, lengths = None if scale is None else float(scale), (None, None, 0, 0)
    if packing is not None:
        lengths = tuple(packing)
        for name, x in zip(("cu_seqlens_q", "cu_seqlens_k"), packing[:2], strict=True):
            if x.device != q.device:
                raise ArgumentError(f"{name}: expected a tensor on {q.device}, as q is, got one on {x.device}")
    how = (deterministic or must_be_deterministic(), softcap)
    return attention_operator(q, k, v, seen.causal, scale, seen.left, seen.right, *lengths, *how)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_strided(name, x)
        if x.dtype not in _NAMES:
            raise UnsupportedError(
                f"{name}: expected dtype torch.float16, torch.bfloat16 or torch.float8_e4m3fn, got {x.dtype}"
            )
        if x.dtype != q.dtype:
            raise ArgumentError(f"{name}: expected q's dtype {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ArgumentError(f"{name}: expected a tensor on {q.device}, as q is, got one on {x.device}")
    execute.check_shapes(q, k, v)


def direct(x: torch.Tensor, gpu: Gpu) -> torch.Tensor:
    """x as a kernel reads it: where it lies, or a copy."""
    return x.detach() if _is_readable(x, gpu) else copy_of(x)


def _is_readable(x: torch.Tensor, gpu: Gpu) -> bool:
    """Whether a kernel reads x where it lies."""
    return is_direct(x, x.data_ptr()) and (gpu.vendor != "nvidia" or is_boxed(x))


def copy_of(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy at a multiple of 16 bytes, without gradients."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def gpu_of(q: torch.Tensor) -> Gpu:
    """The GPU that q is on. Raises ArgumentError for one that is not driven."""
    return gpu_for_tensor("q", q)


def packing_of_tensors(first_q: Any, first_k: Any, max_queries: int, max_keys: int) -> Packing | None:
    """The packing that an operator's arguments mean."""
    return None if first_q is None else Packing(first_q, first_k, max_queries, max_keys)


def room(x: torch.Tensor, d: int, packed: bool, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An empty [B, H, N, d] for x [B, H, N, D]; with the heads of a position side by side where sequences are packed or
    x has them so, as models' projections leave them, which read the result without a copy then."""
    batch, heads, rows, _ = x.shape
    if packed or 0 < x.stride(1) < x.stride(2):
        return x.new_empty((batch, rows, heads, d), dtype=dtype).transpose(1, 2)
    return x.new_empty((batch, heads, rows, d), dtype=dtype)


def _results(q: torch.Tensor, v: torch.Tensor, packed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for O and LSE."""
    return room(q, v.shape[3], packed), q.new_empty(q.shape[:3], dtype=torch.float32)


def _prepare(
    q, k, v, causal, scale, left, right, first_q, first_k, max_queries, max_keys, deterministic, softcap
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """What gives O and LSE of tensors that lie as these do. Checks all."""
    _check(q, k, v)
    gpu = gpu_of(q)
    packing = packing_of_tensors(first_q, first_k, max_queries, max_keys)
    problem = execute.problem_of(q, k, v, _NAMES[q.dtype], scale, Band(causal, left, right), packing, softcap)
    packed, copies = packing is not None, [not _is_readable(x, gpu) for x in (q, k, v)]
    copied, (make, make_lse) = any(copies), map(maker_of, _results(q, v, packed))

    def operands_of(q: Any, k: Any, v: Any, first_q: Any, first_k: Any) -> dict[str, Any]:
        out, lse = make(), make_lse()
        if copied:
            q, k, v = (copy_of(x) if copy else x for x, copy in zip((q, k, v), copies, strict=True))
        return {"q": q, "k": k, "v": v, "out": out, "lse": lse, "first_q": first_q, "first_k": first_k}

    attend = execute.prepare_forward(problem, gpu, operands_of(q, k, v, first_q, first_k))

    def run(q, k, v, _causal, _scale, _left, _right, first_q, first_k, *_) -> tuple[torch.Tensor, torch.Tensor]:
        operands = operands_of(q, k, v, first_q, first_k)
        attend(operands)
        return operands["out"], operands["lse"]

    return run


_warm = WarmCalls(_prepare)


@torch.library.custom_op(
    "laneloom::flash_attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {OPTIONS}, {_MORE}) -> (Tensor, Tensor)",
)
def _attention(q, k, v, causal="none", scale=None, left=None, right=None, first_q=None, first_k=None, max_queries=0,
               max_keys=0, deterministic=False, softcap=0.0):  # fmt: skip
    return _warm(q, k, v, causal, scale, left, right, first_q, first_k, max_queries, max_keys, deterministic, softcap)


@_attention.register_fake
def _attention_fake(q, k, v, causal="none", scale=None, left=None, right=None, first_q=None, first_k=None,
                    max_queries=0, max_keys=0, deterministic=False, softcap=0.0):  # fmt: skip
    _check(q, k, v)
    return _results(q, v, first_q is not None)


def _prepare_backward(
    grad, grad_lse, q, k, v, out, lse, causal, scale, left, right, first_q, first_k, max_queries, max_keys,
    deterministic, softcap,
) -> Callable[..., tuple[torch.Tensor, ...]]:  # fmt: skip
    """What gives dQ, dK and dV of tensors that lie as these do. Checks all."""
    _check(q, k, v)
    gpu = gpu_of(q)
    packing = packing_of_tensors(first_q, first_k, max_queries, max_keys)
    problem = execute.problem_of(q, k, v, _NAMES[q.dtype], scale, Band(causal, left, right), packing, softcap)
    make_dq, make_dk, make_dv = (maker_of(room(x, x.shape[3], packing is not None)) for x in (q, k, v))
    copies = [not _is_readable(x, gpu) for x in (q, k, v, grad, out)]
    copied, turned = any(copies), not lse.is_contiguous()
    # dL lies as L does.
    dlse_copied = grad_lse is not None and not (grad_lse.dtype == torch.float32 and grad_lse.is_contiguous())

    def operands_of(grad, grad_lse, q, k, v, out, lse, first_q, first_k) -> dict[str, Any]:
        if copied:
            read = zip((q, k, v, grad, out), copies, strict=True)
            q, k, v, grad, out = (copy_of(x) if copy else x for x, copy in read)
        if dlse_copied:
            grad_lse = grad_lse.detach().float().contiguous()
        return {
            "q": q, "k": k, "v": v, "g": grad, "out": out, "lse": lse.contiguous() if turned else lse,
            "dlse": grad_lse, "dq": make_dq(), "dk": make_dk(), "dv": make_dv(), "first_q": first_q,
            "first_k": first_k,
        }  # fmt: skip

    operands = operands_of(grad, grad_lse, q, k, v, out, lse, first_q, first_k)
    differentiate = execute.prepare_backward(problem, gpu, operands, deterministic=deterministic)

    def run(
        grad, grad_lse, q, k, v, out, lse, _causal, _scale, _left, _right, first_q, first_k, *_
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        operands = operands_of(grad, grad_lse, q, k, v, out, lse, first_q, first_k)
        differentiate(operands)
        return operands["dq"], operands["dk"], operands["dv"]

    return run


_warm_backward = WarmCalls(_prepare_backward)


@torch.library.custom_op(
    "laneloom::flash_attention_backward",
    mutates_args=(),
    schema=(
        "(Tensor grad, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        f"{OPTIONS}, {_MORE}) -> (Tensor, Tensor, Tensor)"
    ),
)
def _backward(grad, grad_lse, q, k, v, out, lse, causal="none", scale=None, left=None, right=None, first_q=None,
              first_k=None, max_queries=0, max_keys=0, deterministic=False, softcap=0.0):  # fmt: skip
    options = (causal, scale, left, right, first_q, first_k, max_queries, max_keys, deterministic, softcap)
    return _warm_backward(grad, grad_lse, q, k, v, out, lse, *options)


@_backward.register_fake
def _backward_fake(grad, grad_lse, q, k, v, out, lse, causal="none", scale=None, left=None, right=None, first_q=None,
                   first_k=None, max_queries=0, max_keys=0, deterministic=False, softcap=0.0):  # fmt: skip
    _check(q, k, v)
    return tuple(room(x, x.shape[3], first_q is not None) for x in (q, k, v))


def _remember(ctx, inputs, output) -> None:
    q, k, v, *options, first_q, first_k, max_queries, max_keys, deterministic, softcap = inputs
    ctx.options, ctx.deterministic = (options, (max_queries, max_keys), softcap), deterministic
    ctx.save_for_backward(q, k, v, *output, first_q, first_k)
    # No gradient of LSE is no tensor of zeros: the kernel has a variant without it.
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad, grad_lse):
    q, k, v, out, lse, *first = ctx.saved_tensors
    if grad is None and grad_lse is None:
        return (None,) * 13
    if grad is None:
        grad = torch.zeros_like(out)
    band, most, softcap = ctx.options
    # torch's switch counts where it is when gradients are computed, as for torch's own operators
    options = (*band, *first, *most, ctx.deterministic or must_be_deterministic(), softcap)
    gradients = attention_backward_operator(grad, grad_lse, q, k, v, out, lse, *options)
    return (*gradients, *(None,) * 10)


def _remember_nothing(ctx, inputs, output) -> None:
    pass


def _refuse(ctx, *grads):
    raise UnsupportedError(
        "flash_attention has no second derivatives: compute them with torch's own attention, "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


def _batched(call, info, in_dims, q, k, v, *options):
    """vmap's axis is more of B; packed sequences take a call for every element."""
    if len(options) > 4 and options[4] is not None:
        return one_by_one(call, info, in_dims, q, k, v, *options)
    results = call(*folded(info, in_dims, (q, k, v)), *options)
    return tuple(unfolded(info, in_dims, q, x) for x in results), (0, 0)


def _batched_backward(call, info, in_dims, grad, grad_lse, q, k, v, out, lse, *options):
    tensors = (grad, grad_lse, q, k, v, out, lse)
    if len(options) > 4 and options[4] is not None:
        return one_by_one(call, info, in_dims, *tensors, *options)
    results = call(*folded(info, in_dims, tensors), *options)
    return tuple(unfolded(info, in_dims, grad, x) for x in results), (0, 0, 0)


attention_operator = complete(
    _attention, batched=_batched, remember=_remember, gradients=_gradients, cast=lambda args: (0, 1, 2), warm=_warm
)
attention_backward_operator = complete(
    _backward, batched=_batched_backward, remember=_remember_nothing, gradients=_refuse, warm=_warm_backward
)

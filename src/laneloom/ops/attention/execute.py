"""From operands [B, H, N, D] to launches: what fits together, the problem of a call, its config, the schedule."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

from ...codegen import CodeObject
from ...errors import ArgumentError
from ...gpu import Gpu
from ..scalars import is_whole, shown, whole
from ..target import is_emulated
from .arguments import Tensors, address_of, strides_of
from .config import Role, checked_config, plan_backward
from .problem import AttentionProblem, band

_AXES = 4
_MOST_KEYS = 2**62  #: windows past that, which the operator's integers do not hold, cut nothing


class Band(NamedTuple):
    """What a query sees, as the caller said it: "none", "bottom_right" or "top_left", and a window."""

    causal: str = "none"
    left: int | None = None
    right: int | None = None


_ALL = Band()  #: every query sees every key


def band_of(causal: Any, window: Any) -> Band:
    """The arguments `causal` and `window` of `flash_attention`, checked. Raises ArgumentError."""
    if causal is False and window is None:
        return _ALL
    known = {False: "none", True: "bottom_right", "bottom_right": "bottom_right", "top_left": "top_left"}
    if not isinstance(causal, bool | str) or causal not in known:
        raise ArgumentError(f'causal: expected False, True, "bottom_right" or "top_left", got {shown(causal)}')
    if window is None:
        return Band(known[causal])
    pair = isinstance(window, tuple | list) and len(window) == 2
    sizes = [None if is_whole(side) and side == -1 else side for side in window] if pair else []
    if not pair or any(s is not None and not (is_whole(s) and s >= 0) for s in sizes):
        raise ArgumentError(
            f"window: expected (left, right), keys seen before and after a query's own, None for all, got "
            f"{shown(window)}"
        )
    return Band(known[causal], *(None if s is None or s > _MOST_KEYS else whole(s) for s in sizes))


class Packing(NamedTuple):
    """Sequences one after the other: where each begins (and the end), as int32 vectors, and the longest lengths."""

    first_q: Any
    first_k: Any
    max_queries: int
    max_keys: int


def packing_of(lengths: tuple[Any, Any, Any, Any], int32: Any) -> Packing | None:
    """`cu_seqlens_q` .. `max_seqlen_k` of `flash_attention`, checked; int32: the dtype of the first two."""
    first_q, first_k, max_queries, max_keys = lengths
    if first_q is first_k is max_queries is max_keys is None:
        return None
    if first_q is None and first_k is None:
        if max_queries is not None or max_keys is not None:
            raise ArgumentError("max_seqlen_q, max_seqlen_k: expected None without cu_seqlens_q")
        return None
    if first_q is None:
        raise ArgumentError("cu_seqlens_q: expected where the queries' sequences begin, as cu_seqlens_k is, got None")
    first_k = first_q if first_k is None else first_k
    for name, x in (("cu_seqlens_q", first_q), ("cu_seqlens_k", first_k)):
        if not _has_shape(x) or x.dtype != int32 or len(x.shape) != 1 or x.shape[0] < 2 or strides_of(x) != (1,):
            raise ArgumentError(
                f"{name}: expected a contiguous int32 vector of sequences + 1 elements, got {_described(x)}"
            )
    if first_k.shape != first_q.shape:
        raise ArgumentError(
            f"cu_seqlens_k: expected {first_q.shape[0]} elements as cu_seqlens_q has, got {first_k.shape[0]}"
        )
    if max_keys is None and first_k is first_q:
        max_keys = max_queries
    found = []
    for name, x, longest in (("max_seqlen_q", first_q, max_queries), ("max_seqlen_k", first_k, max_keys)):
        if longest is None:
            if getattr(x, "is_meta", False):
                raise ArgumentError(f"{name}: expected the longest sequence's length, which a meta tensor cannot tell")
            longest = (x[1:] - x[:-1]).max().item()
        elif not is_whole(longest) or not 0 <= longest < 1 << 31:
            raise ArgumentError(f"{name}: expected the longest sequence's length or None, got {shown(longest)}")
        found.append(whole(longest))
    return Packing(first_q, first_k, *found)


def _has_shape(x: Any) -> bool:
    """Whether x has one shape, which a nested tensor has not: torch raises an error of its own where it is asked."""
    return not isinstance(x, type) and not getattr(x, "is_nested", False) and hasattr(x, "shape")


def _described(x: Any) -> str:
    if not _has_shape(x):
        return f"a {'nested ' if getattr(x, 'is_nested', False) is True else ''}{type(x).__name__}"
    lies = f"strides {strides_of(x)}" if str(getattr(x, "layout", "torch.strided")) == "torch.strided" else x.layout
    return f"a {type(x).__name__} of {x.dtype} with shape {tuple(x.shape)} and {lies}"


def check_shapes(q: Any, k: Any, v: Any) -> None:
    """Raise ArgumentError for operands that do not fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if len(x.shape) != _AXES:
            raise ArgumentError(f"{name}: expected 4 axes [B, H, N, D], got shape {tuple(x.shape)}")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ArgumentError(
            f"k: expected q's batch {q.shape[0]} and head dimension {q.shape[3]}, got shape {tuple(k.shape)}"
        )
    if tuple(v.shape[:3]) != tuple(k.shape[:3]):
        raise ArgumentError(f"v: expected k's batch, heads and length {tuple(k.shape[:3])}, got shape {tuple(v.shape)}")
    if q.shape[1] and not k.shape[1]:
        raise ArgumentError(f"k: expected heads that q's {q.shape[1]} are a multiple of, got none")
    if k.shape[1] and q.shape[1] % k.shape[1]:
        raise ArgumentError(f"q: expected a multiple of k's {k.shape[1]} heads, got {q.shape[1]}")


def problem_of(
    q: Any, k: Any, v: Any, dtype: str, scale: float | None, seen: Band, packing: Packing | None = None,
    softcap: float = 0.0,
) -> AttentionProblem:  # fmt: skip
    """The problem of operands that `check_shapes` passed; packed ones are [1, H, all positions, D]."""
    batch, heads, queries, d = q.shape
    kv_heads, keys, d_v = k.shape[1], k.shape[2], v.shape[3]
    scale = 1 / sqrt(d or 1) if scale is None else float(scale)
    heads_and_sizes = (heads, max(kv_heads, 1))
    if packing is None:
        first, last = band(queries, keys, *seen)
        return AttentionProblem(
            batch, *heads_and_sizes, queries, keys, d, d_v, dtype, scale, first, last, softcap=softcap)
    _check_ends("q", packing.first_q, queries, packing.max_queries)
    _check_ends("k", packing.first_k, keys, packing.max_keys)
    right = 0 if seen.causal != "none" else seen.right
    limit = max(queries + keys, 1)
    first = None if seen.left is None else -min(seen.left, limit)
    last = None if right is None else min(right, limit)
    return AttentionProblem(
        packing.first_q.shape[0] - 1, *heads_and_sizes, packing.max_queries, packing.max_keys if keys else 0, d, d_v,
        dtype, scale, first, last, packed=True, softcap=softcap, bottom_right=seen.causal != "top_left",
    )  # fmt: skip


def _check_ends(operand: str, x: Any, rows: int, longest: int) -> None:
    name = f"cu_seqlens_{operand}"
    if address_of(x) % x.itemsize:
        raise ArgumentError(f"{name}: expected elements at multiples of {x.itemsize} bytes, got {address_of(x):#x}")
    if longest < 0:  # as computed
        raise ArgumentError(f"{name}: expected numbers that never fall, got ones that all do")
    if is_emulated():  # a GPU's memory is not looked at
        ends = x.tolist()
        if ends[0] != 0 or ends != sorted(ends) or ends[-1] != rows:
            raise ArgumentError(f"{name}: expected numbers from 0 to {rows}, the rows, that never fall, got {ends}")
        if (least := max(b - a for a, b in pairwise(ends))) > longest:
            raise ArgumentError(f"max_seqlen_{operand}: expected at least {least}, which {name} has, got {longest}")


def _schedule(config: Any) -> Any:
    return import_module(f".kernels.{config.schedule}", __package__)


def code_object(problem: AttentionProblem, gpu: Gpu, role: Role = "forward", config: Any = None) -> CodeObject:
    """The machine code that a call with this problem runs on `gpu`, compiled on any machine."""
    chosen = checked_config(problem, gpu, role, config)
    return _schedule(chosen).code_object(problem, chosen, gpu)


def attend_into(problem: AttentionProblem, gpu: Gpu, operands: dict[str, Any], config: Any = None) -> None:
    """Write out [B, H, N, D_V] and lse [B, H, N] (fp32) for q, k, v; those that kernels read are `is_direct`.

    Packed: B is 1 there, and first_q and first_k are operands.
    """
    prepare_forward(problem, gpu, operands, config)(operands)


def prepare_forward(
    problem: AttentionProblem, gpu: Gpu, operands: dict[str, Any], config: Any = None
) -> Callable[[dict[str, Any]], None]:
    """What does `attend_into` for operands that lie as these do, call after call."""
    chosen = checked_config(problem, gpu, "forward", config)
    if 0 in operands["lse"].shape or problem.queries == 0:
        return lambda operands: None
    if problem.keys == 0:
        return _attend_to_nothing
    return _prepare(problem, gpu, operands, chosen)


def _prepare(
    problem: AttentionProblem, gpu: Gpu, operands: dict[str, Any], config: Any
) -> Callable[[dict[str, Any]], None]:
    """What runs one config for operands that lie as these do."""
    schedule = _schedule(config)
    if hasattr(schedule, "prepare"):
        return schedule.prepare(problem, config, gpu, Tensors(operands))
    return lambda operands: schedule.launch(problem, config, gpu, Tensors(operands))


def _attend_to_nothing(operands: dict[str, Any]) -> None:
    operands["out"][...] = 0
    operands["lse"][...] = -float("inf")


def prepare_backward(
    problem: AttentionProblem, gpu: Gpu, operands: dict[str, Any], *, deterministic: bool = False
) -> Callable[[dict[str, Any]], None]:
    """What writes dq, dk, dv for q, k, v, out, lse, the gradients g of out and dlse (or None) of lse, torch tensors
    that lie as these do, call after call.
    """
    planned = plan_backward(problem, gpu, deterministic=deterministic)
    chosen = [checked_config(problem, gpu, config.role, config) for config in planned]
    if 0 in (problem.batch, problem.heads, problem.queries, problem.keys):
        return _differentiate_nothing
    runs = [_prepare(problem, gpu, operands, config) for config in chosen]
    if len(runs) == 1:
        return runs[0]

    def run(operands: dict[str, Any]) -> None:
        lse = operands["lse"]
        operands["delta"] = lse.new_empty(lse.shape)  # which the query role leaves for the key role
        for step in runs:
            step(operands)

    return run


def _differentiate_nothing(operands: dict[str, Any]) -> None:
    for name in ("dq", "dk", "dv"):
        operands[name][...] = 0

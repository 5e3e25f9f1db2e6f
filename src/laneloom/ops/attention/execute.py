"""From operands [B, H, N, D] to launches: what fits together, the problem of a call, its config, the schedule."""

from __future__ import annotations

from importlib import import_module
from math import sqrt
from typing import Any, NamedTuple

from ...codegen import CodeObject
from ...errors import ArgumentError
from ...gpu import Gpu
from .arguments import Tensors
from .config import AttentionConfig, Role, checked_config
from .problem import AttentionProblem, band

_AXES = 4


class Band(NamedTuple):
    """What a query sees, as the caller said it: "none", "bottom_right" or "top_left", and a window."""

    causal: str = "none"
    left: int | None = None
    right: int | None = None


def band_of(causal: Any, window: Any) -> Band:
    """The arguments `causal` and `window` of `flash_attention`, checked. Raises ArgumentError."""
    known = {False: "none", True: "bottom_right", "bottom_right": "bottom_right", "top_left": "top_left"}
    if not isinstance(causal, bool | str) or causal not in known:
        raise ArgumentError(f'causal: expected False, True, "bottom_right" or "top_left", got {causal!r}')
    if window is None:
        return Band(known[causal])
    pair = isinstance(window, tuple | list) and len(window) == 2
    sizes = [None if side == -1 else side for side in window] if pair else []
    if not pair or any(
        s is not None and (isinstance(s, bool) or not isinstance(s, int) or s < 0) for s in sizes
    ):
        raise ArgumentError(
            f"window: expected (left, right), keys seen before and after a query's own, None for all, got {window!r}"
        )
    return Band(known[causal], *sizes)


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


def problem_of(q: Any, k: Any, v: Any, dtype: str, scale: float | None, seen: Band) -> AttentionProblem:
    """The problem of operands that `check_shapes` passed."""
    batch, heads, queries, d = q.shape
    kv_heads, keys, d_v = k.shape[1], k.shape[2], v.shape[3]
    first, last = band(queries, keys, *seen)
    scale = 1 / sqrt(d or 1) if scale is None else float(scale)
    return AttentionProblem(batch, heads, max(kv_heads, 1), queries, keys, d, d_v, dtype, scale, first, last)


def _schedule(config: AttentionConfig) -> Any:
    return import_module(f".kernels.{config.schedule}", __package__)


def code_object(
    problem: AttentionProblem, gpu: Gpu, role: Role = "forward", config: AttentionConfig | None = None
) -> CodeObject:
    """The machine code that a call with this problem runs on `gpu`, compiled on any machine."""
    chosen = checked_config(problem, gpu, role, config)
    return _schedule(chosen).code_object(problem, chosen, gpu)


def attend_into(
    problem: AttentionProblem, gpu: Gpu, operands: dict[str, Any], config: AttentionConfig | None = None
) -> None:
    """Write out [B, H, N, D_V] and lse [B, H, N] (fp32) for q, k, v; those that kernels read are `is_direct`."""
    chosen = checked_config(problem, gpu, "forward", config)
    if 0 in operands["lse"].shape:
        return
    if problem.keys == 0:
        operands["out"][...] = 0
        operands["lse"][...] = -float("inf")
        return
    _schedule(chosen).launch(problem, chosen, gpu, Tensors(operands))


def differentiate_into(
    problem: AttentionProblem, gpu: Gpu, operands: dict[str, Any], configs: dict[str, AttentionConfig] | None = None
) -> None:
    """Write dq, dk, dv for q, k, v, out, lse, the gradients g of out and dlse (or None) of lse. delta: [B, H, N].

    Two launches: the key role reads the delta that the query role leaves.
    """
    chosen = [checked_config(problem, gpu, role, (configs or {}).get(role)) for role in ("query", "key")]
    if 0 in (problem.batch, problem.heads, problem.queries, problem.keys):
        for name in ("dq", "dk", "dv"):
            operands[name][...] = 0
        return
    for config in chosen:
        _schedule(config).launch(problem, config, gpu, Tensors(operands))

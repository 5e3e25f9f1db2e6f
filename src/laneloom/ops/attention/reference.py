"""Attention and its gradients by numpy in FP64: the truth."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .problem import band


class Truth(NamedTuple):
    """Results in FP64, of the shapes of o, lse, q, k, v; the gradients are None where no gradient came in."""

    out: np.ndarray
    lse: np.ndarray
    dq: np.ndarray | None
    dk: np.ndarray | None
    dv: np.ndarray | None


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    causal: str = "none",
    scale: float | None = None,
    left: int | None = None,
    right: int | None = None,
    softcap: float = 0.0,
    grad: np.ndarray | None = None,
    grad_lse: np.ndarray | None = None,
) -> Truth:
    """softmax(scale Q K^T) V over the keys that each query sees, [B, H, N, D]; gradients for `grad` of O (and of LSE).

    softcap: scores are softcap tanh(scale Q K^T / softcap); 0 for none.

    Source: the softmax's own derivative, written out in docs/attention.md.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // max(k.shape[1], 1) or 1
    k_each, v_each = (np.repeat(x, group, axis=1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    n_q, n_k = q.shape[2], k.shape[2]
    distance = np.arange(n_k)[None, :] - np.arange(n_q)[:, None]
    first, last = band(n_q, n_k, causal, left, right)
    seen = np.ones((n_q, n_k), bool)
    if first is not None:
        seen &= distance >= first
    if last is not None:
        seen &= distance <= last
    s = scale * (q @ k_each.swapaxes(-1, -2))
    slope = 1.0
    if softcap:
        s, slope = softcap * np.tanh(s / softcap), 1 / np.cosh(s / softcap) ** 2
    s = np.where(seen, s, -np.inf)
    top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(s - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    p = weights / np.where(total == 0, 1.0, total)
    out = p @ v_each
    if grad is None:
        return Truth(out, lse, None, None, None)
    grad = grad.astype(np.float64)
    delta = (grad * out).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse.astype(np.float64)
    ds = p * (grad @ v_each.swapaxes(-1, -2) - delta[..., None]) * slope
    dq = scale * (ds @ k_each)
    dk, dv = scale * (ds.swapaxes(-1, -2) @ q), p.swapaxes(-1, -2) @ grad
    grouped = (k.shape[0], k.shape[1], group, n_k)
    return Truth(out, lse, dq, *(x.reshape(*grouped, x.shape[-1]).sum(2) for x in (dk, dv)))

"""Attention by plain operations, and the budget that a result has beside it."""

import math

import torch

from laneloom.ops.attention import execute

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}


def seen(queries, keys, causal, window):
    first, last = execute.band(queries, keys, *execute.band_of(causal, window))
    distance = torch.arange(keys, device="cuda")[None] - torch.arange(queries, device="cuda")[:, None]
    mask = torch.ones(queries, keys, dtype=torch.bool, device="cuda")
    if first is not None:
        mask &= distance >= first
    if last is not None:
        mask &= distance <= last
    return mask


def attend(q, k, v, mask, scale, dtype):
    """O and LSE by plain operations in `dtype`, statistics of 16-bit types in FP32."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.to(dtype), k.to(dtype).repeat_interleave(group, 1), v.to(dtype).repeat_interleave(group, 1)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    s = (q.to(wide) @ k.to(wide).mT * scale).masked_fill(~mask, -math.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - torch.where(lse.isinf(), 0.0, lse)[..., None]).masked_fill(~mask, 0.0)
    return (p.to(dtype) @ v), lse


def judge(got, theirs, truth, dtype):
    for mine, other, exact in zip(got, theirs, truth, strict=True):
        assert not mine.isnan().any()
        budget = 2 * (other.double() - exact).abs().max() + ROUNDING[dtype] * exact.abs().max() + 1e-6
        assert (mine.double() - exact).abs().max() <= budget

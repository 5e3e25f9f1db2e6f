"""Attention with an online softmax: forward, log-sum-exp, and gradients."""

from __future__ import annotations

from .api import flash_attention
from .config import AttentionConfig, plan
from .problem import AttentionProblem

__all__ = ["AttentionConfig", "AttentionProblem", "flash_attention", "plan"]

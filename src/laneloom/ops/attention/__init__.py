"""Attention with an online softmax: forward, log-sum-exp, and gradients."""

from __future__ import annotations

from .api import flash_attention
from .config import AttentionConfig, plan
from .decode import attention_decode
from .problem import AttentionProblem

__all__ = ["AttentionConfig", "AttentionProblem", "attention_decode", "flash_attention", "plan"]

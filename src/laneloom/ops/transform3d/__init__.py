"""Batched transform of K x K x K tensors by one matrix along each axis."""

from __future__ import annotations

from .api import transform3d
from .config import ChainedConfig, FusedConfig, MatmulsConfig, RowsConfig, Transform3dConfig, parse_config, plan
from .problem import Transform3dProblem

__all__ = [
    "ChainedConfig",
    "FusedConfig",
    "MatmulsConfig",
    "RowsConfig",
    "Transform3dConfig",
    "Transform3dProblem",
    "parse_config",
    "plan",
    "transform3d",
]

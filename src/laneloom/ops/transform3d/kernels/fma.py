"""One CUDA C++ kernel (fma.cu) per K: each contraction by FP32 multiply-adds, the matrix in registers."""

from __future__ import annotations

from ..hopper import prepare

__all__ = ["prepare"]

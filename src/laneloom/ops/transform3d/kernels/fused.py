"""One CUDA C++ kernel (fused.cu) per K: each tensor is read once, contracted three times on chip, written once.

Wins on Hopper in FP64 where little is padded: the work is bound by memory up to K = 24. FP64 matrix instructions
m16n8k4, the contraction in steps of 4; float32 is computed in float64, a complex tensor is read and written as it lies
and computed as two real ones. The transform: Beylkin, Fann, Gan, Harrison, Yanai, "Multiresolution quantum chemistry",
section III (the tensor product of two-scale filters).
"""

from __future__ import annotations

from ..hopper import prepare

__all__ = ["prepare"]

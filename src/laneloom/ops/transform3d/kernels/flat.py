"""One CUDA C++ kernel (flat.cu) per K: each contraction is a product of all lines along an axis, 16 at a time.

Wins on Hopper where FP64 arithmetic is the bound and memory is not: float32 and complex64, whose bytes are half of
FP64's, and orders that `fused` pads most. The matrix as the second operand takes tiles of 8 columns, where `fused` has
tiles of 16 rows. The price is a trip through shared memory between the first two contractions.
"""

from __future__ import annotations

from ..hopper import prepare

__all__ = ["prepare"]

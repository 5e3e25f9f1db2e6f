"""Level 6 of the ladder: vec(R) = vec(X) (T x T x T), one product with a K^3 x K^3 matrix.

2 K^6 operations in place of 6 K^4: a figure in FLOP/s that says little. The matrix is built at every call. The product
is torch's on NVIDIA's GPUs and mxm (schedule `rows`) on AMD's.
"""

from __future__ import annotations

from typing import Any

from ....gpu import Gpu
from ..blocks import mxm
from ..config_levels import KroneckerConfig
from ..problem import Transform3dProblem


def launch(problem: Transform3dProblem, config: KroneckerConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """x, out: dense torch tensors [N, K, K, K]; factors: [K, K]."""
    import torch

    values = problem.k**3
    matrix = torch.kron(torch.kron(factors.contiguous(), factors.contiguous()), factors.contiguous())
    rows, target = x.view(problem.count, values), out.view(problem.count, values)
    if gpu.vendor == "nvidia":
        torch.matmul(rows, matrix, out=target)
    else:
        mxm(rows, matrix, out=target)

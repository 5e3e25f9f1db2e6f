"""Three batched products of torch's own library, each contracting the leading axis and appending the new one.

For what no fused kernel holds, and for GPUs without one. Reads and writes every tensor three times. float32 follows
torch's own setting of `torch.backends.cuda.matmul.allow_tf32`.
"""

from __future__ import annotations

from typing import Any

from ....gpu import Gpu
from ..config import MatmulsConfig
from ..problem import Transform3dProblem


def launch(problem: Transform3dProblem, config: MatmulsConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """x, out: torch tensors [N, K, K, K], each tensor dense; factors: [K, K] or [3, K, K]."""
    import torch

    n, k = problem.count, problem.k
    factors = factors.to(x.dtype)  # torch multiplies complex by complex only
    per_axis = (factors, factors, factors) if problem.same_matrix else tuple(factors)
    result = x
    for factor in per_axis[:2]:
        result = torch.matmul(result.reshape(n, k, k * k).mT, factor)
    target, rows = out.view(n, k * k, k), result.reshape(n, k, k * k).mT
    if problem.accumulate:
        target.add_(torch.matmul(rows, per_axis[2]))
    else:
        torch.matmul(rows, per_axis[2], out=target)

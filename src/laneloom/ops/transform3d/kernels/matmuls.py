"""Three batched products of torch's own library, each contracting the leading axis and appending the new one.

For what no fused kernel holds: K above 32, K = 31, GPUs without a fused kernel. Reads and writes every tensor three times.
"""

from __future__ import annotations

from typing import Any


def launch(x: Any, matrices: tuple[Any, Any, Any], out: Any, *, accumulate: bool) -> None:
    """x, out: torch tensors [N, K, K, K]; matrices: the factor [K, K] of each axis."""
    import torch

    n, k = x.shape[0], x.shape[1]
    result = x
    for axis, matrix in enumerate(matrices):
        rows = result.reshape(n, k, k * k).mT  # [N, K * K, K]
        if axis < 2:  # noqa: PLR2004
            result = torch.matmul(rows, matrix)
        elif accumulate:
            out.reshape(n, k * k, k).add_(torch.matmul(rows, matrix))
        else:
            torch.matmul(rows, matrix, out=out.view(n, k * k, k))

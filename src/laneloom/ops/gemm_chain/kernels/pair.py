"""The chain as two products, with P in memory: where both N0 and N1 are too wide for registers.

A fused program would compute P again for every block of D1's columns. The same roundings as the fused schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....codegen import CodeObject
from ....errors import UnsupportedError
from ....gpu import Gpu
from ...matmul.api import matmul
from ...matmul.dtypes import IEEE
from ...matmul.gemm import gemm
from ..config import ChainConfig
from ..problem import ChainProblem


def prepare(problem: ChainProblem, config: ChainConfig, gpu: Gpu, factors: tuple[float, ...]) -> Callable[..., None]:
    """What runs for operands that lie as `problem` says, call after call: a0, b0, b1, c1 or None, out."""
    products: list[Callable[..., None]] = []

    def run(a0: Any, b0: Any, b1: Any, c1: Any, out: Any) -> None:
        if isinstance(out, np.ndarray) or factors[:2] != (1, 1) or c1 is not None:
            launch(problem, config, gpu, a0, b0, b1, c1, out, *factors)
            return
        p = a0.new_empty((*a0.shape[:-1], b0.shape[-1]))
        if not products:
            from ...matmul.torch_op import prepare_product

            names = (problem.dtype, problem.dtype)
            products.extend(prepare_product(*operands, None, names, IEEE) for operands in ((a0, b0, p), (p, b1, out)))
        first, second = products
        first(a0, b0, p)
        second(p, b1, out)

    return run


def launch(
    problem: ChainProblem, config: ChainConfig, gpu: Gpu, a0: Any, b0: Any, b1: Any, c1: Any, out: Any,
    alpha0: float, alpha1: float, beta1: float,
) -> None:  # fmt: skip
    """Write alpha1 P b1 + beta1 c1 into out: torch tensors or numpy arrays, None for no c1."""
    p = matmul(a0, b0) if alpha0 == 1 else gemm(a0, b0, alpha=alpha0)
    if c1 is None and alpha1 == 1:
        matmul(p, b1, out=out)
    else:
        gemm(p, b1, c1, alpha=alpha1, beta=beta1, out=out)


def code_object(problem: ChainProblem, config: ChainConfig, gpu: Gpu) -> CodeObject:
    """There is none of its own."""
    raise UnsupportedError("the pair schedule has no kernel of its own: ask for that of laneloom.gemm")

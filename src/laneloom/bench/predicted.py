"""Predicted times of matrix products: `predict_matmul(...)`, and what it is made of for other costs.

Of a deep product the first columns of A and rows of B are emulated, where they lie in the whole product; its main loop
goes on at the same pace. Emulating all of K would say the same, later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..gpu import Gpu, get_gpu
from ..ops.matmul import execute
from ..ops.matmul.dtypes import stored_k
from ..ops.matmul.presets import named_config
from ..ops.matmul.problem import MatmulProblem
from ..timing import Machine, Prediction, machine_of
from ..timing.model import Sample, evaluate, sample
from ..verify import STORAGE

_PAGE = 1 << 16
DEPTH = 896  #: of K: enough iterations of every schedule's loop, and a multiple of their depths
STEPS = 14  #: K-tiles at least: with fewer the loop's pace would not be measured, and the rest of K would cost nothing


@dataclass(frozen=True)
class ProductSample:
    """What the emulator saw of a product, or of its first `DEPTH` along K."""

    config: str  #: what runs
    launches: list[Sample]
    longer: float  #: how much deeper the product is

    def evaluate(self, machine: Machine) -> Prediction:
        """The predicted time on `machine`."""
        return Prediction(tuple(evaluate(s, machine, self.longer) for s in self.launches), machine.launch_us)


def sample_matmul(
    m: int, n: int, k: int, gpu: str | Gpu, *, dtype: str = "fp16", dtype_out: str = "fp32", layout: str = "nn",
    config: Any = None,
) -> ProductSample:  # fmt: skip
    """Sample C[M, N] = A[M, K] B[K, N]. config: a preset, a config or its text; by default the planned one.

    Raises InvalidConfigError or UnsupportedError where the product cannot run, UnsupportedError for a GPU without a
    timing model.
    """
    row = get_gpu(gpu)
    machine_of(row)
    problem = MatmulProblem.contiguous(m, n, k, dtype=dtype, dtype_out=dtype_out, layout=layout)
    chosen = execute.checked_config(problem, row, named_config(config))
    depths = stored_k(k, dtype)
    a, b, c = _zeros(m, depths, dtype, layout[0]), _zeros(depths, n, dtype, layout[1]), _zeros(m, n, dtype_out)

    def at(depth: int) -> list[Sample]:
        dtypes = (dtype, dtype, dtype_out)
        first = stored_k(depth, dtype)
        found = sample(lambda: execute.multiply_into(a[:, :first], b[:first], c, dtypes, row, chosen), row)
        if depth == k:
            return found
        sources = a.nbytes + b.nbytes
        return [replace(s, footprint=max(s.footprint, problem.bytes), sources=max(s.sources, sources)) for s in found]

    least = max(DEPTH, STEPS * chosen.block_k)
    depth = least if k > 2 * least else k
    return ProductSample(chosen.text, at(depth), k / depth)


def predict_matmul(m: int, n: int, k: int, gpu: str | Gpu, **how: Any) -> Prediction:
    """The predicted time of C[M, N] = A[M, K] B[K, N] on `gpu`; `how` as for `sample_matmul`."""
    return sample_matmul(m, n, k, gpu, **how).evaluate(machine_of(gpu))


def _zeros(rows: int, columns: int, dtype: str, layout: str = "n") -> np.ndarray:
    """Zeros where a GPU's allocator would put them, so that lines of the caches begin with rows."""
    stored = np.dtype({"int4": np.int8, "uint4": np.uint8}.get(dtype) or STORAGE[dtype])
    octets = np.zeros(rows * columns * stored.itemsize + _PAGE, np.uint8)
    skip = -octets.ctypes.data % _PAGE
    array = octets[skip : octets.nbytes - _PAGE + skip].view(stored)
    return array.reshape(rows, columns) if layout == "n" else array.reshape(columns, rows).T

"""Predicted times of products with weights of few bits beside fp16's: `python -m laneloom.bench.predicted_weights`.

Prints the table of docs/quantized-weights.md, and what runs, of x [M, 4096] fp16 and W [4096, 4096]. The times are the
timing model's, not measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..gpu import get_gpu
from ..ops.quantized_matmul import execute
from ..ops.quantized_matmul.plan import plan
from ..timing import predict
from .predicted import predict_matmul

N = K = 4096
ROWS = (1, 4, 16, 64, 512)
GPUS = ("gfx1151", "gfx1201", "gfx942")
#: dtype of W, of its scales, group
KINDS = (("int4", "fp16", 128), ("fp4", "e8m0", 32), ("int8", "fp32", 0), ("fp8", "fp32", 0))
_PAGE = 1 << 16
_SCALES = {"fp16": np.float16, "fp32": np.float32, "e8m0": np.uint8}


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros where a GPU's allocator would put them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    octets = np.zeros(size + _PAGE, np.uint8)
    skip = -octets.ctypes.data % _PAGE
    return octets[skip : skip + size].view(dtype).reshape(shape)


def predicted_us(gpu: str, m: int, kind: tuple[str, str, int], config: Any = None) -> tuple[float, str]:
    """The predicted time of x [m, K] and W [N, K], and the config that runs: the planned one if none is given."""
    dtype, scale, group = kind
    row = get_gpu(gpu)
    stored = K // 2 if dtype in ("int4", "uint4", "fp4") else K
    operands = execute.Operands(
        zeros((m, K), np.float16), zeros((N, stored), np.uint8), zeros((N, K // group if group else 1), _SCALES[scale]),
        None, None, zeros((m, N), np.float16),
    )  # fmt: skip
    dtypes = execute.Dtypes("fp16", dtype, scale, "fp16", "", group)
    problem = dtypes.problem(operands)
    assert problem is not None
    chosen = execute.checked_config(problem, row, config) if config else plan(problem, row)
    found = predict(lambda: execute.multiply_into(operands, dtypes, row, chosen), gpu)
    return found.time_us, chosen.text


def main() -> None:
    """Print the table."""
    print("| GPU | M | fp16, us | " + " | ".join(f"{dtype}, us" for dtype, _, _ in KINDS) + " | int4 by |")
    print("|---|---|---|" + "---|" * (len(KINDS) + 1))
    for gpu in GPUS:
        for m in ROWS:
            halves = predict_matmul(m, N, K, gpu, dtype_out="fp16", layout="nt").time_us
            ours = [predicted_us(gpu, m, kind) for kind in KINDS]
            times = " | ".join(f"{time:.0f}" for time, _ in ours)
            print(f"| {gpu} | {m} | {halves:.0f} | {times} | `{ours[0][1]}` |", flush=True)


if __name__ == "__main__":
    main()

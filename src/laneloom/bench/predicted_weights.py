"""Predicted times of products with weights of few bits beside fp16's: `python -m laneloom.bench.predicted_weights
--out FILE`.

Of x [M, 4096], fp16 but for MXFP4's bf16, and W [4096, 4096]; the timing model's, not measured. Writes a JSON line for
each GPU and M, with what runs; with `--page` it fills a page's table from the file.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..codegen.versions import triton_version
from ..gpu import Gpu, get_gpu
from ..ops.quantized_matmul import execute
from ..ops.quantized_matmul.plan import plan
from ..ops.quantized_matmul.weight import PACKED
from ..timing import Prediction, predict
from .predicted import predict_matmul
from .records import read_commit
from .report import fill_page

N = K = 4096
ROWS = (1, 4, 16, 64, 512)
GPUS = ("gfx1151", "gfx1201", "gfx942")
#: dtype of W, of its scales, group, dtype of x and C
KINDS = (
    ("int4", "fp16", 128, "fp16"), ("fp4", "e8m0", 32, "bf16"), ("int8", "fp32", 0, "fp16"), ("fp8", "fp32", 0, "fp16"),
)  # fmt: skip
_PAGE = 1 << 16
_STORED = {"fp16": np.float16, "bf16": np.uint16, "fp32": np.float32}  #: bf16 as bits
_SCALES = {"fp16": np.float16, "fp32": np.float32, "e8m0": np.uint8}


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros where a GPU's allocator would put them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    octets = np.zeros(size + _PAGE, np.uint8)
    skip = -octets.ctypes.data % _PAGE
    return octets[skip : skip + size].view(dtype).reshape(shape)


def predict_weights(
    gpu: str | Gpu, m: int, n: int, k: int, kind: tuple[str, str, int, str], config: Any = None, dtype_out: str = ""
) -> tuple[Prediction, str]:
    """The prediction for x [m, k] and W [n, k], and the config that runs: the planned one if none is given.

    kind: as in KINDS; "uint4" has zeros. dtype_out: x's by default.
    """
    dtype, scale, group, of_x = kind
    row = get_gpu(gpu) if isinstance(gpu, str) else gpu
    groups = (n, -(-k // group) if group else 1)
    stored = k // 2 if dtype in PACKED else k
    operands = execute.Operands(
        zeros((m, k), _STORED[of_x]), zeros((n, stored), np.uint8), zeros(groups, _SCALES[scale]),
        zeros(groups, np.uint8) if dtype == "uint4" else None, None, zeros((m, n), _STORED[dtype_out or of_x]),
    )  # fmt: skip
    dtypes = execute.Dtypes(of_x, dtype, scale, dtype_out or of_x, "", group)
    problem = dtypes.problem(operands)
    assert problem is not None
    chosen = execute.checked_config(problem, row, config) if config else plan(problem, row)
    return predict(lambda: execute.multiply_into(operands, dtypes, row, chosen), row), chosen.text


def predict_all(path: Path) -> None:
    """Predict every GPU and M, and write the records."""
    commit, dirty = read_commit()
    made = {
        "commit": commit, "dirty": dirty, "triton": triton_version(),
        "date": datetime.now(UTC).date().isoformat(), "kind": "quantized matmul", "label": "predicted",
    }  # fmt: skip
    lines = []
    for gpu in GPUS:
        for m in ROWS:
            halves = predict_matmul(m, N, K, gpu, dtype_out="fp16", layout="nt").time_us
            ours = {kind[0]: predict_weights(gpu, m, N, K, kind) for kind in KINDS}
            record = made | {
                "gpu": gpu, "m": m, "n": N, "k": K, "fp16_us": halves,
                "time_us": {dtype: found.time_us for dtype, (found, _) in ours.items()},
                "config": {dtype: text for dtype, (_, text) in ours.items()},
            }  # fmt: skip
            lines.append(json.dumps(record, sort_keys=True))
            times = {dtype: f"{found.time_us:.0f} us" for dtype, (found, _) in ours.items()}
            print(gpu, m, f"fp16 {halves:.0f} us", times, flush=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def render(path: Path) -> str:
    """Markdown: when, and one row a GPU and M."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    first = records[0]
    rows = [f"Predicted {first['date']}, Triton {first['triton']}, commit {first['commit']}.", ""]
    rows += ["| GPU | M | fp16, us | " + " | ".join(f"{dtype}, us" for dtype, *_ in KINDS) + " |"]
    rows += ["|---|---|---|" + "---|" * len(KINDS)]
    for x in records:
        times = " | ".join(f"{x['time_us'][dtype]:.0f}" for dtype, *_ in KINDS)
        rows.append(f"| {x['gpu']} | {x['m']} | {x['fp16_us']:.0f} | {times} |")
    return "\n".join(rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Predict products with weights of few bits.")
    parser.add_argument("--out", type=Path, required=True, help="file of records to write, or to read with --page")
    parser.add_argument("--page", type=Path, help="predict nothing: fill this page's table from the records")
    arguments = parser.parse_args()
    if arguments.page is None:
        predict_all(arguments.out)
    else:
        fill_page(arguments.page, {"predicted": render(arguments.out)})


if __name__ == "__main__":
    main()

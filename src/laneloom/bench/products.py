"""Matrix products on a GPU, for benchmarks and the tuner: random operands, the call, a judgement against FP64."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import sqrt

import torch

from ..ops.matmul.api import matmul
from ..ops.matmul.config import MatmulConfig
from ..ops.matmul.problem import SCALE_BLOCK, MatmulProblem
from ..verify import SMALLEST, UNIT_ROUNDOFF

DTYPES = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64, "int8": torch.int8,
    "uint8": torch.uint8, "fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2, "int32": torch.int32,
}  # fmt: skip
#: relative error of a sum that a precision of FP32 operands may have, whatever torch's was
PRECISION_ERROR = {"ieee": 2.0**-24, "promoted": 2.0**-24, "tf32": 2.0**-10, "3xtf32": 2.0**-21, "3xbf16": 2.0**-22}
ROWS = 1024  #: of C that are judged at a time


def seeded(seed: int) -> torch.Generator:
    """Random numbers of the GPU."""
    return torch.Generator("cuda").manual_seed(seed)


def operands(problem: MatmulProblem, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random A and B, densely stored in the problem's layout."""
    generator = seeded(seed)
    pair = []
    for letter, rows, columns, dtype in (
        (problem.layout[0], problem.m, problem.k, problem.dtype_a),
        (problem.layout[1], problem.k, problem.n, problem.dtype_b),
    ):
        shape = (rows, columns) if letter == "n" else (columns, rows)
        if dtype in ("int8", "uint8"):
            low, high = (-128, 128) if dtype == "int8" else (0, 256)
            x = torch.randint(low, high, shape, dtype=DTYPES[dtype], device="cuda", generator=generator)
        else:
            wide = torch.float64 if dtype == "fp64" else torch.float32
            x = torch.randn(shape, dtype=wide, device="cuda", generator=generator).to(DTYPES[dtype])
        pair.append(x if letter == "n" else x.mT)
    return pair[0], pair[1]


def multiply(
    problem: MatmulProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: MatmulConfig | None
) -> torch.Tensor:
    """The call that is tuned."""
    precision = None if problem.precision == "ieee" else problem.precision
    return matmul(a, b, out=out, out_dtype=out.dtype, precision=precision, config=config)


def torch_product(dtype: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """What a user of torch would call for operands of a dtype; fp8 as FP32, with its faster sums."""
    if dtype == "fp8":
        one = torch.ones((), device="cuda")
        return lambda a, b: torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            a, b, one, one, out_dtype=torch.float32, use_fast_accum=True
        )
    return torch._int_mm if dtype == "int8" else torch.matmul  # pyright: ignore[reportPrivateImportUsage]


def relative_error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """|| out - truth || / || truth ||, infinite where an element is NaN."""
    error = ((out.double() - truth).norm() / truth.norm().clamp_min(1e-300)).item()
    return error if error == error else float("inf")


@lru_cache(maxsize=64)
def fp8_error_of_sums(k: int) -> float:
    """The worst error of torch's sums of k fp8 products on this GPU, for each unit of what was summed.

    Hopper's tensor cores keep about 14 bits of such a sum. Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024),
    3.3.2; torch has the same sums with use_fast_accum.
    """
    whole = -(-k // 16) * 16  # torch takes no others
    shapes = ((2048, whole), (4096, whole))  # tiles enough for every SM: with fewer, K may be split and errors smaller
    a, b = (torch.randn(s, device="cuda", generator=seeded(i)).to(torch.float8_e4m3fn) for i, s in enumerate(shapes))
    out = torch_product("fp8")(a, b.mT)
    a, b = a.double(), b.double()
    return ((out.double() - a @ b.mT).abs() / (a.abs() @ b.abs().mT)).max().item()


def judge(problem: MatmulProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> tuple[float, str | None]:
    """C against FP64 under the budget of `laneloom.verify`, some rows at a time.

    A sum of K terms may have an error of sqrt(K) units in the last place, whatever torch's was, which may sum in a
    better order; one of 8-bit floats on an NVIDIA GPU what torch's tensor cores have. Source: Higham and Mary, "A new
    approach to probabilistic rounding error analysis" (2019).
    Returns the worst element's share of its budget, infinite for NaN, and what is wrong or None.
    """
    share = 0.0
    unit_of_sums = UNIT_ROUNDOFF["fp64" if problem.dtype_a == "fp64" else "fp32"]
    if problem.dtype_a in ("fp8", "bf8") and a.is_cuda and torch.version.hip is None:
        summed = min(problem.k, SCALE_BLOCK) if problem.precision == "promoted" else problem.k
        unit_of_sums = max(unit_of_sums, fp8_error_of_sums(summed) / sqrt(problem.k))
    worst = max(PRECISION_ERROR[problem.precision] * (problem.dtype_a != "fp64"), sqrt(problem.k) * unit_of_sums)
    integers = problem.dtype_out == "int32"
    wide_b = b.double()
    for first in range(0, problem.m, ROWS):
        rows, got = a[first : first + ROWS], out[first : first + ROWS].double()
        truth = rows.double() @ wide_b
        if integers:  # exact in FP64 as long as the sums are below 2^53
            wrong = got != truth
            share = float("inf") if wrong.any() else share
        else:
            magnitude = rows.double().abs() @ wide_b.abs()
            if problem.dtype_a != "fp64":
                same = (rows.float() @ b.float()).double()
                worst = max(worst, ((same - truth).abs() / magnitude.clamp_min(1e-300)).max().item())
            sums = 2 * worst * magnitude
            unit, smallest = UNIT_ROUNDOFF[problem.dtype_out], SMALLEST[problem.dtype_out]
            budget = sums + (unit * (truth.abs() + sums)).clamp_min(smallest / 2)
            error = (got - truth).abs()
            wrong = ~(error <= budget)  # NaN is wrong
            share = max(share, (error / budget).nan_to_num(float("inf")).max().item())
        if wrong.any():
            row, column = (int(i) for i in wrong.nonzero()[0])
            return float("inf"), (
                f"wrong: {int(wrong.sum())} elements, the first C[{first + row}, {column}], "
                f"{got[row, column].item():.6g} in place of {truth[row, column].item():.6g}"
            )
    return share, None

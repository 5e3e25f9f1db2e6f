"""Random operands on a real GPU, a product into a poisoned and guarded buffer, and the judgement against FP64."""

from __future__ import annotations

import functools

import torch

from laneloom.gpu import get_gpu
from laneloom.ops.matmul.execute import schedule_of

GPU = get_gpu("sm_90a")
DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64, "int8": torch.int8,
    "uint8": torch.uint8, "int32": torch.int32, "fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2,
}  # fmt: skip
#: half a unit in the last place of 1.0
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24, torch.float64: 2**-53}
GUARD = 1024  #: elements on both sides of a poisoned output
LAYOUTS = ["nn", "nt", "tn", "tt"]


def operand(rows, columns, dtype, letter="n", seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (rows, columns) if letter == "n" else (columns, rows)
    if dtype in (torch.int8, torch.uint8):
        x = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda", generator=generator).view(dtype)
    else:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        x = torch.randn(shape, device="cuda", generator=generator, dtype=wide).to(dtype)
    return x if letter == "n" else x.mT


def norm_error(out, truth):
    """|| out - truth || / || truth ||, infinite where an element is NaN."""
    error = ((out.double() - truth).norm() / truth.norm().clamp_min(1e-300)).item()
    return error if error == error else float("inf")


@functools.cache
def error_of_torch(k, dtype, precision):
    """The error of torch's product of as many terms by its FP32 kernels (TF32 for that precision), on random data."""
    a, b = (operand(512, k, dtype, seed=5).float(), operand(k, 512, dtype, seed=6).float())
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        return norm_error(a @ b, a.double() @ b.double())
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def assert_right(out, a, b, precision="ieee", sums=None):
    """2 x the error of torch's sums of as many terms, what wgmma's own sums lose, one rounding; integers are exact."""
    product = a.double() @ b.double()
    if not a.dtype.is_floating_point:
        assert torch.equal(out.double(), product)
        return
    if sums is None:  # wgmma cuts the sums' last bits off; of fp8 it keeps about 13
        sums = {1: 2.0**-9, 2: 2.0**-18}.get(a.element_size(), 0.0)
    if a.dtype == torch.float64:  # the truth has as many roundings, in another order
        of_sums = ROUNDING[a.dtype] * max(a.shape[1], 1) ** 0.5
    else:
        of_sums = error_of_torch(a.shape[1], a.dtype, precision)
    budget = 2 * of_sums + sums + ROUNDING[out.dtype]
    error = norm_error(out, product)
    assert error <= budget, f"{error:.2e} over {budget:.2e}"


def run_twice(problem, config, a, b):
    """The output of two runs into a poisoned buffer; asserts equal bits and untouched guards."""
    assert config.why_invalid(problem, GPU) is None
    dtype = DTYPES[problem.dtype_out]
    poison = -77 if dtype == torch.int32 else float("nan")
    buffer = torch.empty(problem.m * problem.n + 2 * GUARD, dtype=dtype, device="cuda")
    results = []
    for _ in range(2):
        buffer.fill_(poison)
        out = buffer[GUARD:-GUARD].view(problem.m, problem.n)
        schedule_of(config).launch(problem, config, GPU, a, b, out)
        guards = torch.cat([buffer[:GUARD], buffer[-GUARD:]])
        assert (guards == poison if dtype == torch.int32 else guards.isnan()).all(), "written outside of C"
        results.append(out.clone())
    assert torch.equal(*(r.view(torch.uint8) for r in results)), "not the same bits twice"
    return results[0]

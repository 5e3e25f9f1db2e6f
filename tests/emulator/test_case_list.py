"""Every preset x every dtype that it takes x every emulated GPU on the case list, in strict emulation, every element.

A sample runs always; LANELOOM_ALL_CASES=1 runs the product, hours on one core, shuffled so that any beginning is fair.
"""

from __future__ import annotations

import os
from itertools import product
from zlib import crc32

import pytest
from sampled import EVERYTHING

import laneloom
from laneloom import verify
from laneloom.errors import InvalidConfigError
from laneloom.ops.matmul import reference
from laneloom.ops.matmul.dtypes import ACCUMULATORS, Int4
from laneloom.ops.matmul.presets import PRESETS

torch = pytest.importorskip("torch")

GPUS = ("gfx1100", "gfx1151", "gfx1201")
#: a's and b's dtypes; "fp16/fp16" sums in fp16
DTYPES = (
    ("fp16", "fp16"), ("bf16", "bf16"), ("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8"),
    ("int4", "int4"), ("uint4", "int4"), ("fp8", "fp8"), ("fp8", "bf8"), ("bf8", "fp8"), ("bf8", "bf8"),
    ("fp32", "fp32"), ("fp64", "fp64"), ("fp16/fp16", "fp16"), ("bf16/bf16", "bf16"),
)  # fmt: skip
#: m, n, k and layout: 1, primes, around the tiles, one short side, a short K, strides
CASES = (
    (1, 1, 2, "nn"), (67, 131, 38, "nn"), (127, 63, 14, "nt"), (128, 64, 16, "tn"), (129, 65, 18, "tt"),
    (5, 257, 66, "nn"), (263, 3, 34, "nt"), (64, 64, 130, "strided"),
)  # fmt: skip
TORCH = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
    "fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2, "int8": torch.int8, "uint8": torch.uint8,
}  # fmt: skip
NAMES = ["planned", *PRESETS]
SAMPLE = 14 if EVERYTHING else 6


def _jobs() -> list[tuple]:
    """All jobs, shuffled by their names so that any beginning is a fair sample."""
    jobs = list(product(NAMES, DTYPES, GPUS, CASES))
    jobs.sort(key=lambda job: crc32(repr(job).encode()))
    return jobs if os.environ.get("LANELOOM_ALL_CASES") else jobs[:SAMPLE]


def _operand(dtype: str, rows: int, columns: int, axis: int, stored: str):
    """The values, and what a call takes: `axis` is K's, for operands in pairs."""
    if dtype.endswith("int4"):
        low = -8 if dtype == "int4" else 0
        values = torch.randint(low, low + 16, (rows, columns))
        packed = Int4.pack(values, axis, signed=dtype == "int4")
        return values, Int4(_placed(packed.packed, stored), packed.signed)
    if dtype.endswith("int8"):
        limits = torch.iinfo(TORCH[dtype])
        values = torch.randint(limits.min, limits.max + 1, (rows, columns)).to(TORCH[dtype])
    else:
        values = torch.randn(rows, columns, dtype=torch.float64).to(TORCH[dtype])
    return values, _placed(values, stored)


def _placed(x: torch.Tensor, stored: str) -> torch.Tensor:
    """x row-major ("n"), column-major ("t"), or with gaps along both axes ("s")."""
    if stored == "t":
        return x.mT.contiguous().mT
    if stored == "n":
        return x
    gaps = torch.zeros(2 * x.shape[0], 3 * x.shape[1], dtype=torch.float64).to(x.dtype)[::2, ::3]
    gaps.copy_(x)
    return gaps


@pytest.mark.parametrize("job", _jobs(), ids=lambda job: "-".join(map(str, (*job[:1], *job[1], job[2], *job[3]))))
def test_case(job):
    name, (dtype_a, dtype_b), gpu, (m, n, k, layout) = job
    torch.manual_seed(crc32(repr(job).encode()))
    dtype_a, _, summed = dtype_a.partition("/")
    stored = layout if len(layout) == 2 else "ss"
    values_a, a = _operand(dtype_a, m, k, -1, stored[0])
    values_b, b = _operand(dtype_b, k, n, -2, stored[1])
    accumulator = summed or ACCUMULATORS[dtype_a][0]
    out_name = accumulator if accumulator != "fp32" or dtype_a in ("fp8", "bf8") else dtype_a
    with laneloom.emulated(gpu, strict=True, seed=crc32(name.encode())):
        guarded = verify.Guarded((m, n), out_name)
        out = torch.from_numpy(guarded.array)
        out = out.view(torch.bfloat16) if out_name == "bf16" else out
        try:
            laneloom.matmul(a, b, out=out, acc_dtype=summed or None, config=None if name == "planned" else name)
        except InvalidConfigError as error:  # a preset says itself what it does not take
            pytest.skip(str(error))
    assert guarded.untouched_outside()
    values = [v.double().numpy() if v.is_floating_point() else v.numpy() for v in (values_a, values_b)]
    got = guarded.array if out_name == "int32" else verify.decode(guarded.array, out_name)
    verdict = reference.judge(got, *values, out_name, accumulator)
    assert verdict.ok, verdict

"""Machine code of quantised blocks: whole 16 bytes both ways, and 8-bit floats made as each GPU can."""

from __future__ import annotations

import re

import pytest

from laneloom.codegen import CodeObject
from laneloom.gpu import get_gpu
from laneloom.ops.quantize.kernels.blocks import THREADS, code_object
from laneloom.ops.quantize.problem import TILE_ROWS, problem_of

GPUS = ("gfx1151", "gfx1201", "gfx942", "sm_90a")


def compiled(gpu: str, rows: int, dtype: str, dtype_q: str) -> CodeObject:
    problem = problem_of((512, 7168), (7168, 1), rows, dtype, dtype_q)
    assert problem is not None
    code = code_object(problem, get_gpu(gpu))
    assert code.spills == 0
    return code


def accesses(code: CodeObject) -> list[str]:
    """What follows the names of loads and stores, but for the one store of scales."""
    names = r"(?:ld|st)\.global(?:\.\w+)*?\.(v\d\.b32|b32|b8)\b|(?:global|buffer)_(?:load|store)_(\w+)"
    return [ptx or amd for ptx, amd in re.findall(names, code.asm)]


@pytest.mark.covering
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype_q", ["fp8", "bf8"])
def test_accesses_have_16_bytes(gpu, rows, dtype, dtype_q):
    found = accesses(compiled(gpu, rows, dtype, dtype_q))
    whole = [width for width in found if width in ("v4.b32", "b128", "dwordx4")]
    numbers = TILE_ROWS[rows] * 128 // THREADS[rows]
    assert len(whole) == numbers * (5 if dtype == "fp32" else 3) // 16, found
    assert [width for width in found if width not in whole] in (["b32"], ["dword"]), "the scales"


def test_conversions():
    """Hopper's instruction where it is what OCP says; CDNA 3's makes FNUZ floats, and is not there."""
    assert "cvt.rn.satfinite.e4m3x2.f32" in compiled("sm_90a", 1, "bf16", "fp8").asm
    assert "e5m2" not in compiled("sm_90a", 1, "bf16", "bf8").asm
    for gpu in ("gfx942", "gfx1201"):
        assert not re.search(r"v_cvt\w*_(fp8|bf8)", compiled(gpu, 1, "bf16", "fp8").asm)

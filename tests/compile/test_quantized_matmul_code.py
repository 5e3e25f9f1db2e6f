"""Machine code of products with weights of few bits: matrix instructions, no spills, and how many integers unpack."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from laneloom.codegen import CodeObject
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.problem import Matrix
from laneloom.ops.quantized_matmul.config import QuantizedConfig
from laneloom.ops.quantized_matmul.config_fragments import FragmentsConfig
from laneloom.ops.quantized_matmul.execute import code_object
from laneloom.ops.quantized_matmul.plan import candidates, plan
from laneloom.ops.quantized_matmul.problem import QuantizedProblem

GPUS = ("gfx1100", "gfx1151", "gfx1201", "gfx90a", "gfx942", "gfx950", "sm_90a")
KINDS = ("int4", "uint4", "fp4", "int8", "fp8")
MATRIX = r"\bv_wmma_|\bv_mfma_|\bwgmma\.mma_async|\bmma\.sync"


def compiled(gpu: str, m: int, kind: str, dtype: str, **how) -> CodeObject:
    problem = QuantizedProblem.contiguous(m, 4096, 4096, dtype=dtype, dtype_w=kind, zeros=kind == "uint4", **how)
    row = get_gpu(gpu)
    tile = next(config for config in candidates(problem, row) if isinstance(config, QuantizedConfig))
    assert tile.why_invalid(problem, row) is None
    code = code_object(problem, row, tile)
    one = (gpu, m, kind, dtype) == ("sm_90a", 16, "uint4", "fp16")  # Triton 3.9's ptxas spills one register of it
    assert code.spills <= one
    assert code.lds_bytes <= row.lds_bytes
    return code


@pytest.mark.covering
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("m", [1, 16, 64, 512])
def test_planned_tiles_spill_nothing(gpu, kind, dtype, m):
    """One row has no use for a matrix instruction's 16, others are multiplied by it."""
    code = compiled(gpu, m, kind, dtype)
    assert bool(re.search(MATRIX, code.asm)) == (m > 1)


@pytest.mark.covering
@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1151", "gfx1201", "gfx942", "gfx950"])
@pytest.mark.parametrize("kind", [*KINDS, "mxfp4"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("group", [0, 32, 128])
def test_planned_fragments_spill_nothing(gpu, kind, dtype, group):
    """W goes from memory to a matrix instruction in one lane: X's tile alone is read from LDS, 16 bytes a lane."""
    row = get_gpu(gpu)
    problem = QuantizedProblem.contiguous(
        512, 4096, 4096, dtype="bf16" if kind == "mxfp4" else dtype, dtype_w=kind.removeprefix("mx"), group=group,
        dtype_scale="e8m0" if kind == "mxfp4" else "fp16", zeros=kind == "uint4" and group != 32,
    )  # fmt: skip
    tile = plan(problem, row)
    if not isinstance(tile, FragmentsConfig):
        assert row.wmma_version == 1
        assert group == 32 or not problem.is_packed
        return
    code = code_object(problem, row, tile)
    assert code.spills == 0
    assert code.lds_bytes <= row.lds_bytes
    read = len(re.findall(r"\bds_(?:load|read)_b128\b", code.asm))
    assert read >= tile.block_m * tile.block_k * (2 if row.wmma_version == 1 else 1) // row.wave_sizes[0] // 8
    assert not re.search(r"\bds_bpermute|\bds_(?:load|read)_u8", code.asm)


@pytest.mark.covering
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx942"])
@pytest.mark.parametrize("kind", [*KINDS, "mxfp4"])
@pytest.mark.parametrize(("rows", "k"), [(32, 4096), (128, 4096), (512, 4096), (64, 4160)])
@pytest.mark.parametrize("group", [0, 32, 128])
def test_planned_fragments_of_rows_in_groups_spill_nothing(gpu, kind, rows, k, group):
    """With a bias, tiles of every size."""
    problem = QuantizedProblem.contiguous(
        16 * rows, 4096, k, dtype="bf16", dtype_w=kind.removeprefix("mx"), group=group, bias="bf16", batch=16,
        dtype_scale="e8m0" if kind == "mxfp4" else "fp16", zeros=kind == "uint4" and group != 32, ragged=True,
    )  # fmt: skip
    tile = plan(problem, get_gpu(gpu))
    if group and k % group:
        return
    assert isinstance(tile, FragmentsConfig)
    code = code_object(problem, get_gpu(gpu), tile)
    assert code.spills == 0
    assert code.lds_bytes <= get_gpu(gpu).lds_bytes


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_four_bits_become_two_halves_by_four_instructions(gpu):
    """One `and`, one `xor` for both numbers of a byte: of 16 x 256 a lane of two waves has 32 bytes."""
    asm = compiled(gpu, 1, "int4", "fp16").asm
    pairs = 16 * 256 // 64 // 2
    for word in ("0xf000f", "0x64086408"):
        assert len(re.findall(rf"\b{word}\b", asm)) == pairs
    loads = re.findall(r"(?:global|buffer)_load_b128", asm)
    assert len(loads) == 2, "16 bytes of 2 rows a lane"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [16, 64, 512])
def test_weights_along_n_compile_for_nvidia(kind, m):
    """Bytes whose neighbours in memory are rows; Triton's own passes fail on the join of these."""
    row = get_gpu("sm_90a")
    problem = QuantizedProblem.contiguous(m, 4096, 4096, dtype_w=kind, zeros=kind == "uint4")
    problem = replace(problem, values=Matrix((0, 0, 1, 4096)))
    code = code_object(problem, row)
    assert re.search(MATRIX, code.asm)
    moves = re.findall(r"begin inline asm(?:\s+\.loc.*)?\s+mov\.b32", code.asm)
    assert bool(moves) == problem.is_packed, "or the sums of K-tiles of 16 are wrong (tests/gpu has the values)"

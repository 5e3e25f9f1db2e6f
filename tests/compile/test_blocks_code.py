"""Machine code of products whose blocks along K have scales, or whose sums are promoted: Hopper's by NVRTC; `blocks`
for every AMD GPU."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest
import triton
from hopper_compiled import GPU, compile_valid
from sampled import EVERYTHING, rarely
from sass_listing import disassemble

from laneloom.codegen.nvrtc import nvrtc_version
from laneloom.gpu import GPUS, get_gpu
from laneloom.ops.matmul.config_blocks import BlocksConfig, multiplies_float8
from laneloom.ops.matmul.config_cluster import ClusterConfig
from laneloom.ops.matmul.execute import schedule_of
from laneloom.ops.matmul.plan_blocks import FREE_TILES, TILES
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem, Matrix

MANY, ONE = 4096, 256  #: rows and columns: several tiles a CTA, or one at most


def blocks(rows: int = 1, columns: int = 128, size: int = MANY) -> MatmulProblem:
    return MatmulProblem.contiguous(
        size, size, 2048, dtype="fp8", dtype_out="bf16", layout="nt", scales=(rows, columns))  # fmt: skip


def promoted(out: str = "bf16", epilogue: Epilogue | None = None, size: int = MANY) -> MatmulProblem:
    return MatmulProblem.contiguous(
        size, size, 2048, dtype="fp8", dtype_out=out, layout="nt", precision="promoted", epilogue=epilogue)  # fmt: skip


def of_columns(columns: int, size: int = MANY) -> MatmulProblem:
    return blocks(columns=columns, size=size) if columns else promoted(size=size)


def planned(columns: int) -> list[ClusterConfig]:
    """The tiles that a plan can choose where so many columns share a scale, or none has one."""
    problem = of_columns(columns)
    configs = [
        ClusterConfig(block_m=m, block_n=n, block_k=128, stages=3, consumers=consumers, scaled=scaled, dual=dual)
        for m, n, consumers, scaled in (*TILES, *(() if columns else FREE_TILES)) for dual in (False, True)
    ]  # fmt: skip
    return [config for config in configs if config.why_invalid(problem, GPU) is None]


def name_of(columns: int, config: ClusterConfig) -> str:
    return f"{config.block_m}x{config.block_n}{' dual' * config.dual}{' two' * (config.scaled > 1)}, {columns}"


CASES = {name_of(columns, config): (columns, config) for columns in (0, 1, 128) for config in planned(columns)}
#: of each way to multiply a slice a large tile: as it is, dual, in two parts, by three, in two strips
LARGE = (
    "64x128, 128", "64x96 dual, 1", "128x256 two, 1", "192x128, 128", "256x128, 128", "128x192, 0", "256x128, 0",
    "128x128 dual, 0",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES if EVERYTHING else LARGE)
@pytest.mark.parametrize("size", [MANY, *rarely(ONE)])
def test_a_slice_has_one_wait_for_each_of_its_units(name, size):
    """What ptxas takes for a use of sums in flight it answers by a wait behind every wgmma. `compile_valid` finds
    spills."""
    columns, config = CASES[name]
    one = config.one_tile(of_columns(columns, size))
    assert one == (size == ONE)
    # CUDA 13.0 keeps six sums of this tile, once for each, in memory between the last slice and C.
    kept = 6 if (name, nvrtc_version()) == ("128x256 two, 1", "13.0") else 0
    code = compile_valid(of_columns(columns, size), config, kept)
    width, units = config.block_n // config.scaled, config.strips * config.scaled
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+)", code.asm)
    assert set(found) == {f"m64n{width}k32.f32.e4m3.e4m3"}
    sass = disassemble(code)
    # Dual: two slices of the loop and an odd one are asked for, and a tile's first in two places; five are waited for.
    # Else the units of the loop's slice, those of the last one but its first, and a tile's first in two places. In one
    # if it is the CTA's only tile.
    assert sass.count("QGMMA") == len(found) == 4 * ((5 if config.dual else 2 * units - 1 + 2) - one)
    # Perhaps one more at the very end or, of several warpgroups, behind the barrier of the turn that nobody took.
    waits = sass.count("WARPGROUP.DEPBAR") - len(re.findall(r"WARPGROUP\.DEPBAR[^\n]*\n[^\n]*EXIT", sass))
    assert waits - (5 if config.dual else 2 * units) in range(1 + (config.consumers > 1))
    assert "WARPSYNC" not in sass, "ptxas takes the loop for lanes that go their own ways: 32 R2UR for two slices"
    assert ("cp.async.mbarrier.arrive.noinc" in code.asm) == (columns > 0), "scales come by copies"
    added = sass.count("FADD" if columns == 0 else "FFMA")
    assert added >= config.block_m // config.consumers // 64 * config.block_n // 2, "sums of a slice are added in FP32"
    assert ("ldmatrix" in code.asm) == (config.scaled > 1), "A in registers where two parts read it"


ROW_SCALES = Epilogue(bias=("n", 1), dtype_bias="bf16", scale_a="row", scale_b="column", activation="silu")


@pytest.mark.parametrize("out", ["bf16", *rarely("fp32")])
@pytest.mark.parametrize("config", [
    config for config in planned(0)
    if EVERYTHING or (config.block_m, config.block_n) in ((128, 128), (256, 128), (128, 192))
], ids=functools.partial(name_of, 0))  # fmt: skip
def test_promoted_sums_beside_terms_spill_nothing(config, out):
    problem = promoted(out, ROW_SCALES)
    if config.why_invalid(problem, GPU) is None:
        compile_valid(problem, config)


TERMS = {"scaled": True, "bias": ("n", 1), "dtype_bias": "fp32", "activation": "gelu"}
ADDED = {**TERMS, "addend": Matrix((0, 0, MANY, 1)), "dtype_addend": "bf16"}


@pytest.mark.parametrize(("terms", "out", "columns", "knobs"), [
    (ADDED, "bf16", 1, {"block_n": 176, "scaled": 2, "tma_store": False}),
    *rarely(
        (TERMS, "fp32", 128, {"block_n": 128, "dual": True, "tma_store": False}),
        (TERMS, "bf16", 1, {"block_m": 64, "block_n": 240, "scaled": 2, "consumers": 1, "panels": 2}),
        (TERMS, "bf16", 1, {"block_m": 192, "block_n": 120, "consumers": 3, "panels": 2}),
        (ADDED, "bf16", 128, {"block_m": 64, "block_n": 128, "dual": True, "consumers": 1, "tma_store": False}),
        (ADDED, "fp32", 1, {"block_n": 80, "dual": True, "panels": 2}),
        (None, "fp32", 1, {"block_n": 120, "split_k": 3, "block_m": 192, "consumers": 3, "tma_store": False}),
        (None, "bf16", 1, {"block_n": 224, "scaled": 2, "tma_store": False}),
    ),
])  # fmt: skip
def test_the_largest_that_are_valid_spill_nothing(terms, out, columns, knobs):
    """What a thread holds beside its sums differs by what is written and how."""
    epilogue = Epilogue(**terms) if terms else None
    problem = replace(blocks(columns=columns), dtype_out=out, epilogue=epilogue)
    config = ClusterConfig(**{"block_m": 128, "block_k": 128, "stages": 3, "scaled": 1} | knobs)
    compile_valid(problem, config)
    if columns == 1:
        assert config.with_knobs(block_n=config.block_n + 16).why_invalid(problem, GPU)


#: GPUs that test_gemm_blocks.py does not emulate, and what emulation does not see: registers
AMD = [name for name, gpu in GPUS.items() if gpu.vendor == "amd"]


@pytest.mark.parametrize("name", AMD if EVERYTHING else ["gfx1100", "gfx908", "gfx950"])
def test_blocks_compile(name):
    """A tile for every GPU: OCP's 8-bit floats go to the matrix instruction that takes them, or become bf16."""
    gpu = get_gpu(name)
    config = BlocksConfig(block_m=16, block_n=16, block_k=64, num_warps=1)
    assert config.why_invalid(blocks(), gpu) is None
    code = schedule_of(config).code_object(blocks(), config, gpu)
    # Triton 3.6 makes bf16 of 8-bit floats by so many instructions that RDNA 3 has no registers for them.
    assert code.spills == 0 or (gpu.family.startswith("RDNA 3") and triton.__version__.startswith("3.6"))
    assert code.lds_bytes <= gpu.lds_bytes
    words = {line.split()[0] for line in code.asm.splitlines() if re.match(r"\s+v_(wmma|mfma)", line)}
    assert words
    kinds = "fp8|f8f6f4" if multiplies_float8(blocks(), gpu) else "bf16"
    assert all(re.search(kinds, word) for word in words), words

"""Machine code of the WMMA schedule: what the hot loop of every planned tile has to look like, for three GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sampled import in_turn, rarely, sampled, without

from laneloom.codegen import CodeObject
from laneloom.gpu import get_gpu
from laneloom.isa.analysis import Loop, has_spills, hot_loop, loads_are_wide, matrix_overlap, order
from laneloom.isa.listing import Kind
from laneloom.ops.matmul.config import plan
from laneloom.ops.matmul.config_wmma import WmmaConfig
from laneloom.ops.matmul.execute import code_object
from laneloom.ops.matmul.plan_wmma import TILES
from laneloom.ops.matmul.problem import MatmulProblem

GPUS = (*rarely("gfx1100"), "gfx1151", "gfx1201")
LARGE = WmmaConfig(block_m=128, block_n=128, block_k=32)


def compiled(gpu: str, config: WmmaConfig, layout: str, **sizes) -> tuple[CodeObject, Loop]:
    problem = MatmulProblem.contiguous(512, 512, 512, layout=layout, **sizes)
    code = code_object(problem, get_gpu(gpu), config)
    loop = hot_loop(code.asm)
    assert loop is not None
    return code, loop


def check(code: CodeObject, loop: Loop) -> None:
    assert not has_spills(code.asm)
    assert code.scratch_bytes == 0
    assert loads_are_wide(loop), "a global or LDS load of the loop is narrower than 16 bytes"
    assert matrix_overlap(loop) == 1.0, f"a global load is waited for before the matrix instructions: {order(loop)}"
    assert order(loop).count("BAR") == (2 if code.num_warps > 1 else 0)


@pytest.mark.covering
@pytest.mark.turning("layout", 2)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("gpu", GPUS)
def test_large_tile(gpu, layout):
    code, loop = compiled(gpu, LARGE, layout)
    check(code, loop)
    assert loop.count(Kind.MATRIX) == 32
    assert loop.count(Kind.GLOBAL_LOAD) == 8
    assert loop.count(Kind.LDS_LOAD) == (16 if gpu == "gfx1201" else 32)
    assert code.lds_bytes == 2 * 2 * (128 + 128) * 32


@pytest.mark.covering
@pytest.mark.parametrize(
    "number", sampled(range(1, len(TILES))), ids=lambda n: f"{TILES[n][0].block_m}x{TILES[n][0].block_n}")  # fmt: skip
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_planned_tiles(gpu, number):
    for layout in in_turn(number // 2 + (gpu == "gfx1201"), "nt", "nn"):
        check(*compiled(gpu, TILES[number][0], layout))


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_pieces_of_shared_tiles_are_the_plain_loop(gpu):
    code, loop = compiled(gpu, replace(LARGE, stream_k=1), "nn")
    check(code, loop)
    assert loop.count(Kind.MATRIX) == 32
    stores = {line.split()[0] for line in code.asm.splitlines() if line.strip().startswith("global_store")}
    assert stores == {"global_store_b128"}


@pytest.mark.parametrize("gpu", GPUS)
def test_padded_lds(gpu):
    for layout in in_turn(gpu == "gfx1201", "nt", "nn"):
        code, loop = compiled(gpu, WmmaConfig(block_m=128, block_n=128, block_k=32, lds="padded"), layout)
        check(code, loop)
        assert code.lds_bytes > 2 * 2 * (128 + 128) * 32


@pytest.mark.covering
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
@pytest.mark.parametrize(("dtype", "dtype_out"), [("bf16", "bf16"), ("bf16", "fp32"), ("fp16", "fp32")])
def test_dtypes(gpu, dtype, dtype_out):
    code, loop = compiled(gpu, LARGE, "nt", dtype=dtype, dtype_out=dtype_out)
    check(code, loop)
    matrix = {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX}
    assert matrix == {f"v_wmma_f32_16x16x16_{'bf16' if dtype == 'bf16' else 'f16'}"}
    stores = {line.split()[0] for line in code.asm.splitlines() if line.strip().startswith("global_store")}
    assert stores == {"global_store_b128"}


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_transposed_operand_is_stored_to_lds_in_wide_pieces(gpu):
    _, loop = compiled(gpu, LARGE, "nn")
    widths = {i.width_bytes for i in loop.instructions if i.kind is Kind.LDS_STORE}
    assert widths == {8, 16}


@pytest.mark.covering
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_unaligned_operands_do_not_spill(gpu, layout):
    problem = MatmulProblem.contiguous(511, 509, 503, layout=layout, batch=3)
    code = code_object(problem, get_gpu(gpu))
    loop = hot_loop(code.asm)
    assert loop is not None
    assert not has_spills(code.asm)
    assert matrix_overlap(loop) == 1.0
    assert not any(i.width_bytes < 16 for i in loop.instructions if i.kind is Kind.LDS_LOAD)


@pytest.mark.covering
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
@pytest.mark.turning("layout", 2)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_plan_for_large_products_has_wide_accesses_only(gpu, layout):
    """LDS loads and stores and global loads 16 bytes wide, and at least as many matrix instructions as LDS loads."""
    problem = MatmulProblem.contiguous(4096, 4096, 4096, layout=layout)
    assert plan(problem, get_gpu(gpu)).schedule == ("wmma" if layout == "nt" else "wmma_wide")
    code = code_object(problem, get_gpu(gpu))
    loop = hot_loop(code.asm)
    assert loop is not None
    assert not has_spills(code.asm)
    assert matrix_overlap(loop) == 1.0
    memory = (Kind.GLOBAL_LOAD, Kind.LDS_LOAD, Kind.LDS_STORE)
    assert {i.width_bytes for i in loop.instructions if i.kind in memory} == {16}
    assert loop.count(Kind.MATRIX) >= loop.count(Kind.LDS_LOAD) * (2 if gpu == "gfx1201" else 1)


INSTRUCTIONS = {
    ("int8", "int8", ""): "v_wmma_i32_16x16x16_iu8", ("uint8", "int8", ""): "v_wmma_i32_16x16x16_iu8",
    ("int4", "uint4", ""): "v_wmma_i32_16x16x16_iu4", ("fp8", "bf8", ""): "v_wmma_f32_16x16x16_f16",
    ("fp16", "fp16", "fp16"): "v_wmma_f16_16x16x16_f16", ("bf16", "bf16", "bf16"): "v_wmma_bf16_16x16x16_bf16",
    ("fp32", "fp32", ""): "v_dual_fmac_f32", ("fp64", "fp64", ""): "v_fma_f64",
}  # fmt: skip
RDNA_4 = {
    ("int4", "uint4", ""): "v_wmma_i32_16x16x32_iu4", ("fp8", "bf8", ""): "v_wmma_f32_16x16x16_bf8_fp8",
}  # fmt: skip


@pytest.mark.each_dtype
@pytest.mark.parametrize(
    ("dtypes", "gpu"),
    [(dtypes, gpu) for n, dtypes in enumerate(without(INSTRUCTIONS, ("int8", "int8", ""), ("bf16", "bf16", "bf16")))
     for gpu in (("gfx1201", *rarely("gfx1151")) if dtypes in RDNA_4 else in_turn(n, "gfx1151", "gfx1201"))],
    ids=lambda value: value if isinstance(value, str) else "_".join(filter(None, value)),
)  # fmt: skip
def test_each_dtype_has_its_instruction(dtypes, gpu):
    a, b, acc = dtypes
    problem = MatmulProblem.contiguous(4096, 4096, 4096, dtype=a, dtype_b=b, dtype_acc=acc, layout="nt")
    code = code_object(problem, get_gpu(gpu))
    loop = hot_loop(code.asm)
    assert loop is not None
    assert not has_spills(code.asm)
    wanted = (RDNA_4 if gpu == "gfx1201" else {}).get(dtypes, INSTRUCTIONS[dtypes])
    found = [i for i in loop.instructions if i.mnemonic == wanted]
    multiplying = ("v_wmma", "v_fma", "v_fmac", "v_dual_fmac")
    assert len(found) >= 0.85 * sum(i.mnemonic.startswith(multiplying) for i in loop.instructions)
    assert len(found) >= 16
    if acc == "" and a not in ("fp64", "fp32"):
        memory = (Kind.GLOBAL_LOAD, Kind.LDS_LOAD, Kind.LDS_STORE)
        assert {i.width_bytes for i in loop.instructions if i.kind in memory} == {16}
    signs = {("uint8", "int8"): "1,0", ("int4", "uint4"): "0,1", ("int8", "int8"): "1,1"}
    if (a, b) in signs:  # of B first: the kernel computes the transpose
        assert all(f"neg_lo:[{signs[a, b]},0]" in i.text for i in found)


def test_wmma_does_not_depend_on_masks():
    """The hardware ignores EXEC in matrix instructions or wants it full: none may stand in a masked region."""
    problem = MatmulProblem.contiguous(130, 130, 40, layout="nt")
    for gpu in ("gfx1151", "gfx1201"):
        text = code_object(problem, get_gpu(gpu), LARGE).asm
        body = text[: text.index("s_endpgm")].splitlines()
        last = max(n for n, line in enumerate(body) if "v_wmma" in line)
        masked = [n for n, line in enumerate(body) if "global_store" in line]
        assert last < min(masked)


def test_wide_offsets_compile_without_spills():
    """Rows of 2**26 elements: offsets inside a tile pass 32 bits."""
    problem = MatmulProblem.contiguous(256, 256, 1 << 26, layout="nt")
    for gpu in ("gfx1151", "gfx1201"):
        code = code_object(problem, get_gpu(gpu), WmmaConfig(block_m=64, block_n=64, block_k=32))
        assert not has_spills(code.asm)

"""Machine code of Hopper's CUDA C++ matmul schedules, compiled by NVRTC without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hopper_compiled import GPU, compile_valid
from sampled import rarely, sampled, without
from sass_listing import disassemble, loops_of

from laneloom.ops.matmul.config import plan
from laneloom.ops.matmul.config_cluster import ClusterConfig
from laneloom.ops.matmul.config_precise import PRECISE_TILES, PreciseConfig
from laneloom.ops.matmul.config_registers import RegistersConfig
from laneloom.ops.matmul.config_sums import most_sums
from laneloom.ops.matmul.execute import schedule_of
from laneloom.ops.matmul.plan_few import few_configs
from laneloom.ops.matmul.plan_groups import OF_ROWS, OF_SCALED, plan_groups, tile_config
from laneloom.ops.matmul.plan_short import short_configs
from laneloom.ops.matmul.problem import BlockScales, Epilogue, MatmulProblem, Matrix

BIG = ClusterConfig(block_m=128, block_n=256, block_k=64, stages=4, panels=2, cluster_m=2)
IN_PIECES = {"promote": 1, "copy_a": True, "copy_b": True}


def compiled(problem, config):
    code = compile_valid(problem, config)
    assert "griddepcontrol.wait" in code.asm
    assert "griddepcontrol.launch_dependents" in code.asm
    assert "cp.async.bulk.tensor.4d.shared::cluster.global" in code.asm, "TMA loads"
    return code


def wgmmas(code):
    return re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+)", code.asm)


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_a_cluster_multicasts_and_stores_by_tma(layout):
    code = compiled(MatmulProblem.contiguous(512, 512, 512, dtype="bf16", layout=layout), BIG)
    assert set(wgmmas(code)) == {"m64n256k16.f32.bf16.bf16"}
    assert len(wgmmas(code)) == 4, "the four of a slice, once"
    assert ".multicast::cluster" in code.asm
    assert "cp.async.bulk.tensor.4d.global" in code.asm, "TMA stores"
    assert "setmaxnreg" in code.asm
    # A release of the cluster's scope becomes a memory barrier of the whole GPU, a microsecond for each slice.
    assert "release.cluster" not in code.asm.replace("mbarrier_init.release.cluster", "")


@pytest.mark.parametrize(
    ("sizes", "layout", "knobs"),
    [
        ((128, 6144, 4096), "nn", {"block_n": 96, "consumers": 1, "cluster_m": 2, "stages": 8}),
        ((512, 512, 512), "nn", {"block_n": 64, "consumers": 1, "stages": 10, "fetched": 8}),
        ((400, 1536, 7168), "nt", {"block_n": 80, "consumers": 1, "cluster_m": 4, "stages": 11, "swapped": True}),
        ((1000, 1000, 1000), "nn", {"block_m": 128, "block_n": 64, "cluster_m": 2, "stages": 7, "line": 64}),
    ],
)  # fmt: skip
def test_the_loops_are_short(sizes, layout, knobs):
    """Instructions are power, and small tiles wait for the producer. What wgmma and the copy engine are given lies in
    uniform registers: else there are moves to them, and a loop over lanes around each request."""
    problem = MatmulProblem.contiguous(*sizes, dtype="bf16", layout=layout)
    config = ClusterConfig(**{"block_m": 64, "block_k": 64, **knobs})
    loops = loops_of(compiled(problem, config))
    multiplying = next(loop for loop in loops if any("HGMMA" in line for line in loop))
    asking = next(loop for loop in loops if any("UTMALDG" in line for line in loop))
    assert sum("HGMMA" in line for line in multiplying) == 4
    assert len(multiplying) <= 54
    assert not any("R2UR" in line for line in multiplying)
    assert sum("UTMALDG" in line for line in asking) >= 2, "not a loop around one request"
    assert len(asking) <= 42


TERMS = {
    "none": None,
    "scales": Epilogue(scale_a="row", scale_b="column"),
    "bias, gelu": Epilogue(bias=("n", 1), dtype_bias="bf16", activation="gelu"),
    "all": Epilogue(True, Matrix((0, 0, 512, 1)), "bf16", ("n", 1), "fp32", "gelu", "row", "column"),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize(("n", "by_tma"), [(512, True), *rarely((512, False)), (513, False)])
def test_tiles_of_one_warpgroup_spill_nothing(n, by_tma, name, swapped):
    """The widest that there are registers for, stored by TMA or by lanes; wgmmas wait for nothing but each other."""
    e = TERMS[name]
    if swapped and e and e.addend:
        pytest.skip("C's transpose has no addend")
    if e and e.addend:
        e = replace(e, addend=Matrix((0, 0, n, 1)))
    problem = MatmulProblem.contiguous(4096, n, 512, dtype="bf16", layout="nt", epilogue=e)
    config = ClusterConfig(
        block_m=128, block_n=64, block_k=64, stages=4, own_tiles=True, swapped=swapped, tma_store=by_tma)  # fmt: skip
    loops = loops_of(compiled(problem, config.with_knobs(block_n=most_sums(config, problem))))
    multiplying = next(loop for loop in loops if any("HGMMA" in line for line in loop))
    assert sum("HGMMA" in line for line in multiplying) == 8
    assert sum("WARPGROUP.DEPBAR" in line for line in multiplying) == 1


@pytest.mark.parametrize(
    ("dtype", "out", "precision", "config", "instruction", "count"),
    [
        ("fp8", "bf16", "ieee", {"block_k": 128}, "m64n128k32.f32.e4m3.e4m3", 4),
        ("int8", "int32", "ieee", {"block_k": 128}, "m64n128k32.s32.s8.s8", 4),
        ("fp32", "fp32", "tf32", {"block_k": 32}, "m64n128k8.f32.tf32.tf32", 4),
        ("fp32", "fp32", "3xtf32", {"block_k": 32, "pieces": 2, "stages": 3, **IN_PIECES},
         "m64n128k8.f32.tf32.tf32", 12),
        ("fp32", "fp32", "3xbf16", {"block_k": 64, "pieces": 3, "stages": 2, **IN_PIECES},
         "m64n128k16.f32.bf16.bf16", 24),
    ],
)  # fmt: skip
def test_every_kind_goes_to_its_instruction(dtype, out, precision, config, instruction, count):
    knobs = {"block_m": 128, "block_n": 128, "stages": 6, **config}
    problem = MatmulProblem.contiguous(512, 512, 512, dtype=dtype, dtype_out=out, layout="nt", precision=precision)
    found = wgmmas(compiled(problem, ClusterConfig(**knobs)))
    assert set(found) == {instruction}
    assert len(found) == count


@pytest.mark.parametrize("sizes", [(64, 72, 512), (512, 1536, 1024), (256, 3000, 4096)])
def test_planned_tiles_of_integers_have_an_instruction(sizes):
    problem = MatmulProblem.contiguous(*sizes, dtype="int8", dtype_out="bf16", layout="nt")
    config = plan(problem, GPU)
    assert config.schedule == "hopper_cluster"
    assert all(f"n{config.block_n}k32.s32" in name for name in wgmmas(compiled(problem, config)))


@pytest.mark.parametrize(("addend", "activation"), [("bf16", "silu"), ("fp32", "gelu")])
def test_an_epilogue_spills_nothing(addend, activation):
    epilogue = Epilogue(True, Matrix((0, 0, 512, 1)), addend, ("n", 1), "fp32", activation, "row", "column")
    problem = MatmulProblem.contiguous(512, 512, 512, dtype="bf16", epilogue=epilogue)
    code = compiled(problem, BIG)
    assert ("ld.global.v4" in code.asm) == (addend == "bf16"), "rows of 16 bits come 16 bytes at a time"
    assert code.asm.count("ex2.approx") == 128, "one for each of a thread's sums"
    assert schedule_of(plan(problem, GPU)).__name__.endswith("hopper_cluster")


def test_fp64_goes_to_dmma():
    problem = MatmulProblem.contiguous(512, 512, 512, dtype="fp64", layout="tn")
    for block_m, block_n, warps in sampled(PRECISE_TILES):
        config = PreciseConfig(block_m=block_m, block_n=block_n, block_k=16, num_warps=warps, stages=4)
        code = compiled(problem, config)
        # Of a slice, once: a warp's share of the tile in pieces of 16 by 8.
        count = code.asm.count("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64")
        assert count == block_m // 16 * (block_n // 8) // warps
        assert "fma.rn.f64" not in code.asm


def test_parts_of_k_in_fp64_spill_nothing():
    problem = MatmulProblem.contiguous(160, 160, 5000, dtype="fp64")
    for block_m, block_n, warps in sampled(PRECISE_TILES, first=1):
        config = PreciseConfig(block_m=block_m, block_n=block_n, block_k=16, num_warps=warps, stages=4, split_k=7)
        compiled(problem, config)


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_an_operand_of_tf32_in_registers(layout):
    problem = MatmulProblem.contiguous(512, 512, 512, dtype="fp32", layout=layout, precision="tf32")
    config = RegistersConfig(block_m=128, block_n=128, block_k=32, stages=6, turned=layout == "nn")
    code = compiled(problem, config)
    assert set(wgmmas(code)) == {"m64n128k8.f32.tf32.tf32"}
    # Four registers for the fragment of A where a descriptor would be one.
    fragments = re.findall(r"wgmma\.mma_async\S+\s+\{[^}]*\}, \{([^}]*)\}, %rd", code.asm)
    assert len(fragments) == len(wgmmas(code)) == 16, "four slices of the loop, four each"
    assert all(len(fragment.split(",")) == 4 for fragment in fragments)
    assert "cp.async.bulk.tensor.4d.global" in code.asm, "TMA stores"


@pytest.mark.parametrize(
    ("tile", "turned", "layout", "precision", "parts"),
    [
        ((128, 128), True, "nn", "3xtf32", 4), ((128, 256), True, "nn", "tf32", 4),
        ((64, 256), False, "nt", "tf32", 1), ((128, 128), False, "tn", "3xtf32", 4),
        *rarely(((128, 16), True, "nt", "3xtf32", 4), ((128, 192), True, "tn", "tf32", 1)),
        *rarely(((128, 128), False, "nt", "3xtf32", 1)),
    ],
)  # fmt: skip
def test_tiles_in_registers_spill_nothing_and_wait_once_a_slice(tile, turned, layout, precision, parts):
    """ptxas waits behind every wgmma where it cannot follow who reads the sums; `compiled` finds spills."""
    block_m, block_n = tile[::-1] if turned else tile
    config = RegistersConfig(
        block_m=block_m, block_n=block_n, block_k=32, stages=3, turned=turned, split_k=parts)  # fmt: skip
    problem = MatmulProblem.contiguous(300, 1028, 4096, dtype="fp32", layout=layout, precision=precision)
    code = compiled(problem, config)
    pieces = 3 if precision == "3xtf32" else 1
    assert set(wgmmas(code)) == {f"m64n{tile[1]}k8.f32.tf32.tf32"}
    sass = disassemble(code)
    waits, products = sass.count("WARPGROUP.DEPBAR"), sass.count("HGMMA")
    assert waits <= products // (4 * pieces) + 2


@pytest.mark.parametrize(
    ("columns", "layout", "stored"),
    [(144, "nt", "st.global.v4"), (240, "nn", "st.global.v4"), (192, "nn", "tensor.4d.global")],
)
def test_tiles_of_any_width_are_stored_in_pieces_of_16_bytes(columns, layout, stored):
    config = ClusterConfig(
        block_m=128, block_n=columns, block_k=64, stages=4, tma_store=columns % 64 == 0, cluster_m=2)  # fmt: skip
    code = compiled(MatmulProblem.contiguous(512, 1000, 512, dtype="bf16", layout=layout), config)
    assert set(wgmmas(code)) == {f"m64n{columns}k16.f32.bf16.bf16"}
    assert stored in code.asm
    assert "st.global.u16" not in code.asm


@pytest.mark.parametrize(
    ("knobs", "layout", "word"),
    [
        ({"block_m": 64, "block_n": 40, "consumers": 1, "swapped": True}, "nn", "stmatrix.sync.aligned.m8n8.x4.trans"),
        ({"block_m": 192, "block_n": 192, "consumers": 3, "swapped": True, "cluster_n": 2}, "nt", ".multicast"),
        ({"block_m": 256, "block_n": 160, "tma_store": False}, "nt", "st.global.v4"),
        ({"block_m": 128, "block_n": 128, "cluster_k": 2}, "nn", "st.async.shared::cluster"),
        *rarely(({"block_m": 192, "block_n": 96, "consumers": 3, "cluster_k": 2, "swapped": True}, "nn", "stmatrix")),
        ({"block_m": 128, "block_n": 160, "split_k": 3, "cluster_n": 2}, "nn", "cp.async.bulk.tensor.4d.global.shared"),
        ({"block_m": 128, "block_n": 128, "split_k": 2, "cluster_k": 2}, "nt", "cp.async.bulk.tensor.4d.global.shared"),
    ],
)  # fmt: skip
def test_the_largest_tiles_the_transpose_and_parts_of_k(knobs, layout, word):
    problem = MatmulProblem.contiguous(512, 768, 512, dtype="bf16", layout=layout)
    code = compiled(problem, ClusterConfig(**{"block_k": 64, "stages": 4, **knobs}))
    assert word in code.asm
    assert set(wgmmas(code)) == {f"m64n{knobs['block_n']}k16.f32.bf16.bf16"}
    assert "release.cluster" not in code.asm.replace("mbarrier_init.release.cluster", "")


@pytest.mark.parametrize(
    ("knobs", "layout"),
    [
        ({"block_m": 128, "block_n": 64, "line": 64, "cluster_m": 2}, "nn"),
        ({"block_m": 128, "block_n": 64, "line": 64, "cluster_m": 2, "hold_back": 2}, "nn"),
        ({"block_m": 64, "block_n": 128, "line": 128, "consumers": 1}, "nt"),
        ({"block_m": 192, "block_n": 192, "line": 32, "consumers": 3, "stages": 4}, "nt"),
        ({"block_m": 128, "block_n": 128, "line": 128, "swapped": True, "cluster_k": 2, "stages": 5}, "nn"),
    ],
)
def test_tiles_of_one_class_of_rows_multiply_as_any(knobs, layout):
    problem = MatmulProblem.contiguous(1000, 1000, 1000, dtype="bf16", layout=layout)
    config = ClusterConfig(**{"block_k": 64, "stages": 7, **knobs})
    usual = compiled(problem, config.with_knobs(line=0)) if config.cluster_k == 1 else None
    code = compiled(problem, config)
    strips = config.strips
    assert wgmmas(code) == [f"m64n{config.block_n}k16.f32.bf16.bf16"] * 4 * strips, "those of a slice, once"
    assert usual is None or wgmmas(usual) == wgmmas(code)
    assert code.asm != getattr(usual, "asm", None)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("knobs", "epilogue"),
    [
        ({"block_m": 128, "block_n": 256, "hold_back": 2}, None),
        ({"block_m": 256, "block_n": 128, "split": True, "hold_back": 1}, None),
        ({"block_m": 256, "block_n": 128, "split": True, "hold_back": 1, "cluster_n": 2, "swapped": True}, None),
        ({"block_m": 256, "block_n": 128, "split": True, "hold_back": 1}, Epilogue(scaled=True, activation="gelu")),
    ],
)
def test_c_is_written_while_the_tensor_cores_multiply(knobs, epilogue):
    """What ptxas takes for a use of sums in flight it answers by a wait behind every wgmma."""
    problem = MatmulProblem.contiguous(1024, 1024, 512, dtype="bf16", layout="nt", epilogue=epilogue)
    code = compiled(problem, ClusterConfig(**{"block_k": 64, "stages": 4, "panels": 2, **knobs}))
    sass = disassemble(code)
    waits, products = sass.count("WARPGROUP.DEPBAR"), sass.count("HGMMA")
    assert products == (16 if "split" in knobs else 4)
    assert waits == (3 if "split" in knobs else 2)


@pytest.mark.parametrize(
    ("knobs", "options"),
    [
        ({"block_m": 128, "block_n": 256, "hold_back": 2, "tiles_n": 5, "swapped": True}, {}),
        *rarely(({"block_m": 256, "block_n": 128, "split": True, "hold_back": 1, "tiles_n": 10, "cluster_m": 2}, {})),
        *rarely(({"block_m": 192, "block_n": 192, "consumers": 3, "tiles_n": 7}, {})),
        *rarely(({"block_m": 192, "block_n": 192, "consumers": 3, "tiles_n": 7, "swapped": True}, {})),
        *rarely(({"block_m": 128, "block_n": 208, "hold_back": 2, "tiles_n": 6, "tma_store": False}, {})),
        ({"block_m": 128, "block_n": 192, "tiles_n": 7, "own_tiles": True}, {}),
        ({"block_m": 256, "block_n": 128, "split": True, "hold_back": 1, "tiles_n": 10},
         {"epilogue": Epilogue(scaled=True, bias=("n", 1), dtype_bias="bf16", activation="gelu")}),
        ({"block_m": 128, "block_n": 128, "block_k": 32, "tiles_n": 10, "pieces": 2, "stages": 3, **IN_PIECES},
         {"dtype": "fp32", "precision": "3xtf32"}),
    ],
)  # fmt: skip
def test_tiles_of_two_widths_are_two_loops_without_further_waits(knobs, options):
    """One loop for both, and ptxas waits behind every wgmma."""
    size = knobs["tiles_n"] * (knobs["block_n"] - 8) + 16
    problem = MatmulProblem.contiguous(size, size, 512, **{"dtype": "bf16", "layout": "nt", **options})
    config = ClusterConfig(**{"block_k": 64, "stages": 4, **knobs})
    if config.pieces > 1:
        assert config.with_knobs(swapped=True).why_invalid(problem, GPU), "pieces are not turned"
    code, even = compiled(problem, config), compiled(problem, config.with_knobs(tiles_n=0))
    widths = {int(re.search(r"n(\d+)k", name)[1]) for name in wgmmas(code)}
    assert widths == {config.block_n, config.block_n - 8}
    assert len(wgmmas(code)) == 2 * len(wgmmas(even))
    sass, usual = disassemble(code), disassemble(even)
    assert sass.count("WARPGROUP.DEPBAR") == 2 * usual.count("WARPGROUP.DEPBAR")


def test_a_panel_that_is_not_whole_is_stored_by_tma():
    problem = MatmulProblem.contiguous(512, 768, 512, dtype="bf16", layout="nt")
    for swapped in (False, True):
        config = ClusterConfig(block_m=128, block_n=208, block_k=64, stages=4, swapped=swapped)
        assert "st.global" not in compiled(problem, config).asm


@pytest.mark.covering
@pytest.mark.parametrize("knobs", [{}, {"cluster_m": 2, "swapped": True}, {"cluster_k": 2, "tma_store": False}])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_the_l2_is_asked_for_the_first_slices_before_the_kernel_ahead_has_ended(layout, knobs):
    problem = MatmulProblem.contiguous(512, 512, 512, dtype="bf16", layout=layout)
    config = ClusterConfig(block_m=64, block_n=64, block_k=64, stages=7, consumers=1, **knobs)
    asked = "cp.async.bulk.prefetch.tensor.4d.L2.global"
    code = compiled(problem, config.with_knobs(fetched=8)).asm
    assert asked in code
    # By a warp of its own, which does not wait.
    assert "griddepcontrol.wait" not in code[code.index(asked) : code.rindex(asked)]
    assert code.index("griddepcontrol.wait") < code.index("cp.async.bulk.tensor.4d.shared::cluster.global")
    usual = compiled(problem, config).asm
    assert asked not in usual
    assert code.count("griddepcontrol.wait") == usual.count("griddepcontrol.wait")


def groups_of_rows(n, dtype, dtype_out, layout, columns=0, precision="ieee"):
    """columns: of B that share a scale, of every block of 128 along K; 0: without, -1: of rows and columns."""
    b = Matrix((0, 512 * n, n, 1) if layout == "nn" else (0, 512 * n, 1, 512))
    scales = BlockScales(Matrix((0, 0, 4, 1)), Matrix((0, 4 * n, n, 1)), columns=columns) if columns > 0 else None
    epilogue = Epilogue(scale_a="row", scale_b="column") if columns < 0 else None
    return MatmulProblem(
        1024, n, 512, dtype, dtype, dtype_out, (1, 8), Matrix((0, 0, 512, 1)), b, Matrix((0, 0, n, 1)), epilogue,
        precision, scales=scales, grouped=True)  # fmt: skip


GROUPS = {
    "bf16, nn": ((1024, "bf16", "bf16", "nn"), OF_ROWS), "bf16, masked": ((1001, "bf16", "fp32", "nt"), OF_ROWS),
    "fp8": ((1024, "fp8", "fp16", "nt"), OF_ROWS), "scaled": ((1024, "fp8", "bf16", "nt", 128), OF_SCALED),
    "scaled, fp32": ((1024, "fp8", "fp32", "nt", 128), OF_SCALED),
    "scales of rows": ((1024, "fp8", "bf16", "nt", -1), OF_ROWS),
    "scales of rows, masked": ((1001, "fp8", "fp32", "nt", -1), OF_ROWS),
    "scales of columns": ((1024, "fp8", "bf16", "nt", 1), OF_SCALED),
    "promoted": ((1024, "fp8", "bf16", "nt", -1, "promoted"), OF_SCALED),
    "promoted, fp32": ((1024, "fp8", "fp32", "nt", -1, "promoted"), OF_SCALED),
    "promoted, masked": ((1001, "fp8", "fp32", "nt", 0, "promoted"), OF_SCALED),
}  # fmt: skip


@pytest.mark.parametrize("name", without(GROUPS, "scaled, fp32", "scales of rows, masked", "promoted, fp32"))
def test_groups_compile(name):
    """Every tile of the plan that is valid, without spills; the first, the smallest, always is."""
    of, tiles = GROUPS[name]
    problem = groups_of_rows(*of)
    configs = [tile_config(tile, problem, GPU) for tile in tiles]
    assert configs[0].why_invalid(problem, GPU) is None
    for config in configs:
        if config.why_invalid(problem, GPU) is None:
            assert ("cp.async.bulk.tensor.4d.global" in compiled(problem, config).asm) == config.tma_store


@pytest.mark.parametrize("layout", ["tn", "nt"])
@pytest.mark.parametrize("n", [64, 2880])
def test_k_in_groups_compiles(layout, n):
    """No spills, and the waits of the plain product, though slices are cleared between its wgmmas."""
    plain = MatmulProblem.contiguous(n, 2 * n, 2048, dtype="bf16", layout=layout, batch=8)
    a, b = (replace(x, strides=(0, 0, *x.strides[2:])) for x in (plain.a, plain.b))
    problem = replace(plain, a=a, b=b, k_grouped=True)
    config = plan_groups(problem, GPU)
    sass, usual = (disassemble(compiled(*pair)) for pair in (
        (problem, config), (problem.of_equal_groups(), config.with_knobs(k_grouped=False))))
    assert sass.count("HGMMA") == usual.count("HGMMA") > 0
    assert sass.count("WARPGROUP.DEPBAR") == usual.count("WARPGROUP.DEPBAR")


@pytest.mark.parametrize(("parts", "columns"), [(3, 16), (5, 8), (6, 32), (8, 24)])
@pytest.mark.parametrize("out", ["bf16", "fp32"])
def test_few_columns_of_any_number_of_parts(out, parts, columns):
    """Sums travel to as many CTAs as finish some; the others write nothing."""
    problem = MatmulProblem.contiguous(columns, 904, 1032, dtype="bf16", dtype_out=out, layout="nt")
    config = next(c for c, _ in few_configs(problem, GPU) if (c.block_m, c.cluster_m, c.cluster_k) == (64, 1, parts))
    assembly = compile_valid(problem, config).asm
    assert f"m64n{columns}k16" in assembly
    assert assembly.count("st.async") == config.finishers * config.finished // 8


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize(("m", "n", "k"), [(40, 1280, 2064), (128, 2112, 7168), (96, 24576, 1536)])
def test_up_to_128_rows(m, n, k, dtype):
    """The likeliest config each way up, with K whole and in parts, bare and with terms: no spills, wgmma as wide."""
    for epilogue in (None, Epilogue(scaled=True, bias=("n", 1), activation="gelu")):
        problem = MatmulProblem.contiguous(m, n, k, dtype=dtype, dtype_out="bf16", layout="nt", epilogue=epilogue)
        first = {}
        for config, _ in short_configs(problem, GPU):
            first.setdefault((config.swapped, config.cluster_k > 1), config)
        assert first
        for config in first.values():
            assert f"m64n{config.block_n}k" in compile_valid(problem, config).asm

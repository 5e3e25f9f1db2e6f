"""Machine code of the seed's variants: each has what its name says, and the standard kernel does not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from sampled import in_turn, sampled

from laneloom.codegen import CodeObject, compile_kernel
from laneloom.gpu import get_gpu
from laneloom.isa.analysis import Loop, has_spills, hot_loop, matrix_overlap, order
from laneloom.isa.listing import Instruction, Kind, parse_listing
from laneloom.ops.matmul.api import explain
from laneloom.ops.matmul.config import MatmulConfig
from laneloom.ops.matmul.config_wmma import WmmaConfig
from laneloom.ops.matmul.execute import code_object
from laneloom.ops.matmul.kernels import epilogue
from laneloom.ops.matmul.presets import PRESETS, adaptive
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem

GPUS = ("gfx1151", "gfx1201")
GPU = "gfx1151"
KERNELS = [name for name, config in PRESETS.items() if isinstance(config, MatmulConfig)]


@cache
def compiled(name: str, gpu: str = GPU, layout: str = "nn") -> tuple[CodeObject, Loop]:
    problem = MatmulProblem.contiguous(512, 512, 512, dtype_out="fp32", layout=layout)
    code = code_object(problem, get_gpu(gpu), PRESETS[name])
    loop = hot_loop(code.asm)
    assert loop is not None
    return code, loop


def mnemonics(loop: Loop, kind: Kind) -> list[str]:
    return [i.mnemonic for i in loop.instructions if i.kind is kind]


def loop_lds(name: str) -> int:
    """LDS of the loop's tiles: the kernel's, once C is not staged in LDS."""
    problem, config = MatmulProblem.contiguous(512, 512, 512), PRESETS[name]
    assert isinstance(config, WmmaConfig)
    return code_object(problem, get_gpu(GPU), replace(config, stores="direct")).lds_bytes


@pytest.mark.parametrize(
    ("preset", "gpu"), [(name, gpu) for n, name in sampled(enumerate(KERNELS)) for gpu in in_turn(n % 8 == 6, *GPUS)]
)  # mostly the GPU of the tests below
def test_presets_spill_nothing_and_load_under_the_matrix_instructions(preset, gpu):
    code, loop = compiled(preset, gpu)
    assert not has_spills(code.asm)
    assert order(loop).count("BAR") == 2
    assert all(i.width_bytes == 16 for i in loop.instructions if i.kind is Kind.LDS_LOAD)
    config = PRESETS[preset]
    assert isinstance(config, MatmulConfig)
    if config.schedule == "wmma":
        sums = config.block_m * config.block_n * config.block_k // (16 * 16 * 16)
        assert loop.count(Kind.MATRIX) == sums // config.num_warps
    if preset not in ("noPrefetch", "coop", "pingpong"):
        assert matrix_overlap(loop) == 1.0


def test_tiles_differ_in_the_sums_that_a_wave_makes():
    per_wave = {name: compiled(name)[1].count(Kind.MATRIX) for name in KERNELS if name.startswith("tiled")}
    assert per_wave == {"tiled_64x64": 4, "tiled_128x64": 4, "tiled_256x64": 8, "tiled_128x128": 8}


def test_kunroll_has_two_k_tiles_between_barriers_and_quad_four():
    counts = {name: compiled(name)[1].count(Kind.MATRIX) for name in ("standard", "kunroll", "quad")}
    assert counts == {"standard": 4, "kunroll": 8, "quad": 16}
    # buffers of 192 rows of 16, 32 or 64 halves and 8 of padding, which the last row of each operand does without
    padded = [2 * buffers * 192 * (k + 8) - 2 * 16 for buffers, k in ((2, 16), (2, 32), (1, 64))]
    assert [loop_lds(name) for name in counts] == padded


def test_high_occupancy_and_single_buffers():
    standard, high = compiled("standard")[0], compiled("highOcc")[0]
    assert high.vgprs <= 64 < standard.vgprs
    assert loop_lds("highOcc") < loop_lds("standard") // 3
    assert loop_lds("noPrefetch") < 0.51 * loop_lds("standard")


def test_no_prefetch_loads_after_the_matrix_instructions():
    _, loop = compiled("noPrefetch")
    assert re.match(r"BAR L\d+ W4 G2 WAIT BAR S", order(loop))
    assert matrix_overlap(loop) == 0


def test_native_writes_its_waits_and_asm_opt_its_priorities():
    explicit = {"native": "explicit wait", "asmOpt": "s_setprio"}
    for name, words in explicit.items():
        assert words in compiled(name)[0].asm
        assert words not in compiled("standard")[0].asm
    text = compiled("asmOpt")[0].asm
    raised, lowered = text.index("s_setprio 1"), text.index("s_setprio 0")
    assert text[raised:lowered].count("v_wmma") == 4


def test_zerocopy_stores_its_sums_where_they_are():
    text = compiled("zerocopy")[0].asm
    after = text[text.rindex("v_wmma") :]
    assert "ds_store" not in after
    assert "global_store_b128" not in text
    staged = compiled("standard")[0].asm
    assert "ds_store" in staged[staged.rindex("v_wmma") :]


def test_swizzles_take_no_padding():
    assert loop_lds("swizzled") == loop_lds("zerocopy") == loop_lds("xor_optimized") == 2 * 2 * 192 * 16
    assert loop_lds("standard") > loop_lds("swizzled")


def test_what_transposes_b():
    widths = {
        name: ({i.width_bytes for i in compiled(name)[1].instructions if i.kind is Kind.GLOBAL_LOAD},
               {i.width_bytes for i in compiled(name)[1].instructions if i.kind is Kind.LDS_STORE})
        for name in ("swizzled", "xor_optimized", "opt")
    }  # fmt: skip
    assert widths["swizzled"] == ({8, 16}, {2, 16})  # loads of vectors along N, stores of halves
    assert widths["xor_optimized"] == ({2, 16}, {8, 16})  # loads of halves along K, stores of vectors
    assert widths["opt"] == ({16}, {16})


def test_opt_exchanges_b_between_lanes_without_lds():
    _, loop = compiled("opt")
    exchanged = [i for i in loop.instructions if "row_xmask" in i.text]
    assert len(exchanged) == 12
    assert not any("permute" in i.mnemonic for i in loop.instructions)
    assert not any("row_xmask" in i.text for i in compiled("tiled_128x128")[1].instructions)
    # along K there is nothing to transpose
    assert not any("row_xmask" in i.text for i in compiled("opt", GPU, "nt")[1].instructions)


@pytest.mark.parametrize("gpu", GPUS)
def test_coop_loads_by_roles(gpu):
    """A wave jumps over the loads and stores of the operand that is not its own; all waves multiply."""
    code, loop = compiled("coop", gpu)
    assert "v_readfirstlane_b32" in code.asm
    parts = _between_branches(loop.instructions)
    loads = [part for part in parts if any(i.kind is Kind.GLOBAL_LOAD for i in part)]
    stores = [part for part in parts if any(i.kind is Kind.LDS_STORE for i in part)]
    assert len(loads) == len(stores) == 2
    assert not any(i.kind is Kind.MATRIX for part in loads[:1] + stores[-1:] for i in part)
    assert loop.count(Kind.MATRIX) == 4


@pytest.mark.parametrize("gpu", GPUS)
def test_pingpong_multiplies_or_moves(gpu):
    """Two phases between barriers; in each, one half of the waves jumps over the matrix instructions."""
    code, loop = compiled("pingpong", gpu)
    assert loop.count(Kind.MATRIX) == 2 * 8
    parts = [[i.kind for i in part] for part in _between_branches(parse_listing(code.asm).instructions)]
    multiplying = [part for part in parts if Kind.MATRIX in part and Kind.GLOBAL_STORE not in part][:2]
    moving = [part for part in parts if Kind.GLOBAL_LOAD in part[_first(part, Kind.LDS_STORE) :]]
    assert len(multiplying) == len(moving) == 2
    for part in multiplying:
        assert part.count(Kind.MATRIX) == 8
        assert not {Kind.GLOBAL_LOAD, Kind.LDS_STORE, Kind.BARRIER} & set(part)
    for part in moving:
        assert Kind.MATRIX not in part
    assert code.asm.count("s_setprio 1") == code.asm.count("s_setprio 0") == 2


def _first(kinds: list[Kind], kind: Kind) -> int:
    return kinds.index(kind) if kind in kinds else len(kinds)


def _between_branches(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """The instructions, cut after every branch."""
    parts: list[list[Instruction]] = [[]]
    for instruction in instructions:
        parts[-1].append(instruction)
        if instruction.kind is Kind.BRANCH:
            parts.append([])
    return parts


def test_tile_orders_are_different_code():
    assert compiled("hilbert")[0].asm != compiled("standard")[0].asm
    assert hot_loop(compiled("hilbert")[0].asm) is not None


@pytest.mark.parametrize(
    ("m", "n", "k", "expected"),
    [
        (511, 300, 64, "tiled_64x64"), (4096, 1000, 512, "tiled_64x64"), (4096, 1024, 512, "standard"),
        (2048, 8192, 512, "tiled_256x64"), (768, 768, 512, "kunroll"), (768, 768, 511, "standard"),
        (1536, 1000, 512, "kunroll"), (1537, 1000, 512, "standard"), (4096, 4096, 4096, "standard"),
    ],
)  # fmt: skip
def test_the_seeds_adaptive_rule(m, n, k, expected):
    assert adaptive(MatmulProblem.contiguous(m, n, k), get_gpu(GPU)) == PRESETS[expected]


def test_presets_differ():
    """tiled_128x64 is the standard kernel by its definition; no two others are the same config."""
    configs = [config for name, config in PRESETS.items() if name != "tiled_128x64"]
    assert len(set(configs)) == len(configs)
    assert PRESETS["tiled_128x64"] == PRESETS["standard"] == replace(PRESETS["kunroll"], block_k=16)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "sm_90a"])
def test_the_epilogue_of_its_own_compiles_for_every_family(gpu):
    pointers = {"s_ptr": "*fp32", "c_ptr": "*bf16", "add_ptr": "*fp32", "bias_ptr": "*bf16"}
    pointers |= {"scale_a_ptr": "*fp32", "scale_b_ptr": "*fp32", "alpha": "fp32", "beta": "fp32"}
    sizes = {name: "i32" for name in epilogue.RUNTIME if name not in pointers}
    code = compile_kernel(
        epilogue.apply_epilogue, gpu=gpu, signature=pointers | sizes, attrs=(),
        constants=epilogue.constants("n", "gelu", 32, ("row", "column")), num_warps=epilogue.NUM_WARPS,
    )  # fmt: skip
    assert code.vgpr_spills == 0


@pytest.mark.parametrize(("dtype", "schedule"), [("fp32", "hopper_stream"), ("fp64", "hopper_precise")])
def test_a_schedule_without_terms_has_them_in_a_launch_of_their_own(dtype, schedule):
    terms = Epilogue(scaled=True, bias=("n", 1), dtype_bias="fp32", activation="gelu")
    problem = MatmulProblem.contiguous(4096, 4096, 4096, dtype=dtype, epilogue=terms)
    explanation = explain(problem, gpu="sm_90a")
    assert explanation.config.schedule == schedule
    assert f"a launch of its own makes C of {dtype} sums: alpha, bias_n_fp32, gelu" in explanation.facts
    assert explanation.problem.dtype_out == dtype

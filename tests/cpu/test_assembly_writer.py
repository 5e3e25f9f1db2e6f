"""The assembly writer: registers, pairs that the hardware would refuse, and text that assembles."""

from __future__ import annotations

import re

import pytest

from laneloom.codegen import assemble
from laneloom.codegen.assembly import Assembly
from laneloom.errors import ArgumentError, UnknownGpuError
from laneloom.gpu import get_gpu
from laneloom.isa.parse import parse

ARGUMENTS = [("x", "pointer"), ("count", "u32")]


def new(gpu="gfx1100", **options):
    return Assembly("k", get_gpu(gpu), ARGUMENTS, threads=32, **options)


FMAC = ("v_dual_fmac_f32", "v0", "v6", "v4")


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (FMAC, ("v_dual_fmac_f32", "v2", "v7", "v5"), "both even"),
        (FMAC, ("v_dual_fmac_f32", "v1", "v10", "v5"), r"SRC0.*bank 2|bank 2"),
        (FMAC, ("v_dual_fmac_f32", "v1", "v7", "v8"), r"bank 0"),
        (FMAC, ("v_dual_fmac_f32", "v1", "v7", "s4"), "not a vector register"),
        (("v_dual_add_nc_u32", "v0", "v6", "v4"), ("v_dual_mov_b32", "v1", "v7"), "cannot be the first half"),
        (FMAC, ("v_dual_lshrrev_b32", "v1", "v7", "v5"), "cannot be the second half"),
        (("v_dual_mul_f32", "v0", "0x42280000", "v4"), ("v_dual_mul_f32", "v1", "0x42300000", "v5"), "literals"),
        (("v_dual_cndmask_b32", "v0", "s4", "v4"), ("v_dual_mul_f32", "v1", "s5", "v5"), "room|at most 2"),
        (FMAC, ("v_dual_mul_f32", "v1", "v0", "v5"), "first.*writes|reads v0"),
    ],
    ids=["results", "first", "second", "scalar", "opcode-x", "opcode-y", "literals", "scalars", "reads"],
)
def test_an_illegal_pair_is_refused_with_one_sentence(first, second, why):
    asm = new()
    with pytest.raises(ArgumentError, match=why) as caught:
        asm.dual(first, second)
    assert "\n" not in str(caught.value)
    assert not asm.lines


def test_a_legal_pair_is_written():
    asm = new()
    asm.dual(FMAC, ("v_dual_fmac_f32", "v1", "v7", "v5"))
    asm.dual(("v_dual_mov_b32", "v0", 0), ("v_dual_add_nc_u32", "v1", "v7", "v5"))
    assert asm.lines[0].strip() == "v_dual_fmac_f32 v0, v6, v4 :: v_dual_fmac_f32 v1, v7, v5"
    assert len(asm.lines) == 2


def test_rdna4_frees_moves_of_the_rule_of_banks():
    pair = (("v_dual_mov_b32", "v0", "v6"), ("v_dual_mov_b32", "v1", "v10"))
    new("gfx1201").dual(*pair)
    with pytest.raises(ArgumentError, match="bank 2"):
        new("gfx1100").dual(*pair)


def test_registers_come_in_their_bank_and_go_back():
    asm = new()
    pair = asm.vector("pair", 2, bank=2)
    assert (pair.index % 4, str(pair), str(pair[1])) == (2, "v[2:3]", "v3")
    quad = asm.vector("quad", 4, bank=0)
    assert quad.index % 4 == 0
    assert not {pair.index, pair.index + 1} & set(range(quad.index, quad.index + 4))
    asm.free(pair)
    assert asm.vector("again", 2, bank=2) == pair
    assert asm.scalar("eight", 8).index % 4 == 0
    with pytest.raises(ArgumentError, match="no 300 free vector registers"):
        asm.vector("all", 300)
    with pytest.raises(IndexError):
        pair[2]


def test_arguments_and_gpus_are_checked():
    for gpu in ("gfx942", "gfx1250"):
        with pytest.raises(ArgumentError, match="RDNA"):
            new(gpu)
    with pytest.raises(UnknownGpuError):
        new("gfx1")
    with pytest.raises(ArgumentError, match="truth value"):
        Assembly("k", get_gpu("gfx1100"), [("n", "u32")], threads=32)
    with pytest.raises(ArgumentError, match="'u16'"):
        Assembly("k", get_gpu("gfx1100"), [("size", "u16")], threads=32)
    with pytest.raises(ArgumentError, match="1 to 1024, got 0"):
        Assembly("k", get_gpu("gfx1100"), [], threads=0)
    laid_out = Assembly("k", get_gpu("gfx1100"), [("count", "u32"), ("x", "pointer")], threads=32)
    assert (laid_out.offset_of("x"), laid_out.kernarg_bytes) == (8, 16)
    with pytest.raises(ArgumentError, match="no such argument; it has count, x"):
        laid_out.offset_of("y")


def test_a_kernel_without_arguments():
    asm = Assembly("k", get_gpu("gfx1100"), [], threads=32)
    asm.end()
    code = assemble(asm.text(), "gfx1100")
    assert (code.kernarg_bytes, code.arguments) == (0, ())


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1151", "gfx1201"])
@pytest.mark.parametrize("cu_mode", [True, False])
def test_text_assembles_and_its_descriptor_says_what_was_asked(gpu, cu_mode):
    asm = new(gpu, lds_bytes=512, cu_mode=cu_mode)
    x, value, counter = asm.scalar("x", 2), asm.vector("value"), asm.scalar("counter")
    asm.emit("s_load_b64", x, asm.kernarg, 0)
    asm.emit("s_mov_b32", counter, 3)
    asm.wait(scalar=True)
    with asm.loop(counter):
        asm.emit("global_load_b32", value, asm.thread, x)
        asm.wait(loads=0)
        asm.barrier()
    asm.end()
    code = assemble(asm.text(), gpu)
    assert code.workgroup_processor_mode is not cu_mode
    assert (code.lds_bytes, code.workgroup_size, code.kernarg_bytes) == (512, 32, 16)
    assert (code.vgprs, [a.name for a in code.arguments]) == (2, ["x", "count"])
    branch = next(i for i in parse(code.asm).instructions if i.name.startswith("s_cbranch"))
    assert str(branch.operands[0].value) in parse(code.asm).labels
    waits = re.findall(r"s_wait\w+ .*", code.asm)
    assert waits == (["s_wait_kmcnt 0x0", "s_wait_loadcnt 0x0"] if gpu == "gfx1201" else
                     ["s_waitcnt lgkmcnt(0)", "s_waitcnt vmcnt(0)"])  # fmt: skip

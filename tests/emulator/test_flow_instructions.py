"""Branches, jumps and calls go where their conditions say; instructions that only order or hint change nothing."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from laneloom.cli.coverage import instructions_of
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program, is_ordering
from laneloom.errors import EmulationError
from laneloom.gpu import get_gpu

KERNEL = """
k:
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 8
\t\t.amdhsa_next_free_sgpr 32
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_wavefront_size32 1
\t.end_amdhsa_kernel
"""
# Three words, from lane 0: v1 as the way taken left it.
START = "s_load_b64 s[2:3], s[0:1], 0x0\nv_mov_b32 v1, 0\nv_mov_b32 v2, 0\n{wait}"
END = "s_mov_b32 exec_lo, 1\nglobal_store_b32 v2, v1, s[2:3]"
WAIT = {9: "s_waitcnt lgkmcnt(0)", 11: "s_waitcnt lgkmcnt(0)", 12: "s_wait_kmcnt 0x0"}
GPUS = ("gfx1151", "gfx1201", "gfx90a", "gfx942")
ORDERING = [(gpu, name) for gpu in GPUS for name in instructions_of(get_gpu(gpu)) if is_ordering(name)]
CONDITIONS = {
    "s_cbranch_scc0": ("s_cmp_eq_u32 0, 1", "s_cmp_eq_u32 0, 0"),
    "s_cbranch_scc1": ("s_cmp_eq_u32 0, 0", "s_cmp_eq_u32 0, 1"),
    "s_cbranch_vccz": ("s_mov_b32 vcc_lo, 0", "s_mov_b32 vcc_lo, 8"),
    "s_cbranch_vccnz": ("s_mov_b32 vcc_lo, 8", "s_mov_b32 vcc_lo, 0"),
    "s_cbranch_execz": ("s_mov_b32 exec_lo, 0", "s_mov_b32 exec_lo, 8"),
    "s_cbranch_execnz": ("s_mov_b32 exec_lo, 8", "s_mov_b32 exec_lo, 0"),
}


def run(gpu: str, code: str) -> int:
    """The word that the code leaves in lane 0 of v1."""
    word = np.full(1, 0xFFFFFFFF, np.uint32)
    start = START.format(wait=WAIT[get_gpu(gpu).major])
    if get_gpu(gpu).wave == 64:
        start += "\ns_mov_b32 vcc_hi, 0"
    text = f"{start}\n{code}\n{END}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    asm = KERNEL.format(code="\n".join(line if line.endswith(":") else "\t" + line for line in lines))
    address = word.ctypes.data
    launch(
        Program(asm, gpu),
        [1],
        address.to_bytes(8, "little"),
        workgroup_size=32,
        regions=[Region("x", address, 4, word)],
    )
    return int(word[0])


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("gpu", GPUS)
def test_conditional_branch(gpu, name, taken):
    code = f"""
        {CONDITIONS[name][not taken]}
        {name} .Ltaken
        s_mov_b32 exec_lo, -1
        v_mov_b32 v1, 1
        s_branch .Lend
        .Ltaken:
        s_mov_b32 exec_lo, -1
        v_mov_b32 v1, 2
        .Lend:
    """
    assert run(gpu, code) == (2 if taken else 1)


@pytest.mark.parametrize(("gpu", "name"), ORDERING)
def test_instructions_that_change_nothing(gpu, name):
    operand = {"s_prefetch_data": "s[2:3], 0, null, 0", "s_buffer_prefetch_data": "s[4:7], 0, null, 0"}.get(name, "0")
    assert run(gpu, f"v_mov_b32 v1, 7\n{name} {operand}\nv_add_nc_u32 v1, v1, v1") == 14


@pytest.mark.parametrize("gpu", GPUS)
def test_call(gpu):
    code = """
        s_call_b64 s[8:9], .Lfunction
        v_add_nc_u32 v1, 1, v1
        s_branch .Lend
        .Lfunction:
        v_mov_b32 v1, 40
        s_setpc_b64 s[8:9]
        .Lend:
    """
    assert run(gpu, code) == 41


@pytest.mark.parametrize("gpu", GPUS)
def test_far_branches(gpu):
    """What LLVM writes where a target is further than 16 bits of words away, forwards and back."""
    add, carry, sub, borrow = (
        ("s_add_u32", "s_addc_u32", "s_sub_u32", "s_subb_u32")
        if gpu.startswith("gfx11")
        else ("s_add_co_u32", "s_add_co_ci_u32", "s_sub_co_u32", "s_sub_co_ci_u32")
    )
    code = f"""
        v_mov_b32 v1, 3
        s_getpc_b64 s[8:9]
        .Lpost_getpc0:
        {add} s8, s8, (.Lahead-.Lpost_getpc0)&4294967295
        {carry} s9, s9, (.Lahead-.Lpost_getpc0)>>32
        s_setpc_b64 s[8:9]
        v_mov_b32 v1, 100
        .Lback:
        v_add_nc_u32 v1, 1, v1
        s_branch .Lend
        .Lahead:
        v_add_nc_u32 v1, 10, v1
        s_getpc_b64 s[8:9]
        .Lpost_getpc1:
        {sub} s8, s8, (.Lpost_getpc1-.Lback)&4294967295
        {borrow} s9, s9, (.Lpost_getpc1-.Lback)>>32
        s_setpc_b64 s[8:9]
        .Lend:
    """
    assert run(gpu, code) == 14


def test_far_branches_of_cdna5():
    """LLVM's far branch there, forwards and back, and a jump by a register."""
    code = """
        v_mov_b32 v1, 3
        s_add_pc_i64 .Lahead-.Lpost_addpc0
        .Lpost_addpc0:
        v_mov_b32 v1, 100
        .Lback:
        v_add_nc_u32 v1, 1, v1
        s_mov_b64 s[8:9], .Lend-.Lpost_addpc2
        s_add_pc_i64 s[8:9]
        .Lpost_addpc2:
        v_mov_b32 v1, 100
        .Lahead:
        v_add_nc_u32 v1, 10, v1
        s_add_pc_i64 .Lback-.Lpost_addpc1
        .Lpost_addpc1:
        v_mov_b32 v1, 100
        .Lend:
    """
    assert run("gfx1250", code) == 14
    with pytest.raises(EmulationError, match="'s_add_pc_i64 16' counts bytes of machine code"):
        run("gfx1250", "s_add_pc_i64 16")


@pytest.mark.parametrize("gpu", GPUS)
def test_trap_stops(gpu):
    with pytest.raises(EmulationError, match="s_trap"):
        run(gpu, "s_trap 2")
    assert run(gpu, "s_trap 3\nv_mov_b32 v1, 7") == 7  # llvm.debugtrap, where no debugger is


def test_labels_may_look_like_registers():
    assert run("gfx1151", "s_branch a1\nv_mov_b32 v1, 1\ns_branch v2\na1:\nv_mov_b32 v1, 2\nv2:") == 2


POLL = """
k:
\ts_load_b64 s[2:3], s[0:1], 0x0
\ts_waitcnt lgkmcnt(0)
\tv_mov_b32 v1, 0
\tv_mov_b32 v2, 1
\tv_readfirstlane_b32 s5, v0
\ts_cmp_eq_u32 s4, 0
\ts_cbranch_scc0 .Lpoll
\ts_cmp_eq_u32 s5, 0
\ts_cbranch_scc0 .Lother
\ts_barrier
\tglobal_store_b32 v1, v2, s[2:3]
\ts_endpgm
.Lother:
\ts_nop 0
\ts_barrier
\ts_endpgm
.Lpoll:
\ts_sleep 1
\tglobal_load_b32 v3, v1, s[2:3] glc
\ts_waitcnt vmcnt(0)
\tv_readfirstlane_b32 s6, v3
\ts_cmp_eq_u32 s6, 1
\ts_cbranch_scc0 .Lpoll
\tglobal_store_b32 v1, v2, s[2:3] offset:4
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 8
\t\t.amdhsa_next_free_sgpr 16
\t\t.amdhsa_user_sgpr_count 4
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_wavefront_size32 1
\t.end_amdhsa_kernel
"""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_workgroup_may_poll_for_what_another_stores_behind_its_barrier(seed, strict):
    """The waves of the other one come to the barrier by different ways, and nobody else has to be there."""
    words = np.zeros(2, np.uint32)
    address = words.ctypes.data
    launch(
        Program(POLL, "gfx1151", strict=strict), [2], address.to_bytes(8, "little"), workgroup_size=64, seed=seed,
        regions=[Region("x", address, 8, words)],
    )  # fmt: skip
    assert words.tolist() == [1, 1]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("gpu", "code", "said"),
    [
        ("gfx1151", "v_mov_b32 v23, 0", ""),  # 8 asked for; 24 are given out at once
        ("gfx1151", "v_mov_b32 v24, 0", "v24 is none of the registers"),
        ("gfx1151", "v_mov_b32 v1, v99", "v99 is none of the registers"),
        ("gfx1151", "global_load_b128 v[21:24], v1, s[2:3]", "v24 is none of the registers"),
        ("gfx1151", "v_dual_mov_b32 v2, v1 :: v_dual_mov_b32 v35, v1", "v35 is none of the registers"),
        ("gfx1151", "v_wmma_f32_16x16x16_f16 v[0:7], v[24:31], v[8:15], v[0:7]", "v31 is none of the registers"),
        ("gfx1201", "s_branch .Lpast\nv_mov_b32 v99, 0\n.Lpast:", ""),  # never reached
        ("gfx90a", "v_mov_b32 v4, 0", "v4 is none of the registers .* v0 to v3"),
        ("gfx90a", "v_accvgpr_write_b32 a3, v1", ""),
        ("gfx90a", "v_accvgpr_write_b32 a4, v1", "a4 is none of the registers .* a0 to a3"),
        ("gfx908", "v_accvgpr_write_b32 a8, v1", "a8 is none of the registers .* a0 to a7"),
        ("gfx1250", "s_set_vgpr_msb 0x40\nv_mov_b32 v0, 0\ns_set_vgpr_msb 0", "v256 is none of the registers"),
    ],
)
def test_vector_registers_past_those_of_the_descriptor(gpu, code, said, strict):
    """They are neither read nor written: the hardware would read v0 and drop what is written."""
    asm = KERNEL.format(code="\n".join(line if line.endswith(":") else f"\t{line}" for line in code.splitlines()))
    if gpu == "gfx90a":
        asm = asm.replace("\t.end_amdhsa_kernel", "\t\t.amdhsa_accum_offset 4\n\t.end_amdhsa_kernel")
    program = Program(asm, gpu, strict=strict)
    with pytest.raises(EmulationError, match=said) if said else nullcontext():
        launch(program, [1], bytes(8), workgroup_size=32)


@pytest.mark.parametrize(
    ("code", "stops"),
    [
        ("v_mov_b32 v1, 1\n.long 0x7e020285", True),  # v_mov_b32 v1, 5
        (".if 1\n.4byte 0x7e020285, 0xbf800000\n.endif", True),
        ("v_mov_b32 v1, 1\ns_branch .Lpast\n.Ltable:\n.long 0x7e020285\n.Lpast:", False),
        ("v_mov_b32 v1, 1\ns_cbranch_scc0 .Lpast\ns_nop 0\n.long 0x7e020285\n.Lpast:", False),
        ("v_mov_b32 v1, 1\n.section .rodata\n.long 0x7e020285\n.text", False),
    ],
)
def test_machine_code_as_numbers_is_not_left_out(code, stops):
    with pytest.raises(EmulationError, match="stands as numbers in a text is not decoded") if stops else nullcontext():
        assert run("gfx1151", f"s_cmp_eq_u32 0, 1\n{code}") == 1

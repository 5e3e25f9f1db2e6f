"""Strict mode's waits: halves of registers, and functions with several callers."""

import pytest
from test_strict import GPUS, LANE, POINTER, run

from laneloom.errors import EmulationError, HazardError, UnknownInstructionError


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    ("load", "free", "waits"),
    [
        ("global_load_d16_hi_b16 v2, v1, s[4:5]", "v_cvt_f32_f16_e32 v3, v2", "v_cvt_f32_f16_e32 v3, v2.h"),
        ("global_load_d16_hi_u8 v2, v1, s[4:5]", "v_cmp_lt_i16_e64 s6, -1, v2", "v_cmp_lt_i32_e64 s6, -1, v2"),
        ("global_load_d16_hi_b16 v2, v1, s[4:5]", "v_and_b16 v3, 0x1ff, v2", "v_and_b32 v3, 0x1ff, v2"),
        ("global_load_d16_b16 v2, v1, s[4:5]", "v_lshrrev_b16 v2, 4, v0 op_sel:[0,0,1]", "v_lshrrev_b16 v2, 4, v0"),
        ("global_load_d16_b16 v2, v1, s[4:5]", "v_mov_b16_e64 v3.l, v2.l op_sel:[1,0]", "v_mov_b16_e64 v3.l, v2.l"),
        ("global_load_d16_b16 v2, v1, s[4:5]", "v_fma_f16 v2, v0, v0, v0 op_sel:[0,0,0,1]", "v_fma_f16 v2, v0, v0, v0"),
        ("global_load_d16_b16 v2, v1, s[4:5]", "ds_load_u16_d16_hi v2, v1", "ds_load_u16_d16_hi v3, v2"),
        ("global_load_d16_hi_b16 v2, v1, s[4:5]", "ds_load_u8_d16 v2, v1", "ds_load_b32 v2, v1"),
        ("ds_load_u8_d16_hi v2, v1", "ds_store_b8 v1, v2 offset:1", "ds_store_b8_d16_hi v1, v2 offset:1"),
    ],
)
def test_operations_on_halves_leave_the_other_half_to_its_load(gpu, load, free, waits):
    """As an older disassembler spells them, too: without the suffix of the half, with op_sel in its place."""
    lds = "\tds_store_b32 v1, v0\n\t{wait_lds}\n" if "ds_load" in free else ""
    start = POINTER + LANE + "\tv_mov_b32_e32 v2, 7\n" + lds + f"\t{load}\n"
    run(start + f"\t{free}\n\t{{wait_load}}\n\t{{wait_lds}}\n", gpu)
    with pytest.raises(HazardError, match="v2 before a wait"):
        run(start + f"\t{waits}\n\t{{wait_load}}\n\t{{wait_lds}}\n", gpu)


CALLS = """
\ts_getpc_b64 s[8:9]
\ts_add_u32 s8, s8, .Lfunction@rel32@lo+4
\ts_addc_u32 s9, s9, .Lfunction@rel32@hi+12
\tv_readfirstlane_b32 s6, v0
\ts_cmp_eq_u32 s6, 0
\ts_cbranch_scc1 .Lfirst
\tglobal_load_b32 v2, v1, s[4:5]
\t{wait_load}
\ts_swappc_b64 s[10:11], s[8:9]
\tglobal_store_b32 v1, v2, s[4:5]
\ts_branch .Ldone
.Lfirst:
\tglobal_load_b32 v2, v1, s[4:5]
\ts_swappc_b64 s[10:11], s[8:9]
WAIT\tglobal_store_b32 v1, v2, s[4:5]
\ts_branch .Ldone
\ts_nop 0
.Lfunction:
\tv_add_nc_u32 v3, 1, v0
\ts_setpc_b64 s[10:11]
.Ldone:
\ts_nop 0
"""


@pytest.mark.parametrize("gpu", GPUS)
def test_each_caller_of_a_function_has_its_own_waits(gpu):
    """Tensile's activations: one wave comes with a load under way, the other has waited and goes on to use its own."""
    code = POINTER + LANE + CALLS
    run(code.replace("WAIT", "\t{wait_load}\n"), gpu)
    with pytest.raises(HazardError, match="reads v2 before a wait"):
        run(code.replace("WAIT", ""), gpu)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    "text",
    ["buffer_load_format_x v2, off, s[8:11], 0 tfe", "buffer_load_b32 v[2:3], off, s[8:11], 0 tfe", "s_rfe_b64 s[2:3]"],
)
def test_what_is_not_implemented_stops_only_when_it_is_reached(gpu, text):
    start = POINTER + LANE + "\ts_cmp_eq_u32 0, 1\n"
    run(start + f"\ts_cbranch_scc0 .Lgo\n\t{text}\n.Lgo:\n", gpu)
    with pytest.raises(UnknownInstructionError, match=rf"{text.split()[0]}.* line 10: '{text.split()[0]}"):
        run(start + f"\ts_cbranch_scc1 .Lgo\n\t{text}\n.Lgo:\n", gpu)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("strict", [True, False])
def test_running_past_the_end(gpu, strict):
    """`.Lend` stands behind the kernel's last instruction."""
    with pytest.raises(EmulationError, match="wave 0 runs past the code's end"):
        run("\ts_branch .Lend\n", gpu, strict=strict)
    with pytest.raises(EmulationError, match="wave 0 runs past the code's end"):
        run("\ts_cmp_eq_u32 0, 0\n\ts_cbranch_scc0 .Lover\n\ts_branch .Lpast\n.Lover:\n", gpu, strict=strict,
            end="\ts_endpgm\n.Lpast:\n\tv_mov_b32_e32 v2, 0\n")  # fmt: skip
    with pytest.raises(EmulationError, match="wave 0 runs past the code's end"):
        run("\tv_mov_b32_e32 v2, 0\n", gpu, strict=strict, end="")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("strict", [True, False])
def test_what_only_begins_as_the_end_is_not_the_end(gpu, strict):
    with pytest.raises(UnknownInstructionError, match="does not implement s_endpgm_now"):
        run("\tv_mov_b32_e32 v2, 0\n", gpu, strict=strict, end="\ts_endpgm_now\n")


@pytest.mark.parametrize(
    ("gpu", "wait", "enough"),
    [
        ("gfx1151", "s_waitcnt vmcnt(0x0)", True), ("gfx1151", "s_waitcnt vmcnt(2-1)", False),
        ("gfx1151", "s_waitcnt lgkmcnt(0x0) vmcnt(1 - 1)", True), ("gfx1151", "s_waitcnt vmcnt((2 - 1) * 0)", True),
        ("gfx1151", "s_waitcnt vmcnt_sat(100)", False), ("gfx1151", "s_waitcnt 0x3f7 + 0", True),
        ("gfx1151", "s_waitcnt_vmcnt null, 3 - 3", True), ("gfx1201", "s_wait_loadcnt 3 - 3", True),
        ("gfx1201", "s_wait_loadcnt 1", False), ("gfx1201", "s_wait_loadcnt_dscnt 1 << 8", False),
    ],
)  # fmt: skip
def test_waits_as_people_write_them(gpu, wait, enough):
    code = POINTER + LANE + f"\tglobal_load_b32 v2, v1, s[4:5]\n\t{wait}\n\tv_add_nc_u32 v3, v2, v2\n"
    if enough:
        run(code, gpu)
        return
    with pytest.raises(HazardError, match="reads v2 before a wait"):
        run(code, gpu)

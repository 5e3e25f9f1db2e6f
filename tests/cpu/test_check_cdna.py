"""`laneloom isa --check` on CDNA: a planted finding and a clean twin for each rule that applies there."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.isa.check import check
from laneloom.isa.finding import Finding

MFMA = "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[0:3]"  # 4 passes
LONG = "v_mfma_f32_32x32x8_f16 v[0:15], v[40:41], v[42:43], v[16:31]"  # 8 passes, C apart from D
FP32 = "v_mfma_f32_16x16x4_f32 v[0:3], v8, v10, v[4:7]"  # 8 passes
FP64 = "v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7]"  # 8 passes, on gfx950 16
SMALL64 = "v_mfma_f64_4x4x4_4b_f64 v[0:1], v[8:9], v[10:11], v[4:5]"
READ, WRITE = "v_add_f32_e32 v60, v1, v61", "v_mov_b32_e32 v1, 0"
STORE = "global_store_dword v[50:51], v1, off"


def findings(*lines: str, gpu: str = "gfx942", **how) -> list[Finding]:
    text = "\n".join(f"\t{line}" if not line.endswith(":") else line for line in lines)
    return list(check(text, gpu, **how)[0].findings)


def missing(*lines: str, gpu: str = "gfx942") -> int:
    """Wait states that the last instruction lacks."""
    found = [f for f in findings(*lines, gpu=gpu) if f.rule == "missing-nops"]
    assert len(found) <= 1
    return int(found[0].what.split("s_nop ")[1].split()[0]) + 1 if found else 0


@pytest.mark.parametrize(
    ("before", "after", "gfx942", "gfx950"),
    [
        (MFMA, READ, 7, 8),
        (MFMA, WRITE, 7, 8),
        (MFMA, STORE, 7, 8),
        (MFMA, "ds_write_b32 v50, v1", 7, 8),
        (MFMA, "ds_read_b32 v2, v50", 7, 8),
        (MFMA, "v_accvgpr_write_b32 a1, v50", 0, 0),
        (MFMA.replace("v[0:3]", "a[0:3]"), "v_accvgpr_read_b32 v50, a1", 7, 8),
        (MFMA, "v_mfma_f32_16x16x16_f16 v[20:23], v[0:1], v[10:11], v[20:23]", 7, 8),
        # The same registers, whole, are handed on; others wait for the last pass.
        (MFMA, MFMA, 0, 0),
        (MFMA, "v_mfma_f32_32x32x8_f16 v[0:15], v[40:41], v[42:43], v[0:15]", 5, 6),
        (MFMA, "v_mfma_f64_16x16x4_f64 v[12:19], v[40:41], v[42:43], v[0:7]", 5, 6),
        (MFMA.replace("16x16x16", "4x4x4_16b"), READ, 5, 5),
        (MFMA.replace("16x16x16", "4x4x4_16b"), MFMA, 2, 2),
        (LONG, READ, 11, 12),
        (LONG, "v_mov_b32_e32 v16, 0", 7, 7),  # C is still read
        (LONG, "v_add_f32_e32 v60, v16, v61", 0, 0),
        (LONG, "v_mov_b32_e32 v40, 0", 0, 0),  # A and B are not
        ("v_smfmac_f32_16x16x32_f16 v[0:3], v[8:9], v[12:15], v20", READ, 7, 8),
        (MFMA, "v_smfmac_f32_16x16x32_f16 v[20:23], v[28:29], v[32:35], v1", 7, 8),  # sparse indices
        (FP32, READ, 10, 10),
        (FP32, "v_mov_b32_e32 v4, 0", 0, 0),
        (FP32, "v_mfma_f32_16x16x4_f32 v[20:23], v28, v30, v[2:5]", 8, 8),
        (FP32, "v_mfma_f32_16x16x16_f16 v[20:23], v[28:29], v[30:31], v[2:5]", 0, 0),
        (FP64, READ, 11, 19),
        (FP64, WRITE, 11, 11),
        (FP64, STORE, 18, 18),
        (FP64, FP64, 0, 0),
        (FP64, "v_fma_f64 v[20:21], v[22:23], v[24:25], v[26:27]", 2, 2),
        (SMALL64, READ, 6, 6),
        (SMALL64, STORE, 9, 9),
        (SMALL64, "v_mfma_f64_4x4x4_4b_f64 v[12:13], v[18:19], v[20:21], v[0:1]", 4, 4),
        ("v_mov_b32_e32 v8, 0", MFMA, 2, 2),
        ("v_accvgpr_write_b32 a0, v1", MFMA.replace("v[0:3]", "a[0:3]"), 2, 2),
        ("v_cmpx_gt_u32_e32 vcc, v50, v51", MFMA, 4, 4),
        ("v_exp_f32_e32 v1, v2", READ, 1, 1),
        ("v_exp_f32_e32 v1, v2", "v_exp_f32_e32 v60, v1", 0, 0),
        ("v_exp_f32_e32 v1, v2", STORE, 0, 0),
        ("v_add_f16_sdwa v1, v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0", READ, 1, 1),
        ("v_mad_u16 v1, v2, v3, v4 op_sel:[0,0,0,1]", READ, 1, 1),
        ("v_cmp_gt_u32_e32 vcc, v50, v51", "v_cndmask_b32_e32 v60, v61, v62, vcc", 2, 2),
        ("v_cmp_gt_u32_e32 vcc, v50, v51", "v_div_fmas_f32 v60, v61, v62, v63", 4, 4),
        ("v_readfirstlane_b32 s4, v9", "v_add_f32_e32 v60, s4, v61", 2, 2),
        ("v_readfirstlane_b32 s4, v9", "s_add_u32 s5, s4, s6", 0, 0),
        ("v_readfirstlane_b32 s4, v9", "v_readlane_b32 s5, v60, s4", 4, 4),
        ("v_readfirstlane_b32 s4, v9", "global_load_dword v60, v61, s[4:5]", 5, 5),
        ("s_mov_b32 s4, 0", "global_load_dword v60, v61, s[4:5]", 0, 0),
        ("v_mov_b32_e32 v9, 0", "v_readfirstlane_b32 s4, v9", 1, 1),
        ("v_mov_b32_e32 v9, 0", "v_mov_b32_dpp v60, v9 row_shr:8 row_mask:0xf bank_mask:0xf", 2, 2),
        ("v_mov_b32_e32 v9, 0", "v_mov_b32 v60, v9 row_shr:8", 2, 2),  # people may leave the suffix out
        ("v_add_f16 v1, v2, v3 dst_sel:WORD_1 src0_sel:WORD_0", READ, 1, 1),
        ("v_add_f32_e32 v9, v9, v8", "v_add_f32_dpp v9, v9, v9 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", 2, 2),
        ("global_store_dwordx4 v[50:51], v[0:3], off", WRITE, 2, 2),
        ("global_store_dwordx2 v[50:51], v[0:1], off", WRITE, 0, 0),
        ("v_dot2_f32_f16 v1, v2, v3, v4", READ, 3, 3),
        ("v_dot2_f32_f16 v1, v2, v3, v1", "v_dot2_f32_f16 v1, v2, v3, v1", 0, 0),
        ("s_mov_b32 m0, s4", "global_load_lds_dwordx4 v[50:51], off", 1, 1),
        ("v_mov_b32_e32 v8, 0", "v_permlane32_swap_b32_e32 v8, v9", 0, 2),
    ],
)  # fmt: skip
def test_wait_states(before: str, after: str, gfx942: int, gfx950: int):
    for gpu, states in (("gfx942", gfx942), ("gfx950", gfx950)):
        if "permlane" in after and gpu == "gfx942":
            continue  # which does not have it
        assert missing(before, after, gpu=gpu) == states
        if states:
            first = "s_nop 15" if states > 16 else f"s_nop {states - 1}"
            rest = [f"s_nop {states - 17}"] if states > 16 else []
            assert missing(before, first, *rest, after, gpu=gpu) == 0
            # Any instruction is a wait state.
            assert missing(before, *["s_nop 0"] * (states - 1), after, gpu=gpu) == 1


OLD = "v_mfma_f32_16x16x16f16 v[0:3], v[8:9], v[10:11], v[0:3]"  # CDNA 2, 8 passes
OLD_LONG = "v_mfma_f32_32x32x8f16 v[0:15], v[40:41], v[42:43], v[16:31]"  # 16 passes, C apart from D
OLD_SHORT = "v_mfma_f32_4x4x4f16 v[0:1], v[8:9], v[10:11], v[0:1]"  # 2 passes
OLD_FP32 = "v_mfma_f32_16x16x4f32 v[0:3], v8, v10, v[4:7]"  # 8 passes
OLD_FP64 = "v_mfma_f64_16x16x4f64 v[0:7], v[8:9], v[10:11], v[0:7]"


@pytest.mark.parametrize(
    ("before", "after", "states"),
    [
        (OLD, READ, 11), (OLD, WRITE, 11), (OLD, STORE, 11), (OLD, OLD, 0),
        (OLD, "v_mfma_f32_16x16x16f16 v[20:23], v[0:1], v[10:11], v[20:23]", 11),
        (OLD, "v_mfma_f32_32x32x8f16 v[0:15], v[40:41], v[42:43], v[0:15]", 8),
        (OLD, "v_mfma_f64_16x16x4f64 v[12:19], v[40:41], v[42:43], v[0:7]", 9),
        (OLD_SHORT, READ, 5), (OLD_SHORT, OLD_SHORT, 0), (OLD_LONG, READ, 19), (OLD_LONG, "v_mov_b32_e32 v16, 0", 15),
        # One rule for all but FP64.
        (OLD_FP32, READ, 11), (OLD_FP32, "v_mov_b32_e32 v4, 0", 7),
        (OLD_FP32, "v_mfma_f32_16x16x4f32 v[20:23], v28, v30, v[2:5]", 8),
        (OLD_FP64, READ, 11), (OLD_FP64, WRITE, 11), (OLD_FP64, STORE, 18), (OLD_FP64, OLD_FP64, 0),
        ("v_mov_b32_e32 v8, 0", OLD, 2), ("v_cmpx_gt_u32_e32 vcc, v50, v51", OLD, 4),
        # The hardware waits by itself where CDNA 3's does not.
        ("v_exp_f32_e32 v1, v2", READ, 0), ("v_readfirstlane_b32 s4, v9", "v_add_f32_e32 v60, s4, v61", 0),
        ("v_mov_b32_e32 v9, 0", "v_readfirstlane_b32 s4, v9", 0),
        ("v_cmp_gt_u32_e32 vcc, v50, v51", "v_cndmask_b32_e32 v60, v61, v62, vcc", 0),
        ("v_readfirstlane_b32 s4, v9", "v_readlane_b32 s5, v60, s4", 4),
        ("v_readfirstlane_b32 s4, v9", "global_load_dword v60, v61, s[4:5]", 5),
        ("global_store_dwordx4 v[50:51], v[0:3], off", WRITE, 1),
        ("v_dot2_f32_f16 v1, v2, v3, v4", READ, 3),
    ],
)  # fmt: skip
def test_wait_states_of_cdna_2(before: str, after: str, states: int):
    assert missing(before, after, gpu="gfx90a") == states


def test_wait_states_on_every_path():
    skip = ("s_cbranch_execz .L1", "s_nop 6", "v_mov_b32_e32 v60, v0", ".L1:")
    assert missing(MFMA, *skip, READ) == 6  # the branch alone
    assert missing(MFMA, "s_cbranch_execz .L1", "s_nop 6", ".L1:", "s_nop 5", READ) == 0
    # The loop comes back with a result under way.
    loop = (".L1:", READ, "s_nop 15", MFMA, "s_cbranch_scc1 .L1")
    (finding,) = findings(*loop)
    assert (finding.line, finding.rule) == (2, "missing-nops")
    assert not findings(*loop[:-1], "s_nop 5", loop[-1])
    # What has been overwritten since is nobody's result: the overwriting one is at fault.
    (finding,) = findings(MFMA, WRITE, READ)
    assert finding.line == 2


def test_f8f6f4_without_8_bit_elements_takes_half_as_long():
    product = "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], v[0:3]"
    assert missing(product, READ, gpu="gfx950") == 8 + 4
    assert missing(f"{product} cbsz:4 blgp:4", READ, gpu="gfx950") == 4 + 4
    assert missing(f"{product} cbsz:4", READ, gpu="gfx950") == 8 + 4


LOAD = "global_load_dword v0, v[2:3], off"


@pytest.mark.parametrize(
    ("lines", "needless"),
    [
        ((LOAD, "s_waitcnt vmcnt(0)"), 0),
        ((LOAD, "s_waitcnt vmcnt(1)"), 1),
        (("global_store_dword v[2:3], v0, off", "s_waitcnt vmcnt(0)"), 0),  # stores count too
        (("ds_read_b32 v0, v1", "s_waitcnt vmcnt(0)"), 1),
        (("s_load_dword s4, s[0:1], 0x0", "s_waitcnt lgkmcnt(0)"), 0),
        (("global_load_lds_dwordx4 v[2:3], off", "s_waitcnt vmcnt(0)"), 0),
        (("global_load_lds_dwordx4 v[2:3], off", "s_waitcnt lgkmcnt(0)"), 1),
        (("buffer_load_dword v1, s[4:7], 0 offen lds", "s_waitcnt vmcnt(0)"), 0),
        # As a number: vmcnt in bits 15:14 and 3:0, lgkmcnt in 11:8. This one waits for vmcnt(1).
        ((LOAD, LOAD.replace("v0", "v1"), "s_waitcnt 0xf71"), 0),
        ((LOAD, "s_waitcnt 0xf71"), 1),
    ],
)  # fmt: skip
def test_waits(lines: tuple[str, ...], needless: int):
    assert [f.rule for f in findings(*lines)].count("needless-wait") == needless


@pytest.mark.parametrize(
    ("shift", "access", "gfx942", "gfx950"),
    [
        (2, "ds_read_b32 v2, v1", 0, 0),
        (7, "ds_read_b32 v2, v1", 62, 31),  # 128 bytes apart: one bank of 32 for all, two of 64
        (8, "ds_read_b32 v2, v1", 62, 63),
        (4, "ds_read_b128 v[4:7], v1", 0, 0),
        (4, "ds_write_b128 v1, v[4:7]", 0, 0),
        # Rows of 64 bytes: neighbours conflict, and so do the lanes that are served together.
        (6, "ds_write_b128 v1, v[4:7]", 24, 12),
        (6, "ds_read_b128 v[4:7], v1", 24, 12),
    ],
)  # fmt: skip
def test_lds_conflicts(shift: int, access: str, gfx942: int, gfx950: int):
    for gpu, extra in (("gfx942", gfx942), ("gfx950", gfx950)):
        found = [f.what for f in findings(f"v_lshlrev_b32_e32 v1, {shift}, v0", access, gpu=gpu) if "conf" in f.rule]
        assert len(found) == (extra > 0)
        if extra:
            assert f"add {extra} clocks" in found[0]


CONFLICTING = ("v_lshlrev_b32_e32 v1, 8, v0", "ds_read_b32 v2, v1")


def conflicts(*lines: str, gpu: str = "gfx942") -> list[str]:
    return [f.what for f in findings(*lines, gpu=gpu) if f.rule == "lds-conflict"]


@pytest.mark.parametrize(
    ("move", "known"),
    [
        ("s_mov_b32 exec_hi, exec_hi", True), ("s_mov_b32 exec_lo, exec_lo", True), ("s_mov_b64 exec, exec", True),
        ("s_mov_b64 exec, -1", True), ("s_mov_b64 exec, s[4:5]", False), ("s_mov_b32 exec_hi, exec_lo", False),
    ],
)  # fmt: skip
def test_exec_moved_to_itself_stays_what_it_is(move: str, known: bool):
    assert len(conflicts(move, *CONFLICTING)) == known
    narrow = ("v_cmp_gt_u32_e32 vcc, 9, v0", "s_and_saveexec_b64 s[4:5], vcc")
    assert len(conflicts(*narrow, move, *CONFLICTING)) == (move == "s_mov_b64 exec, -1")


@pytest.mark.parametrize(
    ("lines", "extra"),
    [
        # Eight rows of 256 bytes, whose lanes meet in the same banks unless the row's number turns its words.
        (("v_lshlrev_b32_e32 v2, 5, v0", "v_bitop3_b32 v1, v2, 0xffffff00, v1 bitop3:0xc0"), 7),
        (("v_lshlrev_b32_e32 v2, 5, v0", "v_bitop3_b32 v1, v2, 0xffffff00, v1 bitop3:0xea"), 7),
        (("v_lshlrev_b32_e32 v2, 5, v0", "v_lshrrev_b32_e32 v3, 3, v0", "v_lshlrev_b32_e32 v3, 5, v3",
          "v_and_b32_e32 v2, 0xffffff00, v2", "v_bitop3_b32 v1, v1, v3, v2 bitop3:0x36"), None),
        # An argument, of which nothing is known, shifts all lanes alike if none of its bits is the rest's ...
        (("s_lshl_b32 s4, s4, 9", "v_lshlrev_b32_e32 v2, 5, v0", "v_bitop3_b32 v1, v2, 0xff00, s4 bitop3:0xea"), None),
        (("s_lshl_b32 s4, s4, 11", "v_lshlrev_b32_e32 v2, 5, v0", "v_bitop3_b32 v1, v2, 0xff00, s4 bitop3:0xea"), 7),
        # ... and may turn the lanes' words otherwise.
        (("v_lshlrev_b32_e32 v2, 5, v0", "v_bitop3_b32 v1, v2, 0xffffff00, s4 bitop3:0x6a"), None),
    ],
)  # fmt: skip
def test_any_function_of_three_operands_bits(lines: tuple[str, ...], extra: int | None):
    words = ("v_and_b32_e32 v1, 7, v0", "v_lshlrev_b32_e32 v1, 2, v1")
    found = conflicts(*words, *lines, "ds_read_b32 v2, v1", gpu="gfx950")
    assert len(found) == (extra is not None)
    if extra is not None:
        assert f"add {extra} clocks" in found[0]


@pytest.mark.parametrize(
    ("lines", "extra"),
    [
        # Rows of 128 bytes, but those of the upper 32 lanes stand a word further: two banks for 32 rows each.
        (("v_cmp_gt_u32_e32 vcc, 32, v0", "v_cndmask_b32_e64 v2, 4, 0, vcc", "v_add_u32_e32 v1, v1, v2"), 62),
        (("v_cmp_eq_u32_e64 s[4:5], 0, v0", "v_cndmask_b32_e64 v1, v1, 0, s[4:5]"), 62),
        (("v_cmp_lt_i32_e32 vcc, -1, v0", "v_cndmask_b32_e64 v1, 0, v1, vcc"), 62),
        # Words of its own for each lane; a condition that is not known.
        (("v_cmp_gt_u32_e32 vcc, 64, v0", "v_lshlrev_b32_e32 v2, 2, v0", "v_cndmask_b32_e32 v1, v1, v2, vcc"), None),
        (("v_cmp_gt_u32_e32 vcc, s4, v0", "v_cndmask_b32_e64 v1, 0, v1, vcc"), None),
        (("v_cmp_eq_u32_e32 vcc, 0, v0", "s_and_b64 vcc, vcc, s[4:5]", "v_cndmask_b32_e64 v1, v1, 0, vcc"), None),
        (("v_cmp_eq_u32_e64 s[4:5], 0, v0", "s_mov_b32 s5, s6", "v_cndmask_b32_e64 v1, v1, 0, s[4:5]"), None),
        # A bit of the lane's number as all bits of a mask.
        (("v_bfe_i32 v2, v0, 5, 1", "v_and_b32_e32 v2, 0x80, v2", "v_xor_b32_e32 v1, v1, v2"), 62),
        (("v_lshlrev_b32_e32 v2, 26, v0", "v_ashrrev_i32_e32 v2, 31, v2", "v_and_b32_e32 v1, v1, v2"), 31),
        # Constants of 16 bits, and moves through accumulation registers.
        (("s_movk_i32 s4, 0xff80", "v_and_b32_e32 v1, s4, v1"), 62),
        (("s_mov_b32 s4, 0", "s_addk_i32 s4, 0xf80", "v_and_b32_e32 v1, s4, v1"), 62),
        (("v_accvgpr_write_b32 a3, v1", "v_mov_b32_e32 v1, 0", "v_accvgpr_read_b32 v1, a3"), 62),
    ],
)  # fmt: skip
def test_what_addresses_are_made_of(lines: tuple[str, ...], extra: int | None):
    found = conflicts("v_lshlrev_b32_e32 v1, 7, v0", *lines, "ds_read_b32 v2, v1")
    assert len(found) == (extra is not None)
    if extra is not None:
        assert f"add {extra} clocks" in found[0]


@pytest.mark.parametrize(
    "other",
    [
        ("s_andn2_saveexec_b64 s[4:5], s[4:5]", "v_mov_b32_e32 v9, 1"),
        ("s_or_saveexec_b64 s[4:5], s[4:5]", "s_xor_b64 exec, exec, s[4:5]", "v_mov_b32_e32 v9, 1"),
    ],
)
def test_after_both_branches_all_lanes_are_back(other: tuple[str, ...]):
    branch = ("v_cmp_gt_u32_e32 vcc, 9, v0", "s_and_saveexec_b64 s[4:5], vcc", "s_xor_b64 s[4:5], exec, s[4:5]")
    assert not conflicts(*branch, *CONFLICTING)
    assert not conflicts(*branch, *other, *CONFLICTING)
    assert conflicts(*branch, *other, "s_or_b64 exec, exec, s[4:5]", *CONFLICTING)


def test_the_lanes_of_a_wide_load_are_no_neighbours():
    # Lanes 0 to 3 and 20 to 23 of gfx942 want the same banks, lanes 0 to 7 do not.
    address = ("v_and_b32_e32 v1, 15, v0", "v_lshlrev_b32_e32 v1, 4, v1", "v_lshrrev_b32_e32 v2, 4, v0")
    address += ("v_lshl_add_u32 v1, v2, 10, v1",)
    assert not [f for f in findings(*address, "ds_write_b128 v1, v[4:7]") if f.rule == "lds-conflict"]
    assert not [f for f in findings(*address, "ds_read_b128 v[4:7], v1") if f.rule == "lds-conflict"]
    turned = (*address, "v_lshlrev_b32_e32 v2, 6, v2", "v_xor_b32_e32 v1, v1, v2")  # the next row's fours change places
    assert not [f for f in findings(*turned, "ds_write_b128 v1, v[4:7]") if f.rule == "lds-conflict"]
    (found,) = [f for f in findings(*turned, "ds_read_b128 v[4:7], v1") if f.rule == "lds-conflict"]
    assert "conflicts add 8 clocks to the 8" in found.what


def test_scalar_loads_by_their_names():
    (found,) = findings("s_load_dword s4, s[0:1], 0x8", "s_load_dword s5, s[0:1], 0xc")
    assert found.rule == "narrow-scalar-loads"
    assert "s_load_dwordx2 would do" in found.what


def test_accumulators_moved_in_the_hot_loop():
    move = "v_accvgpr_read_b32 v60, a1"
    assert not findings(move)
    (found,) = findings(".L1:", move, "v_accvgpr_write_b32 a1, v60", "v_add_u32_e32 v1, 1, v1", "s_cbranch_scc1 .L1")
    assert (found.rule, found.line) == ("accumulator-moves", 2)
    assert found.what.startswith("1 reads and 1 writes of accumulation registers among the 3 vector instructions")
    assert not findings(move, ".L1:", "v_add_u32_e32 v1, 1, v1", "s_cbranch_scc1 .L1")


METADATA = """k:
	s_endpgm
.Lfunc_end0:
	.amdgpu_metadata
---
amdhsa.kernels:
  - .name: k
    .agpr_count: {agprs}
    .group_segment_fixed_size: {lds}
    .max_flat_workgroup_size: 256
    .private_segment_fixed_size: 0
    .sgpr_count: {sgprs}
    .sgpr_spill_count: 0
    .vgpr_count: {vgprs}
    .vgpr_spill_count: 0
    .wavefront_size: 64
...
	.end_amdgpu_metadata
"""


@pytest.mark.parametrize(
    ("gpu", "vgprs", "agprs", "lds", "words"),
    [
        ("gfx942", 64, 0, 0, None),
        ("gfx942", 132, 0, 0, "3 of 8 waves per SIMD: limited by 132 VGPRs; 128 would let 4 waves in"),
        ("gfx950", 260, 128, 0, "1 of 8 waves per SIMD: limited by 260 VGPRs (128 of them accumulation registers)"),
        ("gfx942", 64, 0, 32768, "2 of 8 waves per SIMD: limited by 32768 bytes of LDS in each workgroup (4 waves)"),
        # LDS of gfx950 comes in steps of 1280 bytes: 26 of them, of which 128 there are, four times.
        ("gfx950", 64, 0, 32768, "4 of 8 waves per SIMD: limited by 32768 bytes of LDS"),
        ("gfx950", 64, 0, 40960, "4 of 8 waves per SIMD: limited by 40960 bytes of LDS"),
        ("gfx950", 64, 0, 41000, "3 of 8 waves per SIMD: limited by 41000 bytes of LDS"),
    ],
)  # fmt: skip
def test_occupancy(gpu: str, vgprs: int, agprs: int, lds: int, words: str | None):
    (report,) = check(METADATA.format(vgprs=vgprs, agprs=agprs, lds=lds, sgprs=20), gpu)
    found = [f.what for f in report.findings if f.rule == "occupancy"]
    assert len(found) == (words is not None)
    if words:
        assert found[0].startswith(words)


@pytest.mark.parametrize(
    ("gpu", "sgprs", "vgprs", "words"),
    [
        ("gfx908", 80, 20, None), ("gfx942", 100, 20, None),
        ("gfx908", 84, 20, "9 of 10 waves per SIMD: limited by 84 SGPRs, of which a SIMD has 800"),
        ("gfx908", 100, 20, "8 of 10 waves per SIMD: limited by 100 SGPRs, of which a SIMD has 800"),
        ("gfx90a", 104, 60, "7 of 8 waves per SIMD: limited by 104 SGPRs, of which a SIMD has 800"),
        ("gfx942", 102, 72, "7 of 8 waves per SIMD: limited by 72 VGPRs"),
        ("gfx942", 102, 128, "4 of 8 waves per SIMD: limited by 128 VGPRs; 96 would let 5 waves in"),
    ],
)  # fmt: skip
def test_scalar_registers_limit(gpu: str, sgprs: int, vgprs: int, words: str | None):
    """As LLVM 19 prints "Occupancy" of such kernels."""
    text = METADATA.format(vgprs=vgprs, agprs=0, lds=0, sgprs=sgprs).replace("size: 256", "size: 64")
    assert [f.what for f in check(text, gpu)[0].findings if f.rule == "occupancy"] == [words][: words is not None]


def test_rules_of_rdna_do_not_speak():
    assert findings("v_mul_f32_e32 v0, v1, v2", "v_mul_f32_e32 v3, v4, v5") == []
    (found,) = findings("v_dual_mul_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5")[:1]
    assert found.rule == "illegal-pair"
    # Nor those of CDNA on RDNA, which waits by itself.
    assert findings("v_exp_f32_e32 v1, v2", READ, gpu="gfx1201") == []


def test_command():
    run = CliRunner().invoke
    result = run(app, ["isa", "-", "--check", "--gpu", "gfx942", "--json"], input=f"\t{MFMA}\n\t{READ}\n")
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["kernels"][0]["findings"]
    assert (finding["rule"], finding["severity"], finding["line"]) == ("missing-nops", "error", 2)
    clean = run(app, ["isa", "-", "--check", "--gpu", "gfx950"], input=f"\t{MFMA}\n\ts_nop 7\n\t{READ}\n")
    assert (clean.exit_code, "nothing found" in clean.stdout) == (0, True)

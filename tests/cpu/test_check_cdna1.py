"""The wait states that `laneloom isa --check` asks for on CDNA 1, whose sums lie in accumulation registers."""

from __future__ import annotations

import pytest

from laneloom.isa.check import check

READ, WRITE = "v_add_f32_e32 v60, v1, v61", "v_mov_b32_e32 v1, 0"
FIRST = "v_mfma_f32_16x16x16f16 a[0:3], v[8:9], a[10:11], a[0:3]"  # CDNA 1, 8 passes
FIRST_LONG = "v_mfma_f32_32x32x8f16 a[0:15], v[40:41], v[42:43], a[16:31]"  # 16 passes, C apart from D
FIRST_SHORT = "v_mfma_f32_4x4x4f16 a[0:3], v[8:9], v[10:11], a[4:7]"  # 2 passes
GET, SET = "v_accvgpr_read_b32 v60, a0", "v_accvgpr_write_b32 a0, v61"


@pytest.mark.parametrize(
    ("before", "after", "states"),
    [
        (FIRST, GET, 10), (FIRST_LONG, GET, 18), (FIRST_SHORT, GET, 4),
        (FIRST, SET, 7), (FIRST_LONG, SET, 15), (FIRST_SHORT, SET, 1),
        (FIRST_LONG, "v_accvgpr_write_b32 a31, v61", 13), (FIRST_SHORT, "v_accvgpr_write_b32 a7, v61", 0),
        (FIRST, FIRST, 0), (FIRST, "v_mfma_f32_4x4x4f16 a[4:7], v[8:9], v[10:11], a[2:5]", 2),
        (FIRST, "v_mfma_f32_4x4x4f16 a[4:7], v[8:9], a[2:3], a[4:7]", 4),
        (SET, GET, 3), (SET, FIRST, 1), ("v_accvgpr_write_b32 a11, v61", FIRST, 3), (SET, SET, 3),
        ("v_mov_b32_e32 v8, 0", FIRST, 2), ("v_dot2_f32_f16 v8, v2, v3, v4", FIRST, 2),
        ("v_mov_b32_e32 v61, 0", SET, 2), ("v_mov_b32_e32 v0, 0", FIRST, 0),  # v0 is not a0
        ("v_cmpx_gt_u32_e32 vcc, v50, v51", FIRST, 4), ("v_cmpx_gt_u32_e32 vcc, v50, v51", SET, 4),
        ("v_cmpx_gt_u32_e32 vcc, v50, v51", GET, 0),
        (GET, "global_store_dword v[50:51], v60, off", 2), (GET, "ds_write_b32 v60, v62", 2),
        (GET, "v_mov_b32_e32 v62, v60", 0),
        ("v_dot2_f32_f16 v1, v2, v3, v4", READ, 0), ("v_exp_f32_e32 v1, v2", READ, 0),
        ("v_readfirstlane_b32 s4, v9", "global_load_dword v60, v61, s[4:5]", 5),
        ("global_store_dwordx4 v[50:51], v[0:3], off", WRITE, 1),
    ],
)  # fmt: skip
def test_wait_states(before: str, after: str, states: int):
    found = [f.what for f in check(f"\t{before}\n\t{after}", "gfx908")[0].findings if f.rule == "missing-nops"]
    assert [int(text.split("s_nop ")[1].split()[0]) + 1 for text in found] == [states] * (states > 0)

"""`isa --check` for CDNA 5: v_nops behind matrix instructions, counters of copies, registers above v255."""

import pytest

from laneloom.isa.check import check

HALF = "v_wmma_f32_16x16x32_f16 v[0:7], v[8:15], v[16:23], v[0:7]"
BYTES = "v_wmma_i32_16x16x64_iu8 v[0:7], v[8:15], v[16:23], v[0:7]"
EIGHTS = "v_wmma_f32_16x16x64_fp8_fp8 v[0:7], v[8:15], v[16:23], v[0:7]"
FOURS = (
    "v_wmma_f32_16x16x128_f8f6f4 v[0:7], v[8:15], v[16:23], v[0:7] matrix_a_fmt:MATRIX_FMT_FP4 "
    "matrix_b_fmt:MATRIX_FMT_FP4"
)
SPARSE = "v_swmmac_f32_16x16x64_f16 v[0:7], v[8:15], v[16:31], v40"
SPARSE_BYTES = "v_swmmac_i32_16x16x128_iu8 v[0:7], v[8:15], v[16:31], v40"
FP32 = "v_wmma_f32_16x16x4_f32 v[0:7], v[8:9], v[16:17], v[0:7]"
TAKES_D = "v_wmma_f32_16x16x32_f16 v[50:57], v[0:7], v[60:67], v[50:57]"


def findings(*lines: str, rule: str = "missing-nops"):
    (report,) = check("".join(f"\t{line}\n" for line in lines), "gfx1250")
    return [f for f in report.findings if f.rule == rule]


@pytest.mark.parametrize(
    ("first", "second", "needed"),
    [
        (HALF, "v_add_f32 v50, v3, v51", 4), (BYTES, "v_add_f32 v50, v3, v51", 8),
        (EIGHTS, "v_add_f32 v50, v3, v51", 1), (FOURS, "v_add_f32 v50, v3, v51", 1),
        (SPARSE, "v_add_f32 v50, v3, v51", 2), (SPARSE_BYTES, "v_add_f32 v50, v3, v51", 4),
        (HALF, TAKES_D, 5), (BYTES, TAKES_D, 9), (EIGHTS, TAKES_D, 2), (SPARSE, TAKES_D, 3), (SPARSE_BYTES, TAKES_D, 5),
        (HALF, "v_mov_b32 v5, 0", 4), (HALF, "v_mov_b32 v20, 0", 4), (SPARSE, "v_mov_b32 v40, 0", 2),
        (HALF, "v_dual_mov_b32 v60, 0 :: v_dual_mov_b32 v9, 0", 4),
    ],
)  # fmt: skip
def test_vector_instructions_between(first, second, needed):
    assert not findings(first, *["v_nop"] * needed, second)
    (found,) = findings(first, *["v_nop"] * (needed - 1), "s_nop 7", second)
    assert f"{needed} vector instruction" in found.what
    assert "1 of v_nop missing" in found.what
    assert not findings(first, *["v_mov_b32 v100, 0"] * needed, second), "any vector instruction counts"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (HALF, HALF), (HALF, "v_exp_f32 v50, v3"), (HALF, "v_add_f32 v50, v51, v52"), (FP32, "v_add_f32 v50, v3, v51"),
        (HALF, "v_add_f32 v50, v8, v16"), (HALF, "v_mov_b32 v40, 0"), (HALF, "global_store_b32 v[50:51], v3, off"),
    ],
)  # fmt: skip
def test_what_needs_nothing_between(first, second):
    """The sum of the next one, transcendental functions, other registers, sources read again, FP32."""
    assert not findings(first, second)


def test_every_path_counts():
    around = (
        HALF, "s_cbranch_scc1 .L", *["v_nop"] * 4, ".L:", "v_add_f32 v50, v3, v51",
    )  # fmt: skip
    text = "".join(f"{line}\n" if line.startswith(".L") else f"\t{line}\n" for line in around)
    (report,) = check(text, "gfx1250")
    assert [f.rule for f in report.findings] == ["missing-nops"]


def test_registers_above_255():
    second = "v_add_f32 v50, v3, v51"
    assert findings("s_set_vgpr_msb 0x41", HALF.replace("v[8:15]", "v[70:77]"), "s_set_vgpr_msb 0x1", second)
    assert not findings("s_set_vgpr_msb 0x41", HALF.replace("v[8:15]", "v[70:77]"), "s_set_vgpr_msb 0x0", second)


def test_counters_of_copies():
    load = "global_load_async_to_lds_b128 v1, v[2:3], off"
    tile = "tensor_load_to_lds s[8:11], s[12:19]"
    assert not findings(load, "s_wait_asynccnt 0x0", tile, "s_wait_tensorcnt 0x0", rule="needless-wait")
    assert len(findings(load, "s_wait_asynccnt 0x1", rule="needless-wait")) == 1
    assert len(findings(load, "s_wait_tensorcnt 0x0", "s_wait_loadcnt 0x0", rule="needless-wait")) == 2
    assert not findings("s_wait_xcnt 0x0", rule="needless-wait"), "which guards registers that are overwritten"

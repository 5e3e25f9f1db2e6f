"""Strict mode's undefined bits are sound: whatever they hold, the bits that a rule calls defined come out the same."""

from __future__ import annotations

import numpy as np
import pytest

from laneloom.emulator.memory import GlobalMemory, LocalMemory
from laneloom.emulator.program import Program
from laneloom.emulator.shadow import Shadow
from laneloom.emulator.state import Waves
from laneloom.isa.parse import EXEC, M0, VCC

KERNEL = """
k:
\t{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 16
\t\t.amdhsa_wavefront_size32 1
\t.end_amdhsa_kernel
"""
WAVES, FILLS = 4, 6
VECTOR = """
v_add_nc_u32_e32 v8, v1, v2
v_sub_nc_u32_e32 v8, v1, v2
v_subrev_nc_u32_e32 v8, v1, v2
v_add_nc_u32_e32 v8, s4, v2
v_add_co_u32 v8, vcc_lo, v1, v2
v_sub_co_u32 v8, s10, v1, v2
v_add_co_ci_u32_e32 v8, vcc_lo, v1, v2, vcc_lo
v_sub_co_ci_u32_e64 v8, s10, v1, v2, s4
v_add3_u32 v8, v1, v2, v3
v_xad_u32 v8, v1, v2, v3
v_lshl_add_u32 v8, v1, v2, v3
v_lshl_add_u32 v8, v1, 5, v3
v_add_lshl_u32 v8, v1, v2, 9
v_add_lshl_u32 v8, v1, v2, v3
v_mul_lo_u32 v8, v1, v2
v_mul_u32_u24_e32 v8, v1, v2
v_mul_i32_i24_e32 v8, v1, v2
v_mad_u32_u24 v8, v1, v2, v3
v_mad_i32_i24 v8, v1, v2, v3
v_mad_u64_u32 v[8:9], null, v1, v2, v[3:4]
v_add_nc_u16 v8, v1, v2
v_sub_nc_u16 v8, v1, v2 op_sel:[1,0,1]
v_mul_lo_u16 v8, v1, v2
v_mad_u16 v8, v1, v2, v3
v_pk_add_u16 v8, v1, v2
v_pk_sub_i16 v8, v1, v2 op_sel:[1,0] op_sel_hi:[0,1]
v_pk_mul_lo_u16 v8, v1, v2
v_pk_mad_u16 v8, v1, v2, v3
v_pack_b32_f16 v8, v1, v2 op_sel:[1,0,0]
v_bfrev_b32_e32 v8, v1
v_bcnt_u32_b32 v8, v1, v2
v_ctz_i32_b32_e32 v8, v1
v_clz_i32_u32_e32 v8, v1
v_lshlrev_b64 v[8:9], v1, v[2:3]
v_lshrrev_b64 v[8:9], 24, v[2:3]
v_ashrrev_i64 v[8:9], v1, v[2:3]
v_ashrrev_i64 v[8:9], 40, v[2:3]
v_alignbit_b32 v8, v1, v2, v3
v_alignbyte_b32 v8, v1, v2, v3
v_alignbit_b32 v8, v1, v2, v3.h
v_alignbyte_b32 v8, v1, v2, v3 op_sel:[0,0,1,0]
v_perm_b32 v8, v1, v2, v3
v_bfe_u32 v8, v1, v2, v3
v_bfe_i32 v8, v1, 3, 9
v_bfi_b32 v8, v1, v2, v3
v_and_or_b32 v8, v1, v2, v3
v_cndmask_b32_e64 v8, v1, v2, s4
v_cndmask_b16 v8.h, v1.l, v2.h, s4
v_cndmask_b16 v8, v1, v2, vcc_lo op_sel:[1,0,0]
v_movreld_b32_e32 v8, v1
v_movreld_b32_e32 v8, s4
v_movrels_b32_e32 v8, v1
""".strip().splitlines()
SCALAR = [
    f"s_{name}_{width} {registers}"
    for name in "and or xor nand nor xnor and_not1 or_not1".split()
    for width, registers in (("b32", "s8, s4, s5"), ("b64", "s[8:9], s[4:5], s[6:7]"), ("b64", "s[8:9], s[4:5], -2"))
]  # fmt: skip
SCALAR += """
s_not_b32 s8, s4
s_not_b64 s[8:9], s[4:5]
s_and_saveexec_b32 s8, s4
s_or_saveexec_b32 s8, s4
s_and_not0_saveexec_b32 s8, s4
s_and_not1_wrexec_b32 s8, s4
s_add_u32 s8, s4, s5
s_sub_i32 s8, s4, 7
s_mul_i32 s8, s4, s5
s_addc_u32 s8, s2, s4
s_subb_u32 s8, s2, s3
s_cmovk_i32 s8, 0x10
s_add_f32 s8, s4, s5
s_min_f16 s8, s4, s5
s_cmp_lt_f32 s4, s5
s_addk_i32 s4, 0x10
s_lshl1_add_u32 s8, s4, s5
s_lshl4_add_u32 s8, s4, s5
s_lshl_b32 s8, s4, s5
s_lshr_b32 s8, s4, 9
s_ashr_i32 s8, s4, s5
s_lshl_b64 s[8:9], s[4:5], s6
s_lshr_b64 s[8:9], s[4:5], s6
s_ashr_i64 s[8:9], s[4:5], 40
s_ashr_i64 s[4:5], s[4:5], s6
s_bfe_u32 s8, s4, s5
s_bfe_i32 s8, s4, 0x80003
s_bfe_i32 s8, s4, s5
s_bitcmp1_b32 s4, s5
s_bitcmp0_b64 s[4:5], 40
s_bfe_u64 s[8:9], s[4:5], s6
s_bfe_i64 s[8:9], s[4:5], s6
s_bfe_i64 s[8:9], s[4:5], 0x200000
s_ctz_i32_b32 s8, s4
s_clz_i32_u32 s8, s4
s_sext_i32_i8 s8, s4
s_sext_i32_i16 s8, s4
s_pack_ll_b32_b16 s8, s4, s5
s_pack_lh_b32_b16 s8, s4, s5
s_pack_hh_b32_b16 s8, s4, s5
s_pack_hl_b32_b16 s8, s4, s5
s_cselect_b32 s8, s4, s5
s_cselect_b64 s[8:9], s[4:5], s[6:7]
s_cmov_b32 s8, s4
s_movreld_b32 s8, s4
s_movrels_b64 s[8:9], s[4:5]
""".strip().splitlines()


PARTS = "dst_sel:{} dst_unused:UNUSED_{} src0_sel:{} src1_sel:{}"
GFX9 = f"""
v_lshlrev_b16_e32 v8, v1, v2
v_lshrrev_b16_e32 v8, 3, v2
v_ashrrev_i16_e32 v8, v1, v2
v_add_u16_e32 v8, v1, v2
v_subrev_u16_e32 v8, v1, v2
v_mad_u16 v8, v1, v2, v3 op_sel:[1,0,0,1]
v_mul_lo_u16_e32 v8, v1, v2
v_max_i16_e32 v8, v1, v2
v_mad_u16 v8, v1, v2, v3
v_cvt_f16_u16_e32 v8, v1
v_or_b32_sdwa v8, v1, v2 {PARTS.format("WORD_1", "PAD", "BYTE_0", "WORD_1")}
v_and_b32_sdwa v8, sext(v1), v2 {PARTS.format("BYTE_2", "SEXT", "BYTE_3", "DWORD")}
v_xor_b32_sdwa v8, sext(v1), v2 {PARTS.format("WORD_0", "SEXT", "BYTE_1", "WORD_0")}
v_or_b32_sdwa v8, v1, sext(v2) {PARTS.format("BYTE_1", "PRESERVE", "DWORD", "BYTE_2")}
v_lshlrev_b32_sdwa v8, v1, v2 {PARTS.format("DWORD", "PAD", "BYTE_1", "WORD_0")}
v_lshrrev_b32_sdwa v8, v1, v2 {PARTS.format("WORD_1", "PAD", "BYTE_0", "DWORD")}
v_ashrrev_i32_sdwa v8, v1, sext(v2) {PARTS.format("WORD_0", "PAD", "WORD_1", "WORD_1")}
v_add_u32_sdwa v8, v1, v2 {PARTS.format("WORD_1", "PRESERVE", "WORD_0", "BYTE_3")}
v_mov_b32_sdwa v8, sext(v1) dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0
v_not_b32_sdwa v8, v1 dst_sel:BYTE_3 dst_unused:UNUSED_PAD src0_sel:WORD_1
v_cndmask_b32_sdwa v8, v1, v2, vcc {PARTS.format("WORD_1", "PAD", "WORD_1", "BYTE_2")}
v_cndmask_b32_sdwa v8, sext(v1), v2, vcc {PARTS.format("BYTE_1", "PRESERVE", "BYTE_3", "DWORD")}
v_pk_mov_b32 v[8:9], v[2:3], v[4:5] op_sel:[1,0]
v_mad_f32 v8, v1, v2, v3
""".strip().splitlines()
#: what writes a part of its register
GFX950 = [
    "v_cvt_scalef32_pk_fp8_f32 v8, v1, v2, 1.0", "v_cvt_scalef32_pk_bf8_f16 v8, v1, 1.0 op_sel:[0,0,1]",
    "v_cvt_scalef32_pk_fp4_f32 v8, v1, v2, 1.0 op_sel:[0,0,1,1]", "v_cvt_scalef32_f16_fp8 v8, v1, 1.0 op_sel:[0,0,1]",
    "v_cvt_scalef32_sr_fp8_f32 v8, v1, v2, 1.0 op_sel:[0,0,1,0]", "v_cvt_sr_bf16_f32 v8, v1, v2 op_sel:[0,0,1]",
    "v_cvt_scalef32_sr_pk_fp4_f16 v8, v1, v2, 1.0 op_sel:[0,0,0,1]", "v_cvt_sr_f16_f32 v8, v1, v2",
    "v_cvt_pkaccum_u8_f32 v8, v1, v2", "v_bitop3_b16 v8, v1, v2, v3 bitop3:0xec",
    "v_bitop3_b32 v8, v1, v2, s4 bitop3:0x3a", "v_bitop3_b16 v8, v1, s4, v3 op_sel:[1,0,0,1] bitop3:0x69",
    "v_cvt_scalef32_pk32_f16_fp6 v[0:15], v[2:7], v8",
]  # fmt: skip
GFX1250 = """
v_bitop3_b16 v8.h, v1.l, v2.h, s4 bitop3:0xec
v_cvt_f16_fp8_e32 v8.h, v1.l
v_cvt_pk_fp8_f16 v8.l, v1
v_cvt_pk_f16_bf8 v8, v1.h
v_sat_pk4_i4_i8 v8.h, v1
v_dual_bitop2_b32 v8, v1, v2 bitop3:0x14 :: v_dual_mov_b32 v9, v3
v_tanh_f16_e32 v8.l, v1.h
v_perm_pk16_b4_u4 v[8:9], v1, v2, v[4:5]
v_add_nc_u64_e32 v[8:9], v[2:3], v[4:5]
v_lshl_add_u64 v[8:9], v[2:3], 3, v[4:5]
v_mad_nc_u64_u32 v[8:9], v1, v2, v[4:5]
v_pk_add_bf16 v8, v1, v2 op_sel:[1,0]
v_add_max_u32 v8, v1, v2, v3
v_cvt_scalef32_sr_pk8_fp4_f16 v8, v[4:7], v1, v2
v_cvt_scalef32_pk8_fp8_f32 v[8:9], v[2:9], 1.0
v_cvt_scalef32_pk8_bf8_bf16 v[8:9], v[8:11], v1
v_cvt_scalef32_pk16_fp6_f16 v[8:10], v[2:9], 1.0
v_cvt_scalef32_sr_pk16_bf6_f32 v[8:10], v[0:15], v1, v2
v_cvt_scale_pk8_f32_fp8 v[4:11], v[2:3], v1 scale_sel:8
v_cvt_scale_pk8_bf16_fp4 v[8:11], v2, v1 scale_sel:6
v_cvt_scale_pk16_f16_bf6 v[4:11], v[4:6], v1
""".strip().splitlines()
#: what moves between lanes, some of which hold nothing that is defined
LANES = """
ds_bpermute_b32 v8, v1, v2
ds_bpermute_b32 v8, v1, v2 offset:12
ds_bpermute_b32 v1, v1, v2
ds_permute_b32 v8, v1, v2
v_permlane16_b32 v8, v1, s4, s5
v_permlanex16_b32 v8, v1, s2, s4 op_sel:[0,1]
v_permlanex16_b32 v8, v1, s4, s5 op_sel:[1,0]
ds_swizzle_b32 v8, v1 offset:swizzle(QUAD_PERM,0,2,1,2)
v_mov_b32_dpp v8, v1 row_shr:3 row_mask:0xf bank_mask:0xf
v_mov_b32_dpp v8, v1 row_mirror row_mask:0x1 bank_mask:0x5 bound_ctrl:1
v_and_b32_dpp v8, v1, v2 row_mirror row_mask:0xf bank_mask:0xf bound_ctrl:1
v_add_nc_u32_dpp v8, v1, v2 row_shl:1 row_mask:0xf bank_mask:0xf
v_add3_u32_e64_dpp v8, v1, v2, v3 quad_perm:[1,0,3,2] row_mask:0xa bank_mask:0xf
v_perm_b32_e64_dpp v8, v1, v2, v3 row_ror:5 row_mask:0xf bank_mask:0xf
v_add_nc_u32_dpp v8, v1, v2 row_xmask:3 row_mask:0xf bank_mask:0xf fi:1
v_cndmask_b32_dpp v8, v1, v2, vcc_lo row_shr:1 row_mask:0xf bank_mask:0xf
v_max_u16_e64_dpp v8.l, v1.l, v2.l row_shr:2 row_mask:0xf bank_mask:0xf
v_cmp_lt_u32_e64_dpp s10, v1, v2 row_shr:2 row_mask:0xf bank_mask:0xf
""".strip().splitlines()
CASES = [(code, "gfx1151") for code in VECTOR + SCALAR + LANES] + [(code, "gfx90a") for code in GFX9]
CASES += [(code, "gfx1201") for code in ("v_permlane16_var_b32 v8, v1, v2", "s_add_nc_u64 s[8:9], s[4:5], s[6:7]")]
CASES += [(code, "gfx950") for code in GFX950] + [(code, "gfx1250") for code in GFX1250]


def undefined(rng, shape) -> np.ndarray:
    """Masks of every kind: none, all, halves, bytes, single bits, anything."""
    anything = rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32)
    bit = np.uint32(1) << rng.integers(0, 32, shape, dtype=np.uint32)
    named = np.array([0, 0, 0, 0xFFFFFFFF, 0xFFFF0000, 0xFFFF, 0xFF000000, 0xFFFFFFE0], np.uint32)
    kind = rng.integers(0, 10, shape)
    return np.where(kind == 9, anything, np.where(kind == 8, bit, named[np.minimum(kind, 7)])).astype(np.uint32)


def waves(V, S, scc) -> Waves:
    lds = LocalMemory(1, 0)
    base = np.zeros((WAVES, 1), np.int64)
    return Waves(V.copy(), S.copy(), scc.copy(), np.arange(WAVES), base, V.shape[-1], GlobalMemory([]), lds, True)


@pytest.mark.parametrize(("code", "gpu"), CASES)
def test_defined_bits_do_not_depend_on_undefined_ones(code, gpu):
    program = Program(KERNEL.format(code=code), gpu, strict=True)
    lanes = program.lanes
    built = program.blocks[0].code
    rng = np.random.default_rng(sum(code.encode()))
    vector = not code.startswith("s_")
    for _ in range(8):
        V = rng.integers(0, 1 << 32, (32, WAVES, lanes), dtype=np.uint64).astype(np.uint32)
        S = rng.integers(0, 1 << 32, (128, WAVES), dtype=np.uint64).astype(np.uint32)
        scc = rng.integers(0, 2, WAVES).astype(bool)
        S[EXEC], S[M0] = rng.integers(1, 1 << 32, WAVES), rng.integers(0, 4, WAVES)
        u_v, u_s = np.zeros_like(V), np.zeros_like(S)
        u_v[1:12] = undefined(rng, (11, WAVES, lanes))
        u_s[4:12], u_s[VCC] = undefined(rng, (8, WAVES)), undefined(rng, WAVES)
        u_scc = np.zeros(WAVES, bool) if vector else rng.integers(0, 4, WAVES) == 0
        g = waves(V, S, scc)
        everything = (1 << 128) - 1
        epoch = np.zeros(WAVES, np.int64)
        g.shadow = Shadow(u_v.copy(), u_s.copy(), u_scc.copy(), epoch, {}, (1 << 32) - 1, everything, None)
        assert built.guards[0].follow is not None
        built.guards[0].follow(g)
        results = []
        for _ in range(FILLS):
            fill_v, fill_s = (rng.integers(0, 1 << 32, x.shape, dtype=np.uint64).astype(np.uint32) for x in (V, S))
            flag = np.where(u_scc, rng.integers(0, 2, WAVES).astype(bool), scc)
            other = waves(V & ~u_v | fill_v & u_v, S & ~u_s | fill_s & u_s, flag)
            with np.errstate(all="ignore"):
                built.steps[0](other)
            results.append((other.V, other.S, other.scc))
        for V_k, S_k, scc_k in results[1:]:
            changed = (V_k ^ results[0][0]) & ~g.shadow.V
            if vector:
                assert not changed.any(), (code, np.argwhere(changed)[0])
            assert not ((S_k ^ results[0][1]) & ~g.shadow.S).any(), code
            assert not ((scc_k != results[0][2]) & ~g.shadow.scc).any(), code


@pytest.mark.parametrize(
    ("code", "masks", "want"),
    [
        (f"v_or_b32_sdwa v8, v1, v2 {PARTS.format('WORD_1', 'PAD', 'BYTE_1', 'DWORD')}", {1: 0xFF00}, 0xFF0000),
        (f"v_lshlrev_b32_sdwa v8, v1, v2 {PARTS.format('DWORD', 'PAD', 'BYTE_0', 'BYTE_3')}", {2: 0x0F000000}, 0xF),
        (f"v_cndmask_b32_sdwa v8, v1, v2, vcc {PARTS.format('DWORD', 'PAD', 'WORD_1', 'BYTE_1')}",  # each lane takes v2
         {1: 0xFFFFFFFF, 2: 0xF00}, 0xF),
        ("v_lshlrev_b16_e32 v8, 8, v2", {2: 0xFFFFFFFF, 8: 0xFFFFFFFF}, 0xFF00),
        ("v_add_u16_e32 v8, v1, v2", {2: 0xFFFFFF00, 8: 0xFFFFFFFF}, 0xFF00),
        ("v_add_f16_e32 v8, v1, v2", {2: 0xFFFFFFFF, 8: 0xFFFFFFFF}, 0xFFFF),
        ("v_add_nc_u32_e32 v8, v1, v2", {1: 0xFFFF0000}, 0xFFFF0000),
        ("v_mul_lo_u32 v8, v1, v2", {2: 0xFF000000}, 0xFF000000),
        ("v_lshl_add_u32 v8, v1, 8, v3", {1: 0xFFFF0000}, 0xFF000000),
        ("v_bfrev_b32_e32 v8, v1", {1: 0xFF}, 0xFF000000),
        ("v_bcnt_u32_b32 v8, v1, v2", {2: 0xFFFF0000}, 0xFFFF0000),
        ("v_bcnt_u32_b32 v8, v1, v2", {1: 1}, 0xFFFFFFFF),
        ("v_lshrrev_b64 v[8:9], 24, v[2:3]", {2: 0xFF000000}, 0xFF),
        ("v_alignbit_b32 v8, v1, v2, v3", {3: 0xFFFFFFE0}, 0),
        ("v_pack_b32_f16 v8, v1, v2", {2: 0xFFFF}, 0xFFFF0000),
        ("v_cndmask_b16 v8.h, v1.l, v2.h, s4", {2: 0xFFFF00FF, 8: 0xFFFF0001}, 1),  # no lane takes v2
        ("v_cndmask_b16 v8.l, v1.h, v2.h, s4", {1: 0x7FFFFFF, 8: 0xFFFF0001}, 0xFFFF07FF),
        ("v_bitop3_b32 v8, v1, v2, v3 bitop3:0xec", {1: 0xFF00, 2: 0xFF}, 0xFF),  # all but v2 is 0: v2 | v1 & v3
        ("v_bitop3_b16 v8, v1, v2, v3 bitop3:0xec", {1: 0xFF00, 2: 0xFFFF00FF, 8: 0x7FFFFFFF}, 0x7FFF00FF),
        ("v_cvt_scalef32_pk8_fp8_f32 v[8:9], v[0:7], 1.0", {1: 0xFFFFFFFF, 2: 1, 5: 2}, 0xFFFF00),
        ("v_cvt_scalef32_pk8_fp4_f16 v8, v[0:3], 1.0", {1: 0xFFFF0000, 2: 1}, 0xFF000),
        ("v_cvt_scale_pk8_f32_fp8 v[8:15], v[4:5], v1", {4: 0xFFFFFF00, 5: 0xFFFFFFFF, 1: 0xFFFFFF00}, 0),
        ("v_cvt_scale_pk8_f16_fp4 v[8:11], v4, v1", {4: 0xF0, 1: 0xFFFF0000}, 0xFFFF0000),
        ("v_cvt_scale_pk16_bf16_fp6 v[8:15], v[4:6], v1", {4: 0xFFFFF000}, 0),
    ],
)
def test_no_more_is_undefined_than_has_to_be(code, masks, want):
    older = "gfx90a" if "sdwa" in code or "16_e32" in code else "gfx950" if "bitop" in code else "gfx1151"
    gpu = "gfx1250" if "v_cvt_scale" in code else older
    program = Program(KERNEL.format(code=code), gpu, strict=True)
    full = np.full((128, WAVES), 0xFFFFFFFF, np.uint32)
    full[4] = 0
    g = waves(np.zeros((32, WAVES, program.lanes), np.uint32), full, np.zeros(WAVES, bool))
    u_v = np.zeros_like(g.V)
    for n, mask in masks.items():
        u_v[n] = mask
    dirty = sum(1 << n for n in masks)
    g.shadow = Shadow(u_v, np.zeros_like(g.S), np.zeros(WAVES, bool), np.zeros(WAVES, np.int64), {}, dirty, 0, None)
    follow = program.blocks[0].code.guards[0].follow
    assert follow is not None
    follow(g)
    assert (g.shadow.V[8] == want).all()


@pytest.mark.parametrize(
    ("code", "masks", "want"),
    [
        ("s_bfe_i64 s[8:9], s[4:5], 0x200000", {5: 0xFFFFFFFF}, (0, 0)),  # how LLVM widens 32 bits
        ("s_bfe_i64 s[8:9], s[4:5], 0x200000", {4: 0x80000000}, (0x80000000, 0xFFFFFFFF)),
        ("s_bfe_u64 s[8:9], s[4:5], 0x80004", {4: 0xFFFFFF00}, (0xF0, 0)),
        ("s_bfe_i32 s8, s4, 0x80008", {4: 0xFFFF00FF}, (0, 0)),
        ("s_lshr_b64 s[8:9], s[4:5], 32", {4: 0xFFFFFFFF}, (0, 0)),
        ("s_ashr_i64 s[8:9], s[4:5], 36", {5: 0xF}, (0, 0)),
        ("s_lshl_b64 s[8:9], s[4:5], 32", {5: 0xFFFFFFFF}, (0, 0)),
        ("s_bitcmp1_b32 s4, 3", {4: 0xFFFFFFF7}, (0, 0)),
    ],
)
def test_scalar_fields_leave_out_what_they_cut_off(code, masks, want):
    program = Program(KERNEL.format(code=code), "gfx1151", strict=True)
    g = waves(np.zeros((32, WAVES, 32), np.uint32), np.zeros((128, WAVES), np.uint32), np.zeros(WAVES, bool))
    u_s = np.zeros_like(g.S)
    for n, mask in masks.items():
        u_s[n] = mask
    dirty = sum(1 << n for n in masks)
    g.shadow = Shadow(np.zeros_like(g.V), u_s, np.zeros(WAVES, bool), np.zeros(WAVES, np.int64), {}, 0, dirty, None)
    follow = program.blocks[0].code.guards[0].follow
    assert follow is not None
    follow(g)
    assert (g.shadow.S[8:10] == np.array(want)[:, None]).all()
    assert (g.shadow.scc == bool(any(want))).all()

"""What CDNA 3 and 4 have and RDNA lacks, instruction by instruction: against numpy, and against the guides' words."""

from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest

from laneloom.emulator import calls, cdna
from laneloom.emulator.builders import find_builder
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import HazardError, UnknownInstructionError
from laneloom.isa.parse import EXEC, parse_operand

U32, U64 = np.uint32, np.uint64
RNG = np.random.default_rng(5)
WORDS = RNG.integers(0, 1 << 32, (4, 128)).astype(U32)


def words(n):
    return {k: WORDS[k] for k in range(n)}


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "modern"),
    [
        ("global_load_dwordx3", "global_load_b96"), ("buffer_load_ubyte_d16_hi", "buffer_load_d16_hi_u8"),
        ("flat_store_short_d16_hi", "flat_store_d16_hi_b16"), ("scratch_load_short_d16", "scratch_load_d16_b16"),
        ("global_atomic_smin_x2", "global_atomic_min_i64"), ("buffer_atomic_cmpswap", "buffer_atomic_cmpswap_b32"),
        ("global_atomic_add_f32", "global_atomic_add_f32"), ("ds_read2st64_b64", "ds_load_2addr_stride64_b64"),
        ("ds_wrxchg2_rtn_b32", "ds_storexchg_2addr_rtn_b32"), ("ds_write_b8_d16_hi", "ds_store_b8_d16_hi"),
        ("ds_cmpst_rtn_f64", "ds_cmpstore_rtn_f64"), ("v_subbrev_co_u32", "v_subrev_co_ci_u32"),
        ("v_accvgpr_write_b32", "v_mov_b32"), ("global_load_lds_dwordx4", "global_load_lds_b128"),
    ],
)  # fmt: skip
def test_names_of_gfx9(name, modern):
    assert cdna.modern(name) == modern
    assert find_builder(modern)


def test_every_spelling_of_gfx9_is_known():
    modern = {cdna.modern(name) for name in cdna.spellings()} - set(calls.JUMPS)
    assert not [name for name in modern if not find_builder(name)]


def test_accumulation_registers_are_parsed():
    operand = parse_operand("a[4:7]")
    assert (operand.kind, operand.index, operand.count) == ("a", 4, 4)
    assert parse_operand("sext(v3)").signed


# -- 64 bits and pairs -------------------------------------------------------------------------------------------------


def test_lshl_add_u64_takes_three_bits_of_the_shift(cdna3):
    x = RNG.integers(0, 1 << 63, 128, dtype=np.uint64)
    got = cdna3("v_lshl_add_u64 v[4:5], v[0:1], v2, v[0:1]\nv_mov_b64_e32 v[6:7], v[4:5]",
                v={0: x, 2: np.arange(128, dtype=U32)})  # fmt: skip
    want = (x << (np.arange(128, dtype=np.uint64) & np.uint64(7))) + x
    np.testing.assert_array_equal(got.vector(4, np.uint64), want)
    np.testing.assert_array_equal(got.vector(6, np.uint64), want)


def test_fmac_f64_rounds_once(cdna3):
    a, b, c = RNG.standard_normal((3, 64))
    got = cdna3("v_fmac_f64_e32 v[4:5], v[0:1], v[2:3]", v={0: a, 2: b, 4: c}).vector(4, np.float64)
    exact = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("gpu", ["gfx942", "gfx950"])
def test_packed_f32(cdna3, gpu):
    """op_sel chooses the word for the low result, op_sel_hi that for the high one; neg_lo and neg_hi their signs."""
    f = RNG.standard_normal((6, 64)).astype(np.float32)
    code = """v_pk_fma_f32 v[8:9], v[0:1], v[2:3], v[4:5] op_sel:[0,1,0] op_sel_hi:[1,0,1] neg_lo:[1,0,0] neg_hi:[0,0,1]
    v_pk_mul_f32 v[10:11], v[0:1], s[2:3]
    v_pk_add_f32 v[12:13], v[0:1], 1.0 op_sel_hi:[0,1]"""
    got = cdna3(code, gpu, v=dict(enumerate(f)), s={2: np.float32(3.0), 3: np.float32(-5.0)})
    fma = [np.float32(np.float64(-f[0]) * f[3] + f[4]), np.float32(np.float64(f[1]) * f[2] - f[5])]
    for k in range(2):
        np.testing.assert_allclose(got.vector(8 + k, np.float32), fma[k], rtol=2.0**-23)
        np.testing.assert_array_equal(got.vector(10 + k, np.float32), f[k] * np.float32((3.0, -5.0)[k]))
        np.testing.assert_array_equal(got.vector(12 + k, np.float32), f[0] + np.float32(1.0))


def test_packed_move(cdna3):
    got = cdna3("v_pk_mov_b32 v[8:9], v[0:1], v[2:3] op_sel:[1,0]", v=words(4))
    np.testing.assert_array_equal(got.vector(8, U32), WORDS[1])
    np.testing.assert_array_equal(got.vector(9, U32), WORDS[2])
    got = cdna3("v_pk_mov_b32 v[0:1], v[0:1], v[0:1] op_sel:[1,0]", v=words(2))  # reads before it writes
    np.testing.assert_array_equal(got.vector(1, U32), WORDS[0])


# -- 16 bits -----------------------------------------------------------------------------------------------------------


def test_results_of_16_bits_clear_the_other_half_but_for_some(cdna3):
    f = RNG.standard_normal((2, 64)).astype(np.float16)
    code = """v_add_f16_e32 v4, v0, v1
    v_add_u16_e32 v5, v0, v1
    v_fma_f16 v6, v0, v1, v1
    v_fma_legacy_f16 v7, v0, v1, v1
    v_cvt_f16_f32_e32 v8, v2
    v_subrev_u16_e32 v9, v0, v1"""
    got = cdna3(code, v={0: f[0], 1: f[1], 2: f[0].astype(np.float32)})
    np.testing.assert_array_equal(got.vector(4, U32), (f[0] + f[1]).view(np.uint16))
    np.testing.assert_array_equal(got.vector(5, U32), f[0].view(np.uint16) + f[1].view(np.uint16))
    assert (got.vector(6, np.uint16, half=1) == 0xA5A5).all()
    np.testing.assert_array_equal(got.vector(7, U32), got.vector(6, np.uint16))
    np.testing.assert_array_equal(got.vector(8, U32), f[0].view(np.uint16))
    np.testing.assert_array_equal(got.vector(9, U32), f[1].view(np.uint16) - f[0].view(np.uint16))


def test_mad_f16_rounds_twice(cdna3):
    f = RNG.standard_normal((3, 64)).astype(np.float16)
    code = "v_mad_f16 v4, v0, v1, v2\nv_madak_f16 v5, v0, v1, 0x4200\nv_madmk_f16 v6, v0, 0x4200, v1"
    code += "\nv_mad_legacy_f16 v7, v0, v1, v2\nv_mac_f16_e32 v2, v0, v1"
    got = cdna3(code, v=dict(enumerate(f)))
    want, three = (f[0] * f[1] + f[2]).astype(np.float16), np.float16(3)
    for n, sum_ in {4: want, 2: want, 5: f[0] * f[1] + three, 6: f[0] * three + f[1]}.items():
        np.testing.assert_array_equal(got.vector(n, np.float16), sum_)
        assert (got.vector(n, np.uint16, half=1) == 0xA5A5).all(), "the other half stays"
    np.testing.assert_array_equal(got.vector(7, U32), want.view(np.uint16))


# -- CDNA 2 ------------------------------------------------------------------------------------------------------------


def test_mad_f32_rounds_twice_and_flushes_denormals(cdna3):
    f = RNG.standard_normal((3, 64)).astype(np.float32)
    f[0, :2], f[1, :2], f[2, :2] = (2.0**-128, 2.0**-100), (1.0, 2.0**-27), (3.0, -0.0)
    code = """v_mad_f32 v4, v0, v1, v2
    v_madmk_f32 v5, v0, 0x40200000, v2
    v_madak_f32 v6, v0, v1, 0x40200000
    v_mad_legacy_f32 v7, v0, v3, v2
    v_mac_f32_e32 v2, v0, v1"""
    got = cdna3(code, "gfx90a", v={**dict(enumerate(f)), 3: np.full(64, np.inf, np.float32)})
    want = f[0] * f[1] + f[2]
    want[:2] = 3.0, 0.0
    np.testing.assert_array_equal(got.vector(4, np.float32), want)
    np.testing.assert_array_equal(got.vector(2, np.float32), want)
    np.testing.assert_array_equal(got.vector(5, np.float32)[2:], (f[0] * np.float32(2.5) + f[2])[2:])
    np.testing.assert_array_equal(got.vector(6, np.float32)[2:], (f[0] * f[1] + np.float32(2.5))[2:])
    assert got.vector(7, np.float32)[0] == 3.0  # zero times infinity
    assert np.isinf(got.vector(7, np.float32)[1:]).all()


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942"])
def test_dot_products_of_halves_flush_denormals_on_cdna_2(cdna3, gpu):
    """Of A, of the sum before, of the result; a product of numbers that is small is kept."""
    pairs = np.zeros((4, 2, 2), np.float16)
    pairs[0], pairs[1] = ((2.0**-20, 2.0), (1.0, 3.0)), ((2.0**-14, 0.0), (2.0**-14, 0.0))
    sums = np.array([0.0, 0.0, 2.0**-130, 2.0**-126], np.float32)
    given = {k: np.ascontiguousarray(pairs[:, k]).view(U32)[:, 0] for k in range(2)} | {2: sums}
    code = "v_dot2_f32_f16 v4, v0, v1, v2\nv_dot2c_f32_f16_e32 v2, v0, v1"
    got = cdna3(code, gpu, v=given)
    kept = [6.0 + 2.0**-20, 2.0**-28, 2.0**-130, 2.0**-126]
    want = np.array([6.0, 2.0**-28, 0.0, 2.0**-126] if gpu == "gfx90a" else kept, np.float32)
    np.testing.assert_array_equal(got.vector(4, np.float32)[:4], want)
    np.testing.assert_array_equal(got.vector(2, np.float32)[:4], want)


# -- SDWA --------------------------------------------------------------------------------------------------------------


def test_sdwa_selects_bytes_and_halves(cdna3):
    tail = "dst_sel:{} dst_unused:{} src0_sel:{} src1_sel:{}"
    code = "\n".join([
        "v_add_u32_sdwa v4, v0, v1 " + tail.format("DWORD", "UNUSED_PAD", "BYTE_3", "WORD_1"),
        "v_add_u32_sdwa v5, sext(v0), v1 " + tail.format("DWORD", "UNUSED_PAD", "BYTE_2", "DWORD"),
        "v_mul_u32_u24_sdwa v6, v0, v1 " + tail.format("WORD_1", "UNUSED_PAD", "BYTE_0", "BYTE_1"),
        "v_or_b32_sdwa v7, v0, v1 " + tail.format("BYTE_1", "UNUSED_PRESERVE", "WORD_0", "WORD_1"),
        "v_or_b32_sdwa v8, v0, v1 " + tail.format("BYTE_1", "UNUSED_SEXT", "WORD_0", "WORD_1"),
        "v_lshlrev_b32_sdwa v9, v2, v0 " + tail.format("DWORD", "UNUSED_PAD", "DWORD", "WORD_1"),
    ])  # fmt: skip
    a, b, n = WORDS[0], WORDS[1], np.arange(128, dtype=U32) % U32(16)
    got = cdna3(code, v={0: a, 1: b, 2: n})
    signed = (((a >> 16) & 0xFF).astype(np.uint8).view(np.int8)).astype(np.int64)
    np.testing.assert_array_equal(got.vector(4, U32), (a >> 24) + (b >> 16))
    np.testing.assert_array_equal(got.vector(5, U32), ((signed + b) & 0xFFFFFFFF).astype(U32))
    np.testing.assert_array_equal(got.vector(6, U32), (a & 0xFF) * (b >> 8 & 0xFF) << 16)
    byte = ((a & 0xFFFF) | (b >> 16)) & 0xFF
    np.testing.assert_array_equal(got.vector(7, U32), U32(0xA5A500A5) | byte << 8)
    extended = np.where(byte >> 7, U32(0xFFFF0000), U32(0)) | byte << 8
    np.testing.assert_array_equal(got.vector(8, U32), extended)
    np.testing.assert_array_equal(got.vector(9, U32), (a >> 16) << n)


def test_sdwa_of_floats_compares_and_selects(cdna3):
    pairs = RNG.standard_normal((2, 128, 2)).astype(np.float16)
    a, b = (np.ascontiguousarray(p).view(U32)[:, 0] for p in pairs)
    code = """v_add_f16_sdwa v4, -v0, |v1| dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:WORD_0
    v_cmp_lt_f16_sdwa vcc, v0, v1 src0_sel:WORD_1 src1_sel:WORD_1
    v_cndmask_b32_sdwa v5, v0, v1, vcc dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:WORD_1
    v_cvt_f32_f16_sdwa v6, v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1"""
    got = cdna3(code, v={0: a, 1: b})
    total = (-pairs[0, :, 1] + np.abs(pairs[1, :, 0])).view(np.uint16).astype(U32)
    np.testing.assert_array_equal(got.vector(4, U32), total << 16 | 0xA5A5)
    below = pairs[0, :, 1] < pairs[1, :, 1]
    np.testing.assert_array_equal(got.mask(106), below)
    np.testing.assert_array_equal(got.vector(5, U32), np.where(below, b >> 16, a & 0xFFFF))
    np.testing.assert_array_equal(got.vector(6, np.float32), pairs[0, :, 1].astype(np.float32))


def test_sdwa_that_is_not_implemented_stops(cdna3):
    with pytest.raises(UnknownInstructionError, match="does not implement v_readfirstlane_b32"):
        cdna3("v_readfirstlane_b32_sdwa s4, v0 src0_sel:WORD_1", v=words(1))


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_dpp_over_the_whole_wave(cdna3):
    x = np.arange(64, dtype=U32) + 100
    code = """v_mov_b32_dpp v4, v0 row_bcast:15 row_mask:0xa bank_mask:0xf
    v_mov_b32_dpp v5, v0 row_bcast:31 row_mask:0xc bank_mask:0xf
    v_mov_b32_dpp v6, v0 wave_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0
    v_mov_b32_dpp v7, v0 wave_rol:1 row_mask:0xf bank_mask:0xf
    v_mov_b32_dpp v8, v0 wave_shl:1 row_mask:0xf bank_mask:0xf"""
    got, lane, kept = cdna3(code, v={0: x}), np.arange(64), U32(0xA5A5A5A5)
    np.testing.assert_array_equal(got.vector(4, U32), np.where(lane // 16 % 2 == 1, x[lane // 16 * 16 - 1], kept))
    np.testing.assert_array_equal(got.vector(5, U32), np.where(lane >= 32, x[31], kept))
    np.testing.assert_array_equal(got.vector(6, U32), np.concatenate([[0], x[:-1]]))
    np.testing.assert_array_equal(got.vector(7, U32), np.roll(x, -1))
    np.testing.assert_array_equal(got.vector(8, U32), np.concatenate([x[1:], [kept]]))


def test_cmpx_writes_a_mask_beside_exec(cdna3):
    a = np.arange(64, dtype=U32)
    got = cdna3("v_cmpx_gt_u32_e64 s[4:5], v0, 31\nv_mov_b32 v1, 7", v={0: a}, active=np.arange(64) % 2 == 0)
    want = (np.arange(64) > 31) & (np.arange(64) % 2 == 0)
    np.testing.assert_array_equal(got.mask(4), want)
    np.testing.assert_array_equal(got.mask(EXEC), want)
    np.testing.assert_array_equal(got.vector(1, U32), np.where(want, U32(7), U32(0xA5A5A5A5)))


def test_cmp_t_and_f_of_16_bits(cdna3):
    kinds = [(x, kind) for x in "tf" for kind in ("i16", "u16")]
    code = "\n".join(f"v_cmp_{x}_{kind}_e64 s[{4 + 2 * k}:{5 + 2 * k}], v0, v1" for k, (x, kind) in enumerate(kinds))
    got = cdna3(code, v=words(2))
    assert [got.mask(4 + 2 * k).tolist() for k in range(4)] == [[x == "t"] * 128 for x, _ in kinds]
    for x, kind in kinds:
        got = cdna3(f"v_cmpx_{x}_{kind}_e64 s[4:5], v0, v1", v=words(2))
        assert got.mask(EXEC).all() == got.mask(4).all() == (x == "t")


def test_rows_that_change_places(cdna3):
    x, y = np.arange(64, dtype=U32), np.arange(64, dtype=U32) + 1000
    got = cdna3("v_permlane16_swap_b32 v0, v1\nv_permlane32_swap_b32 v2, v3", "gfx950", v={0: x, 1: y, 2: x, 3: y})
    a, b = x.copy(), y.copy()
    for half in (0, 32):
        a[half + 16 : half + 32], b[half : half + 16] = y[half : half + 16], x[half + 16 : half + 32]
    np.testing.assert_array_equal(got.vector(0, U32), a)
    np.testing.assert_array_equal(got.vector(1, U32), b)
    np.testing.assert_array_equal(got.vector(2, U32), np.concatenate([x[:32], y[:32]]))
    np.testing.assert_array_equal(got.vector(3, U32), np.concatenate([x[32:], y[32:]]))


def test_registers_by_number(cdna3):
    code = """s_set_gpr_idx_on s2, gpr_idx(SRC0)
    v_mov_b32_e32 v8, v0
    s_set_gpr_idx_off
    s_set_gpr_idx_on s3, 8
    v_mov_b32_e32 v9, v0
    s_set_gpr_idx_mode gpr_idx(SRC0,DST)
    s_set_gpr_idx_idx s2
    v_mov_b32_e32 v14, v1
    s_set_gpr_idx_off
    v_mov_b32_e32 v20, v0"""
    got = cdna3(code, v=words(4), s={2: np.uint32(2), 3: np.uint32(0x103)})
    for register, source in ((8, 2), (12, 0), (16, 3), (20, 0)):
        np.testing.assert_array_equal(got.vector(register, U32), WORDS[source])


# -- bits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [0x00, 0xFF, 0xF0, 0xCC, 0xAA, 0xCA, 0x96, 0x1D])
def test_bitop3(cdna3, table):
    """F0, CC and AA are the operands themselves, CA selects by the first, 96 is their exclusive or."""
    got = cdna3(f"v_bitop3_b32 v4, v0, v1, v2 bitop3:{table}\nv_bitop3_b16 v5, v0, v1, v2 bitop3:{table}", "gfx950",
                v=words(3))  # fmt: skip
    bits = [(WORDS[k][:, None] >> np.arange(32, dtype=U32)) & 1 for k in range(3)]
    chosen = (table >> (4 * bits[0] + 2 * bits[1] + bits[2]) & 1).astype(np.uint64)
    want = (chosen << np.arange(32, dtype=np.uint64)).sum(1)
    np.testing.assert_array_equal(got.vector(4, U32), want)
    np.testing.assert_array_equal(got.vector(5, np.uint16), want & 0xFFFF)


def test_shift_and_saturate_random_bits_and_zeros(cdna3):
    code = "v_ashr_pk_i8_i32 v4, v0, v1, v2\nv_ashr_pk_u8_i32 v5, v0, v1, v2\nv_prng_b32_e32 v6, v0"
    a, b = (w.view(np.int32) >> np.int32(18) for w in WORDS[:2])
    n = WORDS[2] % U32(9)
    got = cdna3(code, "gfx950", v={0: a, 1: b, 2: n})
    for register, (least, most) in ((4, (-128, 127)), (5, (0, 255))):
        low, high = (np.clip(x >> n.astype(np.int32), least, most) & 0xFF for x in (a, b))
        want = (low | high << 8).astype(U32) | U32(0xA5A50000)  # the other half stays
        np.testing.assert_array_equal(got.vector(register, U32), want)
    np.testing.assert_array_equal(got.vector(6, U32), a.view(U32) << U32(1) ^ np.where(a < 0, U32(0xC5), U32(0)))
    scalar = cdna3("s_ff0_i32_b32 s4, s2\ns_ff0_i32_b64 s5, s[2:3]", s={2: np.uint64(0x00000FFF_FFFFFFFF)})
    assert scalar.scalar(4, np.int32) == -1
    assert scalar.scalar(5, np.int32) == 44


def test_dot_products_into_the_destination(cdna3):
    a, b, c = WORDS[:3]
    code = """v_dot2_i32_i16 v4, v0, v1, v2
    v_dot2_u32_u16 v5, v0, v1, v2
    v_mov_b32 v6, v2
    v_dot2c_i32_i16_e32 v6, v0, v1
    v_mov_b32 v7, v2
    v_dot4c_i32_i8_e32 v7, v0, v1
    v_mov_b32 v8, v2
    v_dot8c_i32_i4_e32 v8, v0, v1
    v_dot2_i32_i16 v9, v0, v1, v2 clamp"""
    got = cdna3(code, v=words(3))

    def dot(x, y, dtype):
        return (np.ascontiguousarray(x).view(dtype).reshape(128, -1).astype(np.int64)
                * np.ascontiguousarray(y).view(dtype).reshape(128, -1)).sum(1)  # fmt: skip

    signed = c.view(np.int32).astype(np.int64)
    pairs = dot(a, b, np.int16) + signed
    nibbles = [((w[:, None] >> np.arange(0, 32, 4, dtype=U32)) & 15).astype(np.int64) for w in (a, b)]
    nibbles = [np.where(x > 7, x - 16, x) for x in nibbles]
    want = {4: pairs, 5: dot(a, b, np.uint16) + c, 6: pairs, 7: dot(a, b, np.int8) + signed,
            8: (nibbles[0] * nibbles[1]).sum(1) + signed, 9: np.clip(pairs, -(2**31), 2**31 - 1)}  # fmt: skip
    for register, exact in want.items():
        np.testing.assert_array_equal(got.vector(register, U32), (exact & 0xFFFFFFFF).astype(U32))


def test_sdwa_of_sums_with_a_carry_and_of_extrema(cdna3):
    f = RNG.standard_normal((2, 128, 2)).astype(np.float16)
    x, y = (np.ascontiguousarray(p).view(U32)[:, 0] for p in f)
    code = """v_add_co_u32_sdwa v4, vcc, v0, v1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_1
    v_addc_co_u32_sdwa v5, vcc, v0, v1, vcc dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:DWORD
    v_max_f16_sdwa v6, v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:WORD_0
    v_min_f32_sdwa v7, v2, |v2| dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD"""
    a, b = WORDS[0] | U32(0xFFFFFF00), WORDS[1]
    got = cdna3(code, v={0: a, 1: b, 2: x, 3: y})
    first = a.astype(U64) + (b >> 8 & 0xFF)
    second = (a & 0xFFFF).astype(U64) + b + (first >> U64(32))
    np.testing.assert_array_equal(got.vector(4, U32), first.astype(U32))
    np.testing.assert_array_equal(got.vector(5, U32), second.astype(U32))
    np.testing.assert_array_equal(got.mask(106), second >> U64(32) != 0)
    np.testing.assert_array_equal(got.vector(6, U32) >> 16, np.maximum(f[0, :, 1], f[1, :, 0]).view(np.uint16))
    np.testing.assert_array_equal(got.vector(7, U32), x)


@pytest.mark.parametrize(
    ("code", "stored", "raises"),
    [
        # v3's low half is written, its high half is not
        ("v_or_b32_sdwa v4, v3, v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:DWORD", "v4", False),
        ("v_or_b32_sdwa v4, v3, v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD", "v4", True),
        ("v_mov_b32_sdwa v4, v0 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0", "v4", True),
        ("v_mov_b32_sdwa v3, v0 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0", "v3", False),
        ("v_add_f16_e32 v4, v3, v0", "v4", False),  # a 16-bit result clears the other half
        ("v_fma_f16 v4, v3, v0, v0", "v4", True),  # this one leaves it
        ("v_lshlrev_b16_e32 v4, 1, v3", "v4", False),
        # of v1, which is not written, a byte is moved out, and what 0xff covers is known whatever it is
        ("v_lshlrev_b16_e32 v4, 8, v1\nv_and_b32_e32 v4, 0xff, v4", "v4", False),
        ("v_lshlrev_b16_e32 v4, 8, v1\nv_lshrrev_b32_e32 v4, 16, v4", "v4", False),
        ("v_lshlrev_b16_e32 v4, 8, v1\nv_lshrrev_b32_e32 v4, 8, v4", "v4", True),
        ("v_add_u16_e32 v4, v1, v0\nv_lshrrev_b32_e32 v4, 16, v4", "v4", False),
        ("v_or_b32_sdwa v4, v1, v0 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:DWORD\n"
         "v_and_b32_e32 v4, 0xff00ffff, v4", "v4", False),
        ("v_or_b32_sdwa v4, v1, v0 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:DWORD\n"
         "v_and_b32_e32 v4, 0xff0000, v4", "v4", True),
        ("v_or_b32_sdwa v4, v1, v0 dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:BYTE_0 src1_sel:DWORD\n"
         "v_lshrrev_b32_e32 v4, 16, v4", "v4", True),
        # v1 is not written: neither result reads it, or the high one does
        ("v_pk_mul_f32 v[6:7], v[0:1], v[0:1] op_sel_hi:[0,0]", "v7", False),
        ("v_pk_mul_f32 v[6:7], v[0:1], v[0:1]", "v7", True),
        ("v_pk_mul_f32 v[6:7], v[0:1], v[0:1]", "v6", False),
        ("v_pk_mov_b32 v[6:7], v[0:1], v[0:1] op_sel:[0,0]", "v7", False),
        # s9 is not written; of scalars no half is cleared
        ("s_mov_b32 s8, 5\ns_pack_ll_b32_b16 s9, s8, s9\ns_sext_i32_i16 s9, s9\nv_mov_b32_e32 v4, s9", "v4", False),
        ("s_sext_i32_i16 s8, s9\nv_mov_b32_e32 v4, s8", "v4", True),
        ("v_accvgpr_write_b32 a0, v3\nv_accvgpr_read_b32 v4, a0", "v4", True),
    ],
)
def test_strict_mode_follows_halves_of_gfx9(code, stored, raises):
    out = np.zeros(64, U32)
    address = out.ctypes.data
    lines = ["v_lshlrev_b32_e32 v5, 2, v0", "s_load_dwordx2 s[2:3], s[0:1], 0x0",
             "v_mov_b32_sdwa v3, v0 dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0", *code.split("\n"),
             "s_waitcnt lgkmcnt(0)", f"global_store_dword v5, {stored}, s[2:3]", "s_endpgm"]  # fmt: skip
    text = "\n\t".join(lines)
    kernel = f"k:\n\t{text}\n\t.amdhsa_kernel k\n\t\t.amdhsa_next_free_vgpr 16\n\t\t.amdhsa_accum_offset 8\n"
    program = Program(kernel + "\t\t.amdhsa_user_sgpr_count 2\n\t.end_amdhsa_kernel\n", "gfx942", strict=True)
    regions = [Region("out", address, out.nbytes, out)]
    context = pytest.raises(HazardError, match="stores bits that nobody wrote") if raises else nullcontext()
    with context:
        launch(program, [1], address.to_bytes(8, "little"), workgroup_size=64, regions=regions)

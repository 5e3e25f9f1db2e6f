"""CDNA 5: rows of small floats by stochastic rounding, the float of 8 bits without a sign, tables of small fields."""

from fractions import Fraction

import numpy as np
import pytest
from test_cdna4_stochastic import following, in_registers, rounded, wide_numbers

U32 = np.uint32
RNG = np.random.default_rng(12)
COUNTS = (("fp8", 8), ("bf8", 8), ("fp4", 8), ("fp6", 16), ("bf6", 16))


@pytest.fixture
def cdna5(execute):
    return lambda code, **given: execute(code, gpu="gfx1250", **given)


def fields_of(machine, n: int, bits: int, count: int) -> list[list[int]]:
    words = [machine.vector(n + k, U32).tolist() for k in range(bits * count // 32)]
    rows = [sum(word[lane] << 32 * k for k, word in enumerate(words)) for lane in range(32)]
    return [[row >> bits * k & (1 << bits) - 1 for k in range(count)] for row in rows]


@pytest.mark.parametrize("wide", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("small", "count"), COUNTS)
def test_rows_at_random(cdna5, small, count, wide):
    """Each number after the first takes the next random word of a sequence."""
    codes, x = wide_numbers(wide, (32, count), 3)
    random, bits = RNG.integers(0, 1 << 32, 32).astype(U32), int(small[2:]) if small[2:] != "6" else 6
    source, last = in_registers(codes, 8), 7 + count // (1 if wide == "f32" else 2)
    code = f"v_cvt_scalef32_sr_pk{count}_{small}_{wide} v[0:{bits * count // 32 - 1}], v[8:{last}], v4, v5"
    machine = cdna5(code, v={**source, 4: random, 5: np.full(32, 2, np.float32)})
    rows = zip(fields_of(machine, 0, bits, count), x.tolist(), random.tolist(), strict=True)
    for got, values, chance in list(rows)[:: 8 if bits == 8 else 4]:
        want = []
        for value in values:
            want.append(rounded(Fraction(value) / 2, small, chance))
            chance = following(chance)
        assert got == want


E5M3 = [Fraction(c & 7 if c < 8 else 8 + (c & 7), 1) * Fraction(2) ** (max(c >> 3, 1) - 18) for c in range(255)]


def test_floats_without_a_sign_to_f32(cdna5):
    codes = np.arange(256, dtype=np.uint8).view(U32)
    for byte in range(4):
        got = cdna5(f"v_cvt_f32_fp8_e64 v1, v0 byte_sel:{byte} clamp", v={0: codes}).vector(1, np.float32)[:64]
        want = [float(E5M3[c]) if c < 255 else np.nan for c in range(byte, 256, 4)]
        np.testing.assert_array_equal(got, want)
    pair = cdna5("v_cvt_f32_fp8_e64 v1, v0", v={0: np.full(32, 0xC8, U32)}).vector(1, np.float32)
    assert (pair == -4).all()  # without clamp it is E4M3


def test_f32_to_floats_without_a_sign(cdna5):
    """Nearest even; what has no number, and infinities, become the NaN, and negative numbers lose their sign."""
    x = np.concatenate([
        [0, -0.0, 2.0**-8, -(2.0**-8), 2.0**-18, 2.0**-18 * 1.01, 0.75 * 2.0**-17],
        [114688, 118783, 118785, -np.inf, np.nan],
        RNG.standard_normal(52) * 2.0 ** RNG.integers(-18, 14, 52),
    ]).astype(np.float32)  # fmt: skip
    got = cdna5("v_cvt_pk_fp8_f32 v2.l, v0, v1 clamp", v={0: x, 1: x[::-1].copy()}).vector(2, np.uint16)

    def code_of(value: float) -> int:
        if not np.isfinite(value) or abs(value) >= 114688 * 29 / 28:
            return 255
        size = Fraction(abs(float(value)))
        return min(range(255), key=lambda c: (abs(E5M3[c] - size), c & 1))

    want = [code_of(v) for v in x.tolist()]
    assert (got & 0xFF).tolist() == want
    assert (got >> 8).tolist() == want[::-1]
    limited = cdna5("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\nv_cvt_pk_fp8_f32 v2.l, v0, v0 clamp",
                    v={0: np.full(32, -2.0e5, np.float32)})  # fmt: skip
    assert (limited.vector(2, np.uint16) == 0xFEFE).all()


def test_f32_to_floats_without_a_sign_at_random(cdna5):
    x = np.full(64, -1.125 - 1 / 32, np.float32)  # a quarter of the way from 1.125 to 1.25
    random = np.linspace(0, (1 << 32) - 1, 64).astype(U32)
    got = cdna5("v_cvt_sr_fp8_f32 v2, v0, v1 byte_sel:1 clamp", v={0: x, 1: random}).vector(2, U32)
    low = E5M3.index(Fraction(9, 8))
    want = [low + (chance >= 3 << 30) for chance in random.tolist()]
    assert (got >> 8 & 0xFF).tolist() == want
    assert 0 < sum(want) - 64 * low < 32


TABLES = [(4, "v5", "v4", 2), (6, "v6", "v[4:5]", 3), (8, "v[6:7]", "v[4:5]", 4)]


@pytest.mark.parametrize(("bits", "high", "low", "words"), TABLES)
def test_fields_of_a_table(cdna5, bits, high, low, words):
    """The second source is the lower part of the table."""
    table, which = (RNG.integers(0, 1 << 32, (n, 32)).astype(U32) for n in (words, 2))
    given = {4 + k: row for k, row in enumerate(table)} | {8 + k: row for k, row in enumerate(which)}
    code = f"v_perm_pk16_b{bits}_u4 v[8:{7 + words}], {high}, {low}, v[8:9]"
    got = fields_of(cdna5(code, v=given), 8, bits, 16)
    for lane in range(32):
        whole = sum(int(row[lane]) << 32 * k for k, row in enumerate(table))
        numbers = int(which[0, lane]) | int(which[1, lane]) << 32
        assert got[lane] == [whole >> bits * (numbers >> 4 * k & 15) & (1 << bits) - 1 for k in range(16)]


def test_tables_in_scalar_registers(cdna5):
    which = RNG.integers(0, 1 << 32, (2, 32)).astype(U32)
    code = "v_perm_pk16_b8_u4 v[2:5], s[4:5], s[6:7], v[0:1]"
    machine = cdna5(code, v={0: which[0], 1: which[1]}, s={4: 0x13121110, 5: 0x17161514, 6: 0x03020100, 7: 0x07060504})
    for lane, got in enumerate(fields_of(machine, 2, 8, 16)):
        numbers = int(which[0, lane]) | int(which[1, lane]) << 32
        assert got == [n if n < 8 else n + 8 for n in (numbers >> 4 * k & 15 for k in range(16))]


@pytest.mark.parametrize(("kind", "infinity"), [("f16", 0x7C00), ("bf16", 0x7F80)])
def test_a_pair_that_stops_at_the_largest_number(cdna5, kind, infinity):
    """Under MODE.FP16_OVFL what overflows does, infinities stay."""
    x = np.array([0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000], U32)
    code = f"s_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 23, 1), 1\nv_cvt_pk_{kind}_f32 v1, v0, v0"
    got = cdna5(code, v={0: x}).vector(1, np.uint16)[:4]
    assert got.tolist() == [infinity - 1, infinity + 0x7FFF, infinity, infinity + 0x8000]


def test_mixed_products_take_denormals_for_zeros_where_the_mode_does(cdna5):
    mode = "s_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 4, 2), 0\n"
    given = {0: np.full(32, 1, U32), 1: np.full(32, 2.0**100, np.float32), 2: np.ones(32, np.float32)}
    code = "v_fma_mix_f32_bf16 v3, v0, v1, 0\nv_fma_mixlo_bf16 v4, v2, -v0, v1 op_sel_hi:[1,0,0]"
    assert (cdna5(code, v=given).vector(3, np.float32) == 2.0**-49).all()
    machine = cdna5(mode + code, v=given)
    assert (machine.vector(3, U32) == 0).all()
    assert (machine.vector(4, np.uint16) == 0x7180).all()


@pytest.mark.parametrize(("gpu", "text", "result"), [
    ("gfx1250", "v_cvt_f32_bf16 v1, 1.0", 0x3F800000), ("gfx950", "v_cvt_f32_bf16 v1, 1.0", 0x3F800000),
    ("gfx950", "v_cvt_scalef32_sr_fp8_bf16 v1, 1.0, v0, 1.0", 0xA5A5A538),
    ("gfx950", "v_cvt_scalef32_pk_fp8_bf16 v1, 1.0, 1.0", 0xA5A50038),
    ("gfx950", "v_cvt_scalef32_pk_fp8_f16 v1, 1.0, 1.0", 0xA5A50038),
    ("gfx950", "v_cvt_scalef32_sr_pk_fp4_f16 v1, 1.0, v0, 1.0", 0xA5A5A502),
    ("gfx1250", "v_cvt_pk_fp8_f16 v1.l, 1.0", 0xA5A50038),
])  # fmt: skip
def test_constants_in_the_format_of_the_operand(execute, gpu, text, result):
    """LLVM writes 0x3f80, bf16's 1, as the inline constant 1.0; of two numbers a constant is the first."""
    got = execute(text, gpu=gpu, lanes=64 if gpu == "gfx950" else 32, v={0: np.zeros(64, U32)}).vector(1, U32)
    assert set(got.tolist()) == {result}


@pytest.mark.parametrize(("mode", "a", "b", "c", "result"), [
    (0, 0x3F800000, 0x3F808000, 0x2B800000, 0x3F81),  # a little more than half-way between 1 and the next number
    (2, 0x8E0B5904, 0x1AE3BC34, 0xB6630000, 0xB664),  # rocjitsu's own example
    (1, 0x8E0B5904, 0x1AE3BC34, 0xB6630000, 0xB663), (3, 0x3F800000, 0x3F80FFFF, 0x2B800000, 0x3F80),
    (2, 0x3F800000, 0x3F800000, 0xBF800000, 0x8000), (3, 0x7F7FFFFF, 0x40000000, 0, 0x7F7F),
])  # fmt: skip
def test_mixed_products_are_rounded_once_to_bf16(cdna5, mode, a, b, c, result):
    given = {n: np.full(32, bits, U32) for n, bits in enumerate((a, b, c))}
    code = f"s_round_mode {mode << 2}\nv_fma_mixlo_bf16 v3, v0, v1, v2\nv_fma_mixhi_bf16 v3, v0, v1, v2"
    assert (cdna5(code, v=given).vector(3, U32) == result * 0x10001).all()


def test_pairs_of_bf16_that_overflow(cdna5):
    """MODE.FP16_OVFL stops them at the largest number, not infinite operands."""
    code = "v_pk_mul_bf16 v1, v0, v0\nv_pk_add_bf16 v2, v0, v0 neg_lo:[1,1]\nv_pk_fma_bf16 v3, v0, v0, v0"
    given = {0: np.full(32, 0x7F807F7F, U32)}
    for setting, largest in (("", 0x7F80), ("s_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 23, 1), 1\n", 0x7F7F)):
        machine = cdna5(setting + code, v=given)
        for n, sign in ((1, 0), (2, 0x8000), (3, 0)):
            assert (machine.vector(n, U32) == 0x7F800000 + largest + sign).all()

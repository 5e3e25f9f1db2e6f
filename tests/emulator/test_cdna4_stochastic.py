"""Stochastic rounding and rows of 6-bit floats on CDNA 4, against fractions and the small formats' numbers in a row."""

from fractions import Fraction

import numpy as np
import pytest

U16, U32 = np.uint16, np.uint32
RNG = np.random.default_rng(11)
#: exponent bits, fraction bits, bias; with the codes of the largest number
FORMATS = {
    "fp4": (2, 1, 1, 7), "fp6": (2, 3, 1, 31), "bf6": (3, 2, 3, 31), "fp8": (4, 3, 7, 0x7E), "bf8": (5, 2, 15, 0x7B),
}  # fmt: skip
WIDE = ("f32", "f16", "bf16")


def number(code: int, kind: str) -> Fraction:
    _, fraction, bias, _ = FORMATS[kind]
    exponent, mantissa = code >> fraction, code & (1 << fraction) - 1
    whole = mantissa + (1 << fraction if exponent else 0)
    return Fraction(whole, 1 << fraction) * Fraction(2) ** (max(exponent, 1) - bias)


def rounded(x: Fraction, kind: str, random: int | None) -> int:
    """The code of x: up where the random fraction carries it over the next number; None: to nearest even."""
    last = FORMATS[kind][3]
    bits = sum(FORMATS[kind][:2])
    sign, size = (1 << bits if x < 0 else 0), abs(x)
    if size >= number(last, kind):
        return sign | last
    code = max(c for c in range(last) if number(c, kind) <= size)
    part = (size - number(code, kind)) / (number(code + 1, kind) - number(code, kind))
    if random is None:
        return sign | code + (part > Fraction(1, 2) or (part == Fraction(1, 2) and code % 2 == 1))
    return sign | code + (part + Fraction(random, 1 << 32) >= 1)


def following(random: int) -> int:
    return (random << 1 & 0xFFFFFFFF) ^ (197 if random >> 31 else 0)


def wide_numbers(wide: str, shape: tuple[int, ...], spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Codes and values that the type holds."""
    x = (RNG.standard_normal(shape) * spread).astype(np.float32)
    if wide == "f32":
        return x.view(U32), x
    if wide == "f16":
        half = x.astype(np.float16)
        return half.view(U16), half.astype(np.float32)
    codes = (x.view(U32) >> U32(16)).astype(U16)
    return codes, (codes.astype(U32) << U32(16)).view(np.float32)


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("kind", ["fp8", "bf8"])
@pytest.mark.parametrize("byte", range(4))
def test_one_number_to_8_bits(cdna3, wide, kind, byte):
    """Scaled by 1 / 4; the other bytes of the destination stay."""
    codes, x = wide_numbers(wide, (64,), 0.02 if byte == 3 else 20)
    random = RNG.integers(0, 1 << 32, 64).astype(U32)
    random[:2] = 0, 0xFFFFFFFF
    code = f"v_cvt_scalef32_sr_{kind}_{wide} v4, v0, v1, 4.0 op_sel:[0,0,{byte & 1},{byte >> 1}]"
    got = cdna3(code, "gfx950", v={0: codes, 1: random}).vector(4, U32)
    keep = ~(0xFF << 8 * byte) & 0xFFFFFFFF
    for word, value, chance in zip(got.tolist(), x.tolist(), random.tolist(), strict=True):
        assert word & keep == 0xA5A5A5A5 & keep
        want = rounded(Fraction(value) / 4, kind, chance)
        assert word >> 8 * byte & 0xFF == want, (value, hex(chance))


@pytest.mark.parametrize("wide", WIDE)
def test_two_numbers_to_4_bits(cdna3, wide):
    codes, x = wide_numbers(wide, (64, 2), 3)
    random = RNG.integers(0, 1 << 32, 64).astype(U32)
    code = f"v_cvt_scalef32_sr_pk_fp4_{wide} v4, {'v[0:1]' if wide == 'f32' else 'v0'}, v2, 0.5 op_sel:[0,0,1,0]"
    given = {0: codes[:, 0], 1: codes[:, 1]} if wide == "f32" else {0: np.ascontiguousarray(codes).view(U32)[:, 0]}
    got = cdna3(code, "gfx950", v={**given, 2: random}).vector(4, U32).tolist()
    for word, (low, high), chance in zip(got, x.tolist(), random.tolist(), strict=True):
        first = rounded(Fraction(low) * 2, "fp4", chance)
        second = rounded(Fraction(high) * 2, "fp4", following(chance))
        assert word == 0xA5A50000 | first << 8 | second << 12 | 0xA5


def six_bits(machine, n: int) -> list[list[int]]:
    words = [machine.vector(n + k, U32).tolist() for k in range(6)]
    rows = [sum(word[lane] << 32 * k for k, word in enumerate(words)) for lane in range(64)]
    return [[row >> 6 * k & 63 for k in range(32)] for row in rows]


def in_registers(codes: np.ndarray, first: int = 0) -> dict[int, np.ndarray]:
    words = np.ascontiguousarray(codes).view(U32)
    return {first + k: words[:, k] for k in range(words.shape[1])}


@pytest.mark.covering
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("kind", ["fp6", "bf6"])
def test_32_numbers_at_random(cdna3, wide, kind):
    """Each number after the first takes the next random word of a sequence. The result may take the sources' place."""
    codes, x = wide_numbers(wide, (64, 32), 4)
    last = 31 if wide == "f32" else 15
    code = f"v_cvt_scalef32_sr_pk32_{kind}_{wide} v[0:5], v[0:{last}], s4, 2.0"
    got = six_bits(cdna3(code, "gfx950", v=in_registers(codes), s={4: 0x8F3A2C11}), 0)
    for row, values in zip(got, x.tolist(), strict=True):
        chance, want = 0x8F3A2C11, []
        for value in values:
            want.append(rounded(Fraction(value) / 2, kind, chance))
            chance = following(chance)
        assert row == want


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["fp6", "bf6"])
@pytest.mark.parametrize("wide", WIDE)
def test_32_numbers_to_nearest(cdna3, wide, kind):
    """16-bit numbers from a row of 16 registers, f32 by turns from two such rows."""
    codes, x = wide_numbers(wide, (64, 32), 4)
    x[:, :4] = codes[:, :4] = 0
    if wide == "f32":
        code = f"v_cvt_scalef32_2xpk16_{kind}_f32 v[0:5], v[0:15], v[16:31], 0.5"
        given = in_registers(codes[:, 0::2]) | in_registers(codes[:, 1::2], 16)
    else:
        code, given = f"v_cvt_scalef32_pk32_{kind}_{wide} v[20:25], v[0:15], 0.5", in_registers(codes)
    got = six_bits(cdna3(code, "gfx950", v=given), 0 if wide == "f32" else 20)
    for row, values in zip(got, x.tolist(), strict=True):
        assert row == [rounded(Fraction(value) * 2, kind, None) for value in values]


@pytest.mark.parametrize("text", [
    "v_cvt_scalef32_pk_fp8_f32 v20, v0, v0, s4", "v_cvt_scalef32_sr_fp8_f32 v20, v0, 0, s4",
    "v_cvt_scalef32_2xpk16_fp6_f32 v[20:25], v[0:15], v[0:15], s4", "v_cvt_scalef32_pk_fp4_f32 v20, v0, v0, s4",
])  # fmt: skip
def test_denormal_sources_follow_the_mode(cdna3, text):
    """Over the least scale 2**-127 they are numbers (CDNA 4 ISA guide, 7.3)."""
    x = np.full(64, 1.5 * 2.0**-127, np.float32)
    given = dict.fromkeys(range(16), x) | {20: np.zeros(64, U32)}
    for mode, kept in ((0, False), (15, True)):
        code = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), {mode}\n{text}"
        got = cdna3(code, "gfx950", v=given, s={4: 0}).vector(20, U32)
        assert got.astype(bool).all() == kept


@pytest.mark.parametrize("high", [0, 1])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_f32_to_16_bits(cdna3, kind, high):
    """Denormals, a carry to the next power of two, infinity and NaN among them."""
    x = (RNG.standard_normal(64) * 3).astype(np.float32)
    x[:6] = 1.9999999, -(2.0**-16) * 1.3, 2.0**-130, np.inf, np.nan, -0.0
    random = RNG.integers(0, 1 << 32, 64).astype(U32)
    random[0] = 0xFFFFFFFF
    code = f"v_cvt_sr_{kind}_f32 v4, v0, v1 op_sel:[0,0,{high}]"
    machine = cdna3(code, "gfx950", v={0: x, 1: random})
    assert (machine.vector(4, U16, half=1 - high) == 0xA5A5).all()
    codes = machine.vector(4, U16, half=high)
    got = codes.view(np.float16).astype(float) if kind == "f16" else (codes.astype(U32) << U32(16)).view(np.float32)
    fraction, lowest = (10, -14) if kind == "f16" else (7, -126)
    for value, back, chance in zip(x.tolist(), got.tolist(), random.tolist(), strict=True):
        if not np.isfinite(value):
            assert back == value or (back != back and value != value)
            continue
        size = abs(Fraction(value))
        power = lowest
        while Fraction(2) ** (power + 1) <= size:
            power += 1
        place = Fraction(2) ** (power - fraction)
        units = (size / place + Fraction(chance, 1 << 32)) // 1
        assert abs(Fraction(back)) == units * place
        assert np.signbit(back) == np.signbit(value)


def test_a_byte_of_the_destination(cdna3):
    x = np.array([0.5, 1.5, 254.6, 300, -3, np.nan, 7.49, 12], np.float32)
    place = np.arange(8, dtype=U32)
    got = cdna3("v_cvt_pkaccum_u8_f32 v4, v0, v1", "gfx942", v={0: x, 1: place}).vector(4, U32)
    plain = cdna3("v_cvt_pk_u8_f32 v4, v0, v1, v4", "gfx942", v={0: x, 1: place}).vector(4, U32)
    np.testing.assert_array_equal(got, plain)
    assert got[7] == 0x0CA5A5A5


@pytest.mark.parametrize("name", ["pk_f32_fp8", "pk_f16_bf8", "pk_bf16_fp4", "f32_bf8", "f16_fp8", "sr_pk_fp4_f16"])
def test_what_is_converted_lies_in_a_scalar_register(cdna3, name):
    word, seed = 0x3A51C62B, "v6, " if "sr" in name else ""
    given = {n: np.full(64, bits, U32) for n, bits in ((4, 0), (5, word), (6, 0x80000000), (7, 0x3F800000))}
    target = "v[0:1]" if "pk_f32" in name else "v0"
    got = [
        cdna3(f"v_cvt_scalef32_{name} {target}, {source}, {seed}v7", gpu="gfx950", v=given, s={4: word}).waves.V[:2]
        for source in ("s4", "v5")
    ]
    np.testing.assert_array_equal(*got)

"""Conversions to and from floats of 4 to 8 bits on CDNA 3 and 4, against the formats written out here."""

import numpy as np
import pytest

U32 = np.uint32
RNG = np.random.default_rng(6)
WORDS = RNG.integers(0, 1 << 32, (4, 128)).astype(U32)
EDGES = np.array([0.0, -0.0, 1.0, -1.5, 3.5, 240.0, 248.0, 500.0, 57344.0, 1e9, np.inf, -np.inf, np.nan, 2.0**-9,
                  2.0**-10, 1.5 * 2.0**-10, -(2.0**-20), 0.0625, -447.9, 6.0], np.float32)  # fmt: skip


def halves(x):
    return np.ascontiguousarray(x).view(np.uint16).reshape(-1, 2)


def fnuz(code, exponent_bits, mantissa_bits, bias):
    if code == 0x80:
        return np.nan
    sign, exponent = -1.0 if code >> 7 else 1.0, code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = (code & (1 << mantissa_bits) - 1) / 2**mantissa_bits
    return sign * (mantissa * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - bias))


@pytest.mark.parametrize(("kind", "bits"), [("fp8", (4, 3, 8)), ("bf8", (5, 2, 16))])
def test_gfx942_converts_fnuz(cdna3, kind, bits):
    """240 and 57344 are the largest numbers; beyond, infinities and NaN are 0x80, and there is no -0."""
    values = np.array([fnuz(code, *bits) for code in range(256)])
    codes = np.arange(256, dtype=U32)
    got = cdna3(f"v_cvt_f32_{kind}_e32 v4, v0", v={0: codes}).vector(4, np.float32)
    np.testing.assert_array_equal(got, values.astype(np.float32))
    packed = codes | codes[::-1] << 8 | codes << 16 | codes[::-1] << 24
    code = f"""v_cvt_f32_{kind}_sdwa v4, v0 src0_sel:BYTE_3
    v_cvt_pk_f32_{kind}_sdwa v[6:7], v0 src0_sel:WORD_1"""
    got = cdna3(code, v={0: packed})
    np.testing.assert_array_equal(got.vector(4, np.float32), values[::-1].astype(np.float32))
    np.testing.assert_array_equal(got.vector(7, np.float32), values[::-1].astype(np.float32))
    x = np.concatenate([EDGES, RNG.standard_normal(108).astype(np.float32) * np.float32(30)])
    got = cdna3(f"v_cvt_pk_{kind}_f32 v4, v0, v0 op_sel:[0,0,1]", v={0: x}).vector(4, U32)
    assert (got & 0xFFFF == 0xA5A5).all()
    stored = values[got >> 24]
    finite = np.sort(values[~np.isnan(values)])
    for number, back in zip(x.astype(float), stored, strict=True):
        nearest = finite[np.abs(finite - number).argmin()] if np.isfinite(number) else np.nan
        step = finite[-1] - finite[-2]
        if not abs(number) < finite[-1] + step / 2:
            assert np.isnan(back)
        else:
            assert abs(back - number) == abs(nearest - number)
            assert back != 0 or not np.signbit(back)


@pytest.mark.parametrize("wide", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("small", "bits", "numbers"), [
    ("fp4", 4, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]), ("fp8", 8, None), ("bf8", 8, None),
])  # fmt: skip
def test_conversions_under_a_scale(cdna3, small, bits, numbers, wide):
    """The scale is a power of two, the exponent of an f32; what the destination has besides stays."""
    scale, register = np.float32(-5.0), 4.0  # its sign and fraction count for nothing
    x = (RNG.standard_normal((2, 64)) * 8).astype(np.float32)
    if wide == "f16":
        x = x.astype(np.float16).astype(np.float32)
        sources, texts = np.ascontiguousarray(x.T.astype(np.float16)).view(U32)[:, 0], "v0"
    elif wide == "bf16":
        raw = x.view(U32) & U32(0xFFFF0000)
        x = raw.view(np.float32)
        sources, texts = raw[0] >> U32(16) | raw[1], "v0"
    else:
        sources, texts = None, "v0, v1"
    given = {0: x[0], 1: x[1]} if sources is None else {0: sources}
    select = "op_sel:[0,0,1,0]" if bits == 4 else "op_sel:[0,0,0,1]" if wide == "f32" else "op_sel:[0,0,1]"
    got = cdna3(f"v_cvt_scalef32_pk_{small}_{wide} v4, {texts}, v8 {select}", "gfx950",
                v={**given, 8: np.full(64, scale)}).vector(4, U32)  # fmt: skip
    first = 8 if bits == 4 else 16
    keep = U32(~(((1 << 2 * bits) - 1) << first) & 0xFFFFFFFF)
    assert ((got & keep) == (U32(0xA5A5A5A5) & keep)).all()
    codes = np.stack([got >> U32(first), got >> U32(first + bits)]) & U32((1 << bits) - 1)
    to = "v[10:11]" if wide == "f32" else "v10"
    code = f"v_cvt_scalef32_pk_{wide}_{small} {to}, v4, v8 op_sel:[1,0,0]"
    unpack = cdna3(code, "gfx950", v={4: got, 8: np.full(64, scale)})
    if wide == "f32":
        back = np.stack([unpack.vector(10 + k, np.float32) for k in range(2)])
    elif wide == "f16":
        back = np.stack([unpack.vector(10, np.float16, half=k).astype(np.float32) for k in range(2)])
    else:
        word = unpack.vector(10, U32)
        back = np.stack([(word << U32(16)).view(np.float32), (word & U32(0xFFFF0000)).view(np.float32)])
    if numbers:
        table = np.array(numbers + [-n for n in numbers])
        np.testing.assert_array_equal(back, table[codes] * register)
        nearest = np.abs(np.abs(x / register)[..., None] - np.array(numbers)).min(-1)
        np.testing.assert_array_equal(np.abs(back - x) / register, nearest)
    else:
        assert np.abs(back - x).max() <= np.abs(x).max() * (2.0**-4 if small == "fp8" else 2.0**-3)


@pytest.mark.parametrize(("kind", "bits"), [("fp6", (2, 3, 1)), ("bf6", (3, 2, 3))])
@pytest.mark.parametrize("wide", ["f32", "f16", "bf16"])
def test_32_numbers_of_6_bits(cdna3, kind, bits, wide):
    exponent_bits, mantissa_bits, bias = bits
    codes = np.arange(64, dtype=np.uint64)
    words_of = {k: np.zeros(64, U32) for k in range(6)}
    for n in range(32):  # every lane holds code (lane + n) % 64 at place n
        value = ((codes + np.uint64(n)) % np.uint64(64)) << np.uint64(6 * n % 32)
        words_of[6 * n // 32] |= (value & np.uint64(0xFFFFFFFF)).astype(U32)
        if 6 * n % 32 > 26:
            words_of[6 * n // 32 + 1] |= (value >> np.uint64(32)).astype(U32)
    # 32 registers are the whole file of this test, where f32 takes its sources' place at the end.
    first, last = (0, 31) if wide == "f32" else (10, 25)
    words_of = {k + (24 if wide == "f32" else 0): x for k, x in words_of.items()}
    start, scale = min(words_of), 8 if wide != "f32" else 30
    code = f"v_cvt_scalef32_pk32_{wide}_{kind} v[{first}:{last}], v[{start}:{start + 5}], v{scale}"
    got = cdna3(code, "gfx950", v={**words_of, scale: np.full(64, np.float32(0.5))})
    plain = codes.astype(int)
    sign, mantissa = plain >> 5, (plain & (1 << mantissa_bits) - 1) / 2**mantissa_bits
    exponent = plain >> mantissa_bits & (1 << exponent_bits) - 1
    table = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    table *= 1 - 2 * sign
    for n in range(32):
        want = table[(plain + n) % 64] / 2
        if wide == "f32":
            have = got.vector(n, np.float32)
        elif wide == "f16":
            have = got.vector(10 + n // 2, np.float16, half=n % 2)
        else:
            have = (got.vector(10 + n // 2, np.uint16, half=n % 2).astype(U32) << U32(16)).view(np.float32)
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(("kind", "mantissa_bits", "bias"), [("fp8", 3, 7), ("bf8", 2, 15)])
def test_one_number_of_8_bits_under_a_scale(cdna3, kind, mantissa_bits, bias):
    codes = np.arange(0x70, dtype=U32)  # finite ones
    code = f"v_cvt_scalef32_f32_{kind} v4, v0, v8 op_sel:[1,1,0]\nv_cvt_scalef32_f16_{kind} v5, v0, v8 op_sel:[1,1,1]"
    got = cdna3(code, "gfx950", v={0: codes << U32(24), 8: np.full(0x70, np.float32(3.0))})
    exponent, mantissa = codes >> U32(mantissa_bits), (codes & U32((1 << mantissa_bits) - 1)) / 2.0**mantissa_bits
    power = 2.0 ** (exponent.astype(int) - bias)
    want = 2 * np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * power)
    np.testing.assert_array_equal(got.vector(4, np.float32), want)
    np.testing.assert_array_equal(got.vector(5, np.float16, half=1), want.astype(np.float16))
    assert (got.vector(5, np.uint16) == 0xA5A5).all()


@pytest.mark.parametrize(("kind", "bits"), [("fp8", (4, 3, 8)), ("bf8", (5, 2, 16))])
def test_stochastic_rounding_takes_a_neighbour(cdna3, kind, bits):
    x = (RNG.standard_normal(128) * 10).astype(np.float32)
    values = np.array([fnuz(code, *bits) for code in range(256)])
    got = cdna3(f"v_cvt_sr_{kind}_f32 v4, v0, v1 op_sel:[0,0,0,1]", v={0: x, 1: WORDS[1]}).vector(4, U32)
    assert (got & U32(0xFF00FFFF) == 0xA500A5A5).all()
    finite = np.sort(values[~np.isnan(values)])
    below = finite[np.searchsorted(finite, x, side="right") - 1]
    above = finite[np.searchsorted(finite, x, side="left")]
    back = values[got >> U32(16) & U32(0xFF)]
    assert ((back == below) | (back == above)).all()
    assert (back == below).any()
    assert (back == above).any()


def test_minimum_and_maximum_of_three_give_nan(cdna3):
    f = np.array([[1, 2, np.nan, -0.0], [3, -4, 5, 0.0], [2, 9, 1, 1]], np.float32).repeat(16, axis=1)
    pair = {k: np.stack([row, -row], axis=-1).astype(np.float16).view(U32)[:, 0] for k, row in enumerate(f)}
    singles = cdna3("v_minimum3_f32 v4, v0, v1, v2\nv_maximum3_f32 v5, v0, v1, v2", "gfx950", v=dict(enumerate(f)))
    pairs = cdna3("v_pk_minimum3_f16 v4, v0, v1, v2\nv_pk_maximum3_f16 v5, v0, v1, v2", "gfx950", v=pair)
    for register, reduce in ((4, np.minimum.reduce), (5, np.maximum.reduce)):
        np.testing.assert_array_equal(singles.vector(register, np.float32), reduce(f))
        for half, sign in ((0, 1), (1, -1)):
            np.testing.assert_array_equal(pairs.vector(register, np.float16, half=half), reduce(sign * f))


def test_pairs_of_16_bit_floats(cdna3):
    f = RNG.standard_normal((2, 64)).astype(np.float32)
    nan = cdna3("v_cvt_pk_f16_f32 v4, v0, v1", "gfx950", v={0: np.full(64, 0x7FA00000, U32), 1: f[0]})
    assert (nan.vector(4, np.uint16) == 0x7F00).all()  # a signalling NaN comes out quiet
    code = "v_cvt_pk_f16_f32 v4, v0, v1\nv_cvt_pk_bf16_f32 v5, v0, v1\nv_cvt_f32_bf16_e32 v6, v5"
    got = cdna3(code, "gfx950", v=dict(enumerate(f)))
    np.testing.assert_array_equal(halves(got.vector(4, U32)).view(np.float16), f.T.astype(np.float16))
    rounded = (f.view(U32) + U32(0x7FFF) + (f.view(U32) >> U32(16) & U32(1))) >> U32(16)
    np.testing.assert_array_equal(halves(got.vector(5, U32)), rounded.T)
    np.testing.assert_array_equal(got.vector(6, np.float32), (rounded[0] << U32(16)).view(np.float32))


@pytest.mark.parametrize(("kind", "largest"), [("fp8", 448.0), ("bf8", 57344.0)])
@pytest.mark.parametrize("wide", ["f32", "f16"])
def test_numbers_that_do_not_fit_stop_at_the_largest_where_the_mode_says_so(cdna3, kind, largest, wide):
    x = np.array([1.0, largest, 1e9, -1e9, np.inf, -np.inf, np.nan, 0.0] * 8, np.float32)
    if wide == "f16":
        x = np.where(np.abs(x) == 1e9, np.copysign(65504.0, x), x)
        sources, given = "v0", np.repeat(x.astype(np.float16)[:, None], 2, axis=1).view(U32)[:, 0]
    else:
        sources, given = "v0, v0", x
    code = f"""s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
    v_cvt_scalef32_pk_{kind}_{wide} v4, {sources}, 1.0
    v_cvt_scalef32_f32_{kind} v5, v4, 1.0"""
    got = cdna3(code, "gfx950", v={0: given}).vector(5, np.float32)
    np.testing.assert_array_equal(got, np.clip(x, -largest, largest))

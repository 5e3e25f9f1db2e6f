"""Conversions against exact numbers: nearest even, directed modes, saturation, NaN, 8-bit floats."""

import math
from fractions import Fraction

import numpy as np
import pytest

FLOAT = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
SPECIAL32 = np.array(
    [
        0,
        0x80000000,
        1,
        0x33000000,
        0x33000001,
        0x387FC000,
        0x387FE000,
        0x477FE000,
        0x477FEFFF,
        0x477FF000,
        0xC77FF000,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0x7F800001,
        0x4F000000,
        0xCF000000,
        0x4F800000,
        0x4EFFFFFF,
        0x3F7FFFFF,
        0x3F000000,
        0x3FC00000,
        0x40200000,
        0xBF000000,
        0xBFC00000,
        0x437F0000,
        0x43800000,
        0x477FFF00,
        0xC7000000,
    ],
    np.uint32,
)


def narrowed(exact, bits, source, target, rounding=0):
    """The bits of a number of one format in another; None for NaN."""
    value = exact.decode(int(bits), source)
    exponent_bits, mantissa_bits = exact.formats[target]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        sign = int(math.copysign(1, value) < 0) << (exponent_bits + mantissa_bits)
        return sign | ((((1 << exponent_bits) - 1) << mantissa_bits) if math.isinf(value) else 0)
    return exact.encode(value, target, rounding)


def check_floats(got, wanted, kind):
    for i, want in enumerate(wanted):
        if want is None:
            quiet = {"f16": 0x200, "f32": 0x400000, "f64": 1 << 51}[kind]
            assert np.isnan(got[i : i + 1].view(FLOAT[kind]))[0]
            assert int(got[i]) & quiet
        else:
            assert int(got[i]) == want, f"item {i}: {int(got[i]):#x} instead of {want:#x}"


def test_f32_to_f16_in_every_rounding_mode(execute, exact):
    x = np.concatenate([SPECIAL32, exact.numbers("f32", 1500, 3, spread=20)])
    for rounding in range(4):
        code = f"s_round_mode {rounding << 2}\nv_cvt_f16_f32_e32 v0.h, v2"
        got = execute(code, v={2: x}).vector(0, np.uint16, 1)
        check_floats(got, [narrowed(exact, b, "f32", "f16", rounding) for b in x], "f16")


def test_packed_conversion_rounds_towards_zero(execute, exact):
    x = np.concatenate([SPECIAL32, exact.numbers("f32", 500, 4, spread=20)])
    machine = execute("v_cvt_pk_rtz_f16_f32 v0, v2, -v2", v={2: x})
    for half in range(2):
        values = x ^ np.uint32(0x80000000 * half)
        check_floats(machine.vector(0, np.uint16, half), [narrowed(exact, b, "f32", "f16", 3) for b in values], "f16")


def test_widening_is_exact(execute, exact):
    halves = np.arange(1 << 16, dtype=np.uint16)
    got = execute("v_cvt_f32_f16_e32 v0, v2.l", v={2: halves}).vector(0, np.uint32)
    check_floats(got[::7], [narrowed(exact, b, "f16", "f32") for b in halves[::7]], "f32")
    x = np.concatenate([SPECIAL32, exact.numbers("f32", 300, 5)])
    got = execute("v_cvt_f64_f32 v[0:1], v2", v={2: x}).vector(0, np.uint64)
    check_floats(got, [narrowed(exact, b, "f32", "f64") for b in x], "f64")


@pytest.mark.parametrize("rounding", range(4))
def test_f64_to_f32(execute, exact, rounding):
    with np.errstate(invalid="ignore"):
        special = SPECIAL32.view(np.float32).astype(np.float64).view(np.uint64)
    x = np.concatenate([exact.numbers("f64", 800, 6, spread=150), special])
    got = execute(f"s_round_mode {rounding}\nv_cvt_f32_f64 v0, v[2:3]", v={2: x}).vector(0, np.uint32)
    check_floats(got, [narrowed(exact, b, "f64", "f32", rounding) for b in x], "f32")


def integer_of(value, low, high):
    if isinstance(value, float):
        if math.isnan(value):
            return 0
        return high if value == math.inf else low if value == -math.inf else 0
    return max(low, min(high, math.trunc(value)))


@pytest.mark.parametrize(
    ("name", "source", "result"),
    [("v_cvt_i32_f32", "f32", np.int32), ("v_cvt_u32_f32", "f32", np.uint32), ("v_cvt_i32_f64", "f64", np.int32),
     ("v_cvt_u32_f64", "f64", np.uint32), ("v_cvt_i16_f16", "f16", np.int16), ("v_cvt_u16_f16", "f16", np.uint16)],
)  # fmt: skip
def test_floats_to_integers_saturate(execute, exact, name, source, result):
    x = exact.numbers(source, 600, 7, spread=33 if source != "f16" else 15)
    if source == "f32":
        x = np.concatenate([SPECIAL32, x])
    info = np.iinfo(result)
    registers = "v[2:3]" if source == "f64" else "v2"
    got = execute(f"{name} v0, {registers}", v={2: x}).vector(0, result)
    want = [integer_of(exact.decode(int(b), source), info.min, info.max) for b in x]
    np.testing.assert_array_equal(got, np.array(want, result))


def test_rounding_to_integers_first(execute, exact):
    x = np.concatenate([SPECIAL32, exact.numbers("f32", 400, 8, spread=12)])
    low, high = -(1 << 31), (1 << 31) - 1
    for name, function in (
        ("v_cvt_floor_i32_f32", math.floor),
        ("v_cvt_nearest_i32_f32", lambda v: math.floor(v + Fraction(1, 2))),
    ):
        got = execute(f"{name} v0, v2", v={2: x}).vector(0, np.int32)
        values = [exact.decode(int(b), "f32") for b in x]
        want = [integer_of(v if isinstance(v, float) else Fraction(function(v)), low, high) for v in values]
        nan = np.isnan(x.view(np.float32))
        want = np.where(nan, np.where(x >> 31 == 0, high, low), np.array(want))  # the largest number of its sign
        assert np.unique(want[nan]).size == 2
        np.testing.assert_array_equal(got, want.astype(np.int32), err_msg=name)


def test_integers_to_floats(execute, exact):
    rng = np.random.default_rng(9)
    x = np.concatenate(
        [rng.integers(0, 1 << 32, 400).astype(np.uint32), np.uint32(0x01000001) + np.arange(4, dtype=np.uint32)]
    )
    for name, dtype in (("u32", np.uint32), ("i32", np.int32)):
        values = [int(v) for v in x.view(dtype)]
        want = [exact.encode(Fraction(v), "f32") if v else 0 for v in values]
        np.testing.assert_array_equal(execute(f"v_cvt_f32_{name} v0, v2", v={2: x}).vector(0, np.uint32), want)
        got = execute(f"v_cvt_f64_{name} v[0:1], v2", v={2: x}).vector(0, np.float64)
        np.testing.assert_array_equal(got, np.array(values, np.float64))
    halves = rng.integers(0, 1 << 16, 300).astype(np.uint16)
    for name, dtype in (("u16", np.uint16), ("i16", np.int16)):
        want = [exact.encode(Fraction(int(v)), "f16") if v else 0 for v in halves.view(dtype)]
        np.testing.assert_array_equal(execute(f"v_cvt_f16_{name} v0.l, v2.l", v={2: halves}).vector(0, np.uint16), want)
    for k in range(4):
        got = execute(f"v_cvt_f32_ubyte{k} v0, v2", v={2: x}).vector(0, np.float32)
        np.testing.assert_array_equal(got, (x >> np.uint32(8 * k)) & np.uint32(255))
    got = execute("v_cvt_off_f32_i4 v0, v2", v={2: np.arange(16, dtype=np.uint32)}).vector(0, np.float32)
    np.testing.assert_array_equal(got, [(k if k < 8 else k - 16) / 16 for k in range(16)])
    got = execute("v_cvt_i32_i16 v0, v2.h\nv_cvt_u32_u16 v1, v2.h", v={2: x})
    np.testing.assert_array_equal(got.vector(0, np.int32), (x.view(np.int32) >> 16))
    np.testing.assert_array_equal(got.vector(1, np.uint32), x >> np.uint32(16))


def test_pairs_rounded_towards_zero_flush_denormals_where_mode_does(execute):
    x = np.array([2.0**-15, -(2.0**-20), 2.0**-14, 65600, np.inf, 1 + 2.0**-11] * 6, np.float32)
    for mode, small in ((0xF, [0x0200, 0x8010]), (0x3, [0, 0x8000])):
        got = execute(f"s_denorm_mode {mode}\nv_cvt_pk_rtz_f16_f32 v0, v2, v2", v={2: x}).vector(0, np.uint16)
        assert got[:6].tolist() == [*small, 0x0400, 0x7BFF, 0x7C00, 0x3C00]


@pytest.mark.parametrize("rounding", range(4))
def test_bytes_are_rounded_as_mode_says(execute, rounding):
    want = [[2, 2, 255, 0], [3, 2, 255, 1], [2, 1, 254, 0], [2, 1, 254, 0]][rounding]
    x = np.array([2.5, 1.75, 254.5 + 2.0**-14, 0.25] * 8, np.float32)
    got = execute(f"s_round_mode {rounding}\nv_cvt_pk_u8_f32 v0, v2, 0, 0", v={2: x}).vector(0, np.uint32)
    assert got[:4].tolist() == want


def test_packing_integers(execute):
    a = np.array([0, 1, -1, 40000, -40000, 32767, -32768, 1 << 30], np.int32)
    machine = execute("v_cvt_pk_i16_i32 v0, v2, v2\nv_cvt_pk_u16_u32 v1, v2, v2", v={2: a})
    np.testing.assert_array_equal(machine.vector(0, np.int16, 1), np.clip(a, -32768, 32767))
    np.testing.assert_array_equal(machine.vector(1, np.uint16), np.minimum(a.view(np.uint32), 65535))
    x = np.array([0.4, -3.7, 1e9, np.nan, 255.9, 300, -0.5], np.float32)
    machine = execute("v_cvt_pk_i16_f32 v0, v2, v2\nv_cvt_pk_u8_f32 v1, v2, 2, 0x11223344", v={2: x})
    np.testing.assert_array_equal(machine.vector(0, np.int16, 1), [0, -3, 32767, 0, 255, 300, 0])
    np.testing.assert_array_equal(machine.vector(1, np.uint32) >> 16 & 255, [0, 0, 255, 0, 255, 255, 0])
    np.testing.assert_array_equal(machine.vector(1, np.uint32) & 0xFF00FFFF, 0x11003344)
    x = np.array([0.5, 0.75, 1.5, 2.5, 254.5, 254.75, -0.75, -np.inf], np.float32)  # bytes alone are rounded
    machine = execute("v_cvt_pk_i16_f32 v0, v2, v2\nv_cvt_pk_u8_f32 v1, v2, 0, 0", v={2: x})
    np.testing.assert_array_equal(machine.vector(0, np.int16, 1)[:7], [0, 0, 1, 2, 254, 254, 0])
    np.testing.assert_array_equal(machine.vector(1, np.uint32), [0, 1, 2, 2, 254, 255, 0, 0])
    x = np.array([0, 1, -1, 0.5, 2, -7, np.nan, 1 / 65535], np.float32)
    machine = execute("v_cvt_pk_norm_i16_f32 v0, v2, v2\nv_cvt_pk_norm_u16_f32 v1, v2, v2", v={2: x})
    np.testing.assert_array_equal(machine.vector(0, np.int16), [0, 32767, -32767, 16384, 32767, -32767, 0, 0])
    np.testing.assert_array_equal(machine.vector(1, np.uint16), [0, 65535, 0, 32768, 65535, 0, 0, 1])


def test_packing_halves(execute):
    x = np.array([0, 1, -1, 0.5, 2, -7, np.nan], np.float16)
    code = (
        "v_cvt_norm_i16_f16 v0.l, v2.l\nv_cvt_norm_u16_f16 v0.h, v2.l\n"
        "v_cvt_pk_norm_i16_f16 v1, v2.l, v2.l\nv_cvt_pk_norm_u16_f16 v3, v2.l, v2.l"
    )
    machine = execute(code, v={2: x})
    signed, unsigned = [0, 32767, -32767, 16384, 32767, -32767, 0], [0, 65535, 0, 32768, 65535, 0, 0]
    for n, half, dtype, want in (
        (0, 0, np.int16, signed), (0, 1, np.uint16, unsigned), (1, 0, np.int16, signed), (1, 1, np.int16, signed),
        (3, 0, np.uint16, unsigned), (3, 1, np.uint16, unsigned),
    ):  # fmt: skip
        np.testing.assert_array_equal(machine.vector(n, dtype, half), want)
    wide = np.array([-1.5, 70000, 3.99, np.nan], np.float32)
    got = execute("v_cvt_pk_u16_f32 v0, v2, v2", v={2: wide})
    np.testing.assert_array_equal(got.vector(0, np.uint16, 1), [0, 65535, 3, 0])


# -- 8-bit floats ------------------------------------------------------------------------------------------------------


def value_of_code(code, kind):
    """fp8: E4M3 without infinity; bf8: E5M2."""
    exponent_bits, mantissa_bits = (4, 3) if kind == "fp8" else (5, 2)
    bias = (1 << (exponent_bits - 1)) - 1
    exponent, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    if kind == "fp8" and code & 0x7F == 0x7F:
        return math.nan
    if kind == "bf8" and exponent == 31:
        return math.nan if mantissa else math.inf
    if exponent == 0:
        return mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_from_8_bits(execute, kind):
    codes = np.arange(256, dtype=np.uint32)
    want = np.array([(-1 if c & 0x80 else 1) * value_of_code(c & 0x7F, kind) for c in range(256)], np.float32)
    packed = codes | codes[::-1] << np.uint32(8) | (codes ^ np.uint32(0x55)) << np.uint32(16) | codes << np.uint32(24)
    by_byte = [want, want[::-1], want[codes ^ np.uint32(0x55)], want]
    for k, suffix in enumerate(["", " byte_sel:1", " byte_sel:2", " byte_sel:3"]):
        got = execute(f"v_cvt_f32_{kind}_e64 v0, v2{suffix}", gpu="gfx1201", v={2: packed}).vector(0, np.float32)
        np.testing.assert_array_equal(got, by_byte[k])
    machine = execute(f"v_cvt_pk_f32_{kind}_e64 v[0:1], v2.h", gpu="gfx1201", v={2: packed})
    np.testing.assert_array_equal(machine.vector(0, np.float32), by_byte[2])
    np.testing.assert_array_equal(machine.vector(1, np.float32), by_byte[3])
    assert np.unique(machine.vector(0, np.uint32)[np.isnan(by_byte[2])]).tolist() == [0xFFC00000], "RDNA 4's one NaN"


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_to_8_bits_rounds_to_nearest_even(execute, exact, kind):
    x = np.concatenate([SPECIAL32, exact.numbers("f32", 1200, 10, spread=18)]).view(np.float32)
    ties = np.array([(value_of_code(c, kind) + value_of_code(c + 1, kind)) / 2 for c in range(0x7A)], np.float32)
    x = np.concatenate([x, ties, -ties])
    grid = [value_of_code(c, kind) for c in range(0x7F if kind == "fp8" else 0x7C)]
    step = grid[-1] - grid[-2]
    got = execute(f"v_cvt_pk_{kind}_f32 v0.h, v2, -v2", gpu="gfx1201", v={2: x}).vector(0, np.uint16, 1)
    for value, pair in zip(x, got, strict=True):
        for code, number in ((int(pair) & 0xFF, value), (int(pair) >> 8, -value)):
            if math.isnan(number):
                assert code == (0xFF if kind == "fp8" else 0xFE), "RDNA 4's one NaN"
                continue
            assert bool(code & 0x80) == bool(np.signbit(number))
            size, code = abs(float(number)), code & 0x7F
            # The tie above the largest number goes to it in fp8, whose last fraction bit there is 0, not in bf8.
            if size > grid[-1] + step / 2 or (kind == "bf8" and size == grid[-1] + step / 2):
                assert code == (0x7F if kind == "fp8" else 0x7C), number
                continue
            error = abs(grid[code] - size)
            near = [abs(g - size) for g in grid]
            assert error == min(near), (number, code)
            assert near.count(error) == 1 or code % 2 == 0, (number, code)


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_stochastic_rounding_is_fair(execute, kind):
    """With evenly spread random bits the mean is the number itself; only the chosen byte changes."""
    x = np.float32(1.0 + 0.3 / (8 if kind == "fp8" else 4))
    random = (np.arange(4096, dtype=np.uint64) << np.uint64(20)).astype(np.uint32)
    machine = execute(f"v_cvt_sr_{kind}_f32 v0, v2, v3 byte_sel:2", gpu="gfx1201", v={2: np.full(4096, x), 3: random})
    word = machine.vector(0, np.uint32)
    assert (word & np.uint32(0xFF00FFFF) == 0xA500A5A5).all()
    values = np.array([value_of_code(int(c), kind) for c in word >> 16 & 255])
    assert set(values) == {1.0, 1.125 if kind == "fp8" else 1.25}
    assert abs(values.mean() - x) < 1e-3

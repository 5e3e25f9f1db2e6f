"""The directed rounding modes of what has rules of its own: DirectX's products, sums that round twice, division."""

from fractions import Fraction

import numpy as np
import pytest

from laneloom.errors import UnknownInstructionError

RNG = np.random.default_rng(8)


def rounded(exact, value: Fraction, kind: str, rounding: int) -> Fraction:
    if value == 0:
        return Fraction(0)
    found = exact.decode(exact.encode(value, kind, rounding), kind)
    assert isinstance(found, Fraction) or found == 0
    return Fraction(found)


@pytest.mark.parametrize("rounding", range(4))
def test_products_of_directx(execute, exact, rounding):
    """Zero times anything leaves what is added."""
    a, b, c = RNG.standard_normal((3, 64)).astype(np.float32)
    a[::7], b[3::11] = 0, 0
    code = f"""s_round_mode {rounding | rounding << 2}
    v_mul_dx9_zero_f32 v4, v0, v1
    v_fma_dx9_zero_f32 v5, v0, v1, v2"""
    machine = execute(code, v={0: a, 1: b, 2: c})
    for k, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        product = Fraction(x) * Fraction(y)
        assert machine.vector(4, np.float32)[k] == rounded(exact, product, "f32", rounding)
        assert machine.vector(5, np.float32)[k] == rounded(exact, product + Fraction(z), "f32", rounding)


@pytest.mark.parametrize("rounding", range(4))
def test_doubles(execute, exact, rounding):
    """Sums, products and fused ones; what leaves the range; a sum of zero is -0 rounding down."""
    a, b, c = RNG.standard_normal((3, 64)) * 2.0 ** RNG.integers(-30, 30, (3, 64))
    a[:6], b[:6] = [1e308, -1e308, 5e-324, -5e-324, 1.5, 0], [1e308, -1e308, 0.5, 0.5, -1.5, -0.0]
    b[6], c[6] = -a[6], a[6] * a[6]
    code = f"""s_round_mode {rounding << 2}
    v_add_f64 v[10:11], v[0:1], v[2:3]
    v_mul_f64 v[12:13], v[0:1], v[2:3]
    v_fma_f64 v[14:15], v[0:1], v[2:3], v[4:5]"""
    machine = execute(code, v={0: a, 2: b, 4: c})
    got = [machine.vector(n, np.uint64) for n in (10, 12, 14)]
    for k, (x, y, z) in enumerate(zip(*(map(Fraction, v.tolist()) for v in (a, b, c)), strict=True)):
        for bits, value in zip((g[k] for g in got), (x + y, x * y, x * y + z), strict=True):
            if value:
                assert int(bits) == exact.encode(value, "f64", rounding)
    assert int(got[0][4]) == (1 << 63 if rounding == 2 else 0)


@pytest.mark.parametrize("rounding", range(4))
def test_sums_that_round_twice(cdna3, exact, rounding):
    a, b, c = RNG.standard_normal((3, 64)).astype(np.float16)
    code = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), {rounding | rounding << 2}\nv_mad_f16 v4, v0, v1, v2"
    got = cdna3(code, v={0: a, 1: b, 2: c}).vector(4, np.float16)
    for k, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        product = rounded(exact, Fraction(x) * Fraction(y), "f16", rounding)
        assert got[k] == rounded(exact, product + Fraction(z), "f16", rounding)


@pytest.mark.parametrize("rounding", range(4))
def test_pairs_of_singles(cdna3, exact, rounding):
    """Conversions of pairs to fp16 round to nearest all the same (CDNA 4 ISA guide)."""
    a, b, c = RNG.standard_normal((3, 64, 2)).astype(np.float32)
    code = f"""s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), {rounding | rounding << 2}
    v_pk_add_f32 v[10:11], v[0:1], v[2:3]
    v_pk_mul_f32 v[12:13], v[0:1], v[2:3]
    v_pk_fma_f32 v[14:15], v[0:1], v[2:3], v[4:5]
    v_cvt_pk_f16_f32 v16, v0, v1"""
    machine = cdna3(code, "gfx950", v={n: x.view(np.uint64).ravel() for n, x in {0: a, 2: b, 4: c}.items()})
    for side in range(2):
        got = [machine.vector(n + side, np.float32) for n in (10, 12, 14)]
        for k, (x, y, z) in enumerate(zip(*(map(Fraction, v[:, side].tolist()) for v in (a, b, c)), strict=True)):
            assert [g[k] for g in got] == [rounded(exact, v, "f32", rounding) for v in (x + y, x * y, x * y + z)]
        np.testing.assert_array_equal(machine.vector(16, np.float16, half=side), a[:, side].astype(np.float16))


@pytest.mark.parametrize("rounding", range(4))
@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("f32", np.float32), ("f64", np.float64)])
def test_powers_of_two_and_fractions(execute, exact, rounding, kind, dtype):
    """What v_ldexp makes denormal or too large, and sums with 1 that do not fit (kept below 1), are rounded."""
    x, largest = RNG.standard_normal(64).astype(dtype), np.finfo(dtype).maxexp
    x[60:] = -0.0, 3, -2, 0
    power = np.resize(np.array([1 - largest, -largest - 5, 3 - 2 * largest, largest, 2], np.int32), 64)
    wide, to, of = (("[6:7]", "[8:9]", "[0:1]") if kind == "f64" else ("6", "8", "0"))
    code = f"s_round_mode {rounding | rounding << 2}\nv_ldexp_{kind} v{wide}, v{of}, v2\nv_fract_{kind} v{to}, v{of}"
    machine = execute(code, v={0: x, 2: power.astype(np.int16) if kind == "f16" else power})
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    for value, p, got, rest in zip(
        map(Fraction, x.tolist()), power.tolist(), machine.vector(6, bits), machine.vector(8, dtype), strict=True
    ):
        assert value == 0 or int(got) == exact.encode(value * Fraction(2) ** p, kind, rounding)
        assert rest == min(rounded(exact, value % 1, kind, rounding), 1 - Fraction(float(np.finfo(dtype).epsneg)))
    assert not machine.vector(8, bits)[60:].any(), "whole numbers leave +0"


def test_what_rounds_to_nearest_alone(cdna3):
    a = RNG.standard_normal(64).astype(np.float32)
    code = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), {}\nv_mad_f32 v4, v0, v1, v2"
    cdna3(code.format(0), "gfx90a", v={0: a, 1: a, 2: a})
    with pytest.raises(UnknownInstructionError, match="rounding to nearest only"):
        cdna3(code.format(5), "gfx90a", v={0: a, 1: a, 2: a})


def test_what_overflows_float16_stops_at_the_largest_number_where_the_mode_says_so(execute):
    a = np.resize(np.array([7e4, -1e38, np.inf, -np.inf, 65519, 1.5, np.nan, 0], np.float32), 64)
    h = np.resize(np.array([400, -400, np.inf, -np.inf, 0, 1.5, np.nan, -60000], np.float16), 64)
    code = """s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
    v_cvt_f16_f32 v4, v0
    v_mul_f16 v5, v1, v1
    v_pk_mul_f16 v6, v1, v1
    v_fma_mixlo_f16 v7, v0, 1.0, 0
    v_exp_f16 v8, v1
    v_rcp_f16 v9, v1
    v_add_f32 v10, v0, v0"""
    machine = execute(code, v={0: a, 1: h})
    most, inf, nan = 65504, np.inf, np.nan
    wanted = {
        4: [most, -most, inf, -inf, 65504, 1.5, nan, 0],
        5: [most, most, inf, inf, 0, 2.25, nan, most],
        6: [most, most, inf, inf, 0, 2.25, nan, most],
        7: [most, -most, inf, -inf, 65504, 1.5, nan, 0],
        8: [most, 0, inf, 0, 1, np.float16(2**1.5), nan, 0],
        9: [np.float16(1 / 400), np.float16(-1 / 400), 0, 0, most, np.float16(1 / 1.5), nan, np.float16(-1 / 60000)],
    }
    for n, values in wanted.items():
        np.testing.assert_array_equal(machine.vector(n, np.float16)[:8], np.array(values, np.float16), f"v{n}")
    assert machine.vector(10, np.float32)[2] == inf


@pytest.mark.parametrize("rounding", range(4))
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_output_scale_beyond_the_largest_number_is_rounded(execute, rounding, kind):
    """What omod makes too large is infinity or the largest number, by the rounding mode; reciprocals ignore that."""
    dtype = np.dtype(f"f{int(kind[1:]) // 8}")
    most = np.finfo(dtype).max
    x = np.array([most, -most, np.inf, -np.inf, most / 4], dtype)
    registers = {"f16": ("v0.l", "v2.l"), "f32": ("v0", "v2"), "f64": ("v[0:1]", "v[2:3]")}[kind]
    code = f"s_round_mode {rounding | rounding << 2}\nv_mul_{kind}_e64 {registers[0]}, {registers[1]}, 1.0 mul:4"
    got = execute(code, gpu="gfx1201", v={2: x}).vector(0, dtype)
    above, below = (most if rounding in (2, 3) else np.inf), (-most if rounding in (1, 3) else -np.inf)
    np.testing.assert_array_equal(got, np.array([above, below, np.inf, -np.inf, most], dtype))
    if kind == "f32":
        code = f"s_round_mode {rounding}\nv_rcp_f32_e64 v0, v2 mul:4"
        got = execute(code, gpu="gfx1201", v={2: np.float32([2.0**-126, -(2.0**-126)])}).vector(0, dtype)
        np.testing.assert_array_equal(got, np.float32([np.inf, -np.inf]))

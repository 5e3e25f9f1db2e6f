"""The steps of a division under every rounding and denormal mode, as rocjitsu saw them on gfx1100 and gfx1201."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
BITS = {"f16": np.uint16, "f32": np.uint32, "f64": np.uint64}


def register(kind: str, n: int) -> str:
    return f"v[{n}:{n + 1}]" if kind == "f64" else f"v{n}"


@pytest.mark.parametrize("rounding", range(4))
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_fused_steps_round_once(execute, exact, kind, rounding):
    """Half of the lanes are scaled back by the size of what is added; operands keep denormals in every mode."""
    a, b, c = (exact.numbers(kind, 64, seed, 6).view(DTYPES[kind]) for seed in (1, 2, 3))
    a, b, c = (np.where(np.isfinite(x), x, DTYPES[kind](3)) for x in (a, b, c))
    tiny, power = np.finfo(DTYPES[kind]).smallest_subnormal, 64 if kind == "f32" else 128
    a[:2], b[:2], c[:2] = [tiny, 1], [1, 1], [1, tiny]
    largest = np.finfo(DTYPES[kind]).max
    a[2:4], b[2:4], c[2:4] = [largest, 2], [largest, 3], [4, -6]
    registers = ", ".join(register(kind, n) for n in (6, 0, 2, 4))
    for denormals in (0, 15):
        code = f"s_round_mode {rounding * 5}\ns_denorm_mode {denormals}\nv_div_fmas_{kind} {registers}"
        got = execute(f"s_mov_b32 vcc_lo, 0x0f0f3333\n{code}", v={0: a, 2: b, 4: c}).vector(6, BITS[kind])
        for k, (x, y, z) in enumerate(zip(*(map(Fraction, v.tolist()) for v in (a, b, c)), strict=True)):
            scale = (power if abs(z) >= 2 else -power) if 0x0F0F3333 >> k % 32 & 1 else 0
            value = (x * y + z) * Fraction(2) ** scale
            if value == 0:
                continue
            want = exact.encode(value, kind, rounding)
            if not denormals and abs(value) < Fraction(float(np.finfo(DTYPES[kind]).tiny)):
                want &= 1 << BITS[kind]().itemsize * 8 - 1
            assert int(got[k]) == want, k
        zero = int(got[3]) << (64 - BITS[kind]().itemsize * 8)
        assert zero == (1 << 63 if rounding == 2 else 0)


@pytest.mark.parametrize("rounding", range(4))
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_what_leaves_the_range_is_rounded(execute, kind, rounding):
    """An infinite quotient of finite numbers is an overflow, one far below the range the least number or zero."""
    f, info = DTYPES[kind], np.finfo(DTYPES[kind])
    least, largest, infinity = info.smallest_subnormal, info.max, f(np.inf)
    quotient = np.array([np.inf, np.nan, least, -least, 7, 7, np.inf], f)
    denominator = np.array([1, -1, 2, 2, largest, largest, 0], f)
    numerator = np.array([1, 1, 1, -1, least, -least, -1], f)
    registers = ", ".join(register(kind, n) for n in (6, 0, 2, 4))
    up, down = rounding == 1, rounding == 2
    for denormals in (12, 13, 15):
        code = f"s_round_mode {rounding * 5}\ns_denorm_mode {15 if kind != 'f32' else denormals}\n"
        machine = execute(f"{code}v_div_fixup_{kind} {registers}", v={0: quotient, 2: denominator, 4: numerator})
        got = machine.vector(6, BITS[kind])[:7]
        below = least if denormals == 15 or kind == "f64" else f(0)
        want = [
            infinity if up or rounding == 0 else largest, -(infinity if down or rounding == 0 else largest), least,
            -least, below if up else f(0), -below if down else f(-0.0), -infinity,
        ]  # fmt: skip
        if kind == "f16":  # no difference of exponents is too large for the quotient
            want[4:6] = [f(7), f(-7)]
        if kind == "f32" and denormals == 12:  # the numerator is one
            want[4:6] = [f(0), f(-0.0)]
        np.testing.assert_array_equal(got, np.array(want, f).view(BITS[kind]))


def test_quotients_of_halves_stop_where_mode_says_so(execute):
    """FP16_OVFL: at the largest number; division by zero stays infinite."""
    q, d, n = np.array([[np.inf, np.inf], [1, 0], [-1, 1]], np.float16)
    code = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\nv_div_fixup_f16 v6, v0, v2, v4"
    assert execute(code, v={0: q, 2: d, 4: n}).vector(6, np.float16)[:2].tolist() == [-65504, np.inf]


def test_scaled_numerators_lose_denormals_where_results_do(execute):
    x = np.array([1], np.uint32)
    for mode, want in ((1, 0), (3, 1)):
        code = f"s_denorm_mode {12 | mode}\nv_div_scale_f32 v0, s4, v2, v3, v2"
        got = execute(code, v={2: x, 3: np.array([2.0**127], np.float32)}).vector(0, np.uint32)
        assert got[0] == want

"""Division as LLVM expands it, its steps, and the approximate instructions within AMD's tolerances."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

DIVIDE_F32 = """
v_div_scale_f32 v6, null, v3, v3, v2
v_rcp_f32 v7, v6
v_fma_f32 v8, -v6, v7, 1.0
v_fmac_f32 v7, v8, v7
v_div_scale_f32 v9, vcc_lo, v2, v3, v2
v_mul_f32 v10, v9, v7
v_fma_f32 v11, -v6, v10, v9
v_fmac_f32 v10, v11, v7
v_fma_f32 v11, -v6, v10, v9
v_div_fmas_f32 v12, v11, v7, v10
v_div_fixup_f32 v0, v12, v3, v2
"""
DIVIDE_F64 = """
v_div_scale_f64 v[6:7], null, v[4:5], v[4:5], v[2:3]
v_rcp_f64 v[8:9], v[6:7]
v_fma_f64 v[10:11], -v[6:7], v[8:9], 1.0
v_fma_f64 v[8:9], v[8:9], v[10:11], v[8:9]
v_fma_f64 v[10:11], -v[6:7], v[8:9], 1.0
v_fma_f64 v[8:9], v[8:9], v[10:11], v[8:9]
v_div_scale_f64 v[12:13], vcc_lo, v[2:3], v[4:5], v[2:3]
v_mul_f64 v[14:15], v[12:13], v[8:9]
v_fma_f64 v[16:17], -v[6:7], v[14:15], v[12:13]
v_div_fmas_f64 v[16:17], v[16:17], v[8:9], v[14:15]
v_div_fixup_f64 v[0:1], v[16:17], v[4:5], v[2:3]
"""
FLOAT = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def dividends(exact, kind, ends):
    size = {"f32": np.uint32, "f64": np.uint64}[kind]
    special = np.array(ends, size)
    a, b = (g.ravel() for g in np.meshgrid(special, special))
    n = 4000
    return (np.concatenate([a, exact.numbers(kind, n, 1, 100)]), np.concatenate([b, exact.numbers(kind, n, 2, 100)]))


@pytest.mark.parametrize(
    ("kind", "code", "second", "ends"),
    [("f32", DIVIDE_F32, 3, [0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x3F800000, 0x40400000, 0x7F7FFFFF,
                             0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x0C000000, 0x7E800001]),
     ("f64", DIVIDE_F64, 4, [0, 1 << 63, 1, 0xFFFFFFFFFFFFF, 1 << 52, 0x3FF << 52, 0x4008 << 48, 0x7FEFFFFFFFFFFFFF,
                             0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48])],
)  # fmt: skip
def test_division_is_correctly_rounded(execute, exact, kind, code, second, ends):
    x, y = dividends(exact, kind, ends)
    dtype = FLOAT[kind]
    with np.errstate(all="ignore"):
        want = x.view(dtype) / y.view(dtype)
    got = execute(code, v={2: x, second: y}).vector(0, dtype)
    bad = ~((got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want))
    assert not bad.any(), [(hex(a), hex(b)) for a, b in zip(x[bad][:5], y[bad][:5], strict=True)]


def test_scale_reports_what_must_be_undone(execute):
    pairs = {  # numerator, denominator -> scaled denominator, scaled numerator, scale the quotient back
        (1.0, 3.0): (3.0, 1.0, False),
        (2.0**100, 2.0**-10): (2.0**54, 2.0**100, True),
        (1.0, 2.0**-130): (2.0**-66, 1.0, True),
        (2.0**-100, 2.0**-130): (2.0**-66, 2.0**-36, False),
        (2.0**-20, 2.0**127): (2.0**63, 2.0**-20, True),
        (2.0**100, 2.0**127): (2.0**63, 2.0**36, False),
        (2.0**-126, 1.0): (1.0, 2.0**-62, True),
        (2.0**-120, 2.0**-110): (2.0**-46, 2.0**-56, False),
        (2.0**-100, 1.0): (1.0, 2.0**-36, True),
        (1.0, 2.0**126): (2.0**62, 1.0, True),
        (2.0**-103, 2.0**-50): (2.0**14, 2.0**-39, False),
    }
    n, d = (np.array([p[k] for p in pairs], np.float32) for k in range(2))
    machine = execute("v_div_scale_f32 v0, s4, v3, v3, v2\nv_div_scale_f32 v1, s5, v2, v3, v2", v={2: n, 3: d})
    for i, (numerator, denominator) in enumerate(pairs):
        scaled_d, scaled_n, back = pairs[numerator, denominator]
        assert machine.mask(4)[i] == machine.mask(5)[i] == back, (numerator, denominator)
        assert machine.vector(0, np.float32)[i] == scaled_d, (numerator, denominator)
        assert machine.vector(1, np.float32)[i] == scaled_n, (numerator, denominator)


def test_scale_of_zeros_and_nans(execute):
    """Zeros give the negative quiet NaN, NaNs become quiet, and exponents say whether the quotient is scaled back."""
    n = np.array([0x3F800000, 0x21800000, 0, 0x7F800001], np.uint32)
    d = np.array([0, 0, 0x3F800000, 0x3F800000], np.uint32)
    machine = execute("v_div_scale_f32 v0, s4, v2, v3, v2", v={2: np.resize(n, 32), 3: np.resize(d, 32)})
    assert machine.vector(0, np.uint32)[:4].tolist() == [0xFFC00000, 0xFFC00000, 0xFFC00000, 0x7FC00001]
    assert machine.mask(4)[:4].tolist() == [True, False, True, True]


def test_fixup(execute):
    q = np.full(6, 7.0, np.float32)
    d = np.array([0.0, 0.0, np.inf, -np.inf, 2.0, -2.0], np.float32)
    n = np.array([1.0, 0.0, np.inf, 1.0, np.inf, 3.0], np.float32)
    got = execute("v_div_fixup_f32 v0, v1, v2, v3", v={1: q, 2: d, 3: n}).vector(0, np.float32)
    np.testing.assert_array_equal(got, np.array([np.inf, np.nan, np.nan, -0.0, np.inf, -7.0], np.float32))
    assert (got.view(np.uint32)[1:3] == 0xFFC00000).all()
    half = execute("v_div_fixup_f16 v0, v1, v2, v3", v={k: x.astype(np.float16) for k, x in ((1, q), (2, d), (3, n))})
    np.testing.assert_array_equal(half.vector(0, np.float16), got.astype(np.float16))


# -- approximate instructions ------------------------------------------------------------------------------------------


def reference(name, x):
    if math.isnan(x):
        return math.nan
    if name == "exp":
        return math.inf if x > 1000 else 0.0 if x < -1000 else 2.0**x
    if name == "log":
        return -math.inf if x == 0 else math.nan if x < 0 else math.inf if x == math.inf else math.log2(x)
    if name == "rcp":
        return math.copysign(math.inf, x) if x == 0 else 1 / x
    if name == "sqrt":
        return x if x == 0 else math.nan if x < 0 else math.sqrt(x)
    return math.copysign(math.inf, x) if x == 0 else math.nan if x < 0 else 1 / math.sqrt(x)


@pytest.mark.parametrize("name", ["exp", "log", "rcp", "sqrt", "rsq"])
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_correct_rounding(execute, exact, name, kind):
    if kind == "f64" and name in ("exp", "log"):
        return
    dtype = FLOAT[kind]
    specials = np.array([0.0, -0.0, 1.0, -1.0, 2.0, np.inf, -np.inf, np.nan, 0.5, 10, -10, 3], dtype)
    x = np.concatenate([specials, exact.numbers(kind, 1500, 4, 12).view(dtype)])
    if kind != "f64":  # scaled so that exponents matter to exp too
        x = np.concatenate([x, np.linspace(-20, 20, 500).astype(dtype)])
    register, destination = ("v[2:3]", "v[0:1]") if kind == "f64" else ("v2", "v0")
    got = execute(f"v_{name}_{kind} {destination}, {register}", v={2: x}).vector(0, dtype)
    tiny = np.finfo(dtype).tiny
    source = np.where(np.abs(x) < tiny, np.copysign(dtype(0), x), x) if kind == "f32" else x
    with np.errstate(all="ignore"):
        want = np.array([reference(name, float(v)) for v in source]).astype(dtype)
    if kind == "f32":
        want = np.where(np.abs(want) < tiny, np.copysign(dtype(0), want), want)
    good = (got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want)
    if kind == "f64":  # few bits are read
        with np.errstate(invalid="ignore"):
            good |= np.abs(got - want) <= np.abs(want) * 2.0**-28
    assert good.all(), [(a, b, c) for a, b, c in zip(x[~good], got[~good], want[~good], strict=True)][:5]


@pytest.mark.parametrize(("name", "read", "given"), [("rcp", 29, 34), ("rsq", 29, 35), ("sqrt", 28, 35)])
def test_doubles_have_the_bits_that_hardware_has(execute, name, read, given):
    """As rocjitsu saw on gfx1201: which bits of the operand count, how many the result has, and the ends."""
    random = np.random.default_rng(5)
    x = np.ldexp(random.uniform(1.01, 1.99, 256), random.integers(-1000, 1000, 256))
    cut = (x.view(np.uint64) >> np.uint64(52 - read) << np.uint64(52 - read)).view(np.float64)
    got, of_cut = (execute(f"v_{name}_f64 v[0:1], v[2:3]", v={2: v}).vector(0, np.float64) for v in (x, cut))
    np.testing.assert_array_equal(got, of_cut)
    assert (np.frexp(got)[0] * 2.0 ** (given + 1) % 1 == 0).all()
    ends = np.array([1.0, 1 + 2.0**-52, 2 - 2.0**-52, 4.0, 4 + 2.0**-40, -1 - 2.0**-40, 2.0**-1074, np.inf])
    want = {
        "rcp": [1, 1 - 2.0**-53, 0.5 + 2.0**-53, 0.25, 0.25 - 2.0**-55, -1 + 2.0**-53, np.inf, 0],
        "rsq": [1, 1 - 2.0**-53, None, 0.5, 0.5 - 2.0**-54, np.nan, 2.0**537, 0],
        "sqrt": [1, 1, None, 2, 2, np.nan, 2.0**-537, np.inf],
    }[name]
    got = execute(f"v_{name}_f64 v[0:1], v[2:3]", v={2: ends}).vector(0, np.float64)
    for one, other in zip(got.tolist(), want, strict=False):
        assert other is None or one == other or (math.isnan(one) and math.isnan(other))


def test_forms_that_share_a_function(execute):
    x = np.array([0.5, 4.0, 2.0**-140], np.float32)
    got = execute("v_rcp_iflag_f32 v0, v1", v={1: x}).vector(0, np.float32)
    np.testing.assert_array_equal(got, [2, 0.25, np.inf])
    table = {"exp": 2.0**4, "log": 2.0, "rcp": 0.25, "rsq": 0.5, "sqrt": 2.0}
    for name, want in table.items():
        machine = execute(f"v_s_{name}_f32 s0, 4.0\nv_s_{name}_f16 s1, 4.0", gpu="gfx1201", s={4: 0})
        assert machine.scalar(0, np.float32)[0] == want
        assert machine.scalar(1)[0] == np.float16(want).view(np.uint16)


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_sine_and_cosine_take_revolutions(execute, kind):
    dtype = FLOAT[kind]
    x = np.concatenate([np.arange(-8, 9) / 4, np.linspace(-3, 3, 400), [100.125, -255.9]]).astype(dtype)
    machine = execute(f"v_sin_{kind} v0, v2\nv_cos_{kind} v1, v2", v={2: x})
    turns = x.astype(np.float64) - np.rint(x.astype(np.float64))
    for n, function in ((0, np.sin), (1, np.cos)):
        np.testing.assert_allclose(
            machine.vector(n, dtype), function(2 * np.pi * turns), rtol=2 * np.finfo(dtype).eps, atol=1e-15
        )
    np.testing.assert_array_equal(np.abs(machine.vector(0, dtype)[:17]), np.arange(17) % 2)
    np.testing.assert_array_equal(np.abs(machine.vector(1, dtype)[:17]), (np.arange(17) + 1) % 2)


@pytest.mark.parametrize("denormals", range(4))
def test_sine_of_the_largest_and_of_denormal_numbers(execute, denormals):
    """The whole range is reduced, as seen on gfx1100 and gfx1201 (rocjitsu's records)."""
    x = np.resize(np.array([0xFF7FFFFF, 0x80000001, 0x80000000], np.uint32), 32)
    machine = execute(f"s_denorm_mode {12 | denormals}\nv_sin_f32 v0, v2\nv_cos_f32 v1, v2", v={2: x})
    small = 0x80000006 if denormals == 3 else 0x80000000
    assert machine.vector(0, np.uint32)[:3].tolist() == [0, small, 0x80000000]
    assert (machine.vector(1, np.uint32) == 0x3F800000).all()


def test_segments_of_two_over_pi(execute):
    x = np.array([1.0, 1e300, -(2.0**60)])
    got = [execute(f"v_trig_preop_f64 v[0:1], v[2:3], {k}", v={2: x}).vector(0, np.float64) for k in range(3)]
    two_over_pi = Fraction("0.636619772367581343075535053490057448137838582961825794990669")
    assert abs(sum(Fraction(float(g[0])) for g in got) - two_over_pi) < Fraction(1, 1 << 155)
    assert 0 < got[1][0] < 2.0**-52
    # For 2**60 the segments start at bit 6.
    for k, g in enumerate(got):
        end = 53 * (k + 1) + 6
        whole = two_over_pi * 2**end // 1
        assert g[2] == float(Fraction(whole % (1 << 53), 1 << end))
    assert 0 < got[0][1] < 2.0**-800  # the guides scale segments of huge angles by 2**128


def test_segments_for_the_largest_angles_keep_their_bits(execute):
    with localcontext(prec=400):
        a, b, t, p = Decimal(1), 1 / Decimal(2).sqrt(), Decimal(1) / 4, 1  # pi by the mean of Gauss and Legendre
        for _ in range(9):
            a, b, t, p = (a + b) / 2, (a * b).sqrt(), t - p * ((a - b) / 2) ** 2, 2 * p
        two_over_pi = Fraction(2 * t / (a * a))
    x = np.array([2.0**945, 1.75 * 2.0**1000, -(2.0**1023)])
    powers = (x.view(np.uint64) >> np.uint64(52)) & np.uint64(0x7FF)
    for k in range(3):
        got = execute(f"v_trig_preop_f64 v[0:1], v[2:3], {k}", v={2: x}).vector(0, np.float64)
        for g, power in zip(got, powers, strict=True):
            end = 53 * (k + 1) + int(power) - 1077
            whole = two_over_pi * 2**end // 1 % (1 << 53)
            assert Fraction(float(g)) == Fraction(whole * 2**128, 1 << end)

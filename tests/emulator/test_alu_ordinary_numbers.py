"""Arrays of ordinary numbers alone: the quick ways that instructions take where nothing special is among the lanes."""

from fractions import Fraction

import numpy as np
import pytest

FLOAT = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def ordinary(exact, kind, seed, low, high, count=2500):
    """Random numbers with magnitudes from `low` to `high`, few and many mantissa bits."""
    x = exact.numbers(kind, 6 * count, seed, spread=12).view(FLOAT[kind])
    with np.errstate(invalid="ignore"):
        return x[(np.abs(x) >= low) & (np.abs(x) <= high)][:count]


def rounded(exact, value, kind):
    return exact.encode(value, kind) if value else 0


@pytest.mark.parametrize("low", [2.0**-14, 0.0], ids=["normal", "with denormals and zeros"])
def test_f16(execute, exact, low):
    a, b, c = (ordinary(exact, "f16", seed, low, 30.0) for seed in range(3))
    n = min(map(len, (a, b, c)))
    a, b, c = a[:n], b[:n], c[:n]
    assert n > 500
    table = {
        "v_add_f16 v0.l, v2.l, v4.l": lambda x, y, z: x + y,
        "v_sub_f16 v0.l, v2.l, v4.l": lambda x, y, z: x - y,
        "v_mul_f16 v0.l, v2.l, v4.l": lambda x, y, z: x * y,
        "v_fma_f16 v0.l, v2.l, v4.l, v6.l": lambda x, y, z: x * y + z,
    }
    numbers = [[Fraction(float(v)) for v in column] for column in (a, b, c)]
    for code, function in table.items():
        got = execute(code, v={2: a, 4: b, 6: c}).vector(0, np.uint16)
        want = [rounded(exact, function(*row), "f16") for row in zip(*numbers, strict=True)]
        for i, w in enumerate(want):
            assert int(got[i]) == w or (w == 0 and int(got[i]) in (0, 0x8000)), (code, a[i], b[i], c[i])


@pytest.mark.parametrize(("low", "high"), [(2.0**-14, 60000.0), (0.0, 60000.0), (0.0, 2.0**-13), (1e-9, 1e-4)])
def test_f32_to_f16(execute, exact, low, high):
    rng = np.random.default_rng(4)
    halves = np.arange(0x7BFF, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = ((halves[1:] + halves[:-1]) / 2).astype(np.float32)  # exact in float32
    near = [np.nextafter(ties, np.float32(k)) for k in (0, 1e6)]
    x = np.concatenate([ties, *near, ordinary(exact, "f32", 5, low, high)])
    x = x[(x >= low) & (x <= high)]
    x = rng.permutation(x)[:4000] * rng.choice(np.array([1, -1], np.float32), min(len(x), 4000))
    got = execute("v_cvt_f16_f32 v0.l, v2", v={2: x}).vector(0, np.uint16)
    for value, code in zip(x, got, strict=True):
        if value:
            want = exact.encode(Fraction(float(value)), "f16")
            assert int(code) == want, (value, hex(code), hex(want))
        else:
            assert int(code) in (0, 0x8000)


def test_f64_fma(execute, exact):
    a, b, c = (ordinary(exact, "f64", seed, 2.0**-20, 2.0**20, 1500) for seed in range(3))
    c[::3] = -(a * b)[::3]  # what is left is the low half of the product
    got = execute("v_fma_f64 v[0:1], v[2:3], v[4:5], v[6:7]", v={2: a, 4: b, 6: c}).vector(0, np.uint64)
    for i, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
        assert int(got[i]) == rounded(exact, Fraction(x) * Fraction(y) + Fraction(z), "f64")


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_extrema(execute, exact, kind):
    a, b, c = (ordinary(exact, kind, seed, 2.0**-10, 2.0**10, 400) for seed in range(3))
    wide = kind == "f64"
    two = "v[0:1], v[2:3], v[4:5]" if wide else "v0, v2, v4"
    table = {"max": np.maximum(a, b), "min": np.minimum(a, b)}
    for name, want in table.items():
        np.testing.assert_array_equal(execute(f"v_{name}_{kind} {two}", v={2: a, 4: b}).vector(0, FLOAT[kind]), want)
    if not wide:
        got = execute(f"v_med3_{kind} v0, v2, v4, v6", v={2: a, 4: b, 6: c}).vector(0, FLOAT[kind])
        np.testing.assert_array_equal(got, np.median([a, b, c], axis=0))


@pytest.mark.parametrize("name", ["exp", "log", "rcp", "sqrt", "rsq"])
def test_approximate_f32(execute, exact, name):
    x = np.abs(ordinary(exact, "f32", 6, 2.0**-10, 2.0**6)).astype(np.float32)
    function = {"exp": np.exp2, "log": np.log2, "rcp": np.reciprocal, "sqrt": np.sqrt, "rsq": lambda v: 1 / np.sqrt(v)}
    got = execute(f"v_{name}_f32 v0, v2", v={2: x}).vector(0, np.float32)
    np.testing.assert_array_equal(got, function[name](x.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_division_steps_leave_ordinary_numbers_alone(execute, exact, kind):
    n, d, q = (ordinary(exact, kind, seed, 2.0**-10, 2.0**10, 400) for seed in range(3))
    v = {2: n, 4: d, 6: q}
    r = {k: f"v[{k}:{k + 1}]" if kind == "f64" else f"v{k}" for k in (0, 2, 4, 6)}
    machine = execute(f"v_div_scale_{kind} {r[0]}, s4, {r[4]}, {r[4]}, {r[2]}", v=v)
    np.testing.assert_array_equal(machine.vector(0, FLOAT[kind]), d)
    assert not machine.mask(4).any()
    got = execute(f"v_div_fixup_{kind} {r[0]}, {r[6]}, {r[4]}, {r[2]}", v=v).vector(0, FLOAT[kind])
    np.testing.assert_array_equal(got, np.abs(q) * np.sign(n) * np.sign(d))


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_which_zero_is_the_median(execute, kind):
    """The first number that equals the largest is left out, whatever the sign of a zero (ISA guides, "V_MED3_F32")."""
    zeros = [[0, -0.0, -1], [-0.0, 0, -1], [-1, -0.0, 0], [0, -0.0, 1], [1, 0, -0.0], [-0.0, -0.0, 0]]
    zeros = np.array(zeros, np.float32)
    v = {1 + k: zeros[:, k].astype(FLOAT[kind]) for k in range(3)}
    for gpu, name in (("gfx1100", "med3"), ("gfx942", "med3"), ("gfx1201", "med3_num")):
        got = execute(f"v_{name}_{kind} v0, v1, v2, v3", gpu=gpu, v=v).vector(0, FLOAT[kind])
        np.testing.assert_array_equal(got, 0)
        np.testing.assert_array_equal(np.signbit(got), [True, False, False, False, False, False])

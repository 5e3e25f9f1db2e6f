"""Sums, products and fused multiply-adds against fractions: one rounding, every mode, denormals, infinities, NaN."""

import math
from fractions import Fraction

import numpy as np
import pytest

FLOAT = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
SPECIAL = {
    "f16": [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7D01],
    "f32": [0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x3F800000, 0xBF800000, 0x3F800001, 0x7F7FFFFF,
            0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001],
    "f64": [0, 1 << 63, 1, 0xFFFFFFFFFFFFF, 1 << 52, 0x3FF << 52, 0xBFF << 52, 0x7FEFFFFFFFFFFFFF, 0x7FF << 52,
            0xFFF << 52, 0x7FF8 << 48, 0x7FF0000000000001],
}  # fmt: skip


def expected(operation, operands, kind, rounding, exact):
    """Bits of the exactly rounded result; None for a NaN."""
    values = [exact.decode(int(b), kind) for b in operands]
    if any(isinstance(x, float) and math.isnan(x) for x in values):
        return None
    if operation == "mul":
        values, addend = values, None
    elif operation == "fma":
        values, addend = values[:2], values[2]
    else:
        right = -values[1] if operation == "sub" else values[1]
        values, addend = [values[0], Fraction(1)], right
    a, b = values
    product = float(np.float64(float(a > 0) - float(a < 0) if a else a) * (float(b > 0) - float(b < 0) if b else b))
    infinite = [isinstance(x, float) and math.isinf(x) for x in (a, b)]
    if any(infinite):
        if a == 0 or b == 0:
            return None
        product = math.copysign(math.inf, (1 if a > 0 else -1) * (1 if b > 0 else -1))
    else:
        whole = Fraction(a) * Fraction(b)
        product = whole if whole else math.copysign(
            0.0, math.copysign(1, float(a)) * math.copysign(1, float(b) if b else b)
        )  # fmt: skip
    total = product if addend is None else _sum(product, addend, rounding)
    if total is None:
        return None
    if isinstance(total, float):
        size, mantissa_bits = sum(exact.formats[kind]) + 1, exact.formats[kind][1]
        sign = int(math.copysign(1, total) < 0) << (size - 1)
        return sign | ((((1 << exact.formats[kind][0]) - 1) << mantissa_bits) if math.isinf(total) else 0)
    return exact.encode(total, kind, rounding)


def _sum(x, y, rounding):
    infinite = [z for z in (x, y) if isinstance(z, float) and math.isinf(z)]
    if infinite:
        return infinite[0] if len({z > 0 for z in infinite}) == 1 else None
    total = Fraction(x) + Fraction(y)
    if total:
        return total
    both_negative_zero = all(isinstance(z, float) and math.copysign(1, z) < 0 for z in (x, y))
    both_positive_zero = all(isinstance(z, float) and math.copysign(1, z) > 0 for z in (x, y))
    if both_negative_zero or (rounding == 2 and not both_positive_zero):
        return -0.0
    return 0.0


def compare(got, wanted, kind):
    nan = np.isnan(got.view(FLOAT[kind]))
    for i, want in enumerate(wanted):
        if want is None:
            assert nan[i], f"item {i}: {int(got[i]):#x} instead of NaN"
        else:
            assert int(got[i]) == want, f"item {i}: {int(got[i]):#x} instead of {want:#x}"


def operands(exact, kind, count, seed):
    n = 2200 if kind != "f64" else 1200
    special = np.array(SPECIAL[kind], f"u{np.dtype(FLOAT[kind]).itemsize}")
    grids = np.meshgrid(*[special] * 2, indexing="ij")
    columns = []
    for k in range(count):
        grid = grids[k].ravel() if k < 2 else np.roll(grids[0].ravel(), 5)
        columns.append(np.concatenate([grid, exact.numbers(kind, n, seed + k, spread=12 if kind == "f16" else 30)]))
    if count == 3:  # addends near the negated product, where cancellation shows the low half of it
        with np.errstate(all="ignore"):
            a, b = (c.view(FLOAT[kind]).astype(np.float64) for c in columns[:2])
            near = np.asarray(-(a * b)).astype(FLOAT[kind]).view(columns[0].dtype)
        columns[2] = np.where(np.arange(len(near)) % 3 == 0, near, columns[2])
    return columns


OPERATIONS = [("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)]


@pytest.mark.parametrize(
    ("kind", "operation", "count"),
    [(k, *o) for k in ("f16", "f32", "f64") for o in OPERATIONS if (k, o[0]) != ("f64", "sub")],
)
def test_one_rounding_to_nearest(execute, exact, kind, operation, count):
    columns = operands(exact, kind, count, 7)
    wide = kind == "f64"
    registers = [f"v[{2 * k + 2}:{2 * k + 3}]" if wide else f"v{2 * k + 2}" for k in range(count)]
    destination = "v[0:1]" if wide else "v0"
    values = {2 * k + 2: c for k, c in enumerate(columns)}
    machine = execute(f"v_{operation}_{kind} {destination}, {', '.join(registers)}", v=values)
    got = machine.vector(0, columns[0].dtype)
    compare(got, [expected(operation, xs, kind, 0, exact) for xs in zip(*columns, strict=True)], kind)


@pytest.mark.parametrize("rounding", [1, 2, 3])
@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize(("operation", "count"), OPERATIONS)
def test_directed_rounding(execute, exact, kind, operation, count, rounding):
    columns = [c[:1100] for c in operands(exact, kind, count, 3)]
    code = f"s_round_mode {rounding | rounding << 2}\nv_{operation}_{kind} v0, " + ", ".join(
        f"v{2 * k + 2}" for k in range(count)
    )
    got = execute(code, v={2 * k + 2: c for k, c in enumerate(columns)}).vector(0, columns[0].dtype)
    compare(got, [expected(operation, xs, kind, rounding, exact) for xs in zip(*columns, strict=True)], kind)


def test_fma_at_the_ends_of_double(execute, exact):
    rng = np.random.default_rng(1)
    tiny, huge = np.float64(2.0**-1000), np.float64(2.0**1000)
    a = rng.standard_normal(400) * np.where(rng.random(400) < 0.5, tiny, huge)
    b = rng.standard_normal(400) * np.where(rng.random(400) < 0.5, 2.0**-60, 2.0**20)
    c = rng.standard_normal(400) * np.where(rng.random(400) < 0.5, 2.0**-1060, huge)
    columns = [x.view(np.uint64) for x in (a, b, c)]
    got = execute("v_fma_f64 v[0:1], v[2:3], v[4:5], v[6:7]", v={2: columns[0], 4: columns[1], 6: columns[2]})
    wanted = [expected("fma", xs, "f64", 0, exact) for xs in zip(*columns, strict=True)]
    compare(got.vector(0, np.uint64), wanted, "f64")


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_reversed_and_directx_forms(execute, kind):
    dtype = FLOAT[kind]
    a, b, c = (np.resize(np.array(x, dtype), 64) for x in ([0.0, 1.5, np.inf, np.nan], [np.inf, 2.0, 0.0], [7, -0.0]))
    got = execute(f"v_subrev_{kind} v0, v2, v4", v={2: a, 4: b}).vector(0, dtype)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, b - a)
        product = np.where((a == 0) | (b == 0), dtype(0), a * b)
        fused = np.where((a == 0) | (b == 0), c, a * b + c)
    if kind == "f32":
        code = "v_mul_dx9_zero_f32 v0, v2, v4\nv_fma_dx9_zero_f32 v1, v2, v4, v6\nv_fmac_dx9_zero_f32 v7, v2, v4"
        machine = execute(code, gpu="gfx1100", v={2: a, 4: b, 6: c, 7: c})
        np.testing.assert_array_equal(machine.vector(0, dtype), product)
        np.testing.assert_array_equal(machine.vector(1, dtype), fused)
        np.testing.assert_array_equal(machine.vector(7, dtype), fused)
    else:
        x, y, z = (np.array(q, dtype) for q in ([1, 2, 3], [4, 5, 6], [7, 8, 9]))
        code = "v_fmac_f16 v0.l, v2.l, v4.l\nv_fmamk_f16 v6.l, v2.l, 0x4200, v4.l\nv_fmaak_f16 v7.l, v2.l, v4.l, 0x4200"
        machine = execute(code, v={2: x, 4: y, 0: z})
        for n, want in ((0, x * y + z), (6, x * dtype(3) + y), (7, x * y + dtype(3))):
            np.testing.assert_array_equal(machine.vector(n, dtype), want)


@pytest.mark.parametrize(
    ("code", "order"),
    [
        ("v_fmac_f32_e32 v0, v2, v4", (2, 4, 0)),
        ("v_fmac_f32_e64 v0, v2, -v4", (2, -4, 0)),
        ("v_fmamk_f32 v0, v2, 0x40490fdb, v4", (2, np.float32(np.pi), 4)),
        ("v_fmaak_f32 v0, v2, v4, 0x40490fdb", (2, 4, np.float32(np.pi))),
        ("v_dual_fmac_f32 v0, v2, v4 :: v_dual_mov_b32 v5, v2", (2, 4, 0)),
    ],
)
def test_which_operand_is_added(execute, code, order):
    rng = np.random.default_rng(5)
    v = {n: rng.standard_normal(64).astype(np.float32) for n in (0, 2, 4)}
    a, b, c = (
        np.full(64, x, np.float64) if isinstance(x, np.floating) else np.sign(x or 1) * v[abs(x)].astype(np.float64)
        for x in order
    )
    got = execute(code, v=v).vector(0, np.float32)
    np.testing.assert_allclose(got, a * b + c, rtol=3e-7, atol=1e-7)


# -- modifiers and modes -----------------------------------------------------------------------------------------------


def test_source_modifiers_act_on_the_sign_bit(execute):
    x = np.array([1.5, -2.0, 0.0, -0.0, np.inf, np.nan], np.float32)
    machine = execute(
        "v_add_f32_e64 v0, -|v2|, v3\nv_cndmask_b32_e64 v1, -v2, |v2|, s0",
        v={2: x, 3: np.full(6, -0.0, np.float32)},
        s={0: 0},
    )
    np.testing.assert_array_equal(machine.vector(0, np.float32)[:3], [-1.5, -2.0, -0.0])
    negated = machine.vector(1, np.uint32)
    np.testing.assert_array_equal(negated, x.view(np.uint32) ^ np.uint32(0x80000000))


def test_clamp(execute):
    x = np.array([-1.0, 0.25, 0.75, 3.0, np.nan, -0.0, np.inf], np.float32)
    clamped = execute("v_add_f32_e64 v0, v2, 0 clamp", v={2: x}).vector(0, np.float32)
    np.testing.assert_array_equal(clamped, np.array([0, 0.25, 0.75, 1, 0, 0, 1], np.float32))
    assert not np.signbit(clamped).any()


@pytest.mark.parametrize(
    ("gpu", "directive", "mode", "scales"),
    [
        ("gfx1151", "", 15, False),
        ("gfx1151", "", 12, False),  # IEEE mode, as compilers for compute have it
        ("gfx1151", "\t\t.amdhsa_ieee_mode 0", 15, False),
        ("gfx1151", "\t\t.amdhsa_ieee_mode 0", 12, True),
        ("gfx1201", "", 15, True),
        ("gfx1201", "", 12, True),
        ("gfx942", "", 12, False),
        ("gfx942", "\t\t.amdhsa_ieee_mode 0", 12, True),
    ],
)
def test_output_scale_where_the_hardware_heeds_it(execute, gpu, directive, mode, scales):
    """Before RDNA 4 ignored where denormal results are kept and in IEEE mode (ISA guides, "Output Modifiers")."""
    x = np.array([-1.0, 0.25, 0.75, 3.0, np.nan, -0.0, np.inf, 2.0**-126], np.float32)
    for text, factor in (("mul:2", 2), ("mul:4", 4), ("div:2", 0.5)):
        code = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), {mode}\nv_mul_f32_e64 v0, v2, 1.0 {text}"
        lanes = 64 if gpu == "gfx942" else 32
        got = execute(code, gpu=gpu, v={2: x}, directives=directive, lanes=lanes).vector(0, np.float32)
        want = x * np.float32(factor) if scales else x.copy()
        if scales:
            want[np.abs(want) < 2.0**-126] = 0
        np.testing.assert_array_equal(got.view(np.uint32)[~np.isnan(x)], want.view(np.uint32)[~np.isnan(x)])


def test_denormals_follow_the_mode(execute):
    x = np.array([2.0**-140, -(2.0**-140), 2.0**-126, 0.0], np.float32)
    kept = execute("v_add_f32 v0, v2, v2", v={2: x}).vector(0, np.float32)
    np.testing.assert_array_equal(kept, x * 2)
    flushed = execute("s_denorm_mode 12\nv_mul_f32 v0, 1.0, v2\nv_mul_f32 v1, 0.5, v2", v={2: x})
    np.testing.assert_array_equal(flushed.vector(0, np.uint32), [0, 0x80000000, 0x800000, 0])
    np.testing.assert_array_equal(flushed.vector(1, np.uint32), [0, 0x80000000, 0, 0])
    inputs_only = execute("s_denorm_mode 14\nv_mul_f32 v1, 0.5, v2", v={2: x}).vector(1, np.float32)
    np.testing.assert_array_equal(inputs_only, np.array([0, -0.0, 2.0**-127, 0], np.float32))
    back = execute("s_denorm_mode 12\ns_denorm_mode 15\nv_add_f32 v0, v2, v2", v={2: x}).vector(0, np.float32)
    np.testing.assert_array_equal(back, x * 2)
    moved = execute("s_denorm_mode 12\nv_mov_b32 v0, v2", v={2: x}).vector(0, np.float32)
    np.testing.assert_array_equal(moved, x)


def test_mode_register_by_setreg(execute):
    x = np.full(32, 1.0, np.float32)
    small = np.full(32, 2.0**-30, np.float32)
    up = execute(
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 1\n"
        "v_add_f32 v0, v2, v3\n"
        "s_getreg_b32 s4, hwreg(HW_REG_MODE, 0, 4)",
        v={2: x, 3: small},
    )
    assert (up.vector(0, np.float32) == np.nextafter(np.float32(1), np.float32(2))).all()
    assert (up.scalar(4) == 1).all()


def test_overflow_stops_at_the_largest_8_bit_float_if_the_mode_says_so(execute):
    x = np.array([1000.0, -1e9, np.inf, 448.0], np.float32)
    code = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\nv_cvt_pk_fp8_f32 v0.l, v1, v1"
    machine = execute(code, gpu="gfx1201", v={1: x})
    np.testing.assert_array_equal(machine.vector(0, np.uint16) & 0xFF, [0x7E, 0xFE, 0x7F, 0x7E])


def test_nan_is_quieted_and_kept(execute):
    signalling = np.full(32, 0x7F812345, np.uint32)
    for code in ("v_add_f32 v0, v2, 1.0", "v_mul_f32 v0, v2, v2", "v_fma_f32 v0, v2, 1.0, 1.0", "v_max_f32 v0, v2, v2"):
        assert (execute(code, v={2: signalling}).vector(0, np.uint32) == 0x7FC12345).all(), code


# -- minimum, maximum, median ------------------------------------------------------------------------------------------

NAN = {  # a quiet and a signalling NaN, and the bit that tells them apart
    "f16": (0x7E01, 0x7C01, 0x200),
    "f32": (0x7FC00001, 0x7F800001, 0x400000),
    "f64": (0x7FF8000000000001, 0x7FF0000000000001, 1 << 51),
}


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
@pytest.mark.parametrize(
    ("name", "gpu", "rule"),
    [
        ("max", "gfx1151", "ieee"),
        ("min", "gfx1151", "ieee"),
        ("max_num", "gfx1201", "num"),
        ("min_num", "gfx1201", "num"),
        ("maximum", "gfx1201", "propagate"),
        ("minimum", "gfx1201", "propagate"),
        ("max", "gfx1201", "num"),
    ],
)
def test_min_and_max(execute, exact, kind, name, gpu, rule):
    quiet_nan, signalling, quiet_bit = NAN[kind]
    size = FLOAT[kind](0).itemsize
    numbers = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf], FLOAT[kind]).view(f"u{size}")
    values = np.concatenate([numbers, np.array([quiet_nan, signalling, 1], numbers.dtype)])
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    largest = name.startswith("max")

    def wanted(x, y):
        nan = [v for v in (x, y) if v in (quiet_nan, signalling)]
        if rule == "propagate" and nan:
            return (signalling if signalling in nan else nan[0]) | quiet_bit
        if rule == "ieee" and signalling in nan:
            return signalling | quiet_bit
        if len(nan) == 2:
            return x | quiet_bit
        if nan:
            return y if x in nan else x

        def key(bits):
            value = exact.decode(bits, kind)
            return float(value) if value else 0.0, not bits >> (8 * size - 1)

        return max(x, y, key=key) if largest else min(x, y, key=key)

    registers = "v[0:1], v[2:3], v[4:5]" if kind == "f64" else "v0, v2, v4"
    got = execute(f"v_{name}_{kind} {registers}", gpu=gpu, v={2: a, 4: b}).vector(0, a.dtype)
    want = [wanted(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(got, np.array(want, a.dtype))


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_three_operand_order(execute, kind):
    rng = np.random.default_rng(2)
    a, b, c = (rng.integers(-3, 4, 300).astype(FLOAT[kind]) for _ in range(3))
    table = {
        "min3": np.minimum(np.minimum(a, b), c), "max3": np.maximum(np.maximum(a, b), c),
        "med3": np.sort([a, b, c], axis=0)[1], "minmax": np.maximum(np.minimum(a, b), c),
        "maxmin": np.minimum(np.maximum(a, b), c),
    }  # fmt: skip
    for name, want in table.items():
        for gpu, suffix in (("gfx1100", ""), ("gfx1201", "_num")):
            got = execute(f"v_{name}{suffix}_{kind} v0, v1, v2, v3", gpu=gpu, v={1: a, 2: b, 3: c}).vector(
                0, FLOAT[kind]
            )
            np.testing.assert_array_equal(got, want, err_msg=name)
    table = {
        "minimum3": table["min3"], "maximum3": table["max3"], "minimummaximum": table["minmax"],
        "maximumminimum": table["maxmin"],
    }  # fmt: skip
    for name, want in table.items():
        got = execute(f"v_{name}_{kind} v0, v1, v2, v3", gpu="gfx1201", v={1: a, 2: b, 3: c}).vector(0, FLOAT[kind])
        np.testing.assert_array_equal(got, want, err_msg=name)


def test_median_with_nan_is_the_minimum_of_the_others(execute):
    x = {
        1: np.array([np.nan, 1, 5], np.float32),
        2: np.array([2, np.nan, 3], np.float32),
        3: np.array([1, 7, np.nan], np.float32),
    }
    np.testing.assert_array_equal(
        execute("v_med3_num_f32 v0, v1, v2, v3", gpu="gfx1201", v=x).vector(0, np.float32), [1, 1, 3]
    )


# -- exponents and fractions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_exponents_and_rounding_to_integers(execute, exact, kind):
    bits = np.concatenate([np.array(SPECIAL[kind], exact.numbers(kind, 1, 0).dtype), exact.numbers(kind, 500, 11, 8)])
    x = bits.view(FLOAT[kind])
    register, destination = ("v[2:3]", "v[0:1]") if kind == "f64" else ("v2", "v0")

    def run(name, out=FLOAT[kind], to=destination):
        return execute(f"{name} {to}, {register}", v={2: bits}).vector(0, out)

    finite = np.isfinite(x)
    whole = [exact.decode(int(b), kind) for b in bits[finite]]
    for name, function in {"trunc": math.trunc, "ceil": math.ceil, "floor": math.floor, "rndne": round}.items():
        got = run(f"v_{name}_{kind}")
        assert [int(g) for g in got[finite]] == [function(w) for w in whole], name
        np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(x[got == 0]))
        np.testing.assert_array_equal(got[~finite], x[~finite])
    fraction = run(f"v_fract_{kind}")
    assert ((fraction[finite] >= 0) & (fraction[finite] < 1)).all()
    mantissa = run(f"v_frexp_mant_{kind}")
    exponent = run(f"v_frexp_exp_i{16 if kind == 'f16' else 32}_{kind}", np.int16 if kind == "f16" else np.int32, "v0")
    for w, m, e in zip(whole, mantissa[finite], exponent[finite], strict=True):
        assert Fraction(float(m)) * Fraction(2) ** int(e) == Fraction(w)
        assert w == 0 or 0.5 <= abs(m) < 1
    assert (exponent[~finite] == 0).all()
    power = np.resize(np.array([-160, -149, -30, -2, 0, 3, 100, 200, 2000, -2000], np.int32), len(x))
    if kind == "f16":
        power = power.astype(np.int16)
    third = "v4"
    scaled = execute(f"v_ldexp_{kind} {destination}, {register}, {third}", v={2: bits, 4: power}).vector(0, bits.dtype)
    for b, p, got in zip(bits, power, scaled, strict=True):
        value = exact.decode(int(b), kind)
        if isinstance(value, Fraction):
            assert int(got) == exact.encode(value * Fraction(2) ** int(p), kind)

"""Scalar floating point of gfx11.5 and gfx12."""

import numpy as np
import pytest


def test_scalar_floats(execute):
    x = np.array([1.5, -2.25, 0.0, 3e38, np.inf], np.float32)
    y = np.array([0.5, 3.0, -0.0, 3e38, -np.inf], np.float32)
    with np.errstate(all="ignore"):
        table = {"s_add_f32": x + y, "s_sub_f32": x - y, "s_mul_f32": x * y, "s_max_f32": np.maximum(x, y)}
    for name, want in table.items():
        got = execute(f"{name} s0, s2, s4", s={2: x, 4: y}).scalar(0, np.float32)
        np.testing.assert_array_equal(got, want, err_msg=name)
    machine = execute(
        "s_cmp_nlt_f32 s2, s4\ns_fmac_f32 s6, s2, s4\ns_cvt_i32_f32 s7, s2\ns_cvt_f32_u32 s8, s7\ns_floor_f32 s9, s2\n"
        "s_cvt_f16_f32 s10, s2\ns_add_f16 s11, s10, s10\ns_cvt_pk_rtz_f16_f32 s12, s2, s4\ns_cvt_hi_f32_f16 s13, s12",
        s={2: x[:2], 4: y[:2], 6: np.ones(2, np.float32)},
    )
    np.testing.assert_array_equal(machine.waves.scc, [True, False])
    np.testing.assert_array_equal(machine.scalar(6, np.float32), x[:2] * y[:2] + 1)
    np.testing.assert_array_equal(machine.scalar(7, np.int32), [1, -2])
    np.testing.assert_array_equal(machine.scalar(8, np.float32), [1, 4294967296.0])
    np.testing.assert_array_equal(machine.scalar(9, np.float32), [1, -3])
    np.testing.assert_array_equal(machine.scalar(10).astype(np.uint16).view(np.float16), [1.5, -2.25])
    np.testing.assert_array_equal(machine.scalar(11), np.array([3, -4.5], np.float16).view(np.uint16))
    np.testing.assert_array_equal(machine.scalar(13, np.float32), y[:2])
    machine = execute(
        "v_s_rcp_f32 s0, s2\nv_s_sqrt_f32 s1, |s2|\nv_s_exp_f32 s4, 2.0",
        gpu="gfx1201",
        s={2: np.array([-4.0], np.float32)},
    )
    assert [machine.scalar(n, np.float32)[0] for n in (0, 1, 4)] == [-0.25, 2.0, 4.0]


@pytest.mark.parametrize(("ieee", "want"), [(1, 0x7FC00123), (0, 0x3F800000)])
def test_extrema_of_a_signalling_nan(execute, ieee, want):
    """Made quiet in gfx11.5's IEEE mode; without it the other operand wins, as on gfx12."""
    given = {2: np.array([0x7F800123], np.uint32), 4: np.array([1], np.float32)}
    mode = f".amdhsa_ieee_mode {ieee}"
    code = "s_max_f32 s0, s2, s4\ns_min_f32 s1, s4, s2"
    machine = execute(code, gpu="gfx1151", s=given, directives=mode)
    assert [int(machine.scalar(n)[0]) for n in (0, 1)] == [want] * 2


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_float_compares(execute, kind):
    dtype = {"f32": np.float32, "f16": np.float16}[kind]
    a, b = (g.ravel() for g in np.meshgrid(*[np.array([0, -0.0, 1, -1, np.inf, np.nan], dtype)] * 2))
    unordered = np.isnan(a) | np.isnan(b)
    table = {
        "lt": a < b,
        "eq": a == b,
        "le": a <= b,
        "gt": a > b,
        "lg": (a < b) | (a > b),
        "ge": a >= b,
        "o": ~unordered,
    }
    opposite = {"lt": "nlt", "eq": "neq", "le": "nle", "gt": "ngt", "lg": "nlg", "ge": "nge", "o": "u"}
    raw = [x.view(f"u{dtype(0).itemsize}").astype(np.uint64) for x in (a, b)]
    for name, want in table.items():
        for spelled, value in ((name, want), (opposite[name], ~want)):
            flag = execute(f"s_cmp_{spelled}_{kind} s2, s4", s={2: raw[0], 4: raw[1]}).waves.scc
            np.testing.assert_array_equal(flag, value, err_msg=spelled)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_float_arithmetic(execute, kind):
    dtype = {"f32": np.float32, "f16": np.float16}[kind]
    a = np.array([1.5, -2.5, 0.0, 7, np.nan, 3], dtype)
    b = np.array([2.5, 0.5, -0.0, 7, 1, np.nan], dtype)
    raw = {2: a, 4: b}
    raw = {n: x.view(f"u{dtype(0).itemsize}").astype(np.uint64) for n, x in raw.items()}

    def run_one(code, gpu):
        bits = execute(code, gpu=gpu, s={**raw, 0: raw[2]}).scalar(0)
        assert kind == "f32" or not (bits >> 16).any()  # a 16-bit result clears the upper half
        return bits.astype(f"u{dtype(0).itemsize}").view(dtype)

    with np.errstate(invalid="ignore"):
        two = {"add": a + b, "sub": a - b, "mul": a * b, "fmac": a * b + a}
    extrema = {"max": np.fmax(a, b), "min": np.fmin(a, b)}
    propagating = {"maximum": np.maximum(a, b), "minimum": np.minimum(a, b)}
    for name, want in {**two, **extrema}.items():
        np.testing.assert_array_equal(run_one(f"s_{name}_{kind} s0, s2, s4", "gfx1151"), want, err_msg=name)
    for name, want in {**{f"{k}_num": v for k, v in extrema.items()}, **propagating}.items():
        np.testing.assert_array_equal(run_one(f"s_{name}_{kind} s0, s2, s4", "gfx1201"), want, err_msg=name)
    one = {"trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rndne": np.rint}
    for name, function in one.items():
        np.testing.assert_array_equal(run_one(f"s_{name}_{kind} s0, s2", "gfx1151"), function(a), err_msg=name)


def test_float_constants_and_conversions(execute):
    s = {2: np.array([1.5], np.float32), 4: np.array([2.0], np.float32)}
    machine = execute(
        "s_fmamk_f32 s0, s2, 0x40400000, s4\ns_fmaak_f32 s1, s2, s4, 0x40400000\ns_cvt_f32_i32 s5, -7\n"
        "s_cvt_u32_f32 s6, s2\ns_cvt_f16_f32 s7, s2\ns_cvt_f32_f16 s8, s7",
        s=s,
    )
    assert [machine.scalar(n, np.float32)[0] for n in (0, 1, 5, 8)] == [6.5, 6.0, -7.0, 1.5]
    assert machine.scalar(6)[0] == 1


@pytest.mark.parametrize("mode", range(4))
def test_denormals(execute, mode):
    """Bit 0 of the mode keeps those of operands, bit 1 those of results, but a minimum or maximum keeps its own.

    What is denormal is found before it is rounded as one (measured on gfx1201).
    """
    keeps_operands, keeps_results = bool(mode & 1), bool(mode & 2)
    below, least, tiny = 0x3F7FFFFF, 0x00800000, 0x80000123
    code = f"""s_denorm_mode {mode | mode << 2}
    s_mul_f32 s10, s0, s1
    s_fmac_f32 s11, s0, s1
    s_fmaak_f32 s12, s0, s1, 0
    s_max_num_f32 s13, s2, s3
    s_minimum_f32 s14, s2, 0
    s_cvt_f16_f32 s15, s4
    s_cvt_hi_f32_f16 s16, s5
    s_cvt_pk_rtz_f16_f32 s17, s6, s4
    s_mul_f16 s18, s7, s8"""
    given = dict(enumerate([below, least, tiny, 0xBF800000, 0x387FE000, 0x80010001, 0x33800000, 0x3BFF, 0x400]))
    given |= {11: 0}
    machine = execute(code, gpu="gfx1201", s={n: np.array([x], np.uint32) for n, x in given.items()})
    got = [int(machine.scalar(n)[0]) for n in range(10, 19)]
    product, extreme = least * keeps_results, tiny if keeps_operands else 1 << 31
    halves = [0x400 * keeps_results, 0xB3800000 if keeps_operands else 1 << 31, 0x03FF0001 * keeps_results]
    assert got == [product, product, product, extreme, extreme, *halves, 0x400 * keeps_results]


def test_nan_made_half(execute):
    """Its first ten bits stay and it becomes quiet, whatever the others are (measured on gfx1201)."""
    nan = np.array([0x7F800001, 0xFF801FFF, 0x7F8D4303, 0xFFC02000], np.uint32)
    machine = execute("s_cvt_f16_f32 s0, s2", s={2: nan})
    np.testing.assert_array_equal(machine.scalar(0), [0x7E00, 0xFE00, 0x7E6A, 0xFE01])
    vector = execute("v_cvt_f16_f32_e32 v1, v0", v={0: np.tile(nan, 8)})
    np.testing.assert_array_equal(vector.vector(1, np.uint16)[:4], [0x7E00, 0xFE00, 0x7E6A, 0xFE01])


def test_vector_conversion_to_a_denormal_half(execute):
    """Found to be one before it is rounded as one, where results flush, as by s_cvt_f16_f32."""
    code = "s_denorm_mode 0\nv_cvt_f16_f32_e32 v1, v0\ns_denorm_mode 15\nv_cvt_f16_f32_e32 v2, v0"
    machine = execute(code, v={0: np.tile(np.array([0x387FE000, 0x387FF000], np.uint32), 16)})
    assert [machine.vector(n, np.uint16)[:2].tolist() for n in (1, 2)] == [[0, 0x400], [0x400, 0x400]]


@pytest.mark.parametrize("mode", range(4))
def test_vector_functions_to_scalars_in_f16(execute, mode):
    """They follow the denormal mode and FP16_OVFL (bjacob/goc, by values of gfx1201)."""
    code = f"""s_denorm_mode {mode << 2}
    v_s_sqrt_f16 s10, s0
    v_s_rcp_f16 s11, s1
    v_s_rcp_f16 s12, s2
    s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
    v_s_rcp_f16 s13, s2
    v_s_exp_f16 s14, s3"""
    given = {n: np.array([x], np.uint32) for n, x in enumerate([1, 0x7BFF, 0x8000, 0x7C00])}
    machine = execute(code, gpu="gfx1201", s=given)
    want = [0x0C00 * (mode & 1), 0x0100 * (mode >> 1), 0xFC00, 0xFBFF, 0x7C00]
    assert [int(machine.scalar(n)[0]) for n in range(10, 15)] == want

"""The clamp modifier where results are integers, masks, or come in pairs with a mask."""

import numpy as np
import pytest

M16, M32, M64 = 0xFFFF, 0xFFFFFFFF, (1 << 64) - 1
EDGES = [0, 1, 5, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFF00FF00, 0xFFFFFFFE, 0xFFFFFFFF]
GPUS = ("gfx1151", "gfx1201", "gfx942", "gfx908")


def signed(x: int, bits: int) -> int:
    return (x & (1 << bits) - 1) - ((x & (1 << bits) - 1) >> (bits - 1) << bits)


def columns(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    drawn = [[*rng.permutation(EDGES), *rng.integers(0, 1 << 32, 52)] for _ in range(count)]
    return [np.array(x, np.uint32) for x in drawn]


def parts(x: int, bits: int, count: int) -> list[int]:
    return [x >> bits * k & (1 << bits) - 1 for k in range(count)]


def differences(a: int, b: int, bits: int, masked: bool = False) -> int:
    pairs = zip(parts(a, bits, 32 // bits), parts(b, bits, 32 // bits), strict=True)
    return sum(abs(x - y) for x, y in pairs if y or not masked)


SUMS = {
    "v_sad_u8": lambda a, b: differences(a, b, 8),
    "v_sad_hi_u8": lambda a, b: differences(a, b, 8) << 16,
    "v_msad_u8": lambda a, b: differences(a, b, 8, masked=True),
    "v_sad_u16": lambda a, b: differences(a, b, 16),
    "v_sad_u32": lambda a, b: differences(a, b, 32),
}


@pytest.mark.parametrize("gpu", GPUS)
def test_sums_of_differences_stop_at_the_largest_number(execute, gpu):
    lanes = 64 if gpu.startswith("gfx9") else 32
    a, b, c = columns(3)
    lines = [f"{name} v{4 + k}, v1, v2, v3 clamp" for k, name in enumerate(SUMS)]
    machine = execute("\n".join(lines), gpu=gpu, lanes=lanes, v={1: a, 2: b, 3: c})
    for k, fn in enumerate(SUMS.values()):
        want = [min(fn(int(x), int(y)) + int(z), M32) for x, y, z in zip(a, b, c, strict=True)]
        np.testing.assert_array_equal(machine.vector(4 + k, np.uint32), want)


def test_sliding_sums_stop_too(execute):
    low, high, b, c, d = columns(5)
    a = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    old = c.astype(np.uint64) | d.astype(np.uint64) << np.uint64(32)
    code = """v_qsad_pk_u16_u8 v[8:9], v[2:3], v4, v[6:7] clamp
    v_mqsad_pk_u16_u8 v[10:11], v[2:3], v4, v[6:7] clamp
    v_mqsad_u32_u8 v[12:15], v[2:3], v4, v[16:19] clamp"""
    fours = {16 + k: x for k, x in enumerate((low, high, c, d))}
    machine = execute(code, gpu="gfx1151", v={2: a, 4: b, 6: old, **fours})
    for n, masked in ((8, False), (10, True)):
        got = machine.vector(n, np.uint64)
        for lane, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), old.tolist(), strict=True)):
            want = [differences(x >> 8 * k & M32, y, 8, masked) + part for k, part in enumerate(parts(z, 16, 4))]
            assert parts(int(got[lane]), 16, 4) == [min(w, M16) for w in want]
    for k, column in enumerate(fours.values()):
        found = [differences(int(x) >> 8 * k & M32, int(y), 8, masked=True) for x, y in zip(a, b, strict=True)]
        want = [min(f + int(z), M32) for f, z in zip(found, column, strict=True)]
        np.testing.assert_array_equal(machine.vector(12 + k, np.uint32), want)


@pytest.mark.parametrize(
    "text",
    [f"v_{name}_{kind} v0, v1, v2, v3" for name in ("min3", "max3", "med3") for kind in ("u16", "i16")]
    + ["v_cvt_pk_u8_f32 v0, v1, v2, v3"],
)
def test_what_cannot_pass_its_range(execute, text):
    a, b, c = columns(3)
    given = {0: a, 1: np.arange(64, dtype=np.float32) * 8 - 99 if "cvt" in text else a, 2: b, 3: c}
    plain, clamped = (execute(t, gpu="gfx1201", v=given).vector(0, np.uint32) for t in (text, f"{text} clamp"))
    np.testing.assert_array_equal(plain, clamped)
    assert (plain != a).any()


@pytest.mark.parametrize("gpu", GPUS)
def test_comparisons(execute, gpu):
    """With clamp a quiet NaN raises an exception as well; the mask is the same."""
    lanes = 64 if gpu.startswith("gfx9") else 32
    x = np.array([0, 1, -2, np.nan, np.inf, 3, -np.inf, 2], np.float32)
    for name in ("v_cmp_lt_f32_e64", "v_cmp_u_f32_e64", "v_cmp_ngt_f32_e64"):
        masks = [
            execute(f"{name} s[4:5], v1, 1.0{end}" if lanes == 64 else f"{name} s4, v1, 1.0{end}", gpu=gpu, lanes=lanes,
                    v={1: np.resize(x, lanes)}).mask(4)
            for end in ("", " clamp")
        ]  # fmt: skip
        np.testing.assert_array_equal(*masks)
        assert masks[0].any()


def wide(columns_of: list[np.ndarray]) -> np.ndarray:
    return columns_of[0].astype(np.uint64) | columns_of[1].astype(np.uint64) << np.uint64(32)


@pytest.mark.parametrize("kind", ["u64_u32", "i64_i32"])
def test_wide_products(execute, kind):
    a, b, *c = columns(4)
    c = wide(c)
    a[:6], b[:6] = M32 if kind[0] == "u" else 0x80000000, [M32, 0x80000000, 0x7FFFFFFF] * 2
    c[:6] = [M64] * 3 + [1 << 63] * 3
    bits = 32 if kind[0] == "i" else 0
    as_is = (lambda x, n: signed(int(x), n)) if bits else (lambda x, n: int(x))
    low, high = (-(1 << 63), (1 << 63) - 1) if bits else (0, M64)
    machine = execute(f"v_mad_{kind} v[8:9], s4, v1, v2, v[4:5] clamp", gpu="gfx1151", v={1: a, 2: b, 4: c})
    exact = [as_is(x, 32) * as_is(y, 32) + as_is(z, 64) for x, y, z in zip(a, b, c, strict=True)]
    want = [min(max(e, low), high) & M64 for e in exact]
    assert machine.vector(8, np.uint64).tolist() == want
    np.testing.assert_array_equal(machine.mask(4), [bool(e >> 64 & 1) for e in exact])
    machine = execute(f"v_mad_nc_{kind} v[8:9], v1, v2, v[4:5] clamp", gpu="gfx1250", v={1: a, 2: b, 4: c})
    assert machine.vector(8, np.uint64).tolist() == want
    assert any(e != min(max(e, low), high) for e in exact)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx942"])
@pytest.mark.parametrize("kind", ["u32_u24", "i32_i24"])
def test_products_of_24_bits(execute, gpu, kind):
    lanes = 64 if gpu == "gfx942" else 32
    a, b = columns(2)
    a[:4], b[:4] = 0x007FFFFF, [0x00800000, 0x007FFFFF, 3, 0x00FFFFFF]
    number = (lambda x: signed(int(x) & 0xFFFFFF, 24)) if kind[0] == "i" else (lambda x: int(x) & 0xFFFFFF)
    low, high = (-(1 << 31), (1 << 31) - 1) if kind[0] == "i" else (0, M32)
    machine = execute(f"v_mul_{kind} v0, v1, v2 clamp", gpu=gpu, lanes=lanes, v={1: a, 2: b})
    exact = [number(x) * number(y) for x, y in zip(a, b, strict=True)]
    assert machine.vector(0, np.uint32).tolist() == [min(max(e, low), high) & M32 for e in exact]
    assert any(e != min(max(e, low), high) for e in exact)


def test_carries_with_dpp(execute):
    """Lanes of a row that the mask leaves out keep what they had; the others are clamped as without DPP."""
    a, b = columns(2)
    given = {0: a, 1: a, 2: b}
    tail = "clamp quad_perm:[0,1,2,3] row_mask:0x5 bank_mask:0xf"
    got = execute(f"v_add_co_u32_e64_dpp v0, s4, v1, v2 {tail}", gpu="gfx1151", v=given).vector(0, np.uint32)
    rows = np.arange(64) // 16 % 2 == 0
    want = np.where(rows, np.minimum(a.astype(np.uint64) + b, M32), a)
    np.testing.assert_array_equal(got, want)


def test_scaled_operands_of_divisions(execute):
    x = np.array([0.25, 3.0, -2.0, 1.0], np.float32)
    got = execute("v_div_scale_f32 v0, s4, v1, v1, v2 clamp", gpu="gfx1151", v={1: x, 2: np.ones(4, np.float32)})
    np.testing.assert_array_equal(got.vector(0, np.float32)[:4], [0.25, 1, 0, 1])


HALVES = {
    "gfx942": ["v_cvt_pkrtz_f16_f32", "v_pack_b32_f16"], "gfx950": ["v_cvt_pk_f16_f32", "v_cvt_pk_bf16_f32"],
    "gfx1151": ["v_cvt_pk_rtz_f16_f32", "v_pack_b32_f16"], "gfx1201": ["v_pk_max_num_f16"],
    "gfx1250": ["v_cvt_pk_f16_f32", "v_cvt_pk_bf16_f32", "v_pk_mul_bf16", "v_pk_max_num_bf16", "v_sqrt_bf16"],
}  # fmt: skip


def as_floats(words: np.ndarray, bf16: bool) -> np.ndarray:
    halves = np.ascontiguousarray(words).view(np.uint16)
    return (halves.astype(np.uint32) << 16).view(np.float32) if bf16 else halves.view(np.float16).astype(np.float32)


@pytest.mark.parametrize(("gpu", "name"), [(gpu, name) for gpu, names in HALVES.items() for name in names])
def test_pairs_of_floats_stay_within_0_and_1(execute, gpu, name):
    """LLVM folds the limits of a pair into the conversion that makes it."""
    lanes, bf16, rng = 64 if gpu.startswith("gfx9") else 32, "bf16" in name, np.random.default_rng(4)
    if name.endswith("_f32"):
        a, b = (rng.standard_normal(lanes).astype(np.float32) * 2 for _ in range(2))
        a[:4] = np.nan, np.inf, -np.inf, -0.0
    else:
        wide = (rng.standard_normal((2, 2 * lanes)) * 2).astype(np.float32)
        wide[0, :4] = np.nan, np.inf, -np.inf, -0.0
        a, b = (wide.view(np.uint32) >> 16).astype(np.uint16) if bf16 else wide.astype(np.float16)
        a, b = a.view(np.uint32), b.view(np.uint32)
    sources = "v1" if "sqrt" in name else "v1, v2"
    text = f"{name} v8, {sources}\n{name} v9, {sources} clamp"
    none = np.zeros(lanes, np.uint32)
    machine = execute(text, gpu=gpu, lanes=lanes, v={1: a, 2: b, 8: none, 9: none})
    plain, got = (as_floats(machine.vector(n, np.uint32), bf16) for n in (8, 9))
    want = np.fmin(np.fmax(plain, 0), 1)
    np.testing.assert_array_equal(got.view(np.uint32), (want + np.float32(0)).view(np.uint32))
    assert (want != plain).sum() > 10


def test_pairs_of_floats_are_scaled_by_omod(execute):
    a, b = (np.array([0.3, -1.5, 7, 60000] * 8, np.float32) * k for k in (1, 0.5))
    code = "v_cvt_pk_rtz_f16_f32 v8, v1, v2\nv_cvt_pk_rtz_f16_f32 v9, v1, v2 mul:2"
    for gpu, factor, modes in (("gfx1151", 2, "\t\t.amdhsa_ieee_mode 0\ns_denorm_mode 0"), ("gfx1201", 1, "")):
        before, _, mode = modes.partition("\n")
        machine = execute(f"{mode}\n{code}", gpu=gpu, v={1: a, 2: b}, directives=before)
        plain, got = (machine.vector(n, np.uint32).view(np.float16) for n in (8, 9))
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, plain * np.float16(factor), err_msg=gpu)
    for name in ("v_cvt_pk_rtz_f16_f32", "v_pack_b32_f16"):  # RDNA 4 ignores both
        machine = execute(f"{name} v8, v1, v2\n{name} v9, v1, v2 clamp", gpu="gfx1201", v={1: a, 2: b})
        np.testing.assert_array_equal(machine.vector(8, np.uint32), machine.vector(9, np.uint32))
    code = "v_rcp_bf16_e64 v8, v1\nv_rcp_bf16_e64 v9, v1 mul:4 clamp"
    machine = execute(code, gpu="gfx1250", v={1: a.view(np.uint32) >> 16, 8: b * 0, 9: b * 0})
    plain, got = (as_floats(machine.vector(n, np.uint32), True) for n in (8, 9))
    np.testing.assert_array_equal(got, np.clip(plain * 4, 0, 1))


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_scalar_results_of_the_vector_unit_are_modified(execute, kind):
    x = {"f16": np.array([0x4400], np.uint32), "f32": np.array([4], np.float32).view(np.uint32)}[kind]
    code = f"v_s_rcp_{kind} s1, s0 mul:2\nv_s_sqrt_{kind} s2, s0 clamp\nv_s_rcp_{kind} s3, -s0 clamp"
    machine = execute(code, gpu="gfx1201", s={0: x})
    half, one = {"f16": (0x3800, 0x3C00), "f32": (0x3F000000, 0x3F800000)}[kind]
    assert [int(machine.scalar(n, np.uint32)[0]) for n in (1, 2, 3)] == [half, one, 0]


def test_small_floats_become_no_more_than_1(execute):
    codes = np.arange(64, dtype=np.uint32) * 0x0401 & 0xFFFF
    for kind in ("fp8", "bf8"):
        one, two = f"v_cvt_f32_{kind}_e64", f"v_cvt_pk_f32_{kind}_e64"
        code = f"{one} v8, v1\n{one} v9, v1 clamp\n{two} v[10:11], v1\n{two} v[12:13], v1 clamp"
        machine = execute(code, gpu="gfx942", lanes=64, v={1: codes})
        for n, plain in {9: 8, 12: 10, 13: 11}.items():
            want = np.fmin(np.fmax(machine.vector(plain, np.float32), 0), 1)
            np.testing.assert_array_equal(machine.vector(n, np.float32), want)


@pytest.mark.parametrize(
    "text",
    [
        "v_cvt_i32_f32_e64 v0, v1", "v_cvt_u32_f32_e64 v0, v1", "v_cvt_pk_i16_f32 v0, v1, v2",
        "v_frexp_exp_i32_f32_e64 v0, v1", "v_cvt_pk_norm_i16_f32 v0, v1, v2", "v_pk_max_i16 v0, v1, v2",
        "v_pk_min_u16 v0, v1, v2",
    ],
)  # fmt: skip
def test_integers_that_are_limited_in_any_case(execute, text):
    a, b = (np.float32(1e6) * np.random.default_rng(k).standard_normal(64).astype(np.float32) ** 9 for k in (1, 2))
    plain, clamped = (execute(t, v={1: a, 2: b}).vector(0, np.uint32) for t in (text, f"{text} clamp"))
    np.testing.assert_array_equal(plain, clamped)


def test_sums_that_saturate_before_a_comparison(execute):
    a, b, c = columns(3)
    for name in ("v_add_max_i32", "v_add_min_u32"):
        code = f"{name} v8, v1, v2, v3\n{name} v9, v1, v2, v3 clamp"
        machine = execute(code, gpu="gfx1250", v={1: a, 2: b, 3: c})
        np.testing.assert_array_equal(machine.vector(8, np.uint32), machine.vector(9, np.uint32))


@pytest.mark.parametrize(("kind", "tiny"), [("f32", 2.0**-126), ("f16", 2.0**-14), ("f64", 2.0**-1022)])
def test_output_scale_of_small_numbers(execute, kind, tiny):
    """Zeros and denormals are +0 before they are scaled; what becomes a denormal is a zero of its sign (rocjitsu)."""
    nbytes = int(kind[1:]) // 8
    dtype, bits = np.dtype(f"f{nbytes}"), f"u{nbytes}"
    x = np.array([-0.0, -tiny / 2, tiny / 2, -tiny, tiny, -3, np.inf], dtype)
    registers = {"f16": ("v0.l", "v2.l"), "f32": ("v0", "v2"), "f64": ("v[0:1]", "v[2:3]")}[kind]
    for text, want in (
        ("mul:4", [0, 0, 0, -4 * tiny, 4 * tiny, -12, np.inf]), ("div:2", [0, 0, 0, -0.0, 0, -1.5, np.inf]),
    ):  # fmt: skip
        code = f"s_denorm_mode 15\nv_mul_{kind}_e64 {registers[0]}, {registers[1]}, 1.0 {text}"
        got = execute(code, gpu="gfx1201", v={2: x}).vector(0, dtype)
        np.testing.assert_array_equal(got.view(bits), np.array(want, dtype).view(bits))


def test_output_scale_stops_at_the_largest_half(execute):
    """FP16_OVFL holds for what omod makes, too; infinities stay."""
    x = np.array([65504, -40000, np.inf, 3], np.float16)
    code = "v_add_f16_e64 v0.l, v2.l, 0 mul:2"
    got = execute(code, gpu="gfx1201", v={2: x}, directives="\t\t.amdhsa_fp16_overflow 1").vector(0, np.float16)
    np.testing.assert_array_equal(got, np.array([65504, -65504, np.inf, 6], np.float16))

"""Packed 16-bit arithmetic, mixed precision and dot products: halves, signs, inline constants, accumulation."""

import numpy as np
import pytest

from laneloom.errors import UnknownInstructionError

M32 = 0xFFFFFFFF
rng = np.random.default_rng(21)
A, B, C = (rng.integers(0, 1 << 32, 300).astype(np.uint32) for _ in range(3))
H = [rng.standard_normal(600).astype(np.float16) for _ in range(3)]
P, Q, R = (h.view(np.uint32) for h in H)


def halves(x, dtype):
    return np.ascontiguousarray(x).view(dtype).reshape(-1, 2)


def signed(x, bits):
    return x - (1 << bits) if x >> (bits - 1) & 1 else x


INTEGER = {
    "v_pk_add_u16": (np.uint16, lambda a, b: a + b),
    "v_pk_sub_i16": (np.int16, lambda a, b: a - b),
    "v_pk_mul_lo_u16": (np.uint16, lambda a, b: a * b),
    "v_pk_max_i16": (np.int16, np.maximum),
    "v_pk_max_u16": (np.uint16, np.maximum),
    "v_pk_min_i16": (np.int16, np.minimum),
    "v_pk_min_u16": (np.uint16, np.minimum),
    "v_pk_lshlrev_b16": (np.uint16, lambda n, x: x << (n & 15)),
    "v_pk_lshrrev_b16": (np.uint16, lambda n, x: x >> (n & 15)),
    "v_pk_ashrrev_i16": (np.int16, lambda n, x: x >> (n & 15)),
}


@pytest.mark.parametrize("name", INTEGER)
def test_both_halves(execute, name):
    dtype, function = INTEGER[name]
    got = execute(f"{name} v0, v1, v2", v={1: A, 2: B}).vector(0, np.uint32)
    np.testing.assert_array_equal(halves(got, dtype), function(halves(A, dtype), halves(B, dtype)))


def test_halves_are_chosen_by_op_sel(execute):
    got = execute("v_pk_add_u16 v0, v1, v2 op_sel:[1,0] op_sel_hi:[0,0]", v={1: A, 2: B}).vector(0, np.uint32)
    a, b = halves(A, np.uint16), halves(B, np.uint16)
    np.testing.assert_array_equal(halves(got, np.uint16), np.stack([a[:, 1] + b[:, 0], a[:, 0] + b[:, 0]], 1))


def test_packed_saturation(execute):
    machine = execute(
        "v_pk_add_i16 v0, v1, v2 clamp\nv_pk_sub_u16 v3, v1, v2 clamp\nv_pk_mad_u16 v4, v1, v2, v5 clamp",
        v={1: A, 2: B, 5: C},
    )
    s = halves(A, np.int16).astype(int) + halves(B, np.int16)
    np.testing.assert_array_equal(halves(machine.vector(0, np.uint32), np.int16), np.clip(s, -32768, 32767))
    u = halves(A, np.uint16).astype(int)
    np.testing.assert_array_equal(
        halves(machine.vector(3, np.uint32), np.uint16), np.maximum(u - halves(B, np.uint16), 0)
    )
    wide = u * halves(B, np.uint16) + halves(C, np.uint16)
    np.testing.assert_array_equal(halves(machine.vector(4, np.uint32), np.uint16), np.minimum(wide, 65535))


def test_packed_floats(execute, exact):
    code = (
        "v_pk_add_f16 v0, v1, v2\nv_pk_mul_f16 v3, v1, v2 neg_lo:[1,0] neg_hi:[0,1]\nv_pk_fma_f16 v4, v1, v2, v5\n"
        "v_pk_fmac_f16 v6, v1, v2\nv_pk_max_f16 v7, v1, 0 op_sel_hi:[1,0]\nv_pk_mul_f16 v8, v1, 2.0 op_sel_hi:[1,0]\n"
        "v_pk_add_f16 v9, v1, s2 clamp"
    )
    machine = execute(code, v={1: P, 2: Q, 5: R, 6: R}, s={2: 0x40003C00})
    a, b, c = (halves(x, np.float16) for x in (P, Q, R))
    out = {n: halves(machine.vector(n, np.uint32), np.float16) for n in (0, 3, 4, 6, 7, 8, 9)}
    np.testing.assert_array_equal(out[0], a + b)
    np.testing.assert_array_equal(out[3], np.stack([-a[:, 0] * b[:, 0], a[:, 1] * -b[:, 1]], 1))
    fused = (a.astype(np.float64) * b + c).astype(np.float16)  # exact in float64 for numbers of this size
    np.testing.assert_array_equal(out[4], fused)
    np.testing.assert_array_equal(out[6], fused)
    np.testing.assert_array_equal(out[7], np.maximum(a, np.float16(0)))
    np.testing.assert_array_equal(out[8], a * np.float16(2))
    np.testing.assert_array_equal(out[9], np.clip(a + np.array([1, 2], np.float16), 0, 1))


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1201"])
def test_packed_extrema(execute, gpu):
    a, b = (np.array(x, np.float16) for x in ([1, np.nan, -2, 0.0, 5, 6], [3, 2, np.nan, -0.0, -5, 7]))
    table = {"max_num": np.fmax, "min_num": np.fmin, "maximum": np.maximum, "minimum": np.minimum}
    if gpu == "gfx1100":
        table = {"max": np.fmax, "min": np.fmin}
    for name, function in table.items():
        got = execute(f"v_pk_{name}_f16 v0, v1, v2", gpu=gpu, v={1: a.view(np.uint32), 2: b.view(np.uint32)})
        np.testing.assert_array_equal(
            halves(got.vector(0, np.uint32)[:3], np.float16).ravel(), function(a, b), err_msg=name
        )


def test_packed_multiply_add(execute):
    got = execute("v_pk_mad_i16 v0, v1, v2, v3", v={1: A, 2: B, 3: C}).vector(0, np.uint32)
    a, b, c = (halves(x, np.int16) for x in (A, B, C))
    np.testing.assert_array_equal(halves(got, np.int16), a * b + c)


def test_an_inline_float_fills_the_low_half_only(execute):
    got = execute("v_pk_add_f16 v0, v1, 1.0\nv_pk_add_u16 v2, v1, -1", v={1: P})
    a = halves(P, np.float16)
    np.testing.assert_array_equal(halves(got.vector(0, np.uint32), np.float16), a + np.array([1, 0], np.float16))
    np.testing.assert_array_equal(halves(got.vector(2, np.uint32), np.uint16), halves(P, np.uint16) - np.uint16(1))


def test_pack_and_half_constants(execute):
    machine = execute(
        "v_pack_b32_f16 v0, v1.l, v2.h\nv_add_f16 v3.l, 1.0, v1.h\nv_pack_b32_f16 v4, 1.0, -v1", v={1: P, 2: Q}
    )
    a, b = halves(P, np.float16), halves(Q, np.float16)
    np.testing.assert_array_equal(halves(machine.vector(0, np.uint32), np.float16), np.stack([a[:, 0], b[:, 1]], 1))
    np.testing.assert_array_equal(machine.vector(3, np.float16), a[:, 1] + np.float16(1))
    np.testing.assert_array_equal(
        halves(machine.vector(4, np.uint32), np.float16), np.stack([a[:, 0] * 0 + 1, -a[:, 0]], 1)
    )


def test_pack_makes_halves_canonical(execute):
    """NaNs come out quiet, and denormals as the mode says."""
    x = np.array([0x7C01, 0xFD55, 0x7E00, 0xFC00, 0x3FF, 0x8001, 0x8000], np.uint32)
    want = np.array([0x7E01, 0xFF55, 0x7E00, 0xFC00, 0x3FF, 0x8001, 0x8000], np.uint32)
    got = execute("v_pack_b32_f16 v0, v1, v1\nv_pack_b32_f16 v2, 1, 0xfd01", v={1: x})
    np.testing.assert_array_equal(got.vector(0, np.uint32), want | want << 16)
    np.testing.assert_array_equal(got.vector(2, np.uint32), 0xFF010001)
    want[4:6] = 0, 0x8000
    got = execute("s_denorm_mode 0\nv_pack_b32_f16 v0, v1, v1", v={1: x}).vector(0, np.uint32)
    np.testing.assert_array_equal(got, want | want << 16)


# -- mixed precision ---------------------------------------------------------------------------------------------------


def test_mixed_sources(execute):
    f = rng.standard_normal(300).astype(np.float32)
    a = halves(P, np.float16).astype(np.float64)
    machine = execute("v_fma_mix_f32 v0, v1, v2, -v3 op_sel:[1,0,0] op_sel_hi:[1,0,0]", v={1: P, 2: f, 3: f * 3})
    want = a[:, 1] * f - (f * 3).astype(np.float64)
    np.testing.assert_allclose(machine.vector(0, np.float32), want, rtol=2e-7, atol=1e-7)
    machine = execute(
        "v_fma_mixlo_f16 v0, v1, v2, v3 op_sel_hi:[1,1,0]\nv_fma_mixhi_f16 v4, |v1|, v2, 1.0 op_sel_hi:[1,1,0]",
        v={1: P, 2: Q, 3: f},
    )
    b = halves(Q, np.float16).astype(np.float64)
    low = (a[:, 0] * b[:, 0] + f).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(machine.vector(0, np.float16), low)
    assert (machine.vector(0, np.uint16, 1) == 0xA5A5).all()
    high = (np.abs(a[:, 0]) * b[:, 0] + 1).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(machine.vector(4, np.float16, 1), high)
    assert (machine.vector(4, np.uint16) == 0xA5A5).all()


# -- dot products ------------------------------------------------------------------------------------------------------


def elements(x, bits, is_signed):
    parts = [int(x) >> k & (1 << bits) - 1 for k in range(0, 32, bits)]
    return [signed(p, bits) for p in parts] if is_signed else parts


@pytest.mark.parametrize(("name", "bits"), [("v_dot4_i32_iu8", 8), ("v_dot8_i32_iu4", 4)])
@pytest.mark.parametrize("signs", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_integer_dots(execute, name, bits, signs):
    sums = [
        sum(x * y for x, y in zip(elements(a, bits, signs[0]), elements(b, bits, signs[1]), strict=True))
        + signed(int(c), 32)
        for a, b, c in zip(A, B, C, strict=True)
    ]
    modifier = f" neg_lo:[{signs[0]},{signs[1]},0]" if any(signs) else ""
    got = execute(f"{name} v0, v1, v2, v3{modifier}", v={1: A, 2: B, 3: C}).vector(0, np.uint32)
    np.testing.assert_array_equal(got, [s & M32 for s in sums])
    got = execute(f"{name} v0, v1, v2, 0x7fffff00{modifier} clamp", v={1: A, 2: B}).vector(0, np.int32)
    want = [min(s - signed(int(c), 32) + 0x7FFFFF00, 0x7FFFFFFF) for s, c in zip(sums, C, strict=True)]
    np.testing.assert_array_equal(got, want)


def test_unsigned_dots(execute):
    for name, bits in (("v_dot4_u32_u8", 8), ("v_dot8_u32_u4", 4)):
        got = execute(f"{name} v0, v1, v2, v3", v={1: A, 2: B, 3: C}).vector(0, np.uint32)
        want = [sum(x * y for x, y in zip(elements(a, bits, 0), elements(b, bits, 0), strict=True)) + int(c) & M32
                for a, b, c in zip(A, B, C, strict=True)]  # fmt: skip
        np.testing.assert_array_equal(got, want)


def test_float_dots(execute):
    """Of small positive integers, whose sums are exact on both generations; other numbers: test_dot_pairs.py."""
    a, b = rng.integers(1, 16, (2, 64, 2)).astype(np.float32)
    c = rng.integers(1, 16, 64).astype(np.float32)
    half = [x.astype(np.float16).view(np.uint32)[:, 0] for x in (a, b)]
    short = [np.ascontiguousarray(x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)[:, 0] for x in (a, b)]
    code = "v_dot2_f32_f16 v0, v1, v2, v3\nv_dot2acc_f32_f16 v4, v1, v2\nv_dot2_f32_bf16 v5, v6, v7, v3"
    machine = execute(code, v={1: half[0], 2: half[1], 3: c, 4: c, 6: short[0], 7: short[1]})
    want = c + (a * b).sum(axis=1)
    for n in (0, 4, 5):
        np.testing.assert_array_equal(machine.vector(n, np.float32), want)
    addends = c.astype(np.float16).view(np.uint16), c.view(np.uint32) >> 16
    for kind, (x, y), addend in zip(("f16", "bf16"), (half, short), addends, strict=True):
        code = f"v_dot2_{kind}_{kind} v0, v1, v2, v3 op_sel:[0,0,1,1]"
        machine = execute(code, v={1: x, 2: y, 3: addend.astype(np.uint32) << np.uint32(16)})
        got = machine.vector(0, np.uint16, 1)
        if kind == "f16":
            np.testing.assert_array_equal(got.view(np.float16), want)
        else:
            np.testing.assert_allclose((got.astype(np.uint32) << np.uint32(16)).view(np.float32), want, rtol=2.0**-8)
        assert (machine.vector(0, np.uint16) == 0xA5A5).all()


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_bf16_dot_rounds_to_nearest_even(execute, gpu):
    """And takes denormals for zeros, whatever MODE says (ISA guides)."""
    one, zero = 0x3F80, 0
    a, b = np.array([one, one, 0x0001, 0x0080] * 8, np.uint32), np.array([one, 0x4000, one, 0x3F00] * 8, np.uint32)
    c = np.array([0x3B80, 0x3C40, zero, zero] * 8, np.uint32)  # half and three quarters of the last place
    code = "s_round_mode 10\nv_dot2_bf16_bf16 v0, v1, v2, v3"
    got = execute(code, gpu=gpu, v={1: a, 2: b, 3: c}).vector(0, np.uint16)
    assert got[:4].tolist() == [0x3F80, 0x4001, 0, 0]


def value_of_code(code, kind):
    """A positive finite 8-bit float: fp8 is E4M3, bf8 E5M2."""
    mantissa_bits, bias = (3, 7) if kind == "fp8" else (2, 15)
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize("first", ["fp8", "bf8"])
@pytest.mark.parametrize("second", ["fp8", "bf8"])
def test_8_bit_float_dots(execute, first, second):
    codes = [rng.integers(0, 0x58, 300 * 4).astype(np.uint8) for _ in range(2)]
    a, b = (x.view(np.uint32) for x in codes)
    c = rng.standard_normal(300).astype(np.float32)
    x, y = (
        np.array([value_of_code(int(k), kind) for k in q], np.float32).reshape(-1, 4)
        for q, kind in zip(codes, (first, second), strict=True)
    )
    want = -c
    for k in range(4):
        want = want + x[:, k] * y[:, k]
    code = f"v_dot4_f32_{first}_{second} v0, v1, v2, v3 neg_lo:[0,0,1]"
    got = execute(code, gpu="gfx1201", v={1: a, 2: b, 3: c}).vector(0, np.float32)
    np.testing.assert_array_equal(got, want)


def test_signed_dots_under_their_older_names(execute):
    for name, bits in (("v_dot4_i32_i8", 8), ("v_dot8_i32_i4", 4)):
        got = execute(f"{name} v0, v1, v2, v3", v={1: A, 2: B, 3: C}).vector(0, np.uint32)
        want = [
            sum(x * y for x, y in zip(elements(a, bits, 1), elements(b, bits, 1), strict=True)) + int(c) & M32
            for a, b, c in zip(A, B, C, strict=True)
        ]
        np.testing.assert_array_equal(got, want)


def test_bf16_dot_in_dual_issue(execute):
    one = np.full(32, 0x3F803F80, np.uint32)
    c = np.arange(32, dtype=np.float32)
    machine = execute("v_dual_dot2acc_f32_bf16 v0, v1, v3 :: v_dual_mov_b32 v2, v1", v={1: one, 3: one, 0: c})
    np.testing.assert_array_equal(machine.vector(0, np.float32), c + 2)


def test_dpp_of_dots_and_mixed_precision(execute):
    lane = np.arange(32)
    tail = "row_xmask:3 row_mask:0xf bank_mask:0xf bound_ctrl:1"
    c = np.zeros(32, np.float32)
    code = (
        f"v_dot2_f32_f16_e64_dpp v0, v1, v2, v3 {tail}\nv_fma_mix_f32_e64_dpp v4, v1, v2, v3 op_sel_hi:[1,1,0] {tail}\n"
        f"v_dot4_i32_iu8_e64_dpp v5, v1, v2, v3 {tail}"
    )
    machine = execute(code, v={1: P[:32] & 0x7FFF7FFF, 2: Q[:32] & 0x7FFF7FFF, 3: c})
    a, b = np.abs(halves(P[:32], np.float16)).astype(np.float32), np.abs(halves(Q[:32], np.float16)).astype(np.float32)
    a = a[lane ^ 3]
    np.testing.assert_allclose(machine.vector(0, np.float32), a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1], rtol=2.0**-23)
    np.testing.assert_array_equal(machine.vector(4, np.float32), a[:, 0] * b[:, 0])
    pairs = zip((P[:32] & 0x7FFF7FFF)[lane ^ 3], Q[:32] & 0x7FFF7FFF, strict=True)
    want = [sum(x * y for x, y in zip(elements(p, 8, 0), elements(q, 8, 0), strict=True)) for p, q in pairs]
    np.testing.assert_array_equal(machine.vector(5, np.uint32), want)
    machine = execute(f"v_pk_add_u16_e64_dpp v0, v1, v2 {tail}", v={1: A[:32], 2: B[:32]})
    want = halves(A[:32][lane ^ 3], np.uint16) + halves(B[:32], np.uint16)
    np.testing.assert_array_equal(halves(machine.vector(0, np.uint32), np.uint16), want)


def test_a_dot_product_of_one_half_taken_twice(execute):
    c = np.abs(rng.standard_normal(300)).astype(np.float32)
    p, q = P & 0x7FFF7FFF, Q & 0x7FFF7FFF
    a, b = halves(p, np.float16).astype(np.float32), halves(q, np.float16).astype(np.float32)
    for i, j in np.ndindex(2, 2):
        text = f"v_dot2_f32_f16 v0, v1, v2, v3 op_sel:[{i},{j},0] op_sel_hi:[{i},{j},0]"
        product = a[:, i] * b[:, j]
        got = execute(text, gpu="gfx1201", v={1: p, 2: q, 3: c}).vector(0, np.float32)
        np.testing.assert_allclose(got, c + 2 * product, rtol=2.0**-23)


@pytest.mark.parametrize("gpu", ["gfx908", "gfx90a"])
@pytest.mark.parametrize(("name", "dtype"), [("v_dot2_i32_i16", np.int16), ("v_dot2_u32_u16", np.uint16)])
def test_integer_dot_products_of_chosen_halves(execute, gpu, name, dtype):
    text = f"{name} v4, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,0,1]"
    got = execute(text, gpu=gpu, lanes=64, v={1: A, 2: B, 3: C}).vector(4, np.uint32)
    a, b = (halves(x, dtype).astype(np.int64) for x in (A, B))
    want = 2 * a[:, 1] * b[:, 0] + C
    np.testing.assert_array_equal(got, (want & M32).astype(np.uint32))


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        ("gfx1151", "v_dot2_f16_f16 v0, -v1, v2, v3"), ("gfx1201", "v_dot2_bf16_bf16 v0, v1, |v2|, v3"),
        ("gfx942", "v_pk_fmac_f16_e64 v0, -v1, v2"), ("gfx942", "v_dot2c_f32_f16_e64 v0, v1, -v2"),
        ("gfx950", "v_cvt_scalef32_sr_pk_fp4_f16 v0, -v1, v2, v3"),
    ],
)  # fmt: skip
def test_signs_of_pairs_without_known_meaning_are_refused(execute, gpu, text):
    with pytest.raises(UnknownInstructionError, match="with neg or abs of a pair"):
        execute(text, gpu=gpu, lanes=64 if gpu.startswith("gfx9") else 32, v={1: A})


def test_omod_of_sums_of_pairs_is_refused(execute):
    with pytest.raises(UnknownInstructionError, match=r"v_dot2\w+ with omod"):
        execute("v_dot2c_f32_f16_e64 v0, v1, v2 mul:2", gpu="gfx942", lanes=64, v={1: A})

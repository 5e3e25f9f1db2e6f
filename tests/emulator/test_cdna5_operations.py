"""Vector instructions that CDNA 5 (gfx1250) adds, against formulas written out here."""

import numpy as np
import pytest
from matrix_registers import SMALL, number

from laneloom.errors import UnknownInstructionError

U16, U32, U64, I64 = np.uint16, np.uint32, np.uint64, np.int64
RNG = np.random.default_rng(5)
LANE = np.arange(32)
WORDS = RNG.integers(0, 1 << 32, (4, 64)).astype(U32)
PAIRS = RNG.integers(0, 1 << 64, (3, 64), np.uint64)


@pytest.fixture
def cdna5(execute):
    return lambda code, **given: execute(code, gpu="gfx1250", **given)


# -- integers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "function"), [
    ("v_add_nc_u64", lambda a, b: a + b), ("v_sub_nc_u64", lambda a, b: a - b), ("v_mul_u64", lambda a, b: a * b),
    ("v_min_u64", np.minimum), ("v_max_u64", np.maximum),
    ("v_min_i64", lambda a, b: np.minimum(a.view(I64), b.view(I64)).view(U64)),
    ("v_max_i64", lambda a, b: np.maximum(a.view(I64), b.view(I64)).view(U64)),
])  # fmt: skip
def test_64_bit_integers(cdna5, op, function):
    got = cdna5(f"{op} v[4:5], v[0:1], v[2:3]", v={0: PAIRS[0], 2: PAIRS[1]})
    np.testing.assert_array_equal(got.vector(4, U64), function(PAIRS[0], PAIRS[1]))


def test_a_64_bit_literal_and_saturation(cdna5):
    code = """v_add_nc_u64 v[4:5], v[0:1], 0x123456789abcdef0
    v_sub_nc_u64 v[6:7], v[0:1], v[2:3] clamp
    v_add_nc_u64 v[8:9], v[0:1], v[2:3] clamp"""
    got = cdna5(code, v={0: PAIRS[0], 2: PAIRS[1]})
    np.testing.assert_array_equal(got.vector(4, U64), PAIRS[0] + U64(0x123456789ABCDEF0))
    held = np.where(PAIRS[0] > PAIRS[1], PAIRS[0] - PAIRS[1], 0)
    np.testing.assert_array_equal(got.vector(6, U64), held)
    held = [min(int(a) + int(b), 2**64 - 1) for a, b in zip(*PAIRS[:2], strict=True)]
    np.testing.assert_array_equal(got.vector(8, U64), held)


def test_multiply_and_add(cdna5):
    code = """v_mad_u32 v6, v0, v1, v2
    v_mad_nc_u64_u32 v[8:9], v0, v1, v[4:5]
    v_mad_nc_i64_i32 v[10:11], v0, v1, v[4:5]"""
    got = cdna5(code, v={0: WORDS[0], 1: WORDS[1], 2: WORDS[2], 4: PAIRS[0]})
    np.testing.assert_array_equal(got.vector(6, U32), WORDS[0] * WORDS[1] + WORDS[2])
    np.testing.assert_array_equal(got.vector(8, U64), WORDS[0].astype(U64) * WORDS[1] + PAIRS[0])
    product = WORDS[0].view(np.int32).astype(I64) * WORDS[1].view(np.int32)
    np.testing.assert_array_equal(got.vector(10, I64), product + PAIRS[0].view(I64))


@pytest.mark.parametrize("choose", [max, min])
@pytest.mark.parametrize(("kind", "dtype"), [("u32", U32), ("i32", np.int32), ("u16", U16), ("i16", np.int16)])
def test_a_saturated_sum_held_to_a_bound(cdna5, choose, kind, dtype):
    info, name = np.iinfo(dtype), choose.__name__
    packed = kind.endswith("16")
    op = f"v_pk_add_{name}_{kind}" if packed else f"v_add_{name}_{kind}"
    a, b, c = (w.view(dtype).astype(object) for w in WORDS[:3])
    held = [choose(min(max(x + y, info.min), info.max), z) for x, y, z in zip(a, b, c, strict=True)]
    got = cdna5(f"{op} v4, v0, v1, v2", v={n: WORDS[n] for n in range(3)}).vector(4, U32)
    np.testing.assert_array_equal(got.view(dtype), np.array(held, object).astype(dtype))


@pytest.mark.parametrize("choose", [max, min])
@pytest.mark.parametrize(("kind", "dtype"), [("u16", U16), ("i16", np.int16)])
def test_largest_and_smallest_of_three(cdna5, choose, kind, dtype):
    want = [choose(z) for z in zip(*(w.view(dtype) for w in WORDS[:3]), strict=True)]
    got = cdna5(f"v_pk_{choose.__name__}3_{kind} v4, v0, v1, v2", v={n: WORDS[n] for n in range(3)})
    np.testing.assert_array_equal(got.vector(4, U32).view(dtype), want)


@pytest.mark.parametrize("choose", ["min", "max"])
def test_largest_and_smallest_number_of_three(cdna5, choose):
    """NaN is taken only where there is no number."""
    a, b, c = (RNG.standard_normal((3, 128)) * 9).astype(np.float16)
    a[:8], b[4:8], c[6:8] = np.nan, np.nan, np.nan
    got = cdna5(f"v_pk_{choose}3_num_f16 v4, v0, v1, v2", v={n: x.view(U32) for n, x in enumerate((a, b, c))})
    function = {"min": np.fmin, "max": np.fmax}[choose]
    np.testing.assert_array_equal(got.vector(4, U32).view(np.float16), function(function(a, b), c))


def test_bytes_saturated_to_nibbles(cdna5):
    got = cdna5("v_sat_pk4_i4_i8 v4.l, v0\nv_sat_pk4_u4_u8 v5.h, v0", v={0: WORDS[0]})
    nibbles = np.clip(WORDS[0].view(np.int8).reshape(-1, 4), -8, 7) & 15
    weights = 1 << 4 * np.arange(4)
    np.testing.assert_array_equal(got.vector(4, U16), (nibbles * weights).sum(1))
    nibbles = np.minimum(WORDS[0].view(np.uint8).reshape(-1, 4), 15)
    np.testing.assert_array_equal(got.vector(5, U16, half=1), (nibbles * weights).sum(1))


# -- floats ------------------------------------------------------------------------------------------------------------


def bf16(bits):
    return (np.asarray(bits).astype(U32) << U32(16)).view(np.float32).astype(np.float64)


def to_bf16(x):
    """Nearest even, of numbers that are finite and no denormals."""
    fraction, exponent = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.rint(fraction * 256), exponent - 8)


NUMBERS = RNG.standard_normal((3, 128)).astype(np.float32)
HALVES = (NUMBERS.view(U32) >> U32(16)).astype(U16)
BF = {n: HALVES[n].view(U32) for n in range(3)}


@pytest.mark.parametrize(("op", "function"), [
    ("v_pk_add_bf16 v4, v0, v1", lambda a, b, c: a + b), ("v_pk_mul_bf16 v4, v0, v1", lambda a, b, c: a * b),
    ("v_pk_fma_bf16 v4, v0, v1, v2", lambda a, b, c: a * b + c),
    ("v_pk_max_num_bf16 v4, v0, v1", lambda a, b, c: np.maximum(a, b)),
    ("v_pk_min_num_bf16 v4, v0, v1", lambda a, b, c: np.minimum(a, b)),
    ("v_pk_mul_bf16 v4, v0, v1 neg_lo:[1,0] neg_hi:[1,0]", lambda a, b, c: -a * b),
])  # fmt: skip
def test_packed_bf16(cdna5, op, function):
    got = np.ascontiguousarray(cdna5(op, v=BF).vector(4, U32)).view(U16)
    np.testing.assert_array_equal(bf16(got), to_bf16(function(*bf16(HALVES))))


@pytest.mark.parametrize(("name", "function"), [
    ("exp", np.exp2), ("log", np.log2), ("sqrt", np.sqrt), ("rsq", lambda x: 1 / np.sqrt(x)), ("rcp", lambda x: 1 / x),
    ("sin", lambda x: np.sin(2 * np.pi * x)), ("cos", lambda x: np.cos(2 * np.pi * x)), ("tanh", np.tanh),
])  # fmt: skip
def test_functions_of_bf16(cdna5, name, function):
    positive = HALVES[0] & U16(0x7FFF)
    got = cdna5(f"v_{name}_bf16 v4.l, v0.l", v={0: positive}).vector(4, U16)
    np.testing.assert_allclose(bf16(got), function(bf16(positive)), rtol=2.0**-8, atol=2.0**-16)


def test_hyperbolic_tangent(cdna5):
    x = np.concatenate([NUMBERS[0], [0.0, -0.0, np.inf, -np.inf]]).astype(np.float32)
    got = cdna5("v_tanh_f32 v4, v0", v={0: x}).vector(4, np.float32)
    np.testing.assert_allclose(got, np.tanh(x.astype(np.float64)), rtol=1e-6)
    half = NUMBERS[0].astype(np.float16)
    got = cdna5("v_tanh_f16 v4.l, v0.l", v={0: half}).vector(4, np.float16)
    np.testing.assert_allclose(got, np.tanh(half.astype(np.float64)), rtol=2.0**-10)


def test_mixed_products_of_bf16(cdna5):
    code = """v_fma_mix_f32_bf16 v4, v0, v1, v2 op_sel_hi:[1,1,0] op_sel:[1,0,0]
    v_fma_mixlo_bf16 v5, v0, v1, v2 op_sel_hi:[1,1,0]
    v_fma_mixhi_bf16 v5, v0, -v1, v2 op_sel_hi:[1,1,0]"""
    c = NUMBERS[2][:64]
    got = cdna5(code, v={**BF, 2: c})
    a, b = bf16(HALVES[0].reshape(-1, 2)), bf16(HALVES[1].reshape(-1, 2))
    np.testing.assert_array_equal(got.vector(4, np.float32), (a[:, 1] * b[:, 0] + c).astype(np.float32))
    np.testing.assert_array_equal(bf16(got.vector(5, U16)), to_bf16(a[:, 0] * b[:, 0] + c))
    np.testing.assert_array_equal(bf16(got.vector(5, U16, half=1)), to_bf16(c - a[:, 0] * b[:, 0]))


def test_literals_of_64_bit_products(cdna5):
    x, y = RNG.standard_normal((2, 32))
    code = """v_fmaak_f64 v[4:5], v[0:1], v[2:3], 0x405ec000
    v_fmamk_f64 v[6:7], v[0:1], 0x405ec00000000001, v[2:3]"""
    got = cdna5(code, v={0: x, 2: y})
    wide = np.array(0x405EC00000000001).view(np.float64)
    np.testing.assert_allclose(got.vector(4, np.float64), x * y + 123, rtol=1e-15)
    np.testing.assert_allclose(got.vector(6, np.float64), x * wide + y, rtol=1e-13)


@pytest.mark.parametrize(("text", "value"), [
    ("lit64(0xffffffff), v[0:1]", 0xFFFFFFFF), ("lit(0x405ec000), v[0:1]", 0x405EC00000000000),
    # of a disassembly the machine code says it: 64 bits behind VOP2 and VOP3, 32 bits
    ("0xffffffff, v[0:1] // 000000000100: FE080004 FFFFFFFF 00000000", 0xFFFFFFFF),
    ("0xffffffff, -v[0:1] // 000000000100: D5020004 020200FE FFFFFFFF 00000000", 0xFFFFFFFF),
    ("0x405ec000, v[0:1] // 000000000100: FF080004 405EC000", 0x405EC00000000000),
])  # fmt: skip
def test_literals_below_4_gi(cdna5, text, value):
    got = cdna5(f"v_add_f64 v[4:5], {text}", v={0: np.zeros(32)}).vector(4, np.uint64)
    assert (got == value).all()


# -- lanes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "function"), [
    ("bcast", lambda i, w, n: n % w), ("up", lambda i, w, n: i - n if i >= n else i),
    ("down", lambda i, w, n: i + n if i + n < w else i), ("xor", lambda i, w, n: i ^ n if i ^ n < w else i),
])  # fmt: skip
@pytest.mark.parametrize("width", [2, 8, 16, 32])
@pytest.mark.parametrize("by", [0, 1, 3, 5, 12, 31])
def test_permutations_in_groups(cdna5, op, function, width, by):
    got = cdna5(f"v_permlane_{op}_b32 v4, v0, s2, s3", v={0: WORDS[0]}, s={2: by, 3: width}).vector(4, U32)
    source = [lane - lane % width + function(lane % width, width, by) for lane in LANE]
    np.testing.assert_array_equal(got.reshape(2, 32), WORDS[0].reshape(2, 32)[:, source])


@pytest.mark.parametrize("op", ["bcast", "up", "down", "xor"])
def test_a_group_that_the_wave_has_in_part(cdna5, op):
    """Of width 12, the third group has 8 lanes: a lane that would read beyond the wave reads itself."""
    got = cdna5(f"v_permlane_{op}_b32 v4, v0, s2, s3", v={0: WORDS[0]}, s={2: 11, 3: 12}).vector(4, U32)
    groups = WORDS[0].reshape(2, 32)
    for wave in range(2):
        assert all(x in groups[wave, 24:] for x in got.reshape(2, 32)[wave, 24:])


def test_addresses_of_a_permutation(cdna5):
    got = cdna5("v_permlane_idx_gen_b32 v4, v0, s2", v={0: WORDS[0]}, s={2: 8}).vector(4, U32)
    lane = np.tile(LANE, 2)
    np.testing.assert_array_equal(got, ((WORDS[0] & 7) + (lane & ~7)) * 4)


# -- conversions -------------------------------------------------------------------------------------------------------

CODES = np.arange(256, dtype=U32)


def values_of(kind):
    """Every code of the format; infinities and NaN where the top exponent says so."""
    bits = sum(SMALL[kind][:2]) + 1
    codes = np.arange(1 << bits)
    values = np.array([number(int(c), kind) for c in codes])
    if kind == "fp8":
        values[codes & 0x7F == 0x7F] = np.nan
    elif kind == "bf8":
        top = codes & 0x7F
        values = np.where(top > 0x7C, np.nan, np.where(top == 0x7C, np.sign(values) * np.inf, values))
    return values


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_8_bits_to_f16(cdna5, kind):
    values = values_of(kind).astype(np.float16)
    got = cdna5(f"v_cvt_f16_{kind} v4.h, v0 byte_sel:2\nv_cvt_pk_f16_{kind} v5, v0.h", v={0: CODES << U32(16)})
    np.testing.assert_array_equal(got.vector(4, np.float16, half=1), values)
    assert (got.vector(4, U16) == 0xA5A5).all()
    np.testing.assert_array_equal(got.vector(5, np.float16), values)
    assert (got.vector(5, U16, half=1) == 0).all()


def nearest(x, kind):
    """The value of the format that is nearest, the even one of two that are as near; never beyond the largest."""
    values = values_of(kind)
    finite = np.flatnonzero(np.isfinite(values))
    finite = finite[finite < len(values) // 2]
    order = finite[np.argsort(np.abs(np.abs(x) - values[finite]) + (finite & 1) * 1e-12)]
    return np.copysign(values[order[0]], x)


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_f16_to_8_bits(cdna5, kind):
    x = (RNG.standard_normal(64) * 50).astype(np.float16)
    got = cdna5(f"v_cvt_pk_{kind}_f16 v4.h, v0", v={0: x.view(U32)}).vector(4, U16, half=1)
    codes = np.ascontiguousarray(got[:32]).view(np.uint8)
    np.testing.assert_array_equal(values_of(kind)[codes], [nearest(float(v), kind) for v in x])


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_stochastic_rounding_of_f16(cdna5, kind):
    """Down or up, up as often as the part that is cut off says."""
    values, x = values_of(kind), np.float16(1.03)
    random = (np.arange(4096, dtype=U32) << U32(20)) | U32(0xFFFFF)
    given = {0: np.full(4096, x), 1: random}
    got = cdna5(f"v_cvt_sr_{kind}_f16 v4, v0.l, v1 byte_sel:1", v=given).vector(4, U32)
    stored = values[got >> U32(8) & U32(0xFF)]
    step = 2.0 ** -SMALL[kind][1]
    assert set(stored) == {1.0, 1.0 + step}
    assert abs(stored.mean() - float(x)) < step / 64
    assert (got & U32(0xFFFF00FF) == 0xA5A500A5).all()


@pytest.mark.parametrize(("kind", "bits"), [("f16", 10), ("bf16", 7)])
def test_stochastic_rounding_of_a_pair(cdna5, kind, bits):
    """Down or up, up as often as the part that is cut off says."""
    x = np.array([1 + 0.3 * 2.0**-bits, -3 - 0.75 * 2.0 ** (1 - bits)], np.float32)
    random = np.arange(4096, dtype=U32) << U32(4) | (np.arange(4096, dtype=U32)[::-1] << U32(20))
    given = {0: np.full(4096, x[0]), 1: np.full(4096, x[1]), 2: random}
    got = cdna5(f"v_cvt_sr_pk_{kind}_f32 v4, v0, v1, v2", v=given).vector(4, U32)
    halves = np.ascontiguousarray(got).view(U16).reshape(-1, 2)
    values = halves.view(np.float16).astype(np.float64) if kind == "f16" else bf16(halves)
    for k, step in enumerate((2.0**-bits, 2.0 ** (1 - bits))):
        low = np.floor(abs(float(x[k])) / step) * step
        assert set(abs(values[:, k])) == {low, low + step}
        assert abs(abs(values[:, k]).mean() - abs(float(x[k]))) < step / 64


WIDE = ["f32", "f16", "bf16"]
COUNTS = [("fp4", 8), ("fp6", 16), ("bf6", 16), ("fp8", 8), ("bf8", 8)]


def registers_of(first, bits):
    return f"v{first}" if bits == 32 else f"v[{first}:{first + bits // 32 - 1}]"


def unpack(machine, first, wide, count):
    """`count` results of each lane as float64."""
    if wide == "f32":
        return np.stack([machine.vector(first + k, np.float32) for k in range(count)], -1).astype(np.float64)
    pairs = np.stack([machine.vector(first + k, U32) for k in range(count // 2)], -1)
    halves = np.ascontiguousarray(pairs).view(U16)
    return bf16(halves) if wide == "bf16" else halves.view(np.float16).astype(np.float64)


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize(("small", "count"), COUNTS)
def test_small_floats_under_scales_of_a_half_wave(cdna5, small, count, wide):
    """Lane l takes a byte of lane l % 16, or of lane 16 + l % 16, its number by scale_sel and by the half wave."""
    bits = sum(SMALL[small][:2]) + 1
    codes = RNG.integers(0, 1 << bits, (32, count))
    codes[~np.isfinite(values_of(small)[codes])] = 0
    stream = np.unpackbits(codes.astype(np.uint8)[..., None], axis=-1, bitorder="little")[..., :bits]
    words = np.packbits(stream.reshape(32, -1), axis=-1, bitorder="little").view(U32)
    scales = RNG.integers(120, 131, (32, 4)).astype(np.uint8)
    given = {20 + k: words[:, k] for k in range(words.shape[1])} | {8: scales.view(U32)[:, 0]}
    select = {0: (0, 0, 0), 8: (0, 1, 0)} if bits == 8 else {0: (0, 1, 0), 2: (2, 3, 0), 1: (0, 2, 0), 6: (2, 3, 16)}
    total = count * (32 if wide == "f32" else 16)
    for number_of, (low, high, holder) in select.items():
        op = f"v_cvt_scale_pk{count}_{wide}_{small}"
        text = f"{op} {registers_of(0, total)}, {registers_of(20, bits * count)}, v8"
        if total > 256:  # the scale lies beside the results
            text, given[19] = text.replace(", v8", ", v19"), given[8]
        got = unpack(cdna5(f"{text} scale_sel:{number_of}", v=given), 0, wide, count)
        byte = np.where(LANE < 16, low, high)
        scale = 2.0 ** (scales[holder + LANE % 16, byte].astype(int) - 127)
        want = values_of(small)[codes] * scale[:, None]
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, want.astype(np.float16) if wide == "f16" else want)
    with pytest.raises(UnknownInstructionError, match="scale_sel"):
        cdna5(f"{text} scale_sel:3", v=given)


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize(("small", "count"), COUNTS)
def test_wide_floats_over_a_scale(cdna5, small, count, wide):
    """The scale is a power of two, the exponent of an f32, and divides."""
    bits = sum(SMALL[small][:2]) + 1
    x = (RNG.standard_normal((32, count)) * 4).astype(np.float32)
    x = (x.view(U32) & U32(0xFFFF0000)).view(np.float32)  # all three types hold these
    if wide == "f32":
        given = {k: x[:, k] for k in range(count)}
    else:
        halves = (x.view(U32) >> U32(16)).astype(U16) if wide == "bf16" else x.astype(np.float16).view(U16)
        given = {k: np.ascontiguousarray(halves).view(U32)[:, k] for k in range(count // 2)}
    total = count * (32 if wide == "f32" else 16)
    op = f"v_cvt_scalef32_pk{count}_{small}_{wide}"
    text = f"{op} {registers_of(20, bits * count)}, {registers_of(0, total)}, v31"
    got = cdna5(text, v=given | {31: np.full(32, 2.5, np.float32)})
    words = np.stack([got.vector(20 + k, U32) for k in range(bits * count // 32)], -1)
    stream = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").reshape(32, count, bits)
    codes = (stream * (1 << np.arange(bits))).sum(-1)
    want = np.vectorize(lambda v: nearest(v / 2, small))(x.astype(np.float64))
    np.testing.assert_array_equal(values_of(small)[codes], want)


def test_stochastic_packed_16_bits(cdna5):
    """The second takes what v_prng_b32 makes of the random number."""
    x = np.full(4096, 1.0 + 2.0**-9, np.float32)
    random = np.arange(4096, dtype=U32) << U32(4) | np.arange(4096, dtype=U32)[::-1] << U32(20)
    got = cdna5("v_cvt_sr_pk_bf16_f32 v4, v0, v0, v1", v={0: x, 1: random})
    for half in (0, 1):
        values = bf16(got.vector(4, U16, half=half))
        assert set(values) == {1.0, 1.0 + 2.0**-7}
        assert abs(values.mean() - x[0]) < 2.0**-12


@pytest.mark.parametrize("name", ["add_f64", "mul_f64", "fma_f64"])
@pytest.mark.parametrize(
    "second", ["v_dual_mov_b32 v8, v3", "v_dual_add_nc_u32 v9, v2, v3", "v_dual_fmac_f32 v9, v12, v3"]
)
def test_the_second_half_of_a_pair_reads_what_was_there(cdna5, name, second):
    """Also where the first one writes two registers."""
    a, b, c, old = RNG.standard_normal((4, 32))
    given = {4: a, 6: b, 10: c, 2: old, 8: RNG.standard_normal(32).astype(np.float32), 12: a.astype(np.float32)}
    given[9] = given[8]
    texts = "v[2:3], v[4:5], v[6:7]" + (", v[10:11]" if name == "fma_f64" else "")
    both = cdna5(f"v_dual_{name} {texts} :: {second}", v=given)
    first, alone = cdna5(f"v_{name} {texts}", v=given), cdna5(second.replace("v_dual_", "v_"), v=given)
    np.testing.assert_array_equal(both.vector(2, np.float64), first.vector(2, np.float64))
    for n in (8, 9):
        np.testing.assert_array_equal(both.vector(n, U32), alone.vector(n, U32))


@pytest.mark.parametrize("op", [
    "v_bitop3_b32{} {}, {}, v1, v2 bitop3:0x6a", "v_bitop3_b16{} {}, {}, v1, v2 bitop3:0x35 op_sel:[1,0,1,1]",
    "v_cvt_pk_bf16_f32{} {}, -{}, v1", "v_cvt_pk_f16_f32{} {}, |{}|, v1", "v_cvt_sr_pk_f16_f32{} {}, {}, v1, v2",
])  # fmt: skip
def test_lanes_of_others(cdna5, op):
    """The first source moves between lanes, the same register as another source does not."""
    numbers = RNG.standard_normal((2, 64)).astype(np.float32).view(U32)
    given = {1: numbers[0], 2: WORDS[0], 4: WORDS[1], 6: WORDS[1]}
    active = np.arange(64) % 5 > 0
    for control in ("row_ror:3 row_mask:0xf bank_mask:0xf bound_ctrl:1", "row_shl:2 row_mask:0xf bank_mask:0x7"):
        code = f"""v_mov_b32 v3, v1
        v_mov_b32_dpp v3, v1 {control}
        {op.format("", "v6", "v3")}
        v_mov_b32 v5, 0
        v_mov_b32_dpp v5, v7 {control}
        {op.format("_e64_dpp", "v4", "v1")} {control}"""
        got = cdna5(code, v=given | {7: np.ones(64, U32)}, active=active)
        written = active & (("ror" in control) | (got.vector(5, U32) == 1))
        np.testing.assert_array_equal(got.vector(4, U32), np.where(written, got.vector(6, U32), WORDS[1]))
        np.testing.assert_array_equal(got.vector(1, U32), numbers[0])

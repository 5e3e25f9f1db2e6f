"""Integer and bitwise vector instructions against Python integers."""

import numpy as np
import pytest

M32, M64, M16 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0xFFFF
EDGES = [
    0,
    1,
    2,
    31,
    32,
    33,
    0x7FFFFFFF,
    0x80000000,
    0x80000001,
    0xFFFFFFFF,
    0xFFFFFF,
    0x800000,
    0xFFFF,
    0x8000,
    0x7FFF,
]


def signed(x: int, bits: int = 32) -> int:
    return x - (1 << bits) if x >> (bits - 1) & 1 else x


def columns(count: int, seed: int = 0, dtype=np.uint32) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    bits = np.dtype(dtype).itemsize * 8
    edges = np.array([x & ((1 << bits) - 1) for x in EDGES] + ([1 << 63, M64, 1 << 40] if bits == 64 else []), dtype)
    out = []
    for _ in range(count):
        shrunk = rng.integers(0, 1 << (bits - 1), 200).astype(np.uint64) >> rng.integers(0, bits, 200).astype(np.uint64)
        out.append(
            rng.permutation(np.concatenate([np.resize(edges, 152), shrunk.astype(dtype), rng.permutation(edges)]))
        )
    return out


def popcount(x: int) -> int:
    return x.bit_count()


def field(x: int, offset: int, width: int) -> int:
    return x >> (offset & 31) & ((1 << (width & 31)) - 1)


def signed_field(x: int, offset: int, width: int) -> int:
    width &= 31
    value = signed(x) >> (offset & 31) & ((1 << width) - 1)
    return signed(value, width) if width else 0


def permuted(a: int, b: int, selector: int) -> int:
    data = (a << 32 | b).to_bytes(8, "little")
    out = 0
    for k in range(4):
        s = selector >> 8 * k & 0xFF
        if s >= 13:
            byte = 0xFF
        elif s == 12:
            byte = 0
        elif s >= 8:
            byte = 0xFF if data[2 * (s - 8) + 1] & 0x80 else 0
        else:
            byte = data[s]
        out |= byte << 8 * k
    return out


def byte_sum(a: int, b: int, masked: bool = False) -> int:
    pairs = zip(a.to_bytes(4, "little"), b.to_bytes(4, "little"), strict=True)
    return sum(abs(x - y) for x, y in pairs if y or not masked)


def clip(x: int, low: int, high: int) -> int:
    return max(low, min(high, x))


def s24(x: int) -> int:
    return signed(x & 0xFFFFFF, 24)


def median(a: int, b: int, c: int) -> int:
    return sorted((a, b, c))[1]


S = signed
TWO = {
    "v_add_nc_u32": lambda a, b: a + b,
    "v_sub_nc_u32": lambda a, b: a - b,
    "v_subrev_nc_u32": lambda a, b: b - a,
    "v_add_nc_i32": lambda a, b: a + b,
    "v_sub_nc_i32": lambda a, b: a - b,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: S(a) * S(b) >> 32,
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24": lambda a, b: s24(a) * s24(b),
    "v_mul_hi_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "v_mul_hi_i32_i24": lambda a, b: s24(a) * s24(b) >> 32,
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32": lambda n, x: x << (n & 31),
    "v_lshrrev_b32": lambda n, x: x >> (n & 31),
    "v_ashrrev_i32": lambda n, x: S(x) >> (n & 31),
    "v_min_u32": min,
    "v_max_u32": max,
    "v_min_i32": lambda a, b: min(S(a), S(b)),
    "v_max_i32": lambda a, b: max(S(a), S(b)),
    "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "v_bcnt_u32_b32": lambda a, b: popcount(a) + b,
}
THREE = {
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xor3_b32": lambda a, b, c: a ^ b ^ c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: (a + b & M32) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_bfe_u32": field,
    "v_bfe_i32": signed_field,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_perm_b32": permuted,
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: s24(a) * s24(b) + c,
    "v_mad_u32_u16": lambda a, b, c: (a & M16) * (b & M16) + c,
    "v_mad_i32_i16": lambda a, b, c: S(a & M16, 16) * S(b & M16, 16) + c,
    "v_min3_u32": min,
    "v_max3_u32": max,
    "v_med3_u32": median,
    "v_min3_i32": lambda *x: min(map(S, x)),
    "v_max3_i32": lambda *x: max(map(S, x)),
    "v_med3_i32": lambda *x: median(*map(S, x)),
    "v_minmax_u32": lambda a, b, c: max(min(a, b), c),
    "v_maxmin_u32": lambda a, b, c: min(max(a, b), c),
    "v_minmax_i32": lambda a, b, c: max(min(S(a), S(b)), S(c)),
    "v_maxmin_i32": lambda a, b, c: min(max(S(a), S(b)), S(c)),
    "v_sad_u8": lambda a, b, c: byte_sum(a, b) + c,
    "v_sad_hi_u8": lambda a, b, c: (byte_sum(a, b) << 16) + c,
    "v_msad_u8": lambda a, b, c: byte_sum(a, b, True) + c,
    "v_sad_u16": lambda a, b, c: abs((a & M16) - (b & M16)) + abs((a >> 16) - (b >> 16)) + c,
    "v_sad_u32": lambda a, b, c: abs(a - b) + c,
    "v_lerp_u8": lambda a, b, c: sum(
        ((a >> k & 255) + (b >> k & 255) + (c >> k & 1) >> 1) << k for k in (0, 8, 16, 24)
    ),
}
ONE = {
    "v_mov_b32": lambda a: a,
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_clz_i32_u32": lambda a: 32 - a.bit_length() if a else -1,
    "v_ctz_i32_b32": lambda a: (a & -a).bit_length() - 1,
    "v_cls_i32": lambda a: next((i for i in range(1, 32) if (a >> (31 - i) & 1) != a >> 31), -1),
    "v_ffbh_u32": lambda a: 32 - a.bit_length() if a else -1,
}


def check(execute, name, function, xs, **options):
    registers = ", ".join(f"v{k + 1}" for k in range(len(xs)))
    machine = execute(f"{name} v0, {registers}", v={k + 1: x for k, x in enumerate(xs)}, **options)
    want = [function(*map(int, row)) & M32 for row in zip(*xs, strict=True)]
    np.testing.assert_array_equal(machine.vector(0, np.uint32), np.array(want, np.uint32), err_msg=name)


@pytest.mark.parametrize("table", [ONE, TWO, THREE], ids=["one", "two", "three"])
def test_every_lane_is_the_integer_result(execute, table):
    for k, (name, function) in enumerate(table.items()):
        count = 1 if table is ONE else 2 if table is TWO else 3
        check(execute, name, function, columns(count, seed=k))


@pytest.mark.parametrize(
    "selector", [0x05040100, 0x07060302, 0x05040302, 0x03020504, 0x0C0C0400, 0x0D090B00, 0x01000302, 0x080A0C0D]
)
def test_constant_byte_selectors(execute, selector):
    a, b = columns(2, 9)
    got = execute(f"v_perm_b32 v0, v1, v2, {selector:#x}", v={1: a, 2: b}).vector(0, np.uint32)
    np.testing.assert_array_equal(got, [permuted(int(x), int(y), selector) for x, y in zip(a, b, strict=True)])


def test_byte_selectors_that_differ_by_lane(execute):
    a, b = columns(2, 9)
    two = np.where(np.arange(len(a)) % 3 == 0, 0x05040100, 0x0D020C09).astype(np.uint32)
    scalar = np.resize(np.array([0x05040100, 0x03020100, 0x0B0A0908]), -(-len(a) // 32))
    machine = execute("v_perm_b32 v0, v1, v2, v3\nv_perm_b32 v4, v1, v2, s5", v={1: a, 2: b, 3: two}, s={5: scalar})
    for n, selectors in ((0, two), (4, np.repeat(scalar, 32))):
        want = [permuted(int(x), int(y), int(z)) for x, y, z in zip(a, b, selectors, strict=False)]
        np.testing.assert_array_equal(machine.vector(n, np.uint32), want)


def test_constants_and_scalars_as_sources(execute):
    (a,) = columns(1, 4)
    machine = execute(
        "v_add_nc_u32 v0, -16, v1\nv_lshlrev_b32 v2, 5, v1\nv_mul_lo_u32 v3, v1, s2\nv_sub_nc_u32 v4, 0x12345678, v1",
        v={1: a},
        s={2: 0x10003},
    )
    for n, want in (
        (0, a - np.uint32(16)),
        (2, a << np.uint32(5)),
        (3, a * np.uint32(0x10003)),
        (4, np.uint32(0x12345678) - a),
    ):
        np.testing.assert_array_equal(machine.vector(n, np.uint32), want)


def test_clamp_saturates(execute):
    a, b = columns(2, 8)
    table = {
        "v_add_nc_u32": lambda x, y: clip(x + y, 0, M32),
        "v_sub_nc_u32": lambda x, y: clip(x - y, 0, M32),
        "v_add_nc_i32": lambda x, y: clip(S(x) + S(y), -(1 << 31), (1 << 31) - 1),
        "v_sub_nc_i32": lambda x, y: clip(S(x) - S(y), -(1 << 31), (1 << 31) - 1),
    }
    for name, function in table.items():
        got = execute(f"{name} v0, v1, v2 clamp", v={1: a, 2: b}).vector(0, np.uint32)
        np.testing.assert_array_equal(got, [function(int(x), int(y)) & M32 for x, y in zip(a, b, strict=True)])


def test_inactive_lanes_keep_their_value(execute):
    (a,) = columns(1, 4)
    active = np.arange(len(a)) % 3 == 0
    machine = execute("v_add_nc_u32 v0, v1, v1\nv_mov_b32 v2, 7\nv_lshlrev_b64 v[4:5], 3, v[4:5]",
                      v={1: a, 0: a ^ np.uint32(5), 2: a, 4: a.astype(np.uint64)}, active=active)  # fmt: skip
    np.testing.assert_array_equal(machine.vector(0, np.uint32), np.where(active, a + a, a ^ np.uint32(5)))
    np.testing.assert_array_equal(machine.vector(2, np.uint32), np.where(active, 7, a))
    wide = a.astype(np.uint64)
    np.testing.assert_array_equal(machine.vector(4, np.uint64), np.where(active, wide << np.uint64(3), wide))


# -- 16 and 64 bits ----------------------------------------------------------------------------------------------------

HALF_TWO = {
    "v_add_nc_u16": lambda a, b: a + b,
    "v_sub_nc_u16": lambda a, b: a - b,
    "v_add_nc_i16": lambda a, b: a + b,
    "v_sub_nc_i16": lambda a, b: a - b,
    "v_mul_lo_u16": lambda a, b: a * b,
    "v_lshlrev_b16": lambda n, x: x << (n & 15),
    "v_lshrrev_b16": lambda n, x: x >> (n & 15),
    "v_ashrrev_i16": lambda n, x: S(x, 16) >> (n & 15),
    "v_min_u16": min,
    "v_max_u16": max,
    "v_max_i16": lambda a, b: max(S(a, 16), S(b, 16)),
    "v_min_i16": lambda a, b: min(S(a, 16), S(b, 16)),
    "v_and_b16": lambda a, b: a & b,
    "v_or_b16": lambda a, b: a | b,
    "v_xor_b16": lambda a, b: a ^ b,
}
HALF_THREE = {
    "v_mad_u16": lambda a, b, c: a * b + c,
    "v_mad_i16": lambda a, b, c: a * b + c,
    "v_med3_i16": lambda *x: median(*(S(y, 16) for y in x)),
    "v_max3_u16": max,
    "v_min3_u16": min,
    "v_med3_u16": median,
    "v_max3_i16": lambda *x: max(S(y, 16) for y in x),
    "v_min3_i16": lambda *x: min(S(y, 16) for y in x),
}


@pytest.mark.parametrize("part", ["l", "h"])
def test_16_bit_results_keep_the_other_half(execute, part):
    xs = columns(3, 3, np.uint16)
    for name, function in {**HALF_TWO, **HALF_THREE}.items():
        count = 2 if name in HALF_TWO else 3
        registers = ", ".join(f"v{k + 1}.l" for k in range(count))
        machine = execute(f"{name} v0.{part}, {registers}", v={k + 1: x for k, x in enumerate(xs)})
        want = [function(*map(int, row)) & M16 for row in zip(*xs[:count], strict=True)]
        np.testing.assert_array_equal(
            machine.vector(0, np.uint16, part == "h"), np.array(want, np.uint16), err_msg=name
        )
        assert (machine.vector(0, np.uint16, part == "l") == 0xA5A5).all(), name


def test_halves_by_op_sel_and_by_suffix_agree(execute):
    (a,) = columns(1, 6)
    texts = ["v_add_nc_u16 v0.h, v1.h, v2.l", "v_add_nc_u16 v0, v1, v2 op_sel:[1,0,1]"]
    results = [execute(t, v={1: a, 2: a ^ np.uint32(0x12345)}).vector(0, np.uint32) for t in texts]
    np.testing.assert_array_equal(*results)
    high, low = a >> np.uint32(16), (a ^ np.uint32(0x12345)) & np.uint32(M16)
    np.testing.assert_array_equal(results[0], ((high + low) << np.uint32(16)) | np.uint32(0xA5A5))


def test_half_moves(execute):
    (a,) = columns(1, 6)
    machine = execute("v_mov_b16_e32 v0.h, v1.l\nv_mov_b16_e64 v2.l, v1.h\nv_swap_b16 v3.l, v1.h", v={1: a, 3: a})
    np.testing.assert_array_equal(machine.vector(0, np.uint32), (a << np.uint32(16)) | np.uint32(0xA5A5))
    np.testing.assert_array_equal(machine.vector(2, np.uint32), (a >> np.uint32(16)) | np.uint32(0xA5A50000))
    np.testing.assert_array_equal(machine.vector(3, np.uint32), (a & np.uint32(0xFFFF0000)) | (a >> np.uint32(16)))
    np.testing.assert_array_equal(machine.vector(1, np.uint32), (a & np.uint32(M16)) | (a << np.uint32(16)))


def test_half_select_and_not(execute):
    (a,) = columns(1, 6)
    machine = execute("v_cndmask_b16 v0.l, v1.l, v1.h, s4\nv_not_b16 v2.h, v1.l", v={1: a}, s={4: 0x0F0F0F0F})
    chosen = np.resize(np.arange(32) % 8 < 4, len(a))
    np.testing.assert_array_equal(
        machine.vector(0, np.uint16), np.where(chosen, a >> np.uint32(16), a & np.uint32(M16))
    )
    np.testing.assert_array_equal(machine.vector(2, np.uint16, 1), ~a.astype(np.uint16))


def test_64_bit_shifts_use_six_bits(execute):
    (x,), (n,) = columns(1, 5, np.uint64), columns(1, 6)
    n = np.resize(n, len(x))
    table = {
        "v_lshlrev_b64": lambda k, y: y << (k & 63),
        "v_lshrrev_b64": lambda k, y: y >> (k & 63),
        "v_ashrrev_i64": lambda k, y: S(y, 64) >> (k & 63),
    }
    for name, function in table.items():
        got = execute(f"{name} v[0:1], v2, v[4:5]", v={2: n, 4: x}).vector(0, np.uint64)
        want = [function(int(k), int(y)) & M64 for k, y in zip(n, x, strict=True)]
        np.testing.assert_array_equal(got, np.array(want, np.uint64), err_msg=name)


# -- carries and wide products -----------------------------------------------------------------------------------------


def test_carries(execute):
    a, b = columns(2, 12)
    carry_in = np.arange(len(a)) % 2 == 0
    words = np.packbits(np.resize(carry_in, (-(-len(a) // 32), 32)), axis=1, bitorder="little").view(np.uint32)[:, 0]
    table = {
        "v_add_co_u32 v0, s4, v1, v2": lambda x, y, c: x + y,
        "v_sub_co_u32 v0, s4, v1, v2": lambda x, y, c: x - y,
        "v_subrev_co_u32 v0, s4, v1, v2": lambda x, y, c: y - x,
        "v_add_co_ci_u32 v0, s4, v1, v2, s6": lambda x, y, c: x + y + c,
        "v_sub_co_ci_u32 v0, s4, v1, v2, s6": lambda x, y, c: x - y - c,
        "v_subrev_co_ci_u32 v0, s4, v1, v2, s6": lambda x, y, c: y - x - c,
    }
    for code, function in table.items():
        machine = execute(code, v={1: a, 2: b}, s={6: words})
        want = [function(int(x), int(y), int(c)) for x, y, c in zip(a, b, carry_in, strict=True)]
        np.testing.assert_array_equal(machine.vector(0, np.uint32), [w & M32 for w in want], err_msg=code)
        np.testing.assert_array_equal(machine.mask(4), [w < 0 or w > M32 for w in want], err_msg=code)


def test_carry_of_inactive_lanes_is_zero(execute):
    full = np.full(64, M32, np.uint32)
    active = np.arange(64) % 2 == 0
    machine = execute(
        "v_add_co_u32 v0, vcc_lo, v1, v1\nv_add_co_ci_u32_e32 v2, vcc_lo, v1, v1, vcc_lo", v={1: full}, active=active
    )
    np.testing.assert_array_equal(machine.mask(106), active)
    np.testing.assert_array_equal(machine.vector(2, np.uint32)[active], M32)


@pytest.mark.parametrize("name", ["v_mad_u64_u32", "v_mad_i64_i32", "v_mad_co_u64_u32", "v_mad_co_i64_i32"])
def test_wide_multiply_add(execute, name):
    a, b = columns(2, 13)
    (c,) = columns(1, 14, np.uint64)
    c = np.resize(c, len(a))
    machine = execute(
        f"{name} v[0:1], s4, v2, v3, v[4:5]", gpu="gfx1201" if "_co_" in name else "gfx1100", v={2: a, 3: b, 4: c}
    )
    if "i64" in name:
        want = [S(int(x)) * S(int(y)) + S(int(z), 64) for x, y, z in zip(a, b, c, strict=True)]
        carry = [w >> 64 & 1 for w in want]
    else:
        want = [int(x) * int(y) + int(z) for x, y, z in zip(a, b, c, strict=True)]
        carry = [w >> 64 for w in want]
    np.testing.assert_array_equal(machine.vector(0, np.uint64), np.array([w & M64 for w in want], np.uint64))
    np.testing.assert_array_equal(machine.mask(4), np.array(carry, bool))


def test_saturating_pack(execute):
    (a,) = columns(1, 15)
    got = execute("v_sat_pk_u8_i16 v0.l, v1", v={1: a}).vector(0, np.uint16)
    want = [clip(S(int(x) & M16, 16), 0, 255) | clip(S(int(x) >> 16, 16), 0, 255) << 8 for x in a]
    np.testing.assert_array_equal(got, want)


def test_sliding_differences(execute):
    (a,), (c,) = columns(1, 16, np.uint64), columns(1, 17, np.uint64)
    (b,) = columns(1, 18)
    b = np.resize(b, len(a))
    for name, masked in (("v_qsad_pk_u16_u8", False), ("v_mqsad_pk_u16_u8", True)):
        got = execute(f"{name} v[0:1], v[2:3], v4, v[6:7]", v={2: a, 4: b, 6: c}).vector(0, np.uint64)
        want = [
            sum(
                ((byte_sum(int(x) >> 8 * k & M32, int(y), masked) + (int(z) >> 16 * k)) & M16) << 16 * k
                for k in range(4)
            )
            for x, y, z in zip(a, b, c, strict=True)
        ]
        np.testing.assert_array_equal(got, np.array(want, np.uint64))

"""Scalar instructions against Python integers: results, SCC, EXEC, 64 bits, floats of gfx11.5 and gfx12."""

import numpy as np
import pytest

from laneloom.errors import UnknownInstructionError

M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
VALUES = [
    0,
    1,
    2,
    31,
    32,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0xDEADBEEF,
    0x00050003,
    0x001F0004,
    0x00200010,
    0x12345678,
]
WIDE = [0, 1, M64, 1 << 63, (1 << 63) - 1, 0x123456789ABCDEF0, 1 << 32, 0xFFFFFFFF, 0xF0000000000000F0]


def S(x, bits=32):
    return x - (1 << bits) if x >> (bits - 1) & 1 else x


def grid(first, second=None):
    pairs = [(a, b) for a in first for b in (second or first)]
    return np.array([p[0] for p in pairs], np.uint64), np.array([p[1] for p in pairs], np.uint64)


def run(execute, name, a, b=None, wide=(False, False, False), old=0, scc=None, gpu=None):
    """Destination s[0:1] or s0, sources s[2:3] and s[4:5]; the values of one pair per wave."""
    register = lambda n, w: f"s[{n}:{n + 1}]" if w else f"s{n}"  # noqa: E731
    text = f"{name} {register(0, wide[0])}, {register(2, wide[1])}" + (
        f", {register(4, wide[2])}" if b is not None else ""
    )
    count = len(a)
    s = {0: np.full(count, old, np.uint64), 2: a}
    if b is not None:
        s[4] = b
    machine = execute(text, s=s, scc=scc, gpu=gpu)
    return machine.scalar(0, np.uint64 if wide[0] else np.uint32), machine.waves.scc.copy()


def overflow(x):
    return not -(1 << 31) <= x < 1 << 31


NONZERO = "nonzero"
TWO = {  # result, and SCC as a function, NONZERO or None where it is left alone
    "s_add_u32": (lambda a, b: a + b, lambda a, b: a + b > M32),
    "s_sub_u32": (lambda a, b: a - b, lambda a, b: a < b),
    "s_add_i32": (lambda a, b: a + b, lambda a, b: overflow(S(a) + S(b))),
    "s_sub_i32": (lambda a, b: a - b, lambda a, b: overflow(S(a) - S(b))),
    "s_min_i32": (lambda a, b: min(S(a), S(b)), lambda a, b: S(a) < S(b)),
    "s_max_i32": (lambda a, b: max(S(a), S(b)), lambda a, b: S(a) >= S(b)),
    "s_min_u32": (min, lambda a, b: a < b),
    "s_max_u32": (max, lambda a, b: a >= b),
    "s_and_b32": (lambda a, b: a & b, NONZERO),
    "s_or_b32": (lambda a, b: a | b, NONZERO),
    "s_xor_b32": (lambda a, b: a ^ b, NONZERO),
    "s_nand_b32": (lambda a, b: ~(a & b), NONZERO),
    "s_nor_b32": (lambda a, b: ~(a | b), NONZERO),
    "s_xnor_b32": (lambda a, b: ~(a ^ b), NONZERO),
    "s_and_not1_b32": (lambda a, b: a & ~b, NONZERO),
    "s_or_not1_b32": (lambda a, b: a | ~b, NONZERO),
    "s_lshl_b32": (lambda a, b: a << (b & 31), NONZERO),
    "s_lshr_b32": (lambda a, b: a >> (b & 31), NONZERO),
    "s_ashr_i32": (lambda a, b: S(a) >> (b & 31), NONZERO),
    "s_absdiff_i32": (lambda a, b: abs(S(S(a) - S(b) & M32)), NONZERO),
    "s_bfe_u32": (lambda a, b: a >> (b & 31) & (1 << (b >> 16 & 127)) - 1, NONZERO),
    "s_bfe_i32": (lambda a, b: bfe_signed(a, b & 31, b >> 16 & 127, 32), NONZERO),
    "s_bfm_b32": (lambda a, b: ((1 << (a & 31)) - 1) << (b & 31), None),
    "s_mul_i32": (lambda a, b: a * b, None),
    "s_mul_hi_u32": (lambda a, b: a * b >> 32, None),
    "s_mul_hi_i32": (lambda a, b: S(a) * S(b) >> 32, None),
    "s_lshl1_add_u32": (lambda a, b: (a << 1) + b, lambda a, b: (a << 1) + b > M32),
    "s_lshl2_add_u32": (lambda a, b: (a << 2) + b, lambda a, b: (a << 2) + b > M32),
    "s_lshl3_add_u32": (lambda a, b: (a << 3) + b, lambda a, b: (a << 3) + b > M32),
    "s_lshl4_add_u32": (lambda a, b: (a << 4) + b, lambda a, b: (a << 4) + b > M32),
    "s_pack_ll_b32_b16": (lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16, None),
    "s_pack_lh_b32_b16": (lambda a, b: a & 0xFFFF | b >> 16 << 16, None),
    "s_pack_hl_b32_b16": (lambda a, b: a >> 16 | (b & 0xFFFF) << 16, None),
    "s_pack_hh_b32_b16": (lambda a, b: a >> 16 | b >> 16 << 16, None),
}


def bfe_signed(a, offset, width, bits):
    value = S(a, bits) >> offset & (1 << width) - 1
    return S(value, width) if width > 0 else 0


@pytest.mark.parametrize("name", TWO)
def test_two_operands(execute, name):
    function, condition = TWO[name]
    a, b = grid(VALUES)
    for scc in (False, True):
        got, flag = run(execute, name, a, b, scc=scc)
        want = [function(int(x), int(y)) & M32 for x, y in zip(a, b, strict=True)]
        np.testing.assert_array_equal(got, np.array(want, np.uint32))
        if condition is None:
            assert (flag == scc).all()
        elif condition is NONZERO:
            np.testing.assert_array_equal(flag, np.array(want) != 0)
        else:
            np.testing.assert_array_equal(flag, [condition(int(x), int(y)) for x, y in zip(a, b, strict=True)])


def test_names_of_gfx12_are_the_same_operations(execute):
    machine = execute("s_addk_co_i32 s0, -1", gpu="gfx1201", s={0: np.array([0, 5, 0x80000000], np.uint64)})
    np.testing.assert_array_equal(machine.scalar(0), [M32, 4, 0x7FFFFFFF])
    np.testing.assert_array_equal(machine.waves.scc, [False, False, True])
    a, b = grid(VALUES)
    for old, new in {
        "s_add_u32": "s_add_co_u32",
        "s_sub_u32": "s_sub_co_u32",
        "s_add_i32": "s_add_co_i32",
        "s_sub_i32": "s_sub_co_i32",
        "s_addc_u32": "s_add_co_ci_u32",
        "s_subb_u32": "s_sub_co_ci_u32",
    }.items():
        for scc in (False, True):
            x, y = run(execute, old, a, b, scc=scc), run(execute, new, a, b, scc=scc, gpu="gfx1201")
            np.testing.assert_array_equal(x[0], y[0])
            np.testing.assert_array_equal(x[1], y[1])


def test_carry_chain(execute):
    a, b = grid(WIDE)
    for low, high, function in (
        ("s_add_u32", "s_addc_u32", lambda x, y: x + y),
        ("s_sub_u32", "s_subb_u32", lambda x, y: x - y),
    ):
        machine = execute(f"{low} s0, s2, s4\n{high} s1, s3, s5", s={2: a, 4: b})
        want = [function(int(x), int(y)) for x, y in zip(a, b, strict=True)]
        np.testing.assert_array_equal(machine.scalar(0, np.uint64), np.array([w & M64 for w in want], np.uint64))
        np.testing.assert_array_equal(machine.waves.scc, [w < 0 or w > M64 for w in want])


WIDE_TWO = {
    "s_and_b64": lambda a, b: a & b, "s_or_b64": lambda a, b: a | b, "s_xor_b64": lambda a, b: a ^ b,
    "s_and_not1_b64": lambda a, b: a & ~b, "s_xnor_b64": lambda a, b: ~(a ^ b),
}  # fmt: skip
WIDE_SHIFT = {
    "s_lshl_b64": lambda a, n: a << (n & 63),
    "s_lshr_b64": lambda a, n: a >> (n & 63),
    "s_ashr_i64": lambda a, n: S(a, 64) >> (n & 63),
    "s_bfe_u64": lambda a, s: a >> (s & 63) & (1 << (s >> 16 & 127)) - 1,
    "s_bfe_i64": lambda a, s: bfe_signed(a, s & 63, s >> 16 & 127, 64),
}
WIDE_PLAIN = {
    "s_add_nc_u64": lambda a, b: a + b, "s_sub_nc_u64": lambda a, b: a - b, "s_mul_u64": lambda a, b: a * b,
}  # fmt: skip


@pytest.mark.parametrize("name", [*WIDE_TWO, *WIDE_SHIFT, *WIDE_PLAIN])
def test_64_bits(execute, name):
    shift = name in WIDE_SHIFT
    function = {**WIDE_TWO, **WIDE_SHIFT, **WIDE_PLAIN}[name]
    a, b = grid(WIDE, VALUES if shift else WIDE)
    gpu = "gfx1201" if name in WIDE_PLAIN else "gfx1100"
    got, flag = run(execute, name, a, b, (True, True, not shift), scc=True, gpu=gpu)
    want = [function(int(x), int(y)) & M64 for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(got, np.array(want, np.uint64))
    np.testing.assert_array_equal(flag, True if name in WIDE_PLAIN else np.array(want) != 0)


def leading_signs(a, bits):
    return next((i for i in range(1, bits) if (a >> (bits - 1 - i) & 1) != a >> (bits - 1)), -1)


def quad_mask(a, bits):
    return sum((a >> 4 * k & 15 != 0) << k for k in range(bits // 4))


ONE = {
    "s_mov_b32": (lambda a: a, None),
    "s_not_b32": (lambda a: ~a, NONZERO),
    "s_abs_i32": (lambda a: abs(S(a)), NONZERO),
    "s_brev_b32": (lambda a: int(f"{a:032b}"[::-1], 2), None),
    "s_bcnt1_i32_b32": (lambda a: a.bit_count(), NONZERO),
    "s_bcnt0_i32_b32": (lambda a: 32 - a.bit_count(), NONZERO),
    "s_ctz_i32_b32": (lambda a: (a & -a).bit_length() - 1, None),
    "s_clz_i32_u32": (lambda a: 32 - a.bit_length() if a else -1, None),
    "s_cls_i32": (lambda a: leading_signs(a, 32), None),
    "s_sext_i32_i8": (lambda a: S(a & 255, 8), None),
    "s_sext_i32_i16": (lambda a: S(a & 65535, 16), None),
    "s_quadmask_b32": (lambda a: quad_mask(a, 32), NONZERO),
    "s_wqm_b32": (lambda a: sum(15 << 4 * k for k in range(8) if a >> 4 * k & 15), NONZERO),
    "s_ff1_i32_b32": (lambda a: (a & -a).bit_length() - 1, None),
}
ONE_OF_64 = {
    "s_bcnt1_i32_b64": (lambda a: a.bit_count(), NONZERO),
    "s_ctz_i32_b64": (lambda a: (a & -a).bit_length() - 1, None),
    "s_clz_i32_u64": (lambda a: 64 - a.bit_length() if a else -1, None),
    "s_cls_i32_i64": (lambda a: leading_signs(a, 64), None),
}
ONE_TO_64 = {
    "s_mov_b64": (lambda a: a, None), "s_not_b64": (lambda a: ~a, NONZERO),
    "s_brev_b64": (lambda a: int(f"{a:064b}"[::-1], 2), None), "s_quadmask_b64": (lambda a: quad_mask(a, 64), NONZERO),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ONE, *ONE_OF_64, *ONE_TO_64])
def test_one_operand(execute, name):
    function, condition = {**ONE, **ONE_OF_64, **ONE_TO_64}[name]
    wide = (name in ONE_TO_64, name not in ONE, False)
    a = np.array(VALUES if name in ONE else WIDE, np.uint64)
    got, flag = run(execute, name, a, None, wide, scc=True)
    mask = M64 if wide[0] else M32
    want = [function(int(x)) & mask for x in a]
    np.testing.assert_array_equal(got, np.array(want, got.dtype))
    np.testing.assert_array_equal(flag, np.array(want) != 0 if condition else True)


def test_bit_replicate_sets_and_tests(execute):
    got, _ = run(execute, "s_bitreplicate_b64_b32", np.array(VALUES, np.uint64), None, (True, False, False))
    want = [int("".join(c * 2 for c in f"{x:032b}"), 2) for x in VALUES]
    np.testing.assert_array_equal(got, np.array(want, np.uint64))
    machine = execute("s_bitset1_b32 s0, s2\ns_bitset0_b64 s[4:5], s2\ns_bitcmp1_b32 s0, s2\ns_cselect_b32 s6, 11, 22",
                      s={0: 0, 2: 37, 4: np.array([M64], np.uint64)})  # fmt: skip
    assert machine.scalar(0)[0] == 1 << 5
    assert machine.scalar(4, np.uint64)[0] == M64 ^ 1 << 37
    assert machine.scalar(6)[0] == 11


def test_immediates_of_16_bits_are_signed(execute):
    machine = execute("s_movk_i32 s0, 0xfff0\ns_addk_i32 s1, 0x8000\ns_mulk_i32 s2, -3\ns_cmpk_lg_u32 s3, 0xffff\n"
                      "s_cselect_b32 s4, 1, 2\ns_cmpk_lt_i32 s5, -2\ns_cmovk_i32 s6, 9", gpu="gfx1100",
                      s={1: 5, 2: 7, 3: 0xFFFF, 5: -3, 6: 4})  # fmt: skip
    for n, want in ((0, -16), (1, 5 - 0x8000), (2, -21), (4, 2), (6, 9)):
        assert machine.scalar(n, np.int32)[0] == want, n


def test_compares_and_selects(execute):
    a, b = grid(VALUES)
    table = {"eq": lambda x, y: x == y, "lg": lambda x, y: x != y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
             "lt": lambda x, y: x < y, "le": lambda x, y: x <= y}  # fmt: skip
    for name, relation in table.items():
        for kind, view in (("i32", S), ("u32", int)):
            machine = execute(
                f"s_cmp_{name}_{kind} s2, s4\ns_cselect_b64 s[0:1], s[2:3], 0\ns_cmov_b32 s6, s4", s={2: a, 4: b, 6: a}
            )
            want = np.array([relation(view(int(x)), view(int(y))) for x, y in zip(a, b, strict=True)])
            np.testing.assert_array_equal(machine.waves.scc, want)
            np.testing.assert_array_equal(machine.scalar(0), np.where(want, a, 0))
            np.testing.assert_array_equal(machine.scalar(6), np.where(want, b, a))
    a, b = grid(WIDE)
    np.testing.assert_array_equal(execute("s_cmp_eq_u64 s[2:3], s[4:5]", s={2: a, 4: b}).waves.scc, a == b)


SAVING = {
    "and": lambda s, e: s & e, "or": lambda s, e: s | e, "xor": lambda s, e: s ^ e, "nand": lambda s, e: ~(s & e),
    "nor": lambda s, e: ~(s | e), "xnor": lambda s, e: ~(s ^ e), "and_not1": lambda s, e: s & ~e,
    "or_not1": lambda s, e: s | ~e, "and_not0": lambda s, e: ~s & e, "or_not0": lambda s, e: ~s | e,
}  # fmt: skip


@pytest.mark.parametrize("name", SAVING)
def test_saveexec(execute, name):
    active = np.arange(64) % 5 != 0
    exec_bits = np.packbits(active.reshape(2, 32), axis=1, bitorder="little").view(np.uint32)[:, 0].astype(np.uint64)
    source = np.array([0x0F0F1234, 0xFFFF0000], np.uint64)
    machine = execute(
        f"s_{name}_saveexec_b32 s0, s2\nv_mov_b32 v0, 1", s={2: source}, v={0: np.zeros(64, np.uint32)}, active=active
    )
    new = np.array([SAVING[name](int(s), int(e)) & M32 for s, e in zip(source, exec_bits, strict=True)])
    np.testing.assert_array_equal(machine.scalar(0), exec_bits)
    np.testing.assert_array_equal(machine.scalar(126), new)
    np.testing.assert_array_equal(machine.waves.scc, new != 0)
    bits = [bool(int(w) >> k & 1) for w in new for k in range(32)]
    np.testing.assert_array_equal(machine.vector(0, np.uint32), bits)


def test_saveexec_of_wave64_and_wrexec(execute):
    machine = execute("s_and_saveexec_b64 s[0:1], s[2:3]\ns_and_not1_wrexec_b64 s[4:5], s[6:7]", lanes=64,
                      s={2: np.array([0xFF00FF00FF00FF00], np.uint64), 6: np.array([M64], np.uint64)})  # fmt: skip
    assert machine.scalar(0, np.uint64)[0] == M64
    assert machine.scalar(126, np.uint64)[0] == machine.scalar(4, np.uint64)[0] == 0x00FF00FF00FF00FF


def test_moves_by_m0(execute):
    machine = execute(
        "s_mov_b32 m0, s9\ns_movrels_b32 s0, s2\ns_movreld_b32 s4, s9\ns_movrels_b64 s[10:11], s[2:3]",
        s={2: np.array([5, 6]), 3: np.array([7, 8]), 4: np.array([0, 0]), 5: np.array([0, 0]), 9: np.array([0, 1])},
    )
    np.testing.assert_array_equal(machine.scalar(0), [5, 8])
    np.testing.assert_array_equal(machine.scalar(5), [0, 1])
    np.testing.assert_array_equal(machine.scalar(10), [5, 8])


# -- all relations, widths and halves ----------------------------------------------------------------------------------


def test_immediate_compares(execute):
    values = np.array([0, 5, 0xFFFB, 0xFFFFFFFB, 0x7FFFFFFF], np.uint64)
    table = {"eq": int.__eq__, "lg": int.__ne__, "gt": int.__gt__, "ge": int.__ge__, "lt": int.__lt__, "le": int.__le__}
    for name, relation in table.items():
        flag = execute(f"s_cmpk_{name}_i32 s2, -5", gpu="gfx1100", s={2: values}).waves.scc
        np.testing.assert_array_equal(flag, [relation(S(int(v)), -5) for v in values], err_msg=name)
        flag = execute(f"s_cmpk_{name}_u32 s2, 0xfffb", gpu="gfx1100", s={2: values}).waves.scc
        np.testing.assert_array_equal(flag, [relation(int(v), 0xFFFB) for v in values], err_msg=name)
    a, b = grid(WIDE)
    np.testing.assert_array_equal(execute("s_cmp_lg_u64 s[2:3], s[4:5]", s={2: a, 4: b}).waves.scc, a != b)


@pytest.mark.parametrize("bits", [32, 64])
def test_single_bits_and_masks(execute, bits):
    mask = (1 << bits) - 1
    values, wide = (VALUES, False) if bits == 32 else (WIDE, True)
    a, n = grid(values, [0, 1, 31, 37, 63])
    for name, function in {"bitset0": lambda x, k: x & ~(1 << k), "bitset1": lambda x, k: x | 1 << k}.items():
        to = "s[0:1]" if wide else "s0"
        got = execute(f"s_{name}_b{bits} {to}, s4", s={0: a, 4: n}).scalar(0, np.uint64 if wide else np.uint32)
        want = [function(int(x), int(k) & (bits - 1)) & mask for x, k in zip(a, n, strict=True)]
        np.testing.assert_array_equal(got, np.array(want, got.dtype), err_msg=name)
    for name in ("bitcmp0", "bitcmp1"):
        flag = execute(f"s_{name}_b{bits} {'s[0:1]' if wide else 's0'}, s4", s={0: a, 4: n}).waves.scc
        want = [(int(x) >> (int(k) & (bits - 1)) & 1) == int(name[-1]) for x, k in zip(a, n, strict=True)]
        np.testing.assert_array_equal(flag, want, err_msg=name)


WIDE_REST = {
    "s_nand_b64": lambda a, b: ~(a & b), "s_nor_b64": lambda a, b: ~(a | b), "s_or_not1_b64": lambda a, b: a | ~b,
}  # fmt: skip


def test_the_rest_of_64_bits(execute):
    a, b = grid(WIDE)
    for name, function in WIDE_REST.items():
        got, flag = run(execute, name, a, b, (True, True, True))
        want = np.array([function(int(x), int(y)) & M64 for x, y in zip(a, b, strict=True)], np.uint64)
        np.testing.assert_array_equal(got, want, err_msg=name)
        np.testing.assert_array_equal(flag, want != 0)
    a = np.array(WIDE, np.uint64)
    got, flag = run(execute, "s_wqm_b64", a, None, (True, True, False))
    want = np.array([sum(15 << 4 * k for k in range(16) if x >> 4 * k & 15) for x in WIDE], np.uint64)
    np.testing.assert_array_equal(got, want)
    got, _ = run(execute, "s_bcnt0_i32_b64", a, None, (False, True, False))
    np.testing.assert_array_equal(got, [64 - x.bit_count() for x in WIDE])
    width, offset = grid([0, 1, 33, 63, 64], [0, 5, 63])
    got, _ = run(execute, "s_bfm_b64", width, offset, (True, False, False))
    want = [((1 << (int(w) & 63)) - 1 << (int(o) & 63)) & M64 for w, o in zip(width, offset, strict=True)]
    np.testing.assert_array_equal(got, np.array(want, np.uint64))
    for scc in (False, True):
        machine = execute("s_cmov_b64 s[0:1], s[2:3]", s={0: a, 2: ~a}, scc=scc)
        np.testing.assert_array_equal(machine.scalar(0, np.uint64), ~a if scc else a)


@pytest.mark.parametrize("name", SAVING)
def test_saveexec_of_wave64(execute, name):
    source, active = 0x0F0F12345678FFFF, np.arange(64) % 3 != 0
    old = int(np.packbits(active, bitorder="little").view(np.uint64)[0])
    new = SAVING[name](source, old) & M64
    machine = execute(
        f"s_{name}_saveexec_b64 s[0:1], s[2:3]", s={2: np.array([source], np.uint64)}, active=active, lanes=64
    )
    assert (machine.scalar(0, np.uint64)[0], machine.scalar(126, np.uint64)[0]) == (old, new)
    assert machine.waves.scc[0] == (new != 0)
    if name in ("and_not0", "and_not1"):
        for bits, to, of, mask in ((32, "s0", "s2", M32), (64, "s[0:1]", "s[2:3]", M64)):
            machine = execute(
                f"s_{name}_wrexec_b{bits} {to}, {of}", s={2: np.array([source], np.uint64)}, active=active, lanes=64
            )
            dtype = np.uint32 if bits == 32 else np.uint64
            assert machine.scalar(0, dtype)[0] == machine.scalar(126, dtype)[0] == new & mask


def test_more_moves_by_m0(execute):
    machine = execute(
        "s_mov_b32 m0, 1\ns_movreld_b64 s[4:5], s[2:3]\ns_mov_b32 m0, 0x20001\ns_movrelsd_2_b32 s8, s2",
        s={2: np.array([0x0000000700000005], np.uint64), 4: 0, 5: 0, 6: 0, 10: 0},
    )
    assert [machine.scalar(n)[0] for n in (5, 6, 10)] == [5, 7, 7]


@pytest.mark.parametrize("register", ["26", "HW_REG_SCHED_MODE", "HW_REG_WAVE_SCHED_MODE"])
def test_expert_scheduling_changes_nothing(execute, register):
    """Of RDNA 4 and CDNA 5, where older disassemblers have no name for it; gfx11 has no such register."""
    code = f"s_setreg_imm32_b32 hwreg({register}, 0, 2), 2\ns_mov_b32 s1, 5"
    for gpu in ("gfx1201", "gfx1250"):
        assert execute(code, gpu=gpu).scalar(1)[0] == 5
    with pytest.raises(UnknownInstructionError, match="s_setreg_imm32_b32"):
        execute(code, gpu="gfx1151")


def test_constants_of_mode_only(execute):
    with pytest.raises(UnknownInstructionError, match="s_setreg_b32"):
        execute("s_setreg_b32 hwreg(HW_REG_TRAPSTS, 0, 4), s1", s={1: 0})
    machine = execute("s_setreg_b32 hwreg(HW_REG_MODE, 12, 4), s1", s={1: 0})  # not a floating-point field
    assert machine.scalar(1)[0] == 0

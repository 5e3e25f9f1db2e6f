"""Compares: every relation, type and encoding, NaN, classes, EXEC."""

import operator

import numpy as np
import pytest

VCC, EXEC = 106, 126
INTEGERS = {"u32": np.uint32, "i32": np.int32, "u16": np.uint16, "i16": np.int16, "u64": np.uint64, "i64": np.int64}
FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
RELATIONS = {"lt": operator.lt, "eq": operator.eq, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


def relation(name, is_float):
    if not is_float:
        return {**RELATIONS, "ne": operator.ne}[name]
    unordered = lambda a, b: a != a or b != b  # noqa: E731
    table = {
        **RELATIONS, "lg": lambda a, b: a < b or a > b, "o": lambda a, b: not unordered(a, b), "u": unordered,
        "nge": lambda a, b: not a >= b, "nlg": lambda a, b: not (a < b or a > b), "ngt": lambda a, b: not a > b,
        "nle": lambda a, b: not a <= b, "neq": operator.ne, "nlt": lambda a, b: not a < b,
    }  # fmt: skip
    return table[name]


def pairs(kind):
    if kind in FLOATS:
        values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-7, 3.5]
        x = np.array(values, FLOATS[kind])
    else:
        bits = int(kind[1:])
        x = np.array([0, 1, 2, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1], f"u{bits // 8}").view(
            INTEGERS[kind]
        )
    return tuple(g.ravel() for g in np.meshgrid(x, x))


@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS])
def test_every_relation(execute, kind):
    a, b = pairs(kind)
    is_float = kind in FLOATS
    names = [*RELATIONS, *(["lg", "o", "u", "nge", "nlg", "ngt", "nle", "neq", "nlt"] if is_float else ["ne"])]
    ra, rb = ("v[2:3]", "v[4:5]") if kind.endswith("64") else ("v2", "v4")
    for name in names:
        want = [bool(relation(name, is_float)(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        texts = {
            VCC: f"v_cmp_{name}_{kind}_e32 vcc_lo, {ra}, {rb}",
            8: f"v_cmp_{name}_{kind}_e64 s8, {ra}, {rb}",
            EXEC: f"v_cmpx_{name}_{kind}_e32 {ra}, {rb}",
        }
        for register, text in texts.items():
            machine = execute(text, v={2: a, 4: b})
            np.testing.assert_array_equal(machine.mask(register), want, err_msg=text)
        machine = execute(f"v_cmpx_{name}_{kind}_e64 {ra}, {rb}", v={2: a, 4: b})
        np.testing.assert_array_equal(machine.mask(EXEC), want)


def test_inactive_lanes_give_zero_bits(execute):
    a = np.arange(64, dtype=np.int32)
    active = a % 2 == 0
    machine = execute("v_cmp_lt_i32_e64 s4, v2, 40\nv_cmpx_ge_i32 v2, 10", v={2: a}, s={4: 0xFFFFFFFF}, active=active)
    np.testing.assert_array_equal(machine.mask(4), active & (a < 40))
    np.testing.assert_array_equal(machine.mask(EXEC), active & (a >= 10))


def test_cmpx_decides_what_follows(execute):
    a = np.arange(32, dtype=np.int32)
    machine = execute(
        "v_cmpx_gt_i32 v2, 20\nv_mov_b32 v0, 1\ns_mov_b32 exec_lo, -1\nv_mov_b32 v1, 2", v={2: a, 0: a, 1: a}
    )
    np.testing.assert_array_equal(machine.vector(0, np.int32), np.where(a > 20, 1, a))
    assert (machine.vector(1, np.int32) == 2).all()


def test_wave64_masks_are_pairs(execute):
    a = np.arange(128, dtype=np.int32)
    machine = execute("v_cmp_lt_i32_e64 s[4:5], v2, 50\nv_cndmask_b32_e64 v0, 1, 2, s[4:5]", v={2: a}, lanes=64)
    np.testing.assert_array_equal(machine.mask(4), a < 50)
    np.testing.assert_array_equal(machine.scalar(4, np.uint64), [(1 << 50) - 1, 0])
    np.testing.assert_array_equal(machine.vector(0, np.int32), np.where(a < 50, 2, 1))


def test_source_modifiers(execute):
    a = np.array([-2.0, 2.0, 0.5], np.float32)
    machine = execute("v_cmp_gt_f32_e64 s4, |v2|, 1.0\nv_cmp_lt_f32_e64 s5, -v2, v2", v={2: a})
    np.testing.assert_array_equal(machine.mask(4), [True, True, False])
    np.testing.assert_array_equal(machine.mask(5), [False, True, True])


@pytest.mark.parametrize(
    ("kind", "bits"),
    [("f32", [0x7F800001, 0x7FC00000, 0xFF800000, 0xBF800000, 0x80000001, 0x80000000, 0, 1, 0x3F800000, 0x7F800000]),
     ("f16", [0x7C01, 0x7E00, 0xFC00, 0xBC00, 0x8001, 0x8000, 0, 1, 0x3C00, 0x7C00]),
     ("f64", [0x7FF0000000000001, 0x7FF8 << 48, 0xFFF << 52, 0xBFF << 52, (1 << 63) + 1, 1 << 63, 0, 1, 0x3FF << 52,
              0x7FF << 52])],
)  # fmt: skip
def test_classes(execute, kind, bits):
    x = np.array(bits, f"u{int(kind[1:]) // 8}")
    register = "v[2:3]" if kind == "f64" else "v2"
    for k in range(10):
        machine = execute(
            f"v_cmp_class_{kind}_e64 s4, {register}, {1 << k}\nv_cmp_class_{kind}_e64 s5, -{register}, {1 << k}"
            if kind != "f64"
            else f"v_cmp_class_f64_e64 s4, {register}, {1 << k}",
            v={2: x},
        )
        np.testing.assert_array_equal(machine.mask(4), np.arange(10) == k)
        if kind != "f64" and k > 1:  # the sign turns each class into its mirror image
            np.testing.assert_array_equal(machine.mask(5), np.arange(10) == 11 - k)
    both = execute(f"v_cmp_class_{kind}_e64 s4, {register}, 0x3", v={2: x}).mask(4)
    np.testing.assert_array_equal(both, np.arange(10) < 2)


@pytest.mark.parametrize("kind", ["i32", "u32", "i64", "u64", *FLOATS])
def test_constant_relations_of_gfx11(execute, kind):
    a = np.zeros(32, {**INTEGERS, **FLOATS}[kind])
    active = np.arange(32) < 20
    x = "v[2:3]" if kind.endswith("64") else "v2"
    for name, value in (("t", True), ("f", False)):
        machine = execute(f"v_cmp_{name}_{kind} s4, {x}, {x}", gpu="gfx1100", v={2: a}, active=active)
        np.testing.assert_array_equal(machine.mask(4), active & value)
        machine = execute(f"v_cmpx_{name}_{kind}_e64 {x}, {x}", gpu="gfx1100", v={2: a}, active=active)
        np.testing.assert_array_equal(machine.mask(EXEC), active & value)


@pytest.mark.parametrize("kind", FLOATS)
def test_classes_to_exec(execute, kind):
    a = np.array([np.nan, -np.inf, 1, 0], FLOATS[kind])
    x = "v[2:3]" if kind == "f64" else "v2"
    machine = execute(f"v_cmpx_class_{kind}_e64 {x}, 0x107", v={2: a})
    np.testing.assert_array_equal(machine.mask(EXEC), [True, True, True, False])

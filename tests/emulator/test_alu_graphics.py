"""Cube maps, lighting, wide sums of differences, and registers chosen by M0."""

import numpy as np
import pytest

rng = np.random.default_rng(31)


def test_cube_maps(execute):
    x, y, z = (rng.integers(-3, 4, 400).astype(np.float32) for _ in range(3))
    code = "\n".join(f"v_cube{name}_f32 v{n}, v4, v5, v6" for n, name in enumerate(("id", "ma", "sc", "tc")))
    machine = execute(code, v={4: x, 5: y, 6: z})
    for i, (a, b, c) in enumerate(zip(x, y, z, strict=True)):
        if abs(c) >= abs(a) and abs(c) >= abs(b):
            want = (5 if c < 0 else 4, 2 * c, -a if c < 0 else a, -b)
        elif abs(b) >= abs(a):
            want = (3 if b < 0 else 2, 2 * b, a, -c if b < 0 else c)
        else:
            want = (1 if a < 0 else 0, 2 * a, c if a < 0 else -c, -b)
        assert tuple(machine.vector(n, np.float32)[i] for n in range(4)) == want


def test_lighting(execute):
    lowest = np.finfo(np.float32).min
    a = np.full(6, 2.0, np.float32)
    b = np.array([3, -np.inf, lowest, np.nan, 3, 3], np.float32)
    c = np.array([1, 1, 1, 1, 0, np.nan], np.float32)
    got = execute("v_mullit_f32 v0, v1, v2, v3", v={1: a, 2: b, 3: c}).vector(0, np.float32)
    np.testing.assert_array_equal(got, [6, *[lowest] * 5])
    a, b = np.array([0, -0.0, -3, np.inf], np.float32), np.array([-2, 3, 0, 0], np.float32)
    got = execute("v_mullit_f32 v0, v1, v2, 1.0", v={1: a, 2: b}).vector(0, np.uint32)
    np.testing.assert_array_equal(got, 0)  # as where Direct3D 9 multiplies by zero


def test_four_sums_of_differences(execute):
    a = rng.integers(0, 1 << 63, 200).astype(np.uint64)
    b, *c = (rng.integers(0, 1 << 32, 200).astype(np.uint32) for _ in range(5))
    b[::3] &= np.uint32(0xFF00FF)
    v = {4: a, 6: b, **{8 + k: x for k, x in enumerate(c)}}
    machine = execute("v_mqsad_u32_u8 v[0:3], v[4:5], v6, v[8:11]", v=v)
    for k in range(4):
        want = []
        for x, y, z in zip(a, b, c[k], strict=True):
            first, second = int(x).to_bytes(8, "little")[k : k + 4], int(y).to_bytes(4, "little")
            want.append(sum(abs(p - q) for p, q in zip(first, second, strict=True) if q) + int(z) & 0xFFFFFFFF)
        np.testing.assert_array_equal(machine.vector(k, np.uint32), want)


def test_registers_chosen_by_m0(execute):
    x = np.arange(32, dtype=np.uint32)
    v = {n: x + np.uint32(100 * n) for n in range(2, 12)}
    machine = execute("s_mov_b32 m0, 2\nv_movrelsd_b32 v2, v6", v=v)
    np.testing.assert_array_equal(machine.vector(4, np.uint32), v[8])
    machine = execute("s_mov_b32 m0, 0x10003\nv_movrelsd_2_b32 v2, v6\nv_swaprel_b32 v4, v7", v=v)
    np.testing.assert_array_equal(machine.vector(3, np.uint32), v[9])
    np.testing.assert_array_equal(machine.vector(5, np.uint32), v[10])
    np.testing.assert_array_equal(machine.vector(10, np.uint32), v[5])


@pytest.mark.parametrize("name", ["v_movrels_b32", "v_movrelsd_2_b32"])
def test_registers_that_are_not_there_are_v0(execute, name):
    v = {n: np.arange(32, dtype=np.uint32) + np.uint32(100 * n) for n in range(12)}
    machine = execute(f"s_movk_i32 m0, 0x3ff\n{name} v8, v6", v=v)
    np.testing.assert_array_equal(machine.vector(8, np.uint32), v[0])


@pytest.mark.parametrize(
    "code",
    [
        "s_mov_b32 m0, 0x3ff0000\nv_movrelsd_2_b32 v8, v6", "s_movk_i32 m0, 0x3ff\nv_movreld_b32 v8, v6",
        "s_mov_b32 m0, 0x3ff\nv_swaprel_b32 v8, v6", "s_mov_b32 m0, 0x3ff0000\nv_swaprel_b32 v8, v6",
    ],
)  # fmt: skip
def test_registers_that_are_not_there_are_not_written(execute, code):
    v = {n: np.arange(32, dtype=np.uint32) + np.uint32(100 * n) for n in range(12)}
    machine = execute(code, v=v)
    for n, x in v.items():
        np.testing.assert_array_equal(machine.vector(n, np.uint32), x)


def test_scalar_registers_that_are_not_there(execute):
    s = {n: 100 + n for n in range(12)}
    code = "s_movk_i32 m0, 0x3ff\ns_movreld_b32 s8, s6\ns_movreld_b64 s[8:9], s[6:7]\ns_movrelsd_2_b32 s10, s6"
    machine = execute(code + "\ns_movrels_b32 s4, s6", s=s)
    assert [int(machine.scalar(n)[0]) for n in (4, 8, 9, 10)] == [100, 108, 109, 100]


@pytest.mark.parametrize("name", ["v_movrels_b32", "v_movreld_b32"])
def test_moves_by_number_from_another_lane(execute, name):
    """DPP: row_shr by 1; the first lane of a row has no source and stays."""
    x, old = np.arange(32, dtype=np.uint32), np.full(32, 77, np.uint32)
    source, destination = ("v2", "v8") if name == "v_movrels_b32" else ("v4", "v6")
    code = f"s_mov_b32 m0, 2\n{name}_dpp {destination}, {source} row_shr:1 row_mask:0xf bank_mask:0xf"
    got = execute(code, v={4: x, 8: old}).vector(8, np.uint32)
    np.testing.assert_array_equal(got, np.where(x % 16 == 0, 77, x - 1))

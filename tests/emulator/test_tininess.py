"""What is denormal is found before denormals are rounded, and NaNs of fused sums: values seen on gfx1100 and gfx1201
(rocjitsu's records of hardware).
"""

import numpy as np
import pytest

BOTH = pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])


def words(*values):
    return np.resize(np.array(values, np.uint32), 32)


@BOTH
@pytest.mark.parametrize("rounding", range(4))
@pytest.mark.parametrize("kept", [False, True])
def test_products_just_below_the_normal_numbers(execute, gpu, rounding, kept):
    code = f"s_round_mode {rounding}\ns_denorm_mode {3 * kept}\nv_mul_f32 v0, v1, v2\nv_fma_f32 v3, v1, v2, 0"
    machine = execute(code, gpu=gpu, v={1: words(0x00800000, 0x80800000), 2: words(0x3F7FFFFF)})
    want = [0, 0x80000000]
    if kept:
        want = [0x00800000 if rounding < 2 else 0x007FFFFF, 0x80800000 if rounding in (0, 2) else 0x807FFFFF]
    for n in (0, 3):
        assert machine.vector(n, np.uint32)[:2].tolist() == want


@BOTH
@pytest.mark.parametrize("rounding", range(4))
@pytest.mark.parametrize("denormals", [0, 3])
def test_directx_sums_take_denormals_for_zeros(execute, gpu, rounding, denormals):
    cases = [  # a, b, c, a b + c
        (0, 0x7F800000, 0x3F800000, 0x3F800000), (0x7FC01234, 0x80000000, 0x3F800000, 0x3F800000),
        (1, 0x4B000000, 0, 0), (0x00800000, 0x3F000000, 0, 0), (0x80800000, 0x33800000, 0x00800000, 0),
        (0x80800000, 0x33000000, 0x00800000, 0x00800000 if rounding < 2 else 0),
        (0x7FC00111, 0x7FC00222, 0x7FC00333, 0x7FC00111), (0x3F800000, 0x3F800000, 0x7F800012, 0x7FC00012),
    ]  # fmt: skip
    a, b, c, want = (words(*column) for column in zip(*cases, strict=True))
    code = f"s_round_mode {rounding}\ns_denorm_mode {denormals}\nv_fma_dx9_zero_f32 v0, v1, v2, v3"
    np.testing.assert_array_equal(execute(code, gpu=gpu, v={1: a, 2: b, 3: c}).vector(0, np.uint32), want)


@BOTH
@pytest.mark.parametrize("kept", [False, True])
def test_nans_of_fused_sums_of_halves(execute, gpu, kept):
    """The first one comes out, quiet, but zero times infinity wins over the addend."""
    cases = [
        (0x7FC1, 0xFF80, 0xFF80, 0x7FC1), (0x7C01, 0x3C00, 0, 0x7E01), (0x3C00, 0xFC12, 0x7E01, 0xFE12),
        (0x3C00, 0x3C00, 0x7C01, 0x7E01), (0, 0x7C00, 0x7E01, 0xFE00), (0x7C00, 0x3C00, 0xFC00, 0xFE00),
        (1, 0x7C00, 0x7E01, 0x7E01 if kept else 0xFE00),
    ]  # fmt: skip
    a, b, c, want = (np.resize(np.array(column, np.uint16), 32) for column in zip(*cases, strict=True))
    for name in ("v_fma_f16", "v_pk_fma_f16"):
        code = f"s_denorm_mode {12 * kept}\n{name} v0, v1, v2, v3"
        np.testing.assert_array_equal(execute(code, gpu=gpu, v={1: a, 2: b, 3: c}).vector(0, np.uint16), want, name)


def test_scaled_results_are_rounded_before(execute):
    """div:2 of fp16 on gfx1201, under the directed modes: overflow, and what is denormal, come first."""
    a, b = np.array([0x3C00, 1] * 16, np.uint16), np.array([0x7BFF, 0x3400] * 16, np.uint16)
    c = np.array([0x7BFF, 0x8400] * 16, np.uint16)
    for rounding, want in enumerate([(0x7C00, 0x8000), (0x7C00, 0), (0x77FF, 0x8000), (0x77FF, 0)]):
        code = f"s_round_mode {rounding << 2}\ns_denorm_mode 4\nv_fma_f16 v0.l, v1.l, v2.l, v3.l div:2"
        got = execute(code, gpu="gfx1201", v={1: a, 2: b, 3: c}).vector(0, np.uint16)
        assert tuple(got[:2].tolist()) == want, rounding


def test_exact_values_decide_for_conversions_and_powers(execute):
    """Below the normal numbers before any rounding they are zeros under omod (bjacob/goc, by values of gfx1201)."""
    x = np.array([1 - 2**-30, 1 - 2**-53, 1.0, -1 + 2**-30] * 8) * 2.0**-126
    y = np.array([1.0, 1 - 2**-53] * 16)
    code = """v_cvt_f32_f64 v10, v[0:1] mul:2
    v_ldexp_f32 v11, v4, v5 mul:4
    v_ldexp_f64 v[12:13], v[2:3], v6 mul:2
    v_cvt_f32_f64_e32 v14, v[0:1]"""
    powers = {5: np.full(32, -126, np.int32), 6: np.full(32, -1022, np.int32)}
    machine = execute(code, gpu="gfx1201", v={0: x, 2: y, 4: words(0x3F7FFFFF, 0x3F800000)} | powers)
    assert machine.vector(10, np.uint32)[:4].tolist() == [0, 0, 0x01000000, 0]
    assert machine.vector(11, np.uint32)[:2].tolist() == [0, 0x01800000]
    assert machine.vector(12, np.uint64)[:2].tolist() == [0x0020000000000000, 0]
    assert machine.vector(14, np.uint32)[:4].tolist() == [0x00800000] * 3 + [0x80800000]


def test_ignored_scales_leave_products_alone(execute):
    """Before gfx12 omod does nothing where denormal results are kept."""
    given = {1: words(0x00800000), 2: words(0x3F7FFFFF)}
    machine = execute("v_mul_f32 v0, v1, v2 mul:2", gpu="gfx1151", v=given)
    assert (machine.vector(0, np.uint32) == 0x00800000).all()

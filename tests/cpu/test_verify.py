"""The judge of every other test: it has to fail what is wrong and pass what is rounded well."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneloom import verify
from laneloom.errors import UnsupportedError
from laneloom.gpu import get_gpu
from laneloom.ops.matmul import reference

RNG = np.random.default_rng(0)
A, B = (RNG.standard_normal(shape).astype(np.float16) for shape in ((40, 300), (300, 24)))


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    return verify.decode(verify.encode(values, dtype), dtype)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_rounded_product_passes(dtype):
    verdict = reference.judge(rounded(reference.same_precision(A, B), dtype), A, B, dtype)
    assert verdict.ok
    assert 0 < verdict.error <= verdict.budget
    assert verdict.share <= 1


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda c: np.nan,
        lambda c: np.inf,
        lambda c: 0.0,
        lambda c: -c,
        lambda c: c * (1 + 2.0**-5),
    ],
    ids=["nan", "inf", "zero", "sign", "relative"],
)
def test_one_wrong_element_fails(dtype, damage):
    c = rounded(reference.truth(A, B), dtype)
    at = np.unravel_index(np.argmax(np.abs(c)), c.shape)
    c[at] = damage(c[at])
    verdict = reference.judge(c, A, B, dtype)
    assert not verdict.ok
    assert verdict.index == tuple(int(i) for i in at)


def test_a_missing_term_fails():
    for k in (0, 7, 299):
        a = A.copy()
        a[:, k] = 0
        assert not reference.judge(rounded(reference.truth(a, B), "fp16"), A, B, "fp16").ok


def test_half_precision_sums_fail():
    """Sums in the output's precision are worse than one rounding of FP32 sums."""
    c = np.zeros((40, 24), np.float16)
    for k in range(300):
        c += A[:, k : k + 1] * B[k]
    assert not reference.judge(c, A, B, "fp16").ok


def test_denormals_that_count_as_zeros():
    """Their products may be missing where the GPU is known for that, and nothing else may."""
    a = A.copy()
    a[3, ::20] = 2.0**-15
    kept = np.where(np.abs(a) < 2.0**-14, np.float16(0), a)
    got = rounded(reference.truth(kept, B), "fp32")
    verdict = reference.judge(got, a, B, "fp32")
    assert not verdict.ok
    assert verdict.index[0] == 3
    assert reference.judge(got, a, B, "fp32", zeros="fp16").ok
    assert reference.judge(rounded(reference.truth(a, B), "fp32"), a, B, "fp32", zeros="fp16").ok
    got[3] += 2 * verify.lost_to_zeros(a, B, "fp16")[3]
    assert not reference.judge(got, a, B, "fp32", zeros="fp16").ok
    assert not verify.lost_to_zeros(a, B, "bf16")[3].max() > 1e-30


def test_products_that_are_cut():
    """Seven products of a little less than 2**-23 beside one of 1 are cut to 2**-24 each; nothing is short of that."""
    a = np.array([[1.0, *[2.0**-12 * (2 - 2.0**-9)] * 7]])
    b = np.array([[1.0], *[[2.0**-12]] * 7])
    magnitude = reference.truth(a, b)
    got = rounded(1 + 7 * np.full((1, 1), 2.0**-24), "fp32")
    assert not reference.judge(got, a, b, "fp32").ok
    assert reference.judge(got, a, b, "fp32", cuts=("fp16", 8)).ok
    lost = verify.lost_to_cuts(a, b, "fp16", 8)
    assert (lost > 8 * 2.0**-24).all()
    assert (lost < 8 * 2.0**-24 + 2.0**-29).all()
    assert not reference.judge(magnitude - 2 * lost, a, b, "fp32", cuts=("fp16", 8)).ok


@pytest.mark.parametrize("shape", [(3, 100, 2), (7, 200, 5), (1, 9, 1)])
def test_few_sums_are_held_to_a_chain(shape):
    """Whatever the machine's numpy adds: each product to the sum of those before it."""
    m, k, n = shape
    a, b = RNG.random((m, k)).astype(np.float32), RNG.random((k, n)).astype(np.float32)
    total = np.zeros((m, n), np.float32)
    for i in range(k):
        total = (total.astype(np.float64) + np.multiply.outer(*(x.astype(np.float64) for x in (a[:, i], b[i])))).astype(
            np.float32
        )
    np.testing.assert_array_equal(reference.same_precision(a, b), total)


def test_nan_and_infinity_have_to_be_where_the_truth_has_them():
    a = A.copy()
    a[3, 5], a[4, 6] = np.nan, np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        c = rounded(reference.truth(a, B), "fp16")
    assert reference.judge(c, a, B, "fp16").ok
    for row, wrong in ((3, 1.0), (4, np.nan), (4, 65504.0), (5, np.nan)):
        damaged = c.copy()
        damaged[row, 2] = wrong
        assert not reference.judge(damaged, a, B, "fp16").ok


def test_overflow_of_the_output_may_be_infinite():
    a = np.full((1, 100), 100.0, np.float16)
    truth = np.array([[1e6]])
    assert reference.judge(np.array([[np.inf]]), a, a.T, "fp16").ok
    assert not reference.judge(np.array([[-np.inf]]), a, a.T, "fp16").ok
    assert not reference.judge(np.array([[np.inf]]), a, a.T, "fp32").ok
    assert reference.judge(truth, a, a.T, "fp32").ok


def test_no_elements():
    assert reference.judge(np.zeros((0, 3)), np.zeros((0, 5)), np.zeros((5, 3)), "fp16").ok
    assert reference.judge(np.zeros((2, 3)), np.zeros((2, 0)), np.zeros((0, 3)), "fp16").ok
    assert not reference.judge(np.full((2, 3), 1e-3), np.zeros((2, 0)), np.zeros((0, 3)), "fp16").ok


@given(st.floats(width=32))
def test_bf16_rounds_to_nearest_even(value):
    got = verify.decode(verify.encode(np.array([value]), "bf16"), "bf16")[0]
    if np.isnan(value):
        assert np.isnan(got)
        return
    below = np.array([np.float32(value).view(np.uint32) & 0xFFFF0000], np.uint32)
    with np.errstate(over="ignore"):
        near = [float(x.view(np.float32)[0]) for x in (below, below + np.uint32(0x10000))]
    if not np.isfinite(near).all():
        assert abs(got) >= verify.LARGEST["bf16"]
        return
    distance = [abs(float(value) - x) for x in near]
    assert abs(got - float(value)) == min(distance)
    if distance[0] == distance[1]:
        assert verify.encode(np.array([value]), "bf16")[0] % 2 == 0


def test_formats():
    with pytest.raises(UnsupportedError, match=r"dtype: expected one of fp64, fp32, fp16, bf16, .*, got fp4"):
        verify.encode(np.zeros(1), "fp4")
    for dtype, largest in verify.LARGEST.items():
        assert rounded(np.array([largest]), dtype)[0] == largest
        assert rounded(np.array([verify.SMALLEST[dtype]]), dtype)[0] == verify.SMALLEST[dtype]
        assert rounded(np.array([1 + verify.UNIT_ROUNDOFF[dtype]]), dtype)[0] == 1
        assert rounded(np.array([1 + 2 * verify.UNIT_ROUNDOFF[dtype]]), dtype)[0] > 1


@pytest.mark.parametrize("strides", [None, (1, 5), (9, 2)])
def test_guarded(strides):
    guarded = verify.Guarded((5, 4), "fp16", strides)
    assert np.isnan(guarded.array).all()
    guarded.array[...] = 1
    assert guarded.untouched_outside()
    outside = np.lib.stride_tricks.as_strided(guarded.array, (5, 5), guarded.array.strides)
    outside[4, 4] = np.nan
    assert not guarded.untouched_outside()
    below = verify.Guarded((5, 4), "bf16")
    below._bits[verify.Guarded.BAND - 1] = 0
    assert not below.untouched_outside()


@pytest.mark.parametrize("one", ["row", "column"])
def test_one_row_may_be_summed_in_one_chain(one):
    """BLAS sums a matrix-vector product in several chains, a kernel in one; another precision's sums stay wrong."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((1, 1031), np.float32), rng.standard_normal((1031, 500), np.float32)
    total = np.zeros((1, 500), np.float32)
    for k in range(1031):
        total = (total + a[:, k, None].astype(np.float64) * b[k]).astype(np.float32)
    if one == "column":
        a, b, total = b.T, a.T, total.T
    assert reference.judge(total, a, b, "fp32").ok
    assert reference.judge_gemm(total, a, b, "fp32").ok
    coarse = np.float64(total) + 2.0**-14 * np.abs(a).astype(np.float64) @ np.abs(b)
    assert not reference.judge(coarse, a, b, "fp32").ok


@pytest.mark.parametrize("seed", range(20))
def test_few_sums_of_halves_in_another_order_are_right(seed):
    """What two sums lose in numpy's order tells little of what they may lose."""
    g = np.random.default_rng(seed)
    depth = int(g.integers(2, 300))
    a, b = (g.standard_normal(size).astype(np.float16).astype(np.float32) for size in ((1, depth), (depth, 2)))
    order = g.permutation(depth)
    got = reference.same_precision(a[:, order], b[order], "fp16").astype(np.float16)
    assert reference.judge_gemm(got, a, b, "fp16", accumulator="fp16").ok
    assert reference.judge(got, a, b, "fp16", "fp16").ok
    wrong = (got + 2.0**-6 * np.abs(a) @ np.abs(b)).astype(np.float16)
    assert not reference.judge_gemm(wrong, a, b, "fp16", accumulator="fp16").ok


@pytest.mark.parametrize(("dtype", "products"), [("fp16", 2), ("fp16", 4), ("bf16", 2), ("bf16", 4)])
@pytest.mark.parametrize("what", ["normal", "positive", "denormal", "large sum"])
def test_what_wmma_cuts_off_is_within_its_bound(dtype, products, what):
    """Sums by the steps themselves, without the rounding of each: off by no more than the bound, by a part of it."""
    from laneloom.emulator.wmma_sums import Factors, Sums, add_products

    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 16, 512))
    if what == "positive":
        a, b = np.abs(a), np.abs(b)
    elif what == "denormal":
        a, b = a * 2.0**-16, b * 2.0**-16
    elif what == "large sum":
        a[:, 0] = b[:, 0] = 30
    bits = [verify.encode(x, dtype).view(np.uint16) for x in (a, b)]
    a, b = (verify.decode(x if dtype == "bf16" else x.view(np.float16), dtype) for x in bits)
    of, got = Sums(dtype == "bf16", "f32", products == 4), np.zeros((1, 16, 16), np.float32)
    for k in range(0, 512, 16):
        sides = [Factors(np.ascontiguousarray(x[:, k : k + 16].T[:, None]), of) for x in bits]
        got = add_products(*sides, got)
    exact = a @ b.T
    sums = np.abs(np.cumsum(a[:, None] * b[None], axis=2))[:, :, products - 1 :: products].sum(axis=2)
    rounding = 2.0**-24 * sums * 1.001  # half a unit of each sum that was rounded
    bound = verify.lost_to_cuts(a, b.T, dtype, products)
    error = np.abs(got[0] - exact)
    assert (error <= bound + rounding).all()
    assert error.max() > 0.01 * bound.max() or what == "denormal"


@pytest.mark.parametrize("accumulator", ["fp32", "fp64"])
def test_few_sums_are_judged_by_several_orders(accumulator):
    """Eight sums of one row, in an order of their own: what one order loses says little of what another may."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        a, b = rng.standard_normal((1, 64)), rng.standard_normal((64, 8))
        if accumulator == "fp32":
            a, b = a.astype(np.float32), b.astype(np.float32)
        order = rng.permutation(64)
        got = reference.same_precision(a[:, order], b[order], accumulator)
        assert reference.judge(got, a, b, accumulator, accumulator).ok, seed
        wrong = got + 2.0 ** (-45 if accumulator == "fp64" else -17) * np.abs(a) @ np.abs(b)
        assert not reference.judge(wrong, a, b, accumulator, accumulator).ok, seed


def test_who_cuts_products_off():
    gpus = ("gfx1100", "gfx1201", "gfx942", "gfx950", "sm_90a")
    cuts = {name: reference.cuts_of(get_gpu(name), "fp8") for name in gpus}
    assert cuts == {"gfx1100": ("fp16", 2), "gfx1201": None, "gfx942": ("fp8", 8), "gfx950": None, "sm_90a": None}
    assert reference.cuts_of(get_gpu("gfx1151"), "bf16") == ("bf16", 2)
    assert reference.cuts_of(get_gpu("gfx1151"), "fp64") is None

"""How matrix instructions of CDNA 1 to 3 add: against a slow model by fractions, and values of an MI300X."""

import mfma_model
import numpy as np
import pytest

from laneloom.emulator.exact_sums import sum_rounded_once
from laneloom.emulator.mfma import values_of
from laneloom.emulator.mfma_sums import sum_of
from laneloom.gpu import get_gpu
from laneloom.isa.catalogue import find_instruction, instructions

MEASURED = [
    (gpu, row.name)
    for gpu in ("gfx908", "gfx90a", "gfx942")
    for row in instructions(gpu)
    if not row.sparse and row.a not in ("i8", "iu8")
]
WIDTHS = {"f64": 64, "f32": 32, "xf32": 32, "f16": 16, "bf16": 16}
#: of each type the powers of two between which numbers are drawn: wide apart, near its end, around one, where products
#: of the type and of FP32 end
SPANS = {
    "f64": ((-300, 300), (-540, -460), (-30, 30), (508, 514)), "f32": ((-60, 60), (-150, -60), (-8, 8), (61, 65)),
    "xf32": ((-60, 60), (-150, -60), (-4, 4), (61, 65)), "bf16": ((-60, 60), (-136, -60), (-8, 8), (61, 65)),
    "f16": ((-24, 15), (-26, -10), (-3, 3), (13, 15)), "fp8_fnuz": ((-10, 7), (-12, -5), (-2, 2), (5, 7)),
    "bf8_fnuz": ((-17, 15), (-19, -11), (-2, 2), (13, 15)),
}  # fmt: skip
CASES = ["any bits", "wide", "least", "near", "largest", "whole", "zeros"]


def encoded(values, kind):
    """The bits of the nearest number toward zero: which one does not matter here."""
    if kind in ("f64", "f32", "xf32"):
        return values.astype(np.float64 if kind == "f64" else np.float32).view(f"u{WIDTHS[kind] // 8}")
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    numbers = values_of(np.arange(128, dtype=np.uint8), kind)
    codes = np.searchsorted(numbers, np.abs(values), side="right") - 1
    return np.where((values < 0) & (codes > 0), codes | 0x80, codes).astype(np.uint8)


def draw(rng, kind, case, shape):
    """Numbers of a type in float64."""
    width = WIDTHS.get(kind, 8)
    if case == "any bits":
        return values_of(rng.integers(0, 1 << width, shape, np.uint64).astype(f"u{width // 8}"), kind)
    if case in ("whole", "zeros"):
        return rng.integers(-3, 4, shape).astype(float) * (rng.random(shape) < (0.3 if case == "zeros" else 1))
    low, high = SPANS[kind][("wide", "least", "near", "largest").index(case)]
    values = np.ldexp(rng.standard_normal(shape), rng.integers(low, high, shape))
    return values_of(encoded(values, kind), kind)


def addends(rng, row, a, b, shape):
    """By fours: of any bits, zero, the product's negative or something near it, anything."""
    kind = "f64" if row.a == "f64" else "f32"
    store = np.float64 if kind == "f64" else np.float32
    cancels = -(a @ b) * rng.choice([1, 1, 1 + 2.0**-12, 0.5, 2.0**20], shape)
    any_bits, wide = draw(rng, kind, "any bits", shape), draw(rng, kind, "wide", shape)
    which = rng.integers(0, 4, shape)
    return np.choose(which, [any_bits, np.zeros(shape), cancels, wide]).astype(store).astype(float)


def same(got, want):
    """Bit by bit, a NaN being any; the signs of zeros too."""
    got = np.asarray(got, np.float64)
    return ((got == want) & (np.signbit(got) == np.signbit(want))) | (np.isnan(got) & np.isnan(want))


def as_read(gpu, row, *matrices):
    """CDNA 2 reads denormals of 16-bit products and their addends as +0."""
    if gpu != "gfx90a" or row.a not in ("f16", "bf16"):
        return matrices
    least = [2.0**-14 if row.a == "f16" else 2.0**-126] * 2 + [2.0**-126]
    return tuple(np.where(np.abs(x) < n, 0.0, x) for x, n in zip(matrices, least, strict=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("gpu", "name"), MEASURED)
def test_sums_are_those_of_the_slow_model(gpu, name, case):
    row, rng = find_instruction(name, gpu), np.random.default_rng(CASES.index(case))
    with np.errstate(all="ignore"):
        a, b = draw(rng, row.a, case, (3, 1, 4, row.k)), draw(rng, row.b, case, (3, 1, row.k, 5))
        c = addends(rng, row, a, b, (3, 1, 4, 5))
        got = sum_of(row, get_gpu(gpu))(*as_read(gpu, row, a, b, c))
    assert got.dtype == (np.float64 if row.a == "f64" else np.float32)
    want = mfma_model.product(gpu, row, a, b, c)
    wrong = ~same(got, want)
    assert not wrong.any(), (a[wrong.any(-1)], got[wrong], want[wrong])


@pytest.mark.parametrize(("gpu", "name"), [x for x in MEASURED if x[1].endswith(("16f16", "16_bf16", "4_f64", "_bf8"))])
def test_waves_and_elements_do_not_see_each_other(gpu, name):
    """Many waves give what each gives, which may go another way: one wave has infinities, others none."""
    row, rng = find_instruction(name, gpu), np.random.default_rng(1)
    shape = (20, row.blocks, row.m, row.k), (20, row.blocks, row.k, row.n)
    a, b = (draw(rng, kind, "near", s) for kind, s in zip((row.a, row.b), shape, strict=True))
    c = rng.standard_normal((20, row.blocks, row.m, row.n)).astype(np.float32).astype(float)
    add = sum_of(row, get_gpu(gpu))
    with np.errstate(all="ignore"):
        before = add(a, b, c)
        a[7, 0, 1, 2], c[3, 0, 0, 0] = np.inf, np.nan
        together = add(a, b, c)
        apart = np.concatenate([add(*(x[i : i + 1] for x in (a, b, c))) for i in range(20)])
    assert same(together, apart.astype(np.float64)).all()
    untouched = np.ones(c.shape, bool)
    untouched[7, 0, 1], untouched[3, 0, 0, 0] = False, False
    np.testing.assert_array_equal(together[untouched], before[untouched])
    assert not np.isfinite(together[7, 0, 1]).any()


def test_a_number_is_an_addend_of_every_element():
    row = find_instruction("v_mfma_f32_16x16x16_f16", "gfx942")
    add = sum_of(row, get_gpu("gfx942"))
    got = add(np.ones((1, 1, 16, 16)), np.ones((1, 1, 16, 16)), 0.5)
    np.testing.assert_array_equal(got, np.full((1, 1, 16, 16), 16.5, np.float32))


@pytest.mark.parametrize(("gpu", "name"), [
    ("gfx942", "v_smfmac_f32_16x16x32_f16"), ("gfx950", "v_mfma_f32_16x16x32_f16"),
    ("gfx950", "v_mfma_f32_16x16x4_f32"), ("gfx942", "v_mfma_i32_16x16x32_i8"),
])  # fmt: skip
def test_what_nobody_measured_is_rounded_once(gpu, name):
    assert sum_of(find_instruction(name, gpu), get_gpu(gpu)) is None


def test_rules_tell_gpus_apart():
    """-8388608 - 0.5 - 0.25 - 0.125 + 8388608: exact, in pairs and FP32, and cut to 24 bits below the largest."""
    a, b = np.array([-(2.0**13), -0.5, -0.25, -0.125]), np.array([2.0**10, 1, 1, 1])
    got = {}
    for gpu, name in (("gfx908", "4x4x4f16"), ("gfx90a", "4x4x4f16"), ("gfx942", "4x4x4_16b_f16")):
        add = sum_of(find_instruction(f"v_mfma_f32_{name}", gpu), get_gpu(gpu))
        got[gpu] = add(a[None, None, None], b[None, None, :, None], np.full((1, 1, 1, 1), 2.0**23)).item()
    # In FP32 -8388608.5 is a tie, which goes to the even -8388608.
    assert got == {"gfx908": -0.875, "gfx90a": 0.0, "gfx942": -0.5}


ULP = 2.0**-52


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942", "gfx950"])
def test_no_product_of_fp64_is_rounded_by_itself(gpu, execute):
    """In every row and column (1 + ULP)**2 - (1 + 2 ULP), which is nothing where the product is rounded first."""
    text = "v_mfma_f64_16x16x4f64" if gpu == "gfx90a" else "v_mfma_f64_16x16x4_f64"
    ones = np.where(np.arange(64) < 16, 1 + ULP, 0.0)  # k = 0 lies in the first 16 lanes
    addend = {n: np.full(64, -(1 + 2 * ULP)) for n in range(8, 16, 2)}
    machine = execute(
        f"{text} v[16:23], v[4:5], v[6:7], v[8:15]", gpu=gpu, lanes=64, v={4: ones, 6: ones, **addend},
        directives=".amdhsa_accum_offset 32",
    )  # fmt: skip
    for n in range(16, 24, 2):
        np.testing.assert_array_equal(machine.vector(n, np.float64), np.full(64, ULP**2))


EDGES = [
    # Of what lies below the smallest normal number 31 bits are kept: 2**-158 does not break a tie.
    ("gfx942", "16x16x16_bf16", {0: (2.0**-75, 2.0**-75), 1: (2.0**-79, 2.0**-79)}, 0.0, 0.0),
    ("gfx942", "16x16x16_bf16", {0: (2.0**-75, 2.0**-75), 1: (2.0**-79, 2.0**-79)}, 2.0**-130, 2.0**-130),
    ("gfx942", "16x16x16_bf16", {0: (2.0**-75, 2.0**-75), 1: (2.0**-79, 2.0**-78)}, 0.0, 2.0**-149),
    ("gfx942", "16x16x16_bf16", {8: (-(2.0**-75), 2.0**-75), 9: (2.0**-79, 2.0**-79)}, 0.0, -0.0),
    ("gfx942", "16x16x16_bf16", {0: (-(2.0**-75), 2.0**-75), 1: (-(2.0**-79), 2.0**-79)}, 0.0, -(2.0**-149)),
    # A product that FP32 cannot hold is infinite, though the sum could be held.
    ("gfx942", "16x16x16_bf16", {3: (2.0**64, 2.0**64)}, -(2.0**127), np.inf),
    ("gfx942", "16x16x16_bf16", {3: (2.0**64, -(2.0**63) * 1.9921875)}, 2.0**127, -0.9921875 * 2.0**127),
    ("gfx942", "16x16x8_xf32", {3: (2.0**64, 2.0**64), 2: (-(2.0**64), 2.0**64)}, 0.0, np.nan),
    # Sums that are denormal are zeros of their sign, denormal operands are +0.
    ("gfx90a", "16x16x16bf16_1k", {12: (2.0**-126, 1.0)}, -1.5 * 2.0**-126, -0.0),
    ("gfx90a", "16x16x8bf16", {0: (2.0**-126, 1.0), 1: (-1.5 * 2.0**-126, 1.0)}, 0.0, 0.0),
    ("gfx90a", "16x16x16bf16_1k", {0: (2.0**-126, 1.0), 2: (-1.5 * 2.0**-126, 1.0)}, -(2.0**-126), -(2.0**-126)),
    ("gfx90a", "16x16x16bf16_1k", dict.fromkeys(range(16), (2.0**-130, -1.0)), -0.0, 0.0),
    # Sums of FP64 that seem to be half-way by what the product loses.
    ("gfx942", "16x16x4_f64", {0: (2.0**-27 * (1 + 2.0**-30), 2.0**-26 * (1 - 2.0**-30))}, 1 + ULP, 1 + ULP),
    ("gfx942", "16x16x4_f64", {0: (2.0**-27 * (1 + 2.0**-30), 2.0**-26 * (1 - 2.0**-30))}, -1 - ULP, -1 - ULP),
    ("gfx90a", "16x16x4f64", {1: (2.0**-27 * (1 + 2.0**-30), 2.0**-26 * (1 - 2.0**-30))}, 1.0, 1.0),
    ("gfx942", "16x16x4_f64", dict.fromkeys(range(4), (-0.0, 1.0)), -0.0, -0.0),
    ("gfx942", "16x16x4_f32", dict.fromkeys(range(4), (-0.0, 1.0)), -0.0, -0.0),
    # What an FP64 product loses may be denormal, and then cannot be split off.
    ("gfx942", "16x16x4_f64", {0: (float.fromhex("0x1.043b27b61342fp-501"), float.fromhex("0x1.90ef0dac83754p-504"))},
     float.fromhex("-0x1.978f6f2cef78fp-1005"), float.fromhex("0x0.000000000a6f0p-1022")),
    # Sums of 16 bits that lie beside a tie by less than float64 shows.
    ("gfx908", "16x16x8bf16", {0: (1.0, 2.0**-24), 1: (2.0**-60, 2.0**-60)}, 1.0, 1 + 2.0**-23),
    ("gfx908", "16x16x8bf16", {0: (1.0, 2.0**-24), 1: (-(2.0**-60), 2.0**-60)}, 1 + 2.0**-23, 1 + 2.0**-23),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "name", "terms", "c", "want"), EDGES)
def test_edges(gpu, name, terms, c, want):
    row = find_instruction(("v_mfma_f64_" if name.endswith("f64") else "v_mfma_f32_") + name, gpu)
    a, b, c = np.zeros((1, 1, 1, row.k)), np.zeros((1, 1, row.k, 1)), np.full((1, 1, 1, 1), c)
    for k, (x, y) in terms.items():
        a[..., k], b[..., k, 0] = x, y
    got = sum_of(row, get_gpu(gpu))(*as_read(gpu, row, a, b, c)).astype(np.float64)
    assert same(got, mfma_model.product(gpu, row, a, b, c)).all(), got
    assert same(got, want).all(), got


def test_sums_of_which_float64_cannot_hold_what_is_lost():
    """1 + 2**-24 is half-way between two float32; 2**-140 tells, which the sum of what the additions lose drops."""
    terms = [2.0**60, 1.0, 2.0**-24, 2.0**-140, -(2.0**60)]
    for sign in (1, -1):
        assert sum_rounded_once([np.array([sign * x]) for x in terms]) == sign * (1 + 2.0**-23)
        turned = [-x if x == 2.0**-140 else x for x in terms]
        assert sum_rounded_once([np.array([sign * x]) for x in turned]) == sign


FP8 = find_instruction("v_mfma_f32_16x16x32_fp8_fp8", "gfx942")


def of_fp8(terms, c=0.0):
    """The sum of products a b at some k of the 16 that are added together, and c."""
    a, b = np.zeros((1, 1, 1, 16)), np.zeros((1, 1, 16, 1))
    for k, (x, y) in terms.items():
        a[..., k], b[..., k, 0] = x, y
    for x in (a, b):
        assert np.isin(np.abs(x), values_of(np.arange(128, dtype=np.uint8), "fp8_fnuz")).all()
    return sum_of(FP8, get_gpu("gfx942"))(a, b, np.full((1, 1, 1, 1), c)).item()


LARGE, SMALL = 2.0**7, 2.0**-5
CUT = {0.25: 0.0, 0.75: 0.0, -0.25: 0.0, -0.75: 0.0, 0.5: 0.0, 1.5: 1.0, -0.5: 0.0, -1.5: -1.0}
FLOOR = {0.25: 0.0, 0.75: 0.0, -0.25: -1.0, -0.75: -1.0, 0.5: 0.0, 1.5: 1.0, -0.5: -1.0, -1.5: -2.0}
#: of the addend: what lies more than 25 bits below the products is dropped
ADDEND = {0.25: 0.0, 0.75: 0.0, -0.25: 0.0, -0.75: -1.0, 0.5: 0.0, 1.5: 1.0, -0.5: -1.0, -1.5: -2.0, -0.125: 0.0}


def test_values_of_an_mi300x():
    """What MMA-Sim's notebook of probes printed for v_mfma_f32_16x16x32_fp8_fp8 (facts; the cases are written anew)."""
    for s, units in CUT.items():  # two even terms cancel, a third is cut toward zero; odd ones alike
        for first in (0, 1):
            terms = {first: (LARGE, LARGE), first + 2: (LARGE, -LARGE), first + 4: (s * SMALL, SMALL)}
            assert of_fp8(terms) == units * 2.0**-10
    for s, units in FLOOR.items():  # the sum of the odd terms is cut downwards beside that of the even ones
        for first, other in ((0, 1), (1, 0)):
            terms = {first: (LARGE, LARGE), first + 2: (LARGE, -LARGE), other: (s * SMALL, SMALL)}
            assert of_fp8(terms) == units * 2.0**-10
    for s, units in ADDEND.items():
        assert of_fp8({0: (LARGE, LARGE), 2: (LARGE, -LARGE)}, s * SMALL**2) == units * 2.0**-10
    for e in range(20, 30):
        small = (LARGE * 2.0 ** -(e // 2) * (0.5 if e % 2 else 1), LARGE * 2.0 ** -(e // 2))
        kept = 2.0 ** (14 - e) if e < 25 else 0.0
        # A product of 2.25 units of its power, and two products of one, leave the grid where it is.
        assert of_fp8({0: (1.5 * LARGE, 1.5 * LARGE), 2: (1.5 * LARGE, -1.5 * LARGE), 4: small}) == kept
        assert of_fp8({0: (LARGE, LARGE), 2: (LARGE, LARGE), 1: small}, -(2.0**15)) == kept
        below = float.fromhex("0x1.fffffep+13")
        want = 2.0**14 - 2.0 ** (14 - e) if e < 25 else below if e == 25 else 2.0**14
        assert of_fp8({0: (LARGE, LARGE)}, -(2.0 ** (14 - e))) == want
        want = 2.0**14 - 2.0 ** (14 - e) if e < 25 else 2.0**14  # the power of the products is 13 here
        assert of_fp8({0: (LARGE / 2, LARGE), 1: (LARGE / 2, LARGE)}, -(2.0 ** (14 - e))) == want
    quarters = dict.fromkeys((0, 2, 4, 6), (LARGE / 4, LARGE))
    turned = {k: (-x, y) for k, (x, y) in quarters.items()}
    for s, want in ((0.25, "0x1.000000p+14"), (0.75, "0x1.000002p+14"), (0.5, "0x1p+14"), (1.5, "0x1.000004p+14")):
        assert of_fp8(quarters, s * 2.0**-9) == float.fromhex(want)
        assert of_fp8(turned, -s * 2.0**-9) == -float.fromhex(want)
    for e in range(10):
        part = (2.0 ** -(e // 2) * (0.5 if e % 2 else 1), 2.0 ** -(e // 2))
        assert of_fp8({0: (1.0, 1.0), 2: part}, 2.0**24) == 2.0**24 + 2 * (e < 8)
        assert of_fp8({0: (1.0, 1.0), 1: part}, float.fromhex("0x1.000008p24")) == 2.0**24 + 8 + 2 * (e < 8)
        assert of_fp8({0: (10.0, 1.0), 1: part}, float.fromhex("0x1.fffff8p24")) == 2.0**25 + 4 * (e < 7)


def test_orders_of_an_mi300x():
    """Where 2**14 at i meets -2**14 at j, of 14 products and an addend that are small; in units of the addend."""
    for i in range(16):
        for j in range(i):
            terms = dict.fromkeys(range(16), (2.0**-6, 2.0**-5))
            terms[i], terms[j] = (LARGE, LARGE), (LARGE, -LARGE)
            assert int(of_fp8(terms, 2.0**-10) / 2.0**-10) == (1 if (i - j) % 2 else 5)

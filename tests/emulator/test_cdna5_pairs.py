"""What gfx1251 adds to CDNA 5: pairs of FP64 and of 64-bit integers, and products of FP64, against exact numbers."""

from fractions import Fraction

import numpy as np
import pytest

from laneloom.emulator.memory import GlobalMemory, LocalMemory
from laneloom.emulator.program import Program
from laneloom.emulator.state import Waves
from laneloom.errors import UnknownInstructionError
from laneloom.isa.parse import EXEC

GPU, MOST = "gfx1251", (1 << 64) - 1
KERNEL = """
k:
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 512
\t\t.amdhsa_float_denorm_mode_16_64 {denormals}
\t.end_amdhsa_kernel
"""


def run(code, v, s=None, denormals=3, active=0xFFFFFFFF):
    """code on one wave; v: first register -> [lane, 64-bit word]; -> vector registers."""
    lines = "\n".join(f"\t{line}" for line in code.splitlines())
    program = Program(KERNEL.format(code=lines, denormals=denormals), GPU)
    V, S = np.full((512, 1, 32), 0xA5A5A5A5, np.uint32), np.zeros((128, 1), np.uint32)
    for n, words in v.items():
        V[n : n + 2 * words.shape[1], 0] = np.ascontiguousarray(words).view(np.uint32).T
    for n, word in (s or {}).items():
        S[n : n + 2, 0] = word & 0xFFFFFFFF, word >> 32
    S[EXEC] = active
    base = np.zeros((1, 1), np.int64)
    g = Waves(V, S, np.zeros(1, bool), np.arange(1), base, 32, GlobalMemory([]), LocalMemory(1, 0), True)
    with np.errstate(all="ignore"):
        for step in program.blocks[0].steps:
            step(g)
    return V


def pair(V, n, dtype=np.float64):
    return np.ascontiguousarray(V[n : n + 4, 0].T).view(dtype)


def doubles(seed):
    return np.random.default_rng(seed).standard_normal((32, 2)) * 2.0 ** np.random.default_rng(seed).integers(-9, 9)


A, B, C = doubles(1), doubles(2), doubles(3)
SIGNS = "neg_lo:[1,0{}] neg_hi:[0,1{}]"


def exactly(function, *operands):
    return np.array([[float(function(*map(Fraction, x))) for x in zip(*rows, strict=True)]
                     for rows in zip(*operands, strict=True)])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add", lambda a, b: a + b), ("mul", lambda a, b: a * b), ("max_num", max), ("min_num", min),
        ("fma", lambda a, b, c: a * b + c),
    ],
)
def test_pairs_of_doubles(name, function):
    """neg_lo is the first one's of each pair, neg_hi the second one's; clamp; scalars and constants stand for both."""
    three = name == "fma"
    registers, operands = ({8: A, 12: B, 16: C}, (A, B, C)) if three else ({8: A, 12: B}, (A, B))
    last = ", v[16:19]" if three else ""
    more = ",0" if three else ""
    got = pair(run(f"v_pk_{name}_f64 v[4:7], v[8:11], v[12:15]{last} {SIGNS.format(more, more)}", registers), 4)
    want = exactly(function, A * [-1, 1], B * [1, -1], *operands[2:])
    np.testing.assert_array_equal(got, want)
    code = f"v_pk_{name}_f64 v[4:7], v[8:11], s[4:7]{last} clamp"
    bits = int(np.float64(0.75).view(np.uint64))
    got = pair(run(code, registers, {4: bits, 6: 0x7FF8000000000000}), 4)
    np.testing.assert_array_equal(got, np.clip(exactly(function, A, np.full_like(A, 0.75), *operands[2:]), 0, 1))
    for text, value in (("0.5", 0.5), ("0x3ff80000", 1.5)):
        V = run(f"v_pk_{name}_f64 v[4:7], {text}, v[12:15]{last}", registers, active=0x7FFFFFFF)
        want = exactly(function, np.full_like(A, value), *operands[1:])
        np.testing.assert_array_equal(pair(V, 4)[:31], want[:31])
        assert (V[4:8, 0, 31] == 0xA5A5A5A5).all()  # by EXEC


def test_denormals_and_nan_of_doubles():
    tiny = np.full((32, 2), 2.0**-1060)
    for mode, want in ((3, 2.0**-1059), (0, 0.0)):
        code = "v_pk_add_f64 v[4:7], v[8:11], v[8:11]"
        np.testing.assert_array_equal(pair(run(code, {8: tiny}, denormals=mode), 4), np.full((32, 2), want))
    nan = np.full((32, 2), np.nan)
    np.testing.assert_array_equal(pair(run("v_pk_max_num_f64 v[4:7], v[8:11], v[12:15]", {8: nan, 12: B}), 4), B)


EDGES = np.array([0, 1, 2, MOST, MOST - 1, 1 << 63, (1 << 63) - 1, 12345], np.uint64)
X = np.resize(np.repeat(EDGES, 8), (32, 2))
Y = np.resize(np.tile(EDGES, 8), (64,)).reshape(32, 2)


@pytest.mark.parametrize(("name", "sign"), [("add", 1), ("sub", -1)])
@pytest.mark.parametrize("clamp", ["", " clamp"])
@pytest.mark.parametrize("signs", [(1, 1), (-1, 1)])
def test_pairs_of_integers(name, sign, clamp, signs):
    """The exact sum wraps, or is held to 64 bits."""
    flips = " neg_lo:[1,0] neg_hi:[1,0]" if signs[0] < 0 else ""
    code = f"v_pk_{name}_nc_u64 v[4:7], v[8:11], v[12:15]{flips}{clamp}"
    got = pair(run(code, {8: X, 12: Y}), 4, np.uint64)
    for x, y, out in zip(X.ravel(), Y.ravel(), got.ravel(), strict=True):
        exact = signs[0] * int(x) + sign * int(y)
        assert int(out) == (min(max(exact, 0), MOST) if clamp else exact & MOST)


def test_shift_and_add_of_pairs():
    shifts = np.random.default_rng(0).integers(0, 5, (32, 2)).astype(np.uint32)
    registers = {8: X, 12: shifts.view(np.uint64), 16: Y}
    for text, counts in (("v[12:13]", shifts), ("3", np.full_like(shifts, 3))):
        got = pair(run(f"v_pk_lshl_add_u64 v[4:7], v[8:11], {text}, v[16:19]", registers), 4, np.uint64)
        for x, n, y, out in zip(X.ravel(), counts.ravel(), Y.ravel(), got.ravel(), strict=True):
            assert int(out) == (int(x) << int(n)) + int(y) & MOST
    with pytest.raises(UnknownInstructionError, match="second shift"):
        run("v_pk_lshl_add_u64 v[4:7], v[8:11], s[4:5], v[16:19]", registers)


def test_product_of_doubles():
    """Row i of A (column j of B) lies in lanes i and i + 16, k = 2 (lane / 16) + register / 2; of D lane j + 16 (i / 8)
    has rows i % 8. Four fused multiply-adds in the order of k, each rounded.
    """
    rng = np.random.default_rng(4)
    a, b, c = rng.standard_normal((16, 4)), rng.standard_normal((4, 16)), rng.standard_normal((16, 16))
    lane = np.arange(32)
    held_a = np.stack([a[lane % 16, 2 * (lane // 16) + k] for k in range(2)], axis=1)
    held_b = np.stack([b[2 * (lane // 16) + k, lane % 16] for k in range(2)], axis=1)
    held_c = np.stack([c[i + 8 * (lane // 16), lane % 16] for i in range(8)], axis=1)
    registers = {0: held_a, 4: held_b, 8: held_c}
    for modifiers, flips in (("", (1, 1, 1)), (" neg_lo:[1,0,1]", (-1, 1, -1)), (" neg_hi:[0,0,1]", (1, 1, 0))):
        added = np.abs(c) if flips[2] == 0 else flips[2] * c
        V = run(f"v_wmma_f64_16x16x4_f64 v[32:47], v[0:3], v[4:7], v[8:23]{modifiers}", registers, active=0xFF)
        got = np.ascontiguousarray(V[32:48, 0].T).view(np.float64)
        for j, i in ((0, 0), (3, 15), (15, 7), (8, 8)):
            want = float(added[i, j])
            for k in range(4):
                want = float(Fraction(flips[0] * a[i, k]) * Fraction(flips[1] * b[k, j]) + Fraction(want))
            assert got[j + 16 * (i // 8), i % 8] == want
    V = run("v_wmma_f64_16x16x4_f64 v[32:47], v[0:3], v[4:7], 0", registers)
    got = np.ascontiguousarray(V[32:48, 0].T).view(np.float64)[lane % 16, 0]
    np.testing.assert_allclose(got, (a @ b)[0][lane % 16], rtol=0, atol=4 * 2.0**-53 * (abs(a) @ abs(b)).max())


def test_writes_of_mode_leave_the_numbers_of_registers():
    """gfx1250 takes them from the constant of any write."""
    code = "s_set_vgpr_msb 0x40\ns_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 25, 1), 1\nv_mov_b32 v1, 7"
    assert (run(code, {})[257] == 7).all()
    code = "s_set_vgpr_msb 0x40\ns_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 12, 2), 0\nv_mov_b32 v1, 7"
    assert (run(code, {})[1] == 7).all()

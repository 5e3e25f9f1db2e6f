"""WMMA against exact products, its fragments laid out by the formulas of the ISA guides written out here once more."""

import numpy as np
import pytest

from laneloom.emulator import matrix
from laneloom.emulator.alu import Target
from laneloom.emulator.memory import GlobalMemory, LocalMemory
from laneloom.emulator.state import Waves
from laneloom.errors import UnknownInstructionError
from laneloom.gpu import get_gpu
from laneloom.isa.parse import EXEC, instruction

WAVES = 3
BITS = {"f16": 16, "bf16": 16, "iu8": 8, "iu4": 4, "fp8": 8, "bf8": 8, "f32": 32, "i32": 32}


def waves(lanes=32, registers=64):
    V = np.full((registers, WAVES, lanes), 0xFFFFFFFF, np.uint32)
    S = np.zeros((128, WAVES), np.uint32)
    S[EXEC : EXEC + 2] = 0xFFFFFFFF
    base = np.zeros((WAVES, 1), np.int64)
    return Waves(V, S, np.zeros(WAVES, bool), np.arange(WAVES), base, lanes, GlobalMemory([]), LocalMemory(1, 0), True)


def decode(code: int, kind: str, signed=True) -> float:
    """The number that a bit pattern stands for, computed without numpy's casts."""
    if kind in ("iu8", "iu4", "i32"):
        bits = BITS[kind]
        return code - (1 << bits) if signed and code >> (bits - 1) else code
    mantissa_bits, exponent_bits = {"f16": (10, 5), "bf16": (7, 8), "fp8": (3, 4), "bf8": (2, 5), "f32": (23, 8)}[kind]
    bias = (1 << (exponent_bits - 1)) - 1
    sign = -1 if code >> (mantissa_bits + exponent_bits) else 1
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2.0**mantissa_bits) * 2.0 ** (exponent - bias)


def random_codes(rng, kind, shape):
    """Bit patterns of finite numbers."""
    if kind == "f32":
        return rng.standard_normal(shape).astype(np.float32).view(np.uint32).astype(np.int64)
    if kind == "i32":
        return rng.integers(0, 1 << 32, shape)
    if kind == "f16":
        return rng.standard_normal(shape).astype(np.float16).view(np.uint16).astype(np.int64)
    if kind == "bf16":
        return rng.standard_normal(shape).astype(np.float32).view(np.uint32).astype(np.int64) >> 16
    codes = rng.integers(0, 1 << BITS[kind], shape)
    if kind in ("fp8", "bf8"):
        top = 0x7F if kind == "fp8" else 0x7C
        codes = np.where((codes & 0x7F) >= top, codes & 0x83, codes)
    return codes


def place(V, n, lane, element, bits, code):
    """Put one element of every wave into the registers of a fragment."""
    per = 32 // bits
    shift = (element % per) * bits
    mask = np.uint32((((1 << bits) - 1) << shift) & 0xFFFFFFFF)
    row = V[n + element // per, :, lane]
    V[n + element // per, :, lane] = (row & ~mask) | (np.asarray(code).astype(np.uint32) << np.uint32(shift))


def put_operand(V, n, codes, kind, gfx12, lanes, k):
    """codes [wave, 16, k]; lane l holds row l % 16."""
    groups = min(lanes // 16, k * BITS[kind] // 32)  # of gfx12: a lane holds at least one register
    per_lane = k // groups if gfx12 else k
    for lane in range(16 * groups if gfx12 else lanes):
        for e in range(per_lane):
            column = per_lane * (lane // 16) + e if gfx12 else e
            place(V, n, lane, e, BITS[kind], codes[:, lane % 16, column])


def element_of_d(e, lane, gfx12, lanes):
    """(row, column) of element e of lane `lane`."""
    groups, group = lanes // 16, lane // 16
    if not gfx12:
        return groups * e + group, lane % 16
    return (8 * group + e if lanes == 32 else 8 * (group % 2) + 4 * (group // 2) + e), lane % 16


def put_cd(V, n, codes, kind, gfx12, lanes, high):
    for lane in range(lanes):
        for e in range(256 // lanes):
            i, j = element_of_d(e, lane, gfx12, lanes)
            if BITS[kind] == 32:
                V[n + e, :, lane] = codes[:, i, j]
            elif gfx12:
                place(V, n, lane, e, 16, codes[:, i, j])
            else:
                place(V, n, lane, 2 * e + high, 16, codes[:, i, j])


def get_cd(V, n, kind, gfx12, lanes, high):
    out = np.zeros((WAVES, 16, 16), np.int64)
    for lane in range(lanes):
        for e in range(256 // lanes):
            i, j = element_of_d(e, lane, gfx12, lanes)
            if BITS[kind] == 32:
                out[:, i, j] = V[n + e, :, lane]
            elif gfx12:
                out[:, i, j] = V[n + e // 2, :, lane] >> (16 * (e % 2)) & 0xFFFF
            else:
                out[:, i, j] = V[n + e, :, lane] >> (16 * high) & 0xFFFF
    return out


CASES = [
    *[(gpu, lanes, cd, 16, ab) for gpu, sizes in (("gfx1151", (32, 64)), ("gfx1201", (32, 64))) for lanes in sizes
      for cd, ab in (("f32", "f16"), ("f32", "bf16"), ("f16", "f16"), ("bf16", "bf16"), ("i32", "iu8"),
                     ("i32", "iu4"))],
    *[("gfx1201", lanes, "f32", 16, f"{a}_{b}") for lanes in (32, 64) for a in ("fp8", "bf8") for b in ("fp8", "bf8")],
    ("gfx1201", 32, "i32", 32, "iu4"), ("gfx1201", 64, "i32", 32, "iu4"),
]  # fmt: skip


def assemble(cd, k, ab, modifiers=""):
    name = f"v_wmma_{cd}_16x16x{k}_{ab}"
    return instruction(name, f"v[0:7], v[16:23], v[24:31], v[32:39]{modifiers}", 1, name, None)


# Signs are a modifier of the integer forms only. The sums of 16-bit floats, in steps, are in test_wmma_sums.py.
SIGNS = {True: [(1, 1), (0, 1), (1, 0), (0, 0)], False: [(0, 0)]}
ROUNDED_ONCE = [case for case in CASES if case[4] not in ("f16", "bf16")]
SIGNED = [(*case, signs) for case in ROUNDED_ONCE for signs in SIGNS[case[2] == "i32"]]


@pytest.mark.parametrize(("gpu", "lanes", "cd", "k", "ab", "signs"), SIGNED)
def test_product_is_exact_and_rounded_once(gpu, lanes, cd, k, ab, signs):
    integer = cd == "i32"
    gfx12 = gpu == "gfx1201"
    a, b = ab.split("_") if "_" in ab else (ab, ab)
    rng = np.random.default_rng(1)
    g = waves(lanes)
    A, B = random_codes(rng, a, (WAVES, 16, k)), random_codes(rng, b, (WAVES, 16, k))
    C = random_codes(rng, cd, (WAVES, 16, 16))
    put_operand(g.V, 16, A, a, gfx12, lanes, k)
    put_operand(g.V, 24, B, b, gfx12, lanes, k)
    put_cd(g.V, 32, C, cd, gfx12, lanes, 0)
    text = f" neg_lo:[{signs[0]},{signs[1]},0]" if integer else ""
    matrix.build([matrix.decode(assemble(cd, k, ab, text), Target(get_gpu(gpu), lanes))])(g)
    va = np.vectorize(lambda c: decode(int(c), a, bool(signs[0])))(A)
    vb = np.vectorize(lambda c: decode(int(c), b, bool(signs[1])))(B)
    vc = np.vectorize(lambda c: decode(int(c), cd))(C)
    # Products of these formats and sums of 16 or 32 of them are exact in float64 (extended where bf16 needs it).
    exact = np.einsum("wik,wjk->wij", va.astype(np.longdouble), vb.astype(np.longdouble)) + vc
    got = get_cd(g.V, 0, cd, gfx12, lanes, 0)
    if integer:
        assert np.array_equal(got, exact.astype(object).astype(int) % (1 << 32))
        return
    values = np.vectorize(lambda c: decode(int(c), cd))(got)
    ulp = np.vectorize(lambda c: decode((int(c) & ((1 << (BITS[cd] - 1)) - 1)) + 1, cd))(got) - np.abs(values)
    assert (np.abs(values - exact) <= 0.5001 * ulp).all()


def test_op_sel_uses_the_high_halves_and_keeps_the_low():
    g = waves()
    rng = np.random.default_rng(2)
    A, B, C = (random_codes(rng, "f16", (WAVES, 16, 16)) for _ in range(3))
    put_operand(g.V, 16, A, "f16", False, 32, 16)
    put_operand(g.V, 24, B, "f16", False, 32, 16)
    put_cd(g.V, 32, C, "f16", False, 32, 1)
    g.V[0:8] = 0x00001234
    target = Target(get_gpu("gfx1151"), 32)
    matrix.build([matrix.decode(assemble("f16", 16, "f16", " op_sel:[0,0,1]"), target)])(g)
    assert (g.V[0:8] & 0xFFFF == 0x1234).all()
    got = get_cd(g.V, 0, "f16", False, 32, 1)
    va, vb, vc = (x.astype(np.uint16).view(np.float16).astype(float) for x in (A, B, C))
    near = np.einsum("wik,wjk->wij", va, vb) + vc
    assert np.abs(got.astype(np.uint16).view(np.float16) - near).max() < 0.02
    put_cd(g.V, 32, C, "f16", False, 32, 0)
    matrix.build([matrix.decode(assemble("f16", 16, "f16"), target)])(g)
    assert np.array_equal(got, get_cd(g.V, 0, "f16", False, 32, 0))


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_integer_clamp_saturates(gpu):
    g = waves()
    gfx12 = gpu == "gfx1201"
    A = np.full((WAVES, 16, 16), 0x7F)
    put_operand(g.V, 16, A, "iu8", gfx12, 32, 16)
    put_operand(g.V, 24, A, "iu8", gfx12, 32, 16)
    put_cd(g.V, 32, np.full((WAVES, 16, 16), 0x7FFFFFFF), "i32", gfx12, 32, 0)
    target = Target(get_gpu(gpu), 32)
    matrix.build([matrix.decode(assemble("i32", 16, "iu8", " neg_lo:[1,1,0] clamp"), target)])(g)
    assert (g.V[0:8] == 0x7FFFFFFF).all()
    matrix.build([matrix.decode(assemble("i32", 16, "iu8", " neg_lo:[1,1,0]"), target)])(g)
    assert (g.V[0:8] == (0x7FFFFFFF + 16 * 127 * 127) % (1 << 32)).all()


@pytest.mark.parametrize("c", ["0", "1.0"])
def test_inline_constant_as_c(c):
    g = waves()
    g.V[16:32] = 0
    ins = instruction("v_wmma_f32_16x16x16_f16", f"v[0:7], v[16:23], v[24:31], {c}", 1, "", None)
    matrix.build([matrix.decode(ins, Target(get_gpu("gfx1151"), 32))])(g)
    assert (g.V[0:8].view(np.float32) == float(c)).all()


@pytest.mark.parametrize("kind", ["f16", "bf16", "fp8", "bf8"])
def test_nan_and_infinity_pass_through(kind):
    g = waves()
    g.V[16:40] = 0
    nan = {"f16": 0x7E00, "bf16": 0x7FC0, "fp8": 0x7F, "bf8": 0x7F}[kind]
    place(g.V, 16, 5, 0, BITS[kind], nan)
    cd, ab = ("f32", kind) if BITS[kind] == 16 else ("f32", f"{kind}_{kind}")
    matrix.build([matrix.decode(assemble(cd, 16, ab), Target(get_gpu("gfx1201"), 32))])(g)
    got = np.array(get_cd(g.V, 0, "f32", True, 32, 0), np.uint32).view(np.float32)
    assert np.isnan(got[:, 5]).all()
    assert (np.delete(got, 5, axis=1) == 0).all()


def wild_codes(rng, kind, shape):
    """Bit patterns of all kinds: NaN, infinities, denormals, zeros of both signs, ordinary numbers."""
    codes = rng.integers(0, 1 << BITS[kind], shape)
    if kind in ("f16", "bf16", "f32"):
        mantissa = {"f16": 10, "bf16": 7, "f32": 23}[kind]
        special = np.array([0, 1, (1 << mantissa) - 1, 1 << mantissa, 3 << mantissa])  # zero, denormals, the smallest
        codes = np.where(rng.random(shape) < 0.3, rng.choice(special, shape), codes)
    return codes


def wide(codes, kind):
    """float128 (or what the machine has) values, by numpy for the large formats and by `decode` for the small."""
    if kind == "f16":
        return codes.astype(np.uint16).view(np.float16).astype(np.longdouble)
    if kind in ("bf16", "f32"):
        return (codes << (16 if kind == "bf16" else 0)).astype(np.uint32).view(np.float32).astype(np.longdouble)
    table = np.array([decode(c, kind) for c in range(256)], np.longdouble)
    if kind == "fp8":
        table[[0x7F, 0xFF]] = np.nan
    else:
        table[[0x7C, 0xFC]] = np.inf, -np.inf
        table[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return table[codes]


FLOATS = [case for case in ROUNDED_ONCE if case[2] != "i32"]


@pytest.mark.parametrize(("gpu", "lanes", "cd", "k", "ab"), FLOATS)
def test_special_numbers(gpu, lanes, cd, k, ab):
    """One special element in a row of A: NaN where IEEE 754 has NaN, infinities with their sign, denormals kept."""
    gfx12 = gpu == "gfx1201"
    a, b = ab.split("_") if "_" in ab else (ab, ab)
    rng = np.random.default_rng(11)
    target = Target(get_gpu(gpu), lanes)
    g = waves(lanes)
    A, B, C = np.zeros((WAVES, 16, k), int), wild_codes(rng, b, (WAVES, 16, k)), wild_codes(rng, cd, (WAVES, 16, 16))
    A[:, np.arange(16), rng.integers(0, k, 16)] = wild_codes(rng, a, (WAVES, 16))
    put_operand(g.V, 16, A, a, gfx12, lanes, k)
    put_operand(g.V, 24, B, b, gfx12, lanes, k)
    put_cd(g.V, 32, C, cd, gfx12, lanes, 0)
    with np.errstate(all="ignore"):
        matrix.build([matrix.decode(assemble(cd, k, ab), target)])(g)
        exact = np.einsum("wik,wjk->wij", wide(A, a), wide(B, b)) + wide(C, cd)
        got = wide(get_cd(g.V, 0, cd, gfx12, lanes, 0), cd)
        mantissa, low = {"f32": (24, -149), "f16": (11, -24), "bf16": (8, -133)}[cd]
        power = np.maximum(np.frexp(np.where(np.isfinite(exact), exact, 1))[1] - mantissa, low)
        top = np.ldexp(np.longdouble(1), {"f32": 128, "f16": 16, "bf16": 128}[cd])
        near = np.ldexp(np.rint(np.ldexp(exact, -power)), power)
        near = np.where(np.abs(near) >= top, np.copysign(np.inf, near), near)
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert np.array_equal(got[~np.isnan(exact)], near[~np.isnan(exact)].astype(got.dtype))


@pytest.mark.parametrize(("name", "a", "b"), [("16x16x32_iu8", 2, 4), ("16x16x32_iu4", 1, 2), ("16x16x64_iu4", 2, 4)])
@pytest.mark.parametrize("negative_first", [False, True])
def test_sparse_integers_saturate_twice(execute, name, a, b, negative_first):
    """With clamp: behind the products of A's lanes 0 to 15, and behind those of the others (bjacob/goc, gfx1201)."""
    one = np.uint32(0x01010101 if name.endswith("iu8") else 0x11111111)
    lane, start = np.arange(32), -(2**31) if negative_first else 2**31 - 1
    code = f"v_swmmac_i32_{name} v[16:23], v[0:{a - 1}], v[8:{7 + b}], v24 neg_lo:[1,1,0] clamp"
    signs = np.where((lane >= 16) != negative_first, np.uint32(0xFFFFFFFF), one)
    v = {**dict.fromkeys(range(a), signs), **dict.fromkeys(range(8, 8 + b), np.full(32, one))}
    v |= {n: np.full(32, start, np.int32) for n in range(16, 24)} | {24: np.full(32, 0x44444444, np.uint32)}
    products = int(name[6:8]) // 4  # of each half
    got = execute(code.replace("v[0:0]", "v0"), gpu="gfx1201", v=v).vector(16, np.int32)
    assert (got == (start + products if negative_first else start - products)).all()


@pytest.mark.parametrize(("name", "n"), [("16x16x16_iu8", 2), ("16x16x16_iu4", 1), ("16x16x32_iu4", 2)])
@pytest.mark.parametrize("negative_first", [False, True])
def test_dense_integers_saturate_twice(execute, name, n, negative_first):
    """As sparse ones do (bjacob/goc, by values of gfx1201)."""
    one = np.uint32(0x01010101 if name.endswith("iu8") else 0x11111111)
    lane, start = np.arange(32), -(2**31) if negative_first else 2**31 - 1
    code = f"v_wmma_i32_{name} v[16:23], v[0:{n - 1}], v[8:{7 + n}], v[16:23] neg_lo:[1,1,0] clamp"
    signs = np.where((lane >= 16) != negative_first, np.uint32(0xFFFFFFFF), one)
    v = {**dict.fromkeys(range(n), signs), **dict.fromkeys(range(8, 8 + n), np.full(32, one))}
    v |= {k: np.full(32, start, np.int32) for k in range(16, 24)}
    products = int(name[6:8]) // 2  # of each half
    code = code.replace("v[0:0]", "v0").replace("v[8:8]", "v8")
    got = execute(code, gpu="gfx1201", v=v).vector(16, np.int32)
    assert (got == (start + products if negative_first else start - products)).all()


def test_sparse_reads_only_what_the_index_names():
    """NaN in the elements of B that no index names does not reach D."""
    g = waves()
    g.V[...] = 0
    for lane in range(16):
        g.V[16, :, lane] = 0x3C003C00  # the first pair of A: 1, 1
        g.V[20, :, lane] = 0x2 | 0x3 << 2  # at k = 2 and 3
    g.V[24, :, 5] = 0x7E007E00  # column 5 of B: NaN at k = 0 and 1
    g.V[25, :, 5] = 0x40003C00  # 1 and 2 at k = 2 and 3
    ins = instruction("v_swmmac_f32_16x16x32_f16", "v[0:7], v[16:19], v[24:31], v20", 1, "", None)
    sparse = matrix.decode(ins, Target(get_gpu("gfx1201"), 32))
    assert sparse.reads() == {*range(8), *range(16, 21), *range(24, 32)}
    assert sparse.writes() == set(range(8))
    with np.errstate(all="ignore"):
        matrix.build([sparse])(g)
    got = np.array(get_cd(g.V, 0, "f32", True, 32, 0), np.uint32).view(np.float32)
    assert (got[:, :, 5] == 3).all()


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("gfx1151", "v_swmmac_f32_16x16x32_f16"), ("gfx1151", "v_wmma_f32_16x16x16_fp8_fp8"),
        ("gfx1151", "v_wmma_i32_16x16x32_iu4"), ("gfx1201", "v_wmma_f32_16x16x32_f16"),
        ("gfx1201", "v_wmma_f16_16x16x16_fp8_fp8"), ("gfx1201", "v_swmmac_i32_16x16x64_iu8"),
        ("gfx1201", "v_wmma_i32_16x16x16_f16"), ("gfx1201", "v_wmma_bf16_16x16x16_f16"),
    ],
)  # fmt: skip
def test_what_a_gpu_lacks_is_refused(gpu, name):
    ins = instruction(name, "v[0:7], v[16:19], v[24:31], v[32:39]", 1, "", None)
    with pytest.raises(UnknownInstructionError):
        matrix.decode(ins, Target(get_gpu(gpu), 32))


def test_batched_run_equals_one_at_a_time():
    """A 2x2 outer product followed by a chained second K step, as one step and as eight."""
    rng = np.random.default_rng(3)
    start = waves(registers=160)
    start.V[64:128] = rng.standard_normal((64, WAVES, 64)).astype(np.float16).view(np.uint32)
    start.V[0:32] = rng.standard_normal((32, WAVES, 32)).astype(np.float32).view(np.uint32)
    target = Target(get_gpu("gfx1151"), 32)
    run = []
    for k in range(2):
        for i in range(2):
            for j in range(2):
                d, a, b = 8 * (2 * i + j), 64 + 32 * k + 8 * i, 80 + 32 * k + 8 * j
                text = f"v[{d}:{d + 7}], v[{a}:{a + 7}], v[{b}:{b + 7}], v[{d}:{d + 7}]"
                run.append(matrix.decode(instruction("v_wmma_f32_16x16x16_f16", text, 1, text, None), target))
    together, apart = waves(registers=160), waves(registers=160)
    together.V[...] = apart.V[...] = start.V
    matrix.build(run)(together)
    for w in run:
        matrix.build([w])(apart)
    assert np.array_equal(together.V, apart.V)
    assert not np.array_equal(together.V, start.V)

"""WMMA of 16-bit floats adds up as GPUs were seen to, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
from test_wmma import get_cd, put_cd, put_operand, waves
from wmma_by_hand import element
from wmma_seen import PACKED_A, PACKED_B, PACKED_BF16_D, PACKED_C, PACKED_D, ROWS, WHOLE_NUMBERS, words

from laneloom.emulator import matrix, wmma_sums
from laneloom.emulator.alu import Target
from laneloom.gpu import get_gpu
from laneloom.isa.parse import instruction

SIZES = [(gpu, lanes) for gpu in ("gfx1151", "gfx1201") for lanes in (32, 64)]
SUMS = [("f32", "f16"), ("f32", "bf16"), ("f16", "f16"), ("bf16", "bf16")]


def run(gpu, lanes, cd, ab, A, B, C, stops=False, modifiers="", constant=None):
    """D [wave, 16, 16] of bits A [wave, 16, k], B [wave, column, k], C [wave, 16, 16]."""
    gfx12 = gpu != "gfx1151"
    g = waves(lanes)
    A, B, C = (np.broadcast_to(np.asarray(x).astype(np.int64), (3, 16, 16)) for x in (A, B, C))
    put_operand(g.V, 16, A, ab, gfx12, lanes, 16)
    put_operand(g.V, 24, B, ab, gfx12, lanes, 16)
    put_cd(g.V, 32, C, cd, gfx12, lanes, 0)
    name, target = f"v_wmma_{cd}_16x16x16_{ab}", Target(get_gpu(gpu), lanes)
    target = replace(target, mode=replace(target.mode, f16_overflow=stops))
    text = f"v[0:7], v[16:23], v[24:31], {constant or 'v[32:39]'}{modifiers}"
    matrix.build([matrix.decode(instruction(name, text, 1, name, None), target)])(g)
    return get_cd(g.V, 0, cd, gfx12, lanes, 0)


def bf16(values):
    """Cut to bf16, as bits."""
    return values.astype(np.float32).view(np.uint32) >> 16


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("ab", ["f16", "bf16"])
def test_whole_numbers_seen_on_rdna_3(lanes, ab):
    i, k = np.indices((16, 16))
    a, b, c = (16 * i + k) * 7 % 17 - 8, (16 * i + k) * 11 % 17 - 8, (16 * i + k) * 13 % 129 - 64
    bits = bf16 if ab == "bf16" else lambda x: x.astype(np.float16).view(np.uint16)
    got = run("gfx1151", lanes, "f32", ab, bits(a), bits(b).T, c.astype(np.float32).view(np.uint32))
    assert (got == WHOLE_NUMBERS).all()
    assert (a @ b + c == WHOLE_NUMBERS.view(np.float32)).mean() < 0.7  # the exact sums, which gfx1201 gives
    got = run("gfx1201", lanes, "f32", ab, bits(a), bits(b).T, c.astype(np.float32).view(np.uint32))
    assert (got.astype(np.uint32).view(np.float32) == a @ b + c).all()


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_rows_seen_on_rdna_4(row):
    kind, factors, (c, *want) = ROWS[row][0], words(ROWS[row][1]), words(ROWS[row][2], np.uint32)
    for lanes, d in zip((32, 64), want, strict=True):
        assert (run("gfx1201", lanes, "f32", kind, factors[:16], factors[16:], c) == d).all()


@pytest.mark.parametrize(("gpu", "lanes"), PACKED_D)
def test_fp16_sums_seen(gpu, lanes):
    A, C = (np.resize(x, (16, 16)) for x in (PACKED_A, PACKED_C))
    got = run(gpu, lanes, "f16", "f16", A, PACKED_B.T, C)
    assert (got == np.resize(words(PACKED_D[gpu, lanes]), (16, 16))).all()


@pytest.mark.parametrize(("gpu", "lanes"), PACKED_BF16_D)
def test_bf16_sums_seen(gpu, lanes):
    A, B, C = (bf16(x.view(np.float16)) for x in (PACKED_A, PACKED_B, PACKED_C))
    got = run(gpu, lanes, "bf16", "bf16", np.resize(A, (16, 16)), B.T, np.resize(C, (16, 16)))
    assert (got[:, 1:4] == words(PACKED_BF16_D[gpu, lanes]).reshape(3, 16)).all()


def codes_of(values, kind):
    """Bits of the nearest (bf16: cut) numbers."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    return bf16(values) if kind == "bf16" else values.astype(np.float32).view(np.uint32)


def drawn(rng, kind, shape, how):
    """Bits of numbers of a kind that is hard in its own way."""
    width = 32 if kind == "f32" else 16
    normal = rng.standard_normal(shape)
    if how == "any bits":
        return rng.integers(0, 1 << width, shape)
    if how == "close":
        return codes_of(normal, kind)
    if how == "whole":
        return codes_of(np.round(6 * normal), kind)
    if how == "far apart":
        reach = 7 if kind == "f16" else 60
        return codes_of(normal * 2.0 ** rng.integers(-2 * reach, reach, shape), kind)
    if how == "tiny":
        return codes_of(normal, kind) & ~np.int64(0x7C00 if kind == "f16" else 0x7F80 if kind == "bf16" else 0x7F800000)
    fraction = {"f16": 10, "bf16": 7, "f32": 23}[kind]
    top = (1 << width - 1) - (1 << fraction)
    known = [0, 1, (1 << fraction) - 1, 1 << fraction, top - 1, top, top + 1, top + (1 << fraction - 1) + 5]
    ordinary = codes_of(normal, kind)
    picked = rng.choice(known, shape) | rng.integers(0, 2, shape) << width - 1
    return np.where(rng.random(shape) < 0.9, ordinary, picked)


HOW = [
    "close", "whole", "far apart", "tiny", "any bits", "special", "cancelling", "spread in rows", "zeros", "ties",
    "ties of denormals", "far down",
]  # fmt: skip


def operands(rng, cd, ab, how):
    shape = (3, 16, 16)
    if how == "ties":  # half-way between two results but for what is cut off: a tiny C, a tiny product
        places = {"f32": 23, "f16": 10, "bf16": 7}[cd]
        a, b = np.zeros((2, *shape))
        power = rng.integers(0, 14, (3, 16))
        a[..., 0], b[..., 0] = 2.0**power, rng.choice([1, -1], (3, 16))
        a[..., 1], b[..., 1] = rng.choice([1, 3, 5, 7], (3, 16)), b[..., 0] * 2.0 ** (rng.integers(2, 12) - places - 1)
        a[..., 2::7] = rng.choice([0, 2.0**-14, -(2.0**-14)], (3, 16, 2))
        b[..., 2::7] = rng.choice([0, 2.0**-9, -(2.0**-9)], (3, 16, 2))
        c = rng.choice([0, 2.0**-24, -(2.0**-24), -(2.0**-18)], shape)
        return codes_of(a, ab), codes_of(b, ab), codes_of(c, cd)
    if how == "ties of denormals":
        a, b = rng.choice([0.0, 2.0**-24, -(2.0**-22)], shape), rng.choice([0.0, 2.0**-21, 2.0**-18], shape)
        a[..., 0], b[..., 0] = rng.choice([1, -1], (3, 16)) * 2.0**-12, 2.0**-13
        return codes_of(a, ab), codes_of(b, ab), codes_of(rng.integers(-3, 4, shape) * 2.0**-24, cd)
    if how == "far down":
        least = 2.0**-20 if ab == "f16" else 2.0**-48
        a, b, c = rng.standard_normal((3, *shape)) * np.array([least, least * 2.0**-3, 2.0**-104])[:, None, None, None]
        a[..., ::3], c[:, ::2] = 0, 0
        a[:, 5:8] = 0
        return codes_of(a, ab), codes_of(b, ab), codes_of(c, cd)
    if how == "zeros":  # of both signs, nothing else in half of the rows
        A, B, C = (drawn(rng, kind, shape, "close") for kind in (ab, ab, cd))
        A = np.where(np.arange(16)[:, None] % 2, A, A & 0x8000)
        B = np.where(rng.random(shape) < 0.5, B, B & 0x8000)
        return A, B, np.where(rng.random(shape) < 0.5, C, C & 1 << (31 if cd == "f32" else 15))
    if how == "cancelling":  # pairs of opposite products, and C against the rest
        A, B = (drawn(rng, ab, shape, "close") for _ in range(2))
        A[..., 1::2] = A[..., 0::2] ^ 0x8000
        B[..., 1::2] = B[..., 0::2] ^ rng.integers(0, 4, (3, 16, 8))
        return A, B, drawn(rng, cd, shape, "tiny") if cd == "f32" else drawn(rng, cd, shape, "far apart")
    if how == "spread in rows":  # some rows and columns are for the plain operations, others are not
        A, B, C = (drawn(rng, kind, shape, "close").astype(np.int64) for kind in (ab, ab, cd))
        A[:, ::3], B[:, ::5] = drawn(rng, ab, (3, 6, 16), "any bits"), drawn(rng, ab, (3, 4, 16), "far apart")
        return A, B, C
    return tuple(np.asarray(drawn(rng, kind, shape, how)).astype(np.int64) for kind in (ab, ab, cd))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("cd", "ab"), SUMS)
@pytest.mark.parametrize(("gpu", "lanes"), SIZES)
def test_against_whole_numbers(gpu, lanes, cd, ab, how):
    """Every second element of one wave and some of two others."""
    rng = np.random.default_rng([lanes, HOW.index(how), SUMS.index((cd, ab))])
    A, B, C = operands(rng, cd, ab, how)
    stops = bool(rng.integers(2))
    got = run(gpu, lanes, cd, ab, A, B, C, stops)
    places = [(0, i, j) for i in range(16) for j in range(i % 2, 16, 2)]
    places += [(1, i, 15 - i) for i in range(16)] + [(2, 3, 5)]
    for w, i, j in places:
        a, b = (x[w, k].tolist() for x, k in ((A, i), (B, j)))
        want = element(a, b, int(C[w, i, j]), ab, cd, gpu == "gfx1201", lanes, stops and cd == "f16")
        assert got[w, i, j] == want, f"{got[w, i, j]:x} is not {want:x}: {a}, {b}, {C[w, i, j]:x}"


@pytest.mark.parametrize(("cd", "ab"), SUMS)
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_plain_operations_serve_ordinary_numbers(monkeypatch, gpu, cd, ab):
    """Standard normal numbers, zeros and whole numbers need no element by itself."""
    monkeypatch.setattr(wmma_sums, "_one_by_one", None)
    rng = np.random.default_rng(5)
    for how in ("close", "whole", "zeros"):
        run(gpu, 32, cd, ab, *operands(rng, cd, ab, how))
    with pytest.raises(TypeError):
        run(gpu, 32, cd, ab, *operands(rng, cd, ab, "special"))


@pytest.mark.parametrize(("cd", "ab"), SUMS)
@pytest.mark.parametrize(("gpu", "lanes"), SIZES)
def test_modifiers_change_signs_alone(gpu, lanes, cd, ab):
    """neg_lo and neg_hi of A, B and C: as if the signs of the bits had been changed, of NaNs too."""
    rng = np.random.default_rng(6)
    A, B, C = operands(rng, cd, ab, "special")
    sign = 1 << (31 if cd == "f32" else 15)
    odd = np.arange(16) % 2 << 15
    got = run(gpu, lanes, cd, ab, A, B, C, modifiers=" neg_lo:[1,0,1] neg_hi:[0,1,1]")
    assert (got == run(gpu, lanes, cd, ab, A ^ 0x8000 - odd, B ^ odd, C | sign)).all()
    got = run(gpu, lanes, cd, ab, A, B, C, modifiers=" neg_lo:[0,1,0] neg_hi:[1,1,1]")
    assert (got == run(gpu, lanes, cd, ab, A ^ odd, B ^ 0x8000, C & ~np.int64(sign))).all()
    assert (got == run(gpu, lanes, cd, ab, A ^ odd, B ^ 0x8000, C)).mean() < 0.9


@pytest.mark.parametrize(("cd", "ab", "text", "bits"), [
    ("f32", "f16", "1.0", 0x3F800000), ("f16", "f16", "-4.0", 0xC400), ("f16", "f16", "0", 0),
    ("f16", "f16", "16", 0x10), ("bf16", "bf16", "0.5", 0x3F00), ("f32", "bf16", "-2.0", 0xC0000000),
])  # fmt: skip
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_constants_as_c(gpu, cd, ab, text, bits):
    rng = np.random.default_rng(7)
    A, B, _ = operands(rng, cd, ab, "far apart")
    assert (run(gpu, 32, cd, ab, A, B, 0, constant=text) == run(gpu, 32, cd, ab, A, B, np.full((16, 16), bits))).all()


def test_blocks_give_what_one_wave_gives(monkeypatch):
    """As many waves at once as fit, and the rest."""
    rng = np.random.default_rng(8)
    sets = [operands(rng, "f32", "bf16", "far apart") for _ in range(3)]
    whole = run("gfx1201", 32, "f32", "bf16", *(np.stack([s[k][0] for s in sets]) for k in range(3)))
    monkeypatch.setattr(wmma_sums, "_AT_ONCE", 512)  # two waves
    again = run("gfx1201", 32, "f32", "bf16", *(np.stack([s[k][0] for s in sets]) for k in range(3)))
    assert (whole == again).all()
    for w, s in enumerate(sets):
        assert (run("gfx1201", 32, "f32", "bf16", *(x[0] for x in s))[0] == whole[w]).all()


def test_products_of_one_pair_of_operands_with_several_addends():
    """Two instructions with the same A and B in one batch keep their own C."""
    rng = np.random.default_rng(9)
    target = Target(get_gpu("gfx1151"), 32)
    start = waves(32, 96)
    start.V[:64] = rng.standard_normal((64, 3, 64)).astype(np.float16).view(np.uint32)
    operands_of = ("v[64:71], {}, v[16:23]", "v[72:79], {}, v[24:31]", "v[80:87], {}, 0")
    texts = [x.format("v[0:7], v[8:15]") for x in operands_of]
    run_of = [matrix.decode(instruction("v_wmma_f32_16x16x16_f16", t, 1, t, None), target) for t in texts]
    together, apart = waves(32, 96), waves(32, 96)
    together.V[...] = apart.V[...] = start.V
    matrix.build(run_of)(together)
    for w in run_of:
        matrix.build([w])(apart)
    assert (together.V == apart.V).all()
    assert (together.V[64:72] != together.V[72:80]).any()


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_modifiers_and_constants_seen(gpu):
    """fp16 sums of rows of 1, 2 by columns of 3, 4 and -5, and constants alone: as both GPUs gave them."""
    rows, columns, zeros = np.tile([0x3C00, 0x4000], (16, 8)), np.tile([0x4200, 0x4400], (16, 8)), np.zeros((16, 16))
    for text, bits in {
        "": 0x5530, " neg_lo:[1,0,0]": 0x5060, " neg_lo:[0,0,1]": 0x55D0, " neg_lo:[1,0,1]": 0x51A0,
        " neg_hi:[1,0,0]": 0xD1A0, " neg_lo:[1,0,0] neg_hi:[1,0,0]": 0xD5D0, " neg_hi:[0,0,1]": 0x55D0,
        " neg_lo:[0,0,1] neg_hi:[0,0,1]": 0x5530, " neg_hi:[1,1,1]": 0x55D0,
    }.items():  # fmt: skip
        c = np.full((16, 16), 0xC500)
        assert (run(gpu, 32, "f16", "f16", rows, columns, c, modifiers=text) == bits).all(), text
    for text, bits in {"-1": 0xFFFF, "-16": 0xFFF0, "64": 0x40, "0.15915494": 0x3118}.items():
        assert (run(gpu, 32, "f16", "f16", zeros, zeros, zeros, constant=text) == bits).all(), text

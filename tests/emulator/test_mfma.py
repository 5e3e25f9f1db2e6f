"""MFMA and SMFMAC of CDNA, their operands placed by `isa/layouts.py`, against products by numpy: in float64, rounded
once, or added as `mfma_sums.py` does, which test_mfma_sums.py holds against a slow model.

The layouts themselves are held against AMD's calculator (tests/cpu/test_isa_catalogue.py); two are written out here.
"""

import numpy as np
import pytest
from matrix_registers import check, draw, fill, get, put, span

from laneloom.emulator.memory import GlobalMemory, LocalMemory
from laneloom.emulator.mfma_sums import sum_of
from laneloom.emulator.program import Program
from laneloom.emulator.state import Waves
from laneloom.gpu import get_gpu
from laneloom.isa.catalogue import find_instruction, instructions
from laneloom.isa.layouts import get_layout
from laneloom.isa.parse import EXEC

WAVES, A, B, C, D, INDEX, SCALES = 2, 0, 40, 80, 120, 160, 170
KERNEL = """
k:
\t{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 512
\t\t.amdhsa_accum_offset 256
\t.end_amdhsa_kernel
"""


def run(gpu, code, V):
    program = Program(KERNEL.format(code=code), gpu)
    S = np.zeros((128, WAVES), np.uint32)
    S[EXEC : EXEC + 2] = 0x0000FFFF  # a matrix instruction ignores EXEC
    base = np.zeros((WAVES, 1), np.int64)
    g = Waves(V, S, np.zeros(WAVES, bool), np.arange(WAVES), base, 64, GlobalMemory([]), LocalMemory(1, 0), True)
    with np.errstate(all="ignore"):
        for step in program.blocks[0].steps:
            step(g)
    return V


def line(row, layouts):
    registers = (span(first, layouts[m]) for m, first in (("D", D), ("A", A), ("B", B), ("C", C)))
    return f"{row.name} {', '.join(registers)}"


def dense(gpu, name, **bits):
    rng, V = np.random.default_rng(0), np.full((512, WAVES, 64), 0xFFFFFFFF, np.uint32)
    # Elements are placed as without the modifiers; the product takes them as these say.
    formats = {key: bits[key] for key in ("cbsz", "blgp") if find_instruction(name, gpu).a == "f8f6f4" and key in bits}
    plain = {m: get_layout(name, gpu, 64, m, **formats) for m in "ABCD"}
    values = {m: fill(V, rng, plain[m], first) for m, first in (("A", A), ("B", B), ("C", C))}
    moved = {m: get_layout(name, gpu, 64, m, **bits) for m in "ABCD"}
    for m in "AB" if bits and not formats and find_instruction(name, gpu).a != "f64" else "":
        there = {p: e for e, places in plain[m] for p in places}
        for (b, r, c), (place, *_) in moved[m]:
            e = there[place]
            values[m][:, b, r, c] = fill_source(values, m)[:, e.block, e.row, e.col]
    modifiers = "".join(f" {key}:{n}" for key, n in bits.items())
    return V, plain, values, line(find_instruction(name, gpu), plain) + modifiers


def product(gpu, name, a, b, c):
    """D of an instruction by numpy."""
    add = sum_of(find_instruction(name, gpu), get_gpu(gpu))
    return a @ b + c if add is None else add(a, b, c).astype(np.float64)


def fill_source(values, m):
    """A copy of the elements as they were placed, made once for each matrix."""
    return values.setdefault(m + "0", values[m].copy())


ALL = [(row.name, gpu) for gpu in ("gfx90a", "gfx942") for row in instructions(gpu)]
ALL += [(row.name, "gfx950") for row in instructions("gfx950") if (row.name, "gfx942") not in ALL or "8" in row.a]
DENSE = [x for x in ALL if not find_instruction(*x).sparse and not find_instruction(*x).scaled]
SPARSE = [x for x in ALL if find_instruction(*x).sparse]


@pytest.mark.parametrize(("name", "gpu"), DENSE)
def test_dense(name, gpu):
    V, layouts, values, text = dense(gpu, name)
    check(run(gpu, text, V), layouts["D"], D, product(gpu, name, values["A"], values["B"], values["C"]))


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("v_mfma_f32_4x4x4_16b_f16", {"cbsz": 2, "abid": 3}), ("v_mfma_f32_16x16x4_4b_f16", {"cbsz": 1, "abid": 1}),
        ("v_mfma_f32_32x32x1_2b_f32", {"blgp": 1}), ("v_mfma_i32_32x32x4_2b_i8", {"blgp": 3}),
        ("v_mfma_f32_4x4x1_16b_f32", {"cbsz": 4, "abid": 5, "blgp": 6}), ("v_mfma_f32_32x32x4bf16_1k", {"cbsz": 1}),
        ("v_mfma_f32_16x16x2bf16", {"cbsz": 2, "abid": 3}), ("v_mfma_f32_16x16x8bf16", {"blgp": 4}),
    ],
)  # fmt: skip
def test_broadcasts_of_a_and_other_lanes_of_b(name, bits):
    gpu = "gfx90a" if "bf16" in name else "gfx942"
    V, layouts, values, text = dense(gpu, name, **bits)
    check(run(gpu, text, V), layouts["D"], D, product(gpu, name, values["A"], values["B"], values["C"]))


@pytest.mark.parametrize("bits", [{"cbsz": a, "blgp": b} for a, b in ((0, 1), (2, 3), (4, 4), (1, 4), (3, 0))])
@pytest.mark.parametrize("name", ["v_mfma_f32_16x16x128_f8f6f4", "v_mfma_f32_32x32x64_f8f6f4"])
def test_formats_of_f8f6f4(name, bits):
    V, layouts, values, text = dense("gfx950", name, **bits)
    check(run("gfx950", text, V), layouts["D"], D, values["A"] @ values["B"] + values["C"])


@pytest.mark.parametrize(("name", "rows"), [("16x16x128", 16), ("32x32x64", 32)])
@pytest.mark.parametrize("byte", [0, 1, 2, 3])
def test_scales(name, rows, byte):
    """Byte `byte` of lane i + rows (k / 32) scales 32 k of row i of A, and of column j of B."""
    V, layouts, values, text = dense("gfx950", f"v_mfma_f32_{name}_f8f6f4")
    rng = np.random.default_rng(1)
    V[SCALES], V[SCALES + 1] = rng.integers(0x70, 0x90, (2, WAVES, 64)) << 8 * byte
    factors = 2.0 ** ((V[SCALES : SCALES + 2] >> np.uint32(8 * byte)).astype(int) - 127)  # [matrix, wave, lane]
    blocks = layouts["A"].cols // 32
    a, b = (np.repeat(f.reshape(WAVES, blocks, rows).transpose(0, 2, 1), 32, axis=-1) for f in factors)
    low, high = byte & 1, byte >> 1
    text = text.replace("v_mfma_", "v_mfma_scale_") + f", v{SCALES}, v{SCALES + 1}"
    text += f" op_sel:[{low},{low},0] op_sel_hi:[{high},{high},0]"
    exact = (values["A"] * a[:, None]) @ (values["B"] * b.transpose(0, 2, 1)[:, None]) + values["C"]
    check(run("gfx950", text, V), layouts["D"], D, exact)


def check_sparse(name: str, gpu: str, shift: int = 0, end: str = "") -> None:
    """Four bits of the index, from bit `shift` on, name two of every four k, which A's pair of elements stands at."""
    rng, V = np.random.default_rng(2), np.full((512, WAVES, 64), 0xFFFFFFFF, np.uint32)
    row = find_instruction(name, gpu)
    layouts = {m: get_layout(name, gpu, 64, m) for m in row.matrices}
    values = {m: fill(V, rng, layouts[m], first) for m, first in (("B", B), ("D", D))}
    each = layouts["A"].width // 2
    bits, held = draw(rng, layouts["A"].kind, (WAVES, 1, row.m, row.k // 4, 2))
    which = np.sort(np.argsort(rng.random((WAVES, 1, row.m, row.k // 4, 4)), axis=-1)[..., :2], axis=-1)
    dense_a = np.zeros((WAVES, 1, row.m, row.k // 4, 4))
    np.put_along_axis(dense_a, which, held, -1)
    for (block, i, k), places in layouts["A"]:
        if k % 4 == 0:
            pair = bits[:, block, i, k // 4, 0] | bits[:, block, i, k // 4, 1] << np.uint64(each)
            put(V, A, places[0], 2 * each, pair)
    V[INDEX] = rng.integers(0, 1 << 32, V[INDEX].shape)
    for (block, i, k), places in layouts["K"]:
        if k % 4 == 0:
            n = which[:, block, i, k // 4]
            at = places[0]._replace(bit_lo=places[0].bit_lo + shift)
            put(V, INDEX, at, 4, (n[:, 0] | n[:, 1] << 2).astype(np.uint64))
    text = f"{name} {span(D, layouts['D'])}, {span(A, layouts['A'])}, {span(B, layouts['B'])}, v{INDEX}{end}"
    exact = dense_a.reshape(WAVES, 1, row.m, row.k) @ values["B"] + values["D"]
    check(run(gpu, text, V), layouts["D"], D, exact)


@pytest.mark.parametrize(("name", "gpu"), SPARSE)
def test_sparse(name, gpu):
    check_sparse(name, gpu)


@pytest.mark.parametrize(("name", "gpu", "size"), [
    ("v_smfmac_f32_16x16x32_f16", "gfx942", 8), ("v_smfmac_f32_32x32x16_bf16", "gfx942", 8),
    ("v_smfmac_i32_16x16x64_i8", "gfx942", 16), ("v_smfmac_f32_32x32x32_fp8_bf8", "gfx950", 16),
    ("v_smfmac_f32_16x16x64_f16", "gfx950", 16),
])  # fmt: skip
def test_sets_of_sparse_indices(name, gpu, size):
    """abid says which bits of the register are the index; with cbsz they are the first whatever abid says."""
    for abid in range(1, 32 // size):
        check_sparse(name, gpu, size * abid, f" abid:{abid}")
    check_sparse(name, gpu, 0, " cbsz:1 abid:1")


def test_the_layouts_of_the_isa_guide_written_out():
    rng = np.random.default_rng(3)
    lane, e = np.arange(64)[:, None], np.arange(4)
    for name, side, k_of, row_of, registers in (
        ("v_mfma_f32_16x16x16_f16", 16, 4 * (lane // 16) + e, lambda v: 4 * (lane[:, 0] // 16) + v, 4),
        ("v_mfma_f32_32x32x8_f16", 32, 4 * (lane // 32) + e,
         lambda v: 8 * (v // 4) + 4 * (lane[:, 0] // 32) + v % 4, 16),
    ):  # fmt: skip
        a, b = (rng.standard_normal((WAVES, side, k_of.max() + 1)).astype(np.float16) for _ in "ab")
        V = np.zeros((512, WAVES, 64), np.uint32)
        for first, x in ((A, a), (B, b)):
            V[first : first + 2] = np.ascontiguousarray(x[:, lane % side, k_of]).view(np.uint32).transpose(2, 0, 1)
        run("gfx942", f"{name} v[{D}:{D + registers - 1}], v[{A}:{A + 1}], v[{B}:{B + 1}], 1.0", V)
        a, b = a.astype(float)[:, None], b.astype(float).transpose(0, 2, 1)[:, None]
        d = product("gfx942", name, a, b, np.ones((WAVES, 1, side, side)))[:, 0]
        for v in range(registers):
            want = d[:, row_of(v), lane[:, 0] % side].astype(np.float32)
            np.testing.assert_array_equal(V[D + v].view(np.float32), want)


@pytest.mark.parametrize("name", [row.name for row in instructions("gfx908")])
def test_cdna_1_sums_in_accumulation_registers(name):
    """They are a file of their own, whose a[n] stands behind v[255] here; denormals are kept."""
    V, layouts, values, text = dense("gfx908", name)
    V[256 + C : 512] = V[C:256]
    V[C:256] = 0xFFFFFFFF
    for first, matrix in ((D, "D"), (C, "C")):
        text = text.replace(span(first, layouts[matrix]), span(first, layouts[matrix]).replace("v", "a"))
    check(run("gfx908", text, V), layouts["D"], 256 + D, product("gfx908", name, values["A"], values["B"], values["C"]))


def test_accumulation_registers_and_negation():
    """a[n] stands accum_offset behind v[n]; of f64, neg turns the signs of A, B and C."""
    V, layouts, values, text = dense("gfx942", "v_mfma_f64_4x4x4_4b_f64")
    V[256 + 4 : 256 + 6] = V[C : C + 2]
    text = text.replace(f"v[{C}:{C + 1}]", "a[4:5]").replace(f"v[{D}:{D + 1}]", "a[8:9]") + " neg:[1,0,1]"
    want = product("gfx942", "v_mfma_f64_4x4x4_4b_f64", -values["A"], values["B"], -values["C"])
    check(run("gfx942", text, V), layouts["D"], 256 + 8, want)


KEEPS_DENORMALS = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 15\n\t"


@pytest.mark.parametrize(("gpu", "flushes"), [("gfx90a", False), ("gfx942", True), ("gfx950", True)])
def test_products_of_f32_follow_the_denormal_mode(gpu, flushes):
    """CDNA 3 and 4: of A and B, never of C and D."""
    row = find_instruction("v_mfma_f32_16x16x4_f32" if gpu != "gfx90a" else "v_mfma_f32_16x16x4f32", gpu)
    layouts = {m: get_layout(row, gpu, 64, m) for m in "ABCD"}
    for before, kept in (("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 0\n\t", not flushes), (KEEPS_DENORMALS, True)):
        V = np.zeros((512, WAVES, 64), np.uint32)
        for first, matrix, at, value in (
            (A, "A", (0, 0), 2.0**-130), (A, "A", (1, 0), 1.0), (B, "B", (0, 0), 8.0), (B, "B", (0, 1), -(2.0**-128)),
            (C, "C", (0, 0), 2.0**-140),
        ):  # fmt: skip
            bits = int(np.float32(value).view(np.uint32))
            put(V, first, layouts[matrix].where(*at)[0], 32, np.full(WAVES, bits, np.uint64))
        run(gpu, before + line(row, layouts), V)
        got = [get(V, D, layouts["D"].where(*at)[0], "f32")[0] for at in ((0, 0), (1, 1))]
        assert got == [2.0**-140 + kept * 2.0**-127, -kept * 2.0**-128]


@pytest.mark.parametrize("gpu", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("name", "a", "b", "c", "wraps", "stops"), [
    ("v_mfma_f32_16x16x4_f32", 0x7F000000, 0xC1000000, 0, 0xFF800000, 0xFF7FFFFF),
    ("v_mfma_f32_16x16x4_f32", 0, 0, 0x7F800000, 0x7F800000, 0x7F800000),
    ("v_mfma_i32_16x16x32_i8", 0x7F, 0x7F, 0x7FFFFFFF, 0x7FFFFFFF + 127 * 127, 0x7FFFFFFF),
])  # fmt: skip
def test_results_stop_where_mode_says_so(gpu, name, a, b, c, wraps, stops):
    """FP16_OVFL: f32 at the largest number, integers at theirs; an infinity stays one (CDNA 4 ISA guide)."""
    row = find_instruction(name, gpu)
    layouts = {m: get_layout(row, gpu, 64, m) for m in "ABCD"}
    for on, want in ((0, wraps), (1, stops)):
        V = np.zeros((512, WAVES, 64), np.uint32)
        for first, matrix, bits in ((A, "A", a), (B, "B", b), (C, "C", c)):
            layout = layouts[matrix]
            put(V, first, layout.where(0, 0)[0], layout.width, np.full(WAVES, bits, np.uint64))
        run(gpu, f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), {on}\n\t{line(row, layouts)}", V)
        place = layouts["D"].where(0, 0)[0]
        assert (V[D + place.vgpr, :, place.lane] == want).all()


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942"])
@pytest.mark.parametrize("name", ["16x16x16f16", "16x16x16bf16_1k", "16x16x4f32"])
def test_cdna_2_takes_denormals_of_16_bit_products_for_zeros(gpu, name):
    """One in A, in B and in C; a number beside them is kept. Products of f32 keep denormals on both where MODE does."""
    row = find_instruction(f"v_mfma_f32_{name}", gpu)
    kind, flushes = row.a, gpu == "gfx90a" and row.a != "f32"
    small, large = (2.0**-16 if kind == "f16" else 2.0**-128), 1.0
    layouts = {m: get_layout(row, gpu, 64, m) for m in "ABCD"}
    V = np.zeros((512, WAVES, 64), np.uint32)

    def place(matrix, first, element, value):
        value = np.float32(value)
        bits = value.astype(np.float16).view(np.uint16) if layouts[matrix].kind == "f16" else value.view(np.uint32)
        bits = bits >> 16 if layouts[matrix].kind == "bf16" else bits
        put(V, first, layouts[matrix].where(*element)[0], layouts[matrix].width, np.full(WAVES, int(bits), np.uint64))

    for i, k, value in ((0, 0, small), (1, 0, large), (1, 1, -small), (3, 0, large)):
        place("A", A, (i, k), value)
    for k, j, value in ((0, 0, large), (1, 0, large), (0, 1, small)):
        place("B", B, (k, j), value)
    for i, j, value in ((2, 0, -(2.0**-127)), (3, 2, 2.0**-126)):
        place("C", C, (i, j), value)
    run(gpu, f"{KEEPS_DENORMALS}{line(row, layouts)}", V)

    def got(i, j):
        return get(V, D, layouts["D"].where(i, j)[0], "f32")[0]

    assert got(0, 0) == (0 if flushes else small)  # A denormal
    assert got(1, 1) == (0 if flushes else small)  # B denormal
    assert got(1, 0) == 1 - (0 if flushes else small if kind == "f16" else 0)  # one term of a sum
    assert got(2, 0) == (0 if flushes else -(2.0**-127))  # C denormal
    assert got(3, 2) == 2.0**-126


def test_cdna_2_writes_no_denormals():
    """A B and C are none, but their difference is: zero on gfx90a alone."""
    for gpu in ("gfx90a", "gfx942"):
        row = find_instruction("v_mfma_f32_16x16x16bf16_1k", gpu)
        layouts = {m: get_layout(row, gpu, 64, m) for m in "ABCD"}
        V = np.zeros((512, WAVES, 64), np.uint32)
        for first, matrix, value in ((A, "A", 1.0), (B, "B", 2.0**-126), (C, "C", -(1.5 * 2.0**-126))):
            layout = layouts[matrix]
            bits = int(np.float32(value).view(np.uint32)) >> (32 - layout.width)
            put(V, first, layout.where(0, 0)[0], layout.width, np.full(WAVES, bits, np.uint64))
        run(gpu, line(row, layouts), V)
        assert get(V, D, layouts["D"].where(0, 0)[0], "f32")[0] == (0 if gpu == "gfx90a" else -(2.0**-127))

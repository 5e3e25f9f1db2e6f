"""WMMA and SWMMAC of CDNA 5 against products in float64, their operands placed by `isa/layouts.py`.

The layouts themselves are held against Triton's (tests/compile/test_triton_layouts.py); three are written out here.
"""

import numpy as np
import pytest
from matrix_registers import check, draw, fill, number, put, span
from test_memory_instructions import random_bytes
from test_memory_instructions import run as run_memory

from laneloom.emulator.memory import GlobalMemory, LocalMemory
from laneloom.emulator.program import Program
from laneloom.emulator.state import Waves
from laneloom.errors import HazardError, UnknownInstructionError
from laneloom.isa.catalogue import F8F6F4, find_instruction, instructions
from laneloom.isa.layouts import get_layout
from laneloom.isa.parse import EXEC

GPU, WAVES, A, B, C, D, INDEX, SCALES = "gfx1250", 2, 0, 40, 80, 120, 160, 170
KERNEL = """
k:
\t{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 256
\t.end_amdhsa_kernel
"""
ROWS = instructions(GPU)
DENSE = [row.name for row in ROWS if not row.sparse and not row.scaled]
SPARSE = [row.name for row in ROWS if row.sparse]
SCALED = [row.name for row in ROWS if row.scaled]


def run(code, V):
    program = Program(KERNEL.format(code=code), GPU)
    S = np.zeros((128, WAVES), np.uint32)
    S[EXEC] = 0x00FF  # a matrix instruction ignores EXEC
    base = np.zeros((WAVES, 1), np.int64)
    g = Waves(V, S, np.zeros(WAVES, bool), np.arange(WAVES), base, 32, GlobalMemory([]), LocalMemory(1, 0), True)
    with np.errstate(all="ignore"):
        for step in program.blocks[0].steps:
            step(g)
    return V


def registers():
    return np.full((256, WAVES, 32), 0xFFFFFFFF, np.uint32)


def dense(name, formats=None, seed=0):
    """Registers, layouts, values of random operands, and the text of the instruction."""
    rng, V = np.random.default_rng(seed), registers()
    layouts = {m: get_layout(name, GPU, 32, m, **(formats or {})) for m in "ABCD"}
    values = {m: fill(V, rng, layouts[m], first) for m, first in (("A", A), ("B", B), ("C", C))}
    text = f"{name} {', '.join(span(first, layouts[m]) for m, first in (('D', D), ('A', A), ('B', B), ('C', C)))}"
    return V, layouts, values, text


@pytest.mark.parametrize("name", DENSE)
def test_dense(name):
    V, layouts, values, text = dense(name)
    signs = " neg_lo:[1,1,0]" if "iu8" in name else ""
    check(run(text + signs, V), layouts["D"], D, values["A"] @ values["B"] + values["C"])


@pytest.mark.parametrize("name", [name for name in DENSE if "iu8" not in name])
def test_negative_and_absolute_c(name):
    V, layouts, values, text = dense(name)
    exact = values["A"] @ values["B"] - np.abs(values["C"])
    check(run(text + " neg_lo:[0,0,1] neg_hi:[0,0,1]", V), layouts["D"], D, exact)


@pytest.mark.parametrize("name", ["v_wmma_f32_16x16x32_f16", "v_wmma_f32_16x16x4_f32", "v_wmma_bf16f32_16x16x32_bf16"])
def test_signs_of_the_even_and_of_the_odd_elements(name):
    V, layouts, values, text = dense(name)
    odd = np.arange(layouts["A"].cols) % 2 == 1
    a, b = values["A"] * np.where(odd, 1, -1), values["B"] * np.where(odd, -1, 1)[:, None]
    check(run(text + " neg_lo:[1,0,0] neg_hi:[0,1,0]", V), layouts["D"], D, a @ b + values["C"])


def test_unsigned_bytes():
    V, layouts, values, text = dense("v_wmma_i32_16x16x64_iu8")
    exact = values["A"] @ np.where(values["B"] < 0, values["B"] + 256, values["B"]) + values["C"]
    check(run(text + " neg_lo:[1,0,0]", V), layouts["D"], D, exact)


@pytest.mark.parametrize("a", range(5))
@pytest.mark.parametrize("b", range(5))
def test_formats_of_f8f6f4(a, b):
    V, layouts, values, text = dense("v_wmma_f32_16x16x128_f8f6f4", {"cbsz": a, "blgp": b})
    texts = [f"MATRIX_FMT_{F8F6F4[n].upper()}" for n in (a, b)]
    text += f" matrix_a_fmt:{texts[0]} matrix_b_fmt:{texts[1]}"
    check(run(text, V), layouts["D"], D, values["A"] @ values["B"] + values["C"])


def e8m0(code):
    return 2.0 ** (int(code) - 127)


def e4m3(code):
    return number(int(code), "fp8")


def e5m3(code):
    exponent, fraction = int(code) >> 3, int(code) & 7
    return fraction * 2.0**-17 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 18)


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("rows", ["", " matrix_a_scale:MATRIX_SCALE_ROW1 matrix_b_scale:MATRIX_SCALE_ROW1"])
@pytest.mark.parametrize(("kind", "decode", "low", "high"), [
    ("", e8m0, 0x78, 0x88), ("E4M3", e4m3, 0x20, 0x50), ("E5M3", e5m3, 0x68, 0x90),
])  # fmt: skip
def test_scales(name, rows, kind, decode, low, high):
    """Lane i, or i + 16, has a byte for each 32 or 16 k of row i of A (column of B); 32 lanes where A has 32 rows."""
    if kind and "f8f6f4" in name:
        formats, text_of = {"cbsz": 4, "blgp": 4}, " matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4"
    else:
        formats, text_of = {}, ""
    V, layouts, values, text = dense(name, formats)
    rng, block = np.random.default_rng(1), 16 if "scale16" in name else 32
    words = 128 // block // 4
    of = []
    for first, rows_of in ((SCALES, layouts["A"].rows), (SCALES + 2, layouts["B"].cols)):
        codes = rng.integers(low, high, (WAVES, 32, 4 * words), np.uint8)
        V[first : first + words] = codes.view(np.uint32).transpose(2, 0, 1)
        begin = 16 if rows and rows_of == 16 else 0
        factors = np.vectorize(decode)(codes[:, begin : begin + rows_of])
        of.append(np.repeat(factors, block, axis=-1)[:, None])
    registers_of = (f", v[{s}:{s + 1}]" if words == 2 else f", v{s}" for s in (SCALES, SCALES + 2))
    text += "".join(registers_of) + rows + text_of
    if kind:
        text += f" matrix_a_scale_fmt:MATRIX_SCALE_FMT_{kind} matrix_b_scale_fmt:MATRIX_SCALE_FMT_{kind}"
    exact = (values["A"] * of[0]) @ (values["B"] * of[1].transpose(0, 1, 3, 2)) + values["C"]
    check(run(text, V), layouts["D"], D, exact)


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("key", [0, 1])
def test_sparse(name, key):
    """Four bits of the index name two of every four k, which A's pair of elements stands at.

    With index_key:1 a lane's indices begin in the middle, and zeros follow (rocjitsu).
    """
    rng, V = np.random.default_rng(2), registers()
    row = find_instruction(name, GPU)
    layouts = {m: get_layout(name, GPU, 32, m) for m in row.matrices}
    sums = layouts.get("C", layouts["D"])
    values = {"B": fill(V, rng, layouts["B"], B), "C": fill(V, rng, sums, D)}
    each = layouts["A"].width // 2
    bits, held = draw(rng, layouts["A"].kind, (WAVES, 1, row.m, row.k // 4, 2))
    which = np.sort(np.argsort(rng.random((WAVES, 1, row.m, row.k // 4, 4)), axis=-1)[..., :2], axis=-1)
    each_lane, group = row.k // 8, np.arange(row.k // 4)  # pairs whose indices a lane has
    if key:
        which[..., group % each_lane >= each_lane // 2, :] = 0
    dense_a = np.zeros((WAVES, 1, row.m, row.k // 4, 4))
    for k in range(2):
        taken = np.take_along_axis(dense_a, which[..., k : k + 1], -1) + held[..., k : k + 1]
        np.put_along_axis(dense_a, which[..., k : k + 1], taken, -1)
    for (block, i, k), places in layouts["A"]:
        if k % 4 == 0:
            pair = bits[:, block, i, k // 4, 0] | bits[:, block, i, k // 4, 1] << np.uint64(each)
            put(V, A, places[0], 2 * each, pair)
    for (block, i, k), places in layouts["K"]:
        if k % 4 == 0:
            n = which[:, block, i, k // 4]
            put(V, INDEX, places[0], 4, (n[:, 0] | n[:, 1] << 2).astype(np.uint64))
    if key:  # to where they are read
        words = V[INDEX : INDEX + layouts["K"].registers]
        words[-1], words[0] = (words[0], words[0]) if len(words) == 2 else (words[0] << np.uint32(16),) * 2
    parts = (span(D, sums), *(span(first, layouts[m]) for m, first in (("A", A), ("B", B), ("K", INDEX))))
    signs = (" neg_lo:[1,1,0]" if "iu8" in name else "") + f" index_key:{key}" * key
    exact = dense_a.reshape(WAVES, 1, row.m, row.k) @ values["B"] + values["C"]
    check(run(f"{name} {', '.join(parts)}{signs}", V), layouts["D"], D, exact)


@pytest.mark.parametrize(("name", "run_of", "kind"), [
    ("v_wmma_f32_16x16x32_f16", 8, np.float16), ("v_wmma_i32_16x16x64_iu8", 16, np.int8),
    ("v_wmma_f32_16x16x4_f32", 2, np.float32),
])  # fmt: skip
def test_layouts_written_out(name, run_of, kind):
    """Lane l has row l % 16 of A and column l % 16 of B, k in runs that the halves take in turn; D: VGPR r, lane l has
    row r + 8 (l / 16), column l % 16."""
    rng, V = np.random.default_rng(3), registers()
    lane, k = np.arange(32)[:, None], int(name.split("x")[2].split("_")[0])
    e = np.arange(k // 2)
    k_of = run_of * (2 * (e // run_of) + lane // 16) + e % run_of
    a, b = (rng.integers(-9, 9, (WAVES, 16, k)).astype(kind) for _ in "ab")
    count = k // 2 * np.dtype(kind).itemsize // 4
    for first, x in ((A, a), (B, b)):
        words = np.ascontiguousarray(x[:, lane % 16, k_of]).view(np.uint32)
        V[first : first + count] = words.transpose(2, 0, 1)
    c, signs = ("1", " neg_lo:[1,1,0]") if kind == np.int8 else ("1.0", "")
    run(f"{name} v[{D}:{D + 7}], v[{A}:{A + count - 1}], v[{B}:{B + count - 1}], {c}{signs}", V)
    product = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1) + 1
    for r in range(8):
        got = V[D + r].view(np.int32 if kind == np.int8 else np.float32)
        np.testing.assert_array_equal(got, product[:, r + 8 * (lane[:, 0] // 16), lane[:, 0] % 16])


def test_what_no_source_describes_is_refused():
    V, _, _, text = dense("v_wmma_f32_16x16x128_f8f6f4")
    with pytest.raises(UnknownInstructionError):
        run(text + " matrix_a_fmt:7", V)


@pytest.mark.parametrize(("name", "scalar", "vector"), [("scale", "s4", "v24"), ("scale16", "s[4:5]", "v[24:25]")])
def test_scales_in_scalar_registers(execute, name, scalar, vector):
    """Each lane has the same."""
    rng, words = np.random.default_rng(3), (0x81807F7E, 0x7D7F8280)
    given = {n: rng.integers(0, 1 << 32, 32).astype(np.uint32) for n in range(8, 24)}
    given |= {24 + k: np.full(32, word, np.uint32) for k, word in enumerate(words)}
    formats = "matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4"
    for places in (f"{scalar}, {vector}", f"{vector}, {scalar}"):
        code = f"v_wmma_{name}_f32_16x16x128_f8f6f4 v[0:7], v[8:15], v[16:23], 0, {{}} {formats}"
        scales = {4: words[0], 5: words[1]}
        both = (execute(code.format(p), gpu=GPU, v=given, s=scales) for p in (places, f"{vector}, {vector}"))
        sums = [machine.waves.V[:8] for machine in both]
        np.testing.assert_array_equal(*sums)
        assert sums[0].any()


def test_scales_that_nobody_wrote():
    body = "\n".join(f"v_mov_b32 v{n}, {n}" for n in range(8, 24))
    formats = "matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4"
    body += f"\nv_wmma_scale_f32_16x16x128_f8f6f4 v[4:11], v[8:15], v[16:23], 0, s20, 0 {formats}"
    with pytest.raises(HazardError, match=r"stores bits that nobody wrote \(v8\)"):
        run_memory("gfx1250", body, *random_bytes(3), strict=True)

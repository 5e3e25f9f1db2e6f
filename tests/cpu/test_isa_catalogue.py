"""The catalogue of matrix instructions and their layouts, against ISA guides, data sheets and themselves."""

import itertools

import numpy as np
import pytest
from sampled import sampled

from laneloom.errors import ArgumentError
from laneloom.gpu import get_gpu
from laneloom.isa import find_instruction, get_layout, instructions, layout_csv
from laneloom.isa.catalogue import TYPES, check
from laneloom.isa.fragments import pack, unpack

COUNTS = {
    "gfx1100": 6, "gfx1151": 6, "gfx1201": 22, "gfx908": 20, "gfx90a": 27, "gfx942": 46, "gfx950": 68, "gfx1250": 43,
    "gfx1251": 44, "sm_90a": 488,
}  # fmt: skip


def few_wgmma(row):
    """Of wgmma's many widths and types a few stand for all."""
    return row.kind != "wgmma" or (row.n in (8, 24, 128) and row.a == row.b and row.a in ("f16", "tf32", "i8"))


EVERY = [
    (gpu, row, wave, matrix)
    for gpu in ("gfx1151", "gfx1201", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1250", "gfx1251", "sm_90a")
    for row in filter(few_wgmma, instructions(gpu))
    for wave in row.waves
    for matrix in row.matrices
]


@pytest.mark.parametrize(("gpu", "count"), COUNTS.items())
def test_rows_agree_with_themselves(gpu, count):
    rows = instructions(gpu)
    assert len({row.name for row in rows}) == len(rows) == count
    opcodes = [(row.opcode, row.scaled, row.scale_block) for row in rows if row.opcode is not None]
    assert len(set(opcodes)) == len(opcodes)
    for row in rows:
        check(row)
        assert find_instruction(row.name.upper(), gpu) is row


PEAKS = [
    ("gfx1100", "fp16", "f16"), ("gfx1151", "int8", "iu8"), ("gfx1151", "int4", "iu4"), ("gfx1201", "bf16", "bf16"),
    ("gfx1201", "fp8", "fp8"), ("gfx1201", "int4", "iu4"), ("gfx942", "fp16", "f16"), ("gfx942", "tf32", "xf32"),
    ("gfx942", "int8", "i8"), ("gfx942", "fp8", "fp8_fnuz"), ("gfx942", "fp64_matrix", "f64"),
    ("gfx942", "fp32", "f32"), ("gfx950", "bf16", "bf16"), ("gfx950", "int8", "i8"), ("gfx950", "fp8", "f8f6f4"),
    ("gfx950", "fp64_matrix", "f64"), ("gfx90a", "fp16", "f16"), ("gfx90a", "bf16", "bf16"), ("gfx90a", "int8", "i8"),
    ("gfx90a", "fp32_matrix", "f32"), ("gfx90a", "fp64_matrix", "f64"), ("gfx908", "fp16", "f16"),
    ("gfx908", "bf16", "bf16"), ("gfx908", "int8", "i8"), ("gfx908", "fp32_matrix", "f32"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "peak", "kind"), PEAKS)
def test_fastest_instruction_reaches_the_data_sheets_peak(name, peak, kind):
    gpu = get_gpu(name)
    rates = [row.rate(gpu) or 0 for row in instructions(gpu) if row.a == kind and not row.sparse]
    assert max(rates) * gpu.compute_units * gpu.clock_ghz / 1000 == pytest.approx(gpu.peak_tflops[peak], rel=1e-3)


def test_every_layout_holds_every_element_once():
    for gpu, row, wave, matrix in EVERY:
        layout = get_layout(row, gpu, wave, matrix)
        found = dict(layout)
        assert len(found) == layout.rows * layout.cols * layout.blocks, (row.name, matrix)
        bits = {}
        for element, places in found.items():
            assert len(places) == (wave // 16 if row.generation == "rdna3" and matrix in "AB" else 1)
            for place in places:
                first = 32 * place.vgpr + place.bit_lo
                assert first + layout.width <= 32 * layout.registers
                bits.setdefault((place.lane, first), []).append(element)
        assert {len(held) for held in bits.values()} == {layout.shared}
        used = sorted(start for lane, start in bits if lane == 0)
        assert all(b - a >= layout.width for a, b in itertools.pairwise(used))


def test_register_to_element_is_the_inverse():
    for gpu, row, wave, matrix in EVERY[::3]:
        layout = get_layout(row, gpu, wave, matrix)
        for element, places in list(layout)[:: max(len(dict(layout)) // 40, 1)]:
            for place in places:
                held = layout.elements(place.lane, place.vgpr, place.bit_lo)
                assert (place, element) in held
                assert len(held) == layout.shared


# -- formulas of the ISA guides and articles, written once more --------------------------------------------------------


def csv(rows):
    lines = [",".join(map(str, r)) for r in sorted(rows, key=lambda r: r[1:5])]
    return "\n".join(["matrix,block,row,col,lane,vgpr,bit_lo,bit_hi", *lines]) + "\n"


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1151"])
@pytest.mark.parametrize("wave", [32, 64])
@pytest.mark.parametrize(("name", "bits"), [("f32_16x16x16_f16", 16), ("i32_16x16x16_iu8", 8), ("i32_16x16x16_iu4", 4)])
def test_rdna3_inputs(gpu, wave, name, bits):
    per = 32 // bits
    a, b = [], []
    for lane in range(wave):
        for e in range(16):
            place = (lane, e // per, e % per * bits, e % per * bits + bits - 1)
            a.append(("A", 0, lane % 16, e, *place))
            b.append(("B", 0, e, lane % 16, *place))
    assert layout_csv(f"v_wmma_{name}", gpu, wave, "A") == csv(a)
    assert layout_csv(f"v_wmma_{name}", gpu, wave, "B") == csv(b)


@pytest.mark.parametrize("wave", [32, 64])
@pytest.mark.parametrize("opsel", [0, 4])
@pytest.mark.parametrize("matrix", ["C", "D"])
def test_rdna3_outputs(wave, opsel, matrix):
    groups = wave // 16
    whole, half = [], []
    for lane in range(wave):
        for v in range(256 // wave):
            element = (matrix, 0, groups * v + lane // 16, lane % 16, lane, v)
            whole.append((*element, 0, 31))
            half.append((*element, 4 * opsel, 4 * opsel + 15))
    assert layout_csv("v_wmma_bf16_16x16x16_bf16", "gfx1100", wave, matrix, opsel) == csv(half)
    assert layout_csv("v_wmma_f32_16x16x16_bf16", "gfx1100", wave, matrix) == csv(whole)


def test_rdna4_has_two_orders_of_k():
    orders = {"calculator": lambda e, h: 8 * (e // 4) + 4 * h + e % 4, "articles": lambda e, h: 8 * h + e}
    for order, k_of in orders.items():
        a, b = [], []
        for lane in range(32):
            for e in range(8):
                k, place = k_of(e, lane // 16), (lane, e // 2, e % 2 * 16, e % 2 * 16 + 15)
                a.append(("A", 0, lane % 16, k, *place))
                b.append(("B", 0, k, lane % 16, *place))
        for name in ("v_wmma_f32_16x16x16_f16", "v_wmma_bf16_16x16x16_bf16"):
            assert layout_csv(name, "gfx1201", 32, "A", k_order=order) == csv(a)
            assert layout_csv(name, "gfx1201", 32, "B", k_order=order) == csv(b)
    assert layout_csv(name, "gfx1201", 32, "A") == layout_csv(name, "gfx1201", 32, "A", k_order="calculator")
    # Both orders permute K of A and of B alike, so a product of the registers is the same.
    first, second = (get_layout(name, "gfx1201", 32, "A", k_order=o) for o in ("calculator", "articles"))
    other, fourth = (get_layout(name, "gfx1201", 32, "B", k_order=o) for o in ("calculator", "articles"))
    for k in range(16):
        (p,) = first.where(0, k)
        (q,) = other.where(k, 0)
        ((_, of_a),) = second.elements(p.lane, p.vgpr, p.bit_lo)
        ((_, of_b),) = fourth.elements(q.lane, q.vgpr, q.bit_lo)
        assert of_a.col == of_b.row


def test_rdna4_outputs_and_eight_bits():
    d = [("D", 0, 8 * (lane // 16) + v, lane % 16, lane, v, 0, 31) for lane in range(32) for v in range(8)]
    assert layout_csv("v_wmma_f32_16x16x16_fp8_bf8", "gfx1200", 32, "D") == csv(d)
    a = [
        ("A", 0, lane % 16, 8 * (lane // 16) + 4 * v + byte, lane, v, 8 * byte, 8 * byte + 7)
        for lane in range(32) for v in range(2) for byte in range(4)
    ]  # fmt: skip
    assert layout_csv("v_wmma_f32_16x16x16_fp8_bf8", "gfx1200", 32, "A") == csv(a)


def test_mfma_16x16x4_f64():
    a = [("A", 0, t % 16, t // 16, t, 0, 0, 63) for t in range(64)]
    b = [("B", 0, t // 16, t % 16, t, 0, 0, 63) for t in range(64)]
    d = [("D", 0, t // 16 + 4 * e, t % 16, t, 2 * e, 0, 63) for t in range(64) for e in range(4)]
    for matrix, want in (("A", a), ("B", b), ("D", d)):
        assert layout_csv("v_mfma_f64_16x16x4_f64", "gfx942", 64, matrix) == csv(want)


def test_mfma_32x32_rows():
    layout = get_layout("v_mfma_f32_32x32x8_f16", "gfx942", 64, "D")
    for i in range(32):
        (place,) = layout.where(i, 7)
        assert (place.lane, place.vgpr) == (32 * (i // 4 % 2) + 7, 4 * (i // 8) + i % 4)


def test_sparse_b_of_cdna3_where_the_calculators_formula_is_wrong():
    layout = get_layout("v_smfmac_f32_16x16x32_f16", "gfx942", 64, "B")
    for k in range(32):
        (place,) = layout.where(k, 3)
        assert (place.vgpr, place.bit_lo, place.lane) == (k // 2 % 4, 16 * (k % 2), 16 * (k // 8) + 3)


def test_mma_sync_fragments():
    """PTX ISA: row = group (+ 8), column from the thread in the group; the sixteen a_i of m16n8k32, the f64 forms."""
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        layout = get_layout("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32", "sm_90a", 32, "A")
        for i in range(16):
            row = group if i < 4 or 8 <= i < 12 else group + 8
            col = thread * 4 + (i & 3) + (16 if i >= 8 else 0)
            assert layout.where(row, col) == ((lane, i // 4, 8 * (i % 4), 8 * (i % 4) + 7),)
        layout = get_layout("mma.m16n8k16.f64.f64.f64.f64", "sm_90a", 32, "A")
        for i in range(8):
            assert layout.where(group + 8 * (i % 2), 4 * (i // 2) + thread) == ((lane, 2 * i, 0, 63),)
        layout = get_layout("mma.m16n8k8.f32.tf32", "sm_90a", 32, "B")
        assert [layout.where(thread + 4 * i, group) for i in (0, 1)] == [((lane, i, 0, 31),) for i in (0, 1)]
        layout = get_layout("mma.m16n8k16.f16.f16", "sm_90a", 32, "D")
        for i in range(4):
            row, col = group + 8 * (i // 2), 2 * thread + i % 2
            assert layout.where(row, col) == ((lane, i // 2, 16 * (i % 2), 16 * (i % 2) + 15),)


@pytest.mark.parametrize("n", [8, 24, 200, 256])
def test_wgmma_accumulators(n):
    layout = get_layout(f"wgmma.m64n{n}k16.f32.bf16", "sm_90a", 128, "D")
    assert layout.registers == n // 2
    for lane in range(128):
        for i in range(n // 2):
            row = 16 * (lane // 32) + lane % 32 // 4 + 8 * (i // 2 % 2)
            col = 8 * (i // 4) + 2 * (lane % 4) + i % 2
            assert layout.where(row, col) == ((lane, i, 0, 31),)


# -- modifiers ---------------------------------------------------------------------------------------------------------


def test_cbsz_and_abid_broadcast_a_block():
    name = "v_mfma_f32_4x4x4_16b_f16"
    plain = get_layout(name, "gfx942", 64, "A")
    told = get_layout(name, "gfx942", 64, "A", cbsz=2, abid=3)
    for block in range(16):
        assert told.where(1, 2, block) == plain.where(1, 2, block // 4 * 4 + 3)
    assert get_layout(name, "gfx942", 64, "B", cbsz=2, abid=3).where(1, 2, 5) == get_layout(
        name, "gfx942", 64, "B"
    ).where(1, 2, 5)


@pytest.mark.parametrize(("blgp", "lane"), list(enumerate([37, 5, 37, 53, 5, 21, 37, 53])))
def test_blgp_takes_b_from_other_lanes(blgp, lane):
    layout = get_layout("v_mfma_f32_16x16x4_4b_f16", "gfx942", 64, "B", blgp=blgp)
    assert layout.where(0, 5, 2)[0].lane == lane


def test_f8f6f4_types_follow_cbsz_and_blgp():
    name = "v_mfma_f32_16x16x128_f8f6f4"
    assert [get_layout(name, "gfx950", 64, "A", cbsz=z).registers for z in range(5)] == [8, 8, 6, 6, 4]
    assert [get_layout(name, "gfx950", 64, "B", blgp=z).registers for z in range(5)] == [8, 8, 6, 6, 4]
    assert get_layout(name, "gfx950", 64, "A", cbsz=4).where(3, 65) == ((35, 0, 4, 7),)
    assert get_layout(name, "gfx950", 64, "A", cbsz=2).where(3, 5) == ((3, 0, 30, 35),)  # over a register's border
    assert get_layout(name, "gfx950", 64, "A").where(3, 65) == ((3, 4, 8, 15),)


def test_scaled_forms_lie_as_the_others():
    for size in ("16x16x128", "32x32x64"):
        for matrix in "ABCD":
            plain, scaled = (
                get_layout(f"v_mfma_{kind}f32_{size}_f8f6f4", "gfx950", 64, matrix, cbsz=2, blgp=4)
                for kind in ("", "scale_")
            )
            assert dict(plain) == dict(scaled)
    row = find_instruction("__builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4", "gfx950")
    assert (row.name, row.encoding, row.scaled) == ("v_mfma_scale_f32_16x16x128_f8f6f4", "VOP3PX2", True)
    assert "in lane i + 16 (k/32)" in row.note


def test_sets_of_sparse_indices():
    key = [get_layout("v_swmmac_f32_16x16x32_f16", "gfx1201", 64, "K", n).where(2, 5)[0] for n in range(4)]
    assert [p.bit_lo for p in key] == [4, 12, 20, 28]
    chosen = [get_layout("v_smfmac_i32_16x16x64_i8", "gfx942", 64, "K", abid=n).where(2, 5)[0] for n in range(2)]
    assert [p.bit_lo for p in chosen] == [4, 20]
    assert get_layout("v_smfmac_i32_16x16x64_i8", "gfx942", 64, "K", cbsz=1, abid=1).where(2, 5)[0].bit_lo == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("v_wmma_f32_16x16x16_f61", "gfx1151", 32, "A"), "nearest are v_wmma_f32_16x16x16_f16"),
        (("v_swmmac_f32_16x16x32_f16", "gfx1151", 32, "A"), "it is one of gfx1170, gfx1171, gfx1172, gfx1200,"),
        (("v_mfma_f32_16x16x32_fp8_fp8", "gfx90a", 64, "A"), r"it is one of gfx942"),
        (("v_wmma_f32_16x16x16_f16", "gfx1151", 16, "A"), "32 or 64 lanes, not 16"),
        (("v_wmma_f32_16x16x16_f16", "gfx1151", 32, "E"), "matrix must be"),
        (("v_wmma_f32_16x16x16_f16", "gfx1151", 32, "K"), "not sparse"),
        (("v_wmma_f32_16x16x16_f16", "gfx1151", 32, "A", 4), "opsel .* may be 0, not 4"),
        (("v_wmma_f16_16x16x16_f16", "gfx1151", 32, "D", 1), "may be 0, 4, not 1"),
        (("v_swmmac_i32_16x16x64_iu4", "gfx1201", 32, "K", 1), "may be 0, not 1"),
        (("wgmma.m64n8k16.f32.f16", "sm_90a", 128, "B"), "shared memory"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ArgumentError, match=message):
        layout_csv(*call)


@pytest.mark.parametrize(("modifiers", "message"), [
    ({"cbsz": 5}, "cbsz .* may be 0 to 4"), ({"cbsz": 1, "abid": 2}, "abid .* may be 0 to 1"),
    ({"blgp": 8}, "blgp .* may be 0 to 7"), ({"k_order": "mine"}, "calculator or articles"),
])  # fmt: skip
def test_refused_modifiers(modifiers, message):
    with pytest.raises(ArgumentError, match=message):
        get_layout("v_mfma_f32_4x4x4_16b_f16", "gfx942", 64, "A", **modifiers)
    with pytest.raises(ArgumentError, match=r"no A\[4\]\[0\]"):
        get_layout("v_mfma_f32_4x4x4_16b_f16", "gfx942", 64, "A").where(4, 0)
    with pytest.raises(ArgumentError, match=r"registers 0\.\.1 in lanes 0\.\.63"):
        get_layout("v_mfma_f32_4x4x4_16b_f16", "gfx942", 64, "A").elements(64, 0)


SPELLINGS = [
    ("gfx908", "llvm.amdgcn.mfma.f32.32x32x4bf16", "v_mfma_f32_32x32x4bf16"),
    ("gfx90a", "v_mfma_f32_32x32x8_f16", "v_mfma_f32_32x32x8f16"),
    ("gfx90a", "v_mfma_f32_4x4x1_16b_f32", "v_mfma_f32_4x4x1f32"),
    ("gfx90a", "__builtin_amdgcn_mfma_f32_32x32x4bf16", "v_mfma_f32_32x32x4bf16"),
    ("gfx90a", "llvm.amdgcn.mfma.f32.32x32x4bf16.1k", "v_mfma_f32_32x32x4bf16_1k"),
    ("gfx90a", "v_mfma_f32_32x32x4_2b_bf16", "v_mfma_f32_32x32x4bf16_1k"),
    ("gfx90a", "v_mfma_f32_16x16x16_bf16", "v_mfma_f32_16x16x16bf16_1k"),
    ("gfx942", "v_mfma_f32_32x32x8f16", "v_mfma_f32_32x32x8_f16"),
    ("gfx942", "v_mfma_f32_32x32x4bf16_1k", "v_mfma_f32_32x32x4_2b_bf16"),
    ("gfx942", "v_mfma_f32_32x32x4bf16", "v_mfma_f32_32x32x4_2b_bf16"),
    ("gfx942", "__builtin_amdgcn_mfma_f32_4x4x1f32", "v_mfma_f32_4x4x1_16b_f32"),
    ("gfx942", "llvm.amdgcn.mfma.i32.16x16x32.i8", "v_mfma_i32_16x16x32_i8"),
    ("gfx942", "v_mfma_f32_16x16x8_xf32", "v_mfma_f32_16x16x8_xf32"),
    ("gfx1151", "__builtin_amdgcn_wmma_f16_16x16x16_f16_w64", "v_wmma_f16_16x16x16_f16"),
    ("gfx1201", "__builtin_amdgcn_wmma_f16_16x16x16_f16_w32_gfx12", "v_wmma_f16_16x16x16_f16"),
    ("sm_90a", "mma.m16n8k16.f32.f16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    ("h200", "wgmma.m64n128k16.f32.bf16", "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"),
]


@pytest.mark.parametrize(("gpu", "spelling", "name"), SPELLINGS)
def test_spellings(gpu, spelling, name):
    assert find_instruction(spelling, gpu).name == name


# -- packing -----------------------------------------------------------------------------------------------------------


def test_pack_and_unpack_are_inverse():
    rng = np.random.default_rng(3)
    for gpu, row, wave, matrix in sampled(EVERY[::2]):
        layout = get_layout(row, gpu, wave, matrix)
        pairs = layout.shared > 1 and matrix == "A"
        bits = layout.width // 2 if pairs else layout.width
        cols = layout.cols // 2 if pairs else layout.cols // layout.shared
        shape = (layout.rows, cols) if layout.blocks == 1 else (layout.blocks, layout.rows, cols)
        codes = rng.integers(0, 1 << min(bits, 63), shape, np.uint64)
        registers = pack(layout, codes)
        assert registers.shape == (layout.registers, wave)
        assert np.array_equal(unpack(layout, registers), codes), (row.name, matrix)
    six = get_layout("v_mfma_f32_16x16x128_f8f6f4", "gfx950", 64, "A", cbsz=2)
    codes = rng.integers(0, 64, (16, 128))
    assert np.array_equal(unpack(six, pack(six, codes)), codes)
    with pytest.raises(ArgumentError, match=r"A of .* is \(16, 128\), not \(16, 64\)"):
        pack(six, codes[:, :64])
    with pytest.raises(ArgumentError, match="6 registers of 64 lanes"):
        unpack(six, np.zeros((8, 64), np.uint32))


def test_types_have_the_bits_of_their_names():
    for name, kind in TYPES.items():
        assert name == "f8f6f4" or str(kind.bits) in name or (name in ("xf32", "tf32") and kind.bits == 32)


def test_the_value_of_a_float_is_not_its_bits():
    a = get_layout("v_wmma_f32_16x16x16_f16", "gfx1151", 32, "A")
    ones = np.ones((16, 16), np.float16)
    with pytest.raises(ArgumentError, match=r"codes: expected integers, such as x\.view\(.*, got float16"):
        pack(a, ones)
    with pytest.raises(ArgumentError, match="registers: expected integers"):
        unpack(a, np.ones((8, 32), np.float32))
    assert (pack(a, ones.view(np.uint16)) == 0x3C003C00).all()

"""Every AMD row of the catalogue, assembled: LLVM knows the mnemonic, its registers and its opcode."""

import struct

import pytest

from laneloom.codegen import versions
from laneloom.gpu import get_gpu
from laneloom.isa import get_layout, instructions
from laneloom.isa.elf import read_sections

LOAD_SCALE, MAI = 44, 0xD3  # v_mfma_ld_scale_b32, and the byte that MFMA's encodings begin with


def registers(first, count, kind="v"):
    return f"{kind}{first}" if count == 1 else f"{kind}[{first}:{first + count - 1}]"


def line_of(row, gpu, wave, tail=""):
    count = {m: get_layout(row, gpu, wave, m).registers for m in row.matrices}
    sums = registers(0, count["D"], "a" if gpu == "gfx908" else "v")  # CDNA 1 has them in accumulation registers alone
    c = registers(120, 1) if row.sparse else sums
    if row.scaled:
        tail = f", v121, v122{tail}"
    return f"{row.name} {sums}, {registers(40, count['A'])}, {registers(80, count['B'])}, {c}{tail}"


def encodings(lines, gpu, wave):
    """The first dword of every line, without the prefix that loads scales; a line that LLVM refuses leaves no code."""
    features = "+wavefrontsize64" if wave == 64 and get_gpu(gpu).wave == 32 else ""
    binary = versions.assembler()("\t.text\n" + "\n".join(lines) + "\n", gpu, features)
    (text,) = (s.data for s in read_sections(binary) if s.name == ".text")
    words = [word for (word,) in struct.iter_unpack("<I4x", text)]
    words = [word for word in words if word >> 16 & 0x7F != LOAD_SCALE or word >> 24 != MAI]
    assert len(words) == len(lines)
    return words


CASES = [("gfx1100", 32), ("gfx1100", 64), ("gfx1201", 32), ("gfx1201", 64)]
CASES += [(gpu, 64) for gpu in ("gfx908", "gfx90a", "gfx942", "gfx950")]


if versions.parse_version(versions.triton_version()) >= (3, 9):
    CASES += [("gfx1170", 32), ("gfx1170", 64)]


@pytest.mark.parametrize(("gpu", "wave"), CASES)
def test_opcodes_and_registers(gpu, wave):
    rows = instructions(gpu)
    words = encodings([line_of(row, gpu, wave) for row in rows], gpu, wave)
    assert {row.name: word >> 16 & 0x7F for row, word in zip(rows, words, strict=True)} == {
        row.name: row.opcode for row in rows
    }


TAILS = {
    "op_sel": " op_sel:[0,0,1]", "neg_lo": " neg_lo:[1,1,0]", "neg_hi": " neg_hi:[1,1,0]", "clamp": " clamp",
    "neg_lo[2]": " neg_lo:[0,0,1]", "neg_hi[2]": " neg_hi:[0,0,1]", "index_key": " index_key:1",
    "cbsz": " cbsz:1", "abid": " abid:1", "blgp": " blgp:1",
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "wave"), CASES)
def test_modifiers(gpu, wave):
    lines = []
    for row in instructions(gpu):
        if row.a == "f8f6f4":  # they choose formats, and with them registers
            continue
        for modifier in row.modifiers:
            if modifier == "index_key" and wave == 32 and row.k == 64:
                continue  # its index fills the register: there is no second part
            tail = " neg:[1,0,0]" if row.a == "f64" else TAILS[modifier]
            lines.append(line_of(row, gpu, wave, tail))
    assert len(set(encodings(lines, gpu, wave))) == len(lines)  # each is encoded differently


def test_formats_of_f8f6f4_take_their_registers():
    lines = []
    for row in instructions("gfx950"):
        if row.a == "f8f6f4":
            for a in range(5):
                for b in range(5):
                    count = [get_layout(row, "gfx950", 64, m, cbsz=a, blgp=b).registers for m in "DAB"]
                    d, x, y = (registers(n, c) for n, c in zip((0, 40, 80), count, strict=True))
                    scales = ", v121, v122" if row.scaled else ""
                    lines.append(f"{row.name} {d}, {x}, {y}, {d}{scales} cbsz:{a} blgp:{b}")
    assert len(encodings(lines, "gfx950", 64)) == 100


#: what a scaled form of CDNA 5 begins with: v_wmma_ld_scale_paired_b32 and v_wmma_ld_scale16_paired_b64
LOADS_OF_SCALES = (0xCC35, 0xCC3A)


@pytest.mark.parametrize("gpu", ["gfx1250", "gfx1251"])
def test_opcodes_and_registers_of_cdna5(gpu):
    """All rows, C and the index of sparse forms with registers of their own, scales of 16 k in pairs of them."""
    if gpu == "gfx1251" and versions.parse_version(versions.triton_version()) < (3, 9):
        pytest.skip("Triton's LLVM knows its product of FP64 from 3.9 on")
    lines, rows = [], instructions(gpu)
    for row in rows:
        count = {m: get_layout(row, gpu, 32, m).registers for m in row.matrices}
        last = registers(120, count["K"]) if row.sparse else registers(20, count["C"])
        if row.sparse:  # D is written over the sums, which may be wider: BF16 in the first half of theirs
            count["D"] = count.get("C", count["D"])
        operands = [registers(n, count[m]) for n, m in ((0, "D"), (40, "A"), (80, "B"))] + [last]
        if row.scaled:
            each = 2 if row.scale_block == 16 else 1
            operands += [registers(122, each), registers(124, each)]
        lines.append(f"{row.name} {', '.join(operands)}")
    binary = versions.assembler()("\t.text\n" + "\n".join(lines) + "\n", gpu, "")
    (text,) = (s.data for s in read_sections(binary) if s.name == ".text")
    words = [word for (word,) in struct.iter_unpack("<I4x", text)]
    words = [word for word in words if word >> 16 not in LOADS_OF_SCALES]
    assert [word >> 16 & 0xFF for word in words] == [row.opcode for row in rows]


def test_formats_of_cdna5_take_their_registers():
    lines, names = [], ("FP8", "BF8", "FP6", "BF6", "FP4")
    for a in range(5):
        for b in range(5):
            name = "v_wmma_f32_16x16x128_f8f6f4"
            count = [get_layout(name, "gfx1250", 32, m, cbsz=a, blgp=b).registers for m in "DAB"]
            d, x, y = (registers(n, c) for n, c in zip((0, 40, 80), count, strict=True))
            formats = f"matrix_a_fmt:MATRIX_FMT_{names[a]} matrix_b_fmt:MATRIX_FMT_{names[b]}"
            lines.append(f"{name} {d}, {x}, {y}, {d} {formats}")
    assert len(encodings(lines, "gfx1250", 32)) == 25

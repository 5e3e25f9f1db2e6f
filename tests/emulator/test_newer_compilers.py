"""Machine code of compilers that are newer than the llvm-objdump here: unused fields, halves of registers."""

from __future__ import annotations

import re
import struct

import pytest
from test_code_objects import by_hand, real_objdump

from laneloom.codegen import assemble
from laneloom.emulator.program import Program
from laneloom.errors import UnknownInstructionError
from laneloom.isa import objdump
from laneloom.isa.disassembly import disassemble
from laneloom.isa.elf import read_sections
from laneloom.isa.unused_fields import reread

# The first two have one source each, and a register of 16 bits; those behind them two, a literal, and three.
BODY = """
\tv_cvt_f32_f16_e64 v1, |v0.l|
\tv_cvt_f32_f16_e64 v1, -v0.h
\tv_add_co_u32 v1, s4, v0, v0
\tv_mbcnt_lo_u32_b32 v1, -1, 0
\tv_sub_co_u32 v1, s4, v1, v0
\tv_cmp_lt_u32_e64 s4, 0x1234, v0
\tv_mad_u32_u24 v1, v0, 4, s4
\tv_pk_mul_f16 v1, v1, v0
"""
SOURCES = (1, 1, 2, 2, 2, 2, 3, 2)


def newer(gpu: str) -> tuple[bytes, bytes]:
    """A code object with BODY whose unused fields are zero, and the same with 128 in them."""
    text = re.sub(r"\ts_mov_b32 s4, 1\n.*?(?=\tv_lshlrev_b32_e32)", BODY.lstrip("\n"), by_hand(gpu), flags=re.S)
    elf = assemble(text, gpu).binary
    code = next(s for s in read_sections(elf) if s.holds_code)
    zeros, filled = bytearray(elf), bytearray(elf)
    places = (k for k in range(0, len(code.data) - 4, 4) if code.data[k + 3] in (0xD4, 0xD5, 0xD6, 0xD7, 0xCC))
    at = 0
    for sources in SOURCES:
        at = code.offset + next(k for k in places if code.offset + k >= at)
        (word,) = struct.unpack_from("<I", elf, at + 4)
        for field in range(sources, 3):
            word &= ~(511 << 9 * field)
        struct.pack_into("<I", zeros, at + 4, word)
        struct.pack_into("<I", filled, at + 4, word | sum(128 << 9 * field for field in range(sources, 3)))
        at += 8
    return bytes(zeros), bytes(filled)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_unused_fields_need_not_be_zero(gpu):
    real_objdump(gpu)
    zeros, filled = (Program(disassemble(elf).text, gpu).listing.instructions for elf in newer(gpu))
    assert [(i.name, i.operands, i.modifiers) for i in filled] == [(i.name, i.operands, i.modifiers) for i in zeros]
    names = [i.name for i in filled]
    assert {line.split()[0].removesuffix("_e64") for line in BODY.split("\n") if line} <= set(names)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_a_result_in_an_upper_half(gpu):
    real_objdump(gpu)
    body = "\tv_cvt_f16_f32_e32 v1.h, v0\n\tv_cvt_f16_f32_e32 v1.h, 0x3f8ccccd\n\tv_add_co_u32 v2, s4, v0, v0\n"
    text = re.sub(r"\ts_mov_b32 s4, 1\n.*?(?=\tv_lshlrev_b32_e32)", body, by_hand(gpu), flags=re.S)
    text = text.replace("next_free_vgpr 2", "next_free_vgpr 3")
    code = Program(disassemble(assemble(text, gpu).binary).text, gpu).listing.instructions
    first, second, third = code[1:4]
    assert [first.name, second.name, third.name] == ["v_cvt_f16_f32", "v_cvt_f16_f32", "v_add_co_u32"]
    assert [first.operands[0].half, second.operands[0].half, first.nbytes, second.nbytes] == ["h", "h", 4, 8]


def test_data_that_looks_like_an_instruction_stays(monkeypatch):
    """A disassembler that knows no VOP3 at all: the second word of what it skips is never taken for an instruction."""
    _, elf = newer("gfx1151")
    code = next(s for s in read_sections(elf) if s.holds_code)
    decoded = []

    def decode(data: bytes) -> dict[int, tuple[str, str]]:
        decoded.append(data)
        words = [struct.unpack_from("<I", data, code.offset + k)[0] for k in range(0, len(code.data), 4)]
        return {
            code.address + 4 * k: (".long" if word >> 26 == 0b110101 else "v_nop", f"{word:08X}")
            for k, word in enumerate(words)
        }

    lines = decode(elf)
    assert reread(elf, lines, decode) == lines
    assert decoded[-1] == elf


@pytest.mark.parametrize(
    ("text", "as_llvm", "in_the_file"),
    [("tensor_load_to_lds s[36:39], s[40:47]", (0xD0710001, 0x7C000000, 0x7C7C2824), (0xD0310000, 0, 0x7C7C2824)),
     ("tensor_store_from_lds s[36:39], s[40:47]", (0xD0714001, 0x7C000000, 0x7C7C2824), (0xD0314000, 0, 0x7C7C2824)),
     ("v_wmma_f32_32x16x128_f4 v[0:15], v[16:31], v[32:39], v[0:15]", (0xCC884000, 0x1C024110),
      (0xCC880000, 0x1C024110))],
)  # fmt: skip
def test_instructions_of_cdna_5_whose_unused_fields_are_zero(text, as_llvm, in_the_file):
    """A disassembler that knows one instruction only as LLVM writes it; told is what the file has."""
    _, elf = newer("gfx1151")
    code = next(s for s in read_sections(elf) if s.holds_code)
    written, size = bytearray(elf), len(as_llvm)
    struct.pack_into(f"<{size}I", written, code.offset + 8, *in_the_file)

    def decode(data: bytes) -> dict[int, tuple[str, str]]:
        words = [struct.unpack_from("<I", data, code.offset + k)[0] for k in range(0, len(code.data) & ~3, 4)]
        lines, k = {}, 0
        while k < len(words):
            known = tuple(words[k : k + size]) == as_llvm
            taken = words[k : k + (size if known else 1)]
            name = text if known else ".long" if k == 2 else "v_nop"
            lines[code.address + 4 * k] = name, " ".join(f"{w:08X}" for w in taken)
            k += len(taken)
        return lines

    lines = reread(bytes(written), decode(bytes(written)), decode)
    at = code.address + 8
    assert lines[at] == (text, " ".join(f"{w:08X}" for w in in_the_file))
    assert not {at + 4 * k for k in range(1, size)} & set(lines)
    assert all(name == "v_nop" for place, (name, _) in lines.items() if place != at)


def test_the_objdump_that_knows_most_is_taken(tmp_path, monkeypatch):
    line = "\\t{} // 000000000100: D7000001\\n"
    for name, text in (("llvm-objdump", ".long 0xd7000001"), ("llvm-objdump-19", "v_nop")):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{line.format(text)}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.delenv(objdump.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    _, elf = newer("gfx1151")
    assert objdump.read_lines(elf, "gfx1151", 32) == {256: ("v_nop", "D7000001")}


def test_an_instruction_that_nobody_decodes(execute):
    with pytest.raises(UnknownInstructionError, match="llvm-objdump did not know this instruction"):
        execute("undecodable 0xd7000001")

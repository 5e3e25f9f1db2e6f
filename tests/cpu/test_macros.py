"""Macros of assembly that people wrote: what LLVM's assembler makes of the text and of its expansion is the same."""

import pytest
from test_handwritten import assembled

from laneloom.errors import EmulationError
from laneloom.isa.handwritten import as_printed
from laneloom.isa.macros import expand
from laneloom.isa.metadata import parse_metadata
from laneloom.isa.parse import parse

WRITTEN = r"""
.set MODE, 2
.set BASE, 8
.ifndef DEPTH
.set DEPTH, 3   // as often as this
.endif
.macro MOVE to, from=4, rest:vararg   // two registers
    v_mov_b32 v[\to], v[\from]
    .ifnb \rest
    v_mov_b32 \rest
    .endif
.endm
.macro COUNT n
.if \n > 0
    s_nop \n
    COUNT \n-1
.endif
.endm
.macro LOOP reg:req, body
loop\@_\reg: s_sub_u32 s\reg, s\reg, 1
    .irp k, 0,1,\body
    MOVE BASE+\k, \k
    .endr
    s_cmp_eq_u32 s\reg, 0
    s_cbranch_scc0 loop\@_\reg
    .exitm
    s_nop 9
.endm
.macro LOADS from
.if MODE == 1
    s_load_b32 s[BASE], s[\from:\from+1], 0x10
.elseif (MODE & 2) == 2
    s_load_b64 s[BASE:BASE+1], s[\from:\from+1], (\from)*16+4<<1
.else
    s_nop 8
.endif
.endm
.macro PART name
v_mov_b32 v\name\()1, 7
.endm
.amdhsa_code_object_version 5
k:
    MOVE 1
    MOVE 2, 5
    MOVE from=6, to=3
    MOVE BASE - 1 2, v20, v21
    COUNT DEPTH
    LOOP 4, 2
back: LOOP 5, body=3
    LOADS 2
    PART 1
    .irpc c, 123
    v_mov_b32 v\c, \c
    .endr
    .rept DEPTH - 1
    s_nop 5
    .endr
    .set MODE, MODE - 1
    LOADS 4
    .ifc a, a
    s_nop 6
    .endif
    .ifdef NOWHERE
    nonsense
    .if 1
    .endif
    .else
    s_nop 7
    .endif
    .ifeq MODE-1
    s_endpgm
    .endif
.amdhsa_kernel k
    .amdhsa_next_free_vgpr BASE*4
    .amdhsa_next_free_sgpr 16
    .amdhsa_wavefront_size32 1
.end_amdhsa_kernel
"""


def test_llvm_makes_the_same_of_both():
    printed = as_printed(WRITTEN)
    assert as_printed(printed) == printed
    first, second = (text.partition("\nk:")[2].partition(".amdhsa_kernel")[0] for text in (WRITTEN, printed))
    head = WRITTEN.partition("\n.amdhsa_code")[0] + "\n"
    assert code_of(head + first) == code_of(second)


def code_of(text):
    """Up to the last instruction: symbol tables differ by the symbols that are gone."""
    binary = assembled(text)
    start = binary.index(bytes.fromhex("0403027e"))  # v_mov_b32 v1, v4
    return binary[start : binary.index(bytes.fromhex("0000b0bf"), start)]


def test_instructions_know_the_line_of_their_call():
    listing = parse(WRITTEN)
    lines = WRITTEN.split("\n")
    assert listing.descriptor["next_free_vgpr"] == "32"
    assert [lines[ins.line - 1].strip() for ins in listing.instructions if ins.name == "s_cbranch_scc0"] == [
        "LOOP 4, 2", "back: LOOP 5, body=3",
    ]  # fmt: skip
    assert lines[listing.instructions[-1].line - 1].strip() == "s_endpgm"
    assert lines[listing.instructions[0].line - 1].strip() == "MOVE 1"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("a: s_nop 0\n.ifdef a\ns_nop 1\n.endif\n.ifndef b\ns_nop 2\n.endif\nb:", "0 1 2"),
        ("s_nop 0\n.ifdef b\ns_nop 1\n.endif\nb:", "0"),
        ("b:\nc: s_nop 2\n.set a, c - b\n.ifdef a\ns_nop 1\n.endif", "2 1"),
        (".irp x,\ns_nop 1\n.endr\n.irp x, 2,,3,\ns_nop 1\\x\n.endr", "12 1 13"),
        (".macro M a:vararg\n.irp x, \\a\ns_nop \\x\n.endr\n.endm\nM\nM 1,2", "1 2"),
        (".macro M n\ns_nop 0x\\n\\@\n.endm\nM 1\nM 1", "0x10 0x11"),
        (".macro M\ns_nop \\+\n.endm\n.macro N\ns_nop \\+\n.endm\nM\nN\nM", "0 0 1"),
        ('.amdgcn_target "amdgcn-amd-amdhsa--gfx90a"\n.if .amdgcn.gfx_generation_stepping == 10\ns_nop 1\n.endif', "1"),
    ],
)
def test_what_is_defined_and_how_often_it_is_made(text, numbers):
    """As LLVM's assembler makes it."""
    made = [line.rpartition("s_nop ")[2] for _, line in expand(text) if "s_nop" in line]
    assert " ".join(made) == numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".macro A\nA\n.endm\nA", "line 4: A calls itself without an end"),
        (".macro A x\ns_nop 0", "line 1: a block without .endm"),
        (".if 1\ns_nop 0", "line 1: .if without .endif"),
        (".rept X\n.endr", "line 1: 'X' is no expression of numbers and symbols with a value"),
        (".macro A x\n.endm\nA 1, 2", "line 3 gives A more arguments than it has"),
        (".rept 2000\n.rept 2000\ns_nop 0\n.endr\n.endr", "make more than 1,000,000 lines"),
        (".iffoo\n.endif", "line 1 uses .iffoo, which is not implemented"),
    ],
)
def test_what_cannot_be_expanded_says_so(text, message):
    with pytest.raises(EmulationError, match=message):
        expand(text)


def test_metadata_stays_as_it_is():
    text = WRITTEN + ".amdgpu_metadata\n---\namdhsa.kernels:\n  - .name: k\n    .sgpr_count: 16\n.end_amdgpu_metadata\n"
    assert parse_metadata(as_printed(text))[0].sgprs == 16

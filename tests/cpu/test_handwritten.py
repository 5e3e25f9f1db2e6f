"""Assembly as people write it against the same program as compilers print it: LLVM makes the same bytes of both."""

from __future__ import annotations

import pytest

from laneloom.codegen import versions
from laneloom.errors import EmulationError
from laneloom.gpu import get_gpu
from laneloom.isa.check_code import read_code
from laneloom.isa.handwritten import as_printed
from laneloom.isa.metadata import parse_metadata
from laneloom.isa.parse import parse

WRITTEN = """
/* A kernel as a person writes it;
   its second line of comment */
.set BASE, 8
STRIDE = BASE * 4 + 0x10
.text
k:
s_load_b64 s[BASE+2:BASE+3], s[0:1], 0x0
\ts_waitcnt lgkmcnt(0) // nothing: else
\tv_mov_b32 v[BASE-7], STRIDE<<1\t; a comment: with [ odd ] things - in it
\tv_lshlrev_b32\tv2,\t2,  v0
\tds_load_b64 v[ 4 : 5 ],  v2  offset: 8
\tds_load_2addr_b32 v[6:7], v2\toffset0: 1 offset1:(STRIDE / 8)
\tv_add_f32_e64 v8, -v4, |v5| clamp
\tv_dual_fmac_f32 v10, v4, v7 :: v_dual_mul_f32 v11, 2.0, v6
\ts_movk_i32 s4, -3
1:\ts_add_i32 s4, s4, 1
\ts_cmp_lt_i32 s4, BASE - 10
\ts_cbranch_scc1 1b
\ts_cbranch_scc0 1f
\ts_nop 0
1: s_nop 0
\tlast: s_branch done
\t.Lbehind:
done:
\tglobal_store_b32 v2, v8, s[10:11] offset:BASE*2 glc
s_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 16
\t\t.amdhsa_next_free_sgpr 16
\t\t.amdhsa_wavefront_size32 1
\t.end_amdhsa_kernel
"""


def assembled(text: str) -> bytes:
    gpu = get_gpu("gfx1151")
    return bytes(versions.assembler()(text, gpu.name, versions.assembler_features(gpu)))


def code_of(binary: bytes) -> bytes:
    """From the s_load to the s_endpgm: symbol tables differ by the symbols that are gone."""
    end = bytes.fromhex("0000b0bf")
    start = binary.index(assembled("s_load_b64 s[10:11], s[0:1], 0x0\ns_endpgm\n").partition(end)[0][-8:])
    return binary[start : binary.index(end, start)]


def test_llvm_makes_the_same_code_of_both():
    printed = as_printed(WRITTEN)
    assert printed != WRITTEN
    assert printed.count("\n") == WRITTEN.count("\n")
    assert code_of(assembled(printed)) == code_of(assembled(WRITTEN))
    assert as_printed(printed) == printed


def test_operands_and_labels():
    listing = parse(WRITTEN)
    by_name = {ins.name: ins for ins in listing.instructions}
    assert len(listing.instructions) == 18
    assert (by_name["s_load_b64"].operands[0].index, by_name["s_load_b64"].operands[0].count) == (10, 2)
    assert by_name["ds_load_b64"].number("offset") == 8
    assert (by_name["ds_load_2addr_b32"].number("offset0"), by_name["ds_load_2addr_b32"].number("offset1")) == (1, 6)
    assert by_name["v_mov_b32"].operands[1].value == 96
    assert by_name["global_store_b32"].number("offset") == 16
    back, forward = (next(i for i in listing.instructions if i.name == f"s_cbranch_scc{n}") for n in (1, 0))
    names = [ins.name for ins in listing.instructions]
    assert names[listing.labels[back.operands[0].value]] == "s_add_i32"
    assert listing.labels[forward.operands[0].value] == names.index("s_branch") - 1
    assert listing.labels[".Lbehind"] == listing.labels["done"]
    assert [i.line for i in listing.instructions][:2] == [8, 9]
    (code,) = read_code(WRITTEN, "gfx1151")
    assert len(code.steps) == 18


INLINE = """
k:
\ts_mov_b32 s4, 3
\t;;#ASMSTART
\t  1:
    s_sub_i32 s4, s4, 1
\ts_cmp_eq_i32 s4, 1
\ts_cbranch_scc0 1b
    .Lwait_7:
\ts_cmp_eq_i32 s4, 0
   s_cbranch_scc1 2f
\t  done:
\ts_cbranch_scc1 done
    2:
\t;;#ASMEND
\ts_endpgm
\t.amdhsa_kernel k
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
    .name: k
...
\t.end_amdgpu_metadata
"""


def test_labels_of_inline_assembly_are_indented():
    listing = parse(INLINE)
    code = listing.instructions
    targets = [(ins.name, listing.labels[str(ins.operands[0].value)]) for ins in code if "branch" in ins.name]
    assert targets == [("s_cbranch_scc0", 1), ("s_cbranch_scc1", 7), ("s_cbranch_scc1", 6)]
    assert listing.labels[".Lwait_7"] == 4
    assert as_printed(INLINE).split("\n")[-8:] == INLINE.split("\n")[-8:]


DISASSEMBLY = """
k:
\ts_mov_b32 s4, 3                                            // 000000001900: BE840083
\ts_endpgm                                                   // 000000001904: BFB00000
\t.amdhsa_kernel k
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
custom.config:
  InternalSupportParams:
    KernArgsVersion: 2
amdhsa.kernels:
  - .args:
    .name: k
...
\t.end_amdgpu_metadata
"""


def test_a_key_of_the_metadata_is_no_label():
    """hipBLASLt's files have one alone on its line; the addresses have to stay, since jumps are computed of them."""
    assert as_printed(DISASSEMBLY) == DISASSEMBLY
    assert [ins.address for ins in parse(DISASSEMBLY).instructions] == [0x1900, 0x1904]


AT_THE_START_OF_LINES = """
.text
k:
\ts_mov_b32 s4, 3
\ts_endpgm
.amdhsa_kernel k
    .amdhsa_kernarg_size 24
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version:
  - 1
  - 2
amdhsa.kernels:   # one
  - .name: k
    .max_flat_workgroup_size: 512
    .reqd_workgroup_size: [64, 2, 1]
    .args:
      - {.address_space: global, .offset: 0, .size: 8, .value_kind: global_buffer}
      - {.offset: 8, .size: 4, .value_kind: by_value, '.dims': [1, {x: 2, y: [3, 4]}]} # the last
...
.end_amdgpu_metadata
"""


def test_directives_at_the_start_of_lines_and_metadata_in_braces():
    assert [ins.name for ins in parse(AT_THE_START_OF_LINES).instructions] == ["s_mov_b32", "s_endpgm"]
    (kernel,) = parse_metadata(AT_THE_START_OF_LINES)
    assert (kernel.max_workgroup_size, kernel.workgroup_size) == (512, (64, 2, 1))
    assert [(a.offset, a.size, a.kind) for a in kernel.arguments] == [(0, 8, "global_buffer"), (8, 4, "by_value")]


@pytest.mark.parametrize("directive", ['.include "x.s"', ".altmacro"])
def test_what_must_be_expanded_is_refused(directive):
    with pytest.raises(EmulationError, match=f"line 4 uses {directive.split()[0]}, which an assembler expands"):
        parse(WRITTEN.replace(".set BASE, 8", directive))


ALONE = [
    ("s_mov_b32 s4, 1 << 16", "s_mov_b32 s4, 65536"),
    ("s_bfe_u32 s4, s5, 8 | 16 << 16", "s_bfe_u32 s4, s5, 1048584"),
    ("s_mov_b32 s4, 3 | 4", "s_mov_b32 s4, 7"),
    ("s_movk_i32 s4, -7 % 4", "s_movk_i32 s4, -3"),
    ("v_mov_b32 v1, 3 - -4", "v_mov_b32 v1, 7"),
    ("v_mov_b32 v1, 2 * ~1", "v_mov_b32 v1, -4"),
    ("v_mov_b32 v1, ~ 5", "v_mov_b32 v1, -6"),
    ("v_mov_b32 v1, - (3)", "v_mov_b32 v1, -3"),
    ("v_mov_b32 v1, ( 3 + 4 ) * 2", "v_mov_b32 v1, 14"),
    ("v_mov_b32 v1, 'A' + 1", "v_mov_b32 v1, 66"),
    ("v_mov_b32 v1, 5 == 5", "v_mov_b32 v1, -1"),
    ("v_mov_b32 v1, 0 || 5", "v_mov_b32 v1, 1"),
    ("ds_load_b32 v1, v2 offset: 8", "ds_load_b32 v1, v2 offset:8"),
    ("ds_load_b32 v1, v2 offset : 8", "ds_load_b32 v1, v2 offset:8"),
    ("global_load_b32 v1, v2, s[4:5] offset:-4+8", "global_load_b32 v1, v2, s[4:5] offset:4"),
    ("ds_load_2addr_b32 v[2:3], v1 offset0:3-2 offset1:-1 + 3", "ds_load_2addr_b32 v[2:3], v1 offset0:1 offset1:2"),
    ("ds_swizzle_b32 v1, v2 offset:swizzle( SWAP , 16 )", "ds_swizzle_b32 v1, v2 offset:swizzle(SWAP,16)"),
    ("ds_swizzle_b32 v1, v2 offset:swizzle(QUAD_PERM, 1, 0, 3, 1+1)",
     "ds_swizzle_b32 v1, v2 offset:swizzle(QUAD_PERM,1,0,3,2)"),
    ("s_getreg_b32 s4, hwreg(1, 4 - 4, 1 << 2)", "s_getreg_b32 s4, hwreg(1,0,4)"),
    ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0x4, 0x4), 0", "s_setreg_imm32_b32 hwreg(HW_REG_MODE,4,4), 0"),
    ("s_getreg_b32 s4, {id: 1, offset: 4, size: 2}", "s_getreg_b32 s4, hwreg(1,4,2)"),
    ("s_setreg_b32 {size: 1 << 2, id: 1}, s4", "s_setreg_b32 hwreg(1,0,4), s4"),
    ("V_ADD_F32_E32 v1, v2, v3", "v_add_f32_e32 v1, v2, v3"),
    ("S_WAITCNT vmcnt(0)", "s_waitcnt vmcnt(0)"),
    ("v_add_f32_e64 v1, 3 + 4, v2 clamp", "v_add_f32_e64 v1, 7, v2 clamp"),
    ("v_add_f32_e64 v1, - v2, v3", "v_add_f32_e64 v1, -v2, v3"),
    ("v_add_f32_e64 v1, -  | v2 |, v3", "v_add_f32_e64 v1, -|v2|, v3"),
    ("v_add_f32_e64 v1, -abs( v2 ), neg( v3)", "v_add_f32_e64 v1, -abs(v2), neg(v3)"),
    ("v_add_f64 v[2:3], -v[4 : 5], v [6:7]", "v_add_f64 v[2:3], -v[4:5], v[6:7]"),
    ("v_dual_mov_b32 v1, 3 + 4 :: v_dual_mov_b32 v2, 5", "v_dual_mov_b32 v1, 7 :: v_dual_mov_b32 v2, 5"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "printed"), ALONE)
def test_a_line_that_is_odd_in_one_way_alone(written, printed):
    """Nothing else in the text says that a person wrote it."""
    text = f"\nk:\n\t{written}\n\ts_endpgm\n\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n"
    lines = [line.rstrip() for line in as_printed(text).split("\n")]
    assert lines == text.replace(written, printed).split("\n")
    assert assembled(f"\t{written}\n") == assembled(f"\t{printed}\n")


@pytest.mark.parametrize(
    "line",
    [
        "v_add_f32_e64 v1, -|v2|, |v3| clamp", "v_fma_f32 v1, -|1.0|, v2, |v3| mul:2", "v_mov_b32_e32 v1, -0.5",
        "s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(SALU_CYCLE_1)", "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "v_pk_add_f16 v1, v2, v3 op_sel:[1,0] op_sel_hi:[0,1]", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3",
        "ds_swizzle_b32 v1, v2 offset:swizzle(QUAD_PERM,1,0,3,2)", "global_load_b32 v1, v[2:3], off offset:-16",
    ],
)  # fmt: skip
def test_what_compilers_print_stays(line):
    text = f"\nk:\n\t{line}  // 000000001900: BE840083\n\ts_endpgm\n\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n"
    assert as_printed(text) == text


def test_an_operation_on_what_is_no_number_is_one_operand():
    text = WRITTEN.replace("STRIDE<<1", "3 + elsewhere")
    (moved,) = (ins for ins in parse(text).instructions if ins.name == "v_mov_b32")
    assert (moved.operands[1].kind, moved.operands[1].value, moved.modifiers) == ("symbol", "3 + elsewhere", {})

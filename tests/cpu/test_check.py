"""`laneloom isa --check`: a planted finding and a clean twin for each rule, in any kind of AMDGCN text."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.isa.check import check
from laneloom.isa.finding import RULES

WMMA = "v_wmma_f32_16x16x16_f16 v[32:39], v[{}:{}], v[{}:{}], v[32:39]"


def rules(*lines: str, gpu: str = "gfx1100") -> list[str]:
    """The rules that speak, in the code's order."""
    (report,) = check("\n".join(f"\t{line}" if not line.endswith(":") else line for line in lines), gpu)
    return [f.rule for f in report.findings]


def what(*lines: str, gpu: str = "gfx1100") -> str:
    (report,) = check("\n".join(f"\t{line}" if not line.endswith(":") else line for line in lines), gpu)
    (finding,) = report.findings
    return finding.what


LEGAL = "v_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v5"


@pytest.mark.parametrize(
    ("pair", "gpu", "rule", "words"),
    [
        (LEGAL, "gfx1100", None, ""),
        ("v_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v5, v4", "gfx1100", "pair-bank-conflict", "SRC0 from"),
        ("v_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v6", "gfx1100", "pair-bank-conflict", "SRC1 from"),
        # One register through the same port of both halves: gfx12 alone takes it.
        ("v_dual_mul_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v1, v5", "gfx1100", "pair-bank-conflict", "v1 and v1"),
        ("v_dual_mul_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v1, v5", "gfx1201", None, ""),
        ("v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v3, v5", "gfx1100", "pair-bank-conflict", "SRC0"),
        ("v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v3, v5", "gfx1201", None, ""),
        ("v_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v4, v2, v5", "gfx1100", "illegal-pair", "both even"),
        ("v_dual_fma_f32 v0, v1, v2, v3 :: v_dual_mul_f32 v5, v2, v7", "gfx1100", "illegal-pair", "first half"),
        ("v_dual_and_b32 v0, v1, v2 :: v_dual_mul_f32 v5, v2, v7", "gfx1100", "illegal-pair", "can be the second"),
        ("v_dual_max_f32 v0, v1, v2 :: v_dual_mul_f32 v5, v2, v7", "gfx1201", "illegal-pair", "on gfx12"),
        ("v_dual_max_f32 v0, v1, v2 :: v_dual_mul_f32 v5, v2, v7", "gfx1100", None, ""),
        ("v_dual_mul_f32 v0, v1, s2 :: v_dual_mul_f32 v5, v2, v7", "gfx1100", "illegal-pair", "second source"),
        ("v_dual_mul_f32 v0, -v1, v2 :: v_dual_mul_f32 v5, v2, v7", "gfx1100", "illegal-pair", "modifier"),
        ("v_dual_mul_f32 v0, s1, v2 :: v_dual_mul_f32 v5, s2, v7", "gfx1100", None, ""),
        ("v_dual_cndmask_b32 v0, s1, v2 :: v_dual_mul_f32 v5, s2, v7", "gfx1100", "illegal-pair", "3 scalar"),
        ("v_dual_mul_f32 v0, 0x41234567, v2 :: v_dual_mul_f32 v5, 0x41234, v7", "gfx1100", "illegal-pair", "literal"),
        ("v_dual_mul_f32 v0, 0x41234567, v2 :: v_dual_mul_f32 v5, 0x41234567, v7", "gfx1100", None, ""),
        # The last operand of v_fmamk goes through SRC2, where even and odd count.
        ("v_dual_fmamk_f32 v0, v1, 0x41234567, v2 :: v_dual_fmac_f32 v3, v2, v6", "gfx1100", None, ""),
        ("v_dual_fmamk_f32 v0, v1, 0x41234, v5 :: v_dual_fmac_f32 v3, v2, v6", "gfx1100", "pair-bank-conflict", "C2"),
        ("v_dual_mul_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v0, v5", "gfx1100", "pair-reads-old-value", "v0"),
    ],
)  # fmt: skip
def test_pairs(pair: str, gpu: str, rule: str | None, words: str):
    assert rules(pair, gpu=gpu) == ([rule] if rule else [])
    if rule:
        assert words in what(pair, gpu=gpu)


def test_pairs_need_waves_of_32():
    text = f".amdhsa_wavefront_size32 0\n\t{LEGAL}\n"
    (report,) = check("\t" + text, "gfx1100")
    assert [f.rule for f in report.findings] == ["illegal-pair"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("v_fmac_f32_e32 v0, v1, v2", "v_fmac_f32_e32 v3, v4, v5"), "can be its second half"),
        (("v_fmac_f32_e32 v0, v1, v2", "s_delay_alu instid0(VALU_DEP_1)", "v_fmac_f32_e32 v3, v4, v5"), "can be"),
        (("v_fma_f32 v0, v1, v2, v0", "v_mul_f32_e32 v3, v4, v5"), "can be its second half"),
        # Exchanging the sources of one makes it legal.
        (("v_mul_f32_e32 v0, v1, v2", "v_mul_f32_e32 v3, v5, v4"), "can be its second half"),
        (("v_fmac_f32_e32 v0, v1, v2", "v_fmac_f32_e32 v4, v2, v5"), "in other registers"),
        # Not when the second needs the first's result, has a modifier, or stands behind a branch.
        (("v_fmac_f32_e32 v0, v1, v2", "v_fmac_f32_e32 v3, v0, v5"), None),
        (("v_fma_f32 v0, -v1, v2, v0", "v_fma_f32 v3, v4, v5, v3"), None),
        (("v_fma_f32 v0, v1, v2, v6", "v_fma_f32 v3, v4, v5, v7"), None),
        (("v_fmac_f32_e32 v0, v1, v2", ".L1:", "v_fmac_f32_e32 v3, v4, v5"), None),
        (("v_fmac_f32_e32 v0, v1, v2", "ds_store_b32 v9, v8", "v_fmac_f32_e32 v3, v4, v5"), None),
        (("v_exp_f32_e32 v0, v1", "v_fmac_f32_e32 v3, v4, v5"), None),
    ],
)
def test_missed_pairs(lines: tuple[str, ...], expected: str | None):
    assert rules(*lines) == (["missed-pair"] if expected else [])
    if expected:
        assert expected in what(*lines)


def test_matrix_operands_in_one_bank():
    assert rules(WMMA.format(0, 7, 8, 15)) == ["wmma-banks"]
    assert rules(WMMA.format(0, 7, 10, 17)) == []
    assert RULES["wmma-banks"].basis.startswith("assumption")


LOAD, LDS = "global_load_b32 v0, v[2:3], off", "ds_load_b32 v1, v4"


@pytest.mark.parametrize(
    ("gpu", "lines", "needless"),
    [
        ("gfx1100", (LOAD, "s_waitcnt vmcnt(0)"), 0),
        ("gfx1100", (LOAD, "s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(0)"), 1),
        ("gfx1100", (LOAD, "s_waitcnt vmcnt(1)"), 1),
        ("gfx1100", (LDS, "s_waitcnt vmcnt(0)"), 1),
        ("gfx1100", (LDS, "s_waitcnt vmcnt(0) lgkmcnt(0)"), 0),
        ("gfx1100", ("s_load_b32 s4, s[0:1], 0x0", "s_waitcnt lgkmcnt(0)"), 0),
        ("gfx1100", ("s_waitcnt_vscnt null, 0x0",), 1),
        ("gfx1100", ("global_store_b32 v[2:3], v0, off", "s_waitcnt_vscnt null, 0x0"), 0),
        # The loop comes back with a load under way; without it, only the first round would wait for nothing.
        ("gfx1100", (".L1:", "s_waitcnt vmcnt(0)", LOAD, "s_cbranch_scc1 .L1"), 0),
        ("gfx1100", (".L1:", "s_waitcnt vmcnt(0)", LDS, "s_cbranch_scc1 .L1"), 1),
        # One of two paths has a load under way.
        ("gfx1100", ("s_cbranch_scc1 .L1", LOAD, ".L1:", "s_waitcnt vmcnt(0)"), 0),
        ("gfx1100", ("s_cbranch_scc1 .L1", LOAD, "s_waitcnt vmcnt(0)", ".L1:", "s_waitcnt vmcnt(0)"), 1),
        # What a call leaves under way, nobody knows; nor what an image instruction counts.
        ("gfx1100", ("s_swappc_b64 s[30:31], s[4:5]", "s_waitcnt vmcnt(0)"), 0),
        ("gfx1100", ("image_load v0, v[2:3], s[0:7] dmask:0x1", "s_waitcnt vmcnt(0)"), 0),
        ("gfx1201", (LOAD, "s_wait_loadcnt 0x0"), 0),
        ("gfx1201", (LDS, "s_wait_loadcnt 0x0"), 1),
        ("gfx1201", (LOAD, LDS, "s_wait_loadcnt_dscnt 0x0", "s_wait_dscnt 0x0"), 1),
        ("gfx1201", (LDS, "s_wait_loadcnt_dscnt 0x0"), 0),
        ("gfx1201", ("global_inv scope:SCOPE_SE", "s_wait_loadcnt 0x0"), 0),
        ("gfx1201", ("s_load_b32 s4, s[0:1], 0x0", "s_wait_kmcnt 0x0", "s_wait_kmcnt 0x0"), 1),
    ],
)
def test_waits(gpu: str, lines: tuple[str, ...], needless: int):
    assert rules(*lines, gpu=gpu).count("needless-wait") == needless


@pytest.mark.parametrize(
    ("lines", "extra"),
    [
        (("v_lshlrev_b32_e32 v1, 2, v0", "ds_load_b32 v2, v1"), None),
        (("v_lshlrev_b32_e32 v1, 7, v0", "ds_load_b32 v2, v1"), 31),  # 128 bytes apart: one bank for all
        (("v_mul_u32_u24_e32 v1, 0x84, v0", "ds_load_b32 v2, v1"), None),  # padded by a word: no two in a bank
        (("v_lshlrev_b32_e32 v1, 5, v0", "ds_store_b32 v1, v2"), 7),
        (("v_and_b32_e32 v1, 7, v0", "v_lshlrev_b32_e32 v1, 2, v1", "ds_load_b32 v2, v1"), None),  # lanes share words
        # A kernel argument shifts all lanes alike; a row number times an unknown pitch says nothing.
        (("v_lshl_add_u32 v1, v0, 7, s4", "ds_load_b32 v2, v1"), None),
        (("v_lshlrev_b32_e32 v1, 7, v0", "v_mul_lo_u32 v1, v1, s4", "ds_load_b32 v2, v1"), None),
        # Swizzled: the word is exchanged by bits of the row, so rows fall into different banks.
        (("v_lshrrev_b32_e32 v1, 3, v0", "v_lshlrev_b32_e32 v2, 7, v1", "v_and_b32_e32 v3, 7, v0",
          "v_lshl_or_b32 v2, v3, 2, v2", "ds_load_b32 v4, v2"), 3),
        (("v_lshrrev_b32_e32 v1, 3, v0", "v_lshlrev_b32_e32 v2, 7, v1", "v_and_b32_e32 v3, 7, v0",
          "v_lshlrev_b32_e32 v5, 3, v1", "v_xor_b32_e32 v3, v3, v5", "v_lshl_or_b32 v2, v3, 2, v2",
          "ds_load_b32 v4, v2"), None),
        (("v_lshlrev_b32_e32 v1, 4, v0", "ds_load_b128 v[4:7], v1"), None),
        (("v_lshlrev_b32_e32 v1, 7, v0", "ds_load_2addr_b32 v[4:5], v1 offset1:1"), 62),
        # The address moves on by as much in every lane: the loop's pattern stays known.
        (("v_lshlrev_b32_e32 v1, 7, v0", ".L1:", "ds_load_b32 v2, v1", "v_add_nc_u32_e32 v1, 64, v1",
          "s_cbranch_scc1 .L1"), 31),
        # Two paths with different patterns: nothing can be said.
        (("v_lshlrev_b32_e32 v1, 7, v0", "s_cbranch_scc1 .L1", "v_lshlrev_b32_e32 v1, 2, v0", ".L1:",
          "ds_load_b32 v2, v1"), None),
        # Nor where lanes may be off.
        (("v_lshlrev_b32_e32 v1, 7, v0", "v_cmp_gt_u32_e32 vcc_lo, 1, v0", "s_and_saveexec_b32 s4, vcc_lo",
          "ds_load_b32 v2, v1"), None),
        (("v_lshlrev_b32_e32 v1, 7, v0", "v_cmp_gt_u32_e32 vcc_lo, 1, v0", "s_and_saveexec_b32 s4, vcc_lo",
          "s_or_b32 exec_lo, exec_lo, s4", "ds_load_b32 v2, v1"), 31),
        # What is written there is written for some lanes alone, and the first of them need not be lane 0.
        (("v_cmp_gt_u32_e32 vcc_lo, 1, v0", "s_and_saveexec_b32 s4, vcc_lo", "v_lshlrev_b32_e32 v1, 7, v0",
          "s_or_b32 exec_lo, exec_lo, s4", "ds_load_b32 v2, v1"), None),
        (("v_cmp_lt_u32_e32 vcc_lo, 1, v0", "s_and_saveexec_b32 s4, vcc_lo", "v_readfirstlane_b32 s5, v0",
          "s_or_b32 exec_lo, exec_lo, s4", "v_lshl_add_u32 v1, v0, 7, s5", "ds_load_b32 v2, v1"), None),
    ],
)  # fmt: skip
def test_lds_conflicts_by_the_code_alone(lines: tuple[str, ...], extra: int | None):
    (report,) = check("\n".join(f"\t{line}" if not line.endswith(":") else line for line in lines), "gfx1100")
    found = [f.what for f in report.findings if f.rule == "lds-conflict"]
    assert len(found) == (extra is not None)
    if extra is not None:
        assert f"add {extra} clocks" in found[0]
        assert "from the code" in found[0]


def test_the_emulators_counts_are_believed():
    text = "\tv_lshlrev_b32_e32 v1, 7, v0\n\tds_load_b32 v2, v1\n\tds_load_b32 v3, v9\n"
    (report,) = check(text, "gfx1100", counted={2: (10, 0), 3: (10, 5)})
    (finding,) = report.findings
    assert (finding.line, finding.rule) == (3, "lds-conflict")
    assert "add 5 clocks to 10" in finding.what
    assert "emulator" in finding.what


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (("s_load_b32 s4, s[0:1], 0x8", "s_load_b32 s5, s[0:1], 0xc"), 1),
        (("s_load_b32 s4, s[0:1], 0xc", "s_load_b32 s7, s[0:1], 0x8"), 1),
        (("s_load_b64 s[4:5], s[0:1], 0x0", "s_load_b64 s[6:7], s[0:1], 0x8"), 1),
        (("s_load_b32 s4, s[0:1], 0x8", "s_load_b32 s5, s[0:1], 0x10"), 0),  # not neighbours
        (("s_load_b32 s4, s[0:1], 0x8", "s_load_b32 s5, s[2:3], 0xc"), 0),  # other bases
        (("s_load_b64 s[4:5], s[0:1], 0x0", "s_load_b32 s6, s[0:1], 0x8"), 0),  # gfx11 has no load of 12 bytes
        (("s_load_b32 s4, s[0:1], 0x8", "s_add_u32 s0, s0, 16", "s_load_b32 s5, s[0:1], 0xc"), 0),
        (("s_load_b32 s4, s[0:1], 0x8", ".L1:", "s_load_b32 s5, s[0:1], 0xc"), 0),
    ],
)
def test_scalar_loads(lines: tuple[str, ...], found: int):
    assert rules(*lines).count("narrow-scalar-loads") == found


def test_scalar_loads_of_12_bytes_on_gfx12():
    lines = ("s_load_b64 s[4:5], s[0:1], 0x0", "s_load_b32 s6, s[0:1], 0x8")
    assert rules(*lines, gpu="gfx1201") == ["narrow-scalar-loads"]


METADATA = """
	.amdgpu_metadata
---
amdhsa.kernels:
  - .name: k
    .group_segment_fixed_size: {lds}
    .max_flat_workgroup_size: 128
    .private_segment_fixed_size: {scratch}
    .sgpr_count: 20
    .sgpr_spill_count: 0
    .vgpr_count: {vgprs}
    .vgpr_spill_count: {spills}
    .wavefront_size: {wave}
...
	.end_amdgpu_metadata
"""


def described(vgprs=32, lds=0, scratch=0, spills=0, body="s_nop 0", wave=32) -> list[tuple[str, str]]:
    text = f"k:\n\t{body}\n\ts_endpgm\n.Lfunc_end0:\n" + METADATA.format(
        vgprs=vgprs, lds=lds, scratch=scratch, spills=spills, wave=wave
    )
    (report,) = check(text, "gfx1100")
    return [(f.rule, f.what) for f in report.findings]


def test_spills():
    assert described() == []
    ((rule, text),) = described(scratch=16, spills=4)
    assert rule == "spill"
    assert "4 spilled VGPRs" in text
    assert "16 bytes" in text
    assert rules("scratch_store_b128 off, v[0:3], s32") == ["spill"]
    ((_, text),) = described(scratch=256, body="scratch_load_b32 v1, v0, off")
    assert text == "loads 4 bytes per lane, of a private array or a call: nothing is spilled"


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        ("s_nop 0", False), ("s_cbranch_scc0 .L1\n\ts_endpgm\n.L1:\n\ts_nop 0", False),
        ("s_endpgm\n.L1:\n\ts_nop 0", True), ("s_endpgm\n.L1:\n\ts_cbranch_scc0 .L1", True),
        ("s_cbranch_scc0 k", False), ("s_branch k", True), ("s_setpc_b64 s[0:1]", True),
    ],
)  # fmt: skip
def test_a_kernel_ends(body, ends):
    text = f"k:\n\t{body}\n.Lfunc_end0:\n" + METADATA.format(vgprs=32, lds=0, scratch=0, spills=0, wave=32)
    (report,) = check(text, "gfx1100")
    assert [f.rule for f in report.findings] == ([] if ends else ["runs-past-end"])
    assert report.clean == ends


def test_occupancy():
    ((rule, text),) = described(vgprs=200)
    assert rule == "occupancy"
    # 1536 registers in steps of 24: 200 take 216, of which 7 fit: 3 workgroups of 4 waves on 2 SIMDs. At 192 4 fit.
    assert text == "6 of 16 waves per SIMD: limited by 200 VGPRs (SGPRs never limit); 192 would let 8 waves in"
    ((_, text),) = described(vgprs=100, wave=64)  # as many as 200 in waves of 32, in steps of 12
    assert text == "7 of 16 waves per SIMD: limited by 100 VGPRs (SGPRs never limit); 96 would let 8 waves in"
    ((rule, text),) = described(lds=32768)
    assert rule == "occupancy"
    assert "4 of 16 waves per SIMD: limited by 32768 bytes of LDS" in text


def test_disassembly_is_understood():
    """What llvm-objdump -d prints: symbols, addresses and encodings behind //, branches as word offsets."""
    text = """
k.o:	file format elf64-amdgpu

Disassembly of section .text:

0000000000001900 <first>:
	v_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v4, v2, v5 // 000000001900: C8000501 00040B02
	s_endpgm                                                   // 000000001908: BFB00000

0000000000001a00 <second>:
	s_waitcnt vmcnt(0)                                         // 000000001A00: BF8903F7
	global_load_b32 v0, v[2:3], off                            // 000000001A04: DC520000 007C0002
	s_cbranch_scc1 65532                                       // 000000001A0C: BFA2FFFC <second>
	s_endpgm                                                   // 000000001A10: BFB00000
"""
    first, second = check(text, "gfx1100")
    assert (first.kernel, [f.rule for f in first.findings], first.findings[0].line) == ("first", ["illegal-pair"], 7)
    assert (second.kernel, second.instructions, second.findings) == ("second", 4, ())
    straight = text.replace("65532 ", "0     ")
    assert [f.rule for f in check(straight, "gfx1100", "second")[0].findings] == ["needless-wait"]


def test_source_lines_come_from_loc():
    wait = "\ts_waitcnt vmcnt(0)\n"
    text = f'\t.file\t1 "/src" "kernel.py"\nk:\n\t.loc\t1 12 3\n{wait}\t.loc\t1 0 0\n{wait}'
    (report,) = check(text, "gfx1100")
    assert [(f.line, f.source) for f in report.findings] == [(4, "/src/kernel.py:12"), (6, "/src/kernel.py:12")]


def test_refusals():
    with pytest.raises(ArgumentError, match="which GPU"):
        check("\ts_nop 0\n")
    with pytest.raises(UnsupportedError, match="gfx942, gfx950, gfx1250, gfx1251, not of sm_90a"):
        check("\ts_nop 0\n", "sm_90a")
    with pytest.raises(ArgumentError, match="no AMDGCN instructions"):
        check("", "gfx1100")
    with pytest.raises(ArgumentError, match="no kernel 'x'"):
        check("\ts_nop 0\n", "gfx1100", "x")
    with pytest.raises(ArgumentError, match="line 2 is no AMDGCN instruction: 'hello world'"):
        check("\ts_nop 0\n\thello world\n", "gfx1100")


def test_command(tmp_path):
    file = tmp_path / "k.s"
    file.write_text("\ts_waitcnt vmcnt(0)\n")
    run = CliRunner().invoke
    result = run(app, ["isa", str(file), "--check", "--gpu", "gfx1100", "--json"])
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert not shown["clean"]
    (finding,) = shown["kernels"][0]["findings"]
    assert {k: finding[k] for k in ("rule", "line", "severity")} == {
        "rule": "needless-wait", "line": 1, "severity": "warning"
    }  # fmt: skip
    assert finding["why"] == RULES["needless-wait"].why
    text = run(app, ["isa", "-", "--check", "--gpu", "gfx1100"], input="\ts_waitcnt vmcnt(0)\n")
    assert text.exit_code == 1
    assert "needless-wait (1)" in text.stdout
    # Hints alone are no failure.
    two = "\tv_mul_f32 v0, v1, v2\n\tv_mul_f32 v3, v4, v5\n"
    hint = run(app, ["isa", "-", "--check", "--gpu", "gfx1100"], input=two)
    assert (hint.exit_code, "missed-pair" in hint.stdout) == (0, True)
    assert run(app, ["isa", str(tmp_path / "none.s"), "--check"]).exit_code == 2
    file.write_bytes(b"\x7fELF\xff\xfe")
    assert run(app, ["isa", str(file), "--check", "--gpu", "gfx1100"]).exit_code == 2

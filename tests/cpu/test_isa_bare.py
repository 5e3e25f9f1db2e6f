"""`laneloom isa` of assembly without metadata: what is told of it, what is said to be unknown."""

import json

import pytest
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.errors import ArgumentError
from laneloom.isa.metadata import parse_metadata

TWO = """\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
first:
\tv_mov_b32 v1, 1
.L1:
\ts_add_u32 s3, s4, 1
\tv_accvgpr_write_b32 a5, v1
\ts_cbranch_scc1 .L1
\ts_endpgm
\t.amdhsa_kernel first
\t\t.amdhsa_next_free_vgpr 8+6
\t\t.amdhsa_next_free_sgpr 8
\t\t.amdhsa_accum_offset 8
\t\t.amdhsa_group_segment_fixed_size 1024
\t.end_amdhsa_kernel
second:
\tv_mov_b32 v1, 1
\t.amdhsa_kernel second
\t\t.amdhsa_next_free_vgpr 8
\t\t.amdhsa_next_free_sgpr 8
\t\t.amdhsa_accum_offset 8
\t.end_amdhsa_kernel
"""


@pytest.fixture
def isa(tmp_path):
    path = tmp_path / "kernel.s"

    def shown(text, *options):
        path.write_text(text)
        done = CliRunner().invoke(app, ["isa", str(path), *options])
        if done.exit_code == 0 and "--json" in options:
            return json.loads(done.stdout)
        return done.exit_code, " ".join((done.stdout + done.stderr).split())

    return shown


def test_what_the_descriptor_tells(isa):
    shown = isa(TWO, "--kernel", "first", "--json")
    assert (shown["kernel"], shown["gpu"], shown["wave"]) == ("first", "gfx942", 64)
    assert shown["registers"] == {"vgprs": 14, "sgprs": 8, "vgpr_spills": None, "sgpr_spills": None}
    assert (shown["lds_bytes"], shown["scratch_bytes"], shown["num_warps"]) == (1024, 0, None)
    assert [line["line"] for line in shown["listing"]] == [3, 5, 6, 7, 8]
    assert shown["hot_loop"]["label"] == ".L1"
    _, page = isa(TWO, "--kernel", "first")
    assert "no .amdgpu_metadata: arguments, waves of a workgroup and spilled registers are not known." in page
    assert "14 of 512" in page
    assert "1,024 of 65,536 B" in page
    assert isa(TWO)[1].endswith("holds 2 kernels (first, second): name one with kernel (--kernel)")
    assert "no kernel 'third'" in isa(TWO, "--kernel", "third")[1]
    symbols = TWO.replace("_vgpr 8+6", "_vgpr count.of.them")
    symbols = symbols.replace("first:", "\t.set count.of.them, 14\nfirst:")
    assert "Vector registers not known" in isa(symbols, "--kernel", "first")[1]


def test_registers_of_waves_of_64_lanes(isa):
    text = "\t.amdgcn_target \"amdgcn-amd-amdhsa--gfx1100\"\nk:\n\ts_endpgm\n\t.amdhsa_kernel k\n"
    asked = "\t\t.amdhsa_next_free_vgpr 128\n\t\t.amdhsa_next_free_sgpr 8\n\t\t.amdhsa_wavefront_size32 {}\n"
    for wave32, waves in ((1, 10), (0, 5)):
        assert f"permit {waves} waves per SIMD" in isa(text + asked.format(wave32) + "\t.end_amdhsa_kernel\n")[1]


def test_code_alone(isa):
    """Registers are those that it names: of CDNA's two kinds the sum."""
    code = "\n".join(line for line in TWO.splitlines() if "amdhsa_" not in line)
    shown = isa(code, "--gpu", "gfx942", "--json")
    assert (shown["kernel"], shown["lds_bytes"], shown["scratch_bytes"]) == (None, None, None)
    assert (shown["registers"]["vgprs"], shown["registers"]["sgprs"]) == (2 + 6, 5)
    page = isa("s_mov_b32 s7, vcc_lo\nv_add_f32 v[3], v9, v8\n", "--gpu", "gfx1100")[1]
    assert "neither .amdhsa_kernel nor .amdgpu_metadata" in page
    assert "10 of 256" in page
    assert "8 of 106" in page
    assert "LDS not known" in page


def test_what_cannot_be_assembled_is_said(isa):
    assert isa(TWO.replace("v_mov", "v_moov"), "--kernel", "first")[0] == 1
    assert "line 3: `v_moov_b32 v1, 1`: invalid" in isa(TWO.replace("v_mov", "v_moov"), "--kernel", "first")[1]
    assert "no AMDGCN instruction" in isa("no code\n", "--gpu", "gfx1100")[1]
    assert "--gpu" in isa("s_endpgm\n")[1]


@pytest.mark.parametrize("line", ["s_nop FOO", "v_lshl_add_u32 v2, v0, v0", "ds_read_b32 v1", "v_mov_b32 v[5:3], 0"])
def test_lines_that_llvm_refuses_are_named(isa, line):
    code, said = isa(f"s_nop 0\n{line}\nv_readlane_b32 s0, v2, 0\nds_read_b32 v3, v2\n", "--gpu", "gfx942", "--check")
    assert (code, f"line 2: `{line}`: " in said) == (1, True)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (".args:\n      - .offset: 0", ": an entry has no '.size'$"),
        (".wavefront_size: 0", "broken$"),
        (".args: x", "broken$"),
    ],
)
def test_metadata_that_is_broken(entry, why):
    """As that of a binary is that was cut off; of a text LLVM says what is wrong."""
    with pytest.raises(ArgumentError, match=why):
        parse_metadata(f".amdgpu_metadata\namdhsa.kernels:\n  - .name: k\n    {entry}\n.end_amdgpu_metadata\n")


@pytest.mark.parametrize("name", ["inf", "NaN", "'true'", "0x1"])
def test_names_that_llvm_tags(name):
    """LLVM's own reader would take them for numbers."""
    text = f".amdgpu_metadata\namdhsa.kernels:\n  - .name: !str {name}\n.end_amdgpu_metadata\n"
    assert [kernel.name for kernel in parse_metadata(text)] == [name.strip("'")]


def test_every_described_kernel_is_checked_by_itself(isa):
    """The second goes on behind its last instruction, which lies behind the first's end."""
    code, report = isa(TWO, "--check")
    assert code == 1
    assert report.count("runs-past-end") == 1
    assert "second for gfx942: 1 instruction " in report
    _, report = isa(TWO, "--check", "--kernel", "first")
    assert "first for gfx942: 5 instructions warning accumulator-moves" in report

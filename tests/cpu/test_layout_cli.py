"""`laneloom layout` and `laneloom instructions`: what they print, in every format, how they refuse, how they start."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.isa import get_layout, instructions, layout_csv
from laneloom.isa.layout_text import formulas


def run(*words, code=0):
    done = CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done


def layout(*words):
    return run("layout", *words).stdout


ROOT = Path(__file__).parents[2]
WMMA = ("v_wmma_f32_16x16x16_f16", "--gpu", "gfx1151")
SPARSE = ("v_swmmac_f32_16x16x32_f16", "--gpu", "gfx1201")


def test_csv_is_layout_csv():
    got = layout(*WMMA, "--matrix", "A", "--wave", "64", "--format", "csv")
    assert got == layout_csv("v_wmma_f32_16x16x16_f16", "gfx1151", 64, "A")
    every = layout(*SPARSE, "--format", "csv", "--opsel", "1")
    rows = list(csv.DictReader(io.StringIO(every)))
    assert {row["matrix"] for row in rows} == {"A", "B", "K", "D"}
    index = "".join(every.splitlines(keepends=True)[:1] + [x for x in every.splitlines(keepends=True) if x[0] == "K"])
    assert index == layout_csv("v_swmmac_f32_16x16x32_f16", "gfx1201", 32, "K", 1)


def test_table_says_what_the_instruction_is_and_where_elements_lie():
    text = layout(*WMMA)
    assert "gfx1151 (RDNA 3.5), 32 lanes, VOP3P opcode 0x40" in text
    assert "8192 FLOPs in 32 cycles, 512 per CU and cycle" in text
    assert "slot = k; register = slot/2, bits from 16 (slot % 2)" in text
    assert "lane = i, the same in 2 groups of 16 lanes" in text
    assert "i = 2 slot + lane/16; j = lane % 16" in text
    (row,) = re.findall(r"^3    .*$", text.partition("A[i][k]")[2].partition("B[k][j]")[0], re.MULTILINE)
    assert row.split() == ["3", *(f"3:{k // 2}{'lh'[k % 2]}" for k in range(16))]


@pytest.mark.parametrize(
    ("words", "cell"),
    [
        ((*WMMA, "--matrix", "A"), "v2{3,19}.[31:16]"),
        ((*SPARSE, "--matrix", "A"), "v1{3}"),
        (("v_mfma_f64_16x16x4_f64", "--gpu", "gfx942", "--matrix", "D"), "v[2:3]{5}"),
        (("v_wmma_i32_16x16x16_iu4", "--gpu", "gfx1201", "--matrix", "B"), "v0{5}.[15:12]"),
    ],
)
def test_markdown_and_asciidoc(words, cell):
    down = layout(*words, "--format", "markdown")
    lines = [line for line in down.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert f"| {cell} |" in down
    doc = layout(*words, "--format", "asciidoc")
    assert doc.count("|===") == 2
    assert f"|{cell} |" in doc


def test_colours_are_ones_that_every_reader_of_svg_knows():
    """hsl() with spaces is CSS: Inkscape's and Cairo's readers draw it black, under text that is black too."""
    drawn = [layout(*WMMA, "--matrix", "D", "--format", "svg")]
    drawn += [(ROOT / "docs" / "images" / f"wmma-{name}.svg").read_text() for name in ("identity", "results")]
    for picture in drawn:
        fills = set(re.findall(r'fill="([^"]*)"', picture))
        assert len(fills) == 33, "32 lanes and the paper"
        assert all(re.fullmatch("#([0-9a-f]{3}){1,2}", fill) for fill in fills)


def test_svg_shows_every_element_in_both_views():
    picture = ElementTree.fromstring(layout(*SPARSE, "--matrix", "A", "--format", "svg"))
    titles = [t.text or "" for t in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "A[3][5]: v1{3}" in titles  # the matrix
    assert "A[3][4] A[3][5] A[3][6] A[3][7]" in titles  # the register file
    assert len(titles) == 16 * 32 + 4 * 32
    unused = layout("v_wmma_i32_16x16x16_iu4", "--gpu", "gfx1201", "--wave", "64", "--matrix", "B", "--format", "svg")
    assert unused.count("not read") == 32 * 8
    assert "block 15" in get_layout("v_mfma_f32_4x4x4_16b_f16", "gfx942", 64, "D")._repr_svg_()


def test_transposed():
    plain = layout(*WMMA, "--matrix", "D", "--format", "markdown").splitlines()
    turned = layout(*WMMA, "--matrix", "D", "--format", "markdown", "--transpose").splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in plain if line.startswith("| ")]
    other = [[c.strip() for c in line.strip("|").split("|")] for line in turned if line.startswith("| ")]
    assert other == [list(column) for column in zip(*cells, strict=True)]


def test_one_element_and_one_register():
    text = layout(*WMMA, "--matrix", "A", "--element", "3,5")
    assert text.split() == "A[3][5] lane register bits 3 2 31:16 19 2 31:16".split()
    text = layout("v_mfma_f32_4x4x4_16b_f16", "--gpu", "gfx942", "--matrix", "D", "--element", "1,2", "--block", "7")
    assert text.split() == "D[1][2] of block 7 lane register bits 30 1 31:0".split()
    text = layout(*SPARSE, "--matrix", "A", "--register", "1,17")
    assert "31:0  A[1][12] A[1][13] A[1][14] A[1][15]" in text
    assert "K says which" in text
    fp6 = ("v_mfma_f32_16x16x128_f8f6f4", "--gpu", "gfx950", "--cbsz", "2", "--matrix", "A")
    assert layout(*fp6, "--register", "1,3").splitlines()[2].split() == ["3:0", "A[3][5]"]
    half = ("v_wmma_i32_16x16x16_iu4", "--gpu", "gfx1201", "--wave", "64", "--matrix", "A")
    unused = layout(*half, "--register", "0,40")
    assert "reads nothing here" in unused
    every = layout("v_mfma_f32_32x32x2_f32", "--gpu", "gfx942", "--element", "20,20", "--format", "csv")
    assert {line[0] for line in every.splitlines()[1:]} == {"C", "D"}  # A and B have no such element


def test_output_lists_what_makes_an_element():
    text = layout("v_mfma_f64_16x16x4_f64", "--gpu", "gfx942", "--blgp", "5", "--output", "3,5")
    assert text.endswith("blgp negates A and C.\n")
    assert "negates" not in layout(*WMMA, "--output", "3,5")
    text = layout(*SPARSE, "--output", "3,5")
    assert re.search(r"D\[3\]\[5\] +v3\{5\}", text)
    assert "K[3][31]" in text
    assert "the two that the index K names" in text
    rows = list(csv.DictReader(io.StringIO(layout(*WMMA, "--output", "3,5", "--format", "csv"))))
    assert [(r["matrix"], r["row"], r["col"], r["lane"]) for r in rows[:2]] == [(m, "3", "5", "21") for m in "DC"]
    assert sum(r["matrix"] == "A" for r in rows) == sum(r["matrix"] == "B" for r in rows) == 32


def test_formulas_give_the_layout():
    """Evaluate them: a number before a name or a bracket multiplies, / rounds down."""

    def evaluate(text, **values):
        return eval(re.sub(r"(\d) (?=[a-z(])", r"\1*", text).replace("/", "//"), {}, values)

    cases = [("gfx1100", 32), ("gfx1151", 64), ("gfx1201", 32), ("gfx1201", 64), ("gfx942", 64), ("gfx950", 64)]
    rows = [(gpu, row, wave) for gpu, wave in cases for row in instructions(gpu)]
    rows += [("sm_90a", row, row.waves[0]) for row in instructions("sm_90a") if row.kind == "mma" or row.n == 24]
    for gpu, row, wave in rows[::2]:
        for matrix in row.matrices:
            one = get_layout(row, gpu, wave, matrix)
            slot_text, lane_text, back = formulas(one)
            slot_text, lane_text = slot_text.partition("; ")[0].partition(" = ")[2], lane_text.partition(" = ")[2]
            for element, places in list(one)[:: max(len(dict(one)) // 13, 1)]:
                axes = {"A": "ik", "B": "kj", "K": "ik"}.get(matrix, "ij")
                at = {axes[0]: element.row, axes[1]: element.col, "b": element.block}
                place = places[0]
                slot = (32 * place.vgpr + place.bit_lo - one.first_bit) // one.pitch
                assert evaluate(slot_text, **at) == slot, (row.name, matrix)
                assert evaluate(lane_text.partition(",")[0], **at) == place.lane, (row.name, matrix)
                for part in back.split("; "):
                    axis, _, text = part.partition(" = ")
                    text, _, run = text.partition(" + 0..")
                    assert 0 <= at[axis] - evaluate(text, slot=slot, lane=place.lane) <= int(run or 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("v_wmma_f32_16x16x16_f61", "--gpu", "gfx1151"), "nearest are v_wmma_f32_16x16x16_f16"),
        (("v_wmma_f32_16x16x16_f16", "--gpu", "gfx1511"), "nearest known are .*gfx1151"),
        ((*WMMA, "--format", "svg", "--element", "3,5"), "--format svg shows whole matrices"),
        ((*WMMA, "--format", "html", "--register", "0,0"), "--format html shows whole matrices"),
        (("v_mfma_f32_4x4x4_16b_f16", "--gpu", "gfx942", "--cbsz", "1", "--format", "html"), "cbsz or blgp that moves"),
        ((*WMMA, "--format", "html", "--matrix", "Q"), "--format html has every matrix"),
        ((*WMMA, "--format", "html", "--wave", "48"), "leave out --matrix, --wave and --opsel"),
        ((*WMMA, "--format", "csv", "--transpose"), "which --format csv has none of"),
        ((*WMMA, "--format", "xml"), "--format: one of table, csv"),
        ((*WMMA, "--element", "3"), "--element: two numbers such as 3,5"),
        ((*WMMA, "--element", "3,5", "--output", "3,5"), "one of --element"),
        ((*WMMA, "--element", "16,0"), r"has no D\[16\]\[0\]"),
        ((*WMMA, "--wave", "16"), "32 or 64 lanes"),
    ],
)
def test_refusals(words, message):
    assert re.search(message, run("layout", *words, code=2).stderr)


def test_a_pipe_gets_every_column_of_the_widest_rows():
    text = run("instructions", "--gpu", "gfx1250").stdout
    assert "\u2026" not in text
    assert re.search(r"^v_wmma_scale_f32_16x16x128_f8f6f4 +0x\w+ .* matrix_b_reuse *$", text, re.MULTILINE)


def test_instructions():
    text = run("instructions", "--gpu", "gfx1201", "swmmac").stdout
    assert "11 instructions of gfx1201" in text
    assert re.search(r"v_swmmac_i32_16x16x64_iu4 +0x56 +2 4 8 \| 1 2 4 +8 +8192 +no +index_key neg_lo clamp", text)
    rows = json.loads(run("instructions", "--gpu", "gfx942", "--json").stdout)
    assert len(rows) == 46
    (row,) = (r for r in rows if r["name"] == "v_mfma_f32_32x32x8_f16")
    assert (row["opcode"], row["flops"], row["flops_per_cu_cycle"]) == (76, 16384, 2048)
    assert row["registers"] == {"64": {"A": 2, "B": 2, "C": 16, "D": 16}}
    assert "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16" in run("instructions", "--gpu", "h200").stdout
    builtin = run("instructions", "--gpu", "gfx1201", "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12").stdout
    assert "1 instruction of gfx1201" in builtin
    assert "v_wmma_f32_16x16x16_f16" in builtin
    unknown = run("instructions", "--gpu", "gfx1201", "v_wmma_f32_16x16x16_f17", code=2)
    assert "the nearest are v_wmma_f32_16x16x16_f16" in unknown.output


def test_starts_without_heavy_packages():
    """What takes long to import is not imported: the start time itself depends on the machine."""
    code = (
        "import sys; from typer.testing import CliRunner; from laneloom.cli import app;"
        f"CliRunner().invoke(app, ['layout', *{WMMA!r}]);"
        "print([m for m in ('torch', 'triton', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

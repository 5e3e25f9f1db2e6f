"""The page of a matrix instruction: complete without a network, and what its script draws is the layout."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from sampled import sampled

from laneloom.errors import ArgumentError
from laneloom.isa import get_layout
from laneloom.isa.layout_html import layout_html, pseudo_code
from laneloom.isa.layout_text import short_place

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CASES = [
    ("v_wmma_f16_16x16x16_f16", "gfx1151", 32), ("v_wmma_f32_16x16x16_fp8_fp8", "gfx1201", 32),
    ("v_swmmac_i32_16x16x32_iu4", "gfx1201", 32), ("v_mfma_f32_32x32x8_f16", "gfx942", 64),
    ("v_mfma_f32_16x16x4_4b_f32", "gfx942", 64), ("wgmma.m64n64k16.f32.bf16", "sm_90a", 128),
]  # fmt: skip


class Cells(HTMLParser):
    """Every td: the matrix of its section, the number of its table there, its keys and its text."""

    def __init__(self):
        super().__init__()
        self.matrix, self.table, self.cells, self.inside = "", 0, [], False

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "section":
            self.matrix, self.table = attributes["id"].removeprefix("matrix-"), -1
        elif tag == "table":
            self.table += 1
        elif tag == "td":
            self.cells.append([self.matrix, self.table, attributes["data-keys"], ""])
            self.inside = True

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "td"

    def handle_data(self, text):
        if self.inside:
            self.cells[-1][3] += text


def browse(path, *words):
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *words, path.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_fetched():
    page = layout_html("v_wmma_f16_16x16x16_f16", "gfx1151")
    assert not re.search(r"(src|href)=|@import|url\(|https?://", page)
    data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page)[1])
    assert [(v["wave"], v["opsel"]) for v in data["variants"]] == [(32, 0), (32, 4), (64, 0), (64, 4)]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize(("name", "gpu", "wave"), sampled(CASES, first=1))
def test_the_script_draws_the_layout(name, gpu, wave, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(layout_html(name, gpu), encoding="utf-8")
    parser = Cells()
    parser.feed(browse(page, "--dump-dom"))
    row = get_layout(name, gpu, wave, "D").instruction
    for matrix in row.matrices:
        layout = get_layout(name, gpu, wave, matrix)
        mine = [cell for cell in parser.cells if cell[0] == matrix]
        grid = {keys: text for _, table, keys, text in mine if table < layout.blocks}
        want = {f"{e.block},{e.row},{e.col}": short_place(places[0]) for e, places in layout}
        assert grid == want
        registers = [keys.split() for _, table, keys, _ in mine if table == layout.blocks]
        starts = sorted({32 * p.vgpr + p.bit_lo for _, places in layout for p in places})
        assert len(registers) == wave * len(starts)
        at = {}
        for e, places in layout:
            for p in places:
                at.setdefault((p.lane, 32 * p.vgpr + p.bit_lo), []).append(f"{e.block},{e.row},{e.col}")
        assert registers == [at.get((lane, start), []) for lane in range(wave) for start in starts]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [500, 1400])
def test_fits_a_phone_and_a_desk(width, tmp_path):
    """No sideways scrolling of the page itself; a picture comes out."""
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    text = layout_html("v_mfma_f32_32x32x8_f16", "gfx942")
    probe = "<script>document.title = 'over ' + (document.documentElement.scrollWidth - innerWidth)</script></body>"
    page.write_text(text.replace("</body>", probe), encoding="utf-8")
    shown = browse(page, f"--window-size={width},1000", "--dump-dom")
    assert int(re.search(r"<title>over (-?\d+)</title>", shown)[1]) <= 0
    browse(page, f"--window-size={width},1000", f"--screenshot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


def test_pseudo_code():
    assert pseudo_code(get_layout("v_wmma_f16_16x16x16_f16", "gfx1151", 32, "D", 4)).splitlines() == [
        "for every lane:",
        "  for slot in 0..7:   # register = slot, bits 31:16",
        "    D[i = 2 slot + lane/16][j = lane % 16] = d.slot[slot]",
    ]
    assert "the two of A[i = lane % 16]" in pseudo_code(get_layout("v_swmmac_f32_16x16x32_f16", "gfx1201", 32, "A"))
    with pytest.raises(ArgumentError, match="moves blocks or lanes"):
        layout_html("v_mfma_f32_4x4x4_16b_f16", "gfx942", blgp=1)
    assert "fp4" in layout_html("v_mfma_f32_16x16x128_f8f6f4", "gfx950", cbsz=4)

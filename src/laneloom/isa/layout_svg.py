"""A layout as SVG: the matrix and the register file side by side, each cell in the colour of its lane.

Cells carry a `<title>`, so that a browser shows an element's copies under the pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hls_to_rgb
from xml.sax.saxutils import escape

from .catalogue import GENERATIONS
from .layout_text import name_element, name_places, short_place, type_text
from .layouts import AXES, Element, Layout, Place

_CELL_HEIGHT, _FONT, _HEAD, _GAP = 17, 10, 44, 40
_CHARACTER = 6.2  #: width of a character of the monospaced font, in pixels


def lane_colour(lane: int, wave: int) -> str:
    """The lane's hue, around the wheel once; pale enough for dark text. In digits: few readers of SVG know hsl()."""
    red, green, blue = hls_to_rgb(round(360 * lane / wave) / 360, 0.82, 0.7)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


class _Canvas:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.width = self.height = 0.0

    def text(self, x: float, y: float, text: str) -> None:
        """Centred text."""
        self.parts.append(f'<text x="{x:.1f}" y="{y:g}">{escape(text)}</text>')

    def heading(self, x: float, y: float, text: str, style: str) -> None:
        """Text that starts at x; style "s" is plain, "b" bold."""
        self.parts.append(f'<text class="{style}" x="{x:.1f}" y="{y:g}">{escape(text)}</text>')
        self.width = max(self.width, x + _CHARACTER * len(text))

    def cell(self, x: float, y: float, width: float, label: str, fill: str, title: str) -> None:
        self.parts.append(
            f'<g><title>{escape(title)}</title><rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" '
            f'height="{_CELL_HEIGHT}" fill="{fill}"/>'
            f'<text x="{x + width / 2:.1f}" y="{y + 12:g}">{escape(label)}</text></g>'
        )
        self.width, self.height = max(self.width, x + width), max(self.height, y + _CELL_HEIGHT)


def layout_svg(layouts: Sequence[Layout]) -> str:
    """One SVG of several layouts, below each other."""
    canvas = _Canvas()
    top = 8.0
    for layout in layouts:
        top = _draw(canvas, layout, top) + _GAP
    width, height = canvas.width + 10, canvas.height + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="ui-monospace, Menlo, Consolas, monospace" '
        f'font-size="{_FONT}"><style>rect{{stroke:#666;stroke-width:.4}}text{{fill:#111;text-anchor:middle}}'
        f".s,.b{{text-anchor:start}}.b{{font-weight:bold}}</style>"
        f'<rect width="100%" height="100%" fill="#fff" style="stroke:none"/>{"".join(canvas.parts)}</svg>\n'
    )


def _draw(canvas: _Canvas, layout: Layout, top: float) -> float:
    """Title, blocks of the matrix at the left, registers at the right; the y below them."""
    row = layout.instruction
    title = f"{GENERATIONS[row.generation]}, {layout.matrix} of {row.name}: {type_text(layout)}, {layout.wave} lanes"
    canvas.heading(10, top + 12, title, "b")
    bottom, right = top, 10.0
    row_axis, col_axis = AXES[layout.matrix]
    labels = {e: short_place(places[0]) for e, places in layout}
    width = _CHARACTER * max(map(len, labels.values())) + 6
    y = top + _HEAD
    for block in range(layout.blocks):
        x = 34.0
        caption = f"{row_axis} down, {col_axis} right" + (f", block {block}" if layout.blocks > 1 else "")
        canvas.heading(x, y - 16, f"{caption}; lane:register", "s")
        for col in range(layout.cols):
            canvas.text(x + width * (col + 0.5), y - 4, str(col))
        for row in range(layout.rows):
            canvas.text(x - 12, y + _CELL_HEIGHT * row + 12, str(row))
            for col in range(layout.cols):
                element = Element(block, row, col)
                places = layout.where(row, col, block)
                title = f"{name_element(layout.matrix, element, layout.blocks)}: {name_places(places)}"
                colour = lane_colour(places[0].lane, layout.wave)
                canvas.cell(x + width * col, y + _CELL_HEIGHT * row, width, labels[element], colour, title)
        right = max(right, x + width * layout.cols)
        y += _CELL_HEIGHT * layout.rows + _GAP
        bottom = max(bottom, y - _GAP)
    return max(bottom, _draw_registers(canvas, layout, right + _GAP, top + _HEAD))


def _draw_registers(canvas: _Canvas, layout: Layout, x: float, top: float) -> float:
    """Lanes down, places right, the lowest bits first."""
    held: dict[tuple[int, int], list[tuple[Element, Place]]] = {}
    for element, places in layout:
        for place in places:
            held.setdefault((place.lane, 32 * place.vgpr + place.bit_lo), []).append((element, place))
    labels = {key: _label(entries) for key, entries in held.items()}
    width = _CHARACTER * max(map(len, labels.values())) + 6
    starts = sorted({start for _, start in held})
    canvas.heading(x, top - 28, "lanes down, registers right; row,column", "s")
    for n, start in enumerate(starts):
        canvas.text(x + width * (n + 0.5), top - 4, _bits(start, layout.width))
        if start % 32 == 0 or (n and start // 32 != starts[n - 1] // 32):
            canvas.heading(x + width * n + 2, top - 15, f"v{start // 32}", "b")
    for lane in range(layout.wave):
        y = top + _CELL_HEIGHT * lane
        canvas.text(x - 12, y + 12, str(lane))
        for n, start in enumerate(starts):
            entries = held.get((lane, start))
            if entries is None:
                canvas.cell(x + width * n, y, width, "", "#eee", "not read")
                continue
            title = " ".join(name_element(layout.matrix, e, layout.blocks) for e, _ in entries)
            canvas.cell(x + width * n, y, width, labels[lane, start], lane_colour(lane, layout.wave), title)
    return top + _CELL_HEIGHT * layout.wave


def _label(entries: list[tuple[Element, Place]]) -> str:
    first, last = entries[0][0], entries[-1][0]
    block = f"{first.block}:" if first.block else ""
    if len({e.block for e, _ in entries}) > 1:  # one place for several blocks, by cbsz or blgp
        return f"{first.row},{first.col} x{len(entries)}"
    return f"{block}{first.row},{first.col}" + (f"-{last.col}" if last != first else "")


def _bits(start: int, width: int) -> str:
    low = start % 32
    return f"{low + width - 1}:{low}"

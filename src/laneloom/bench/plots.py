"""Charts as inline SVG: lines and dots with tooltips, on linear or logarithmic axes, in the colours of their page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, UnsupportedError

WIDTH, HEIGHT = 640, 400  #: without the legend, which stands below
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 48
LEGEND_COLUMNS, LEGEND_ROW = 3, 20
#: told apart from white and from a page's dark background
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d", "#6b7280",
           "#c026d3", "#94663b", "#0d9488", "#ea580c", "#9f7aea")  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """One axis."""

    title: str
    log: bool = False

    def place(self, value: float) -> float:
        """The value as a length."""
        return math.log10(value) if self.log else value

    def ticks(self, low: float, high: float) -> list[float]:
        """Where labels stand, between two lengths: at powers of ten (on a short axis, multiples too), or evenly."""
        if self.log:
            powers, found = range(math.floor(low), math.ceil(high) + 1), []
            for digits in ((1,), (1, 2, 5), range(1, 10)):
                found = [v for p in powers for d in digits if low <= math.log10(v := d * 10.0**p) <= high]
                if len(found) > 2:
                    return found
            return found if len(found) > 1 else [10**low, 10**high]
        step = 10 ** math.floor(math.log10(max(high - low, 1e-12) / 4))
        step *= next(f for f in (1, 2, 2.5, 5, 10) if (high - low) / (step * f) <= 7)
        return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass
class Chart:
    """Series in the order in which they were added; each keeps one colour by its first word."""

    x: Axis
    y: Axis
    lines: list[tuple[str, list[tuple[float, float]], bool]] = field(default_factory=list)
    points: list[tuple[str, list[tuple[float, float, str]]]] = field(default_factory=list)

    def line(self, name: str, points: Sequence[tuple[float, float]], *, dashed: bool = False) -> None:
        """A line; its name up to a colon is its colour's."""
        self.lines.append((name, list(points), dashed))

    def dots(self, name: str, points: Sequence[tuple[float, float, str]]) -> None:
        """Points with their tooltips."""
        self.points.append((name, list(points)))

    def svg(self, *, alone: bool = False) -> str:
        """The picture; it takes its text's colour from where it stands, or is dark on white (`alone`, for a file)."""
        everything = [p for _, points, _ in self.lines for p in points] + [p[:2] for _, ps in self.points for p in ps]
        everything = [(x, y) for x, y in everything if (x > 0 or not self.x.log) and (y > 0 or not self.y.log)]
        if not everything:
            return '<p class="none">Nothing to draw.</p>'
        xs, ys = ([axis.place(p[n]) for p in everything] for n, axis in enumerate((self.x, self.y)))
        x_low, x_high = _widened(min(xs), max(xs))
        y_low, y_high = _widened(min(ys) if self.y.log else min(0.0, *ys), max(ys))

        def at(x: float, y: float) -> tuple[float, float]:
            right = (self.x.place(x) - x_low) / (x_high - x_low)
            up = (self.y.place(y) - y_low) / (y_high - y_low)
            return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

        parts = self._axes(at, (x_low, x_high), (y_low, y_high))
        colours: dict[str, str] = {}

        def colour(name: str) -> str:
            return colours.setdefault(name.partition(":")[0], COLOURS[len(colours) % len(COLOURS)])

        legend: dict[str, str] = {}
        for name, points, dashed in self.lines:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in points))
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour(name)}" stroke-width="1.6"{dash}/>')
            legend[name] = colour(name)
        for name, dots in self.points:
            for x, y, tip in dots:
                right, down = at(x, y)
                parts.append(
                    f'<circle cx="{right:.1f}" cy="{down:.1f}" r="3.6" fill="{colour(name)}" fill-opacity="0.75">'
                    f"<title>{escape(tip)}</title></circle>"
                )
            if not any(known.partition(":")[0] == name for known in legend):
                legend[name] = colour(name)
        for place, (name, shade) in enumerate(legend.items()):
            x = LEFT + place % LEGEND_COLUMNS * (WIDTH - LEFT) // LEGEND_COLUMNS
            y = HEIGHT + 14 + LEGEND_ROW * (place // LEGEND_COLUMNS)
            parts.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" rx="2" fill="{shade}"/>')
            parts.append(f'<text x="{x + 17}" y="{y}">{escape(name)}</text>')
        height = HEIGHT + 8 + LEGEND_ROW * -(-len(legend) // LEGEND_COLUMNS)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'font-family="ui-sans-serif, system-ui, sans-serif" font-size="12" fill="currentColor" '
            f'aria-label="{escape(self.y.title)} over {escape(self.x.title)}">'
        )
        if alone:
            head += '<style>svg { color: #1f2328; background: #fff }</style>'
        return "\n".join([head, *parts, "</svg>"])

    def _axes(self, at, x_range: tuple[float, float], y_range: tuple[float, float]) -> list[str]:
        left, bottom, right, top = LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, TOP
        parts = [f'<g stroke="currentColor" stroke-opacity="0.45"><line x1="{left}" y1="{bottom}" x2="{right}" '
                 f'y2="{bottom}"/><line x1="{left}" y1="{bottom}" x2="{left}" y2="{top}"/></g>']  # fmt: skip
        for value in self.x.ticks(*x_range):
            x = at(value, 1.0)[0]
            parts.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{top}" stroke="currentColor" '
                         f'stroke-opacity="0.09"/><text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">'
                         f"{_number(value)}</text>")  # fmt: skip
        for value in self.y.ticks(*y_range):
            y = at(1.0, value)[1]
            parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="currentColor" '
                         f'stroke-opacity="0.09"/><text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">'
                         f"{_number(value)}</text>")  # fmt: skip
        middle = (left + right) / 2
        parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(self.x.title)}</text>')
        parts.append(f'<text transform="translate(15 {(top + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">'
                     f"{escape(self.y.title)}</text>")  # fmt: skip
        return parts


def _widened(low: float, high: float) -> tuple[float, float]:
    room = (high - low) * 0.05 or 0.5
    return (low if low == 0 else low - room), high + room


def _number(value: float) -> str:
    return f"{value:.5g}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.0e}"


def pyplot_for(path: Path) -> Any:
    """matplotlib's pyplot (of the extra `report`), for a figure that `save_figure` writes into a .svg or .png file."""
    if path.suffix not in (".svg", ".png"):
        raise ArgumentError(f"--plot: expected a file that ends in .svg or .png, got {path.name!r}")
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError("a plot needs matplotlib: install laneloom[report]") from error
    matplotlib.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib import pyplot

    return pyplot


def save_figure(figure: Any, path: Path) -> None:
    """Write a Matplotlib figure as SVG, or as what its suffix says: the same figure gives the same file of SVG."""
    from matplotlib import pyplot, rc_context

    with rc_context({"svg.hashsalt": "laneloom"}):  # else the names of clip paths are random
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)

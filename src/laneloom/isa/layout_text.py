"""Layouts and instructions as text: formulas both ways, grids, and tables in four formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..gpu import Gpu
from .catalogue import TYPES, MatrixInstruction
from .layouts import AXES, CSV_HEADER, Digit, Element, Layout, Place, get_layout

FORMATS = ("table", "csv", "markdown", "asciidoc")  #: of tables


@dataclass(frozen=True)
class Table:
    """A table with a title; `notes` stand below it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def transposed(self) -> Table:
        """Rows and columns exchanged; the corner stays."""
        full = list(zip(self.header, *self.rows, strict=True))
        return Table(self.title, full[0], tuple(full[1:]), self.notes)

    def text(self, style: str) -> str:
        """The table as "table" (plain text), "markdown", "asciidoc" or "csv"."""
        lines = [self.header, *self.rows]
        notes = list(self.notes)
        if style == "csv":
            return "\n".join(",".join(f'"{c}"' if "," in c else c for c in line) for line in lines)
        if style == "markdown":
            body = [f"| {' | '.join(line)} |" for line in lines]
            return "\n".join([f"**{self.title}**", "", body[0], "|" + "---|" * len(self.header), *body[1:]]
                             + [f"\n{note}" for note in notes])  # fmt: skip
        if style == "asciidoc":
            body = ["|" + " |".join(line) for line in lines]
            return "\n".join([f".{self.title}", '[options="header"]', "|===", *body, "|===", *notes])
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.header))]
        body = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([self.title, *body, *notes])


def name_element(matrix: str, element: Element, blocks: int = 1) -> str:
    """A[3][5], with the block where there are several."""
    return f"{matrix}[{element.row}][{element.col}]" + (f" of block {element.block}" if blocks > 1 else "")


def name_place(place: Place, *lanes: int) -> str:
    """v2{3,19}.[31:16]: register 2, lanes 3 and 19, bits 31 to 16. Whole registers have no bits."""
    low, high = place.bit_lo, place.bit_hi
    spelled = ",".join(map(str, lanes or (place.lane,)))
    if (low, high) == (0, 31):
        return f"v{place.vgpr}{{{spelled}}}"
    if high > 31:
        return f"v[{place.vgpr}:{place.vgpr + high // 32}]{{{spelled}}}" + ("" if high == 63 else f".[{high}:{low}]")
    return f"v{place.vgpr}{{{spelled}}}.[{high}:{low}]"


def name_places(places: Sequence[Place]) -> str:
    """All copies of an element, those in the same bits together."""
    lanes: dict[tuple[int, int, int], list[int]] = {}
    for place in places:
        lanes.setdefault(place[1:], []).append(place.lane)
    return " ".join(name_place(Place(0, *bits), *held) for bits, held in lanes.items())


def short_place(place: Place) -> str:
    """3:2h, lane 3, register 2, its high half; .n counts bytes or nibbles, a lone number is a whole register."""
    low, width = place.bit_lo, place.bit_hi - place.bit_lo + 1
    if width in (32, 64):
        part = ""
    elif width == 16:
        part = "h" if low else "l"
    else:
        part = f".{low // width}" if low % width == 0 else f".{low}"
    return f"{place.lane}:{place.vgpr}{part}"


# -- formulas ----------------------------------------------------------------------------------------------------------


def _sum(terms: Iterable[str]) -> str:
    return " + ".join(terms) or "0"


def _times(factor: int, text: str) -> str:
    return text if factor == 1 else f"{factor} {text}" if text.isalnum() else f"{factor} ({text})"


def _picked(name: str, step: int, radix: int, extent: int) -> str:
    """The digit of `name` that counts `radix` values of `step`; the highest digit needs no remainder."""
    text = name if step == 1 else f"{name}/{step}"
    return text if step * radix >= extent else f"{text} % {radix}"


def _forward(layout: Layout, digits: tuple[Digit, ...]) -> str:
    """The index that the digits make up, from coordinates."""
    extents = {"i": layout.instruction.m, "j": layout.instruction.n, "k": layout.instruction.k, "b": layout.blocks}
    terms, weight = [], 1
    for axis, step, radix in digits:
        if axis in extents and radix > 1:
            terms.append(_times(weight, _picked(axis, step, radix, extents[axis])))
        weight *= radix
    return _sum(terms)


def _backward(layout: Layout, axis: str) -> str:
    """A coordinate from slot and lane."""
    terms = []
    for name, digits in (("slot", layout.slots), ("lane", layout.lanes)):
        weight, total = 1, 1
        for digit in digits:
            total *= digit.radix
        for digit in digits:
            if digit.axis == axis and digit.radix > 1:
                terms.append(_times(digit.step, _picked(name, weight, digit.radix, total)))
            weight *= digit.radix
    if axis == "k" and layout.shared > 1:
        terms.append(f"0..{layout.shared - 1}")
    return _sum(terms)


def formulas(layout: Layout) -> tuple[str, ...]:
    """Element -> slot, register and lane, and back, with / rounding down. Without cbsz, abid and blgp."""
    row, col = AXES[layout.matrix]
    per = 32 // layout.pitch if layout.pitch < 32 and 32 % layout.pitch == 0 else 0
    if per:
        place = f"register = slot/{per}, bits from {_times(layout.pitch, f'slot % {per}')}"
        place += f" + {layout.first_bit}" if layout.first_bit else ""
    elif layout.pitch < 32:
        place = f"bits from {layout.pitch} slot on, over register borders"
    else:
        place = "register = slot" if layout.pitch == 32 else f"registers from {layout.pitch // 32} slot on"
        place += f", bits {layout.first_bit + layout.width - 1}:{layout.first_bit}" if layout.width < 32 else ""
    copies = 1
    for digit in layout.lanes:
        copies *= digit.radix if digit.axis == "*" else 1
    held = layout.wave // copies
    more = f", the same in {copies} groups of {held} lanes" if copies > 1 else ""
    axes = [row, col, *("b" if layout.blocks > 1 else "")]
    return (
        f"slot = {_forward(layout, layout.slots)}; {place}",
        f"lane = {_forward(layout, layout.lanes)}{more}",
        "; ".join(f"{axis} = {_backward(layout, axis)}" for axis in axes),
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def grid(layout: Layout, style: str) -> list[Table]:
    """The matrix with the places of its elements, one table per block."""
    tables = []
    row, col = AXES[layout.matrix]
    notes = ("lane:register; l, h: low and high half; .n: byte or nibble n",) if style == "table" else ()
    for block in range(layout.blocks):
        title = f"{layout.matrix}[{row}][{col}]" + (f", block {block}" if layout.blocks > 1 else "")
        rows = []
        for i in range(layout.rows):
            places = [layout.where(i, j, block) for j in range(layout.cols)]
            cells = [short_place(p[0]) for p in places] if style == "table" else [name_places(p) for p in places]
            rows.append((str(i), *cells))
        tables.append(Table(title, (f"{row}\\{col}", *map(str, range(layout.cols))), tuple(rows), notes))
    return tables


def element_table(layout: Layout, row: int, col: int, block: int) -> Table:
    """Every copy of one element."""
    rows = [(str(p.lane), str(p.vgpr), f"{p.bit_hi}:{p.bit_lo}") for p in layout.where(row, col, block)]
    title = name_element(layout.matrix, Element(block, row, col), layout.blocks)
    return Table(title, ("lane", "register", "bits"), tuple(rows))


def register_table(layout: Layout, vgpr: int, lane: int) -> Table:
    """What one lane's register holds."""
    held: dict[tuple[int, int], list[str]] = {}
    for place, element in layout.elements(lane, vgpr):
        start = 32 * (place.vgpr - vgpr) + place.bit_lo
        low, high = max(start, 0), min(start + layout.width - 1, 31)
        held.setdefault((low, high), []).append(name_element(layout.matrix, element, layout.blocks))
    rows = tuple((f"{high}:{low}", " ".join(names)) for (low, high), names in held.items())
    notes = () if rows else ("The instruction reads nothing here.",)
    if layout.shared > 1 and layout.matrix == "A":
        notes = ("Two of the four elements of each slot; the index K says which.",)
    return Table(f"{layout.matrix}: register {vgpr} of lane {lane}", ("bits", "elements"), rows, notes)


def output_elements(row: MatrixInstruction, i: int, j: int, block: int) -> list[tuple[str, Element]]:
    """The elements that make D[i][j]: D itself, C, then A (with its index) and B for each k."""
    found = [("D", Element(block, i, j)), ("C", Element(block, i, j))]
    for k in range(row.k):
        found.append(("A", Element(block, i, k)))
        if row.sparse:
            found.append(("K", Element(block, i, k)))
        if row.kind != "wgmma":
            found.append(("B", Element(block, k, j)))
    return found


def output_table(row: MatrixInstruction, gpu: Gpu, wave: int, i: int, j: int, block: int, modifiers: dict) -> Table:
    """Which elements, in which registers and lanes, make one element of D."""
    rows = []
    for matrix, element in output_elements(row, i, j, block):
        layout = get_layout(row, gpu, wave, matrix, **modifiers)
        places = layout.where(element.row, element.col, element.block)
        rows.append((name_element(matrix, element, row.blocks), name_places(places)))
    title = f"D[{i}][{j}] = C[{i}][{j}] + sum over k of A[{i}][k] B[k][{j}]"
    notes = ["Of every four k the two that the index K names take part."] if row.sparse else []
    notes += ["B comes from shared memory."] if row.kind == "wgmma" else []
    negated = [name for bit, name in enumerate("ABC") if row.a == "f64" and modifiers.get("blgp", 0) >> bit & 1]
    notes += [f"blgp negates {' and '.join(negated)}."] if negated else []
    return Table(title, ("element", "where"), tuple(rows), tuple(notes))


def csv_of(layouts_and_elements: Iterable[tuple[Layout, Element]]) -> str:
    """Chosen elements as CSV, one line per copy."""
    lines = [CSV_HEADER]
    for layout, e in layouts_and_elements:
        lines += [
            f"{layout.matrix},{e.block},{e.row},{e.col},{p.lane},{p.vgpr},{p.bit_lo},{p.bit_hi}"
            for p in layout.where(e.row, e.col, e.block)
        ]
    return "\n".join(lines)


def describe(row: MatrixInstruction, gpu: Gpu, wave: int) -> list[str]:
    """What an instruction is, in a few lines."""
    times = f"{row.blocks} x " if row.blocks > 1 else ""
    opcode = f"{row.encoding} opcode {row.opcode:#x}" if row.opcode is not None else row.encoding
    c = "D" if row.sparse else "C"
    sparse = ", A 4:2 sparse" if row.sparse else ""
    lines = [
        f"{row.name}: {gpu.name} ({gpu.family}), {wave} lanes, {opcode}",
        f"{times}D[{row.m}x{row.n}] {row.cd} = A[{row.m}x{row.k}] {row.a} . B[{row.k}x{row.n}] {row.b} + {c}{sparse}",
    ]
    rate = row.rate(gpu)
    counted = f"{row.flops} {'operations' if row.cd == 'i32' else 'FLOPs'}" + (" (of the dense product)" * row.sparse)
    speed = f"{counted} in {row.cycles} cycles, {rate:g} per CU and cycle" if rate else f"{counted}; cycles unpublished"
    lines.append(speed + (f"; {row.note}" if row.note else ""))
    if row.coissue is not None:
        after = f"from {row.coissue_delay} cycles after it" if row.coissue_delay else "yes"
        lines.append(f"VALU work beside it: {after if row.coissue else 'no'}")
    lines.append(f"modifiers: {', '.join(row.modifiers) or 'none'}; source: {row.source}")
    return lines


def type_text(layout: Layout) -> str:
    """The type of a layout's elements."""
    if layout.matrix == "K":
        return "index of A, 4 bits for every four k"
    return f"{layout.kind} ({TYPES[layout.kind].text})"

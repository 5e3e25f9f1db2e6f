"""Which lane, register and bits hold which element of a matrix instruction's operand, and back.

An operand is a grid of slots (places for an element in a lane's registers, lowest bits first) by lanes. Both numbers
are read as mixed-radix digits, each worth a step along one axis: "k1x4 k8x2" for slots says that the lowest digit
counts k = 0..3 and the next adds 8; "i1x16 k4x2" for lanes says i = lane % 16, and the upper half adds 4 to k. i, j, k
are row of A, column of B and the contracted index, b the block; "*" repeats the data, "-" leaves lanes unused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..gpu import Gpu
from .catalogue import TYPES, MatrixInstruction, find_instruction
from .layout_digits import K_ORDERS, digits_of, index_sets

AXES = {"A": "ik", "B": "kj", "C": "ij", "D": "ij", "K": "ik"}  #: row and column of each matrix
CSV_HEADER = "matrix,block,row,col,lane,vgpr,bit_lo,bit_hi"


class Element(NamedTuple):
    """An element of a matrix: A[i][k], B[k][j], C or D[i][j], and the index K[i][k] of a sparse A."""

    block: int
    row: int
    col: int


class Place(NamedTuple):
    """Bits of a lane's register; vgpr counts from the operand's first. Wide elements go on in the next registers."""

    lane: int
    vgpr: int
    bit_lo: int
    bit_hi: int


class Digit(NamedTuple):
    """`radix` values of an index, each `step` apart along `axis`."""

    axis: str
    step: int
    radix: int


def parse_digits(text: str) -> tuple[Digit, ...]:
    """Digits of "k1x4 k8x2", the lowest first."""
    digits = []
    for word in text.split():
        step, _, radix = word[1:].partition("x")
        digits.append(Digit(word[0], int(step or 1), int(radix)))
    return tuple(digits)


def _coordinates(digits: tuple[Digit, ...], axes: str) -> list[tuple[int, int, int] | None]:
    """(block, row, col) of each index; None where an unused digit is not zero."""
    found: list[tuple[int, int, int] | None] = [(0, 0, 0)]
    for axis, step, radix in digits:
        block, row, col = (step * (axis == name) for name in ("b", *axes))
        grown: list[tuple[int, int, int] | None] = []
        for n in range(radix):
            unused = axis == "-" and n > 0
            for base in found:
                if base is None or unused:
                    grown.append(None)
                else:
                    grown.append((base[0] + n * block, base[1] + n * row, base[2] + n * col))
        found = grown
    return found


@dataclass(frozen=True)
class Layout:
    """Where the elements of one matrix of one instruction lie. `where` and `elements` are inverse to each other."""

    instruction: MatrixInstruction
    matrix: str
    kind: str  #: the elements' type, of catalogue.TYPES
    wave: int
    slots: tuple[Digit, ...]
    lanes: tuple[Digit, ...]
    width: int  #: bits that hold an element
    pitch: int  #: bits from one slot to the next
    first_bit: int = 0
    shared: int = 1  #: neighbours along k that share a slot: 4 in a sparse A and its index
    cbsz: int = 0
    abid: int = 0
    blgp: int = 0

    @property
    def rows(self) -> int:
        """Rows of one block."""
        return self._extent(AXES[self.matrix][0])

    @property
    def cols(self) -> int:
        """Columns of one block."""
        return self._extent(AXES[self.matrix][1])

    @property
    def blocks(self) -> int:
        """Independent products that the instruction makes."""
        return self.instruction.blocks

    @property
    def registers(self) -> int:
        """Registers of the operand in each lane."""
        slots = 1
        for digit in self.slots:
            slots *= digit.radix
        return max(-(-(slots * self.pitch) // 32), 1)

    def _extent(self, axis: str) -> int:
        return {"i": self.instruction.m, "j": self.instruction.n, "k": self.instruction.k}[axis]

    @cached_property
    def _places(self) -> dict[Element, tuple[Place, ...]]:
        plain: dict[Element, list[Place]] = {}
        lanes = _coordinates(self.lanes, AXES[self.matrix])
        for slot, at in enumerate(_coordinates(self.slots, AXES[self.matrix])):
            assert at is not None
            start = self.first_bit + slot * self.pitch
            vgpr, low, high = start // 32, start % 32, start % 32 + self.width - 1
            for lane, inside in enumerate(lanes):
                if inside is None:
                    continue
                block, row, col = at[0] + inside[0], at[1] + inside[1], at[2] + inside[2]
                place = Place(lane, vgpr, low, high)
                for n in range(self.shared):  # neighbours along k, which are columns of A and its index
                    plain.setdefault(Element(block, row, col + n), []).append(place)
        if self.cbsz or self.blgp:
            plain = {e: self._taken(e, plain) for e in plain}
        return {e: tuple(plain[e]) for e in sorted(plain)}

    def _taken(self, element: Element, plain: dict[Element, list[Place]]) -> list[Place]:
        """Where the instruction takes an element from: another block (cbsz, abid) or other lanes (blgp)."""
        if self.cbsz and self.matrix == "A":
            element = element._replace(block=(element.block >> self.cbsz << self.cbsz) + self.abid)
        return [place._replace(lane=read_lane(place.lane, self.blgp)) for place in plain[element]]

    @cached_property
    def _elements(self) -> dict[tuple[int, int], list[tuple[Place, Element]]]:
        found: dict[tuple[int, int], list[tuple[Place, Element]]] = {}
        for element, places in self._places.items():
            for place in places:
                found.setdefault((place.lane, place.vgpr), []).append((place, element))
                if place.bit_hi > 31:
                    found.setdefault((place.lane, place.vgpr + 1), []).append((place, element))
        return {key: sorted(entries, key=lambda x: (x[0].vgpr, x[0].bit_lo, x[1])) for key, entries in found.items()}

    def where(self, row: int, col: int, block: int = 0) -> tuple[Place, ...]:
        """Every place of an element, by lane. Raises ArgumentError for an element that is not there."""
        found = self._places.get(Element(block, row, col))
        if found is None:
            raise ArgumentError(
                f"{self.instruction.name} has no {self.matrix}[{row}][{col}] of block {block}: {self.matrix} is "
                f"{self.rows} x {self.cols}, blocks {self.blocks}"
            )
        return found

    def elements(self, lane: int, vgpr: int, bit: int | None = None) -> tuple[tuple[Place, Element], ...]:
        """What a lane's register holds, by bits; with `bit`, only what that bit belongs to.

        Empty where the instruction reads nothing. Raises ArgumentError for a lane or register outside the operand.
        """
        if not 0 <= lane < self.wave or not 0 <= vgpr < self.registers:
            raise ArgumentError(
                f"{self.matrix} of {self.instruction.name} has registers 0..{self.registers - 1} in lanes "
                f"0..{self.wave - 1}, not register {vgpr} of lane {lane}"
            )
        entries = self._elements.get((lane, vgpr), [])
        if bit is not None:
            at = 32 * vgpr + bit
            entries = [x for x in entries if 32 * x[0].vgpr + x[0].bit_lo <= at <= 32 * x[0].vgpr + x[0].bit_hi]
        return tuple(entries)

    def __iter__(self) -> Iterator[tuple[Element, tuple[Place, ...]]]:
        """(element, its places), by block, row, column."""
        return iter(self._places.items())

    def _repr_svg_(self) -> str:
        """The picture that notebooks show."""
        from .layout_svg import layout_svg

        return layout_svg([self])

    def csv_lines(self) -> Iterator[str]:
        """One line per copy of an element, under CSV_HEADER."""
        for (block, row, col), places in self:
            for lane, vgpr, low, high in places:
                yield f"{self.matrix},{block},{row},{col},{lane},{vgpr},{low},{high}"


def read_lane(lane: int, blgp: int) -> int:
    """The lane that lane `lane` of B reads under the B-matrix lane group pattern (CDNA 3 ISA guide)."""
    match blgp:
        case 1:
            return lane % 32
        case 2:
            return lane % 32 + 32
        case 3:
            return (lane + 16) % 64
        case 4 | 5 | 6 | 7:
            return lane % 16 + 16 * (blgp - 4)
    return lane


@lru_cache(maxsize=256)
def _layout(row: MatrixInstruction, wave: int, matrix: str, opsel: int, cbsz: int, abid: int, blgp: int, k_order: str):
    kind = row.type_of(matrix, cbsz, blgp)
    slots, lanes = digits_of(row, wave, matrix, kind, k_order)
    bits = TYPES[kind].bits
    width, pitch, first, shared = bits, bits, 0, 1
    if matrix == "K":
        held = 1
        for digit in parse_digits(slots):
            held *= digit.radix
        chosen = opsel if row.kind == "swmmac" else (0 if cbsz else abid)
        width, pitch, first, shared = 4, 4, 4 * held * chosen, 4
    elif matrix == "A" and row.sparse:
        width, pitch, shared = 2 * bits, 2 * bits, 4
    elif row.generation == "rdna3" and matrix in "CD" and bits == 16:
        pitch, first = 32, 16 * (opsel >> 2)
    if row.sparse or row.a == "f8f6f4":
        cbsz = abid = blgp = 0  # they chose the index set or the types and move nothing
    elif row.a == "f64" or matrix != "B":
        blgp = 0  # of f64 it negates
    return Layout(
        row, matrix, kind, wave, parse_digits(slots), parse_digits(lanes), width, pitch, first, shared, cbsz, abid, blgp
    )


def get_layout(
    instruction: str | MatrixInstruction,
    gpu: str | Gpu,
    wave: int | None = None,
    matrix: str = "A",
    opsel: int = 0,
    *,
    cbsz: int = 0,
    abid: int = 0,
    blgp: int = 0,
    k_order: str = "calculator",
) -> Layout:
    """The layout of matrix A, B, C, D or K (the index of a sparse A) of an instruction.

    wave: lanes that work together, the first of the instruction's by default. opsel: as the ISA encodes it: 4 takes C
    and D of RDNA 3's 16-bit forms from the high halves; for RDNA 4's sparse forms it is the index key. cbsz, abid,
    blgp: as the ISA encodes them. k_order: "calculator" or "articles", two descriptions of RDNA 4's 16-bit A and B in
    wave32 (a permutation of K that A and B share, so no product tells them apart).

    Raises ArgumentError for what the instruction does not have.
    """
    row = find_instruction(instruction, gpu)
    matrix = str(matrix).strip().upper()
    wave = row.waves[0] if wave is None else wave
    if wave not in row.waves:
        raise ArgumentError(f"{row.name} works on {' or '.join(map(str, row.waves))} lanes, not {wave}")
    if matrix not in AXES:
        raise ArgumentError(f"matrix must be A, B, C, D or K (the index of a sparse A), not {matrix!r}")
    if matrix == "K" and not row.sparse:
        raise ArgumentError(f"{row.name} is not sparse: it has no index K")
    if matrix == "B" and row.kind == "wgmma":
        raise ArgumentError(f"B of {row.name} comes from shared memory, not from registers")
    if k_order not in K_ORDERS:
        raise ArgumentError(f"k_order must be {' or '.join(K_ORDERS)}, not {k_order!r}")
    _check_modifiers(row, wave, opsel, cbsz, abid, blgp)
    return _layout(row, wave, matrix, opsel, cbsz, abid, blgp, k_order)


def _check_modifiers(row: MatrixInstruction, wave: int, opsel: int, cbsz: int, abid: int, blgp: int) -> None:
    if "op_sel" in row.modifiers:
        allowed = (0, 4)
    elif row.kind == "swmmac":
        allowed = tuple(range(max(index_sets(row, wave), 1)))
    else:
        allowed = (0,)
    if opsel not in allowed:
        raise ArgumentError(f"opsel of {row.name} in wave{wave} may be {', '.join(map(str, allowed))}, not {opsel}")
    if row.a == "f8f6f4":
        limits = {"cbsz": (cbsz, 4), "abid": (abid, 0), "blgp": (blgp, 4)}
    else:
        most_abid = index_sets(row, wave) - 1 if row.sparse else (1 << max(cbsz, 0)) - 1
        limits = {
            "cbsz": (cbsz, (1 if row.sparse else row.blocks.bit_length() - 1) if "cbsz" in row.modifiers else 0),
            "abid": (abid, most_abid if "abid" in row.modifiers else 0),
            "blgp": (blgp, 7 if "blgp" in row.modifiers else 0),
        }
    for name, (value, most) in limits.items():
        if not 0 <= value <= most:
            raise ArgumentError(f"{name} of {row.name} may be {'0 to ' * (most > 0)}{most}, not {value}")


def layout_csv(instruction: str, gpu: str | Gpu, wave: int, matrix: str, opsel: int = 0, **modifiers: Any) -> str:
    """The whole layout as CSV, `matrix,block,row,col,lane,vgpr,bit_lo,bit_hi`: one line per copy of an element.

    vgpr counts from the operand's first register; an FP64 element is its first register with bits 0..63; the sparse
    index is matrix K; a sparse A and K are in dense (i, k) coordinates, so four neighbouring k share a slot. Lines are
    ordered by block, row, col, lane. modifiers, errors: as in get_layout.
    """
    layout = get_layout(instruction, gpu, wave, matrix, opsel, **modifiers)
    return "\n".join([CSV_HEADER, *layout.csv_lines()]) + "\n"

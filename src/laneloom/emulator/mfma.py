"""MFMA and SMFMAC of CDNA 2 to 4: D = A B + C of one or more blocks spread over the 64 lanes of a wave.

Where an element lies is what `isa/layouts.py` says. Floats are added as `mfma_sums.py` says for CDNA 1 to 3 and FP64;
of sparse forms and of CDNA 4 nobody has measured it, so that every product is exact in float64, the K products and C
are summed in float64 and rounded once to D's type, to nearest even. Integers are exact and wrap. Denormals are kept,
but by CDNA 2's products of 16-bit floats, where those of A, B and C are +0; EXEC and MODE are ignored, save on CDNA 3
and 4 that f32 operands A and B follow the denormal mode, and that under FP16_OVFL f32 results that overflow stop at the
largest number and integers at theirs (CDNA 4 ISA guide, 7.1 and 7.4). xf32 multiplies the upper 19 bits of each
operand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..errors import ArgumentError, UnknownInstructionError
from ..isa.catalogue import MatrixInstruction, find_instruction
from ..isa.layouts import Layout, get_layout
from ..isa.parse import Instruction, Operand
from .alu import Builder, Step, Target
from .dots import bf16_to_f32
from .float8 import SMALL_VALUES, power_of_two
from .mfma_sums import sum_of
from .operands import constant
from .state import U32, Waves
from .sums import rounds_once

_NAME = re.compile(r"v_s?mfma[c_]")
Gather = tuple[np.ndarray, np.ndarray]  #: lane, and place among the elements of a lane, of each element


@lru_cache(maxsize=1024)
def places(layout: Layout, width: int) -> Gather:
    """Lane and place of every element [block, row, column], of the `width` bits that hold it."""
    lanes = np.zeros((layout.blocks, layout.rows, layout.cols), np.intp)
    slots = np.zeros_like(lanes)
    for element, (place, *_) in layout:
        at = element.block, element.row, element.col
        lanes[at], slots[at] = place.lane, (32 * place.vgpr + place.bit_lo) // width
    return lanes, slots


def fields(g: Waves, n: int, registers: int, width: int) -> np.ndarray:
    """[wave, lane, place]: the registers from n on as unsigned integers of `width` bits."""
    block = np.ascontiguousarray(g.V[n : n + registers].transpose(1, 2, 0))
    if width in (8, 16, 32, 64):
        return block.view(f"u{width // 8}")
    bits = np.unpackbits(block.view(np.uint8), axis=-1, bitorder="little")
    whole = bits.shape[-1] // width * width
    return bits[..., :whole].reshape(*bits.shape[:-1], -1, width) @ (1 << np.arange(width)).astype(np.uint8)


def values_of(bits: np.ndarray, kind: str) -> np.ndarray:
    """Fields of one of catalogue.TYPES as float64."""
    match kind:
        case "f64":
            return bits.view(np.float64)
        case "f32":
            return bits.view(np.float32).astype(np.float64)
        case "xf32":
            return (bits & U32(0xFFFFE000)).view(np.float32).astype(np.float64)
        case "f16":
            return bits.view(np.float16).astype(np.float64)
        case "bf16":
            return bf16_to_f32(bits).astype(np.float64)
        case "i8":
            return bits.view(np.int8).astype(np.float64)
        case "u8":
            return bits.astype(np.float64)
        case "i32":
            return bits.view(np.int32).astype(np.float64)
    return SMALL_VALUES[kind][bits]


def _signed_zeros(values: np.ndarray, kind: str) -> np.ndarray:
    """Denormals of f32 as zeros of the same sign."""
    return np.where(np.abs(values) < _SMALLEST[kind], np.copysign(0.0, values), values)


def _positive_zeros(values: np.ndarray, kind: str) -> np.ndarray:
    """Denormals and -0 of a 16-bit type or of f32 as +0."""
    return np.where(np.abs(values) < _SMALLEST[kind], 0.0, values)


_SMALLEST = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126}
_MOST = float(np.finfo(np.float32).max)
_LARGEST = {"i32": (-(2.0**31), 2.0**31 - 1), "f32": (-_MOST, _MOST)}


class _Operand:
    """How to read or write one matrix of an instruction."""

    def __init__(self, layout: Layout, flush: Callable | None = None, stops: bool = False):
        """flush: what becomes of denormals that are read. stops: results that overflow stop at the largest number."""
        self.layout, self.flush, self.stops = layout, flush, stops
        self.lanes, self.slots = places(layout, layout.width)

    def load(self, g: Waves, n: int) -> np.ndarray:
        """float64 [wave, block, row, column] from registers n on."""
        bits = fields(g, n, self.layout.registers, self.layout.width)
        values = values_of(np.ascontiguousarray(bits[:, self.lanes, self.slots]), self.layout.kind)
        return self.flush(values, self.layout.kind) if self.flush else values

    def store(self, g: Waves, n: int, values: np.ndarray) -> None:
        """Write [wave, block, row, column] to registers n on, rounded to the layout's type."""
        words = self.layout.width // 32
        if self.stops and self.layout.kind in _LARGEST:
            low, high = _LARGEST[self.layout.kind]
            values = np.where(np.isfinite(values), np.clip(values, low, high), values)
        if self.layout.kind == "i32":
            stored = values.astype(np.int64).astype(np.int32)
        else:
            stored = values.astype(np.float64 if words == 2 else np.float32)
        out = np.empty((g.count, g.lanes, self.layout.registers // words), stored.dtype)
        out[:, self.lanes, self.slots] = stored
        g.V[n : n + self.layout.registers] = out.view(U32).transpose(2, 0, 1)


def _layouts(ins: Instruction, row: MatrixInstruction, target: Target) -> dict[str, Layout]:
    cbsz, abid, blgp = (ins.number(name) for name in ("cbsz", "abid", "blgp"))
    try:
        return {
            matrix: get_layout(row, target.gpu, 64, matrix, cbsz=cbsz, abid=abid, blgp=blgp) for matrix in row.matrices
        }
    except ArgumentError as error:
        raise UnknownInstructionError(f"{ins.text}: {error}") from None


def _negations(ins: Instruction, row: MatrixInstruction) -> list[float]:
    """What A, B and C are multiplied by: f64 forms use blgp, or neg, to negate them."""
    bits = ins.bits("neg", [0, 0, 0]) if row.a == "f64" else [0, 0, 0]
    if row.a == "f64" and "blgp" in ins.modifiers:
        bits = [ins.number("blgp") >> k & 1 for k in range(3)]
    return [-1.0 if bit else 1.0 for bit in bits]


def _read_c(operand: Operand, layout: Layout, flush: Callable | None):
    if operand.kind == "v":
        matrix = _Operand(layout, flush)
        return lambda g: matrix.load(g, operand.index)
    value = float(constant(operand, layout.kind))
    return lambda g: value


def _scales(operand: Operand, byte: int, rows: int, blocks: int):
    """Of each row and 32 k, float64 [wave, row, k]."""
    lane = np.arange(rows)[:, None] + rows * np.arange(blocks)

    def read(g: Waves) -> np.ndarray:
        if operand.kind == "v":
            word = g.u[operand.index][:, lane]
        else:
            word = np.full((g.count, *lane.shape), int(constant(operand, "b32")), U32)
        return np.repeat(power_of_two(word >> U32(8 * byte) & U32(0xFF)), 32, axis=-1)

    return read


def _follows_mode(target: Target) -> bool:
    return target.gpu.name not in ("gfx908", "gfx90a")


def _stops(target: Target) -> bool:
    return _follows_mode(target) and target.mode.f16_overflow


def _build_dense(ins: Instruction, target: Target, row: MatrixInstruction) -> Step:
    layouts = _layouts(ins, row, target)
    flush = _positive_zeros if target.gpu.flushes_denormals and row.a in ("f16", "bf16") else None
    of_mode = _follows_mode(target) and row.a == "f32" and target.mode.flushes_inputs("f32")
    a, b = (_Operand(layouts[name], _signed_zeros if of_mode else flush) for name in "AB")
    d = _Operand(layouts["D"], None, _stops(target))
    destination, x, y, z, *scales = ins.operands
    c = _read_c(z, layouts["C"], flush)
    add = sum_of(row, target.gpu)
    negate_a, negate_b, negate_c = _negations(ins, row)
    factors = []
    if row.scaled:
        low, high = ins.bits("op_sel", [0, 0]), ins.bits("op_sel_hi", [1, 1])
        factors = [
            _scales(operand, low[k] + 2 * high[k], row.m, row.k // 32) for k, operand in enumerate(scales)
        ]

    def step(g: Waves) -> None:
        left, right = negate_a * a.load(g, x.index), negate_b * b.load(g, y.index)
        if factors:
            left = left * factors[0](g)[:, None]
            right = right * factors[1](g).transpose(0, 2, 1)[:, None]
        addend = negate_c * c(g)
        if add is None or rounds_once():
            total = left @ right + addend
        else:
            total = add(left, right, addend)
            if d.stops:  # what overflowed only by being rounded
                total = np.where(np.isinf(total) & np.isfinite(left @ right + addend), np.copysign(_MOST, total), total)
        d.store(g, destination.index, total)

    return step


def _build_sparse(ins: Instruction, target: Target, row: MatrixInstruction) -> Step:
    """A holds two of every four k; the four bits of their index say which, two for each."""
    layouts = _layouts(ins, row, target)
    b, d = _Operand(layouts["B"]), _Operand(layouts["D"], stops=_stops(target))
    destination, x, y, index = (o.index for o in ins.operands)
    width = layouts["A"].width // 2
    lanes, slots = (part[:, :, ::4] for part in places(layouts["A"], width))
    index_lanes, index_slots = (part[:, :, ::4] for part in places(layouts["K"], 4))
    first = 4 * np.arange(row.k // 4)

    def step(g: Waves) -> None:
        held = fields(g, x, layouts["A"].registers, width)
        which = fields(g, index, 1, 4)[:, index_lanes, index_slots]
        dense = np.zeros((g.count, row.blocks, row.m, row.k))
        for k in range(2):
            values = values_of(np.ascontiguousarray(held[:, lanes, slots + k]), layouts["A"].kind)
            at = first + (which >> np.uint8(2 * k) & np.uint8(3))
            np.put_along_axis(dense, at, np.take_along_axis(dense, at, -1) + values, -1)
        d.store(g, destination, dense @ b.load(g, y) + d.load(g, destination))

    return step


def row_of(ins: Instruction, target: Target) -> MatrixInstruction:
    """The catalogue's row of a matrix instruction. Raises UnknownInstructionError for one that the GPU lacks."""
    try:
        return find_instruction(ins.name, target.gpu)
    except ArgumentError:
        raise UnknownInstructionError(ins.name) from None


def _build(ins: Instruction, target: Target) -> Step:
    row = row_of(ins, target)
    return (_build_sparse if row.sparse else _build_dense)(ins, target, row)


def find(name: str) -> Builder | None:
    """The builder of a matrix instruction of CDNA."""
    return _build if _NAME.match(name) else None

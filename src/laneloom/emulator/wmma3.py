"""The matrix instructions of CDNA 5 that matrix.py's batches do not fit: formats chosen by a field, MX scales, sums and
results of different types, the 32x16 product of FP4, and sparse forms.

Where an element lies is what `isa/layouts.py` says. Numerics are those of the other matrix instructions: exact
products, the K products and C summed in float64, one rounding to nearest even; denormals are kept; EXEC and MODE are
ignored. Of FP64 they are four fused multiply-adds in the order of k, each rounded (rocjitsu).
A scale stands for 32 k of a row of A or column of B, or 16 in the `scale16` forms: the row's lane, of the half wave
that `matrix_a_scale` chooses, holds it in the byte of that number. Its type is E8M0, or what `matrix_a_scale_fmt` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import ArgumentError, UnknownInstructionError
from ..isa.catalogue import F8F6F4, MatrixInstruction
from ..isa.layouts import Layout, get_layout
from ..isa.parse import Instruction, Operand
from .alu import Builder, Step, Target
from .float8 import SMALL_VALUES, power_of_two
from .matrix_tiles import f64_to_bf16
from .mfma import fields, places, row_of, values_of
from .operands import constant
from .rounding import fma_f64
from .state import U32, Waves

_NAME = re.compile(
    r"v_wmma_(scale(16)?_f32_|f64_|f32_16x16x128_f8f6f4|f32_32x16x128_f4|bf16f32_)|v_swmmac_\w+_16x16x(64_(bf16|f16)|128_)"
)
_FORMATS = {"MATRIX_FMT_FP8": 0, "MATRIX_FMT_BF8": 1, "MATRIX_FMT_FP6": 2, "MATRIX_FMT_BF6": 3, "MATRIX_FMT_FP4": 4}
#: Types of scales: E4M3 is FP8.
_SCALE_TYPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "MATRIX_SCALE_FMT_E8": power_of_two, "0": power_of_two,
    "MATRIX_SCALE_FMT_E5M3": lambda code: SMALL_VALUES["e5m3"][code], "1": lambda code: SMALL_VALUES["e5m3"][code],
    "MATRIX_SCALE_FMT_E4M3": lambda code: SMALL_VALUES["fp8"][code], "2": lambda code: SMALL_VALUES["fp8"][code],
}  # fmt: skip


def fits(name: str) -> bool:
    """Whether this file, not matrix.py, executes an instruction of that name."""
    return _NAME.match(name) is not None


class _Matrix:
    """How to read or write one matrix of an instruction: [wave, row, column] of float64."""

    def __init__(self, layout: Layout, signed: bool = True):
        self.layout = layout
        self.kind = {"iu8": "i8" if signed else "u8"}.get(layout.kind, layout.kind)
        self.lanes, self.slots = (x[0] for x in places(layout, layout.width))

    def load(self, g: Waves, n: int) -> np.ndarray:
        bits = fields(g, n, self.layout.registers, self.layout.width)
        return values_of(np.ascontiguousarray(bits[:, self.lanes, self.slots]), self.kind)

    def store(self, g: Waves, n: int, values: np.ndarray, saturates: bool = False) -> None:
        """Rounded once to the layout's type."""
        match self.kind:
            case "i32":
                whole = np.clip(values, -(2.0**31), 2.0**31 - 1) if saturates else values
                stored = whole.astype(np.int64).astype(np.int32)
            case "bf16":
                stored = f64_to_bf16(values)
            case "f16":
                stored = values.astype(np.float16)
            case "f64":
                stored = values
            case _:
                stored = values.astype(np.float32)
        out = np.empty((g.count, g.lanes, self.layout.registers * 32 // self.layout.width), stored.dtype)
        out[:, self.lanes, self.slots] = stored
        g.V[n : n + self.layout.registers] = out.view(U32).transpose(2, 0, 1)


def _format(ins: Instruction, side: str) -> int:
    text = ins.modifiers.get(f"matrix_{side}_fmt", "0")
    if text in _FORMATS:
        return _FORMATS[text]
    if not text.isdigit() or int(text) >= len(F8F6F4):
        raise UnknownInstructionError(f"{ins.text!r} names a format that there is not")
    return int(text)


def _layouts(ins: Instruction, row: MatrixInstruction, target: Target) -> dict[str, Layout]:
    chosen: dict[str, Any] = {"cbsz": _format(ins, "a"), "blgp": _format(ins, "b")} if row.a == "f8f6f4" else {}
    try:
        return {matrix: get_layout(row, target.gpu, 32, matrix, **chosen) for matrix in row.matrices}
    except ArgumentError as error:
        raise UnknownInstructionError(f"{ins.text}: {error}") from None


def _signs(ins: Instruction, matrix: _Matrix, side: int) -> np.ndarray | float:
    """What A or B is multiplied by: neg_lo negates the even elements of a lane, neg_hi the odd ones; of f64 all."""
    low, high = (ins.bits(name, [0, 0, 0])[side] for name in ("neg_lo", "neg_hi"))
    if matrix.kind == "f64":
        return 1.0 - 2 * low
    if matrix.kind in ("i8", "u8") or not (low or high):
        return 1.0
    return np.where(matrix.slots % 2 == 1, 1.0 - 2 * high, 1.0 - 2 * low)


def _reader_of_c(ins: Instruction, operand: Operand, layout: Layout) -> Callable[[Waves], np.ndarray | float]:
    negate, absolute = ins.bits("neg_lo", [0, 0, 0])[2], ins.bits("neg_hi", [0, 0, 0])[2]
    if operand.kind != "v":
        value = float(constant(operand, layout.kind))
        value = abs(value) if absolute else value
        return lambda g: -value if negate else value
    matrix = _Matrix(layout)

    def read(g: Waves) -> np.ndarray:
        c = matrix.load(g, operand.index)
        c = np.abs(c) if absolute else c
        return -c if negate else c

    return read


def _scales(ins: Instruction, row: MatrixInstruction, operand: Operand, side: str) -> Callable[[Waves], np.ndarray]:
    """Of each row of A (column of B) and k, float64 [wave, row, k]."""
    name = ins.modifiers.get(f"matrix_{side}_scale_fmt", "0")
    if name not in _SCALE_TYPES:
        raise UnknownInstructionError(f"{ins.text!r} names a type of scales that there is not")
    value_of, rows = _SCALE_TYPES[name], row.m if side == "a" else row.n
    upper = ins.modifiers.get(f"matrix_{side}_scale", "0") in ("MATRIX_SCALE_ROW1", "1")
    lanes = np.arange(rows) + 16 * (upper and rows == 16)
    count = row.k // row.scale_block  # bytes

    def read(g: Waves) -> np.ndarray:
        if operand.kind == "v":
            words = np.stack([g.u[operand.index + k][:, lanes] for k in range(count // 4)], axis=-1)
        elif operand.kind == "s":  # the same scales in every lane, as with an inline constant
            words = np.stack([np.repeat(g.sv[operand.index + k], rows, axis=1) for k in range(count // 4)], axis=-1)
        else:
            word = int(constant(operand, "b32"))
            words = np.full((g.count, rows, count // 4), word, U32)
        codes = np.ascontiguousarray(words).view(np.uint8)
        return np.repeat(value_of(codes), row.scale_block, axis=-1)

    return read


def _build_dense(ins: Instruction, target: Target, row: MatrixInstruction) -> Step:
    layouts = _layouts(ins, row, target)
    a, b, d = (_Matrix(layouts[name]) for name in "ABD")
    destination, x, y, z, *scales = ins.operands
    c = _reader_of_c(ins, z, layouts["C"])
    sign_a, sign_b = _signs(ins, a, 0), _signs(ins, b, 1)
    of_a = of_b = None
    if row.scaled:
        of_a, of_b = _scales(ins, row, scales[0], "a"), _scales(ins, row, scales[1], "b")

    def step(g: Waves) -> None:
        left, right = sign_a * a.load(g, x.index), sign_b * b.load(g, y.index)
        if of_a is not None and of_b is not None:
            left = left * of_a(g)
            right = right * of_b(g).transpose(0, 2, 1)
        d.store(g, destination.index, _fused(left, right, c(g)) if row.a == "f64" else left @ right + c(g))

    return step


def _fused(a: np.ndarray, b: np.ndarray, c: np.ndarray | float) -> np.ndarray:
    """c + a b by fused multiply-adds in float64, one k after the other."""
    for k in range(a.shape[-1]):
        c = fma_f64(a[..., k : k + 1], b[..., k : k + 1, :], np.asarray(c))
    return np.asarray(c)


@lru_cache(maxsize=64)
def _held(layout: Layout, width: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Lane and place of every `each`-th element of a row, which stand for the k that share a slot."""
    lanes, slots = places(layout, width)
    return lanes[0, :, ::each], slots[0, :, ::each]


def _build_sparse(ins: Instruction, target: Target, row: MatrixInstruction) -> Step:
    """A holds two of every four k; the four bits of their index say which, two for each.

    index_key:1 takes the upper half of a lane's indices for the lower, with zeros above (rocjitsu).
    """
    layouts, signs = _layouts(ins, row, target), ins.bits("neg_lo", [0, 0, 0])
    width = layouts["A"].width // 2
    b, c, d = _Matrix(layouts["B"], bool(signs[1])), _Matrix(layouts.get("C", layouts["D"])), _Matrix(layouts["D"])
    kind = {"iu8": "i8" if signs[0] else "u8"}.get(row.a, row.a)
    destination, x, y, index = (o.index for o in ins.operands)
    lanes, slots = _held(layouts["A"], width, 4)
    index_lanes, index_slots = _held(layouts["K"], 4, 4)
    half = 4 * layouts["K"].registers if ins.number("index_key") else 0  # indices of a lane that are passed over
    first, saturates = 4 * np.arange(row.k // 4), ins.flag("clamp")
    flips = [1.0, 1.0] if row.a == "iu8" else [1.0 - 2 * ins.bits(n, [0, 0, 0])[0] for n in ("neg_lo", "neg_hi")]
    sign_b = _signs(ins, b, 1)

    def step(g: Waves) -> None:
        held = fields(g, x, layouts["A"].registers, width)
        indices = fields(g, index, layouts["K"].registers, 4)
        if half:
            indices = np.concatenate([indices[..., half:], np.zeros_like(indices[..., half:])], axis=-1)
        which = indices[:, index_lanes, index_slots]
        dense = np.zeros((g.count, row.m, row.k))
        for k in range(2):
            values = flips[k] * values_of(np.ascontiguousarray(held[:, lanes, slots + k]), kind)
            at = first + (which >> np.uint8(2 * k) & np.uint8(3))
            np.put_along_axis(dense, at, np.take_along_axis(dense, at, -1) + values, -1)
        d.store(g, destination, dense @ (sign_b * b.load(g, y)) + c.load(g, destination), saturates)

    return step


def _build(ins: Instruction, target: Target) -> Step:
    row = row_of(ins, target)
    return (_build_sparse if row.sparse else _build_dense)(ins, target, row)


def find(name: str) -> Builder | None:
    """The builder of such an instruction."""
    return _build if fits(name) else None

"""WMMA on gfx11 and gfx12: D = A B + C of 16x16 tiles spread over the lanes of a wave.

Numerics: every product is exact, the K products and C are summed in float64 and rounded once to D's type (nearest
even); integers are summed exactly and wrap, or saturate with clamp. EXEC is ignored, as on the hardware.
Layouts (RDNA 3 and RDNA 4 ISA guides; AMD matrix instruction calculator): l = lane, e = element, v = register,
gfx11  A[l%16][e], B[e][l%16]; D[2v + l/16][l%16] in wave32, [4v + l/16] in wave64; 16-bit C, D in one half (op_sel).
gfx12  with h = l/16 and E elements a lane: A[l%16][E h + e], B[E h + e][l%16]; D[8 h + v][l%16] in wave32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..errors import UnknownInstructionError
from .alu import Step, Target
from .float8 import BF8_VALUES, FP8_VALUES
from .operands import constant
from .parse import Instruction
from .state import Waves

_NAME = re.compile(r"v_wmma_(f32|f16|bf16|i32)_16x16x(16|32)_(f16|bf16|iu8|iu4|fp8_fp8|fp8_bf8|bf8_fp8|bf8_bf8)$")
_BITS = {"f16": 16, "bf16": 16, "iu8": 8, "iu4": 4, "fp8": 8, "bf8": 8}


@dataclass(frozen=True)
class Shape:
    """What the mnemonic says, the same for all instructions that may be batched together."""

    gfx12: bool
    lanes: int
    k: int
    a: str
    b: str
    cd: str
    signs: tuple[int, ...]  #: neg_lo: signedness for iu8 and iu4, negation for floats
    signs_high: tuple[int, ...]  #: neg_hi: negation of odd elements of A and B, |C|
    clamp: bool
    high: tuple[bool, bool]  #: op_sel: C read from and D written to the high halves (gfx11, 16-bit)

    @property
    def lane_elements(self) -> int:
        """Elements of A or B that one lane holds."""
        return self.k // (self.lanes // 16) if self.gfx12 else self.k

    def registers(self, kind: str) -> int:
        """Registers of an A or B fragment."""
        return max(self.lane_elements * _BITS[kind] // 32, 1)

    @property
    def registers_cd(self) -> int:
        """Registers of a C or D fragment."""
        whole = 256 // self.lanes
        return whole // 2 if self.gfx12 and self.cd in ("f16", "bf16") else whole


@dataclass(frozen=True)
class Wmma:
    """One matrix instruction: first registers of its operands (c is None where it is a constant)."""

    shape: Shape
    d: int
    a: int
    b: int
    c: int | None
    c_value: float | int = 0

    def reads(self) -> set[int]:
        s = self.shape
        got = set(range(self.a, self.a + s.registers(s.a))) | set(range(self.b, self.b + s.registers(s.b)))
        if self.c is not None:
            got |= set(range(self.c, self.c + s.registers_cd))
        return got

    def operands(self) -> set[int]:
        """Registers of A and B."""
        s = self.shape
        return set(range(self.a, self.a + s.registers(s.a))) | set(range(self.b, self.b + s.registers(s.b)))

    def writes(self) -> set[int]:
        return set(range(self.d, self.d + self.shape.registers_cd))


def decode(ins: Instruction, target: Target) -> Wmma:
    """The matrix instruction in `ins`."""
    match = _NAME.match(ins.name)
    gfx12 = target.gpu.major == 12
    if not match or (gfx12 and target.lanes == 64):
        raise UnknownInstructionError(ins.name)
    cd, k, types = match[1], int(match[2]), match[3]
    a, b = types.split("_") if "_" in types else (types, types)
    select = ins.bits("op_sel", [0, 0, 0, 0])
    high = bool(select[2]) and not gfx12
    shape = Shape(
        gfx12, target.lanes, k, a, b, cd, tuple(ins.bits("neg_lo", [0, 0, 0])), tuple(ins.bits("neg_hi", [0, 0, 0])),
        ins.flag("clamp"), (high, high),
    )  # fmt: skip
    d, x, y, c = ins.operands
    if c.kind == "v":
        return Wmma(shape, d.index, x.index, y.index, c.index)
    kind = {"f32": "f32", "i32": "i32", "f16": "f16", "bf16": "bf16"}[cd]
    value = constant(c, kind)
    number = _bf16_to_f64(value) if kind == "bf16" else value.astype(np.float64)
    return Wmma(shape, d.index, x.index, y.index, None, float(number))


def build(pending: list[Wmma]) -> Step:
    """One step for a run of independent or chained matrix instructions of one shape.

    Tiles that share their A and B fragments are multiplied together in one batched product.
    """
    layers: list[list[Wmma]] = []
    level: dict[int, int] = {}
    for w in pending:
        at = level.get(w.c, 0) if w.c is not None else 0
        at = max(at, level.get(w.d, 0))
        level[w.d] = at + 1
        while len(layers) <= at:
            layers.append([])
        layers[at].append(w)
    plans = [_plan_layer(layer) for layer in layers]

    def step(g: Waves) -> None:
        cache: dict[tuple[str, int], np.ndarray] = {}
        for plan in plans:
            for rows, columns, tiles in plan:
                _multiply(g, rows, columns, tiles, cache)

    return step


Plan = list[tuple[list[int], list[int], list[tuple[Wmma, int, int]]]]


def _plan_layer(layer: list[Wmma]) -> Plan:
    """Cover the layer's (A, B) pairs by full rectangles: one if it is an outer product, else one per A fragment."""
    rows = list(dict.fromkeys(w.a for w in layer))
    columns = list(dict.fromkeys(w.b for w in layer))
    pairs = {(w.a, w.b) for w in layer}
    if len(pairs) == len(layer) == len(rows) * len(columns):
        return [(rows, columns, [(w, rows.index(w.a), columns.index(w.b)) for w in layer])]
    plan: Plan = []
    for a in rows:
        mine = [w for w in layer if w.a == a]
        columns = list(dict.fromkeys(w.b for w in mine))
        plan.append(([a], columns, [(w, 0, columns.index(w.b)) for w in mine]))
    return plan


def _multiply(g: Waves, rows, columns, tiles, cache) -> None:
    shape = tiles[0][0].shape

    def fragment(side: str, n: int) -> np.ndarray:
        key = (side, n)
        if key not in cache:
            index = "ab".index(side)
            kind = shape.a if side == "a" else shape.b
            cache[key] = load_fragment(g, n, kind, shape, shape.signs[index], shape.signs_high[index])
        return cache[key]

    a = [fragment("a", n) for n in rows]
    b = [fragment("b", n) for n in columns]
    left = a[0] if len(a) == 1 else np.concatenate(a, axis=1)
    right = b[0] if len(b) == 1 else np.concatenate(b, axis=1)
    product = np.matmul(left, right.transpose(0, 2, 1))  # [wave, 16 rows, 16 columns]
    for w, i, j in tiles:
        tile = product[:, 16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
        _accumulate(g, w, tile_to_registers(tile, shape))


def load_fragment(g: Waves, n: int, kind: str, shape: Shape, neg_lo: int, neg_hi: int) -> np.ndarray:
    """A (or B transposed) as float64 [wave, 16, K] from its registers."""
    count, lanes = shape.registers(kind), (shape.lanes if shape.gfx12 else 16)
    block = np.ascontiguousarray(g.V[n : n + count, :, :lanes].transpose(1, 2, 0))  # [wave, lane, register]
    values = _decode_elements(block, kind, bool(neg_lo))[..., : shape.lane_elements]
    if kind in ("f16", "bf16"):
        if neg_lo:
            values[..., 0::2] *= -1
        if neg_hi:
            values[..., 1::2] *= -1
    elif kind in ("fp8", "bf8") and neg_lo:
        values = -values
    if shape.gfx12:  # [wave, h, row, e] -> [wave, row, h, e]
        values = values.reshape(len(values), lanes // 16, 16, -1).transpose(0, 2, 1, 3).reshape(len(values), 16, -1)
    return values


def _decode_elements(block: np.ndarray, kind: str, signed: bool) -> np.ndarray:
    if kind == "f16":
        return block.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return _bf16_to_f64(block.view(np.uint16))
    if kind in ("fp8", "bf8"):
        return (FP8_VALUES if kind == "fp8" else BF8_VALUES).take(block.view(np.uint8))
    if kind == "iu8":
        return block.view(np.int8 if signed else np.uint8).astype(np.float64)
    octets = block.view(np.uint8)
    nibbles = np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1).astype(np.int8)
    return (np.where(nibbles > 7, nibbles - 16, nibbles) if signed else nibbles).astype(np.float64)


def _bf16_to_f64(bits: np.ndarray) -> np.ndarray:
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def tile_to_registers(tile: np.ndarray, shape: Shape) -> np.ndarray:
    """[wave, 16, 16] -> [e, wave, lane], e = element of D within the lane."""
    waves = len(tile)
    groups = shape.lanes // 16
    if shape.gfx12:  # row = (16 / groups) h + e
        return tile.reshape(waves, groups, 16 // groups, 16).transpose(2, 0, 1, 3).reshape(-1, waves, shape.lanes)
    return tile.reshape(waves, 16 // groups, groups, 16).transpose(1, 0, 2, 3).reshape(-1, waves, shape.lanes)


def _accumulate(g: Waves, w: Wmma, product: np.ndarray) -> None:
    s = w.shape
    count = s.registers_cd
    c = w.c_value if w.c is None else _read_c(g, w.c, s)
    if s.cd == "i32":
        total = product + c
        if s.clamp:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        g.V.view(np.int32)[w.d : w.d + count] = total.astype(np.int64).astype(np.int32)
        return
    if w.c is not None:
        if s.signs_high[2]:
            c = np.abs(c)
        if s.signs[2]:
            c = -c
    total = np.add(product, c)
    if s.clamp:
        total = np.where(np.isnan(total), 0.0, np.clip(total, 0.0, 1.0))
    if s.cd == "f32":
        np.copyto(g.V.view(np.float32)[w.d : w.d + count], total, casting="same_kind")
        return
    bits = total.astype(np.float16).view(np.uint16) if s.cd == "f16" else f64_to_bf16(total)
    if s.gfx12:  # two elements per register
        packed = np.stack([bits[0::2], bits[1::2]], axis=-1)
        g.V.view(np.uint16).reshape(*g.V.shape, 2)[w.d : w.d + count] = packed
    else:
        g.V.view(np.uint16).reshape(*g.V.shape, 2)[w.d : w.d + count, ..., int(s.high[1])] = bits


def _read_c(g: Waves, n: int, s: Shape) -> np.ndarray:
    block = g.V[n : n + s.registers_cd]
    if s.cd == "f32":
        return block.view(np.float32)
    if s.cd == "i32":
        return block.view(np.int32).astype(np.float64)
    halves = block.view(np.uint16).reshape(*block.shape, 2)
    bits = halves.transpose(0, 3, 1, 2).reshape(-1, *block.shape[1:]) if s.gfx12 else halves[..., int(s.high[0])]
    return np.ascontiguousarray(bits).view(np.float16).astype(np.float64) if s.cd == "f16" else _bf16_to_f64(bits)


def f64_to_bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 once to bf16 (nearest even), as bits.

    Rounding to odd on the way through float32 keeps the sticky bit, so the second rounding is the only one.
    """
    single = x.astype(np.float32)
    back = single.astype(np.float64)
    bits = single.view(np.uint32)
    inexact = (back != x) & np.isfinite(x) & np.isfinite(single)
    away = inexact & (np.abs(back) > np.abs(x))
    bits = np.where(away, bits - np.uint32(1), bits)
    bits = np.where(inexact, bits | np.uint32(1), bits)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def touched(ins: Instruction) -> tuple[set[int], set[int]]:
    """Vector registers that an instruction mentions, and those of them that it may write (its first operand's)."""
    mentioned: set[int] = set()
    written: set[int] = set()
    part: Instruction | None = ins
    while part is not None:
        for position, o in enumerate(part.operands):
            if o.kind == "v":
                span = range(o.index, o.index + o.count)
                mentioned.update(span)
                if position == 0 or "swap" in part.name:
                    written.update(span)
        part = part.second
    return mentioned, written



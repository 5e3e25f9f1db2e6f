"""WMMA and SWMMAC on gfx11 and gfx12: D = A B + C of 16x16 tiles spread over the lanes of a wave; of CDNA 5 (gfx1250)
the dense ones whose formats the name says (wmma3.py has the others).

Numerics: dense products of 16-bit floats add up as gfx1100 and gfx1201 do, step by step (wmma_sums.py). Of the others,
whose order nobody measured, every product is exact, the K products and C are summed in float64 and rounded once to D's
type (nearest even), and denormals are kept; integers are summed exactly and wrap, or saturate with clamp. EXEC and MODE
are ignored, but for FP16_OVFL by those that are summed in steps.
Layouts (RDNA 3 and RDNA 4 ISA guides; AMD matrix instruction calculator): l = lane, g = l / 16, e = element, v =
register.
gfx11  A[l%16][e], B[e][l%16]; D[2v + g][l%16] in wave32, [4v + g] in wave64; 16-bit C, D in one half (op_sel).
gfx12  with E elements a lane: A[l%16][E g + e], B[E g + e][l%16]; D[8g + e][l%16] in wave32, D[8(g%2) + 4(g/2) + e]
in wave64. Steps take four neighbouring elements of a lane, of all groups in turn, before the next four.
SWMMAC (gfx12) keeps two of every four k of A in a pair of elements; the pair's index, four bits of src2, says which:
bits 1:0 for the first, 3:2 for the second. index_key takes the pairs' indices from a later part of the register. With
clamp, integers of gfx12 saturate when the products of A's lanes 0 to 15 are added and again with the others, dense and
sparse (bjacob/goc, a CPU model of AMD's arithmetic, by values of gfx1201; once in rocjitsu).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.catalogue import instructions
from ..isa.parse import Instruction
from .alu import Step, Target
from .matrix_operands import Shape, Wmma
from .matrix_tiles import bf16_to_f64, decode_elements, f64_to_bf16, registers_to_tile, tile_to_registers
from .operands import constant
from .state import Waves
from .sums import rounds_once
from .wmma_sums import Factors, Sums, add_products, widened_half

_TYPES = "(f32|f16|bf16|iu8|iu4|fp8_fp8|fp8_bf8|bf8_fp8|bf8_bf8)"
NAME = re.compile(rf"v_(wmma|swmmac)_(f32|f16|bf16|i32)_16x16x(4|16|32|64|128)_{_TYPES}$")


def is_matrix(name: str) -> bool:
    """Whether a mnemonic is WMMA or SWMMAC."""
    return name.startswith(("v_wmma", "v_swmmac"))


def decode(ins: Instruction, target: Target) -> Wmma:
    """The matrix instruction in `ins`; raises UnknownInstructionError for one that the target lacks."""
    match = NAME.match(ins.name)
    if not match or not _exists(match, target):
        raise UnknownInstructionError(ins.name)
    gfx12 = target.gpu.wmma_version != 1
    sparse, cd, k, types = match[1] == "swmmac", match[2], int(match[3]), match[4]
    a, b = types.split("_") if "_" in types else (types, types)
    high = bool(ins.bits("op_sel", [0, 0, 0])[2]) and not gfx12
    in_steps = a in ("f16", "bf16") and not sparse and not target.gpu.is_cdna5
    sums = Sums(a == "bf16", cd, gfx12, target.mode.f16_overflow and cd == "f16") if in_steps else None
    shape = Shape(
        gfx12, target.lanes, k, a, b, cd, tuple(ins.bits("neg_lo", [0, 0, 0])), tuple(ins.bits("neg_hi", [0, 0, 0])),
        ins.flag("clamp"), high, sparse, ins.number("index_key"), sums,
    )  # fmt: skip
    d, x, y, c = ins.operands
    if sparse:
        return Wmma(shape, d.index, x.index, y.index, d.index, index=c.index)
    if c.kind == "v":
        return Wmma(shape, d.index, x.index, y.index, c.index)
    value = constant(c, cd)
    number = bf16_to_f64(value) if cd == "bf16" else value.astype(np.float64)
    return Wmma(shape, d.index, x.index, y.index, None, float(number))


def _exists(match: re.Match, target: Target) -> bool:
    if target.gpu.is_cdna5:
        return any(row.name == match[0] for row in instructions(target.gpu))
    kind, cd, k, types = match[1], match[2], int(match[3]), match[4]
    if target.gpu.wmma_version == 1 and (kind == "swmmac" or k > 16 or "_" in types):
        return False
    if kind == "swmmac":
        deep = k == 32 or (k == 64 and types == "iu4")
    else:
        deep = k == 16 or (k == 32 and types == "iu4")
    results = {"f16": ("f32", "f16"), "bf16": ("f32", "bf16"), "iu8": ("i32",), "iu4": ("i32",)}.get(types, ("f32",))
    return deep and cd in results


def build(pending: list[Wmma]) -> Step:
    """One step for a run of independent or chained matrix instructions of one shape.

    Tiles that share their A and B fragments are multiplied together in one batched product.
    """
    first = pending[0].shape
    if first.sparse:
        return _build_one_by_one(pending, _multiply_sparse)
    if first.gfx12 and first.cd == "i32" and first.clamp:
        return _build_one_by_one(pending, _multiply_by_halves)
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
        cache: dict = {}
        multiply = _multiply if first.sums is None or rounds_once() else _multiply_in_steps
        for plan in plans:
            for rows, columns, tiles in plan:
                multiply(g, rows, columns, tiles, cache)

    return step


def _build_one_by_one(pending: list[Wmma], multiply: Callable[[Waves, Wmma], None]) -> Step:
    def step(g: Waves) -> None:
        for w in pending:
            multiply(g, w)

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
            cache[key] = _in_rows(load_fragment(g, n, side, shape))
        return cache[key]

    a = [fragment("a", n) for n in rows]
    b = [fragment("b", n) for n in columns]
    left = a[0] if len(a) == 1 else np.concatenate(a, axis=1)
    right = b[0] if len(b) == 1 else np.concatenate(b, axis=1)
    product = np.matmul(left, right.transpose(0, 2, 1))  # [wave, 16 rows, 16 columns]
    for w, i, j in tiles:
        tile = product[:, 16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
        _accumulate(g, w, tile_to_registers(tile, shape.lanes, shape.gfx12))


def _multiply_in_steps(g: Waves, rows, columns, tiles, cache) -> None:
    shape = tiles[0][0].shape

    def factors(side: str, numbers: list[int]) -> Factors:
        key = (side, *numbers)
        if key not in cache:
            parts = [_factor_bits(g, n, side, shape) for n in numbers]
            cache[key] = Factors(np.concatenate(parts, axis=2), shape.sums)
        return cache[key]

    a, b = factors("a", rows), factors("b", columns)
    while tiles:
        alone = {(i, j): w for w, i, j in reversed(tiles)}  # of those with the same A and B, the first
        c = np.zeros((g.count, 16 * len(rows), 16 * len(columns)), np.float32)
        for (i, j), w in alone.items():
            c[:, 16 * i : 16 * i + 16, 16 * j : 16 * j + 16] = _addend(g, w)
        total = add_products(a, b, c)
        for (i, j), w in alone.items():
            tile = total[:, 16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
            _store(g, w, tile_to_registers(tile, shape.lanes, shape.gfx12))
        tiles = [x for x in tiles if alone[x[1:]] is not x[0]]


def _factor_bits(g: Waves, n: int, side: str, shape: Shape) -> np.ndarray:
    """The 16-bit floats of A or B, [K in the order of the steps, wave, row or column]."""
    index, groups = "ab".index(side), shape.groups(side)
    block = np.ascontiguousarray(g.V[n : n + shape.registers(side), :, : 16 * groups].transpose(1, 2, 0))
    bits = block.view(np.uint16).reshape(len(block), groups, 16, -1, 4)
    signs = np.array([shape.signs[index], shape.signs_high[index]] * 2, np.uint16) << np.uint16(15)
    return (bits ^ signs).transpose(3, 1, 4, 0, 2).reshape(-1, len(block), 16)


def _addend(g: Waves, w: Wmma) -> np.ndarray | np.float32:
    """C [wave, row, column] as float32; the modifiers of its sign change that bit alone, of a NaN too."""
    s = w.shape
    if w.c is None:
        bits = np.array(w.c_value, np.float32).view(np.uint32)
    elif s.cd == "f32":
        bits = g.V[w.c : w.c + s.registers_cd]
    else:
        halves = _halves(g, w.c, s)
        bits = widened_half(halves) if s.cd == "f16" else halves.astype(np.uint32) << np.uint32(16)
    if s.signs_high[2]:
        bits = bits & np.uint32(0x7FFFFFFF)
    if s.signs[2]:
        bits = bits ^ np.uint32(0x80000000)
    values = np.asarray(bits).view(np.float32)
    return values[()] if w.c is None else registers_to_tile(values, s.gfx12)


def _store(g: Waves, w: Wmma, values: np.ndarray) -> None:
    """Write D, float32 [e, wave, lane] that its type holds."""
    s = w.shape
    if s.cd == "f32":
        g.V.view(np.float32)[w.d : w.d + s.registers_cd] = values
    else:
        upper = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        _store_halves(g, w, values.astype(np.float16).view(np.uint16) if s.cd == "f16" else upper)


def _multiply_by_halves(g: Waves, w: Wmma) -> None:
    """Integers that saturate behind the products of each half of K."""
    s = w.shape
    a, b = load_fragment(g, w.a, "a", s), load_fragment(g, w.b, "b", s)  # [wave, group, row, e]
    for half, summand in enumerate((w, replace(w, c=w.d))):
        tile = np.matmul(_in_rows(a[:, half::2]), _in_rows(b[:, half::2]).transpose(0, 2, 1))
        _accumulate(g, summand, tile_to_registers(tile, s.lanes, s.gfx12))


def _in_rows(values: np.ndarray) -> np.ndarray:
    """[wave, group, row, e] -> [wave, row, K]."""
    waves, groups, rows, each = values.shape
    return values.transpose(0, 2, 1, 3).reshape(waves, rows, groups * each)


def _multiply_sparse(g: Waves, w: Wmma) -> None:
    """Each element of A takes the element of B that its index names; the others of the four are not read."""
    s = w.shape
    assert w.index is not None
    a, b = load_fragment(g, w.a, "a", s), load_fragment(g, w.b, "b", s)  # [wave, group, row, e]
    waves, groups, _, each = a.shape
    pairs = each // 2
    register = g.V[w.index].reshape(waves, -1, 16)[:, :groups, :, None]  # [wave, group, row, 1]
    first_bit = 4 * pairs * s.index_key
    bits = register >> (np.arange(first_bit, first_bit + 4 * pairs, 2, dtype=np.uint32)) & np.uint32(3)
    e = np.arange(each)
    four = _sparse_k(s, np.arange(groups)[:, None], 4 * (e // 2))  # [group, e]: the first of its four k
    k = _in_rows(four[None, :, None, :] + bits)  # [wave, row, e of all groups]
    in_order = np.empty((waves, s.k, 16))  # B
    at = _sparse_k(s, np.arange(b.shape[1])[:, None], np.arange(b.shape[3]))
    in_order[:, at] = b.transpose(0, 1, 3, 2)
    taken = in_order[np.arange(waves)[:, None, None], k]  # [wave, row, e of all groups, column]
    rows, of_half = _in_rows(a)[:, :, None, :], np.repeat(np.arange(groups) % 2, each)
    for part in [of_half == 0, of_half == 1] if s.cd == "i32" and s.clamp else [slice(None)]:
        tile = np.matmul(rows[..., part], taken[:, :, part])[:, :, 0]
        _accumulate(g, w, tile_to_registers(tile, s.lanes, s.gfx12))


def _sparse_k(s: Shape, group: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The k at which position `at` of a lane's part of the dense K lies."""
    if s.a in ("f16", "bf16"):
        return at % 8 + 16 * (at // 8) + 8 * group if s.lanes == 32 else 8 * group + at
    return s.k // 2 * (group % 2) + s.k // 4 * (group // 2) + at


def load_fragment(g: Waves, n: int, side: str, shape: Shape) -> np.ndarray:
    """A (or B transposed) as float64 [wave, group of lanes, 16, elements of a lane] from its registers."""
    kind, index = shape.kind(side), "ab".index(side)
    negate, negate_odd = shape.signs[index], shape.signs_high[index]
    count, groups = shape.registers(side), shape.groups(side)
    block = np.ascontiguousarray(g.V[n : n + count, :, : 16 * groups].transpose(1, 2, 0))  # [wave, lane, register]
    values = decode_elements(block, kind, bool(negate))
    if kind in ("f16", "bf16", "f32"):
        if negate:
            values[..., 0::2] *= -1
        if negate_odd:
            values[..., 1::2] *= -1
    return values.reshape(len(values), groups, 16, -1)


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
    if w.c is not None and not s.sparse:
        if s.signs_high[2]:
            c = np.abs(c)
        if s.signs[2]:
            c = -c
    total = np.add(product, c)
    if s.cd == "f32":
        np.copyto(g.V.view(np.float32)[w.d : w.d + count], total, casting="same_kind")
        return
    _store_halves(g, w, total.astype(np.float16).view(np.uint16) if s.cd == "f16" else f64_to_bf16(total))


def _store_halves(g: Waves, w: Wmma, bits: np.ndarray) -> None:
    s, count = w.shape, w.shape.registers_cd
    halves = g.V.view(np.uint16).reshape(*g.V.shape, 2)
    if s.gfx12:  # two elements per register
        halves[w.d : w.d + count] = np.stack([bits[0::2], bits[1::2]], axis=-1)
    else:
        halves[w.d : w.d + count, ..., int(s.high)] = bits


def _read_c(g: Waves, n: int, s: Shape) -> np.ndarray:
    block = g.V[n : n + s.registers_cd]
    if s.cd == "f32":
        return block.view(np.float32)
    if s.cd == "i32":
        return block.view(np.int32).astype(np.float64)
    bits = _halves(g, n, s)
    return bits.view(np.float16).astype(np.float64) if s.cd == "f16" else bf16_to_f64(bits)


def _halves(g: Waves, n: int, s: Shape) -> np.ndarray:
    """The 16-bit elements of C, [e, wave, lane]."""
    block = g.V[n : n + s.registers_cd]
    halves = block.view(np.uint16).reshape(*block.shape, 2)
    bits = halves.transpose(0, 3, 1, 2).reshape(-1, *block.shape[1:]) if s.gfx12 else halves[..., int(s.high)]
    return np.ascontiguousarray(bits)


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

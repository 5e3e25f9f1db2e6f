"""Vector and scalar instructions that CDNA 2 and 3 have and RDNA 3 lacks (their ISA guides, "Instructions")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.parse import M0, Instruction, Operand
from .alu import SCALAR, Step, Target, scalar, special, vector
from .bits import I32, I64, saturate
from .dots import elements
from .floating import multiply_dx9
from .mode import NEAREST, flush
from .operands import Read, constant_bits, modify, read, read_scalar, write
from .output_modifiers import output_modifier
from .rounding import ADD, FMA, MUL, add_f16, fma_f32, fma_f64, multiply_f16, nearest_only
from .state import U32, U64, Waves

# -- 64 bits -----------------------------------------------------------------------------------------------------------

vector("v_mov_b64", "u64", "u64", lambda x: x)
vector("v_lshl_add_u64", "u64", "u64 u32 u64", lambda x, n, c: (x << (n & U32(7)).astype(U64)) + c)
vector("v_fmac_f64", "f64", "f64 f64 f64", fma_f64, reads_dst=True, rounded=FMA["f64"])

# -- 16 bits -----------------------------------------------------------------------------------------------------------

vector("v_subrev_u16", "u16", "u16 u16", lambda a, b: b - a)


def _multiply_then_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return add_f16(multiply_f16(a, b), c)


def _rounded_twice(rounding: int) -> Callable:
    multiply, add = MUL["f16"](rounding), ADD["f16"](rounding)
    return lambda a, b, c: add(multiply(a, b), c)


_TWICE = {"rounded": _rounded_twice}
vector("v_mad_f16 v_mad_legacy_f16 v_madmk_f16 v_madak_f16", "f16", "f16 f16 f16", _multiply_then_add, **_TWICE)
vector("v_mac_f16", "f16", "f16 f16 f16", _multiply_then_add, reads_dst=True, **_TWICE)

# -- products and sums of CDNA 2 that round twice and flush denormals in every mode ------------------------------------


def _multiply_then_add_f32(multiply: Callable) -> Callable:
    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        a, b, c = (flush(x, "f32") for x in (a, b, c))
        return flush(flush(multiply(a, b), "f32") + c, "f32")

    return function


_ONCE = {"rounded": nearest_only}
vector("v_mad_f32 v_madmk_f32 v_madak_f32", "f32", "f32 f32 f32", _multiply_then_add_f32(np.multiply), **_ONCE)
vector("v_mac_f32", "f32", "f32 f32 f32", _multiply_then_add_f32(np.multiply), reads_dst=True, **_ONCE)
vector("v_mad_legacy_f32", "f32", "f32 f32 f32", _multiply_then_add_f32(multiply_dx9), **_ONCE)

# -- pairs of f32 in registers of 64 bits ------------------------------------------------------------------------------


def _read_single(operand: Operand, word: int, negate: bool) -> Read:
    """One f32 of a pair; a scalar pair has two as well, a constant is the same for both."""
    if operand.kind == "const":
        value = np.array(constant_bits(operand.value, "f32"), U32).view(np.float32)  # type: ignore[arg-type]
        return lambda g: modify(value, negate, False)
    n = operand.index + word
    if operand.kind == "v":
        return lambda g: modify(g.f[n], negate, False)
    return lambda g: modify(g.sv[n].view(np.float32), negate, False)


def _packed_single(
    nearest: Callable, directed: Callable[[int], Callable], count: int
) -> Callable[[Instruction, Target], Step]:
    """op_sel says which of a source's two feeds the low result, op_sel_hi which the high one."""

    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        sides = []
        for select, negate in (("op_sel", "neg_lo"), ("op_sel_hi", "neg_hi")):
            words, signs = ins.bits(select, [int(select == "op_sel_hi")] * count), ins.bits(negate, [0] * count)
            sides.append([_read_single(*x) for x in zip(texts, words, map(bool, signs), strict=True)])
        modify_result, flushes = output_modifier(ins, "f32", target), target.mode.flushes_inputs("f32")
        n, rounding = destination.index, target.mode.rounding("f32")
        function = nearest if rounding == NEAREST else directed(rounding)

        def step(g: Waves) -> None:
            results = []
            for readers in sides:
                values = [flush(r(g), "f32") if flushes else r(g) for r in readers]
                result = function(*values)
                results.append(result if modify_result is None else modify_result(result))
            for k, x in enumerate(results):
                g.put(n + k, np.broadcast_to(x, (g.count, g.lanes)).astype(np.float32, copy=False))

        return step

    return build


special("v_pk_fma_f32", _packed_single(fma_f32, FMA["f32"], 3))
special("v_pk_mul_f32", _packed_single(np.multiply, MUL["f32"], 2))
special("v_pk_add_f32", _packed_single(np.add, ADD["f32"], 2))


def _move_pair(ins: Instruction, target: Target) -> Step:
    """op_sel[0] picks the word of the first source for the low result, op_sel[1] that of the second for the high."""
    destination, *texts = ins.operands
    words = ins.bits("op_sel", [0, 0])
    low, high = (_read_single(text, word, False) for text, word in zip(texts, words, strict=True))
    n = destination.index

    def step(g: Waves) -> None:
        results = [np.array(np.broadcast_to(r(g).view(U32), (g.count, g.lanes))) for r in (low, high)]
        for k, x in enumerate(results):
            g.put(n + k, x)

    return step


special("v_pk_mov_b32", _move_pair)

# -- dot products ------------------------------------------------------------------------------------------------------


def _dot(bits: int, signed: bool = True) -> Callable:
    """The exact sum of products of `bits`, int64, on the accumulator."""

    def exact(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        total = c.astype(I64)
        for x, y in zip(elements(a, bits, signed), elements(b, bits, signed), strict=True):
            total = total + x.astype(I64) * y
        return total

    return exact


def _of_two(signed: bool) -> Callable[[Instruction, Target], Step]:
    """op_sel says which halves the first product takes, op_sel_hi those of the second."""
    exact, kind, to = _dot(16, signed), "i32" if signed else "u32", I32 if signed else U32

    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        places = list(zip(ins.bits("op_sel", [0, 0, 0]), ins.bits("op_sel_hi", [1, 1, 1]), strict=True))
        a, b = (_halves(read(text, "u32"), *place) for text, place in zip(texts[:2], places[:2], strict=True))
        c, store, clamps = read(texts[2], kind), write(destination, kind), ins.flag("clamp")

        def compute(g: Waves) -> np.ndarray:
            total = exact(a(g), b(g), np.asarray(c(g)))
            return saturate(total, to) if clamps else total.astype(to)

        return lambda g: store(g, compute(g))

    return build


def _halves(reader: Read, low: int, high: int) -> Read:
    """A register's halves as op_sel and op_sel_hi choose them."""
    if (low, high) == (0, 1):
        return reader
    return lambda g: (reader(g) >> U32(16 * low) & U32(0xFFFF)) | (reader(g) >> U32(16 * high)) << U32(16)


special("v_dot2_i32_i16", _of_two(signed=True))
special("v_dot2_u32_u16", _of_two(signed=False))
for _name, _exact in (("v_dot2c_i32_i16", _dot(16)), ("v_dot4c_i32_i8", _dot(8)), ("v_dot8c_i32_i4", _dot(4))):
    vector(_name, "i32", "u32 u32 i32", lambda a, b, c, exact=_exact: exact(a, b, c).astype(I32), reads_dst=True)

# -- scalars -----------------------------------------------------------------------------------------------------------


def _set_index(ins: Instruction, target: Target) -> Step:
    """M0[7:0] = the source, which cdna.py has moves between registers add; the mode in M0[15:12] is left out."""
    index = read_scalar(ins.operands[0], "u32")
    return lambda g: g.set_scalar(M0, np.broadcast_to(index(g) & U32(0xFF), (g.count,)))


special("s_set_gpr_idx_on s_set_gpr_idx_idx", _set_index)
for _bits in ("32", "64"):
    scalar(f"s_ff0_i32_b{_bits}", "i32", f"u{_bits}", lambda x, name=f"s_ctz_i32_b{_bits}": SCALAR[name][0].fn(~x))

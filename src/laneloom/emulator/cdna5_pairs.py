"""Pairs of FP64 and of 64-bit integers in registers of 128 bits, which gfx1251 adds to CDNA 5.

A scalar register pair or a constant is the same for both; nothing selects halves. neg_lo negates the first of a
source's pair, neg_hi the second. Sources: LLVM's definitions; rocjitsu (ROCm/rocm-systems), AMD's emulator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import Instruction, Operand
from .alu import Step, Target, special
from .floating import MAX_NUM, MIN_NUM
from .mode import NEAREST, flush
from .operands import Read, modify, read
from .output_modifiers import output_modifier
from .rounding import ADD, FMA, MUL, fma_f64
from .state import U32, U64, Waves

_MOST = (1 << 64) - 1


def _read_each(operand: Operand, kind: str, place: int, negate: bool = False) -> Read:
    """The first or second of a source's pair."""
    if operand.kind == "v":
        words = 1 if kind == "u32" else 2
        operand = Operand("v", operand.index + words * place, words)
    elif operand.kind == "s":
        operand = Operand("s", operand.index, 2)
    plain = read(operand, kind)
    return (lambda g: modify(plain(g), True, False)) if negate else plain


def _pairs(kind: str, sources: str, function_of: Callable[[Instruction, Target, int], Callable]) -> Callable:
    """A builder; function_of(instruction, target, place) -> what the first (0) or second (1) of the pair is."""
    kinds = sources.split()

    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        flushes = target.mode.flushes_inputs(kind)
        sides = []
        for place, sign in enumerate(("neg_lo", "neg_hi")):
            signs = ins.bits(sign, [0] * len(texts)) if kind == "f64" else [0] * len(texts)
            readers = [_read_each(o, k, place, bool(s)) for o, k, s in zip(texts, kinds, signs, strict=True)]
            sides.append((function_of(ins, target, place), readers))
        modifier = output_modifier(ins, kind, target)
        n = destination.index

        def step(g: Waves) -> None:
            results = []
            for function, readers in sides:
                values = [flush(r(g), kind) if flushes else r(g) for r in readers]
                result = function(*values)
                results.append(result if modifier is None else modifier(result))
            for k, x in enumerate(results):
                words = np.ascontiguousarray(np.broadcast_to(x, (g.count, g.lanes))).view(U32)
                words = words.reshape(g.count, g.lanes, 2)
                g.put(n + 2 * k, words[..., 0])
                g.put(n + 2 * k + 1, words[..., 1])

        return step

    return build


def _double(function: Callable, rounded: Callable[[int], Callable] | None = None) -> Callable:
    def function_of(ins: Instruction, target: Target, _place: int) -> Callable:
        rounding = target.mode.rounding("f64")
        return function if rounded is None or rounding == NEAREST else rounded(rounding)

    return function_of


special("v_pk_add_f64", _pairs("f64", "f64 f64", _double(np.add, ADD["f64"])))
special("v_pk_mul_f64", _pairs("f64", "f64 f64", _double(np.multiply, MUL["f64"])))
special("v_pk_fma_f64", _pairs("f64", "f64 f64 f64", _double(fma_f64, FMA["f64"])))
special("v_pk_max_num_f64", _pairs("f64", "f64 f64", _double(MAX_NUM)))
special("v_pk_min_num_f64", _pairs("f64", "f64 f64", _double(MIN_NUM)))


def _sum(of_second: int) -> Callable:
    """The exact sum or difference, wrapped or, with clamp, held to 64 bits."""

    def function_of(ins: Instruction, target: Target, place: int) -> Callable:
        bits = ins.bits("neg_hi" if place else "neg_lo", [0, 0])
        sign_a, sign_b = (-1 if bits[0] else 1), (-1 if bits[1] else 1) * of_second
        clamps = ins.flag("clamp")

        def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            if not clamps:
                return (a if sign_a > 0 else U64(0) - a) + (b if sign_b > 0 else U64(0) - b)
            exact = sign_a * np.asarray(a).astype(object) + sign_b * np.asarray(b).astype(object)
            return np.asarray(np.clip(exact, 0, _MOST)).astype(U64)

        return function

    return function_of


special("v_pk_add_nc_u64", _pairs("u64", "u64 u64", _sum(1)))
special("v_pk_sub_nc_u64", _pairs("u64", "u64 u64", _sum(-1)))


def _shift_then_add(ins: Instruction, target: Target, place: int) -> Callable:
    if ins.operands[2].kind == "s":
        raise UnknownInstructionError(f"{ins.text!r}: which of the pair is the second shift is documented nowhere")
    return lambda x, n, c: (x << (n & U32(7)).astype(U64)) + c


special("v_pk_lshl_add_u64", _pairs("u64", "u64 u32 u64", _shift_then_add))

"""Dot products of packed 16-, 8- and 4-bit elements with an accumulator.

Pairs of 16-bit floats are summed as the hardware of RDNA 3 and 4 does (`dot_pairs.py`). Other floats, and CDNA's, are
summed in the order of the guides' pseudo-code, accumulator first, each sum rounded to the result's type; products of
16-bit floats are exact in float32; CDNA 2 takes denormals for zeros, those of the sum and the result too. Integers are
summed exactly and wrap, or saturate with clamp.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import Instruction
from .alu import Step, Target, refuse_signs, special, store_step, vector_readers
from .bits import I32, I64, U32, saturate
from .dot_pairs import Kind, dot_pairs
from .dpp import lane_source
from .float8 import BF8_VALUES, FP8_VALUES
from .float16 import narrow_double, widen
from .mode import flush
from .operands import read, write
from .packed import read_halves
from .state import Waves

_U16 = np.uint16


def bf16_to_f32(x: np.ndarray) -> np.ndarray:
    """bfloat16 bits -> float32, exact."""
    return (x.astype(U32) << U32(16)).view(np.float32)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 -> bfloat16 bits, to nearest even; NaNs stay NaNs and become quiet."""
    raw = np.asarray(x).view(U32)
    rounded = (raw + U32(0x7FFF) + ((raw >> U32(16)) & U32(1))) >> U32(16)
    return np.where(np.isnan(x), (raw >> U32(16)) | U32(0x40), rounded).astype(_U16)


def flush_bf16(x: np.ndarray) -> np.ndarray:
    """bfloat16 bits, denormals as zeros of their sign."""
    return np.where(x & 0x7F80, x, x & 0x8000).astype(_U16)


_WIDEN: dict[str, Callable] = {"f16": widen, "bf16": bf16_to_f32}


def _of_pairs(kind: str, result: str, accumulates: bool) -> Callable[[Instruction, Target], Step]:
    widen = _WIDEN[kind]

    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        c = destination if accumulates else texts[2]
        lists = [ins.bits("op_sel", [0, 0, 0]), ins.bits("op_sel_hi", [1, 1, 1]),
                 ins.bits("neg_lo", [0, 0, 0]), ins.bits("neg_hi", [0, 0, 0])]  # fmt: skip
        packed_result = result != "f32"
        refuse_signs(ins, *texts[:2])
        if not {"mul", "div"}.isdisjoint(ins.modifiers):
            raise UnknownInstructionError(f"{ins.name} with omod is not implemented")
        if packed_result:  # VOP3: op_sel picks the halves of the accumulator and of the result
            lists[:2] = [[0] * 3, [1] * 3]
        a, b = (
            read_halves(text, kind, low, high, (negate_low, negate_high))
            for text, low, high, negate_low, negate_high in zip(texts[:2], *(x[:2] for x in lists), strict=True)
        )
        select = ins.bits("op_sel", [0, 0, 0, 0]) if packed_result else [0, 0, 0, 0]
        addend = read(c, result, bool(select[2]))
        source = lane_source(ins, target.lanes)
        if source is not None:
            signs = lists[2][0], lists[3][0]
            a = source.reader(a, signs if any(signs) else False)
        clamp = ins.flag("clamp")
        negate_c = not accumulates and bool(lists[2][2]) and not packed_result
        flushed = flush if target.gpu.flushes_denormals else lambda x, kind: x
        of = Kind(kind == "bf16", result == "f16", target.gpu.major == 12 or target.gpu.is_rdna_4m)

        def in_turn(g: Waves) -> np.ndarray:
            products = widen(flushed(a(g), kind)) * widen(flushed(b(g), kind))
            total = flushed(np.asarray(addend(g)), result)
            if negate_c:
                total = -total
            for k in range(2):
                product = products[..., k % products.shape[-1]]  # one product where op_sel takes the same halves twice
                if result == "f32":
                    total = total + product
                elif result == "f16":
                    total = narrow_double(widen(total).astype(np.float64) + product)
                else:
                    total = to_bf16(bf16_to_f32(total) + product)
            return total

        def together(g: Waves) -> np.ndarray:
            c = np.asarray(addend(g))
            pairs = [np.broadcast_to(x.view(_U16), (*x.shape[:-1], 2)) for x in (a(g), b(g))]
            if result == "bf16":  # the guides: to nearest even, denormals are zeros, whatever the mode says
                c, pairs = flush_bf16(c), [flush_bf16(x) for x in pairs]
            c = c if result == "f32" else widen(c)
            c = (-c if negate_c else c).view(U32)
            total = dot_pairs(pairs[0], pairs[1], c, of, target.mode.f16_overflow)
            if result == "bf16":
                return flush_bf16(to_bf16(total.view(np.float32)))
            return total.view(np.float32 if result == "f32" else np.float16)

        total_of = together if target.gpu.major in (11, 12) and not target.gpu.is_cdna5 else in_turn

        def compute(g: Waves) -> np.ndarray:
            total = total_of(g)
            if clamp and result != "bf16":
                total = np.fmin(np.fmax(total, total.dtype.type(0)), total.dtype.type(1))
            return flushed(total, result)

        return store_step(source, compute, write(destination, result, bool(select[3])))

    return build


special("v_dot2_f32_f16", _of_pairs("f16", "f32", False), dpp=True)
special("v_dot2_f32_bf16", _of_pairs("bf16", "f32", False), dpp=True)
special("v_dot2_f16_f16", _of_pairs("f16", "f16", False), dpp=True)
special("v_dot2_bf16_bf16", _of_pairs("bf16", "bf16", False), dpp=True)
special("v_dot2acc_f32_f16", _of_pairs("f16", "f32", True), dpp=True)
special("v_dot2acc_f32_bf16", _of_pairs("bf16", "f32", True), dpp=True)


def elements(x: np.ndarray, bits: int, signed: bool) -> list[np.ndarray]:
    """The 4-, 8- or 16-bit elements of uint32 as int32, lowest first."""
    if not signed:
        mask = U32((1 << bits) - 1)
        return [((x >> U32(k)) & mask).view(I32) for k in range(0, 32, bits)]
    return [(x << U32(32 - bits - k)).view(I32) >> I32(32 - bits) for k in range(0, 32, bits)]


def _of_integers(bits: int, signed_by_modifier: bool, signed: int = 0) -> Callable[[Instruction, Target], Step]:
    """signed_by_modifier: neg_lo says which operands are signed, and the sum is; `signed` is what it defaults to."""

    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        signs = ins.bits("neg_lo", [signed] * 3) if signed_by_modifier else [0, 0, 0]
        source = lane_source(ins, target.lanes)
        kinds = ["u32", "u32", "i32" if signed_by_modifier else "u32"]
        a, b, c = vector_readers(ins, texts, kinds, target, [0] * 3, source)
        clamp = ins.flag("clamp")
        accumulator = I32 if signed_by_modifier else U32

        def compute(g: Waves) -> np.ndarray:
            left, right = np.asarray(a(g)), np.asarray(b(g))
            total = np.asarray(c(g)).astype(I64)
            for x, y in zip(elements(left, bits, bool(signs[0])), elements(right, bits, bool(signs[1])), strict=True):
                total = total + x * y
            result = saturate(total, accumulator) if clamp else total.astype(accumulator)
            return result.view(U32)

        return store_step(source, compute, write(destination, "u32"))

    return build


special("v_dot4_i32_iu8", _of_integers(8, True), dpp=True)
special("v_dot8_i32_iu4", _of_integers(4, True), dpp=True)
special("v_dot4_i32_i8", _of_integers(8, True, signed=1), dpp=True)
special("v_dot8_i32_i4", _of_integers(4, True, signed=1), dpp=True)
special("v_dot4_u32_u8", _of_integers(8, False), dpp=True)
special("v_dot8_u32_u4", _of_integers(4, False), dpp=True)

_FLOAT8 = {"fp8": FP8_VALUES.astype(np.float32), "bf8": BF8_VALUES.astype(np.float32)}


def _of_float8(kind_a: str, kind_b: str) -> Callable[[Instruction, Target], Step]:
    values_a, values_b = _FLOAT8[kind_a], _FLOAT8[kind_b]

    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        source = lane_source(ins, target.lanes)
        a, b, c = vector_readers(ins, texts, ["u32", "u32", "f32"], target, [0] * 3, source)
        negate = bool(ins.bits("neg_lo", [0, 0, 0])[2])
        absolute = bool(ins.bits("neg_hi", [0, 0, 0])[2])

        def compute(g: Waves) -> np.ndarray:
            left, right, total = a(g), b(g), c(g)
            total = np.abs(total) if absolute else total
            total = -total if negate else total
            for k in range(0, 32, 8):
                total = total + values_a[(left >> U32(k)) & U32(0xFF)] * values_b[(right >> U32(k)) & U32(0xFF)]
            return total

        return store_step(source, compute, write(destination, "f32"))

    return build


for _a in ("fp8", "bf8"):
    for _b in ("fp8", "bf8"):
        special(f"v_dot4_f32_{_a}_{_b}", _of_float8(_a, _b), dpp=True)

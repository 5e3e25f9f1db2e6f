"""Packed 16-bit instructions (VOP3P): the same operation on both halves of the registers.

op_sel picks the half that feeds the low result, op_sel_hi the one for the high result; neg_lo and neg_hi change signs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import Instruction, Operand
from .alu import Step, Target, refuse_signs, special, store_step
from .bits import saturate, saturating
from .dpp import lane_source
from .float16 import stopping
from .floating import MAX_IEEE, MAX_NUM, MAXIMUM, MIN_IEEE, MIN_NUM, MINIMUM
from .mode import NEAREST, flush
from .operands import BITS, DTYPE, FLOATS, Read, constant_word, read
from .output_modifiers import output_modifier
from .rounding import ADD, FMA, MUL, add_f16, fma_f16, multiply_f16
from .state import U32, Waves

U16 = np.uint16
_BOTH = (0, 1)


def read_halves(operand: Operand, kind: str, low: int, high: int, negate: tuple[int, int] = (0, 0)) -> Read:
    """The halves `low` and `high` of a 32-bit operand as [wave, lane, 2] (or what broadcasts to it)."""
    flip = np.array([n << 15 for n in negate], U16) if any(negate) else None
    dtype = DTYPE[kind]
    pick: slice | list[int]
    if (low, high) == _BOTH:
        pick = slice(None)
    elif low == high:
        pick = slice(low, low + 1)
    else:
        pick = slice(None, None, -1)
    if operand.kind == "const":
        bits = constant_word(operand.value, kind)  # type: ignore[arg-type]
        pair = np.array([bits & 0xFFFF, bits >> 16], U16)[pick]
        value = (pair if flip is None else pair ^ flip).view(dtype)[None, None, :]
        return lambda g: value
    n = operand.index
    if operand.kind == "v":

        def halves(g: Waves) -> np.ndarray:
            return g.h[n]
    elif operand.kind == "s":

        def halves(g: Waves) -> np.ndarray:
            return np.ascontiguousarray(g.s[n]).view(U16).reshape(-1, 1, 2)
    else:
        words = read(operand, "b32")

        def halves(g: Waves) -> np.ndarray:
            return np.ascontiguousarray(words(g)).view(U16).reshape(*words(g).shape, 2)
    if flip is None:
        return lambda g: halves(g)[..., pick].view(dtype)
    return lambda g: (halves(g)[..., pick] ^ flip).view(dtype)


def write_halves(g: Waves, n: int, value: np.ndarray) -> None:
    """Write [wave, lane, 2] of a 16-bit type as one register."""
    full = np.ascontiguousarray(np.broadcast_to(value, (g.count, g.lanes, 2)))
    g.put(n, full.view(U32)[..., 0])


def packed(names: str, kind: str, count: int, fn: Callable, clamped: Callable | None = None, **options) -> None:
    """Declare packed operations of `count` sources of one 16-bit type.

    options: rounded (as in Op), ieee (the function under gfx11's IEEE mode), reads_dst.
    """
    rounded, ieee = options.get("rounded"), options.get("ieee")
    reads_dst = options.get("reads_dst", False)

    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        refuse_signs(ins, *texts)
        if reads_dst:
            texts.append(destination)
        if len(texts) != count:
            raise UnknownInstructionError(f"{ins.name} takes {count} sources, {len(texts)} given")
        lists = [ins.bits("op_sel", [0] * count), ins.bits("op_sel_hi", [1] * count),
                 ins.bits("neg_lo", [0] * count), ins.bits("neg_hi", [0] * count)]  # fmt: skip
        readers = []
        for operand, low, high, negate_low, negate_high in zip(texts, *lists, strict=True):
            reader = read_halves(operand, kind, low, high, (negate_low, negate_high))
            if target.mode.flushes_inputs(kind):
                reader = _flushed(reader, kind)
            readers.append(reader)
        function = fn
        if ieee is not None and target.mode.ieee and target.gpu.major < 12:
            function = ieee
        if rounded is not None and target.mode.round_16_64 != NEAREST:
            function = rounded(target.mode.round_16_64)
        if ins.flag("clamp") and kind not in FLOATS:
            if clamped is None:
                raise UnknownInstructionError(f"{ins.name} with clamp is not implemented")
            function = clamped
        if kind == "f16" and target.mode.f16_overflow:
            function = stopping(function)
        if kind == "bf16" and target.mode.f16_overflow:
            function = _stopping_bf16(function)
        source = lane_source(ins, target.lanes)
        if source is not None:
            signs = lists[2][0], lists[3][0]
            readers[0] = source.reader(readers[0], signs if any(signs) else False)
        modify = output_modifier(ins, kind, target)
        n = destination.index

        def compute(g: Waves) -> np.ndarray:
            value = function(*[r(g) for r in readers])
            return value if modify is None else modify(value)

        return store_step(source, compute, lambda g, value: write_halves(g, n, value))

    assert BITS[kind] == 16
    special(names, build, dpp=reads_dst)  # v_pk_fmac_f16 alone is VOP2, which has DPP


def stopped_bf16(code: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """Results in bf16 under MODE.FP16_OVFL: of finite sources, overflow stops at the largest number (rocjitsu)."""
    return np.where(finite & (code & U16(0x7FFF) == 0x7F80), code - U16(1), code)


def _stopping_bf16(function: Callable) -> Callable:
    def stopped(*sources: np.ndarray) -> np.ndarray:
        finite = np.logical_and.reduce(np.broadcast_arrays(*(x & U16(0x7F80) != 0x7F80 for x in sources)))
        return stopped_bf16(function(*sources), finite)

    return stopped


def _flushed(reader: Read, kind: str) -> Read:
    return lambda g: flush(reader(g), kind)


packed("v_pk_add_f16", "f16", 2, add_f16, rounded=ADD["f16"])
packed("v_pk_mul_f16", "f16", 2, multiply_f16, rounded=MUL["f16"])
packed("v_pk_fma_f16", "f16", 3, fma_f16, rounded=FMA["f16"])
packed("v_pk_fmac_f16", "f16", 3, fma_f16, rounded=FMA["f16"], reads_dst=True)
packed("v_pk_max_f16", "f16", 2, MAX_NUM, ieee=MAX_IEEE)
packed("v_pk_min_f16", "f16", 2, MIN_NUM, ieee=MIN_IEEE)
packed("v_pk_max_num_f16", "f16", 2, MAX_NUM)
packed("v_pk_min_num_f16", "f16", 2, MIN_NUM)
packed("v_pk_maximum_f16", "f16", 2, MAXIMUM)
packed("v_pk_minimum_f16", "f16", 2, MINIMUM)


def _multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return a * b + c


for _kind, _dtype in (("i16", np.int16), ("u16", U16)):

    def _saturating_multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype=_dtype) -> np.ndarray:
        return saturate(a.astype(np.int64) * b + c, dtype)

    packed(f"v_pk_add_{_kind}", _kind, 2, np.add, saturating(np.add, _dtype))
    packed(f"v_pk_sub_{_kind}", _kind, 2, np.subtract, saturating(np.subtract, _dtype))
    packed(f"v_pk_mad_{_kind}", _kind, 3, _multiply_add, _saturating_multiply_add)
    packed(f"v_pk_max_{_kind}", _kind, 2, np.maximum, np.maximum)
    packed(f"v_pk_min_{_kind}", _kind, 2, np.minimum, np.minimum)
packed("v_pk_mul_lo_u16", "u16", 2, np.multiply)
packed("v_pk_lshlrev_b16", "u16", 2, lambda n, x: x << (n & 15))
packed("v_pk_lshrrev_b16", "u16", 2, lambda n, x: x >> (n & 15))
packed("v_pk_ashrrev_i16", "i16", 2, lambda n, x: x >> (n & 15))

"""Vector instructions that CDNA 5 (gfx1250) adds: 64-bit integers, sums that are held to a bound, bfloat16,
permutations in groups of lanes, and the operations that only its dual-issue pairs have.

Sources: LLVM's definitions of the instructions and intrinsics; rocjitsu (ROCm/rocm-systems), AMD's emulator, which
follows the CDNA 5 ISA guide, and the tests of HIP that run on the hardware, for permutations and tables.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.bits_of_three import bits_of_three
from ..isa.parse import Instruction, Operand
from .alu import Step, Target, special, store_step, vector
from .bits import saturate
from .cdna4_alu import next_random
from .cdna4_stochastic import half_by_chance
from .dots import bf16_to_f32
from .dpp import lane_source
from .floating import MAX_NUM, MIN_NUM
from .half import mixed_operands
from .matrix_tiles import f64_to_bf16
from .mode import DOWN, NEAREST, UP, ZERO, Mode, flush
from .operands import DTYPE, Read, modify, read, read_scalar, write
from .output_modifiers import output_modifier
from .packed import packed, write_halves
from .rounding import FMA, directed, fma_f32, to_odd, two_sum_error
from .state import U32, U64, Waves
from .transcendental import FUNCTIONS

U16, I64 = np.uint16, np.int64

# -- integers ----------------------------------------------------------------------------------------------------------

_MOST = U64(0xFFFFFFFFFFFFFFFF)
vector("v_add_nc_u64", "u64", "u64 u64", np.add, clamped=lambda a, b: np.where(a > _MOST - b, _MOST, a + b))
vector("v_sub_nc_u64", "u64", "u64 u64", np.subtract, clamped=lambda a, b: np.where(a > b, a - b, U64(0)))
vector("v_mul_u64", "u64", "u64 u64", np.multiply)
for _kind in ("u64", "i64"):
    vector(f"v_min_{_kind}", _kind, f"{_kind} {_kind}", np.minimum)
    vector(f"v_max_{_kind}", _kind, f"{_kind} {_kind}", np.maximum)
vector("v_mad_u32", "u32", "u32 u32 u32", lambda a, b, c: a * b + c)


def _multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return a.astype(c.dtype) * b.astype(c.dtype) + c


def _held_u64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    total = _multiply_add(a, b, c)
    return np.where(total < c, _MOST, total)


def _held_i64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    product = a.astype(I64) * b.astype(I64)
    total = product + c
    return np.where((product ^ total) & (c ^ total) < 0, product >> I64(63) ^ I64((1 << 63) - 1), total)


vector("v_mad_nc_u64_u32", "u64", "u32 u32 u64", _multiply_add, clamped=_held_u64)
vector("v_mad_nc_i64_i32", "i64", "i32 i32 i64", _multiply_add, clamped=_held_i64)


def _add_then(choose: Callable, dtype: type) -> Callable:
    """The sum, saturated, then the larger or smaller of it and the third source."""
    return lambda a, b, c: choose(saturate(a.astype(I64) + b.astype(I64), dtype).astype(dtype), c)


for _kind, _dtype in (("u32", U32), ("i32", np.int32)):
    for _name, _choose in (("max", np.maximum), ("min", np.minimum)):
        _fn = _add_then(_choose, _dtype)
        vector(f"v_add_{_name}_{_kind}", _kind, f"{_kind} {_kind} {_kind}", _fn, clamped=_fn)
for _kind, _dtype in (("u16", U16), ("i16", np.int16)):
    for _name, _choose in (("max", np.maximum), ("min", np.minimum)):
        packed(f"v_pk_add_{_name}_{_kind}", _kind, 3, _add_then(_choose, _dtype))
        packed(f"v_pk_{_name}3_{_kind}", _kind, 3, lambda a, b, c, f=_choose: f(f(a, b), c))
packed("v_pk_max3_num_f16", "f16", 3, lambda a, b, c: MAX_NUM(MAX_NUM(a, b), c))
packed("v_pk_min3_num_f16", "f16", 3, lambda a, b, c: MIN_NUM(MIN_NUM(a, b), c))


def _saturate_to_nibbles(low: int, high: int, dtype: type) -> Callable:
    def function(x: np.ndarray) -> np.ndarray:
        total = U32(0)
        for k in range(4):
            held = np.clip((x >> U32(8 * k)).astype(np.uint8).view(dtype), low, high).view(np.uint8) & np.uint8(15)
            total = total | held.astype(U32) << U32(4 * k)
        return np.asarray(total, U32).astype(U16)

    return function


vector("v_sat_pk4_i4_i8", "u16", "u32", _saturate_to_nibbles(-8, 7, np.int8))
vector("v_sat_pk4_u4_u8", "u16", "u32", _saturate_to_nibbles(0, 15, np.uint8))

# -- bfloat16: computed in float64, rounded once -----------------------------------------------------------------------


def _wide(x: np.ndarray) -> np.ndarray:
    return bf16_to_f32(np.asarray(x)).astype(np.float64)


def _fma_bf16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    product, addend = np.broadcast_arrays(_wide(a) * _wide(b), _wide(c))
    total = product + addend
    return f64_to_bf16(to_odd(total, two_sum_error(product, addend, total)))


def _rounded(function: Callable) -> Callable:
    return lambda *x: f64_to_bf16(np.asarray(function(*(_wide(v) for v in x))))


def _one_of_two(function: Callable) -> Callable:
    """A minimum or maximum, whose result needs no rounding."""
    return lambda a, b: f64_to_bf16(function(*np.broadcast_arrays(_wide(a), _wide(b))))


packed("v_pk_add_bf16", "bf16", 2, lambda a, b: _fma_bf16(a, np.full_like(a, 0x3F80), b))
packed("v_pk_mul_bf16", "bf16", 2, _rounded(np.multiply))
packed("v_pk_fma_bf16", "bf16", 3, _fma_bf16)
packed("v_pk_max_num_bf16", "bf16", 2, _one_of_two(MAX_NUM))
packed("v_pk_min_num_bf16", "bf16", 2, _one_of_two(MIN_NUM))
for _name, _function in (*FUNCTIONS.items(), ("tanh", np.tanh)):
    vector(f"v_{_name}_bf16", "bf16", "bf16", _rounded(_function))
vector("v_tanh_f32", "f32", "f32", lambda x: np.tanh(x.astype(np.float64)).astype(np.float32))
vector("v_tanh_f16", "f16", "f16", lambda x: np.tanh(x.astype(np.float64)).astype(np.float16))


def _mixed_source(operand: Operand, is_half: int, high: int, mode: Mode) -> Read:
    """A source of v_fma_mix: f32, or one half of the register as bf16."""
    if not is_half:
        whole = read(operand, "f32")
        return (lambda g: flush(whole(g), "f32")) if mode.flushes_inputs("f32") else whole
    plain = Operand(operand.kind, operand.index, operand.count, operand.value, half=operand.half)
    inner, signs = read(plain, "bf16", bool(high)), (operand.negate, operand.absolute)
    return lambda g: np.asarray(modify(bf16_to_f32(np.asarray(inner(g))), *signs))


def _mixed_function(kind: str, mode: Mode) -> Callable:
    """a * b + c of float32, rounded once: to f32, or to bf16 by the mode of the 16-bit types (rocjitsu)."""
    if kind == "f32":
        return fma_f32 if not mode.round_32 else FMA["f32"](mode.round_32)

    def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        product, addend = np.broadcast_arrays(np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64))
        total = product + addend
        code = _to_bf16(to_odd(total, two_sum_error(product, addend, total)), mode.round_16_64)
        if mode.round_16_64 == DOWN:  # a sum of zero is -0 unless both terms are +0
            code = np.where((total == 0) & (np.signbit(product) | np.signbit(addend)), U16(0x8000), code)
        denormal = code & U16(0x7F80) == 0
        return np.where(denormal, code & U16(0x8000), code) if mode.flushes_results("f32") else code

    return fma


def _to_bf16(x: np.ndarray, rounding: int) -> np.ndarray:
    if rounding == NEAREST:
        return f64_to_bf16(x)
    cut = directed(x, 0.0, np.float32, ZERO)
    bits = cut.view(U32)
    inexact = np.isfinite(x) & ((cut != x) | (bits & U32(0xFFFF) != 0))
    away = inexact & ((x > 0) if rounding == UP else (x < 0) if rounding == DOWN else False)
    code = (bits >> U32(16)) + away.astype(U32)
    return np.where(np.isnan(x), code | U32(0x40), code).astype(U16)


def _mixed(kind: str, high: bool) -> Callable[[Instruction, Target], Step]:
    """As v_fma_mix of f16: op_sel_hi says which sources are bf16, op_sel which half of them."""

    def build(ins: Instruction, target: Target) -> Step:
        destination = ins.operands[0]
        sources = mixed_operands(ins)
        a, b, c = (_mixed_source(*source, target.mode) for source in sources)
        fma = _mixed_function(kind, target.mode)
        modifier = output_modifier(ins, kind, target)
        source = lane_source(ins, target.lanes)
        if source is not None:
            a = source.reader(a, sources[0][0].negate)

        def compute(g: Waves) -> np.ndarray:
            r = fma(a(g), b(g), c(g))
            return r if modifier is None else modifier(r)

        return store_step(source, compute, write(destination, kind, high))

    return build


special("v_fma_mix_f32_bf16", _mixed("f32", False), dpp=True)
special("v_fma_mixlo_bf16", _mixed("bf16", False), dpp=True)
special("v_fma_mixhi_bf16", _mixed("bf16", True), dpp=True)

# -- tables ------------------------------------------------------------------------------------------------------------


def _looked_up(bits: int, first: str, second: str) -> Callable[[Instruction, Target], Step]:
    """16 fields of a table, the second source below the first, that the 4-bit numbers of the third name."""

    def build(ins: Instruction, target: Target) -> Step:
        high, low, numbers = (read(o, kind) for o, kind in zip(ins.operands[1:], (first, second, "u64"), strict=True))
        n = ins.operands[0].index

        def step(g: Waves) -> None:
            upper, lower, which = (np.asarray(r(g)).astype(U64) for r in (high, low, numbers))
            if second == "u32":
                lower, upper = lower | upper << U64(32), U64(0)
            out = [np.zeros((g.count, g.lanes), U64) for _ in range(bits // 2 + 1)]
            for k in range(16):
                at = U64(bits) * (which >> U64(4 * k) & U64(15))
                field = np.where(at < 64, lower >> at | upper << (U64(64) - at), upper >> (at - U64(64)))
                field = (field & U64((1 << bits) - 1)) << U64(bits * k % 32)
                out[bits * k // 32] |= field & U64(0xFFFFFFFF)
                out[bits * k // 32 + 1] |= field >> U64(32)
            for k, word in enumerate(out[:-1]):
                g.put(n + k, word.astype(U32))

        return step

    return build


for _bits, _first, _second in ((4, "u32", "u32"), (6, "u32", "u64"), (8, "u64", "u64")):
    special(f"v_perm_pk16_b{_bits}_u4", _looked_up(_bits, _first, _second))

# -- lanes -------------------------------------------------------------------------------------------------------------


def _in_group(choose: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Callable:
    """v_permlane_*: each lane reads another of its group; the third source is the group's width, a power of two.

    choose(place in the group, width, the second source) -> the place to read; outside of the group, its own. Inactive
    lanes give 0.
    """

    def build(ins: Instruction, target: Target) -> Step:
        destination, source, select, width = ins.operands
        value, n = read(source, "b32"), destination.index
        by, size = read_scalar(select, "u32"), read_scalar(width, "u32")
        lane = np.arange(target.lanes)

        def step(g: Waves) -> None:
            each = np.broadcast_to(size(g) & U32(63), (g.count,)).astype(I64)[:, None]
            each = np.where(each == 0, g.lanes, each)
            by_lanes = np.broadcast_to(by(g), (g.count,)).astype(I64)[:, None]
            place = lane % each
            wanted = choose(place, each, by_lanes)
            there = (wanted >= 0) & (wanted < each) & (lane - place + wanted < g.lanes)  # the last group may be in part
            wanted = np.where(there, wanted, place)
            x = np.broadcast_to(value(g), (g.count, g.lanes))
            if g.exec is not None:
                x = np.where(g.exec, x, U32(0))
            g.put(n, np.take_along_axis(x, lane - place + wanted, axis=1))

        return step

    return build


special("v_permlane_bcast_b32", _in_group(lambda place, each, by: place * 0 + ((by & 63) & (each - 1))))
special("v_permlane_up_b32", _in_group(lambda place, each, by: place - np.minimum(by, each)))
special("v_permlane_down_b32", _in_group(lambda place, each, by: place + np.minimum(by, each)))
special("v_permlane_xor_b32", _in_group(lambda place, each, by: np.where(by < 32, place ^ by, place)))


def _index(ins: Instruction, target: Target) -> Step:
    """The address with which ds_bpermute reads lane x of the group; the second source is the group's width."""
    destination, source, width = ins.operands
    value, size, n = read(source, "u32"), read_scalar(width, "u32"), destination.index
    lane = np.arange(target.lanes, dtype=U32)

    def step(g: Waves) -> None:
        mask = (np.broadcast_to(size(g), (g.count,))[:, None] - U32(1)) & U32(31)
        g.put(n, np.broadcast_to((value(g) & mask) + (lane & ~mask), (g.count, g.lanes)) << U32(2))

    return step


special("v_permlane_idx_gen_b32", _index)

# -- only in pairs -----------------------------------------------------------------------------------------------------


def _bits_of_two(ins: Instruction, target: Target) -> Step:
    """v_bitop3 without a third source."""
    table, (destination, *texts) = ins.number("bitop3"), ins.operands
    a, b = (read(text, "u32") for text in texts)
    store = write(destination, "u32")
    return lambda g: store(g, bits_of_three(table, np.asarray(a(g)), np.asarray(b(g)), np.zeros((), U32)))


special("v_bitop2_b32", _bits_of_two)


def _random_pair(kind: str) -> Callable[[Instruction, Target], Step]:
    """Two f32 to 16 bits by stochastic rounding; the second takes what v_prng_b32 makes of the bits (rocjitsu)."""

    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        values = [read(text, "f32") for text in texts[:2]]
        random, n = read(texts[2], "u32"), destination.index
        convert, modifier = half_by_chance(kind, target), output_modifier(ins, kind, target, flushes=False)

        def step(g: Waves) -> None:
            chance, halves = np.asarray(random(g)), []
            for value in values:
                code = convert(np.asarray(value(g), np.float64), chance)
                halves.append(np.broadcast_to(code, (g.count, g.lanes)))
                chance = next_random(chance)
            both = np.stack(halves, axis=-1).view(DTYPE[kind])
            write_halves(g, n, (both if modifier is None else modifier(both)).view(U16))

        return step

    return build


special("v_cvt_sr_pk_bf16_f32", _random_pair("bf16"))
special("v_cvt_sr_pk_f16_f32", _random_pair("f16"))

"""Strict mode: undefined bits through integer sums and products, which carry upwards only, and through counts of bits.

Compiled code leaves the upper half of a register undefined where it holds 16 or 8 bits, and adds whole registers: the
low bits of the sum depend on low bits alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..isa.parse import NULL, VCC, Instruction, Operand
from ..isa.registers import results
from .alu import Target
from .bits import reverse_bits
from .operands import constant_bits
from .shadow import FULL, Shadow
from .state import U32, U64, Waves
from .undefined_bits import bits_written

Rule = Callable[[Waves], None]
_HALF = U32(0xFFFF)


def value_of(g: Waves, operand: Operand, kind: str = "b32"):
    """The 32 bits of an operand: [wave, lane], [wave, 1] or a number."""
    if operand.kind == "v":
        return g.u[operand.index]
    if operand.kind == "s":
        return g.sv[operand.index]
    if operand.kind == "const" and isinstance(operand.value, int | float):
        return U32(constant_bits(operand.value, kind))
    return U32(0)


def scalar_word(g: Waves, operand: Operand, k: int):
    """(value, undefined bits) of word k of a scalar operand."""
    if operand.kind != "s":
        value = value_of(g, operand)
        if k and operand.kind == "const":
            value = U32(constant_bits(operand.value, "b64") >> 32) if isinstance(operand.value, int) else U32(0)
        return value, U32(0)
    n = operand.index + min(k, operand.count - 1)
    return g.s[n], U32(0) if n == NULL else g.shadow.S[n]


def halves_chosen(ins: Instruction) -> tuple[list[bool], bool]:
    """Of an instruction on 16 bits: whether each source's upper half is read, and the result's is written."""
    destination, *sources = ins.operands
    select = [*ins.bits("op_sel", [0] * 4), 0, 0, 0, 0]
    highs = [bool(select[k]) or o.half == "h" for k, o in enumerate(sources)]
    return highs, bool(select[len(sources)]) or destination.half == "h"


def _upwards(bits: Any) -> Any:
    """Every bit from the lowest that is set."""
    bits = np.asarray(bits, U32)
    return bits | np.negative(bits)


def _extended(bits: Any, by: int) -> Any:
    return (np.asarray(bits << U32(by), U32).view(np.int32) >> np.int32(by)).view(U32)


def _shifted(bits: Any, amount: tuple[Any, Any]) -> Any:
    return np.where((amount[1] & U32(31)) != 0, FULL, bits << (amount[0] & U32(31)))


def _of_all(*pairs):
    total = U32(0)
    for _, bits in pairs:
        total = total | bits
    return _upwards(total)


def _of_24_bits(a, b, *c):
    return _upwards((a[1] | b[1]) & U32(0xFFFFFF) | (c[0][1] if c else U32(0)))


def _first_from_below(a):
    """The number of the lowest set bit is known where that bit is, and nothing below it is not."""
    value, bits = np.asarray(a[0], U32) & ~a[1], np.asarray(a[1], U32)
    below = (value & np.negative(value)) - U32(1)  # all bits for 0
    return np.where((bits & below) != 0, FULL, U32(0))


def _first_from_above(a):
    value, bits = a
    return _first_from_below((reverse_bits(np.asarray(value, U32)), reverse_bits(np.asarray(bits, U32))))


# a pattern of names -> the undefined bits of the result, from (value, undefined bits) of each source
_WORDS: list[tuple[re.Pattern, Callable]] = [
    (re.compile(r"v_(add|sub|subrev)(_nc|_co|_co_ci)?_[ui]32|v_add3_u32|v_mul_lo_u32|v_xad_u32"), _of_all),
    (re.compile(r"v_(mul|mad)_[ui]32_[ui]24"), _of_24_bits),
    (re.compile(r"v_lshl_add_u32"), lambda a, b, c: _upwards(_shifted(a[1], b) | c[1])),
    (re.compile(r"v_bcnt_u32_b32"), lambda a, b: np.where(a[1] != 0, FULL, _upwards(b[1]))),
    (re.compile(r"v_(ctz_i32_b32|ffbl_b32)"), _first_from_below),
    (re.compile(r"v_(clz_i32_u32|ffbh_u32)"), _first_from_above),
    (re.compile(r"v_add_lshl_u32"), lambda a, b, c: _shifted(_upwards(a[1] | b[1]), c)),
]
_HALVES = re.compile(r"v_(add|sub)_nc_[ui]16|v_subrev_u16|v_mul_lo_u16|v_mad_[ui]16")
_PACKED = re.compile(r"v_pk_(add|sub|mul_lo|mad)_[ui]16")
_WIDE_SHIFT = re.compile(r"v_(?:(lshl|lshr)rev_b64|(ash)rrev_i64)")
_SCALARS: list[tuple[re.Pattern, Callable]] = [
    (re.compile(r"s_(add|sub)(_co)?_[ui]32|s_mul_i32|s_(addk|mulk)(_co)?_i32"), _of_all),
    (re.compile(r"s_lshl([1-4])_add_u32"), lambda a, b: _upwards(a[1] | b[1])),  # a bit too many, which is little
    (re.compile(r"s_ctz_i32_b32"), _first_from_below),
    (re.compile(r"s_clz_i32_u32"), _first_from_above),
    (re.compile(r"s_sext_i32_i16"), lambda a: _extended(a[1], 16)),
    (re.compile(r"s_sext_i32_i8"), lambda a: _extended(a[1], 24)),
    (re.compile(r"s_pack_ll_b32_b16"), lambda a, b: a[1] & _HALF | b[1] << U32(16)),
    (re.compile(r"s_pack_lh_b32_b16"), lambda a, b: a[1] & _HALF | b[1] & ~_HALF),
    (re.compile(r"s_pack_hl_b32_b16"), lambda a, b: a[1] >> U32(16) | b[1] << U32(16)),
    (re.compile(r"s_pack_hh_b32_b16"), lambda a, b: a[1] >> U32(16) | b[1] & ~_HALF),
]


def carry_rule(ins: Instruction, target: Target) -> Rule | None:
    """The rule of an integer sum or product; None for other instructions, and for saturating ones."""
    if "dpp" in ins.encoding or ins.flag("clamp"):
        return None
    if _HALVES.fullmatch(ins.name):
        return _halves_rule(ins, target)
    if ins.name == "v_pack_b32_f16":
        return _pack_rule(ins, target)
    if _PACKED.fullmatch(ins.name):
        return _packed_rule(ins)
    if ins.name.startswith("s_"):
        function = _find(_SCALARS, ins.name)
        return _scalar_rule(ins, function) if function else None
    if shift := _WIDE_SHIFT.fullmatch(ins.name):
        return _wide_shift_rule(ins, shift[1] or shift[2])
    function = _find(_WORDS, ins.name)
    return _word_rule(ins, target, function) if function else None


def _find(table: list[tuple[re.Pattern, Callable]], name: str) -> Callable | None:
    return next((function for pattern, function in table if pattern.fullmatch(name)), None)


def _word_rule(ins: Instruction, target: Target, function: Callable) -> Rule:
    count = results(ins)
    sources = ins.operands[count:]
    carries = "_co_ci_" in ins.name
    carry_in = sources[-1] if carries and len(sources) > 2 else Operand("s", VCC, target.lanes // 32)
    if carries:
        sources = sources[:2]

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        bits = function(*[(value_of(g, o), shadow.of(o)) for o in sources])
        if carries and carry_in.kind == "s":
            bits = np.where(shadow.mask(g, carry_in.index), FULL, bits)
        if count > 1 and ins.operands[1].kind == "s":
            shadow.put_mask(g, ins.operands[1].index, (bits != 0) & g.active())
        shadow.put(g, ins.operands[0].index, bits)

    return follow


def _wide_shift_rule(ins: Instruction, way: str) -> Rule:
    """64 bits moved by an amount of 6 bits."""
    destination, amount, source = ins.operands

    def words(g: Waves) -> Any:
        pair = [g.shadow.of(Operand(source.kind, source.index + k)) for k in range(2)]
        low, high = (np.asarray(word).astype(U64) for word in pair)
        return low | high << U64(32)

    def follow(g: Waves) -> None:
        by, bits = value_of(g, amount) & U32(63), words(g)
        by = np.asarray(by).astype(U64)
        moved = bits << by if way == "lshl" else bits >> by
        if way == "ash":
            moved = (bits.view(np.int64) >> by.astype(np.int64)).view(U64)
        moved = np.where((g.shadow.of(amount) & U32(63)) != 0, U64(0xFFFFFFFFFFFFFFFF), moved)
        g.shadow.put(g, destination.index, moved.astype(U32))
        g.shadow.put(g, destination.index + 1, (moved >> U64(32)).astype(U32))

    return follow


def _halves_rule(ins: Instruction, target: Target) -> Rule:
    destination, *sources = ins.operands
    highs, high = halves_chosen(ins)
    part = bits_written(ins, target.gpu.major)  # all where the other half is cleared, as on gfx9

    def follow(g: Waves) -> None:
        total = U32(0)
        for o, up in zip(sources, highs, strict=True):
            total = total | g.shadow.of(o, up)
        bits = _upwards(total) & _HALF
        g.shadow.put(g, destination.index, bits << U32(16) if high else bits, part)

    return follow


def _pack_rule(ins: Instruction, target: Target) -> Rule:
    """Bit by bit, but for the bit that makes NaNs quiet, and where what may be a denormal is flushed."""
    destination, *sources = ins.operands
    highs, _ = halves_chosen(ins)
    flushes = target.mode.flushes_inputs("f16")

    def half(g: Waves, o: Operand, up: bool) -> np.ndarray:
        x, bits = np.asarray(value_of(g, o), U32) >> U32(16 * up), g.shadow.of(o, up) & _HALF
        nan = (bits != 0) & ((x | bits) & U32(0x7C00) == 0x7C00)
        found = np.where(nan, bits | U32(0x200), bits)
        denormal = flushes & (bits != 0) & (x & ~bits & U32(0x7C00) == 0)
        return np.where(denormal, _HALF, found)

    def follow(g: Waves) -> None:
        low, high = (half(g, o, up) for o, up in zip(sources, highs, strict=True))
        g.shadow.put(g, destination.index, low | high << U32(16))

    return follow


def _packed_rule(ins: Instruction) -> Rule:
    destination, *sources = ins.operands
    lows, highs = ins.bits("op_sel", [0] * len(sources)), ins.bits("op_sel_hi", [1] * len(sources))

    def follow(g: Waves) -> None:
        halves = []
        for select in (lows, highs):
            total = U32(0)
            for o, up in zip(sources, select, strict=False):
                total = total | g.shadow.of(o, bool(up))
            halves.append(_upwards(total) & _HALF)
        g.shadow.put(g, destination.index, halves[0] | halves[1] << U32(16))

    return follow


def _scalar_rule(ins: Instruction, function: Callable) -> Rule:
    destination, *sources = ins.operands
    if ins.name.startswith(("s_addk", "s_mulk")):
        sources.append(destination)

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        bits = function(*[(value_of(g, o), shadow.of(o)) for o in sources])
        bits = np.broadcast_to(np.asarray(bits, U32), (g.count, 1))[:, 0].copy()
        shadow.put_scalar(destination.index, bits)
        if not ins.name.startswith(("s_mul", "s_sext", "s_pack", "s_c")):
            shadow.scc[...] = bits != 0

    return follow

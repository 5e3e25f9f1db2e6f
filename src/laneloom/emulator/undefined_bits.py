"""Strict mode: undefined bits through bitwise operations, and the bits of an operand that an instruction looks at."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..isa.bits_of_three import bits_of_three
from ..isa.parse import Instruction, Operand
from ..isa.registers import results
from . import sdwa
from .alu import KEEP_HALF, VECTOR
from .bits import reverse_bits
from .float8_convert import byte_number
from .operands import BITS
from .shadow import FULL
from .state import U32


def _and(x, ux, y, uy) -> tuple[Any, Any]:
    return x & y, (ux & (y | uy)) | (uy & (x | ux))


def _or(x, ux, y, uy) -> tuple[Any, Any]:
    return x | y, (ux & (~y | uy)) | (uy & (~x | ux))


def _xor(x, ux, y, uy) -> tuple[Any, Any]:
    return x ^ y, ux | uy


def _shift_left(amount, u_amount, x, ux):
    by = amount & U32(31)
    return x << by, np.where((u_amount & U32(31)) != 0, FULL, ux << by)


def _shift_right(amount, u_amount, x, ux):
    by = amount & U32(31)
    return x >> by, np.where((u_amount & U32(31)) != 0, FULL, ux >> by)


def _shift_right_signed(amount, u_amount, x, ux):
    by = (amount & U32(31)).astype(np.int32)
    moved = (np.asarray(ux).view(np.int32) >> by).view(U32)
    return x, np.where((u_amount & U32(31)) != 0, FULL, moved)


# name -> function of (value, undefined) pairs in operand order that gives (value, undefined)
BITWISE: dict[str, Callable] = {
    "v_and_b32": lambda a, b: _and(*a, *b),
    "v_or_b32": lambda a, b: _or(*a, *b),
    "v_xor_b32": lambda a, b: _xor(*a, *b),
    "v_xnor_b32": lambda a, b: _xor(*a, *b),
    "v_not_b32": lambda a: a,
    "v_mov_b32": lambda a: a,
    "v_or3_b32": lambda a, b, c: _or(*_or(*a, *b), *c),
    "v_xor3_b32": lambda a, b, c: _xor(*_xor(*a, *b), *c),
    "v_and_or_b32": lambda a, b, c: _or(*_and(*a, *b), *c),
    "v_lshlrev_b32": lambda a, b: _shift_left(*a, *b),
    "v_lshrrev_b32": lambda a, b: _shift_right(*a, *b),
    "v_ashrrev_i32": lambda a, b: _shift_right_signed(*a, *b),
    "v_lshl_or_b32": lambda a, b, c: _or(*_shift_left(*b, *a), *c),
    "v_bfrev_b32": lambda a: (a[0], reverse_bits(np.asarray(a[1], U32))),
    "v_bfi_b32": lambda a, b, c: (a[0], (a[1] & ((b[0] ^ c[0]) | b[1] | c[1])) | (a[0] & b[1]) | (~a[0] & c[1])),
}


def of_three(table: int) -> Callable:
    """The same for any function of two or three operands: undefined where what is undefined decides the result."""

    def function(*pairs):
        pairs = (*pairs, (U32(0), U32(0)))[:3]
        most, least = U32(0), FULL
        for n in range(8):
            filled = [np.asarray((x & ~u) | (u if n >> k & 1 else U32(0)), U32) for k, (x, u) in enumerate(pairs)]
            result = bits_of_three(table, *filled)
            most, least = most | result, least & result
        return least, most & ~least

    return function


def _inverted(pair) -> tuple[Any, Any]:
    return ~pair[0], pair[1]


_SCALAR: dict[str, Callable] = {
    "and": lambda a, b: _and(*a, *b), "nand": lambda a, b: _inverted(_and(*a, *b)),
    "or": lambda a, b: _or(*a, *b), "nor": lambda a, b: _inverted(_or(*a, *b)),
    "xor": lambda a, b: _xor(*a, *b), "xnor": lambda a, b: _inverted(_xor(*a, *b)),
    "and_not0": lambda a, b: _and(~a[0], a[1], b[0], b[1]), "and_not1": lambda a, b: _and(a[0], a[1], ~b[0], b[1]),
    "or_not0": lambda a, b: _or(~a[0], a[1], b[0], b[1]), "or_not1": lambda a, b: _or(a[0], a[1], ~b[0], b[1]),
    "not": _inverted, "mov": lambda a: a,
}  # fmt: skip
_SCALAR_NAME = re.compile(r"s_(n?and|n?or|xn?or|(?:and|or)_not[01]|not|mov)_(?:(?:save|wr)exec_)?b(?:32|64)")


def scalar_bitwise(name: str) -> Callable | None:
    """The same for scalar registers, one word at a time; EXEC is the second operand of the `_saveexec` forms."""
    match = _SCALAR_NAME.fullmatch(name)
    return _SCALAR[match[1]] if match else None


def _half_shift(towards_left: bool) -> Callable:
    def shifted(amount, x):
        by = amount[0] & U32(15)
        moved = x[1] << by & U32(0xFFFF) if towards_left else x[1] >> by
        return x[0], np.where((amount[1] & U32(15)) != 0, U32(0xFFFF), moved)

    return shifted


#: The same for halves of registers, each in the low 16 bits.
BITWISE_HALVES: dict[str, Callable] = {
    "v_and_b16": BITWISE["v_and_b32"],
    "v_or_b16": BITWISE["v_or_b32"],
    "v_xor_b16": BITWISE["v_xor_b32"],
    "v_not_b16": BITWISE["v_not_b32"],
    "v_lshlrev_b16": _half_shift(True),
    "v_lshrrev_b16": _half_shift(False),
}

_ALL, _LOW, _HIGH = 0xFFFFFFFF, 0xFFFF, 0xFFFF0000
#: name -> the bits of its first operands that an instruction looks at; of the others it looks at all
_LOOKS_AT: list[tuple[re.Pattern, tuple[int, ...]]] = [
    (re.compile(r"v_cvt_f32_ubyte0"), (0xFF,)),
    (re.compile(r"v_cvt_f32_ubyte1"), (0xFF00,)),
    (re.compile(r"v_cvt_f32_ubyte2"), (0xFF0000,)),
    (re.compile(r"v_cvt_f32_ubyte3"), (0xFF000000,)),
    (re.compile(r"v_cvt_off_f32_i4"), (0xF,)),
    (re.compile(r"v_(mul|mul_hi|mad)_[iu]32_[iu]24"), (0xFFFFFF, 0xFFFFFF)),
    (re.compile(r"v_bfm_b32"), (31, 31)),
    (re.compile(r"v_(lshr|ashr)rev_[bi]64"), (63,)),
]
#: what is built by itself and writes one half
_OWN_HALF = re.compile(
    r"v_fma_mixlo|v_cvt_pk_(fp8|bf8)_f(32|16)|v_cvt_f16_(fp8|bf8)|v_dot2_(f16_f16|bf16_bf16)|v_bitop3_b16"
)
_OWN_HALVES = re.compile(r"v_(max|min|max3|min3|minmax|maxmin|med3|maximum|minimum)\w*_f16|v_s_\w+_f16")


def sources_of(ins: Instruction) -> list[Operand]:
    """What an instruction reads, the destination last where it is one of its sources."""
    op = VECTOR.get(ins.name)
    sources = list(ins.operands[results(ins) :])
    if (op is not None and op.reads_dst) or re.match(r"v_pk_fmac|v_dot\dc?acc|v_dot\dc", ins.name):
        sources.append(ins.operands[0])
    return sources


def bits_read(ins: Instruction, sources: list[Operand]) -> list[int]:
    """Which bits of each source an instruction looks at, in each of its registers."""
    op = VECTOR.get(ins.name)
    kinds = op.src if op is not None and op.build is None else ()
    select, mixed = [*ins.bits("op_sel", [0] * 4), *[0] * len(sources)], ins.bits("op_sel_hi", [0] * 3)
    halves = [_HIGH if select[k] or o.half == "h" else _LOW for k, o in enumerate(sources)]
    if ins.name.startswith("v_fma_mix"):
        return [half if is_half else _ALL for half, is_half in zip(halves, mixed, strict=True)]
    if _OWN_HALVES.match(ins.name):
        return halves
    if decodes := re.match(r"v_cvt_(pk_)?f32_(fp8|bf8)", ins.name):
        width = 16 if decodes[1] else 8
        number = byte_number(ins, width) or int(sources[0].half == "h")
        return [((1 << width) - 1) << width * number]
    if re.match(r"v_dot2_(f16_f16|bf16_bf16)", ins.name):
        return [_ALL, _ALL, halves[2]]
    looks = next((bits for name, bits in _LOOKS_AT if name.match(ins.name)), ())
    looks += (_ALL,) * (len(sources) - len(looks))
    return [halves[k] if k < len(kinds) and BITS.get(kinds[k]) == 16 else looks[k] for k in range(len(sources))]


def halves_read(ins: Instruction, sources: list[Operand]) -> list[tuple[int, int]]:
    """Of a packed instruction: which half of each source makes the low half of the result, and which the high one."""
    lows, highs = ins.bits("op_sel", [0] * len(sources)), ins.bits("op_sel_hi", [1] * len(sources))
    return [(_HIGH if low else _LOW, _HIGH if high else _LOW) for low, high in zip(lows, highs, strict=False)]


def clears_half(ins: Instruction, major: int) -> bool:
    """Whether an instruction sets the half of its result's register that it has no result for to zero, as on gfx9."""
    op = VECTOR.get(ins.name)
    if major != 9 or op is None or op.build is not None or sdwa.is_sdwa(ins) or BITS.get(op.dst) != 16:
        return False
    return ins.name not in KEEP_HALF and "op_sel" not in ins.modifiers


def bits_written(ins: Instruction, major: int) -> int:
    """Which bits of its result's register an instruction writes, on a generation."""
    op, name = VECTOR.get(ins.name), ins.name
    if sdwa.is_sdwa(ins):
        first, bits = sdwa.selection(ins, "dst_sel")
        return ((1 << bits) - 1) << first if sdwa.preserves(ins) else _ALL
    clears = major == 9 and name not in KEEP_HALF and "op_sel" not in ins.modifiers
    if clears and op is not None and (op.build is None or _OWN_HALVES.match(name)):
        return _ALL
    if op is None or ins.second is not None or not ins.operands or ins.operands[0].kind != "v":
        return _ALL
    select = [*ins.bits("op_sel", [0] * 4), 0]
    if name.startswith("v_fma_mixhi"):
        return _HIGH
    if scaled := re.match(r"v_cvt_scalef32_(sr_)?(pk_)?(fp8|bf8|fp4)_b?f(16|32)$", name):
        if scaled[1] or scaled[3] == "fp4":
            return 0xFF << 8 * (select[2] + 2 * select[3])
        return _HIGH if select[len(ins.operands) - 1] else _LOW
    if re.match(r"v_cvt_scalef32_b?f16_(fp8|bf8)$", name):
        return _HIGH if select[2] else _LOW
    if re.match(r"v_cvt_sr_b?f16_f32", name):
        return _HIGH if select[2] else _LOW
    if re.match(r"v_cvt_sr_(fp8|bf8)", name):
        byte = ins.number("byte_sel") if "byte_sel" in ins.modifiers else select[2] + 2 * select[3]
        return 0xFF << 8 * byte
    own = _OWN_HALF.match(name) or _OWN_HALVES.match(name)
    if BITS.get(op.dst) != 16 and not own:
        return _ALL
    if op.build is None:  # op_sel's last bit is the result's; lane masks have none
        written = len(op.src) - op.reads_dst - (op.src[-1:] == ("mask",))
    else:
        written = len(ins.operands) - 1
    high = (select[written] and "mix" not in name) or ins.operands[0].half == "h"
    return _HIGH if high else _LOW

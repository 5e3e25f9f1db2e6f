"""Strict mode: undefined bits through bitwise operations, and the bits of an operand that an instruction looks at."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..isa.parse import Instruction
from .shadow import FULL
from .state import U32


def _and(x, ux, y, uy):
    return x & y, (ux & (y | uy)) | (uy & (x | ux))


def _or(x, ux, y, uy):
    return x | y, (ux & (~y | uy)) | (uy & (~x | ux))


def _xor(x, ux, y, uy):
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
    "v_bfi_b32": lambda a, b, c: (a[0], (a[1] & ((b[0] ^ c[0]) | b[1] | c[1])) | (a[0] & b[1]) | (~a[0] & c[1])),
}


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

#: name -> the bits of its first operands that an instruction looks at; of the others it looks at all
_READ: list[tuple[re.Pattern, tuple[int, ...]]] = [
    (re.compile(r"v_cvt_f32_ubyte0"), (0xFF,)),
    (re.compile(r"v_cvt_f32_ubyte1"), (0xFF00,)),
    (re.compile(r"v_cvt_f32_ubyte2"), (0xFF0000,)),
    (re.compile(r"v_cvt_f32_ubyte3"), (0xFF000000,)),
    (re.compile(r"v_cvt_off_f32_i4"), (0xF,)),
    (re.compile(r"v_(mul|mul_hi|mad)_[iu]32_[iu]24"), (0xFFFFFF, 0xFFFFFF)),
    (re.compile(r"v_bfm_b32"), (31, 31)),
    (re.compile(r"v_(lshr|ashr)rev_[bi]64"), (63,)),
]


def bits_read(ins: Instruction) -> list[int]:
    """The entry of an instruction in that table."""
    return list(next((bits for name, bits in _READ if name.match(ins.name)), ()))

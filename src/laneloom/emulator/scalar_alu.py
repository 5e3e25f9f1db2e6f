"""Scalar integer and bitwise instructions: one value per wave, condition in SCC."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .alu import scalar
from .bits import (
    I32,
    I64,
    U16,
    U32,
    U64,
    count_ones,
    extract_signed,
    extract_unsigned,
    leading_signs,
    leading_zeros,
    multiply_high_i32,
    multiply_high_u32,
    reverse_bits,
    trailing_zeros,
)  # fmt: skip

# -- moves and choices -------------------------------------------------------------------------------------------------

for _size in ("b32", "b64"):
    scalar(f"s_mov_{_size}", _size, _size, lambda a: a)
    scalar(f"s_cselect_{_size}", _size, f"{_size} {_size} scc", lambda a, b, scc: np.where(scc, a, b))
    scalar(f"s_cmov_{_size}", _size, f"{_size} {_size} scc", lambda a, old, scc: np.where(scc, a, old), reads_dst=True)


def _extended(a: np.ndarray) -> np.ndarray:
    """The 16-bit immediate of an SOPK instruction, which the text shows as signed or unsigned."""
    return a.astype(np.int16).astype(I32)


scalar("s_movk_i32", "i32", "i32", _extended)
scalar("s_cmovk_i32", "i32", "i32 i32 scc", lambda a, old, scc: np.where(scc, _extended(a), old), reads_dst=True)

# -- sums --------------------------------------------------------------------------------------------------------------


def _add_u32(a: np.ndarray, b: np.ndarray) -> tuple:
    total = a + b
    return total, total < a


def _add_carry(a: np.ndarray, b: np.ndarray, scc: np.ndarray) -> tuple:
    total = a.astype(U64) + b.astype(U64) + scc.astype(U64)
    return total.astype(U32), total >> U64(32) != 0


def _subtract_borrow(a: np.ndarray, b: np.ndarray, scc: np.ndarray) -> tuple:
    total = a.astype(I64) - b.astype(I64) - scc.astype(I64)
    return total.astype(U32), total < 0


def _add_i32(a: np.ndarray, b: np.ndarray) -> tuple:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _subtract_i32(a: np.ndarray, b: np.ndarray) -> tuple:
    total = a - b
    return total, ((a ^ b) & (a ^ total)) < 0


scalar("s_add_u32 s_add_co_u32", "u32", "u32 u32", _add_u32, "returned")
scalar("s_sub_u32 s_sub_co_u32", "u32", "u32 u32", lambda a, b: (a - b, a < b), "returned")
scalar("s_addc_u32 s_add_co_ci_u32", "u32", "u32 u32 scc", _add_carry, "returned")
scalar("s_subb_u32 s_sub_co_ci_u32", "u32", "u32 u32 scc", _subtract_borrow, "returned")
scalar("s_add_i32 s_add_co_i32", "i32", "i32 i32", _add_i32, "returned")
scalar("s_sub_i32 s_sub_co_i32", "i32", "i32 i32", _subtract_i32, "returned")
scalar(
    "s_addk_i32 s_addk_co_i32", "i32", "i32 i32", lambda k, old: _add_i32(old, _extended(k)), "returned", reads_dst=True
)
scalar("s_add_nc_u64", "u64", "u64 u64", np.add)
scalar("s_sub_nc_u64", "u64", "u64 u64", np.subtract)
for _k in (1, 2, 3, 4):

    def _shift_add(a: np.ndarray, b: np.ndarray, k: int = _k) -> tuple:
        total = (a.astype(U64) << U64(k)) + b.astype(U64)
        return total.astype(U32), total >> U64(32) != 0

    scalar(f"s_lshl{_k}_add_u32", "u32", "u32 u32", _shift_add, "returned")


def _absolute(a: np.ndarray) -> np.ndarray:
    return np.where(a < 0, -a, a)


scalar("s_abs_i32", "i32", "i32", _absolute, "nonzero")
scalar("s_absdiff_i32", "i32", "i32 i32", lambda a, b: _absolute(a - b), "nonzero")
for _kind in ("i32", "u32"):
    # SCC tells whether the first operand was taken; equal operands count as not taken for min, taken for max.
    scalar(f"s_min_{_kind}", _kind, f"{_kind} {_kind}", lambda a, b: (np.minimum(a, b), a < b), "returned")
    scalar(f"s_max_{_kind}", _kind, f"{_kind} {_kind}", lambda a, b: (np.maximum(a, b), a >= b), "returned")

# -- products ----------------------------------------------------------------------------------------------------------

scalar("s_mul_i32", "u32", "u32 u32", np.multiply)
scalar("s_mulk_i32", "i32", "i32 i32", lambda k, old: old * _extended(k), reads_dst=True)
scalar("s_mul_hi_u32", "u32", "u32 u32", multiply_high_u32)
scalar("s_mul_hi_i32", "i32", "i32 i32", multiply_high_i32)
scalar("s_mul_u64", "u64", "u64 u64", np.multiply)

# -- bitwise -----------------------------------------------------------------------------------------------------------

BITWISE: dict[str, Callable] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b), "xnor": lambda a, b: ~(a ^ b),
    "and_not1": lambda a, b: a & ~b, "or_not1": lambda a, b: a | ~b,
}  # fmt: skip


def _quads(x: np.ndarray) -> np.ndarray:
    """Bit 4k set where any bit of quad k is."""
    t = x.dtype.type
    any_bit = x | (x >> t(1)) | (x >> t(2)) | (x >> t(3))
    return any_bit & t(int("1" * (x.dtype.itemsize * 2), 16))


def _quad_mask(x: np.ndarray) -> np.ndarray:
    quads, out = _quads(x), x.dtype.type(0)
    for k in range(x.dtype.itemsize * 2):
        out = out | ((quads >> x.dtype.type(3 * k)) & x.dtype.type(1 << k))
    return out


def _replicate(x: np.ndarray) -> np.ndarray:
    """Each bit twice."""
    wide = x.astype(U64)
    for shift, mask in ((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F),
                        (2, 0x3333333333333333), (1, 0x5555555555555555)):  # fmt: skip
        wide = (wide | (wide << U64(shift))) & U64(mask)
    return wide | (wide << U64(1))


for _bits, _unsigned, _signed in ((32, "u32", "i32"), (64, "u64", "i64")):
    _b, _top, _one = f"b{_bits}", _bits - 1, {32: U32(1), 64: U64(1)}[_bits]
    for _name, _function in BITWISE.items():
        scalar(f"s_{_name}_{_b}", _b, f"{_b} {_b}", _function, "nonzero")
    scalar(f"s_not_{_b}", _b, _b, lambda a: ~a, "nonzero")
    scalar(f"s_brev_{_b}", _b, _b, reverse_bits)
    scalar(f"s_wqm_{_b}", _b, _b, lambda a: _quads(a) * a.dtype.type(15), "nonzero")
    scalar(f"s_quadmask_{_b}", _b, _b, _quad_mask, "nonzero")
    scalar(f"s_bcnt1_i32_{_b}", "u32", _b, lambda a: count_ones(a).astype(U32), "nonzero")
    scalar(f"s_bcnt0_i32_{_b}", "u32", _b, lambda a: count_ones(~a).astype(U32), "nonzero")
    scalar(f"s_ctz_i32_{_b}", "i32", _b, trailing_zeros)
    scalar(f"s_clz_i32_{_unsigned}", "i32", _unsigned, leading_zeros)
    scalar("s_cls_i32" if _bits == 32 else "s_cls_i32_i64", "i32", _signed, leading_signs)

    def _shift(function: Callable, top: int = _top) -> Callable:
        return lambda x, n: function(x, (n & U32(top)).astype(x.dtype))

    scalar(f"s_lshl_{_b}", _b, f"{_b} u32", _shift(np.left_shift), "nonzero")
    scalar(f"s_lshr_{_b}", _b, f"{_b} u32", _shift(np.right_shift), "nonzero")
    scalar(f"s_ashr_{_signed}", _signed, f"{_signed} u32", _shift(np.right_shift), "nonzero")

    def _field(extract: Callable, top: int = _top) -> Callable:
        return lambda x, s: extract(x, s & U32(top), (s >> U32(16)) & U32(0x7F))

    scalar(f"s_bfe_{_unsigned}", _unsigned, f"{_unsigned} u32", _field(extract_unsigned), "nonzero")
    scalar(f"s_bfe_{_signed}", _signed, f"{_signed} u32", _field(extract_signed), "nonzero")

    def _mask(width: np.ndarray, offset: np.ndarray, one=_one, top: int = _top) -> np.ndarray:
        t = one.dtype
        return ((one << (width & U32(top)).astype(t)) - one) << (offset & U32(top)).astype(t)

    scalar(f"s_bfm_{_b}", _b, "u32 u32", _mask)

    def _bit(place: np.ndarray, one=_one, top: int = _top) -> np.ndarray:
        return one << (place & U32(top)).astype(one.dtype)

    scalar(f"s_bitset0_{_b}", _b, f"u32 {_b}", lambda n, old, bit=_bit: old & ~bit(n), reads_dst=True)
    scalar(f"s_bitset1_{_b}", _b, f"u32 {_b}", lambda n, old, bit=_bit: old | bit(n), reads_dst=True)
    scalar(f"s_bitcmp0_{_b}", "", f"{_b} u32", lambda x, n, bit=_bit: (None, x & bit(n) == 0), "returned")
    scalar(f"s_bitcmp1_{_b}", "", f"{_b} u32", lambda x, n, bit=_bit: (None, x & bit(n) != 0), "returned")
scalar("s_bitreplicate_b64_b32", "b64", "b32", _replicate)
scalar("s_sext_i32_i8", "i32", "i32", lambda a: a.astype(np.int8).astype(I32))
scalar("s_sext_i32_i16", "i32", "i32", lambda a: a.astype(np.int16).astype(I32))

for _name, (_low_high, _high_high) in {"ll": (0, 0), "lh": (0, 1), "hl": (1, 0), "hh": (1, 1)}.items():

    def _pack(a: np.ndarray, b: np.ndarray, a_high: int = _low_high, b_high: int = _high_high) -> np.ndarray:
        low = (a >> U32(16 * a_high)).astype(U16).astype(U32)
        return low | ((b >> U32(16 * b_high)).astype(U16).astype(U32) << U32(16))

    scalar(f"s_pack_{_name}_b32_b16", "b32", "b32 b32", _pack)

# -- compares: the result is SCC ---------------------------------------------------------------------------------------

_RELATIONS: dict[str, Callable] = {
    "eq": np.equal, "lg": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip

for _name, _relation in _RELATIONS.items():
    for _kind in ("i32", "u32"):
        scalar(f"s_cmp_{_name}_{_kind}", "", f"{_kind} {_kind}", lambda a, b, f=_relation: (None, f(a, b)), "returned")
    scalar(f"s_cmpk_{_name}_i32", "", "i32 i32", lambda a, k, f=_relation: (None, f(a, _extended(k))), "returned")
    scalar(f"s_cmpk_{_name}_u32", "", "u32 u32", lambda a, k, f=_relation: (None, f(a, k & U32(0xFFFF))), "returned")
scalar("s_cmp_eq_u64", "", "u64 u64", lambda a, b: (None, a == b), "returned")
scalar("s_cmp_lg_u64", "", "u64 u64", lambda a, b: (None, a != b), "returned")

# -- registers -----------------------------------------------------------------------------------------------------

# What a kernel may ever have is there from the start, so each request for more, or fewer, is granted.
scalar("s_alloc_vgpr", "", "u32", lambda wanted: (None, True), "returned")

"""Vector integer and bitwise instructions, 16 to 64 bits, without carry."""

from __future__ import annotations

import numpy as np

from ..isa.parse import Instruction
from .alu import Op, Target, build_vector, special, vector
from .bits import (
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    absolute_difference,
    byte_of,
    count_ones,
    extract_signed,
    extract_unsigned,
    leading_signs,
    leading_zeros,
    multiply_high_i32,
    multiply_high_u32,
    pack,
    permute_bytes,
    reverse_bits,
    saturate,
    saturating,
    trailing_zeros,
)  # fmt: skip

# -- moves and bitwise -------------------------------------------------------------------------------------------------

vector("v_mov_b32", "b32", "b32", np.positive)
vector("v_mov_b16", "b16", "b16", np.positive)
vector("v_cndmask_b32", "b32", "b32 b32 mask", lambda a, b, m: np.where(m, b, a))
vector("v_cndmask_b16", "b16", "b16 b16 mask", lambda a, b, m: np.where(m, b, a))
for _kind in ("b16", "b32"):
    vector(f"v_not_{_kind}", _kind, _kind, np.invert)
    vector(f"v_and_{_kind}", _kind, f"{_kind} {_kind}", np.bitwise_and)
    vector(f"v_or_{_kind}", _kind, f"{_kind} {_kind}", np.bitwise_or)
    vector(f"v_xor_{_kind}", _kind, f"{_kind} {_kind}", np.bitwise_xor)
vector("v_xnor_b32", "b32", "b32 b32", lambda a, b: ~(a ^ b))
vector("v_or3_b32", "b32", "b32 b32 b32", lambda a, b, c: a | b | c)
vector("v_and_or_b32", "b32", "b32 b32 b32", lambda a, b, c: (a & b) | c)
vector("v_xor3_b32", "b32", "b32 b32 b32", lambda a, b, c: a ^ b ^ c)
vector("v_bfi_b32", "b32", "b32 b32 b32", lambda a, b, c: (a & b) | (~a & c))
vector("v_bfm_b32", "u32", "u32 u32", lambda a, b: ((U32(1) << (a & 31)) - U32(1)) << (b & 31))
vector("v_bfe_u32", "u32", "u32 u32 u32", lambda x, o, w: extract_unsigned(x, o & 31, w & 31))
vector("v_bfe_i32", "i32", "i32 u32 u32", lambda x, o, w: extract_signed(x, o & 31, w & 31))
vector("v_bfrev_b32", "b32", "b32", reverse_bits)
vector("v_bcnt_u32_b32", "u32", "u32 u32", lambda a, b: count_ones(a) + b)
vector("v_clz_i32_u32", "i32", "u32", leading_zeros)
vector("v_ctz_i32_b32", "i32", "u32", trailing_zeros)
vector("v_cls_i32", "i32", "i32", leading_signs)
vector("v_perm_b32", "b32", "b32 b32 b32", permute_bytes)


def _pack_canonical(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two float16 as one word, NaNs quiet: more than 0x7C00 without the sign, and their bit 9 is set."""
    word = pack(low, high)
    nan = word & U32(0x7FFF7FFF)
    nan += U32(0x03FF03FF)
    nan &= U32(0x80008000)
    nan >>= U32(6)
    return word | nan


# LLVM takes it for canonical halves alone (`is_canonicalized_2`): it quiets NaNs, and flushes as the mode says.
vector("v_pack_b32_f16", "b32", "f16 f16", _pack_canonical, halves="f16")


def _align(a: np.ndarray, b: np.ndarray, shift: np.ndarray) -> np.ndarray:
    # A shift by 32 gives 0 in numpy, so that a shift of 0 gives b.
    return (b >> shift) | (a << (U32(32) - shift))


vector("v_alignbit_b32", "u32", "u32 u32 u16", lambda a, b, s: _align(a, b, s.astype(U32) & 31))
vector("v_alignbyte_b32", "u32", "u32 u32 u16", lambda a, b, s: _align(a, b, (s.astype(U32) & 3) * U32(8)))

# -- shifts: the count comes first -------------------------------------------------------------------------------------

vector("v_lshlrev_b32", "u32", "u32 u32", lambda n, x: x << (n & 31))
vector("v_lshrrev_b32", "u32", "u32 u32", lambda n, x: x >> (n & 31))
vector("v_ashrrev_i32", "i32", "i32 i32", lambda n, x: x >> (n & 31))
vector("v_lshlrev_b16", "u16", "u16 u16", lambda n, x: x << (n & 15))
vector("v_lshrrev_b16", "u16", "u16 u16", lambda n, x: x >> (n & 15))
vector("v_ashrrev_i16", "i16", "i16 i16", lambda n, x: x >> (n & 15))
vector("v_lshlrev_b64", "u64", "u32 u64", lambda n, x: x << (n & 63).astype(U64))
vector("v_lshrrev_b64", "u64", "u32 u64", lambda n, x: x >> (n & 63).astype(U64))
vector("v_ashrrev_i64", "i64", "u32 i64", lambda n, x: x >> (n & 63).astype(I64))
vector("v_lshl_add_u32", "u32", "u32 u32 u32", lambda x, n, c: (x << (n & 31)) + c)
vector("v_add_lshl_u32", "u32", "u32 u32 u32", lambda a, b, n: (a + b) << (n & 31))
vector("v_lshl_or_b32", "u32", "u32 u32 u32", lambda x, n, c: (x << (n & 31)) | c)

# -- sums --------------------------------------------------------------------------------------------------------------

for _kind, _dtype in (("u32", U32), ("i32", I32), ("u16", U16), ("i16", np.int16)):
    _two = f"{_kind} {_kind}"
    vector(f"v_add_nc_{_kind}", _kind, _two, np.add, clamped=saturating(np.add, _dtype))
    vector(f"v_sub_nc_{_kind}", _kind, _two, np.subtract, clamped=saturating(np.subtract, _dtype))
_subtract_u32 = saturating(np.subtract, U32)
vector("v_subrev_nc_u32", "u32", "u32 u32", lambda a, b: b - a, clamped=lambda a, b: _subtract_u32(b, a))
vector("v_add3_u32", "u32", "u32 u32 u32", lambda a, b, c: a + b + c)
vector("v_xad_u32", "u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c)

# -- products ----------------------------------------------------------------------------------------------------------


def _unsigned24(x: np.ndarray) -> np.ndarray:
    return x & U32(0xFFFFFF)


def _signed24(x: np.ndarray) -> np.ndarray:
    return (x << I32(8)) >> I32(8)


def _multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return a * b + c


def _saturating_multiply_add(dtype: type):
    info = np.iinfo(dtype)

    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        wide = a.astype(I64) * b.astype(I64) + c.astype(I64)
        return np.clip(wide, info.min, info.max).astype(dtype)

    return function


vector("v_mul_lo_u32", "u32", "u32 u32", np.multiply)
vector("v_mul_hi_u32", "u32", "u32 u32", multiply_high_u32)
vector("v_mul_hi_i32", "i32", "i32 i32", multiply_high_i32)
vector("v_mul_lo_u16", "u16", "u16 u16", np.multiply)
vector("v_mul_hi_u32_u24", "u32", "u32 u32", lambda a, b: multiply_high_u32(_unsigned24(a), _unsigned24(b)))
vector("v_mul_hi_i32_i24", "i32", "i32 i32", lambda a, b: multiply_high_i32(_signed24(a), _signed24(b)))
_clamped_u32, _clamped_i32 = _saturating_multiply_add(U32), _saturating_multiply_add(I32)
vector(
    "v_mul_u32_u24", "u32", "u32 u32", lambda a, b: _unsigned24(a) * _unsigned24(b),
    clamped=lambda a, b: _clamped_u32(_unsigned24(a), _unsigned24(b), np.zeros_like(b)),
)  # fmt: skip
vector(
    "v_mul_i32_i24", "i32", "i32 i32", lambda a, b: _signed24(a) * _signed24(b),
    clamped=lambda a, b: _clamped_i32(_signed24(a), _signed24(b), np.zeros_like(b)),
)  # fmt: skip
vector(
    "v_mad_u32_u24", "u32", "u32 u32 u32", lambda a, b, c: _unsigned24(a) * _unsigned24(b) + c,
    clamped=lambda a, b, c: _clamped_u32(_unsigned24(a), _unsigned24(b), c),
)  # fmt: skip
vector(
    "v_mad_i32_i24", "i32", "i32 i32 i32", lambda a, b, c: _signed24(a) * _signed24(b) + c,
    clamped=lambda a, b, c: _clamped_i32(_signed24(a), _signed24(b), c),
)  # fmt: skip
vector("v_mad_u16", "u16", "u16 u16 u16", _multiply_add, clamped=_saturating_multiply_add(U16))
vector("v_mad_i16", "i16", "i16 i16 i16", _multiply_add, clamped=_saturating_multiply_add(np.int16))
vector("v_mad_u32_u16", "u32", "u16 u16 u32", lambda a, b, c: a.astype(U32) * b.astype(U32) + c, clamped=_clamped_u32)
vector("v_mad_i32_i16", "i32", "i16 i16 i32", lambda a, b, c: a.astype(I32) * b.astype(I32) + c, clamped=_clamped_i32)

# -- order -------------------------------------------------------------------------------------------------------------


def _median(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


for _kind in ("u32", "i32", "u16", "i16"):
    _two, _three = f"{_kind} {_kind}", f"{_kind} {_kind} {_kind}"
    vector(f"v_min_{_kind}", _kind, _two, np.minimum)
    vector(f"v_max_{_kind}", _kind, _two, np.maximum)
    for _name, _fn in (
        ("min3", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
        ("max3", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
        ("med3", _median),
    ):
        vector(f"v_{_name}_{_kind}", _kind, _three, _fn, clamped=_fn)  # one of the sources: nothing to clamp
for _kind in ("u32", "i32"):
    _three = f"{_kind} {_kind} {_kind}"
    vector(f"v_minmax_{_kind}", _kind, _three, lambda a, b, c: np.maximum(np.minimum(a, b), c))
    vector(f"v_maxmin_{_kind}", _kind, _three, lambda a, b, c: np.minimum(np.maximum(a, b), c))

# -- sums of absolute differences --------------------------------------------------------------------------------------


def _byte_differences(a: np.ndarray, b: np.ndarray, masked: bool) -> np.ndarray:
    total = U32(0)
    for k in range(4):
        x, y = byte_of(a, k), byte_of(b, k)
        difference = absolute_difference(x, y)
        total = total + (np.where(y == 0, U32(0), difference) if masked else difference)
    return np.asarray(total)


def _half_differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return absolute_difference(a & U32(0xFFFF), b & U32(0xFFFF)) + absolute_difference(a >> U32(16), b >> U32(16))


def _lerp(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    total = U32(0)
    for k in range(4):
        total = total | (((byte_of(a, k) + byte_of(b, k) + (byte_of(c, k) & U32(1))) >> U32(1)) << U32(8 * k))
    return np.asarray(total)


def _saturate_pair(x: np.ndarray) -> np.ndarray:
    low, high = saturate(x.astype(np.int16), U8), saturate((x >> U32(16)).astype(np.int16), U8)
    return low.astype(U16) | (high.astype(U16) << U16(8))


_three = "u32 u32 u32"
_add_u32 = saturating(np.add, U32)
for _name, _differences in (
    ("v_sad_u8", lambda a, b: _byte_differences(a, b, False)),
    ("v_sad_hi_u8", lambda a, b: _byte_differences(a, b, False) << U32(16)),
    ("v_msad_u8", lambda a, b: _byte_differences(a, b, True)),
    ("v_sad_u16", _half_differences),
    ("v_sad_u32", absolute_difference),
):
    vector(
        _name, "u32", _three, lambda a, b, c, fn=_differences: fn(a, b) + c,
        clamped=lambda a, b, c, fn=_differences: _add_u32(fn(a, b), c),
    )  # fmt: skip
vector("v_lerp_u8", "u32", _three, _lerp)
vector("v_sat_pk_u8_i16", "u16", "u32", _saturate_pair)


def _lane_count(ins: Instruction, target: Target):
    """v_mbcnt: how many bits of the mask lie below this lane, plus the second source; lo is lanes 0 to 31."""
    lane = np.arange(target.lanes)
    below = np.clip(lane - 32 if "_hi_" in ins.name else lane, 0, 32)
    mask = ((np.uint64(1) << below.astype(U64)) - U64(1)).astype(U32)[None, :]
    op = Op("u32", ("u32", "u32"), lambda bits, base: count_ones(bits & mask) + base)
    return build_vector(op, ins, target)


special("v_mbcnt_lo_u32_b32 v_mbcnt_hi_u32_b32", _lane_count, dpp=True)

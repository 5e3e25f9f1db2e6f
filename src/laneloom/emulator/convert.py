"""Conversions between number formats: rounded to nearest even or by the mode, saturating, NaN to 0 as integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from .alu import vector
from .bits import I32, U8, U16, U32, byte_of, pack, saturate
from .float16 import narrow, widen
from .floating import quieted
from .mode import DOWN, NEAREST, UP, ZERO
from .rounding import round_to
from .tininess import ITSELF, NARROWED

# -- between floats ----------------------------------------------------------------------------------------------------


def to_f16(rounding: int = NEAREST) -> Callable:
    """float32 -> float16."""
    if rounding == NEAREST:
        return narrow
    convert = round_to(np.float16, rounding)

    def function(x: np.ndarray) -> np.ndarray:
        r = convert(x)
        return quieted(r) if np.isnan(x).any() else r

    return function


vector("v_cvt_f16_f32", "f16", "f32", to_f16(), rounded=to_f16, exact=ITSELF)
vector("v_cvt_f32_f16", "f32", "f16", widen)
vector(
    "v_cvt_f32_f64", "f32", "f64", round_to(np.float32, 0), rounded=lambda r: round_to(np.float32, r), exact=NARROWED
)
vector("v_cvt_f64_f32", "f64", "f32", lambda x: x.astype(np.float64))
_towards_zero = to_f16(ZERO)
vector(
    "v_cvt_pk_rtz_f16_f32", "b32", "f32 f32", lambda a, b: pack(_towards_zero(a), _towards_zero(b)), halves="f16"
)

# -- integers to floats ------------------------------------------------------------------------------------------------

for _kind in ("i32", "u32"):
    vector(f"v_cvt_f32_{_kind}", "f32", _kind, round_to(np.float32, 0), rounded=lambda r: round_to(np.float32, r))
    vector(f"v_cvt_f64_{_kind}", "f64", _kind, lambda x: x.astype(np.float64))
for _kind in ("i16", "u16"):
    vector(f"v_cvt_f16_{_kind}", "f16", _kind, round_to(np.float16, 0), rounded=lambda r: round_to(np.float16, r))
vector("v_cvt_i32_i16", "i32", "i16", lambda x: x.astype(I32))
vector("v_cvt_u32_u16", "u32", "u16", lambda x: x.astype(U32))
for _k in range(4):
    vector(f"v_cvt_f32_ubyte{_k}", "f32", "u32", lambda x, k=_k: byte_of(x, k).astype(np.float32))
vector("v_cvt_off_f32_i4", "f32", "u32", lambda x: (((x & U32(15)) ^ U32(8)).astype(np.float32) - 8) / np.float32(16))

# -- floats to integers ------------------------------------------------------------------------------------------------


def to_integer(dtype: type) -> Callable:
    """Truncated towards zero, limited to the range of `dtype`, NaN to 0."""
    info = np.iinfo(dtype)

    def function(x: np.ndarray) -> np.ndarray:
        wide = np.clip(np.asarray(x, np.float64), info.min, info.max)
        nan = np.isnan(wide)
        return (np.where(nan, 0.0, wide) if nan.any() else wide).astype(dtype)

    return function


for _kind, _dtype in (("i32", I32), ("u32", U32)):
    for _source in ("f32", "f64"):
        vector(f"v_cvt_{_kind}_{_source}", _kind, _source, to_integer(_dtype))
vector("v_cvt_i16_f16", "i16", "f16", to_integer(np.int16))
vector("v_cvt_u16_f16", "u16", "f16", to_integer(U16))
_to_i32 = to_integer(I32)


def _by_sign(x: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """`whole` as an int32; a NaN is the largest number of its sign (rocjitsu, by values of gfx1201; LLVM chooses these
    instructions only where none can come).
    """
    result, nan = _to_i32(whole), np.isnan(x)
    info = np.iinfo(I32)
    return np.where(nan, np.where(np.signbit(x), info.min, info.max), result).astype(I32) if nan.any() else result


vector("v_cvt_floor_i32_f32", "i32", "f32", lambda x: _by_sign(x, np.floor(x)))
vector("v_cvt_nearest_i32_f32", "i32", "f32", lambda x: _by_sign(x, np.floor(x.astype(np.float64) + 0.5)))

# -- packed integers ---------------------------------------------------------------------------------------------------


def normalised(dtype: type) -> Callable:
    """A float limited to [-1, 1] or [0, 1] as a fraction of the largest `dtype`, rounded to nearest even."""
    largest = np.iinfo(dtype).max
    lowest = -1.0 if np.iinfo(dtype).min < 0 else 0.0

    def function(x: np.ndarray) -> np.ndarray:
        wide = np.asarray(x, np.float64)
        return np.rint(np.clip(np.where(np.isnan(wide), 0.0, wide), lowest, 1.0) * largest).astype(dtype)

    return function


for _kind, _dtype in (("i16", np.int16), ("u16", U16)):
    _norm, _plain = normalised(_dtype), to_integer(_dtype)
    vector(f"v_cvt_norm_{_kind}_f16", _kind, "f16", _norm)
    for _source in ("f16", "f32"):
        _two = f"{_source} {_source}"
        vector(f"v_cvt_pk_norm_{_kind}_{_source}", "b32", _two, lambda a, b, f=_norm: pack(f(a), f(b)))
    vector(f"v_cvt_pk_{_kind}_f32", "b32", "f32 f32", lambda a, b, f=_plain: pack(f(a), f(b)))
    _wide = _kind.replace("16", "32")
    vector(
        f"v_cvt_pk_{_kind}_{_wide}", "b32", f"{_wide} {_wide}",
        lambda a, b, t=_dtype: pack(saturate(a, t), saturate(b, t)),
    )  # fmt: skip

_to_u8 = to_integer(U8)


def _insert_byte(x: np.ndarray, place: np.ndarray, old: np.ndarray, whole: Callable = np.rint) -> np.ndarray:
    """AMD's guides do not say how the float is rounded. As MODE says (rocjitsu, measured on gfx1201), to nearest even
    also on GCN 2 (the shader recompiler of shadPS4) and gfx90c; other conversions to integers cut off."""
    shift = (place & U32(3)) * U32(8)
    return (old & ~(U32(0xFF) << shift)) | (_to_u8(whole(x)).astype(U32) << shift)


def _insert_rounded(rounding: int) -> Callable:
    return partial(_insert_byte, whole={UP: np.ceil, DOWN: np.floor, ZERO: np.trunc}[rounding])


for _name, _accumulates in (("v_cvt_pk_u8_f32", False), ("v_cvt_pkaccum_u8_f32", True)):
    vector(_name, "u32", "f32 u32 u32", _insert_byte, reads_dst=_accumulates, rounded=_insert_rounded)

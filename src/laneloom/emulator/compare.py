"""Vector compares: one bit per lane to an SGPR mask (v_cmp) or to EXEC (v_cmpx), 0 for inactive lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .alu import vector


def _unordered(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.isnan(a) | np.isnan(b)


def _not(relation: Callable) -> Callable:
    return lambda a, b: ~np.asarray(relation(a, b))


def less_or_greater(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a < b or a > b: false for NaN, unlike !=."""
    return np.less(a, b) | np.greater(a, b)


INTEGER_RELATIONS: dict[str, Callable] = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ne": np.not_equal, "ge": np.greater_equal,
}  # fmt: skip
FLOAT_RELATIONS: dict[str, Callable] = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "lg": less_or_greater, "ge": np.greater_equal,
    "o": _not(_unordered), "u": _unordered, "nge": _not(np.greater_equal), "nlg": _not(less_or_greater),
    "ngt": _not(np.greater), "nle": _not(np.less_equal), "neq": np.not_equal, "nlt": _not(np.less),
}  # fmt: skip


def _constant(value: bool) -> Callable:
    return lambda a, b: np.full(np.broadcast_shapes(np.shape(a), np.shape(b)), value)


_CONSTANT = {"f": _constant(False), "t": _constant(True)}

_SIGN = {"f16": (np.uint16, 10), "f32": (np.uint32, 23), "f64": (np.uint64, 52)}


def classify(kind: str) -> Callable:
    """Whether x belongs to one of the classes that a 10-bit mask selects.

    Bits: signalling NaN, quiet NaN, -infinity, -normal, -denormal, -0, +0, +denormal, +normal, +infinity.
    """
    unsigned, mantissa_bits = _SIGN[kind]
    exponent_bits = unsigned(0).itemsize * 8 - 1 - mantissa_bits
    top = (1 << exponent_bits) - 1

    def function(x: np.ndarray, classes: np.ndarray) -> np.ndarray:
        raw = np.asarray(x).view(unsigned)
        negative = (raw >> unsigned(mantissa_bits + exponent_bits)) != 0
        exponent = (raw >> unsigned(mantissa_bits)) & unsigned(top)
        fraction = raw & unsigned((1 << mantissa_bits) - 1)
        finite = np.where(exponent != 0, 8, np.where(fraction != 0, 7, 6))
        number = np.where(exponent == top, 9, finite)
        quiet = (fraction >> unsigned(mantissa_bits - 1)) != 0
        signed = np.where(negative, 11 - number, number)
        bit = np.where((exponent == top) & (fraction != 0), np.where(quiet, 1, 0), signed)
        return ((np.asarray(classes) >> bit.astype(classes.dtype)) & classes.dtype.type(1)) != 0

    return function


for _prefix, _dst in (("v_cmp", "mask"), ("v_cmpx", "exec")):
    for _kind in ("i16", "u16", "i32", "u32", "i64", "u64"):
        for _name, _relation in {**INTEGER_RELATIONS, **_CONSTANT}.items():  # of 16 bits, the constant ones are gfx9's
            vector(f"{_prefix}_{_name}_{_kind}", _dst, f"{_kind} {_kind}", _relation)
    for _kind in ("f16", "f32", "f64"):
        for _name, _relation in {**FLOAT_RELATIONS, **_CONSTANT}.items():
            vector(f"{_prefix}_{_name}_{_kind}", _dst, f"{_kind} {_kind}", _relation)
        _classes = "u16" if _kind == "f16" else "u32"
        vector(f"{_prefix}_class_{_kind}", _dst, f"{_kind} {_classes}", classify(_kind), flushes=False)

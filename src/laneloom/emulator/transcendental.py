"""Approximate instructions: exp2, log2, reciprocals, roots, sine and cosine, in f16, f32 and f64.

Where AMD's guides allow an error of an ULP or more (RDNA 3 and RDNA 4 ISA guides, VOP1), the result here is the
correctly rounded one as far as float64 gives it. The f32 forms of exp, log, rcp, rsq and sqrt treat denormals as zeros
whatever the mode says, as the guides state and LLVM's expansions expect. Sine and cosine take revolutions, of any size,
and follow the mode. The f64 forms, to which the guides allow 2**29 ULP, read as few bits as hardware does and give as
many as it has; AMD's tables are not followed, so that the last of them may differ. (Both rocjitsu's, measured on
gfx1100 and gfx1201.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .alu import vector
from .mode import flush

TAU = 2 * np.pi


def sine(turns: np.ndarray) -> np.ndarray:
    """sin(2 pi x) in float64, exact at the quarters."""
    x = turns - np.rint(turns)
    folded = np.where(np.abs(x) > 0.25, np.copysign(0.5, x) - x, x)
    return np.sin(TAU * np.where(turns == 0, turns, folded))  # -0 stays


def cosine(turns: np.ndarray) -> np.ndarray:
    """cos(2 pi x) in float64, exact at the quarters."""
    return np.sin(TAU * (0.25 - np.abs(turns - np.rint(turns))))


def inverse_root(x: np.ndarray) -> np.ndarray:
    """1 / sqrt(x)."""
    return 1 / np.sqrt(x)


FUNCTIONS: dict[str, Callable] = {
    "exp": np.exp2, "log": np.log2, "rcp": np.reciprocal, "rsq": inverse_root, "sqrt": np.sqrt,
    "sin": sine, "cos": cosine,
}  # fmt: skip


_LEAST = np.float32(2.0**-126)  #: the least normal float32


def _rounded(function: Callable) -> Callable:
    """A function computed in float64 and rounded to float32."""
    return lambda x: np.asarray(function(np.asarray(x, np.float64))).astype(np.float32)


def _without_denormals(x: np.ndarray) -> np.ndarray:
    return flush(np.asarray(x), "f32")


def exponential(x: np.ndarray) -> np.ndarray:
    """2**x in float32, denormal results flushed."""
    r = _rounded(np.exp2)(x)
    return r if np.min(x) >= -126 else np.where(x < -126, np.float32(0), r)


def reciprocal(x: np.ndarray) -> np.ndarray:
    """1 / x in float32, denormals flushed on both sides."""
    r = np.reciprocal(x)
    magnitude = np.abs(r)
    if magnitude.max() <= 2.0**126 and magnitude.min() >= _LEAST:
        return r
    return _without_denormals(np.reciprocal(_without_denormals(x)))


def _of_normals(function: Callable) -> Callable:
    """A function with normal results for normal operands: only operands can be denormal."""

    def on_normals(x: np.ndarray) -> np.ndarray:
        return function(x if np.min(x) >= _LEAST else _without_denormals(x))

    return on_normals


_SINGLE: dict[str, Callable] = {
    "exp": exponential,
    "rcp": reciprocal,
    "sqrt": _of_normals(np.sqrt),  # float32's own square root is correctly rounded
    "log": _of_normals(_rounded(np.log2)),
    "rsq": _of_normals(_rounded(inverse_root)),
    "sin": _rounded(sine),
    "cos": _rounded(cosine),
}


def single(name: str) -> Callable:
    """The f32 form of a function."""
    return _SINGLE[name]


def half(name: str) -> Callable:
    """The f16 form of a function; denormals are kept."""
    function = FUNCTIONS[name]
    return lambda x: np.asarray(function(np.asarray(x, np.float64))).astype(np.float16)


for _name in FUNCTIONS:
    vector(f"v_{_name}_f32", "f32", "f32", single(_name), flushes=_name in ("sin", "cos"))
    vector(f"v_{_name}_f16", "f16", "f16", half(_name))
vector("v_rcp_iflag_f32", "f32", "f32", single("rcp"), flushes=False)


def double(name: str) -> Callable:
    """The f64 form of a reciprocal or root: of 29 bits behind the point (sqrt: 28), with 34 (roots: 35) of them."""
    function, read, given = FUNCTIONS[name], 28 if name == "sqrt" else 29, 34 if name == "rcp" else 35

    def approximate(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        usual = np.isfinite(x) & (x != 0) & ((x > 0) | (name == "rcp"))
        mantissa, exponent = np.frexp(np.where(usual, np.abs(x), 1))
        significand, exponent = 2 * mantissa, exponent - 1
        parity = 0 if name == "rcp" else exponent & 1
        cut = np.floor(np.ldexp(significand, read))
        y = function(np.ldexp(cut, parity - read))
        unit = np.where(y >= 1, given, given + 1)
        y = np.ldexp(np.rint(np.ldexp(y, unit)), -unit)
        if name != "sqrt":  # what lies between a power of two and the next number that is read
            beside = (cut == 2.0**read) & (significand != 1) & (parity == 0)
            y = np.where(beside, np.nextafter(1.0, 0.0), y)
        if name == "rcp":
            y = np.where(significand == np.nextafter(2.0, 0.0), np.nextafter(0.5, 1.0), y)
        power = {"rcp": -exponent, "rsq": -((exponent - parity) // 2), "sqrt": (exponent - parity) // 2}[name]
        return np.where(usual, np.copysign(np.ldexp(y, power), x), function(x))

    return approximate


for _name in ("rcp", "rsq", "sqrt"):
    vector(f"v_{_name}_f64", "f64", "f64", double(_name))

"""Approximate instructions: exp2, log2, reciprocals, roots, sine and cosine, in f16, f32 and f64.

Where AMD's guides allow an error of an ULP or more (RDNA 3 and RDNA 4 ISA guides, VOP1), the result here is the
correctly rounded one as far as float64 gives it. The f32 forms of exp, log, rcp, rsq and sqrt treat denormals as zeros
whatever the mode says, as the guides state and LLVM's expansions expect. Sine and cosine take revolutions.
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
    return np.sin(TAU * folded)


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


def single(name: str) -> Callable:
    """The f32 form of a function."""
    function = FUNCTIONS[name]

    def rounded(x: np.ndarray) -> np.ndarray:
        return np.asarray(function(np.asarray(x, np.float64))).astype(np.float32)

    if name in ("sin", "cos"):
        return rounded
    if name in ("log", "sqrt"):  # their results are never denormal
        return lambda x: rounded(_without_denormals(x))
    return lambda x: _without_denormals(rounded(_without_denormals(x)))


def _without_denormals(x: np.ndarray) -> np.ndarray:
    # The product with the smallest normal number's exponent test costs one pass; most arrays have nothing to flush.
    tiny = np.abs(x) < np.float32(2.0**-126)
    return flush(x, "f32") if tiny.any() else np.asarray(x)


def half(name: str) -> Callable:
    """The f16 form of a function; denormals are kept."""
    function = FUNCTIONS[name]
    return lambda x: np.asarray(function(np.asarray(x, np.float64))).astype(np.float16)


for _name in FUNCTIONS:
    vector(f"v_{_name}_f32", "f32", "f32", single(_name), flushes=False)
    vector(f"v_{_name}_f16", "f16", "f16", half(_name))
vector("v_rcp_iflag_f32", "f32", "f32", single("rcp"), flushes=False)
for _name in ("rcp", "rsq", "sqrt"):
    vector(f"v_{_name}_f64", "f64", "f64", FUNCTIONS[_name])

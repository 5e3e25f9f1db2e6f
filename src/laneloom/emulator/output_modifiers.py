"""What the modifiers omod (mul:2, mul:4, div:2) and clamp make of results, and the denormal mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..isa.parse import Instruction
from .float16 import stopping
from .mode import DOWN, NEAREST, UP, flush, has_ieee_mode
from .operands import FLOATS
from .state import U32

if TYPE_CHECKING:
    from .alu import Target

_OUTPUT_SCALE = {("mul", "2"): 2.0, ("mul", "4"): 4.0, ("div", "2"): 0.5}
_NEAREST_ALWAYS = re.compile(r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos)_f(16|32)$")  #: whatever the mode says


def scaled(x: np.ndarray, factor: float, kind: str, rounding: int = NEAREST) -> np.ndarray:
    """A rounded result under omod: zeros and denormals become +0 first, what becomes a denormal a zero of its sign.

    What overflows is infinity or the largest number, as a sum in this rounding mode would be. ISA guides, "Output
    Modifiers"; the order, the signs and the overflow by rocjitsu, which was held against gfx1201.
    """
    x = flush(x, kind)
    result = flush(np.where(x == 0, x.dtype.type(0), x) * x.dtype.type(factor), kind)
    if rounding == NEAREST or factor < 1:
        return result
    stops = np.isinf(result) & np.isfinite(x)
    if rounding in (UP, DOWN):
        stops &= np.signbit(result) == (rounding == UP)
    return np.where(stops, np.copysign(np.finfo(x.dtype).max, result), result) if stops.any() else result


def output_modifier(ins: Instruction, kind: str, target: Target, flushes: bool = True) -> Callable | None:
    """omod (mul:2, mul:4, div:2), clamp (to [0, 1], NaN to 0) and the denormal mode; None where nothing is done.

    Before gfx12 the hardware ignores omod where denormal results are kept and in IEEE mode, and without DX10_CLAMP
    clamp leaves NaN.
    """
    scale = next((v for (k, x), v in _OUTPUT_SCALE.items() if ins.modifiers.get(k) == x), None)
    if kind not in FLOATS:
        scale = None
    if target.gpu.major < 12 and (target.mode.ieee or not target.mode.flushes_results(kind)):
        scale = None
    clamp = ins.flag("clamp") and kind in FLOATS
    keeps_nan = has_ieee_mode(target.gpu) and not target.mode.clamps_nan
    flushed = scale is not None or (flushes and target.mode.flushes_results(kind))
    if scale is None and not clamp and not flushed:
        return None

    def modify(x: np.ndarray) -> np.ndarray:
        if kind == "bf16":  # what it becomes has no more bits than it had
            wide = (np.asarray(x).view(np.uint16).astype(U32) << U32(16)).view(np.float32)
            return (change(wide).view(U32) >> U32(16)).astype(np.uint16)
        return change(x)

    form = "f32" if kind == "bf16" else kind
    rounding = NEAREST if kind == "bf16" or _NEAREST_ALWAYS.match(ins.name) else target.mode.rounding(kind)
    rescaled = partial(scaled, factor=scale or 1.0, kind=form, rounding=rounding)
    rescaled = stopping(rescaled) if kind == "f16" and target.mode.f16_overflow else rescaled

    def change(x: np.ndarray) -> np.ndarray:
        x = x if scale is None else rescaled(x)
        if flushed:
            x = flush(x, form)
        if clamp:
            one = x.dtype.type(1)
            held = np.fmin(np.fmax(x, one - one), one) + (one - one)  # the sum turns -0 into +0
            x = np.where(np.isnan(x), x, held) if keeps_nan else held
        return x

    return modify

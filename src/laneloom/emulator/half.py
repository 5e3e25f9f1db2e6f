"""Half-precision vector arithmetic: f16, and the sums and products that mix f16 with f32."""

from __future__ import annotations

import numpy as np

from ..isa.parse import Instruction, Operand
from .alu import Step, Target, special, store_step, vector
from .convert import to_f16
from .dpp import lane_source
from .float16 import stopping, widen
from .floating import declare_extrema, exponent, fraction, fraction_directed, mantissa, scale_by_power
from .mode import Mode, flush
from .operands import Read, read, write
from .output_modifiers import output_modifier
from .rounding import ADD, FMA, MUL, SUB, add_f16, fma_f16, fma_f32, ldexp_directed, multiply_f16, subtract_f16
from .state import Waves
from .tininess import FUSED_SUM, PRODUCT

vector("v_add_f16", "f16", "f16 f16", add_f16, rounded=ADD["f16"])
vector("v_sub_f16", "f16", "f16 f16", subtract_f16, rounded=SUB["f16"])
vector(
    "v_subrev_f16",
    "f16",
    "f16 f16",
    lambda a, b: subtract_f16(b, a),
    rounded=lambda r: lambda a, b: SUB["f16"](r)(b, a),
)
vector("v_mul_f16", "f16", "f16 f16", multiply_f16, rounded=MUL["f16"], exact=PRODUCT)
vector("v_fma_f16 v_fmamk_f16 v_fmaak_f16", "f16", "f16 f16 f16", fma_f16, rounded=FMA["f16"], exact=FUSED_SUM)
vector("v_fmac_f16", "f16", "f16 f16 f16", fma_f16, reads_dst=True, rounded=FMA["f16"], exact=FUSED_SUM)
declare_extrema("f16")
for _name, _function in {"trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rndne": np.rint}.items():
    vector(f"v_{_name}_f16", "f16", "f16", _function)
vector("v_fract_f16", "f16", "f16", fraction, rounded=fraction_directed(ADD["f16"]))
vector("v_frexp_mant_f16", "f16", "f16", mantissa)
vector("v_frexp_exp_i16_f16", "i16", "f16", lambda x: exponent(x).astype(np.int16))
vector("v_ldexp_f16", "f16", "f16 i16", scale_by_power, rounded=ldexp_directed)


# -- mixed precision ---------------------------------------------------------------------------------------------------


def _mixed_source(operand: Operand, is_half: int, high: int, mode: Mode) -> Read:
    """A source of v_fma_mix: f32, or one half of the register as f16."""
    kind = "f16" if is_half else "f32"
    inner = read(operand, kind, bool(is_half and high))
    kept = (lambda g: flush(inner(g), kind)) if mode.flushes_inputs(kind) else inner
    return (lambda g: widen(kept(g))) if is_half else kept


def mixed_operands(ins: Instruction) -> list[tuple[Operand, int, int]]:
    """Each source with its signs, whether it is a half, and whether it is the high one.

    Older listings give the signs as neg_lo and the magnitudes as neg_hi instead of on the operands.
    """
    halves, select = ins.bits("op_sel_hi", [0, 0, 0]), ins.bits("op_sel", [0, 0, 0])
    negate, absolute = ins.bits("neg_lo", [0, 0, 0]), ins.bits("neg_hi", [0, 0, 0])
    signed = [
        Operand(o.kind, o.index, o.count, o.value, o.negate or bool(n), o.absolute or bool(m), o.half)
        for o, n, m in zip(ins.operands[1:], negate, absolute, strict=True)
    ]
    return list(zip(signed, halves, select, strict=True))


def _mixed(kind: str, high: bool):
    """fma of f32 and f16 sources: op_sel_hi says which are f16, op_sel which half of them.

    The f16 results round twice, to f32 and to f16, as the guides' pseudo-code does.
    """

    def build(ins: Instruction, target: Target) -> Step:
        destination = ins.operands[0]
        sources = mixed_operands(ins)
        a, b, c = (_mixed_source(*source, target.mode) for source in sources)
        fma = fma_f32 if not target.mode.round_32 else FMA["f32"](target.mode.round_32)
        convert = to_f16(target.mode.round_16_64)
        if target.mode.f16_overflow:
            convert = stopping(convert)
        modify = output_modifier(ins, kind, target)
        source = lane_source(ins, target.lanes)
        if source is not None:
            a = source.reader(a, sources[0][0].negate)

        def compute(g: Waves) -> np.ndarray:
            r = fma(a(g), b(g), c(g))
            if kind == "f16":
                r = convert(r)
            return r if modify is None else modify(r)

        return store_step(source, compute, write(destination, kind, high))

    return build


special("v_fma_mix_f32", _mixed("f32", False), dpp=True)
special("v_fma_mixlo_f16", _mixed("f16", False), dpp=True)
special("v_fma_mixhi_f16", _mixed("f16", True), dpp=True)

"""Scalar floating point of gfx11.5 and gfx12, and gfx12's transcendental instructions that write an SGPR."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.parse import Instruction
from .alu import Op, Step, Target, build_scalar, scalar, special
from .bits import I32, U16, U32, pack
from .compare import FLOAT_RELATIONS
from .convert import to_f16, to_integer
from .float16 import stopping, widen
from .floating import MAX_IEEE, MAX_NUM, MAXIMUM, MIN_IEEE, MIN_NUM, MINIMUM
from .mode import ZERO, Mode, flush
from .operands import read_scalar
from .output_modifiers import output_modifier
from .rounding import ADD, FMA, MUL, SUB, fma_f16, fma_f32, round_to
from .state import Waves
from .tininess import FUSED_SUM, ITSELF, PRODUCT
from .transcendental import FUNCTIONS, half, single


def _by_mode(kind: str, ieee: Callable, num: Callable) -> Callable[[Instruction, Target], Step]:
    """A builder that takes the NaN rule from the mode: gfx11.5's IEEE bit, which gfx12 does not have."""
    chosen = {rule: Op(kind, (kind, kind), fn, keeps_result=True) for rule, fn in ((True, ieee), (False, num))}
    return lambda ins, target: build_scalar(chosen[target.mode.ieee and target.gpu.major < 12], "", ins, target)


_INTEGRAL: dict[str, Callable] = {"trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rndne": np.rint}
for _kind, _fma in (("f32", fma_f32), ("f16", fma_f16)):
    _two, _three = f"{_kind} {_kind}", f"{_kind} {_kind} {_kind}"
    scalar(f"s_add_{_kind}", _kind, _two, np.add, rounded=ADD[_kind])
    scalar(f"s_sub_{_kind}", _kind, _two, np.subtract, rounded=SUB[_kind])
    scalar(f"s_mul_{_kind}", _kind, _two, np.multiply, rounded=MUL[_kind], exact=PRODUCT)
    scalar(f"s_fmac_{_kind}", _kind, _three, _fma, reads_dst=True, rounded=FMA[_kind], exact=FUSED_SUM)
    for _name, _ieee, _num in (("max", MAX_IEEE, MAX_NUM), ("min", MIN_IEEE, MIN_NUM)):
        scalar(f"s_{_name}_num_{_kind}", _kind, _two, _num, keeps_result=True)
        special(f"s_{_name}_{_kind}", _by_mode(_kind, _ieee, _num))
    scalar(f"s_maximum_{_kind}", _kind, _two, MAXIMUM, keeps_result=True)
    scalar(f"s_minimum_{_kind}", _kind, _two, MINIMUM, keeps_result=True)
    for _name, _function in _INTEGRAL.items():
        scalar(f"s_{_name}_{_kind}", _kind, _kind, _function)
    for _name, _relation in FLOAT_RELATIONS.items():
        scalar(f"s_cmp_{_name}_{_kind}", "", _two, lambda a, b, f=_relation: (None, f(a, b)), "returned")
scalar("s_fmamk_f32 s_fmaak_f32", "f32", "f32 f32 f32", fma_f32, rounded=FMA["f32"], exact=FUSED_SUM)

_towards_zero = to_f16(ZERO)
for _kind, _dtype in (("i32", I32), ("u32", U32)):
    scalar(f"s_cvt_f32_{_kind}", "f32", _kind, round_to(np.float32, 0), rounded=lambda r: round_to(np.float32, r))
    scalar(f"s_cvt_{_kind}_f32", _kind, "f32", to_integer(_dtype))
scalar("s_cvt_f16_f32", "f16", "f32", to_f16(), rounded=to_f16, exact=ITSELF)
scalar("s_cvt_f32_f16", "f32", "f16", widen)


def _widen_high(mode: Mode) -> Callable:
    kept = (lambda x: flush(x, "f16")) if mode.flushes_inputs("f16") else (lambda x: x)
    return lambda x: widen(kept((x >> U32(16)).astype(U16).view(np.float16)))


def _pack_towards_zero(mode: Mode) -> Callable:
    kept = (lambda x: flush(x, "f16")) if mode.flushes_results("f16") else (lambda x: x)
    return lambda a, b: pack(kept(_towards_zero(a)), kept(_towards_zero(b)))


scalar("s_cvt_hi_f32_f16", "f32", "u32", _widen_high(Mode()), of_mode=_widen_high)
scalar("s_cvt_pk_rtz_f16_f32", "b32", "f32 f32", _pack_towards_zero(Mode()), of_mode=_pack_towards_zero)


def _to_scalar(kind: str, function: Callable) -> Callable[[Instruction, Target], Step]:
    """`v_s_*`: computed by the vector unit, written to an SGPR whatever EXEC says. Those of f16 follow MODE."""

    def build(ins: Instruction, target: Target) -> Step:
        destination, source = ins.operands
        value, n = read_scalar(source, kind), destination.index
        modify = output_modifier(ins, kind, target, flushes=kind == "f16")
        flushed = kind == "f16" and target.mode.flushes_inputs(kind)
        compute = stopping(function) if kind == "f16" and target.mode.f16_overflow else function

        def step(g: Waves) -> None:
            x = np.atleast_1d(value(g))
            result = np.asarray(compute(flush(x, kind) if flushed else x))
            if modify is not None:
                result = modify(result)
            g.set_scalar(n, result.view(U16 if kind == "f16" else U32))

        return step

    return build


for _name in FUNCTIONS:
    if _name not in ("sin", "cos"):
        special(f"v_s_{_name}_f32", _to_scalar("f32", single(_name)))
        special(f"v_s_{_name}_f16", _to_scalar("f16", half(_name)))

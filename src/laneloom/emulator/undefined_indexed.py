"""Strict mode: moves whose register number comes from M0 carry undefined bits along, to and from wherever M0 says."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..isa.parse import EXEC, M0, Instruction, Operand
from .alu import SCALAR, VECTOR, Target
from .shadow import Found, Shadow
from .state import Waves

INDEXED = re.compile(r"v_(movrel|swaprel)|s_movrel")
_ZERO = Operand("const", value=0)
_CONTROL = [M0, EXEC, EXEC + 1]  #: the move itself reads their values


def indexed_rule(ins: Instruction, target: Target) -> Callable[[Waves], None]:
    """The move itself, run on the undefined bits; a constant has none, nor M0 or EXEC as the source."""
    kind = ins.name[0]
    table_entry = VECTOR[ins.name] if kind == "v" else SCALAR[ins.name][0]
    assert table_entry.build is not None

    def defined(o: Operand) -> bool:
        return o.kind not in ("v", "s") or ("movreld" in ins.name and o.kind == "s" and o.index in _CONTROL)

    operands = tuple(_ZERO if k and defined(o) else o for k, o in enumerate(ins.operands))
    moved = Instruction(ins.name, ins.encoding, operands, ins.modifiers, ins.line, ins.text, ins.source)
    step = table_entry.build(moved, target)

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        if shadow.S[M0].any():
            wave = int(g.ids[int(np.flatnonzero(shadow.S[M0])[0])])
            raise Found("undefined", "the register's number depends on a value that nobody wrote (m0)", wave)
        S = shadow.S.copy()
        S[_CONTROL] = g.S[_CONTROL]
        step(Waves(shadow.V, S, g.scc, g.ids, g.lds_base, g.lanes, g.memory, g.lds, g.closed))
        if kind == "v":
            for n in range(len(shadow.V)):
                shadow.note(n)
            return
        S[_CONTROL] = shadow.S[_CONTROL]
        for n in range(len(S)):
            shadow.put_scalar(n, S[n])

    return follow

"""Scalar instructions that change EXEC (saveexec, wrexec) and those that reach the MODE register."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import EXEC, Instruction
from .alu import Step, Target, special
from .identity import register_reader
from .mode import KEPT, has_ieee_mode, mode_after, mode_field
from .operands import read_scalar
from .scalar_alu import BITWISE
from .state import U32, Waves

# The first operand is the source, the second EXEC as it was.
_SAVING: dict[str, Callable] = {
    **{name: BITWISE[name] for name in ("and", "or", "xor", "nand", "nor", "xnor", "and_not1", "or_not1")},
    "and_not0": lambda s, e: ~s & e,
    "or_not0": lambda s, e: ~s | e,
}


def _change_exec(function: Callable, kind: str, returns_new: bool) -> Callable[[Instruction, Target], Step]:
    wide = kind == "b64"

    def build(ins: Instruction, target: Target) -> Step:
        destination, source = ins.operands
        value, n = read_scalar(source, kind), destination.index

        def step(g: Waves) -> None:
            old = g.scalar64(EXEC) if wide else g.s[EXEC].copy()
            new = np.broadcast_to(function(value(g), old), (g.count,))
            put = g.set_scalar64 if wide else g.set_scalar
            g.scc[...] = new != 0
            put(n, new if returns_new else old)
            put(EXEC, new)

        return step

    return build


for _kind in ("b32", "b64"):
    for _name, _function in _SAVING.items():
        special(f"s_{_name}_saveexec_{_kind}", _change_exec(_function, _kind, returns_new=False))
    for _name in ("and_not0", "and_not1"):
        special(f"s_{_name}_wrexec_{_kind}", _change_exec(_SAVING[_name], _kind, returns_new=True))


def _follow_mode(ins: Instruction, target: Target) -> Step:
    """A write to MODE does nothing when it is reached: what comes after it was built for the new mode."""
    mode_after(ins, target.mode)
    return lambda g: None


# What the hardware waits for by itself; older disassemblers know it by number alone.
_SCHEDULING = re.compile(r"hwreg\(\s*(HW_REG_(WAVE_)?SCHED_MODE|26)\b")


def _set_register(ins: Instruction, target: Target) -> Step:
    if target.gpu.major == 12 and _SCHEDULING.search(ins.text):  # no result depends on it
        return lambda g: None
    if mode_field(ins) is None:
        raise UnknownInstructionError(f"{ins.text!r} writes a hardware register other than MODE")
    return _follow_mode(ins, target)


def _get_register(ins: Instruction, target: Target) -> Step:
    field, reader, n = mode_field(ins), register_reader(ins, target), ins.operands[0].index
    if reader is not None:
        return lambda g: g.set_scalar(n, reader(g))
    wanted = 0 if field is None else ((1 << field[1]) - 1) << field[0]
    if field is None or (wanted & ~KEPT and (field[1] < 32 or target.gpu.is_cdna5)):
        raise UnknownInstructionError(f"{ins.text!r} reads hardware register bits that the emulator does not keep")
    offset, size = field  # of the whole register what is not kept is zero
    kept = target.mode.bits if has_ieee_mode(target.gpu) else target.mode.bits & ~0x300
    value = U32(kept >> offset & (1 << size) - 1)
    return lambda g: g.set_scalar(n, value)


special("s_denorm_mode s_round_mode", _follow_mode)
special("s_setreg_b32 s_setreg_imm32_b32", _set_register)
special("s_getreg_b32", _get_register)

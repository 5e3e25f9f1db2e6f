"""When two vector instructions may issue as one dual-issue pair (VOPD) of RDNA 3, 3.5 and 4.

Source: AMD RDNA 3 and RDNA 4 ISA guides, "Dual Issue VALU". Vector registers lie in four banks, register n in bank
n % 4, and each bank reads one first, one second and one third source per clock. So the halves' first sources come from
different banks, and so do their second ones. A multiply-accumulate reads its result as its third source; results share
two write ports, one for even and one for odd registers, which keeps those apart as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BANKS = 4

_BOTH = frozenset(
    """v_dual_fmac_f32 v_dual_fmaak_f32 v_dual_fmamk_f32 v_dual_mul_f32 v_dual_add_f32 v_dual_sub_f32 v_dual_subrev_f32
    v_dual_mul_dx9_zero_f32 v_dual_mov_b32 v_dual_cndmask_b32 v_dual_max_f32 v_dual_min_f32 v_dual_max_num_f32
    v_dual_min_num_f32 v_dual_dot2acc_f32_f16 v_dual_dot2acc_f32_bf16""".split()
)
_SECOND_ONLY = frozenset("v_dual_add_nc_u32 v_dual_lshlrev_b32 v_dual_and_b32".split())
_REGISTER = re.compile(r"(v|s|ttmp)(\d+)|vcc_lo|vcc_hi|m0|exec_lo|exec_hi|null")
_INLINE = frozenset(["0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0", "0.15915494"])
_MOST_SCALARS = 2


@dataclass(frozen=True)
class Half:
    """One half of a pair, as it is written: `Half.parse("v_dual_fmac_f32 v0, v6, v4")`."""

    mnemonic: str
    operands: tuple[str, ...]  #: result first

    @classmethod
    def parse(cls, text: str) -> Half:
        """The half that `text` spells."""
        mnemonic, _, rest = text.strip().partition(" ")
        return cls(mnemonic, tuple(word.strip() for word in rest.split(",")))

    @property
    def result(self) -> str:
        return self.operands[0]

    @property
    def accumulates(self) -> bool:
        """Whether it reads its result as third source."""
        return self.mnemonic.startswith(("v_dual_fmac", "v_dual_dot2acc"))

    @property
    def registers_read(self) -> tuple[str, ...]:
        """Vector registers."""
        read = self.operands[1:] + ((self.result,) if self.accumulates else ())
        return tuple(name for name in read if _vector(name) is not None)

    def __str__(self) -> str:
        return f"{self.mnemonic} {', '.join(self.operands)}"


def _vector(name: str) -> int | None:
    found = _REGISTER.fullmatch(name)
    return int(found[2]) if found and found[1] == "v" else None


def _is_literal(name: str) -> bool:
    if _REGISTER.fullmatch(name) or name in _INLINE:
        return False
    try:
        return not -16 <= int(name, 0) <= 64
    except ValueError:
        return True


def bank(register: str) -> int | None:
    """The bank of a vector register, None for another operand."""
    number = _vector(register)
    return None if number is None else number % BANKS


def why_not_pair(x: Half, y: Half, *, major: int = 11) -> str | None:
    """Why `x :: y` cannot be one pair on a GPU of generation 11 or 12, as one sentence; None if it can."""
    if x.mnemonic not in _BOTH:
        return f"{x.mnemonic} cannot be the first half of a pair"
    if y.mnemonic not in _BOTH | _SECOND_ONLY:
        return f"{y.mnemonic} cannot be the second half of a pair"
    for half in (x, y):
        if _vector(half.result) is None:
            return f"the result of '{half}' is not a vector register"
        if len(half.operands) > 2 and _vector(half.operands[2]) is None and "fmamk" not in half.mnemonic:
            return f"the second source of '{half}' is {half.operands[2]}, which is not a vector register"
    return _why_not_registers(x, y, major) or _why_not_constants(x, y)


def _why_not_registers(x: Half, y: Half, major: int) -> str | None:
    first, second = _vector(x.result), _vector(y.result)
    assert first is not None
    assert second is not None
    if first % 2 == second % 2:
        return f"the results {x.result} and {y.result} are both {'odd' if first % 2 else 'even'}"
    if x.result in y.registers_read:
        return f"the second half reads {x.result}, which the first writes"
    both_move = major >= 12 and x.mnemonic == y.mnemonic == "v_dual_mov_b32"
    for place, name in ((1, "first"), (2, "second"), (3, "third")):
        if len(x.operands) <= place or len(y.operands) <= place or (both_move and place == 1):
            continue
        one, other = bank(x.operands[place]), bank(y.operands[place])
        if one is not None and one == other:
            return f"the {name} sources {x.operands[place]} and {y.operands[place]} are both in bank {one}"
    return None


def _why_not_constants(x: Half, y: Half) -> str | None:
    operands = x.operands[1:] + y.operands[1:]
    literals = {name for name in operands if _is_literal(name)}
    if len(literals) > 1:
        return f"it has two literals, {' and '.join(sorted(literals))}, and room for one"
    scalars = {name for name in operands if _REGISTER.fullmatch(name) and _vector(name) is None} | literals
    if "v_dual_cndmask_b32" in (x.mnemonic, y.mnemonic):
        scalars.add("vcc_lo")
    if len(scalars) > _MOST_SCALARS:
        return f"it reads {len(scalars)} scalars ({', '.join(sorted(scalars))}), at most {_MOST_SCALARS} are allowed"
    return None

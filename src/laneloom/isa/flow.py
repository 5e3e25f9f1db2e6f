"""Where control goes behind an instruction: the one list of those that it leaves by.

Sources: AMD's RDNA 3, RDNA 4 and CDNA 3 ISA guides, "Program flow control"; LLVM's names of CDNA 5. What trap handlers
do: LLVM "User Guide for AMDGPU Backend", "Trap Handler ABI".
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache


class Flow(StrEnum):
    """What may be executed next."""

    NEXT = "next"  #: the next instruction of the text
    BRANCHES = "branches"  #: that, or the one at a label
    JUMPS = "jumps"  #: the one at a label
    LEAVES = "leaves"  #: one at an address that is computed: a return from a function or a handler, a far branch
    CALLS = "calls"  #: a function, and then the next one; some functions do not come back
    ENDS = "ends"  #: nothing
    FILLS = "fills"  #: nothing: it fills what lies behind a program, where control must not come


_FLOWS = tuple(
    (re.compile(pattern), flow)
    for pattern, flow in (
        (r"s_endpgm", Flow.ENDS),
        (r"s_code_end", Flow.FILLS),
        (r"s_branch", Flow.JUMPS),
        (r"s_cbranch|s_subvector_loop", Flow.BRANCHES),
        (r"s_set_?pc|s_add_pc|s_rfe", Flow.LEAVES),
        (r"s_call|s_swap_?pc", Flow.CALLS),
    )
)
_DEBUG_TRAP = re.compile(r"s_trap\s+(0x)?0*3\s*$")


@lru_cache(maxsize=1 << 12)
def _flow(name: str) -> Flow:
    return next((flow for pattern, flow in _FLOWS if pattern.match(name)), Flow.NEXT)


def flow_of(name: str, text: str) -> Flow:
    """Of an instruction with this mnemonic and text.

    A trap stops the wave, but for `s_trap 3` (llvm.debugtrap), which does nothing where no debugger is.
    """
    if name == "s_trap":
        return Flow.NEXT if _DEBUG_TRAP.match(text) else Flow.ENDS
    return _flow(name)

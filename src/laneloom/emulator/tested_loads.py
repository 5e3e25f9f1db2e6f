"""Which loads a block's branch depends on: those with which a wave may wait for others."""

from __future__ import annotations

import re

from ..isa.parse import EXEC, VCC, Instruction
from ..isa.registers import uses
from .undefined import WRITES_SCC

LOADS = re.compile(r"(ds|global|flat|buffer)_load")


def tested_loads(body: list[Instruction], lanes: int, loads: re.Pattern[str]) -> set[int]:
    """Their places in a block; none where it does not end with a conditional branch.

    loads: what to look for, by the whole text or with the name that the emulator has for it.
    """
    wanted = {k for k, ins in enumerate(body) if loads.match(ins.name) or loads.match(ins.text)}
    if not wanted or not body[-1].name.startswith("s_cbranch_"):
        return set()
    pair = (1 << lanes // 32) - 1
    condition = body[-1].name.removeprefix("s_cbranch_")
    vectors, scc = 0, condition.startswith("scc")
    scalars = pair << VCC if condition.startswith("vcc") else pair << EXEC if condition.startswith("exec") else 0
    found = set()
    for k in range(len(body) - 2, -1, -1):
        ins, used = body[k], uses(body[k], lanes)
        decides = scc and bool(WRITES_SCC.match(ins.name))
        if not (decides or used.writes_v & vectors or used.writes_s & scalars):
            continue
        if k in wanted:
            found.add(k)
        scc = scc and not decides
        vectors, scalars = vectors & ~used.writes_v | used.reads_v, scalars & ~used.writes_s | used.reads_s
    return found

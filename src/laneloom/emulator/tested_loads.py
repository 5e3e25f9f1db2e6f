"""Which loads from LDS a block's branch depends on: those with which a wave may wait for a barrier in LDS."""

from __future__ import annotations

from ..isa.parse import EXEC, VCC, Instruction
from ..isa.registers import uses
from .undefined import WRITES_SCC


def tested_loads(body: list[Instruction], lanes: int) -> set[int]:
    """Their places in a block; none where it does not end with a conditional branch."""
    if (
        not body
        or not body[-1].name.startswith("s_cbranch_")
        or not any(ins.name.startswith("ds_load") for ins in body)
    ):
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
        if ins.name.startswith("ds_load"):
            found.add(k)
        scc = scc and not decides
        vectors, scalars = vectors & ~used.writes_v | used.reads_v, scalars & ~used.writes_s | used.reads_s
    return found

"""Constants of CDNA 5 that are 64 bits long though a text does not say so.

Instructions of one word (all scalar ones; vector ones whose constant comes first and whose other sources are vector
registers) may have 8 bytes of constant behind them, and LLVM takes these where 4 would not do. All others have 4.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from ..isa.parse import VCC, Instruction, Listing, Operand, Wide


def lengthen(listing: Listing) -> None:
    """Mark the constants that LLVM writes in 64 bits; a disassembly has them marked already."""
    for ins in listing.instructions:
        if ins.address < 0 and any(o.kind == "const" for o in ins.operands) and _is_one_word(ins):
            ins.operands = tuple(_whole(ins, o) for o in ins.operands)


def _is_one_word(ins: Instruction) -> bool:
    if ins.name.startswith("s_"):
        return True
    if not ins.name.startswith("v_") or ins.encoding == "e64" or ins.modifiers or ins.second is not None:
        return False
    destination, *sources = ins.operands
    if ins.name.startswith("v_cmp") and (destination.kind, destination.index) != ("s", VCC):
        return False
    plain = not any(o.negate or o.absolute for o in sources)
    return plain and len(sources) in (1, 2) and all(o.kind == "v" for o in sources[1:])


def _whole(ins: Instruction, operand: Operand) -> Operand:
    value = operand.value
    if operand.kind != "const" or isinstance(value, Wide):
        return operand
    if ins.name.endswith("f64"):  # of which an integer is the upper half
        wide = Wide(struct.unpack("<Q", struct.pack("<d", value))[0]) if isinstance(value, float) else value
    else:
        wide = Wide(value) if isinstance(value, int) else value
    return replace(operand, value=wide)

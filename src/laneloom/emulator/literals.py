"""Constants that LLVM's assembler encodes otherwise than the type of the operand suggests, and those of CDNA 5 that are
64 bits long though a text does not say so.

Of the latter, instructions of one word (all scalar ones; vector ones whose constant comes first and whose other sources
are vector registers) may have 8 bytes of constant behind them, and LLVM takes these where 4 would not do. All others
have 4.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace

from ..isa.parse import VCC, Instruction, Listing, Operand, Wide
from .operands import INLINE, constant_bits

#: Sources that may be of 16 or of 32 bits: LLVM takes their constants for 16 bits in any case.
_MIXED = re.compile(r"v_fma_mix(?:lo|hi)?_(?:f32_)?(b?f16|f32)")
#: Sources of 16 bits whose floats LLVM writes as FP32.
_SINGLE = re.compile(r"s_(?:cvt_f32|trunc|ceil|floor|rndne|cmp_\w+)_f16")
#: An integer of 16 bits, the last source, whose floats LLVM writes as FP16.
_HALF = frozenset({"v_ldexp_f16", "v_cmp_class_f16", "v_cmpx_class_f16"})
_INLINE_BITS = {kind: {constant_bits(x, kind): x for x in INLINE} for kind in ("f16", "bf16", "f32")}


def encode(listing: Listing) -> None:
    """Give the constants of a text the values that LLVM's assembler makes of them; a disassembly tells these itself."""
    for ins in listing.instructions:
        if ins.name in _HALF:
            *others, last = ins.operands
            if last.kind == "const" and isinstance(last.value, float):
                ins.operands = (*others, replace(last, value=constant_bits(last.value, "f16")))
        elif ins.address < 0 and any(o.kind == "const" for o in ins.operands):
            if match := _MIXED.fullmatch(ins.name):
                kind = "bf16" if match[1] == "bf16" else "f16"
                ins.operands = tuple(_of_16_bits(o, kind) for o in ins.operands)
            elif _SINGLE.fullmatch(ins.name):
                ins.operands = tuple(_as_single(o) for o in ins.operands)


def _of_16_bits(operand: Operand, kind: str) -> Operand:
    """An inline constant where its 16 bits are those of one, of whatever width it is read; else a literal."""
    if operand.kind != "const":
        return operand
    bits = constant_bits(operand.value, kind)  # type: ignore[arg-type]
    signed = bits - (bits >> 15 << 16)
    return replace(operand, value=signed if -16 <= signed <= 64 else _INLINE_BITS[kind].get(bits, bits))


def _as_single(operand: Operand) -> Operand:
    if operand.kind != "const" or not isinstance(operand.value, float):
        return operand
    bits = constant_bits(operand.value, "f32")
    return replace(operand, value=_INLINE_BITS["f32"].get(bits, bits))


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

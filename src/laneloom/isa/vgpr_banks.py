"""Vector registers above 255, which CDNA 5 (gfx1250) reaches by two more bits for each kind of operand.

An instruction names 256 registers. `s_set_vgpr_msb` sets what is put in front of those eight bits for all instructions
that follow: simm[1:0] for the first source, [3:2] the second, [5:4] the third, [7:6] the destination; the upper byte
only repeats the former setting. The bits are a part of MODE ([13:12] destination, [15:14], [17:16], [19:18] sources).
On gfx1250 `s_setreg_imm32_b32` of any field of MODE takes them from bits 19:12 of its constant, on gfx1251 a write of
their own field alone sets them. Sources: LLVM, AMDGPULowerVGPREncoding and `getVGPRLoweringOperandTables`; rocjitsu
(ROCm/rocm-systems). Scales of matrix instructions take no bits.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..errors import EmulationError
from .flow import Flow
from .parse import Instruction, Listing
from .registers import results

BANK = 256  #: registers that an instruction can name
_DESTINATION, _NONE = 3, 4  #: pairs of bits of the setting; beyond the last one are zeros
_MODE = re.compile(r"hwreg\(\s*(?:HW_REG_MODE|HW_REG_WAVE_MODE|1)\s*(?:,\s*(\w+)\s*,\s*(\w+)\s*)?\)")


def number_registers(listing: Listing, own_fields: bool = False) -> None:
    """Give every vector operand of the listing the number of its register in the whole file.

    own_fields: writes of MODE leave what they do not name (gfx1251).
    Raises EmulationError where an instruction's registers depend on the way by which it is reached.
    """
    code = listing.instructions
    if not any(ins.name == "s_set_vgpr_msb" for ins in code):
        return
    for k, settings in enumerate(_settings(listing, own_fields)):
        forms = {setting: _numbered(code[k], setting) for setting in sorted(settings)}
        first = next(iter(forms.values()), code[k])
        if any(form != first for form in forms.values()):
            raise EmulationError(
                f"{listing.kernel}: line {code[k].line} is reached under several settings of s_set_vgpr_msb, and its "
                f"registers depend on them: {code[k].text!r}"
            )
        code[k] = first


def _settings(listing: Listing, own_fields: bool) -> list[set[int]]:
    """What may hold before each instruction; nothing where control never comes."""
    code, labels = listing.instructions, listing.labels
    found: list[set[int]] = [set() for _ in code]
    work = [(at, 0) for at in {0, *listing.entries.values()}]  # a callee starts with all bits clear
    while work:
        at, setting = work.pop()
        if at >= len(code) or setting in found[at]:
            continue
        found[at].add(setting)
        ins = code[at]
        flow = ins.flow
        if flow in (Flow.JUMPS, Flow.BRANCHES):
            work.append((labels.get(str(ins.operands[0].value), len(code)), setting))
        if ins.name == "s_add_pc_i64":  # LLVM's far branch: a label less the label behind it
            work.append((labels.get(str(ins.operands[0].value).partition("-")[0], len(code)), setting))
        if flow in (Flow.NEXT, Flow.BRANCHES, Flow.CALLS):
            work.append((at + 1, _after(ins, setting, own_fields)))
    return found


def _after(ins: Instruction, setting: int, own_fields: bool) -> int:
    if ins.name == "s_set_vgpr_msb":
        return int(ins.operands[0].value) & 0xFF
    if ins.name == "s_setreg_imm32_b32" and (match := _MODE.search(ins.text)):
        value, written = int(ins.operands[-1].value), 0xFF
        if own_fields:
            offset, size = (int(x or default, 0) for x, default in zip(match.groups(), ("0", "32"), strict=True))
            value, written = value << offset, ((1 << size) - 1) << offset >> 12 & 0xFF
        bits = (setting << 2 & 0xFC | setting >> 6) & ~written | value >> 12 & written
        return bits >> 2 | (bits & 3) << 6
    return setting


def _numbered(ins: Instruction, setting: int) -> Instruction:
    if not setting or not any(o.kind == "v" for half in (ins, ins.second) if half for o in half.operands):
        return ins
    operands = tuple(
        replace(o, index=o.index + BANK * (setting >> 2 * role & 3)) if o.kind == "v" else o
        for o, role in zip(ins.operands, _roles(ins), strict=True)
    )
    second = None if ins.second is None else _numbered(ins.second, setting)
    return replace(ins, operands=operands, second=second)


def _roles(ins: Instruction) -> list[int]:
    """Of each operand, which two bits it takes: those of source 0, 1 or 2, or of the destination (3)."""
    name, count = ins.name, results(ins)
    if name.startswith("v_wmma_ld_scale"):
        return [_NONE] * len(ins.operands)
    if name.startswith("buffer_"):  # data, loaded or stored, then the address
        return [_DESTINATION, *[0] * (len(ins.operands) - 1)]
    if name.startswith("ds_"):
        return [_DESTINATION] * count + list(range(len(ins.operands) - count))
    if name.startswith(("global_", "flat_", "scratch_", "cluster_")):
        if "_load_async_to_lds_" in name or (count == 0 and "_load_" in name):
            count = 1  # the address in LDS stands where a result would
        return [_DESTINATION] * count + list(range(len(ins.operands) - count))
    places = list(range(len(ins.operands) - count))
    if "fmamk" in name:  # the constant stands between the sources and is none of them
        places = [0, 1, 1]
    elif name.startswith("v_wmma_scale"):
        places[3:] = [_NONE] * (len(places) - 3)  # scales lie in the first 256
    return [_DESTINATION] * count + places


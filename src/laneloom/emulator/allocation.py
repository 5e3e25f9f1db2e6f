"""A listing as the emulator works with it: names, register numbers, and which instructions name vector registers that
the kernel does not have; how much of LDS it may touch.

The hardware reads v0 for such a register and drops what is written (RDNA 3 ISA guide, "VGPR Out Of Range"), so a
descriptor that asks for too few gives wrong numbers in silence.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..gpu import Gpu
from ..isa.occupancy import allocated_lds
from ..isa.parse import Instruction, Listing
from ..isa.registers import with_vcc
from ..isa.vgpr_banks import number_registers
from . import block_access, cdna, literals

#: what LLVM makes of an atomic on 1 or 2 bytes: one of the whole word, where and, or, xor do not do in a loop
_OF_WORDS = re.compile(r"(ds_(cmpstore|and|or|xor)(_rtn)?|(global|flat|buffer)_atomic_(cmpswap|and|or|xor))_b32")


def prepare(listing: Listing, gpu: Gpu) -> int:
    """Translate a listing's instructions, and mark those that name registers past the kernel's own; a wave's lanes."""
    lanes = 32 if 32 in gpu.wave_sizes and listing.directive("wavefront_size32", 1) else 64
    if gpu.major == 9:  # while v and a are still apart
        _mark(listing, gpu)
    literals.encode(listing)
    cdna.translate(listing, gpu)
    listing.instructions[:] = [with_vcc(ins, lanes) for ins in listing.instructions]
    number_registers(listing, gpu.name == "gfx1251")
    if gpu.major != 9:  # once s_set_vgpr_msb is taken into account
        _mark(listing, gpu)
    return lanes


def _given(listing: Listing, gpu: Gpu) -> dict[str, int]:
    """How many registers v and a a wave has: whole granules are given out."""
    asked = listing.directive("next_free_vgpr", gpu.vgprs_per_wave)
    total = min(-(-max(asked, 1) // gpu.vgpr_granule) * gpu.vgpr_granule, gpu.vgprs_per_wave)
    if gpu.is_cdna_1:
        return {"v": total, "a": total}
    first = listing.directive("accum_offset", total)
    return {"v": min(first, total), "a": total - first if first < total else total}


def _mark(listing: Listing, gpu: Gpu) -> None:
    given = _given(listing, gpu)
    for k, ins in enumerate(listing.instructions):
        for half in (ins, ins.second):
            if half is not None and (missing := _missing(half, given)):
                listing.instructions[k] = replace(ins, missing=missing)


def _missing(ins: Instruction, given: dict[str, int]) -> str:
    if ins.name in block_access.NAMES:  # M0 says which of the registers it means
        return ""
    for o in ins.operands:
        if o.kind in given and (last := o.index + o.count - 1) >= given[o.kind]:
            own = f"{o.kind}0 to {o.kind}{given[o.kind] - 1}"
            return f"{o.kind}{last} is none of the registers that .amdhsa_next_free_vgpr gives this kernel, {own}"
    return ""


def reachable_lds(listing: Listing, gpu: Gpu, asked: int, beyond: bool) -> int:
    """How many bytes of LDS a workgroup may touch: those that the kernel asks for, `beyond` whole granules.

    The word around a byte that is changed by an atomic of the word may end past them; whole words are given out.
    """
    if beyond:
        return allocated_lds(gpu, asked)
    return -(-asked // 4) * 4 if changes_words(listing, ("ds_", "flat_")) else asked


def changes_words(listing: Listing, prefixes: tuple[str, ...]) -> bool:
    """Whether an instruction of those that begin so may be what LLVM made of an atomic on 1 or 2 bytes."""
    return any(ins.name.startswith(prefixes) and _OF_WORDS.match(ins.name) for ins in listing.instructions)

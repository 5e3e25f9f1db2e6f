"""Loads that transpose on the way to the registers: from LDS on CDNA 4, global memory on RDNA 4, both on CDNA 5.

Each lane names a row of neighbouring elements and gets a column of what lanes loaded together. Sources: CDNA 4 ISA
guide; for CDNA 5 the tests of AMD's emulator (ROCm/rocm-systems, rocjitsu, "Gfx1250MemoryIsaTranspose"), and for 8 and
16 bits Triton's products (tests/emulator/test_cdna5_dots.py). RDNA 4's `global_load_tr_b64` and `_b128`, which CDNA 5's
assembler takes for its own of 8 and 16 bits, move the same elements: the lanes of 16 bits were published as seen on
gfx1201, and kernels that run there address the 8-bit one so; in waves of 64 lanes nobody says which.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import Instruction
from .alu import Builder, Step, Target
from .global_access import global_addresses
from .lds_access import addresses
from .state import U32, Waves

_CDNA4 = re.compile(r"ds_load_b(64|96)_tr_b(4|6|8|16)$")
_CDNA5 = re.compile(r"(ds|global)_load_tr(4_b64|6_b96|8_b64|16_b128)$")
_RDNA4 = {"global_load_tr_b64": "global_load_tr8_b64", "global_load_tr_b128": "global_load_tr16_b128"}
#: other names that CDNA 5's assembler takes (LLVM, DSInstructions.td and FLATInstructions.td)
_ALIASES = {
    "ds_load_tr_b64": "ds_load_tr8_b64", "ds_load_tr_b128": "ds_load_tr16_b128",
    "ds_load_b128_tr_b16": "ds_load_tr16_b128", "global_load_b64_tr_b4": "global_load_tr4_b64",
    "global_load_b96_tr_b6": "global_load_tr6_b96", "global_load_b64_tr_b8": "global_load_tr8_b64",
    "global_load_b128_tr_b16": "global_load_tr16_b128",
}  # fmt: skip


def _cdna4_source(each: int, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Of 16 lanes, whose E elements each are rows of 16 one after another, lane c gets column c."""
    lane, row = np.arange(lanes)[:, None], np.arange(each)
    column = lane % 16
    return lane - column + row * (16 // each) + column // each, np.broadcast_to(column % each, (lanes, each))


def _cdna5_source(width: int) -> tuple[np.ndarray, np.ndarray]:
    """Lane and place, before, of what each lane has in each place afterwards.

    Elements are (m, k) with m < 16. Lane l gets m = l % 16 of several k, of which its half wave has one part.
    16 and 8 bits: a lane loads eight m of one k, and which: 16 bits k = l % 8 + 8 (l / 16), m from 8 (l / 8 % 2) on;
    8 bits k = l % 4 + 4 (l / 8), m from 8 (l / 4 % 2) on. 6 and 4 bits: a lane loads all m of one k.
    """
    lane = np.arange(32)[:, None]
    m, half = lane % 16, lane // 16
    if width >= 8:
        i = np.arange(8)
        loader = i + 8 * (m // 8) if width == 16 else (i & 3) + 8 * (i >> 2) + 4 * (m // 8)
        return loader + 16 * half, np.broadcast_to(m % 8, (32, 8))
    i = np.arange(16)
    if width == 6:  # k = 16 half + i
        return (i & 3) + 4 * half + 8 * (i >> 2), np.broadcast_to(m, (32, 16))
    return (i & 7) + 8 * half + 16 * (i >> 3), np.broadcast_to(m, (32, 16))


def _build(ins: Instruction, target: Target) -> Step:
    if match := _CDNA4.match(ins.name):  # which CDNA 5's assembler takes for its own of that width
        nbytes, width = int(match[1]) // 8, int(match[2])
        cdna5 = target.gpu.is_cdna5
        from_lane, from_place = _cdna5_source(width) if cdna5 else _cdna4_source(8 * nbytes // width, target.lanes)
    else:
        if target.lanes != 32:
            raise UnknownInstructionError("which lanes exchange what in a wave of 64 lanes is not documented")
        match = _CDNA5.match((_RDNA4 | _ALIASES).get(ins.name, ins.name))
        assert match
        width, bits = (int(n) for n in match[2].split("_b"))
        nbytes = bits // 8
        from_lane, from_place = _cdna5_source(width)
    n, vaddr = ins.operands[0].index, ins.operands[1]
    if ins.name.startswith("ds_"):
        offset = ins.number("offset")

        def loaded(g: Waves) -> np.ndarray:
            at = g.lds.check(g.lds_base, addresses(g, vaddr.index, offset), nbytes, g.exec)
            return g.lds.gather(at, nbytes)
    else:
        address = global_addresses(ins, vaddr, ins.operands[2], target, nbytes)

        def loaded(g: Waves) -> np.ndarray:
            return g.memory.gather(g.memory.check(address(g), nbytes, g.exec), nbytes)

    each = 8 * nbytes // width

    def step(g: Waves) -> None:
        octets = np.ascontiguousarray(loaded(g)).view(np.uint8)
        if width % 8 == 0:
            moved = octets.view(f"u{width // 8}")[:, from_lane, from_place]
            words = np.ascontiguousarray(moved).view(U32)
        else:
            bits = np.unpackbits(octets, axis=-1, bitorder="little").reshape(g.count, g.lanes, each, width)
            moved = bits[:, from_lane, from_place]
            words = np.packbits(moved.reshape(g.count, g.lanes, -1), axis=-1, bitorder="little").view(U32)
        for k in range(nbytes // 4):
            g.put(n + k, words[..., k])

    return step


#: every such instruction
NAMES = (
    *(f"ds_load_b{total}_tr_b{bits}" for total, bits in ((64, 4), (64, 8), (64, 16), (96, 6))),
    *_RDNA4,
    *_ALIASES,
    *(f"{space}_load_tr{tail}" for space in ("ds", "global") for tail in ("4_b64", "6_b96", "8_b64", "16_b128")),
)


def find(name: str) -> Builder | None:
    """The builder of a load that transposes."""
    return _build if name in NAMES else None

"""Loads and stores of up to 32 registers at once (RDNA 4): `global_load_block` and its kin, by which LLVM saves
registers that a function has to keep.

Bit k of M0 says whether register k of the 32 takes part; its place is 4 k bytes behind the address, whatever the others
do. Source: AMD RDNA 4 ISA guide, GLOBAL_LOAD_BLOCK; LLVM, pull request 137169.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import M0, Instruction
from .alu import Builder, Step, Target
from .global_access import global_addresses
from .private_access import check_private, gather_private, scatter_private, scratch_addresses
from .state import U32, Waves

_NAME = re.compile(r"(global|scratch)_(load|store)_block$")
NAMES = tuple(f"{space}_{way}_block" for space in ("global", "scratch") for way in ("load", "store"))
REGISTERS = 32


class BlockAccess:
    """One such load or store; calling it executes it."""

    def __init__(self, ins: Instruction, target: Target):
        match = _NAME.match(ins.name)
        assert match
        if ins.flag("scale_offset"):
            raise UnknownInstructionError(f"{ins.name} with scale_offset: what it multiplies by is documented nowhere")
        self.is_global, self.load = match[1] == "global", match[2] == "load"
        data, vaddr = ins.operands[:2] if self.load else ins.operands[1::-1]
        self.data = data.index
        place = global_addresses if self.is_global else scratch_addresses
        self.address = place(ins, vaddr, ins.operands[2], target)

    def parts(self, g: Waves) -> Iterator[tuple[int, np.ndarray]]:
        """Which of the registers take part, and the lanes [wave, lane] that move each."""
        for k in range(REGISTERS):
            takes = (g.s[M0] >> U32(k) & U32(1)).astype(np.bool_)
            if takes.any():
                yield k, g.active() & takes[:, None]

    def __call__(self, g: Waves) -> None:
        """Raises AccessFault where the memory refuses."""
        first = self.address(g)
        loaded = [self._move(g, self.data + k, first + 4 * k, active) for k, active in self.parts(g)]
        for n, words, active in (part for part in loaded if part is not None):  # the address may lie among them
            np.copyto(g.u[n], words, where=active)

    def _move(self, g: Waves, n: int, address: np.ndarray, active: np.ndarray):
        if self.is_global:
            at = g.memory.check(address, 4, active)
            if self.load:
                return n, g.memory.gather(at, 4)[..., 0], active
            g.memory.scatter(at, g.u[n][..., None], 4, active)
            return None
        at = check_private(g, address, 4, active)
        if self.load:
            return n, gather_private(g, at, 4)[..., 0], active
        scatter_private(g, at, g.u[n][..., None], 4, active)
        return None


def _build(ins: Instruction, target: Target) -> Step:
    return BlockAccess(ins, target)


def find(name: str) -> Builder | None:
    """The builder of a load or store of a block of registers."""
    return _build if name in NAMES else None

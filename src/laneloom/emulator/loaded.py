"""A code object in memory: its segments, and the places in them that a loader fills in.

Source: LLVM "User Guide for AMDGPU Backend", "Relocation Records".
"""

from __future__ import annotations

import numpy as np

from ..errors import EmulationError
from ..isa.elf import BROKEN, Relocation, Segment, read_relocations, read_sections, read_segments
from .memory import Region

_PAGE = 4096
_MOST = 1 << 36  #: bytes from address 0 to the end of the last segment; more is no code object
_ABS32_LO, _ABS32_HI, _ABS64, _ABS32, _RELATIVE64 = 1, 2, 3, 6, 13
_WEAK = 2


class LoadedObject:
    """The segments of a code object at one address after the other as the linker laid them out.

    Global variables keep what kernels store to them as long as this lives.
    """

    def __init__(self, elf: bytes):
        """Raises EmulationError for a symbol that the code object expects from elsewhere, and for a broken file."""
        try:
            self._load(read_segments(elf), read_relocations(read_sections(elf)))
        except BROKEN as error:
            raise EmulationError("the code object is cut off or broken") from error

    def _load(self, segments: list[Segment], relocations: list[Relocation]) -> None:
        end = max((s.address + s.nbytes for s in segments), default=0)
        if end > _MOST:
            raise ValueError(end)
        self._memory = np.zeros(end + 2 * _PAGE, np.uint8)
        skip = -self._memory.ctypes.data % _PAGE
        self.base = self._memory.ctypes.data + skip  #: where the code object's address 0 is
        self._bytes = self._memory[skip:]
        for s in segments:
            self._bytes[s.address : s.address + len(s.data)] = np.frombuffer(s.data, np.uint8)
        for relocation in relocations:
            self._fill_in(relocation)
        self.regions = [
            Region(f"code object's data from {s.address:#x}", self.base + s.address, s.nbytes, self._memory)
            for s in segments
        ]

    def _fill_in(self, relocation: Relocation) -> None:
        kind, symbol = relocation.kind, relocation.symbol
        if kind == 0:
            return
        if kind not in (_ABS32_LO, _ABS32_HI, _ABS32, _ABS64, _RELATIVE64):
            raise EmulationError(f"the code object has a relocation of type {kind}, which laneloom does not know")
        value = self.base + relocation.addend
        if symbol is not None and kind != _RELATIVE64:
            if symbol.section == 0 and symbol.binding != _WEAK:
                raise EmulationError(f"the code object expects {symbol.name!r} from elsewhere: link what defines it")
            value = value + symbol.value if symbol.section else 0
        nbytes = 8 if kind in (_ABS64, _RELATIVE64) else 4
        raw = (value >> (32 if kind == _ABS32_HI else 0)).to_bytes(16, "little")[:nbytes]
        self._bytes[relocation.address : relocation.address + nbytes] = np.frombuffer(raw, np.uint8)

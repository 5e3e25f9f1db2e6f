"""Barriers that are words of LDS (CDNA 5): 64 bits that count arrivals and phases.

Bits 28:0 say how many arrivals are pending, less one; 31:29 are the phase; 47:32 what the pending count starts each
phase with. The arrival beyond the last pending one takes 1 from the phase. Kernels poll the word with ordinary loads.
Source: what Triton's code for Gluon's `mbarrier` tests (bit 29), and HipKittens' barriers for gfx1250.
"""

from __future__ import annotations

import numpy as np

from ..isa.parse import Instruction
from .alu import Builder, Step, Target
from .lds_access import addresses
from .memory import LocalMemory
from .state import U32, U64, Waves

_PENDING = (1 << 29) - 1


def arrive(g: Waves, wave: int, byte: int, count: int) -> int:
    """Count `count` arrivals of a wave at the barrier in that byte of its workgroup's LDS; the word before."""
    place = int(g.lds.check(g.lds_base[wave : wave + 1], np.array([[byte]], np.int64), 8, None)[0, 0])
    if g.lds.flights is not None:
        return g.lds.flights.arrive(int(g.ids[wave]), place, lambda: _count(g.lds, place, count))
    return _count(g.lds, place, count)[0]


def _count(lds: LocalMemory, byte: int, count: int) -> tuple[int, bool]:
    """The word before, and whether its phase is over now."""
    word = int(lds.view(8)[byte // 8])
    lds.view(8)[byte // 8] = after(word, count)
    lds.version += 1
    return word, count > (word & _PENDING)


def after(word: int, count: int) -> int:
    """The word after `count` arrivals."""
    pending, phase, start = word & _PENDING, word >> 29 & 7, word >> 32 & 0xFFFF
    turns, pending = divmod(pending - count, start + 1) if count > pending else (0, pending - count)
    return word & ~0xFFFFFFFF | (phase + turns & 7) << 29 | pending


def _build_arrive(ins: Instruction, target: Target) -> Step:
    """Each active lane arrives as often as its data says; without a result, once, when earlier copies are done."""
    returns = "_rtn_" in ins.name
    destination = ins.operands[0].index if returns else None
    address, data = (ins.operands[1], ins.operands[2]) if returns else (ins.operands[0], None)
    offset = ins.number("offset")

    def step(g: Waves) -> None:
        at, active = addresses(g, address.index, offset), g.active()
        found = np.zeros((g.count, g.lanes), U64)
        count = np.ones((g.count, g.lanes), U64) if data is None else g.pair(data.index)
        for wave, lane in np.argwhere(active):
            found[wave, lane] = arrive(g, wave, int(at[wave, lane]), int(count[wave, lane]))
        if destination is not None:
            g.put(destination, (found & U64(0xFFFFFFFF)).astype(U32))
            g.put(destination + 1, (found >> U64(32)).astype(U32))

    return step


BUILDERS: dict[str, Builder] = {
    "ds_atomic_barrier_arrive_rtn_b64": _build_arrive,
    "ds_atomic_async_barrier_arrive_b64": _build_arrive,
}


def find(name: str) -> Builder | None:
    """The builder of an arrival."""
    return BUILDERS.get(name)

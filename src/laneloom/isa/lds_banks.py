"""The bank model of LDS, for every count of bank conflicts in laneloom.

AMD RDNA 3, 3.5 and 4 ISA guides, chapter "Local data share": a workgroup processor has 128 KiB in 64 banks of 4-byte
words, two sets of 32, each set at one pair of SIMDs; words lie in the banks one after another, and every bank serves
one word per clock. So an access is served 128 bytes at a time from 32 banks: 32 lanes of 4 bytes or less, 16 of 8, 8 of
16. AMD calls these phases (Composable Kernel documentation, "Understanding AMD GPU LDS and bank conflicts"). Lanes of
one phase that want different words of one bank take turns; lanes that want the same word share it, but for atomics,
which take turns.

AMD does not document which lanes of RDNA form a phase; here they are neighbours. Inactive lanes want nothing.

CDNA: a compute unit of gfx942 has 32 banks, one of gfx950 64 (CDNA 3 and CDNA 4 white papers). Loads of 16 bytes are
served in groups of 8 and 16 lanes that are no neighbours, which AMD lists (Composable Kernel documentation, as above;
triton-lang/triton, pull request 11365): `MI300` and `MI350` here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..gpu import Gpu

BANKS = 32  #: of RDNA, and of CDNA before gfx950
BANK_BYTES = 4


@dataclass(frozen=True)
class Banks:
    """The banks of one LDS, and the lanes in the order in which loads of 16 bytes are served."""

    count: int = BANKS
    load_order: tuple[int, ...] | None = None  #: of 64 lanes; None: one after another


def _fours(*firsts: int) -> tuple[int, ...]:
    """Lanes by fours: the first lane of each four, for lanes 0 to 31; lanes 32 to 63 follow alike."""
    half = [first + k for first in firsts for k in range(4)]
    return tuple(half + [32 + lane for lane in half])


RDNA = Banks()
MI300 = Banks(32, _fours(0, 20, 4, 16, 8, 28, 12, 24))
MI350 = Banks(64, _fours(0, 12, 20, 24, 4, 8, 16, 28))


def banks_of(gpu: Gpu) -> Banks:
    """The banks of one pair of SIMDs on RDNA, of one compute unit on CDNA."""
    return {"gfx942": MI300, "gfx950": MI350}.get(gpu.name, RDNA)


def lanes_at_once(nbytes: int, banks: Banks = RDNA) -> int:
    """Lanes of one phase of an access of `nbytes` (1 to 16) per lane."""
    return min(banks.count, 1 << (banks.count * BANK_BYTES // nbytes).bit_length() - 1)


def access_cycles(
    address: np.ndarray, nbytes: int, active: np.ndarray | None = None, *, atomic: bool = False,
    banks: Banks = RDNA, load: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Clocks of one access: (phases that have an active lane, extra clocks by bank conflicts), each int64 [wave].

    address: integers [wave, lane], byte addresses; nbytes: per lane; active: booleans [wave, lane], None for all.
    load: it is one, whose lanes are served in the order of `banks`.
    """
    waves, lanes = address.shape
    if load and nbytes == 16 and banks.load_order is not None and lanes == len(banks.load_order):
        order = np.array(banks.load_order)
        address, active = address[:, order], None if active is None else active[:, order]
    together = min(lanes_at_once(nbytes, banks), lanes)
    first = address.astype(np.int64) >> 2
    last = (address.astype(np.int64) + (nbytes - 1)) >> 2
    count = max(nbytes // BANK_BYTES, 1) + int((first + max(nbytes // BANK_BYTES, 1) <= last).any())
    word = first[..., None] + np.arange(count)
    wanted = word <= last[..., None]
    if active is not None:
        wanted &= active[..., None]
    rows = (waves * (lanes // together), together * count)
    word, wanted = word.reshape(rows), wanted.reshape(rows)
    # Sorted by bank, then word: the words of one bank stand together, equal ones side by side.
    key = np.where(wanted, (word % banks.count) << 40 | word, np.int64(banks.count) << 40)
    key.sort(axis=1)
    new = np.ones(rows, bool)
    if not atomic:
        new[:, 1:] = key[:, 1:] != key[:, :-1]
    bank = key >> 40
    turn = np.cumsum(new, axis=1)
    start = np.ones(rows, bool)
    start[:, 1:] = bank[:, 1:] != bank[:, :-1]
    before = np.maximum.accumulate(np.where(start, turn - 1, 0), axis=1)
    busiest = np.where(bank < banks.count, turn - before, 0).max(axis=1)
    shape = (waves, lanes // together)
    phases = (busiest > 0).reshape(shape).sum(axis=1)
    return phases, np.maximum(busiest - 1, 0).reshape(shape).sum(axis=1)

"""The bank model of LDS, for every count of bank conflicts in laneloom.

AMD RDNA 3, 3.5 and 4 ISA guides, chapter "Local data share": a workgroup processor has 128 KiB in 64 banks of 4-byte
words, two sets of 32, each set at one pair of SIMDs; words lie in the banks one after another, and every bank serves
one word per clock. So an access is served 128 bytes at a time from 32 banks: 32 lanes of 4 bytes or less, 16 of 8, 8 of
16. AMD calls these phases (Composable Kernel documentation, "Understanding AMD GPU LDS and bank conflicts"). Lanes of
one phase that want different words of one bank take turns; lanes that want the same word share it, but for atomics,
which take turns.

AMD does not document which lanes of RDNA form a phase; here they are neighbours. Inactive lanes want nothing.
"""

from __future__ import annotations

import numpy as np

BANKS = 32
BANK_BYTES = 4
CLOCK_BYTES = BANKS * BANK_BYTES  #: served at a time without conflicts


def lanes_at_once(nbytes: int) -> int:
    """Lanes of one phase of an access of `nbytes` (1 to 16) per lane."""
    return min(BANKS, 1 << (CLOCK_BYTES // nbytes).bit_length() - 1)


def access_cycles(
    address: np.ndarray, nbytes: int, active: np.ndarray | None = None, *, atomic: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Clocks of one access: (phases that have an active lane, extra clocks by bank conflicts), each int64 [wave].

    address: integers [wave, lane], byte addresses; nbytes: per lane; active: booleans [wave, lane], None for all.
    """
    waves, lanes = address.shape
    together = min(lanes_at_once(nbytes), lanes)
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
    key = np.where(wanted, (word % BANKS) << 40 | word, np.int64(BANKS) << 40)
    key.sort(axis=1)
    new = np.ones(rows, bool)
    if not atomic:
        new[:, 1:] = key[:, 1:] != key[:, :-1]
    bank = key >> 40
    turn = np.cumsum(new, axis=1)
    start = np.ones(rows, bool)
    start[:, 1:] = bank[:, 1:] != bank[:, :-1]
    before = np.maximum.accumulate(np.where(start, turn - 1, 0), axis=1)
    busiest = np.where(bank < BANKS, turn - before, 0).max(axis=1)
    shape = (waves, lanes // together)
    phases = (busiest > 0).reshape(shape).sum(axis=1)
    return phases, np.maximum(busiest - 1, 0).reshape(shape).sum(axis=1)

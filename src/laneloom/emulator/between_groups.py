"""Stores of different workgroups to one place (strict mode).

Which of two values stays is open where nothing orders the workgroups. What may order them are atomics, global wave
sync, a cluster's barrier, and flags that are stored and polled. Those LLVM loads past the caches of a compute unit, and
it writes caches back or empties them beside the ones that order other places too.
Code without any of these has no order. Where atomics alone may order, group_clocks.py follows them. All other code is
let pass.
"""

from __future__ import annotations

import re

import numpy as np

from ..isa.parse import Instruction, Listing
from .tested_loads import tested_loads

_ATOMIC = re.compile(r"(global|flat|buffer)_atomic")
_FENCE = re.compile(r"(global|flat|buffer)_(wb|inv|gl1_inv)")
#: Scalar atomics, caches of scalar loads, global wave sync.
_OTHERS = re.compile(r"ds_gws|s_(buffer_)?atomic|s_(dcache_(inv|wb)|sendmsg_rtn)")
#: Fences and barriers by which LLVM orders the waves of one workgroup alone (CDNA 3 and 4; RDNA 4 and CDNA 5).
_WITHIN = re.compile(r"buffer_inv\b(?!.*\bsc1\b)|global_(inv|wb)\s.*\bSCOPE_(CU|SE)\b")
#: Loads that see what other compute units have stored: volatile ones, and atomic ones.
_PAST_CACHES = re.compile(r"(global|flat|buffer)_load.*\b(glc|sc1|SCOPE_DEV|SCOPE_SYS)\b")
_CLUSTER = re.compile(r"s_barrier_(signal|wait)\w*\s+-[34]\b")


def apart(listing: Listing, lanes: int) -> bool:
    """Whether nothing in the code could order accesses of two workgroups."""
    code = listing.instructions
    return not any(
        _is_opaque(ins) or _ATOMIC.match(ins.name) or (_FENCE.match(ins.name) and not _WITHIN.match(ins.text))
        for ins in code
    ) and not any(_PAST_CACHES.match(ins.text) and _is_polled(listing, at, lanes) for at, ins in enumerate(code))


def only_atomics_order(listing: Listing) -> bool:
    """Whether there are atomics on memory, and nothing else in the code could order accesses of two workgroups.

    Loads past the caches may be of flags that workgroups store: their stores look like all others.
    """
    code = listing.instructions
    return any(_ATOMIC.match(ins.name) for ins in code) and not any(
        _is_opaque(ins) or _PAST_CACHES.match(ins.text) for ins in code
    )


def _is_opaque(ins: Instruction) -> bool:
    return bool(_CLUSTER.match(ins.text) or _OTHERS.match(ins.name))


def _is_polled(listing: Listing, at: int, lanes: int) -> bool:
    """Whether the next branch behind a load depends on what it loads."""
    rest = listing.instructions[at:]
    end = next((n for n, ins in enumerate(rest) if ins.name.startswith(("s_cbranch", "s_branch", "s_endpgm"))), 0)
    return 0 in tested_loads(rest[: end + 1], lanes, _PAST_CACHES)


def overwritten(
    others: np.ndarray, mine: np.ndarray, active: np.ndarray | None, differ: np.ndarray, offset: np.ndarray,
    unit_bytes: int,
) -> np.ndarray | None:  # fmt: skip
    """Where an access changes bytes of a unit that another workgroup stored last, [wave, lane, unit]; None: nowhere.

    others, mine: the last writer's workgroup and the access's own, numbered from 1; 0 is nobody.
    differ: [wave, lane, n] words, what is there exclusive-or what is stored; a wide store may change others' units too.
    """
    bad = (others != 0) & (others != mine)
    if active is not None:
        bad &= active
    if not bad.any():
        return None
    changed = np.broadcast_to(differ, (*bad.shape[:2], differ.shape[-1])).astype(np.uint32).view(np.uint8)
    wave, lane, k = np.nonzero(bad)
    inside = np.broadcast_to(offset, bad.shape[:2])[wave, lane] & (unit_bytes - 1)
    byte = (k * unit_bytes - inside)[:, None] + np.arange(unit_bytes)
    bad[wave, lane, k] = changed[wave[:, None], lane[:, None], np.clip(byte, 0, changed.shape[-1] - 1)].any(axis=-1)
    return bad if bad.any() else None

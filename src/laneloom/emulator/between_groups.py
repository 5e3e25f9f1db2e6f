"""Stores of different workgroups to one place (strict mode).

Which of two values stays is open where nothing orders the workgroups. What may order them are atomics, global wave
sync, a cluster's barrier, and flags that are stored and polled, beside which LLVM writes caches back or empties them.
Code without any of these has no order; all other code is let pass, since an order is not followed here.
"""

from __future__ import annotations

import re

import numpy as np

from ..isa.parse import Listing

_ORDERS = re.compile(r"(global|flat|buffer)_(atomic|wb|inv|gl1_inv)|ds_gws|s_(atomic|dcache_(inv|wb)|sendmsg_rtn)")
#: Fences and barriers by which LLVM orders the waves of one workgroup alone (CDNA 3 and 4; RDNA 4 and CDNA 5).
_WITHIN = re.compile(r"buffer_inv\b(?!.*\bsc1\b)|global_(inv|wb)\s.*\bSCOPE_(CU|SE)\b")
_CLUSTER = re.compile(r"s_barrier_(signal|wait)\w*\s+-[34]\b")


def apart(listing: Listing) -> bool:
    """Whether nothing in the code could order accesses of two workgroups."""
    return not any(
        _CLUSTER.match(ins.text) or (_ORDERS.match(ins.name) and not _WITHIN.match(ins.text))
        for ins in listing.instructions
    )


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

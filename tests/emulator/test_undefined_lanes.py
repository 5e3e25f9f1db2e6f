"""Strict mode's undefined bits of what moves between lanes: lanes that are off are not read, or not written."""

import numpy as np
import pytest
from test_undefined_bits import KERNEL, WAVES, waves

from laneloom.emulator.program import Program
from laneloom.emulator.shadow import Shadow
from laneloom.isa.parse import EXEC

DPP = "row_mask:0xf bank_mask:0xf"


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("ds_permute_b32 v8, v3, v1", 0),  # to the next lane
        ("ds_bpermute_b32 v8, v3, v1", 0),
        (f"v_and_b32_dpp v8, v1, v2 row_mirror {DPP} bound_ctrl:1", 0),
        (f"v_add_nc_u32_dpp v8, v1, v2 row_shr:1 {DPP} bound_ctrl:1", 0),
        (f"v_add_nc_u32_dpp v8, v1, v2 row_shr:1 {DPP}", 0x11),  # lanes 0 and 4 keep what they had
        (f"v_mov_b32_dpp v8, v1 row_shr:1 {DPP}", 0x11),
        (f"v_mov_b32_dpp v8, v2 row_shr:1 {DPP}", 0x11),  # of a register that is all defined
    ],
)
def test_inactive_lanes_are_not_read(code, want):
    """Lanes 0 to 2 and 4 to 6 are active, the others of v1 and all of v8 hold nothing."""
    program = Program(KERNEL.format(code=code), "gfx1151", strict=True)
    V, S = np.zeros((32, WAVES, 32), np.uint32), np.zeros((128, WAVES), np.uint32)
    V[3], S[EXEC] = 4 * (np.arange(32) + 1), 0x77
    active = np.arange(32) % 4 < 3
    active[8:] = False
    g, u_v = waves(V, S, np.zeros(WAVES, bool)), np.zeros_like(V)
    u_v[1], u_v[8] = np.where(active, 0, 0xFFFFFFFF), 0xFFFFFFFF
    dirty = 1 << 1 | 1 << 8
    g.shadow = Shadow(u_v, np.zeros_like(S), np.zeros(WAVES, bool), np.zeros(WAVES, np.int64), {}, dirty, 0, None)
    follow = program.blocks[0].code.guards[0].follow
    assert follow is not None
    follow(g)
    assert (g.shadow.V[8, :, active] != 0).T.tolist() == [[bool(want >> k & 1) for k in np.flatnonzero(active)]] * WAVES

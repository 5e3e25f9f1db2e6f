"""Registers above v255 where ways of different settings meet (CDNA 5)."""

import pytest

from laneloom.errors import EmulationError
from laneloom.isa.parse import parse
from laneloom.isa.vgpr_banks import number_registers

KERNEL = """
k:
\ts_cbranch_scc1 .Lother
\ts_set_vgpr_msb 64
\tv_mov_b32_e32 v1, s2
\ts_branch .Lmeet
.Lother:
\ts_set_vgpr_msb 1
\tv_mov_b32_e32 v2, v3
.Lmeet:
\ts_add_u32 s2, s2, 1
{code}
\ts_endpgm
\ts_code_end
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 1024
\t.end_amdhsa_kernel
"""


def registers(code: str) -> list[list[int]]:
    listing = parse(KERNEL.format(code=code))
    number_registers(listing)
    return [[o.index for o in ins.operands if o.kind == "v"] for ins in listing.instructions if ins.name[0] == "v"]


def test_what_has_no_vector_register_may_be_reached_either_way():
    assert registers("\ts_set_vgpr_msb 0\n\tv_mov_b32_e32 v4, v5") == [[257], [2, 259], [4, 5]]


def test_a_register_whose_number_depends_on_the_way_stops():
    with pytest.raises(EmulationError, match=r"line 12 is reached under several settings.*: 'v_mov_b32_e32 v4, s5'"):
        registers("\tv_mov_b32_e32 v4, s5")


def test_a_register_that_both_settings_mean_the_same_by_may_stand():
    assert registers("\tv_cmp_eq_u32_e32 vcc_lo, s5, v6") == [[257], [2, 259], [6]]

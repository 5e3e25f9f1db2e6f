"""Constant tables behind a kernel: a symbol, and an offset into it, however far the literal is from s_getpc_b64."""

import struct

import numpy as np
import pytest

from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program

TEXT = """
k:
\ts_load_b64 s[2:3], s[0:1], 0x0
\ts_getpc_b64 s[4:5]
{between}
\t{add} s4, s4, table@rel32@lo+{low}
\t{carry} s5, s5, table@rel32@hi+{high}
\ts_load_b32 s6, s[4:5], 0x0
\tv_mov_b32_e32 v0, s6
\tv_mov_b32_e32 v1, 0
\tglobal_store_b32 v1, v0, s[2:3]
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_wavefront_size32 1
\t.end_amdhsa_kernel
\t.type\ttable,@object
table:
\t.long\t11
\t.long\t22
\t.long\t33
\t.size\ttable, 12
"""
GFX11 = ("gfx1151", "", "s_add_u32", "s_addc_u32", 4)
GFX12 = ("gfx1201", "\ts_sext_i32_i16 s5, s5", "s_add_co_u32", "s_add_co_ci_u32", 8)
GFX12_WAITING = (*GFX12[:1], "\ts_wait_alu depctr_sa_sdst(0)\n" + GFX12[1], *GFX12[2:4], 12)


@pytest.mark.parametrize(("gpu", "between", "add", "carry", "literal"), [GFX11, GFX12, GFX12_WAITING])
@pytest.mark.parametrize(("offset", "value"), [(0, 11), (4, 22), (8, 33)])
def test_offsets_into_a_table(gpu, between, add, carry, literal, offset, value):
    text = TEXT.format(between=between, add=add, carry=carry, low=literal + offset, high=literal + 8 + offset)
    out = np.zeros(1, np.uint32)
    region = Region("out", out.ctypes.data, out.nbytes)
    program = Program(text, gpu)
    launch(program, [1], struct.pack("<Q", out.ctypes.data), workgroup_size=1, regions=[region])
    assert out[0] == value

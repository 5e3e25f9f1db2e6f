"""Constant tables behind a kernel: a symbol, and an offset into it, however far the literal is from s_getpc_b64."""

import re
import struct

import numpy as np
import pytest

from laneloom.emulator.launch import launch
from laneloom.emulator.loaded import LoadedObject
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import EmulationError

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


POINTERS = """
k:
\ts_load_b64 s[2:3], s[0:1], 0x0
\ts_get_pc_i64 s[4:5]
\ts_add_nc_u64 s[4:5], s[4:5], table@gotpcrel+4
\ts_load_b64 s[4:5], s[4:5], 0x0
\ts_wait_kmcnt 0x0
\ts_load_b64 s[6:7], s[4:5], {offset}
\ts_load_b64 s[8:9], s[4:5], 0x10
\ts_wait_kmcnt 0x0
\ts_load_b32 s10, s[8:9], 0x0
\ts_swap_pc_i64 s[30:31], s[6:7]
\ts_wait_kmcnt 0x0
\ts_add_co_i32 s6, s6, s10
\tv_dual_mov_b32 v0, s6 :: v_dual_mov_b32 v1, 0
\tglobal_store_b32 v1, v0, s[2:3]
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t.end_amdhsa_kernel
\t.type\tone,@function
one:
\ts_mov_b32 s6, 1
\ts_set_pc_i64 s[30:31]
.Lfunc_end0:
\t.size\tone, .Lfunc_end0-one
\t.type\ttwo,@function
two:
\ts_mov_b32 s6, 2
\ts_set_pc_i64 s[30:31]
.Lfunc_end1:
\t.size\ttwo, .Lfunc_end1-two
\t.type\ttable,@object
table:
\t.quad\tone
\t.quad\ttwo
\t.quad\tnumbers+4
\t.size\ttable, 24
\t.type\tnumbers,@object
numbers:
\t.long\t10
\t.long\t20
\t.size\tnumbers, 8
"""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("offset", "value"), [("0x0", 21), ("0x8", 22)])
def test_addresses_in_a_table(offset, value, strict):
    """Of functions and of other data, as compilers write them into assembly."""
    out = np.zeros(1, np.uint32)
    region = Region("out", out.ctypes.data, out.nbytes)
    program = Program(POINTERS.format(offset=offset), "gfx1250", strict=strict)
    launch(program, [1], struct.pack("<Q", out.ctypes.data), workgroup_size=1, regions=[region])
    assert out[0] == value
    with pytest.raises(EmulationError, match=r"an address in 4 bytes of constant data.*\.long table"):
        launch(
            Program(POINTERS.format(offset=offset).replace(".long\t20", ".long\ttable"), "gfx1250"), [1], bytes(8),
            workgroup_size=1, regions=[region],
        )  # fmt: skip


def test_names_that_llvm_quotes():
    """As Triton's of functions that take aggregates; two that differ in such characters alone stay two."""
    names = {"one": "f__C<i32, c1>", "two": "f__C<i32>c1>", "table": "a table"}
    text = re.sub(r"\b(one|two|table)\b", lambda match: f'"{names[match[1]]}"', POINTERS.format(offset="0x8"))
    out = np.zeros(1, np.uint32)
    region = Region("out", out.ctypes.data, out.nbytes)
    text += '\t.type\tword,@object\nword:\n\t.asciz\t"f__C<i32, c1>"\n\t.size\tword, 14\n'
    launch(Program(text, "gfx1250"), [1], struct.pack("<Q", out.ctypes.data), workgroup_size=1, regions=[region])
    assert out[0] == 22


@pytest.mark.parametrize("place", [1 << 44, 1 << 63])
def test_a_broken_file_with_a_segment_beyond_all_memory(place):
    head = struct.pack("<4sBB10xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 3, 224, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    with pytest.raises(EmulationError, match=r"cut off or broken$"):
        LoadedObject(head + struct.pack("<IIQQQQQQ", 1, 4, 0, place, 0, 0, 64, 4096))
    with pytest.raises(EmulationError, match=r"cut off or broken$"):
        LoadedObject(head)

"""Scratch of gfx908 and gfx90a, which kernels reach through a buffer resource: compiled, and by instruction."""

import re
from dataclasses import replace

import numpy as np
import pytest

from laneloom.codegen import compile_llvm_ir
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import HazardError, OutOfBoundsError

# An array that is indexed by the lane, the same by a flat pointer, one whose size nobody knows, and a function with a
# frame of its own: the results are sums that each of them has a part in.
LLVM_IR = """
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
define internal i32 @middle(ptr addrspace(5) %at, i32 %i) #1 {
  %own = alloca [5 x i32], align 4, addrspace(5)
  %first = load volatile i32, ptr addrspace(5) %at, align 4
  %k = and i32 %i, 3
  %place = getelementptr [5 x i32], ptr addrspace(5) %own, i32 0, i32 %k
  store volatile i32 %first, ptr addrspace(5) %place, align 4
  %again = load volatile i32, ptr addrspace(5) %place, align 4
  ret i32 %again
}
define amdgpu_kernel void @stack(ptr addrspace(1) %out, i32 %size) #0 {
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %array = alloca [8 x i32], align 4, addrspace(5)
  %k = and i32 %lane, 7
  %place = getelementptr [8 x i32], ptr addrspace(5) %array, i32 0, i32 %k
  %mine = mul i32 %lane, 1000
  store volatile i32 %mine, ptr addrspace(5) %place, align 4
  %flat = addrspacecast ptr addrspace(5) %place to ptr
  %loaded = load volatile i32, ptr %flat, align 4
  %low = trunc i32 %group to i8
  %some = alloca i8, i32 %size, align 16, addrspace(5)
  %last = sub i32 %size, 1
  %byte = getelementptr i8, ptr addrspace(5) %some, i32 %last
  store volatile i8 %low, ptr addrspace(5) %byte, align 1
  %back = load volatile i8, ptr addrspace(5) %byte, align 1
  %wide = zext i8 %back to i32
  %called = call i32 @middle(ptr addrspace(5) %place, i32 %lane)
  %a = add i32 %loaded, %wide
  %b = mul i32 %called, 2
  %c = add i32 %a, %b
  %line = mul i32 %group, 128
  %at = add i32 %line, %lane
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %at
  store i32 %c, ptr addrspace(1) %to, align 4
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="128,128" }
attributes #1 = { noinline }
"""


@pytest.fixture(scope="module", params=["gfx908", "gfx90a"])
def code(request):
    return compile_llvm_ir(LLVM_IR, request.param, num_warps=2)


def run(code, strict):
    out = np.zeros(3 * 128, np.uint32)
    kernarg = out.ctypes.data.to_bytes(8, "little") + (100).to_bytes(4, "little")
    regions = [Region("out", out.ctypes.data, out.nbytes, out)]
    launch(Program(code.asm, code.gpu, strict=strict), [3], kernarg, workgroup_size=128, regions=regions)
    return out


@pytest.mark.parametrize("strict", [False, True])
def test_arrays_flat_pointers_frames_and_a_stack_of_unknown_size(code, strict):
    asm = code.asm
    assert re.search(r"buffer_store_dword v\d+, v\d+, s\[0:3\], 0 offen", asm)
    assert re.search(r"v_lshrrev_b32_e64 v\d+, 6, s3[23]", asm)  # of the stack's pointer, which is that of 64 lanes
    assert "flat_load_dword" in asm
    assert ".amdhsa_user_sgpr_private_segment_buffer 1" in asm
    lane = np.tile(np.arange(128), 3)
    assert run(code, strict).tolist() == (3000 * lane + np.arange(384) // 128).tolist()


def test_without_its_waves_place_a_kernel_reaches_anothers_scratch(code):
    """The prologue adds it to the resource; only the first wave's is 0."""
    damaged, count = re.subn(r"\n\ts_add_u32 s0, s0, s\d+(?=\n)", "\n\ts_add_u32 s0, s0, 0", code.asm)
    assert count == 1
    with pytest.raises(OutOfBoundsError, match=r"scratch access at byte -\d+.*wave 1"):
        run(replace(code, asm=damaged), False)


KERNEL = """
k:
\ts_add_u32 s0, s0, s7
\ts_addc_u32 s1, s1, 0
\ts_load_dwordx2 s[8:9], s[4:5], 0x0
\tv_lshlrev_b32_e32 v1, 2, v0
\ts_movk_i32 s32, 0x200
{code}
\ts_waitcnt vmcnt(0) lgkmcnt(0)
\tglobal_store_dword v1, v4, s[8:9]
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 16
\t\t.amdhsa_accum_offset 16
\t\t.amdhsa_user_sgpr_count 6
\t\t.amdhsa_user_sgpr_private_segment_buffer 1
\t\t.amdhsa_system_sgpr_private_segment_wavefront_offset 1
\t\t.amdhsa_private_segment_fixed_size 64
\t.end_amdhsa_kernel
"""


def execute(code, strict=True):
    out = np.zeros(64, np.uint32)
    text = KERNEL.format(code="\n".join("\t" + line.strip() for line in code.splitlines()))
    regions = [Region("out", out.ctypes.data, out.nbytes, out)]
    program = Program(text, "gfx90a", strict=strict)
    launch(program, [1], out.ctypes.data.to_bytes(8, "little"), workgroup_size=64, regions=regions)
    return out


def test_the_stack_pointer_counts_64_lanes_and_offsets_one():
    lanes = np.arange(64, dtype=np.uint32)
    got = execute("""buffer_store_dword v1, off, s[0:3], s32 offset:4
        v_mov_b32_e32 v2, 8
        s_waitcnt vmcnt(0)
        buffer_load_dword v4, v2, s[0:3], 0 offen offset:4""")  # 0x200 / 64 + 4
    np.testing.assert_array_equal(got, 4 * lanes)
    got = execute("""buffer_store_dword v1, off, s[0:3], 0
        s_waitcnt vmcnt(0)
        buffer_load_ubyte v4, off, s[0:3], 0 offset:0""")
    np.testing.assert_array_equal(got, 4 * lanes & 0xFF)
    got = execute("""buffer_store_dword v1, off, s[0:3], 0 offset:12
        v_mov_b32_e32 v2, 0xffffff80
        s_waitcnt vmcnt(0)
        buffer_load_dword v4, v2, s[0:3], 0 offen offset:140""")  # a loop that counts up to 0
    np.testing.assert_array_equal(got, 4 * lanes)


def test_a_wait_as_a_number():
    """vmcnt is in bits 3:0 and 15:14."""
    got = execute("""buffer_store_dword v0, off, s[0:3], 0
        buffer_load_dword v4, off, s[0:3], 0
        s_waitcnt 0x0f70
        v_add_u32_e32 v4, 1, v4""")
    np.testing.assert_array_equal(got, np.arange(64) + 1)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("buffer_load_dword v4, off, s[0:3], 0 offset:61", OutOfBoundsError, "byte 61, outside the 64 bytes"),
        ("buffer_load_dword v4, off, s[0:3], 0 offset:60", HazardError, "stores bits that nobody wrote"),
        ("buffer_load_dword v4, v6, s[0:3], 0 offen", HazardError, "the scratch address depends on a value"),
        ("buffer_store_dword v0, off, s[0:3], 0\nbuffer_load_dword v4, off, s[0:3], 0\nv_add_u32_e32 v4, 1, v4",
         HazardError, "reads v4 before a wait for vmcnt"),
        ("buffer_load_dword v4, off, s[0:3], 0\ns_waitcnt 0xf71\nv_add_u32_e32 v5, 1, v4",  # vmcnt(1)
         HazardError, "reads v4 before a wait for vmcnt"),
    ],
)  # fmt: skip
def test_strict_mode_and_bounds(code, error, message):
    with pytest.raises(error, match=message):
        execute(code)

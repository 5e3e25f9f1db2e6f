"""What a kernel has when it starts: arguments that are preloaded, user SGPRs that the text implies, registers."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from laneloom.codegen import compile_llvm_ir, versions
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import HazardError

IR = """
define amdgpu_kernel void @k(ptr addrspace(1) inreg %out, i32 inreg %a, i64 inreg %b, i16 inreg %c) {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %first = mul i32 %g, 64
  %j = add i32 %i, %first
  %p = getelementptr i64, ptr addrspace(1) %out, i32 %j
  %wide = sext i32 %a to i64
  %more = sext i16 %c to i64
  %x = add i64 %wide, %b
  %y = sub i64 %x, %more
  store i64 %y, ptr addrspace(1) %p
  ret void
}
"""
# Code for firmware that preloads nothing fills 256 bytes; in a disassembly each instruction has its address.
HEADER = "\ts_trap 2\n\t.fill 63, 4, 0xbf800000 ; s_nop 0\n"
PRINTED = "".join(f"\t{'s_nop 0' if k else 's_trap 2'} // {0x1600 + 4 * k:012X}: BF800000\n" for k in range(64))
BEHIND = """
\ts_lshl_b32 s6, s6, 6
\tv_add_u32_e32 v0, s6, v0
\tv_lshlrev_b32_e32 v1, 2, v0
\tv_mov_b32_e32 v2, s4
\tglobal_store_dword v1, v2, s[2:3]
\ts_endpgm
"""
DESCRIPTOR = """
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 8
\t\t.amdhsa_accum_offset 8
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
{more}\t.end_amdhsa_kernel
"""


def run(text: str, gpu: str, arguments: bytes, out: np.ndarray) -> np.ndarray:
    regions = [Region("out", out.ctypes.data, out.nbytes, out)]
    program = Program(text, gpu, strict=True)
    launch(program, [2], struct.pack("<Q", out.ctypes.data) + arguments, workgroup_size=64, regions=regions)
    return out


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942", "gfx950", "gfx1250"])
def test_preloaded_arguments(gpu):
    if gpu == "gfx1250" and versions.parse_version(versions.triton_version()) < (3, 9):
        pytest.skip("Triton 3.9 knows gfx1250")
    text = compile_llvm_ir(IR, gpu).asm
    assert "kernarg_preload_length" in text
    got = run(text, gpu, struct.pack("<i4xqh", -5, 1 << 40, -7), np.zeros(128, np.int64))
    assert (got == (1 << 40) + 2).all()
    with pytest.raises(HazardError, match=r"nobody wrote .*; the kernel reads .*: bytes 24 to 25 of .* \(c\)"):
        run(text, gpu, struct.pack("<i4xq", -5, 1 << 40), np.zeros(128, np.int64))


@pytest.mark.parametrize("header", [HEADER, PRINTED])
def test_the_code_for_other_firmware_is_passed_over(header):
    code = BEHIND
    if header is PRINTED:
        lines = enumerate(line for line in BEHIND.split("\n") if line)
        code = "".join(f"{line} // {0x1700 + 8 * k:012X}: 00000000 00000000\n" for k, line in lines)
    more = "\t\t.amdhsa_user_sgpr_count 5\n\t\t.amdhsa_user_sgpr_kernarg_preload_length 3\n"
    text = f"k:\n{header}{code}{DESCRIPTOR.format(more=more)}".replace("s6", "s5")
    got = run(text, "gfx942", struct.pack("<I", 1234), np.zeros(128, np.uint32))
    assert (got == 1234).all()


def test_preloaded_from_the_second_argument_on():
    more = "\t\t.amdhsa_user_sgpr_count 3\n\t\t.amdhsa_user_sgpr_kernarg_preload_length 1\n"
    more += "\t\t.amdhsa_user_sgpr_kernarg_preload_offset 3\n"
    code = "\ts_mov_b32 s5, s2\n\ts_mov_b32 s6, s3\n\ts_load_dwordx2 s[2:3], s[0:1], 0x0\n\ts_mov_b32 s4, s5\n"
    text = f"k:\n\ts_nop 0\n{code}\ts_waitcnt lgkmcnt(0){BEHIND}{DESCRIPTOR.format(more=more)}"
    got = run(text, "gfx942", struct.pack("<II", 1234, 5678), np.zeros(128, np.uint32))
    assert (got == 5678).all()
    text = text.replace("\t\t.amdhsa_accum_offset", "\t\t.amdhsa_kernarg_size 16\n\t\t.amdhsa_accum_offset")
    missing = "nobody wrote .*; the kernel reads arguments .*: bytes 12 to 15 of the argument block;"
    with pytest.raises(HazardError, match=missing):  # the launch gives the first alone
        run(text, "gfx942", struct.pack("<I", 1234), np.zeros(128, np.uint32))


def test_the_assembler_counts_user_sgprs():
    """Without `.amdhsa_user_sgpr_count` the workgroup's number follows the user SGPRs that the text asks for."""
    code = "\ts_mov_b32 s6, s4\n\ts_load_dword s4, s[0:1], 0xc\n\ts_load_dwordx2 s[2:3], s[2:3], 0x0\n"
    more = "\t\t.amdhsa_user_sgpr_dispatch_ptr 1\n"
    text = f"k:\n{code}\ts_waitcnt lgkmcnt(0){BEHIND}{DESCRIPTOR.format(more=more)}"
    got = run(text, "gfx942", b"", np.zeros(128, np.uint32))
    assert (got == 128).all()  # the grid's size, of the dispatch packet


@pytest.mark.parametrize(("gpu", "last"), [("gfx908", "a255"), ("gfx942", "a255"), ("gfx1250", "v1023")])
def test_registers_that_only_the_linker_counts(gpu, last):
    """Where calls are indirect LLVM's text has an expression for the number of registers: any may be used then."""
    most = "max(totalnumvgprs(.Lk.num_agpr, .Lk.num_vgpr), 1, 0)"
    places = "(((((alignto(max(1, .Lk.num_vgpr), 4)/4)-1)&~65536)&63)+1)*4"
    text = DESCRIPTOR.format(more="").replace("_vgpr 8", f"_vgpr {most}").replace("offset 8", f"offset {places}")
    program = Program(f"k:\n\ts_endpgm\n{text}", gpu)
    kind, number = last[0], int(last[1:])
    assert program.vgprs > number + (program.target.accumulators if kind == "a" else 0)

"""Code objects as libraries of assembly hold them: many kernels, labels that are symbols, functions without sizes."""

import struct

import numpy as np
import pytest
from test_code_objects import by_hand, real_objdump

from laneloom.cli.kernel_arguments import Given, pack
from laneloom.codegen import assemble
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import ArgumentError
from laneloom.isa import objdump
from laneloom.isa.disassembly import _ranges, disassemble
from laneloom.isa.metadata import ArgumentMetadata, KernelMetadata

_KERNEL = """\t.globl {name}
\t.p2align 8
\t.type {name},@function
{name}:
\ts_load_b64 s[2:3], s[0:1], 0x0
\ts_mov_b32 s4, {rounds}
\tv_mov_b32_e32 v1, 0
{name}_loop:
\tv_add_nc_u32_e32 v1, 2, v1
\ts_sub_u32 s4, s4, 1
\ts_cmp_lg_u32 s4, 0
\ts_cbranch_scc1 {name}_loop
\ts_branch {name}_store
\ts_trap 2
{name}_store:
\tv_lshlrev_b32_e32 v0, 2, v0
\ts_waitcnt lgkmcnt(0)
\tglobal_store_b32 v0, v1, s[2:3]
\ts_endpgm
"""


#: as Tensile jumps further than 16 bits: forward over 32 words, and back by 20 bytes to the loop's beginning
_FAR = """	.globl {name}
	.p2align 8
	.type {name},@function
{name}:
	s_load_b64 s[2:3], s[0:1], 0x0
	s_mov_b32 s7, {rounds}
	v_mov_b32_e32 v1, 0
	s_getpc_b64 s[4:5]
	s_add_i32 s6, 0x90, 4
	s_add_u32 s4, s4, s6
	s_addc_u32 s5, s5, 0
	s_setpc_b64 s[4:5]
	.rept 32
	s_trap 2
	.endr
	v_add_nc_u32_e32 v1, 2, v1
	s_sub_u32 s7, s7, 1
	s_cmp_eq_u32 s7, 0
	s_cbranch_scc1 {name}_store
	s_getpc_b64 s[4:5]
	s_add_i32 s6, 0xffffffe8, 4
	s_abs_i32 s6, s6
	s_sub_u32 s4, s4, s6
	s_subb_u32 s5, s5, 0
	s_setpc_b64 s[4:5]
{name}_store:
	v_lshlrev_b32_e32 v0, 2, v0
	s_waitcnt lgkmcnt(0)
	global_store_b32 v0, v1, s[2:3]
	s_endpgm
"""


def library(count: int, kernel: str = _KERNEL) -> bytes:
    """Kernels k0, k1, ..., of which the n-th counts to 2 n + 2."""
    code, rest = by_hand().split("\t.globl k\n")[0], by_hand().partition("\t.rodata\n")[2]
    described, _, entry = rest.partition("\t.amdgpu_metadata\n")
    head, _, entry = entry.partition("  - .args:\n")
    entry, _, tail = entry.partition("amdhsa.version:")
    names = [f"k{k}" for k in range(count)]
    code += "".join(kernel.format(name=name, rounds=k + 1) for k, name in enumerate(names)) + "\t.rodata\n"
    code += "".join(described.replace("amdhsa_kernel k", f"amdhsa_kernel {name}") for name in names)
    entries = "".join(
        "  - .args:\n" + entry.replace(".name: k", f".name: {name}").replace(".symbol: k.", f".symbol: {name}.")
        for name in names
    )
    return assemble(f"{code}\t.amdgpu_metadata\n{head}{entries}amdhsa.version:{tail}", "gfx1151", kernel="k0").binary


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kernel", [_KERNEL, _FAR], ids=["labels", "far jumps"])
def test_kernels_as_tensile_writes_them(kernel, strict):
    """llvm-objdump stops at each label when asked for a symbol, and names labels in branches; a jump beyond 16 bits
    is made of the address of its place and constants, and has no label at all."""
    real_objdump("gfx1151")
    elf = library(3, kernel)
    for k in range(3):
        read = disassemble(elf, kernel=f"k{k}")
        program = Program(read.text, read.gpu, f"k{k}", strict=strict, elf=read.elf)
        out = np.zeros(32, np.int32)
        region = Region("out", out.ctypes.data, out.nbytes, out)
        launch(program, [1], struct.pack("<Q", out.ctypes.data), workgroup_size=32, regions=[region])
        assert (out == 2 * k + 2).all()


def test_a_function_without_a_size_ends_at_the_next(monkeypatch):
    real_objdump("gfx1151")
    elf, asked, decode = library(3), [], objdump.read_lines
    monkeypatch.setattr(objdump, "read_lines", lambda *a: asked.append(a[3]) or decode(*a))
    text = disassemble(elf, kernel="k1").text
    assert text.count("s_endpgm") == 1
    assert [len(ranges) for ranges in asked] == [1]
    assert disassemble(elf).text.count("s_endpgm") == 3


@pytest.mark.parametrize("beside", ["by_value", "global_buffer"])
def test_an_array_for_eight_bytes_by_value(beside):
    """Tensile's metadata knows no pointers; where there are some, an array is no number of 8 bytes."""
    array = Given("x", "f32", np.zeros(5, np.float32))
    kinds = [ArgumentMetadata(0, 8, "by_value", "AddressA"), ArgumentMetadata(8, 8, beside, "AddressB")]
    described = KernelMetadata("k", tuple(kinds), 16, 0, 0, 0, 0, 0, 0, 0, 32, 64, False)
    if beside == "by_value":
        assert pack([array, array], described, "k", 0)[0] == struct.pack("<QQ", *[array.value.ctypes.data] * 2)
        return
    with pytest.raises(ArgumentError, match="expects a scalar of 8 bytes as argument 0"):
        pack([array, array], described, "k", 0)


def test_few_ranges_are_asked_for():
    pieces = [(10 * k, 10 * k + 10, f"f{k}") for k in range(100)]
    assert _ranges(pieces[:5], {20}) == [(0, 20), (30, 50)]
    every_other = _ranges(pieces, {10 * k for k in range(0, 100, 2)})
    assert len(every_other) == 16
    assert every_other[-1][1] == 1000
    assert all(any(a <= 10 * k and 10 * k + 10 <= b for a, b in every_other) for k in range(1, 100, 2))

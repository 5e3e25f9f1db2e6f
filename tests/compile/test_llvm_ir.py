"""LLVM IR becomes code objects, and wrong IR an error."""

from __future__ import annotations

import struct

import pytest

from laneloom.codegen import compile_llvm_ir
from laneloom.errors import ArgumentError, CompileError
from laneloom.gpu import GPUS

LLVM_IR = """
declare i32 @llvm.amdgcn.workitem.id.x()
define amdgpu_kernel void @fill(ptr addrspace(1) %out, float %value) #0 {
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %place = getelementptr float, ptr addrspace(1) %out, i32 %lane
  STORE
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" }
"""
STORE = "store float %value, ptr addrspace(1) %place, align 4"


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1201", "gfx90a", "gfx942"])
def test_llvm_ir(gpu: str):
    waves = 64 // GPUS[gpu].wave
    as_clang_says = LLVM_IR.replace("define amdgpu_kernel", "define protected amdgpu_kernel")
    code = compile_llvm_ir(as_clang_says.replace("STORE", STORE), gpu, num_warps=waves)
    assert code.kernel == "fill"
    assert "global_store" in code.asm
    assert [(a.name, a.size) for a in code.arguments[:2]] == [("out", 8), ("value", 4)]
    assert code.num_warps == waves
    assert struct.unpack_from("<H", code.binary, 18) == (224,)  # EM_AMDGPU


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (LLVM_IR.replace("STORE", "nonsense"), CompileError, "expected instruction opcode at line 6"),
        (
            LLVM_IR.replace("STORE", "call void @llvm.amdgcn.s.wait.kmcnt(i16 0)")
            + "declare void @llvm.amdgcn.s.wait.kmcnt(i16)",
            CompileError,
            "(?i)cannot select",
        ),
        (
            LLVM_IR.replace("STORE", "store float %value, ptr addrspace(3) @big")
            + "@big = internal addrspace(3) global [200000 x i8] poison",
            CompileError,
            "gfx1151: local memory .200000. exceeds limit",
        ),
        (LLVM_IR.replace("define amdgpu_kernel", "define"), ArgumentError, "exactly one amdgpu_kernel function, not 0"),
        (LLVM_IR + 'attributes #7 = { "target-cpu"="gfx942" }', ArgumentError, "is for gfx942, not for gfx1151"),
    ],
    ids=["syntax", "an instruction of RDNA 4", "an error that LLVM goes on after", "no kernel", "another GPU"],
)
def test_wrong_llvm_ir_is_an_error_and_not_the_end_of_the_process(text: str, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        compile_llvm_ir(text, "gfx1151")


def test_llvm_ir_for_more_waves_than_it_admits():
    with pytest.raises(ArgumentError, match="num_warps=4"):
        compile_llvm_ir(LLVM_IR.replace("STORE", STORE), "gfx1151", num_warps=4)


def test_16_bit_arithmetic_of_rdna_3():
    half = """%old = load half, ptr addrspace(1) %place
  %sum = fadd half %old, %value
  store half %sum"""
    text = LLVM_IR.replace("STORE", STORE).replace("float", "half").replace("store half %value", half)
    assert "v_add_f16" in compile_llvm_ir(text, "gfx1151", num_warps=2).asm

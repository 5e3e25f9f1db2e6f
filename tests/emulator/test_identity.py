"""Clocks, the place of a wave and the numbers of its lanes, as `tl.extra.hip` and LLVM's builtins read them."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import laneloom  # noqa: E402
from laneloom.codegen import compile_llvm_ir  # noqa: E402
from laneloom.emulator.launch import launch  # noqa: E402
from laneloom.emulator.memory import Region  # noqa: E402
from laneloom.emulator.program import Program  # noqa: E402
from laneloom.errors import HazardError, UnknownInstructionError  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402


@triton.jit
def wait_kernel(begin_ptr, end_ptr, wgp_ptr, ticks):
    n = tl.program_id(0)
    begin = tl.extra.hip.memrealtime()
    now = begin
    while now < begin + ticks:
        now = tl.extra.hip.memrealtime()
    tl.store(begin_ptr + n, begin)
    tl.store(end_ptr + n, now)
    tl.store(wgp_ptr + n, tl.extra.hip.smid())


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1201", "gfx90a", "gfx942"])
def test_a_kernel_that_waits_for_a_moment(gpu):
    if not hasattr(tl.extra.hip, "smid"):
        pytest.skip("this Triton has no smid")
    if gpu.startswith("gfx9"):  # Triton's memrealtime waits for vmcnt there, where the clock counts in lgkmcnt
        with laneloom.emulated(gpu, strict=True), pytest.raises(HazardError, match=r"lgkmcnt.*s_memrealtime"):
            wait_kernel[(6,)](*(torch.zeros(6, dtype=torch.int64) for _ in range(3)), 1000)
    begin, end, wgp = (torch.zeros(6, dtype=torch.int64) for _ in range(3))
    with laneloom.emulated(gpu, strict=not gpu.startswith("gfx9")):
        wait_kernel[(6,)](begin, end, wgp, 1000)
    assert (begin > 0).all()
    assert (end - begin >= 1000).all()
    assert 1 < len(wgp.unique()) <= 16


NUMBERS = """
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workitem.id.y()
declare i32 @llvm.amdgcn.workitem.id.z()
define amdgpu_kernel void @numbers(ptr addrspace(1) %out) #0 {
  %x = call i32 @llvm.amdgcn.workitem.id.x()
  %y = call i32 @llvm.amdgcn.workitem.id.y()
  %z = call i32 @llvm.amdgcn.workitem.id.z()
  %z8 = mul i32 %z, 8
  %yz = add i32 %z8, %y
  %yz4 = mul i32 %yz, 4
  %at = add i32 %yz4, %x
  %x100 = mul i32 %x, 100
  %y10 = mul i32 %y, 10
  %xy = add i32 %x100, %y10
  %xyz = add i32 %xy, %z
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %at
  store i32 %xyz, ptr addrspace(1) %to, align 4
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" }
"""


@pytest.mark.parametrize("gpu", ["gfx908", "gfx90a", "gfx1100"])
def test_numbers_of_the_lanes_of_a_workgroup(gpu):
    """In a register for each axis on CDNA 1, packed into v0 since."""
    out = np.zeros(64, np.uint32)
    program = Program(compile_llvm_ir(NUMBERS, gpu, num_warps=64 // get_gpu(gpu).wave).asm, gpu, strict=True)
    kernarg = out.ctypes.data.to_bytes(8, "little")
    launch(program, [1], kernarg, workgroup_size=(4, 8, 2), regions=[Region("out", out.ctypes.data, 256, out)])
    assert out.tolist() == [100 * x + 10 * y + z for z in range(2) for y in range(8) for x in range(4)]


def test_clocks_and_places_of_gfx9(execute):
    machine = execute(
        "s_memtime s[2:3]\ns_memrealtime s[4:5]\ns_getreg_b32 s6, hwreg(HW_REG_HW_ID, 8, 8)\n"
        "s_getreg_b32 s7, hwreg(HW_REG_XCC_ID)", gpu="gfx942", lanes=64,
    )  # fmt: skip
    assert 0 < machine.scalar(2)[0] < machine.scalar(4)[0]
    assert [int(machine.scalar(n)[0]) for n in (3, 5, 6, 7)] == [0] * 4


@pytest.mark.parametrize(("gpu", "low"), [("gfx1151", "SHADER_CYCLES"), ("gfx1201", "SHADER_CYCLES_LO")])
def test_clocks_and_places(execute, gpu, low):
    machine = execute(
        f"s_getreg_b32 s2, hwreg(HW_REG_{low}, 0, 20)\ns_getreg_b32 s3, hwreg(29, 0, 20)\n"
        "s_sendmsg_rtn_b32 s4, sendmsg(MSG_RTN_GET_REALTIME)\ns_sendmsg_rtn_b64 s[6:7], sendmsg(MSG_RTN_GET_REALTIME)\n"
        "s_getreg_b32 s8, hwreg(HW_REG_HW_ID1, 8, 2)",
        gpu=gpu,
    )
    clocks = [int(machine.scalar(n)[0]) for n in (2, 3, 4, 6)]
    assert clocks == sorted(set(clocks))
    assert machine.scalar(7)[0] == 0
    assert machine.scalar(8)[0] == 0
    if gpu == "gfx1201":
        assert execute("s_getreg_b32 s2, hwreg(HW_REG_SHADER_CYCLES_HI)", gpu=gpu).scalar(2)[0] == 0
    with pytest.raises(UnknownInstructionError, match="TRAPSTS"):
        execute("s_getreg_b32 s2, hwreg(HW_REG_TRAPSTS)", gpu=gpu)
    with pytest.raises(UnknownInstructionError, match="DOORBELL"):
        execute("s_sendmsg_rtn_b32 s2, sendmsg(MSG_RTN_GET_DOORBELL)", gpu=gpu)


@triton.jit
def hasty_kernel(out_ptr):
    code: tl.constexpr = "s_sendmsg_rtn_b32 $0, sendmsg(MSG_RTN_GET_REALTIME)\ns_add_i32 $0, $0, 1"
    now = tl.inline_asm_elementwise(code, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(out_ptr, now)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_an_answer_is_waited_for(gpu):
    with laneloom.emulated(gpu, strict=True), pytest.raises(HazardError) as hazard:
        hasty_kernel[(1,)](torch.zeros(1, dtype=torch.int32))
    assert hazard.value.kind == "wait"

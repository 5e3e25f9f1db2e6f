"""Strict mode: bitwise atomics and compare-and-swap on words of LDS that are written in part, as atomics of 8 and 16
bits become."""

import numpy as np
import pytest
from test_strict import GPUS, LANE, POINTER, run

from laneloom.codegen import compile_llvm_ir
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import HazardError
from laneloom.gpu import get_gpu

# Half a word is written; the atomic of that half is one of the whole word.
HALF = POINTER + LANE + "\tv_mov_b32_e32 v2, 0x5a0f\n\tds_store_b16 v1, v2\n\tv_mov_b32_e32 v3, {data}\n"
STORE = "\t{wait_lds}\n\tglobal_store_b32 v1, v4, s[4:5]\n"
OPERATIONS = {
    "and": (0xFFFF3333, np.bitwise_and), "or": (0x3333, np.bitwise_or), "xor": (0x3333, np.bitwise_xor),
}  # fmt: skip


def told(code, data):
    return code.replace("{data}", hex(data))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("result", ["_rtn", ""])
def test_the_written_half_stays_defined(gpu, name, result):
    data, operation = OPERATIONS[name]
    atomic = f"\tds_{name}{result}_b32 {'v4, ' if result else ''}v1, v3\n"
    new = run(told(HALF, data) + atomic + "\tds_load_u16 v4, v1\n" + STORE, gpu)
    assert (new[:64] == operation(0x5A0F, data & 0xFFFF)).all()
    if result:
        old = run(told(HALF, data) + atomic + "\t{wait_lds}\n\tv_and_b32_e32 v4, 0xffff, v4\n" + STORE, gpu)
        assert (old[:64] == 0x5A0F).all()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("after", ["", "\tds_load_b32 v4, v1\n"])
def test_the_other_half_stays_undefined(gpu, name, after):
    """In the word that was there and in the one that is there now."""
    atomic = f"\tds_{name}_rtn_b32 v4, v1, v3\n"
    with pytest.raises(HazardError, match="stores bits that nobody wrote") as caught:
        run(told(HALF, OPERATIONS[name][0]) + atomic + after + STORE, gpu)
    assert caught.value.kind == "undefined"


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("name", "data", "want"), [("and", 0x3333, 0x1203), ("or", 0xFFFF0000, 0xFFFF5A0F)])
def test_bits_that_the_atomic_makes_are_defined(gpu, name, data, want):
    got = run(told(HALF, data) + f"\tds_{name}_b32 v1, v3\n\tds_load_b32 v4, v1\n" + STORE, gpu)
    assert (got[:64] == want).all()


@pytest.mark.parametrize("gpu", GPUS)
def test_lanes_find_what_lanes_before_them_left(gpu):
    """All write one place: only the first finds bits that nobody wrote."""
    one_place = told(HALF, 0xFFFF0000) + "\tv_mov_b32_e32 v5, 0\n\tds_or_rtn_b32 v4, v5, v3\n\t{wait_lds}\n"
    but_first = "\tv_cmp_ne_u32_e32 vcc_lo, 0, v0\n\ts_and_b32 exec_lo, exec_lo, vcc_lo\n"
    got = run(one_place + but_first + STORE, gpu, threads=32)
    assert (got[1:32] == 0xFFFF5A0F).all()
    with pytest.raises(HazardError, match=r"stores bits that nobody wrote .*lane 0"):
        run(one_place + STORE, gpu, threads=32)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", ["add_u32", "max_i32", "inc_u32"])
def test_numbers_made_of_undefined_bits_are_told(gpu, name):
    with pytest.raises(HazardError, match="an atomic combines bits of LDS that nobody wrote"):
        run(told(HALF, 1) + f"\tds_{name} v1, v3\n", gpu)


# What LLVM makes of a sum of 16 bits: here one place, to which every lane adds 1.
BEGIN = told(HALF, 0) + "\tv_mov_b32_e32 v5, 0\n\ts_mov_b32 s6, 0\n\t{wait_lds}\n\t{barrier}\n\tds_load_b32 v2, v5\n"
LOOP = """.L0:
\t{wait_lds}
\tv_add_nc_u32_e32 v3, 1, v2
\tv_bfi_b32 v3, 0xffff, v3, v2
\tds_cmpstore_rtn_b32 v3, v5, v3, v2
\t{wait_lds}
\tv_cmp_eq_u32_e32 vcc_lo, v3, v2
\tv_mov_b32_e32 v2, v3
\ts_or_b32 s6, vcc_lo, s6
\ts_and_not1_b32 exec_lo, exec_lo, s6
\ts_cbranch_execnz .L0
\ts_mov_b32 exec_lo, -1
\t{barrier}
"""


EXECUTE = """\tv_cmp_eq_u32_e32 vcc_lo, v3, v2
\tv_mov_b32_e32 v2, v3
\ts_or_b32 s6, vcc_lo, s6
\ts_and_not1_b32 exec_lo, exec_lo, s6
"""


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("threads", [32, 64])
def test_a_loop_of_compare_and_swap_on_half_a_word(gpu, threads):
    new = run(BEGIN + LOOP + "\tds_load_u16 v4, v5\n" + STORE, gpu, threads=threads)
    assert (new[:threads] == 0x5A0F + threads).all()
    by_exec = LOOP.replace(EXECUTE, "\tv_cmpx_ne_u32_e32 v3, v2\n\tv_mov_b32_e32 v2, v3\n")
    new = run(BEGIN + by_exec + "\tds_load_u16 v4, v5\n" + STORE, gpu, threads=threads)
    assert (new[:threads] == 0x5A0F + threads).all()
    with pytest.raises(HazardError, match="stores bits that nobody wrote"):
        run(BEGIN + LOOP + "\tds_load_b32 v4, v5\n" + STORE, gpu, threads=threads)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_swap_that_unknown_bits_decide_is_told(gpu):
    swap = "\tv_mov_b32_e32 v7, {expected}\n\tds_cmpstore_rtn_b32 v3, v5, v7, v7\n\tds_load_u16 v4, v5\n"
    with pytest.raises(HazardError, match="an atomic combines bits of LDS that nobody wrote"):
        run(BEGIN + swap.replace("{expected}", "0x5a0f") + STORE, gpu)
    new = run(BEGIN + swap.replace("{expected}", "0x5a0e") + STORE, gpu)  # differs in bits that are known
    assert (new[:64] == 0x5A0F).all()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("register", ["v2", "v3"])
def test_another_test_of_the_word_is_not_decided(gpu, register):
    other = f"\tv_bfi_b32 {register}, 0xffff, {register}, v9\n\tv_cmp_eq"
    with pytest.raises(HazardError, match="depends on a value that nobody wrote"):
        run(BEGIN + LOOP.replace("\tv_cmp_eq", other) + "\tds_load_u16 v4, v5\n" + STORE, gpu)


IN_SCRATCH = """
define amdgpu_kernel void @k(ptr addrspace(1) %out) {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %own = alloca i32, align 4, addrspace(5)
  %flat = addrspacecast ptr addrspace(5) %own to ptr
  %old = atomicrmw {operation} ptr %flat, i32 %t syncscope("agent") monotonic
  %new = load i32, ptr addrspace(5) %own
  %low = and i32 {stored}, {mask}
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %low, ptr addrspace(1) %to
  ret void
}}
"""


def of_llvm(text, gpu, threads=64):
    program = Program(compile_llvm_ir(text, gpu, num_warps=threads // get_gpu(gpu).wave).asm, gpu, strict=True)
    out = np.zeros(64, np.uint32)
    regions = [Region("out", out.ctypes.data, out.nbytes, out)]
    launch(program, [1], out.ctypes.data.to_bytes(8, "little"), workgroup_size=threads, regions=regions)
    return out[:threads]


def in_scratch(gpu, operation, stored, mask):
    """Flat atomics on scratch that nobody wrote before."""
    return of_llvm(IN_SCRATCH.format(operation=operation, stored=stored, mask=mask), gpu)


@pytest.mark.parametrize("gpu", ["gfx942", "gfx1201"])
def test_flat_atomics_on_scratch(gpu):
    assert (in_scratch(gpu, "xchg", "%new", -1) == np.arange(64)).all()
    assert not in_scratch(gpu, "and", "%new", -64).any()  # the bits that are zeros now
    for operation, stored in (("xchg", "%old"), ("or", "%old"), ("or", "%new")):
        with pytest.raises(HazardError, match="stores bits that nobody wrote"):
            in_scratch(gpu, operation, stored, -1)
    with pytest.raises(HazardError, match="an atomic combines bits of scratch that nobody wrote"):
        in_scratch(gpu, "add", "%old", -1)


FLAT_SUM = """
@shared = internal addrspace(3) global [2 x half] undef, align 4
define amdgpu_kernel void @k(ptr addrspace(1) %out) {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %own = alloca [2 x half], align 4, addrspace(5)
  store volatile half 1.0, ptr addrspace({space}) {place}
  %flat = addrspacecast ptr addrspace({space}) {place} to ptr
  fence syncscope("workgroup") seq_cst
  %old = atomicrmw fadd ptr %flat, half 2.0 syncscope("agent") monotonic
  %number = load volatile {type}, ptr addrspace({space}) {place}
  %bits = bitcast {type} %number to {bits}
  %word = zext {bits} %bits to i64  ; of i32 there is no zext to i32
  %low = trunc i64 %word to i32
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %low, ptr addrspace(1) %to
  ret void
}}
"""


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942", "gfx1100", "gfx1201", "gfx1250"])
@pytest.mark.parametrize(("space", "place"), [(3, "@shared"), (5, "%own")])
def test_flat_sums_of_half_a_word(gpu, space, place):
    """Loops of compare-and-swap; every lane adds to the one word of LDS, or to its own of scratch."""
    wave = get_gpu(gpu).wave
    new = of_llvm(FLAT_SUM.format(space=space, place=place, type="half", bits="i16"), gpu, wave)
    assert (new.astype(np.uint16).view(np.float16) == (1 + 2 * wave if space == 3 else 3)).all()
    with pytest.raises(HazardError, match="stores bits that nobody wrote"):
        of_llvm(FLAT_SUM.format(space=space, place=place, type="<2 x half>", bits="i32"), gpu, wave)


FLAT_SWAP = """
define amdgpu_kernel void @k(ptr addrspace(1) %out) {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %own = alloca i32, align 4, addrspace(5)
  %junk = load volatile i32, ptr addrspace(5) %own
  %flat = addrspacecast ptr addrspace({space}) {place} to ptr
  %pair = cmpxchg ptr %flat, i32 {expected}, i32 {new} syncscope("agent") monotonic monotonic
  ret void
}}
"""


@pytest.mark.parametrize("gpu", ["gfx942", "gfx1201", "gfx1250"])
def test_flat_swaps_that_nobody_can_decide_are_told(gpu):
    wave = get_gpu(gpu).wave
    with pytest.raises(HazardError, match="an atomic combines bits of scratch that nobody wrote"):
        of_llvm(FLAT_SWAP.format(space=5, place="%own", expected=0, new=1), gpu, wave)
    of_llvm(FLAT_SWAP.format(space=5, place="%own", expected="%junk", new=1), gpu, wave)
    for numbers in ({"expected": "%junk", "new": 1}, {"expected": 0, "new": "%junk"}):  # global memory keeps no bits
        with pytest.raises(HazardError, match="stores bits that nobody wrote"):
            of_llvm(FLAT_SWAP.format(space=1, place="%out", **numbers), gpu, wave)


PART_SWAP = """
@shared = internal addrspace(3) global [4 x i{bits}] undef, align 4
define amdgpu_kernel void @k(ptr addrspace(1) %out) {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %place = getelementptr i{bits}, ptr addrspace(3) @shared, i32 {number}
  store volatile i{bits} 5, ptr addrspace(3) %place
  %flat = addrspacecast ptr addrspace(3) %place to ptr
  %expected = trunc i32 %t to i{bits}
  %pair = cmpxchg {pointer}, i{bits} %expected, i{bits} 77 syncscope("agent") monotonic monotonic
  %old = extractvalue {{i{bits}, i1}} %pair, 0
  %done = extractvalue {{i{bits}, i1}} %pair, 1
  %wide = zext i{bits} %old to i32
  %word = select i1 %done, i32 1000, i32 %wide
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %word, ptr addrspace(1) %to
  ret void
}}
"""


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942", "gfx1100", "gfx1201", "gfx1250"])
@pytest.mark.parametrize("pointer", ["ptr addrspace(3) %place", "ptr %flat"])
@pytest.mark.parametrize(("bits", "number"), [(8, 2), (16, 0), (16, 1)])
def test_swaps_of_part_of_a_word_that_fail(gpu, pointer, bits, number):
    """Those of all lanes but number 5 do."""
    old = of_llvm(PART_SWAP.format(bits=bits, number=number, pointer=pointer), gpu, get_gpu(gpu).wave)
    assert (old == np.where(np.arange(len(old)) < 5, 5, np.where(np.arange(len(old)) == 5, 1000, 77))).all()


# The same by hand: every lane expects 2 where 0x5a0f is.
OTHER_BITS = """\t{wait_lds}
\tv_and_b32_e32 v2, 0xffff0000, v2
\tv_or_b32_e32 v3, 1, v2
\tv_or_b32_e32 v6, 2, v2
\tds_cmpstore_rtn_b32 v3, v5, v3, v6
\t{wait_lds}
\tv_cmpx_ne_u32_e32 v3, v6
\ts_cbranch_execz .L1
\tv_and_b32_e32 v4, 0xffff0000, v3
\tv_cmpx_eq_u32_e32 v2, v4
\tv_mov_b32_e32 v4, 7
.L1:
"""


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    ("before", "other"),
    [
        ("v2, v4", "v9, v4"),
        ("v2, v4", "v2, v8"),
        ("\tv_and_b32_e32 v4", "\tv_mov_b32_e32 v2, v9\n\tv_and_b32_e32 v4"),
        ("\tv_and_b32_e32 v4", "\tv_mov_b32_e32 v3, v9\n\tv_and_b32_e32 v4"),
        ("\tv_and_b32_e32 v4", "\ts_cbranch_execnz .L2\n.L2:\n\tv_and_b32_e32 v4"),
        ("\tv_and_b32_e32 v4", "\ts_mov_b32 exec_lo, -1\n\tv_and_b32_e32 v4"),
    ],
)
def test_only_the_other_bits_of_the_word_found_are_compared_with_those_expected(gpu, before, other):
    end = "\ts_mov_b32 exec_lo, -1\n"
    assert (run(BEGIN + OTHER_BITS + STORE + end, gpu, threads=32)[:32] == 7).all()
    with pytest.raises(HazardError, match="EXEC depends on a value that nobody wrote"):
        run(BEGIN + OTHER_BITS.replace(before, other) + STORE + end, gpu, threads=32)
